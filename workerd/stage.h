/* SPDX-License-Identifier: MIT */
#ifndef WORKERD_STAGE_H
#define WORKERD_STAGE_H
/*
 * The device thread: loads the model, then takes windows from the link, computes them, says in the
 * page what is complete, and rings the next stage. It owns the model and is the only one to touch
 * it.
 *
 * What crosses between the threads: an order goes in by one pointer, and the way of activations
 * comes out by one, which belongs to whoever holds it; the percentage of loading, and once the
 * facts, are read by the loop thread. All functions below are the loop thread's. A fault of the
 * device, or a window that is malformed, ends the process at once with 1: what is dead is fenced,
 * what is half alive is not.
 */
#include "common/gguf.h"
#include "common/loop.h"
#include "workerd/link.h"
#include "workerd/model.h"
#include "workerd/pool_map.h"

struct stage;

struct stage_setup {
    const struct gguf *gguf;
    struct model_want want; /* copied; its strings must live as long as the stage */
    uint32_t stage, n_stages;
    uint32_t peer;           /* enum worker_peer */
    const char *trace;       /* NULL: none */
    void (*news)(void *arg); /* the model is loaded, or a new life is served: loop thread */
    void *arg;
};

/* What the device thread is to do next, after the window in hand. The last order given counts. */
struct stage_order {
    uint32_t life;
    struct link *link;     /* to be served; NULL: the life is over, nothing more is taken of it */
    struct pool_map *pool; /* its page is told */
    int ring;              /* the head's eventfd, owned; -1 when there is none to ring */
    bool stop;             /* end the thread */
};

int stage_new(struct loop *l, const struct stage_setup *setup, struct why *why, struct stage **ret);
/* Takes the order, which was made by xnew, and all that it holds. */
void stage_give(struct stage *s, struct stage_order *order);
const struct model_facts *stage_facts(const struct stage *s); /* NULL until it is loaded */
int stage_progress(const struct stage *s);                    /* 0..100 */
/* When that has changed since it was last taken (else NULL): how activations go to the next stage,
 * a line for people, empty between lives; the caller frees it. */
char *stage_take_way(struct stage *s);
/* Rises while the device goes on within a window, where the backend can tell. */
uint64_t stage_steps(const struct stage *s);
/* Ends the thread after the window in hand; false when that took longer than timeout_ms: then the
 * stage can't be freed and the process is to _exit. */
bool stage_stop(struct stage *s, uint32_t timeout_ms);
void stage_free(struct stage *s); /* after stage_stop; takes NULL */

#endif
