/* SPDX-License-Identifier: MIT */
/* See arena.h. Called by each backend's use_arena. */
#include "workerd/arena.h"

#include <errno.h>
#include <stdbool.h>

int arena_check(const struct pool_arena *a, uint32_t block_cells, struct why *why)
{
    bool whole = a->chunk_cells && a->chunk_cells % block_cells == 0;
    bool power =
        (a->chunk_cells & (a->chunk_cells - 1)) == 0; /* kernels shift instead of dividing */
    if (whole && power && a->block_cells == block_cells && a->n_runs <= POOL_RUNS_MAX) return 0;
    return why_set(why, -EINVAL,
                   "arena: chunks of %u cells, blocks of %u, %u runs; blocks must have %u cells",
                   a->chunk_cells, a->block_cells, a->n_runs, block_cells);
}

uint8_t *arena_layer(struct pool_arena *a, uint32_t layer, uint64_t block_bytes)
{
    uint64_t blocks = ((uint64_t)a->n_chunks + 1) * (a->chunk_cells / a->block_cells);
    for (uint32_t i = 0; i < a->n_runs; i++) {
        const struct pool_run *run = &a->run[i];
        if (run->layer != layer || run->kind != POOL_RUN_KV) continue;
        if (run->block_bytes != block_bytes || run->off > a->bytes) return NULL;
        if ((a->bytes - run->off) / run->block_bytes < blocks) return NULL;
        return (uint8_t *)a + run->off;
    }
    return NULL;
}
