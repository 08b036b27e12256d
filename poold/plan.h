/* SPDX-License-Identifier: MIT */
#ifndef POOLD_PLAN_H
#define POOLD_PLAN_H
/*
 * Who gives back when the pool is full. The plan is made whole before anything is taken: a refusal
 * takes nothing.
 */
#include "poold/pool.h"

enum { PLAN_NOBODY = UINT32_MAX };

/* Who gives back, in this order: */
enum plan_rank {
    PLAN_NO_LOSS, /* idle, and shorter than a block, or the beginning of another that stays */
    PLAN_CACHED,  /* idle, the least recently used first */
    PLAN_YOUNGER, /* waiting, and younger than who asks; the youngest first */
};

struct plan_ask {
    uint32_t need;    /* chunks that must be free */
    uint32_t spare;   /* a row that must stay whole, or PLAN_NOBODY */
    uint64_t arrival; /* of who asks */
    bool may_wait;    /* -EAGAIN when what is closing would suffice */
};

/* Makes chunks free, by cutting conversations from their ends, and no more than are needed.
 * -ENOSPC: not to be had. */
int plan_room(struct pool *p, const struct plan_ask *ask);

/* Whether plan_row will find one: 0, -EAGAIN or -ENOSPC. */
int plan_has_row(const struct pool *p, uint32_t spare, bool may_wait);

/* A row record for a new conversation, after plan_has_row: a free one, else the one of the idle
 * conversation that gives back first. */
uint32_t plan_row(struct pool *p, uint32_t spare);

#endif
