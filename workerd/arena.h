/* SPDX-License-Identifier: MIT */
#ifndef WORKERD_ARENA_H
#define WORKERD_ARENA_H
/*
 * An arena as a backend reads it: whether its blocks are the ones that the backend makes, and where
 * a layer lies in it. What the file says has been held against the pool before (pool_map.c); here
 * it is held against the device's own layout. Device thread.
 */
#include "common/base.h"
#include "proto/kv_block.h"

/* -EINVAL unless its blocks have block_cells cells and its chunks are a power of two of cells and
 * whole blocks. */
int arena_check(const struct pool_arena *a, uint32_t block_cells, struct why *why);
/* Where the K/V of a layer begins; NULL when it is missing, has other blocks or doesn't fit the
 * file. */
uint8_t *arena_layer(struct pool_arena *a, uint32_t layer, uint64_t block_bytes);
/* Copies cells [0, n_cells) of a chunk of one layer, codes and scales, and writes no other byte:
 * whole blocks, then of the last one only the cells that count, since another may still fill the
 * rest of `from`. The chunks don't overlap, or are the same. */
void arena_copy_cells(const struct kv_block *b, uint32_t block_cells, uint8_t *to,
                      const uint8_t *from, uint32_t n_cells);

#endif
