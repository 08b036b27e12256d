/* SPDX-License-Identifier: MIT */
/* See arena.h. Called by each backend's use_arena. */
#include "workerd/arena.h"

#include <errno.h>
#include <stdbool.h>
#include <string.h>

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

void arena_copy_cells(const struct kv_block *b, uint32_t block_cells, uint8_t *to,
                      const uint8_t *from, uint32_t n_cells)
{
    const struct kv_section *sections[] = {&b->k, &b->v, &b->k_scale, &b->v_scale};
    if (from == to) return;
    uint64_t whole = n_cells / block_cells * b->bytes;
    size_t rest = n_cells % block_cells;
    memcpy(to, from, whole);
    for (size_t i = 0; i < ARRAY_LEN(sections); i++) {
        const struct kv_section *s = sections[i];
        size_t unit = s->unit_bytes, at = whole + s->off;
        for (uint32_t l = 0; l < s->lines; l++, at += unit * block_cells)
            memcpy(to + at, from + at, rest * unit);
    }
}
