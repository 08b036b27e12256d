/* SPDX-License-Identifier: MIT */
#ifndef WORKERD_POOL_MAP_H
#define WORKERD_POOL_MAP_H
/*
 * The pool's files as this worker has them mapped (proto/pool_shm.h), checked before anybody trusts
 * them. They stay mapped when poold dies: windows go on without it.
 *
 * One mapping serves the loop thread and the device thread; each holds a reference. The struct is
 * immutable once made. In the page the device thread writes word[row], drained and the counters;
 * the loop thread of a head writes word[n_rows + row]. The arena is the device thread's. The tokens
 * file is the loop thread's of a head; the device thread of the last stage reads in it what a bell
 * has told it of.
 */
#include "common/cuda_host.h"
#include "proto/pool_shm.h"

struct pool_map {
    const struct pool_header *control;
    struct pool_tokens *tokens; /* read-only on other stages than the head's */
    struct pool_page *page;
    struct pool_arena *arena;
    /* Copies, checked; the ones in memory aren't read again. */
    uint64_t pool_id, n_cells; /* cells: of the tokens file, trash chunk included */
    uint32_t n_rows, n_chunks, chunk_cells, table_entries, lane_chunks, grow_chunks;
    size_t control_bytes, tokens_bytes, page_bytes, arena_bytes;
    struct cuda_host cuda; /* the arena, when it is CUDA memory */
    uint32_t refs;         /* atomic */
};

/* What the worker stated at attach. */
struct pool_map_want {
    uint64_t pool_id;
    uint32_t pipeline, stage, n_stages, first_layer, n_layers;
    uint32_t context_tokens, block_cells;
    uint64_t block_bytes;
    uint64_t arena_bytes; /* 0: the arena is a file; else CUDA memory of so many */
    int device;           /* that reads and writes such memory, or CUDA_HOST_NO_DEVICE */
};

enum { POOL_MAP_FDS = 4 }; /* control, tokens, page, arena */

/* fds stay the caller's. -EPROTO with file and reason when they aren't what was wanted. */
int pool_map_new(const int fds[POOL_MAP_FDS], const struct pool_map_want *want, struct why *why,
                 struct pool_map **ret);
struct pool_map *pool_map_ref(struct pool_map *m);
void pool_map_unref(struct pool_map *m); /* takes NULL */
static inline void pool_map_unrefp(struct pool_map **m) { pool_map_unref(*m); }

/* The chunk that a row's table names for its i-th chunk of cells; the trash chunk for what lies
 * outside the table or the arena. */
uint64_t pool_map_entry(const struct pool_map *m, uint32_t row, uint32_t i);

#endif
