/* SPDX-License-Identifier: MIT */
/*
 * Finds the conversation that shares the longest beginning with a prompt. Called by pool_open_row.
 * It reads the rows and the tokens file, and changes nothing.
 */
#include "poold/match.h"

uint32_t match_common(const struct pool *p, uint32_t row, const uint32_t *tokens, uint32_t limit)
{
    const struct pool_body *b = segment_body(p->seg, row);
    const uint64_t *table = segment_table(p->seg, row);
    uint32_t chunk_cells = p->seg->h->chunk_cells;
    uint32_t n = min_u32(limit, b->n_entries * chunk_cells), i = 0;
    while (i < n) {
        const uint32_t *cell =
            p->cells + (uint64_t)pool_entry_chunk(table[i / chunk_cells]) * chunk_cells;
        uint32_t end = min_u32(n - i, chunk_cells);
        for (uint32_t k = 0; k < end; k++)
            if ((cell[k] & ~POOL_TOKEN_GENERATED) != tokens[i + k]) return i + k;
        i += end;
    }
    return n;
}

/* What a row will keep: an idle row's base, and of a closing one what is valid so far. */
static uint32_t row_cells(const struct pool *p, uint32_t row, const struct pool_body *b)
{
    if (b->state == POOL_IDLE) return b->base;
    return min_u32(b->keep, pool_valid_cells(p, row));
}

struct match match_best(const struct pool *p, const struct pool_open *ask, bool closing)
{
    struct match best = {.row = UINT32_MAX};
    if (ask->n_tokens < 2) return best;
    for (uint32_t row = 0; row < p->seg->h->n_rows; row++) {
        const struct pool_body *b = segment_body(p->seg, row);
        bool may = b->state == POOL_IDLE || (closing && b->state == POOL_CLOSING);
        if (!may || b->salt != ask->salt) continue;
        uint32_t valid = row_cells(p, row, b);
        uint32_t n = match_common(p, row, ask->tokens, min_u32(valid, ask->n_tokens - 1));
        uint64_t used = p->seg->rows[row].last_use;
        if (n == 0 || n < best.cells) continue;
        if (n == best.cells && used <= p->seg->rows[best.row].last_use) continue;
        best = (struct match){row, n, valid, b->state == POOL_CLOSING};
    }
    return best;
}
