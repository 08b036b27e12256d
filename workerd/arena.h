/* SPDX-License-Identifier: MIT */
#ifndef WORKERD_ARENA_H
#define WORKERD_ARENA_H
/*
 * An arena as a backend reads it: whether its blocks are the ones that the backend makes, and where
 * a layer lies in it. What the file says has been held against the pool before (pool_map.c); here
 * it is held against the device's own layout. Device thread.
 */
#include "common/base.h"
#include "proto/pool_shm.h"

/* -EINVAL unless its blocks have block_cells cells and its chunks are a power of two of cells and
 * whole blocks. */
int arena_check(const struct pool_arena *a, uint32_t block_cells, struct why *why);
/* Where the K/V of a layer begins; NULL when it is missing, has other blocks or doesn't fit the
 * file. */
uint8_t *arena_layer(struct pool_arena *a, uint32_t layer, uint64_t block_bytes);

#endif
