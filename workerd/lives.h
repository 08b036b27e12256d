/* SPDX-License-Identifier: MIT */
#ifndef WORKERD_LIVES_H
#define WORKERD_LIVES_H
/*
 * The pool's files and the lives of the pipeline as this worker sees them: when poold hands out a
 * link a life begins, when a process of the pipeline is known dead it is over. Both are passed on
 * to the device thread, and to the head where there is one. Owned by the worker; loop thread only.
 *
 * That a stage is not attached does not end a life: a restarted poold has not heard of everybody
 * yet. Only a death does: poold's word for it, or a process record that is gone.
 */
#include "common/lifeline.h"
#include "workerd/head.h"
#include "workerd/stage.h"

struct lives {
    /* Set before the first call. */
    uint32_t pipeline, stage, n_stages, first_layer, n_layers, context;
    uint32_t max_rows, max_lanes; /* that the model was loaded for */
    int cuda_device;              /* its number, or CUDA_HOST_NO_DEVICE */
    struct stage *device;
    struct head *head; /* NULL on other stages than the head's, and before it is there */

    struct pool_map *pool;           /* NULL before the first attach */
    uint32_t life;                   /* of the last link; 0: none yet */
    struct link *link;               /* of the life that is served */
    bool live;                       /* that life is being served */
    uint64_t peers[POOL_STAGES_MAX]; /* incarnations of its stages' workers */
    uint32_t missing;                /* looks in a row at which one of them had no process record */
};

/* Files that came over the lifeline; fds stay the caller's. -EPROTO with the reason when they are
 * not what they should be. */
int lives_files(struct lives *l, const struct lifeline_files *f, int *fds, uint32_t n_fds,
                struct why *why);
/* What this worker has of the pool that would end with it: true when its arena is CUDA memory; fd
 * stays its own. */
bool lives_arena(const struct lives *l, struct lifeline_arena *ret, int *ret_fd);
/* A process is confirmed dead. */
void lives_died(struct lives *l, uint64_t incarnation);
/* Now and then: a death may have been told while poold's connection was down. */
void lives_look(struct lives *l);
/* Fills a heartbeat: the life that the device thread has taken up (0: none), the last window that
 * it has done, and the one that it is to come to. */
void lives_beat(const struct lives *l, Cistern__Heartbeat *ret);
void lives_fini(struct lives *l);

#endif
