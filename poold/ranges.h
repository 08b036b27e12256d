/* SPDX-License-Identifier: MIT */
#ifndef POOLD_RANGES_H
#define POOLD_RANGES_H
/*
 * The identity layout (pool.cells = 0): every lane of every pipeline has a range of chunks of its
 * own, one full context, taken from its beginning on. A conversation lives on the range of the lane
 * that it was bound to and goes on there alone; another prompt on that lane keeps what both have in
 * common and drops the rest. So nothing is shared and nothing moves; rows, tables, leases, commits
 * and recovery are the pool's.
 *
 * Called by conversations.c and transfers.c; reads, changes nothing.
 */
#include "poold/pool.h"

/* First chunk of the lane's range; 0: there are none, chunks come from the free list. */
uint32_t range_first(const struct pool *p, uint32_t pipeline, uint32_t lane);
/* *ret_row: the idle or waiting conversation that lives on the range, UINT32_MAX: none. -EAGAIN:
 * one that runs or ends, or a tool, still has it. */
int range_resident(const struct pool *p, uint32_t first, uint32_t *ret_row);
/* The lane that a restore without one gets: one that nobody lives on, or else the conversation used
 * longest ago. -ENOSPC: all are in use. */
int range_choose(const struct pool *p, uint32_t *ret_pipeline, uint32_t *ret_lane);

#endif
