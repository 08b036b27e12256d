/* SPDX-License-Identifier: MIT */
#ifndef WORKERD_HEAD_STATE_H
#define WORKERD_HEAD_STATE_H
/*
 * Between the files that implement head.h: the object, and what they call of each other. head.c
 * dispatches, admission.c gives lanes to requests and takes them back, turns.c decides who waits
 * for whom, windows.c posts and collects. Nobody else includes it.
 */
#include "workerd/head.h"
#include "workerd/ops.h"
#include "workerd/schedule.h"
#include "workerd/share.h"

enum {
    HEAD_QUEUE_MAX = 4096, /* requests waiting; the gateway's own limit is lower and comes first */
};

/* A window in flight, as the head must know it when it comes back. */
struct flight_lane {
    uint32_t lane, n_rows, pos; /* pos: of its first row */
    uint64_t serial;
    bool sampled;
};
struct flight {
    uint32_t group, n_lanes;
    uint32_t n_generated, n_prompt; /* rows */
    uint64_t posted_us;
    struct flight_lane *lanes; /* [max_lanes] */
};

struct head {
    struct head_setup setup;
    struct gateways *gateways;
    struct ops ops;
    struct request_queue queue;
    bool no_room; /* the first of the queue was refused for now: nobody is admitted meanwhile */
    bool draining;
    uint32_t
        leaving; /* poold's word: 1 nothing new is taken, 2 what runs goes to another pipeline */

    struct lane *lanes; /* [setup.n_lanes] */
    uint64_t serial;    /* of the last request that got a lane */

    struct pool_map *pool; /* NULL before the first attach */

    /* One life; link is NULL between lives. */
    uint32_t life;
    struct link *link;
    int ring; /* eventfd that the last stage rings */
    struct loop_source *ringing;
    uint64_t posted, done;  /* windows of this life */
    struct flight *flights; /* [link n_slots]: window n is in flights[n % n_slots] */
    uint32_t n_flights;
    uint32_t flying[POOL_STAGES_MAX]; /* windows in flight, by group */
    uint32_t next_group;
    struct share share;     /* of a window's time, what a prompt may take */
    uint64_t back_us;       /* when the last window came back */
    struct plan_lane *plan; /* [n_lanes], scratch */
};

/* Whether it goes on only from cells of the kinds that its words have. What a stream has begun with
 * it must go on with: K/V of another kind could make another token. */
static inline bool head_is_exact(const struct head *h, const struct request *r)
{
    return h->setup.exact_prefix || r->admitted;
}

/* Does what can be done now: ends what is to end, admits, grows, posts. After every event. */
void head_step(struct head *h);

/* ---- admission.c ---- */
void admission_run(struct head *h);    /* gives free lanes to who waits */
void admission_growth(struct head *h); /* asks for cells ahead of need */
void admission_row(struct head *h, const struct op *op, const Cistern__Row *row);
void admission_refused(struct head *h, const struct op *op, const Cistern__Refused *refused);
/* Ends a lane's request: its row is closed with the cells to keep, its gateway told (ending NULL:
 * it is gone). resume: a death ended it, its gateway will submit it again. */
void admission_end(struct head *h, struct lane *l, const struct ending *ending, uint32_t keep,
                   bool resume);
/* The same for an active lane whose row poold no longer knows: nothing is left to close. */
void admission_give_up(struct head *h, struct lane *l, const struct ending *ending);
/* Ends it with its row kept for the gateway, which goes on elsewhere (to: pipeline + 1, 0 any). */
void admission_move(struct head *h, struct lane *l, uint32_t to);
void admission_close_unknown(struct head *h, uint32_t row);

/* Takes an active lane's request back into the queue, where it goes before all that are younger.
 * Its row is closed: resume keeps it for the request, else nothing of it is kept. */
void admission_requeue(struct head *h, struct lane *l, bool resume);
/* Gives a free lane to a request. */
void admission_open(struct head *h, uint32_t lane, struct request *r);

/* ---- turns.c ---- */
/* Whether a waiting request may have a lane now: not while an older prompt is being read that has
 * more in common with it than is computed. */
bool turns_may_go(const void *head, const struct request *r);
/* Without a free lane: a long prompt lets one that is less than half as long pass. */
void turns_yield(struct head *h);
/* A tool wants this row to go on in another pipeline. */
void turns_move(struct head *h, const Cistern__Move *move);
/* The pipeline is drained: sends away what may not stay. */
void turns_leave(struct head *h);
/* Now and then: each lane stands still for want of room, and an older request that was admitted
 * waits for a lane. poold takes for who asks it; this one asks nothing before it has a lane. */
void turns_unpark(struct head *h);
/* poold needs the room of this row for an older conversation. */
void turns_give_back(struct head *h, uint32_t row, uint64_t generation);

/* ---- windows.c ---- */
void windows_begin(struct head *h); /* h->link is new: sizes what is kept of windows in flight */
void windows_end(struct head *h);
/* A lane has got a row: its request takes on the kinds of the cells that it reuses. */
void windows_reuse(const struct head *h, struct lane *l);
void windows_post(struct head *h);    /* as many as can be in flight */
void windows_collect(struct head *h); /* those that the last stage has finished */

#endif
