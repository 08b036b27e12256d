/* SPDX-License-Identifier: MIT */
/*
 * Eviction. Called by pool.c when an operation lacks chunks or a row; takes from idle conversations
 * only, in a fixed order, and only when the whole need can be met.
 */
#include "poold/plan.h"

#include <assert.h>
#include <errno.h>
#include <string.h>

struct candidate {
    uint32_t row, rank;
    uint64_t last_use;
};

/* Rank, then the least recently used, then the lower row: the same plan for the same pool. */
static int by_order(const void *a, const void *b)
{
    const struct candidate *x = a, *y = b;
    if (x->rank != y->rank) return x->rank < y->rank ? -1 : 1;
    if (x->last_use != y->last_use) return x->last_use < y->last_use ? -1 : 1;
    return x->row < y->row ? -1 : 1;
}

static uint32_t candidates(const struct pool *p, uint32_t spare, struct candidate *ret)
{
    uint32_t n = 0;
    for (uint32_t row = 0; row < p->seg->h->n_rows; row++) {
        const struct pool_body *b = segment_body(p->seg, row);
        if (b->state != POOL_IDLE || row == spare) continue;
        uint32_t rank = b->base < p->seg->h->geometry.block_cells ? 0 : 1;
        ret[n++] = (struct candidate){row, rank, p->seg->rows[row].last_use};
    }
    qsort(ret, n, sizeof(*ret), by_order);
    return n;
}

/* Entries that a row can give back: its table's, and the one to copy from as a last one. */
static uint32_t n_holds(const struct pool_body *b) { return b->n_entries + (b->copy_entry != 0); }

/* Chunks that would be free if the row were cut to keep entries: those whose last holder in the
 * plan's copy of the counts this row is. */
static uint32_t gain(struct pool *p, uint32_t row, uint32_t *keep, uint32_t want)
{
    const struct pool_body *b = segment_body(p->seg, row);
    const uint64_t *table = segment_table(p->seg, row);
    uint32_t gained = 0;
    while (*keep > 0 && gained < want) {
        uint64_t entry = *keep > b->n_entries ? b->copy_entry : table[*keep - 1];
        if (--p->scratch[pool_entry_chunk(entry)] == 0) gained++;
        --*keep;
    }
    return gained;
}

/* Chunks that closing rows hold alone: what waiting for them gives at the most. */
static uint32_t closing_chunks(const struct pool *p)
{
    uint32_t n = 0;
    for (uint32_t row = 0; row < p->seg->h->n_rows; row++) {
        const struct pool_body *b = segment_body(p->seg, row);
        if (b->state == POOL_CLOSING) n += b->n_entries;
    }
    return n;
}

int plan_room(struct pool *p, uint32_t need, uint32_t spare, bool may_wait)
{
    if (p->n_free >= need) return 0;
    uint32_t want = need - p->n_free, gained = 0, used = 0;
    struct pool_header *h = p->seg->h;
    CLEANUP(freep) struct candidate *c = xcalloc(h->n_rows, sizeof(*c));
    CLEANUP(freep) uint32_t *keep = xcalloc(h->n_rows, sizeof(*keep));
    uint32_t n = candidates(p, spare, c);
    memcpy(p->scratch, p->refs, ((size_t)h->n_chunks + 1) * sizeof(*p->refs));
    for (; used < n && gained < want; used++) {
        keep[used] = n_holds(segment_body(p->seg, c[used].row));
        gained += gain(p, c[used].row, &keep[used], want - gained);
    }
    if (gained < want) return may_wait && closing_chunks(p) >= want - gained ? -EAGAIN : -ENOSPC;
    for (uint32_t i = 0; i < used; i++) {
        const struct pool_body *b = segment_body(p->seg, c[i].row);
        p->evictions[c[i].rank] += n_holds(b) - keep[i];
        uint32_t cells = min_u32(b->base, keep[i] * h->chunk_cells);
        pool_cut(p, c[i].row, cells, POOL_IDLE, NULL);
    }
    return 0;
}

static bool is_free_or_idle(const struct pool *p, uint32_t row, uint32_t spare)
{
    uint32_t state = segment_body(p->seg, row)->state;
    return state == POOL_FREE || (state == POOL_IDLE && row != spare);
}

int plan_has_row(const struct pool *p, uint32_t spare, bool may_wait)
{
    for (uint32_t row = 0; row < p->seg->h->n_rows; row++)
        if (is_free_or_idle(p, row, spare)) return 0;
    return may_wait && p->n_closing ? -EAGAIN : -ENOSPC;
}

uint32_t plan_row(struct pool *p, uint32_t spare)
{
    struct pool_header *h = p->seg->h;
    for (uint32_t row = 0; row < h->n_rows; row++)
        if (segment_body(p->seg, row)->state == POOL_FREE) return row;
    CLEANUP(freep) struct candidate *c = xcalloc(h->n_rows, sizeof(*c));
    uint32_t n = candidates(p, spare, c);
    assert(n > 0);
    p->evictions[c[0].rank] += segment_body(p->seg, c[0].row)->n_entries;
    pool_cut(p, c[0].row, 0, POOL_IDLE, NULL);
    return c[0].row;
}
