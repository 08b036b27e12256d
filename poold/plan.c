/* SPDX-License-Identifier: MIT */
/*
 * Eviction. Called by conversations.c when an operation lacks chunks or a row; takes in a fixed
 * order, never from an active conversation, and only when the whole need can be met.
 */
#include "poold/plan.h"

#include <assert.h>
#include <errno.h>
#include <string.h>

struct candidate {
    uint32_t row, rank;
    uint64_t order; /* within its rank, the lowest first */
};

/* ---- who is the beginning of another ---- */

static uint32_t row_length(const struct pool *p, uint32_t row)
{
    return min_u32(pool_valid_cells(p, row),
                   segment_body(p->seg, row)->n_entries * p->seg->h->chunk_cells);
}

/* Common cells of two rows, at most n; by ids and kinds: who asks for cells of one kind has no use
 * for the same tokens of the other. Chunks that they share need no look. */
static uint32_t common(const struct pool *p, uint32_t a, uint32_t b, uint32_t n)
{
    const uint64_t *ta = segment_table(p->seg, a), *tb = segment_table(p->seg, b);
    uint32_t c = p->seg->h->chunk_cells;
    for (uint32_t i = 0; i < n; i += c) {
        if (ta[i / c] == tb[i / c]) continue;
        const uint32_t *ca = p->cells + (uint64_t)pool_entry_chunk(ta[i / c]) * c;
        const uint32_t *cb = p->cells + (uint64_t)pool_entry_chunk(tb[i / c]) * c;
        for (uint32_t k = 0; k < min_u32(c, n - i); k++)
            if (ca[k] != cb[k]) return i + k;
    }
    return n;
}

static uint32_t word_at(const struct pool *p, uint32_t row, uint32_t pos)
{
    uint32_t c = p->seg->h->chunk_cells;
    uint64_t chunk = pool_entry_chunk(segment_table(p->seg, row)[pos / c]);
    return p->cells[chunk * c + pos % c];
}

/* A row as it is sorted. key: its first two words, so that most need no look at the cells. */
struct words {
    uint64_t salt, key;
    uint32_t row, length;
};

static struct words words_of(const struct pool *p, uint32_t row)
{
    struct words w = {segment_body(p->seg, row)->salt, 0, row, row_length(p, row)};
    if (w.length > 0) w.key = (uint64_t)word_at(p, row, 0) << 32;
    if (w.length > 1) w.key |= word_at(p, row, 1);
    return w;
}

/* By salt, then as words in a dictionary: a beginning comes right before one that goes on with it.
 * Of equal ones the lower row comes first, and gives back. */
static int by_words(const void *x, const void *y, void *arg)
{
    const struct pool *p = arg;
    const struct words *a = x, *b = y;
    if (a->salt != b->salt) return a->salt < b->salt ? -1 : 1;
    if (a->key != b->key) return a->key < b->key ? -1 : 1;
    uint32_t n = min_u32(a->length, b->length);
    uint32_t same = common(p, a->row, b->row, n);
    if (same < n) return word_at(p, a->row, same) < word_at(p, b->row, same) ? -1 : 1;
    if (a->length != b->length) return a->length < b->length ? -1 : 1;
    return a->row < b->row ? -1 : 1;
}

/* Marks the rows whose words are all the beginning of another row's. */
static void mark_beginnings(struct pool *p, bool *ret_beginning)
{
    uint32_t n = 0;
    CLEANUP(freep) struct words *w = xcalloc(p->seg->n_used, sizeof(*w));
    for (uint32_t row = 0; row < p->seg->n_used; row++)
        if (segment_body(p->seg, row)->state != POOL_FREE && !segment_body(p->seg, row)->holder)
            w[n++] = words_of(p, row);
    qsort_r(w, n, sizeof(*w), by_words, p);
    for (uint32_t i = 0; i + 1 < n; i++) {
        const struct words *a = &w[i], *b = &w[i + 1];
        if (a->salt != b->salt || b->length < a->length) continue;
        ret_beginning[a->row] = common(p, a->row, b->row, a->length) == a->length;
    }
}

/* ---- the order ---- */

/* Rank, order, then the lower row: the same plan for the same pool. */
static int by_order(const void *a, const void *b)
{
    const struct candidate *x = a, *y = b;
    if (x->rank != y->rank) return x->rank < y->rank ? -1 : 1;
    if (x->order != y->order) return x->order < y->order ? -1 : 1;
    return x->row < y->row ? -1 : 1;
}

static uint32_t candidates(struct pool *p, uint32_t spare, uint64_t arrival, struct candidate *ret)
{
    uint32_t n = 0, block = p->seg->h->geometry.block_cells;
    CLEANUP(freep) bool *beginning = xcalloc(p->seg->h->n_rows, sizeof(*beginning));
    mark_beginnings(p, beginning);
    for (uint32_t row = 0; row < p->seg->n_used; row++) {
        const struct pool_body *b = segment_body(p->seg, row);
        if (row == spare) continue;
        if (b->state == POOL_IDLE) {
            bool no_loss = pool_cached_cells(b) < block || beginning[row];
            ret[n++] = (struct candidate){row, no_loss ? PLAN_NO_LOSS : PLAN_CACHED,
                                          p->seg->rows[row].last_use};
        } else if (b->state == POOL_WAITING && b->arrival > arrival) {
            ret[n++] = (struct candidate){row, PLAN_YOUNGER, UINT64_MAX - b->arrival};
        }
    }
    qsort(ret, n, sizeof(*ret), by_order);
    return n;
}

/* ---- the plan ---- */

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
    for (uint32_t row = 0; row < p->seg->n_used; row++) {
        const struct pool_body *b = segment_body(p->seg, row);
        if (b->state == POOL_CLOSING && !b->holder) n += b->n_entries;
    }
    return n;
}

int plan_room(struct pool *p, const struct plan_ask *ask)
{
    if (p->n_free >= ask->need) return 0;
    uint32_t want = ask->need - p->n_free, gained = 0, used = 0;
    struct pool_header *h = p->seg->h;
    CLEANUP(freep) struct candidate *c = xcalloc(h->n_rows, sizeof(*c));
    CLEANUP(freep) uint32_t *keep = xcalloc(h->n_rows, sizeof(*keep));
    uint32_t n = candidates(p, ask->spare, ask->arrival, c);
    memcpy(p->scratch, p->refs, ((size_t)h->n_chunks + 1) * sizeof(*p->refs));
    for (; used < n && gained < want; used++) {
        keep[used] = n_holds(segment_body(p->seg, c[used].row));
        gained += gain(p, c[used].row, &keep[used], want - gained);
    }
    if (gained < want)
        return ask->may_wait && closing_chunks(p) >= want - gained ? -EAGAIN : -ENOSPC;
    for (uint32_t i = 0; i < used; i++) {
        const struct pool_body *b = segment_body(p->seg, c[i].row);
        p->evictions[c[i].rank] += n_holds(b) - keep[i];
        segment_count(&h->counters.evicted_chunks[c[i].rank], n_holds(b) - keep[i]);
        uint32_t cells = min_u32(b->base, keep[i] * h->chunk_cells);
        pool_cut(p, c[i].row, cells, b->state, NULL);
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
    if (p->seg->n_used < p->seg->h->n_rows) return 0;
    for (uint32_t row = 0; row < p->seg->n_used; row++)
        if (is_free_or_idle(p, row, spare)) return 0;
    return may_wait && p->n_closing ? -EAGAIN : -ENOSPC;
}

uint32_t plan_row(struct pool *p, uint32_t spare)
{
    struct pool_header *h = p->seg->h;
    for (uint32_t row = 0; row < p->seg->n_used; row++)
        if (segment_body(p->seg, row)->state == POOL_FREE) return row;
    if (p->seg->n_used < h->n_rows) return p->seg->n_used;
    CLEANUP(freep) struct candidate *c = xcalloc(h->n_rows, sizeof(*c));
    uint32_t n = candidates(p, spare, UINT64_MAX, c); /* idle ones only: nobody is younger */
    assert(n > 0);
    p->evictions[c[0].rank] += segment_body(p->seg, c[0].row)->n_entries;
    segment_count(&h->counters.evicted_chunks[c[0].rank],
                  segment_body(p->seg, c[0].row)->n_entries);
    pool_cut(p, c[0].row, 0, POOL_IDLE, NULL);
    return c[0].row;
}
