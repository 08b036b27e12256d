/* SPDX-License-Identifier: MIT */
#ifndef GATEWAY_PIPELINES_H
#define GATEWAY_PIPELINES_H
/*
 * The pipelines that poold tells of, and the way to their heads. A pipeline is ready when poold
 * says so and its head has answered what model it serves and that is ours. Also keeps the pool's
 * control segment mapped, read-only.
 *
 * Loop thread only. A struct pipeline lives as long as the pipelines.
 */
#include <stdbool.h>

#include "common/config.h"
#include "common/msg.h"
#include "common/pool_view.h"
#include "proto/pool_shm.h"

struct pipelines;

struct pipeline {
    uint32_t id;
    bool alive;                /* poold: all stages are attached and beat */
    bool known;                /* its head answered, and serves our model */
    bool draining;             /* poold: it takes nothing new */
    bool doubted;              /* a poold that has just come back does not know it yet */
    uint64_t head, doubt_head; /* doubt_head: what that poold says when doubted */
    uint32_t n_lanes, context_tokens, n_ctx_train;
    uint32_t load; /* requests that were given to it and are not finished; whoever gives counts */
    struct msg_client *client; /* to its head */
    struct pipelines *of;
};

static inline bool pipeline_is_ready(const struct pipeline *p)
{
    return p->alive && p->known && !p->draining;
}

struct pipelines_events {
    /* From a head: Started, Tokens, Finished or Refused. */
    void (*message)(void *arg, struct pipeline *p, const Cistern__Envelope *m);
    /* The head is dead or another one's: whatever it was given is lost. */
    void (*lost)(void *arg, struct pipeline *p);
    /* One became ready, or ceased to be. */
    void (*changed)(void *arg);
    /* poold refused this gateway; it can't serve. */
    void (*refused)(void *arg, const char *text);
    void *arg;
};

/* fingerprint: of the model file that this gateway's tokeniser comes from; lives as long. */
int pipelines_new(struct loop *l, const struct config *c, const char *fingerprint,
                  const struct pipelines_events *events, struct why *why, struct pipelines **ret);
void pipelines_free(struct pipelines *ps);
static inline void pipelines_freep(struct pipelines **ps) { pipelines_free(*ps); }

/* The ready one with the least load for its lanes; NULL when none is ready. to, from: the number +
 * 1 of the one that is wanted, and of the one that is only taken when there is no other; 0: none.
 */
struct pipeline *pipelines_pick(struct pipelines *ps, uint32_t to, uint32_t from);
bool pipelines_drained(const struct pipelines *ps); /* none is ready, and one would be */
/* The i-th known, ready or not; NULL past the last. */
const struct pipeline *pipelines_at(const struct pipelines *ps, uint32_t i);
uint32_t pipelines_ready(const struct pipelines *ps);
uint32_t pipelines_lanes(const struct pipelines *ps);   /* of the ready ones */
uint32_t pipelines_context(const struct pipelines *ps); /* tokens; 0 before one was ready */
bool pipelines_were_ready(const struct pipelines *ps);  /* ever */
bool pipelines_tied(const struct pipelines *ps);        /* to a poold, now */
/* One was ready when poold was lost, and its successor may not have heard from all workers yet: who
 * asked for health since then may have been told of a head that had died with that poold. At most
 * for gateway.resume_ms since then. */
bool pipelines_are_coming_back(const struct pipelines *ps);
/* Slots, as llama.cpp numbers what computes: the lanes of pipeline 0, then those of the next one,
 * and so on. A pipeline's lanes count once they were known, also while it is away, so that a death
 * changes no number. */
uint32_t pipelines_slot(const struct pipelines *ps, uint32_t pipeline, uint32_t lane);
/* -ENOENT: there is no such slot. */
int pipelines_slot_at(const struct pipelines *ps, uint64_t slot, uint32_t *ret_pipeline,
                      uint32_t *ret_lane);
/* Its header is NULL while there is no pool. */
const struct pool_view *pipelines_pool(const struct pipelines *ps);
/* Lanes of each pipeline; 0: not known. */
void pipelines_each_lanes(const struct pipelines *ps, uint32_t ret[POOL_PIPELINES_MAX]);

#endif
