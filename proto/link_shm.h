/* SPDX-License-Identifier: MIT */
#ifndef PROTO_LINK_SHM_H
#define PROTO_LINK_SHM_H
/*
 * The link of a pipeline: one sealed memory file a life, made by poold when all stages are attached
 * and handed to each over its lifeline. Through it windows go from stage to stage without a
 * message.
 *
 *   header | bells [stage 0..n_stages] | slot [n_slots]
 *   slot:  window | lanes [max_lanes] | tokens [max_rows] | results [max_lanes]
 *          | activations [n_stages - 1][max_rows][n_embd] float
 *
 * Windows are taken in order by every stage: window number {life, n} lies in slot n % n_slots. Bell
 * 0 counts windows that the head has posted; bell s + 1 counts windows that stage s has finished.
 * So stage s waits until bell s passes its own count, and the head until bell n_stages does. The
 * head posts into a slot only when the last stage has finished the window that lay there before.
 *
 * Each bell has one writer. A death leaves a count that no longer rises; the link is then of no use
 * to anybody and the next life has another one. A reader bounds what it copies out of a slot.
 */
#include "proto/pool_shm.h"

enum {
    LINK_SHM_VERSION = 1,
    LINK_SLOTS_PER_STAGE = 2, /* one being computed, one posted ahead */
};
#define LINK_MAGIC UINT64_C(0x316b6e4c434e5443) /* "CTNLnk1" */

struct link_header { /* poold, before anybody has it */
    uint64_t magic;
    uint32_t version;
    uint32_t pipeline, life;
    uint32_t n_stages, n_slots, max_rows, max_lanes, n_embd;
    uint64_t pool_id;
    uint64_t bells_off, slots_off;
    uint64_t slot_bytes, lanes_off, tokens_off, results_off, activations_off; /* within a slot */
    uint64_t activations_bytes; /* of one stage's part */
    uint64_t bytes;             /* of the file */
};

/* count is stored with sequential consistency, then sleepers is looked at; a waiter announces
 * itself in sleepers, then looks at count again. Nobody sleeps through a ring. */
struct link_bell {
    uint32_t count; /* the stage before (or the head): futex word; wraps, compare by difference */
    uint32_t sleepers; /* waiters: 1 while one sleeps; a dead waiter's 1 costs a needless wake */
    uint32_t pad_[14];
};
static_assert(sizeof(struct link_bell) == 64, "one cache line a bell");

struct link_window { /* the head */
    uint64_t number; /* pool_window(life, n) */
    uint32_t n_rows, n_lanes;
    uint64_t pad_[6];
};

struct link_lane {   /* the head */
    uint32_t row;    /* the conversation's row in the pool */
    uint32_t lease;  /* what the stages' words will bear */
    uint32_t pos;    /* position of its first token row */
    uint32_t n_rows; /* token rows of this lane in this window */
    uint32_t want;   /* 0 none, 1 the last row is sampled, 2 logits of all rows (debug) */
    uint32_t top_k;
    float temperature, top_p, min_p;
    uint32_t copy_chunk; /* with copy_cells: copied into the chunk of pos before the window runs */
    uint64_t seed;
    uint64_t tag;        /* of the head, handed back untouched in traces: request id */
    uint32_t copy_cells; /* first window of a fork: cells before pos to copy, else 0 */
    uint32_t pad_;
};
static_assert(sizeof(struct link_lane) == 64, "one cache line a lane");

#endif
