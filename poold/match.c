/* SPDX-License-Identifier: MIT */
/*
 * Finds the conversation that shares the longest beginning with a prompt. Called by pool_open_row.
 * It reads the rows and the tokens file, and changes nothing.
 */
#include "poold/match.h"

/* The chunk of entry i, or of what is still to be copied behind the last one; 0: there is none. */
static uint32_t chunk_at(const struct pool *p, uint32_t row, const struct pool_body *b, uint32_t i)
{
    if (i < b->n_entries) return pool_entry_chunk(segment_table(p->seg, row)[i]);
    return i == b->base / p->seg->h->chunk_cells ? pool_entry_chunk(b->copy_entry) : 0;
}

enum { STRIDE = 64 }; /* tokens compared at once: without a branch a token, so by vectors */

/* How many of the first n words are those of the cells, by the bits that are heeded. */
static uint32_t same(const uint32_t *cell, const uint32_t *words, uint32_t n, uint32_t heeded)
{
    uint32_t i = 0;
    for (; i + STRIDE <= n; i += STRIDE) {
        uint32_t differ = 0;
        for (uint32_t k = i; k < i + STRIDE; k++)
            differ |= cell[k] ^ words[k];
        if (differ & heeded) break;
    }
    while (i < n && !((cell[i] ^ words[i]) & heeded))
        i++;
    return i;
}

uint32_t match_common(const struct pool *p, uint32_t row, const struct pool_open *ask,
                      uint32_t limit)
{
    uint32_t heeded = ask->exact ? UINT32_MAX : ~POOL_TOKEN_GENERATED;
    const struct pool_body *b = segment_body(p->seg, row);
    uint32_t chunk_cells = p->seg->h->chunk_cells, i = 0;
    while (i < limit) {
        uint32_t chunk = chunk_at(p, row, b, i / chunk_cells);
        if (chunk == 0) break;
        const uint32_t *cell = p->cells + (uint64_t)chunk * chunk_cells;
        uint32_t end = min_u32(limit - i, chunk_cells);
        uint32_t n = same(cell, ask->tokens + i, end, heeded);
        i += n;
        if (n < end) break;
    }
    return i;
}

/* Cells that a row has to offer: of one that is not idle, what is complete so far. */
static uint32_t row_cells(const struct pool *p, uint32_t row, const struct pool_body *b)
{
    if (b->state == POOL_IDLE || b->state == POOL_WAITING) return pool_cached_cells(b);
    uint32_t valid = pool_valid_cells(p, row);
    return b->state == POOL_CLOSING ? min_u32(b->keep, valid) : valid;
}

static bool offers(const struct pool_body *b, const struct pool_open *ask, bool closing)
{
    if (b->salt != ask->salt) return false;
    return b->state == POOL_IDLE || b->state == POOL_ACTIVE || b->state == POOL_WAITING ||
           (closing && b->state == POOL_CLOSING && !b->holder);
}

struct match match_best(const struct pool *p, const struct pool_open *ask, bool closing)
{
    struct match best = {.row = UINT32_MAX};
    uint64_t best_use = 0;
    if (ask->n_tokens < 2 || ask->fresh) return best;
    for (uint32_t row = 0; row < p->seg->n_used; row++) {
        const struct pool_body *b = segment_body(p->seg, row);
        if (!offers(b, ask, closing)) continue;
        uint32_t valid = row_cells(p, row, b);
        uint32_t n = match_common(p, row, ask, min_u32(valid, ask->n_tokens - 1));
        uint64_t use = b->state == POOL_IDLE ? p->seg->rows[row].last_use : 0;
        if (n == 0 || n < best.cells || (n == best.cells && use <= best_use)) continue;
        best = (struct match){row, n, valid, b->state};
        best_use = use;
    }
    return best;
}
