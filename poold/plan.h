/* SPDX-License-Identifier: MIT */
#ifndef POOLD_PLAN_H
#define POOLD_PLAN_H
/*
 * Who gives back when the pool is full. The plan is made whole before anything is taken: a refusal
 * takes nothing.
 */
#include "poold/pool.h"

enum { PLAN_NOBODY = UINT32_MAX };

/* Makes chunks free: at least need of them, by cutting idle conversations from their ends: first
 * those shorter than a block, then the least recently used. spare: a row that must stay whole, or
 * PLAN_NOBODY. -EAGAIN: what is closing would suffice and may_wait is set; -ENOSPC: not to be had.
 */
int plan_room(struct pool *p, uint32_t need, uint32_t spare, bool may_wait);

/* Whether plan_row will find one: 0, -EAGAIN or -ENOSPC. */
int plan_has_row(const struct pool *p, uint32_t spare, bool may_wait);

/* A row record for a new conversation, after plan_has_row: a free one, else the one of the
 * conversation that would give back first. */
uint32_t plan_row(struct pool *p, uint32_t spare);

#endif
