/* SPDX-License-Identifier: MIT */
/*
 * What is derived from the control segment, and the primitives that change a row: reserve, cut,
 * fold. The operations themselves are in conversations.c. A commit comes after every store that it
 * makes true and before every store that it makes false.
 */
#include "poold/pool.h"

#include <assert.h>
#include <errno.h>
#include <string.h>
#include <time.h>

#include "common/death.h"
#include "common/log.h"

uint64_t pool_clock_us(void)
{
    struct timespec t;
    clock_gettime(CLOCK_BOOTTIME, &t);
    return (uint64_t)t.tv_sec * 1000000 + (uint64_t)t.tv_nsec / 1000;
}

uint32_t pool_entries_for(const struct pool *p, uint64_t cells)
{
    uint64_t c = p->seg->h->chunk_cells;
    return (uint32_t)((cells + c - 1) / c);
}

/* A row whose body or table is not possible is emptied: the file was damaged. */
static bool row_is_sane(const struct segment *s, uint32_t row)
{
    const struct pool_body *b = segment_body(s, row);
    const struct pool_header *h = s->h;
    if (b->state > POOL_IDLE || b->n_entries > h->table_entries ||
        b->base > b->n_entries * h->chunk_cells || b->copy_cells >= h->chunk_cells ||
        b->pipeline >= POOL_PIPELINES_MAX)
        return false;
    for (uint32_t i = 0; i < b->n_entries; i++) {
        uint32_t chunk = pool_entry_chunk(segment_table(s, row)[i]);
        if (chunk == 0 || chunk > h->n_chunks) return false;
    }
    return pool_entry_chunk(b->copy_entry) <= h->n_chunks;
}

static void derive(struct pool *p)
{
    struct pool_header *h = p->seg->h;
    for (uint32_t row = 0; row < h->n_rows; row++) {
        const struct pool_body *b = segment_body(p->seg, row);
        if (b->state == POOL_FREE) continue;
        if (!row_is_sane(p->seg, row)) {
            log_error("row %u of the control segment is damaged; its conversation is dropped", row);
            struct pool_body empty = {.generation = b->generation, .lease = b->lease + 1};
            segment_commit(p->seg, row, &empty);
            segment_trim_table(p->seg, row);
            continue;
        }
        for (uint32_t i = 0; i < b->n_entries; i++)
            p->refs[pool_entry_chunk(segment_table(p->seg, row)[i])]++;
        if (b->copy_entry) p->refs[pool_entry_chunk(b->copy_entry)]++;
        if (b->state == POOL_CLOSING && !b->holder) p->n_closing++;
        p->next_arrival = max_u64(p->next_arrival, b->arrival + 1);
    }
    for (uint32_t chunk = h->n_chunks; chunk > 0; chunk--)
        if (p->refs[chunk] == 0) p->free[p->n_free++] = chunk;
}

struct pool *pool_new(struct segment *seg, const uint32_t *cells)
{
    struct pool *p = xnew(struct pool);
    size_t n = (size_t)seg->h->n_chunks + 1;
    *p = (struct pool){
        .seg = seg,
        .cells = cells,
        .refs = xcalloc(n, sizeof(*p->refs)),
        .scratch = xcalloc(n, sizeof(*p->scratch)),
        .free = xcalloc(n, sizeof(*p->free)),
        .next_arrival = 1,
    };
    derive(p);
    return p;
}

void pool_free(struct pool *p)
{
    if (!p) return;
    segment_free(p->seg);
    free(p->refs);
    free(p->scratch);
    free(p->free);
    free(p);
}

void pool_chunk_put(struct pool *p, uint32_t chunk)
{
    assert(chunk > 0 && p->refs[chunk] > 0);
    if (--p->refs[chunk] == 0) p->free[p->n_free++] = chunk;
}

/* Its generation is raised before it enters a table, so whoever cached the chunk's former content
 * under {chunk, generation} does not find it. Not committed yet: a death here loses nothing. */
uint64_t pool_chunk_take(struct pool *p, uint32_t wanted)
{
    assert(p->n_free > 0 && p->refs[wanted] == 0);
    uint32_t chunk = p->free[--p->n_free];
    if (wanted) chunk = wanted; /* in the identity layout the stack is a count only */
    p->refs[chunk]++;
    struct pool_chunk *c = &p->seg->chunks[chunk];
    DEATH_POINT("chunk-generation");
    shm_store_u32(&c->generation, c->generation + 1);
    return pool_entry(chunk, c->generation);
}

uint64_t pool_next_arrival(struct pool *p) { return p->next_arrival++; }

uint32_t pool_youngest(const struct pool *p, uint64_t arrival)
{
    uint32_t best = UINT32_MAX;
    for (uint32_t row = 0; row < p->seg->n_used; row++) {
        const struct pool_body *b = segment_body(p->seg, row);
        if (b->state != POOL_ACTIVE || b->arrival <= arrival) continue;
        arrival = b->arrival;
        best = row;
    }
    return best;
}

/* Least over the head's second word and the stages' words; a word of another lease counts as base.
 */
uint32_t pool_valid_cells(const struct pool *p, uint32_t row)
{
    const struct pool_body *b = segment_body(p->seg, row);
    if (b->state == POOL_IDLE || b->state == POOL_WAITING || b->state == POOL_FREE) return b->base;
    uint32_t valid = b->n_entries * p->seg->h->chunk_cells;
    for (uint32_t stage = 0; stage < p->seg->h->n_stages; stage++) {
        const struct pool_page *page = p->page[b->pipeline][stage];
        uint64_t word = page ? shm_load_u64(&page->word[row]) : 0;
        uint32_t cells = pool_word_lease(word) == b->lease ? pool_word_cells(word) : b->base;
        valid = min_u32(valid, cells);
        if (stage > 0) continue;
        word = page ? shm_load_u64(&page->word[page->n_rows + row]) : 0;
        cells = pool_word_lease(word) == b->lease ? pool_word_cells(word) : b->base;
        valid = min_u32(valid, cells);
    }
    return valid;
}

bool pool_drained(const struct pool *p, uint32_t pipeline, uint64_t window)
{
    for (uint32_t stage = 0; stage < p->seg->h->n_stages; stage++) {
        const struct pool_page *page = p->page[pipeline][stage];
        if (!p->manned[pipeline][stage] || !page) continue; /* confirmed dead: it writes nothing */
        if (shm_load_u64(&page->drained) < window) return false;
    }
    return true;
}

uint32_t pool_cached_cells(const struct pool_body *b) { return b->base + b->copy_cells; }

/* The body that a cut to n_cells gives, as far as its length goes. */
static void shorten(const struct pool *p, uint32_t row, uint32_t n_cells, struct pool_body *b)
{
    uint32_t c = p->seg->h->chunk_cells, k = n_cells / c, rest = n_cells % c;
    const uint64_t *table = segment_table(p->seg, row);
    bool from_copy = b->copy_entry && b->n_entries == b->base / c && k == b->n_entries;
    bool shared = rest && k < b->n_entries && p->refs[pool_entry_chunk(table[k])] > 1;
    if (p->seg->h->lane_chunks) shared = false; /* by a save, which is waited for */
    if (!rest || !(from_copy || shared)) {
        b->base = n_cells;
        b->n_entries = pool_entries_for(p, n_cells);
        b->copy_entry = b->copy_cells = 0;
        return;
    }
    b->base = k * c;
    b->n_entries = k;
    if (shared) b->copy_entry = table[k];
    b->copy_cells = rest;
}

/* Whether a worker may have computed cells behind n_cells, of this lease or before it. */
static bool goes_on(const struct pool *p, uint32_t row, uint32_t n_cells)
{
    const struct pool_body *b = segment_body(p->seg, row);
    if (b->base > n_cells) return true;
    for (uint32_t stage = 0; stage < p->seg->h->n_stages; stage++) {
        const struct pool_page *page = p->page[b->pipeline][stage];
        uint64_t word = page ? shm_load_u64(&page->word[row]) : 0;
        if (pool_word_lease(word) == b->lease && pool_word_cells(word) > n_cells) return true;
    }
    return false;
}

/* The chunk that a cut goes through gets another generation: whoever cached its cells behind the
 * cut under {chunk, generation} must not find them when another pipeline has written others there.
 * Dead before the commit: the row is as it was, and its chunk is read once more. */
static void cut_through(struct pool *p, uint64_t *entry)
{
    uint32_t chunk = pool_entry_chunk(*entry);
    struct pool_chunk *c = &p->seg->chunks[chunk];
    DEATH_POINT("cut-generation");
    shm_store_u32(&c->generation, c->generation + 1);
    DEATH_POINT("cut-entry");
    shm_store_u64(entry, pool_entry(chunk, c->generation));
}

/* Order of a cut: the commit that counts entries out, then the trash chunk in their place, then the
 * chunks are free. A chunk that stays as the one to copy from keeps its reference. */
void pool_cut(struct pool *p, uint32_t row, uint32_t n_cells, uint32_t to, const struct op_id *op)
{
    struct pool_body b = *segment_body(p->seg, row);
    uint32_t before = b.n_entries;
    uint64_t old_copy = b.copy_entry, *table = segment_table(p->seg, row);
    shorten(p, row, n_cells, &b);
    if (n_cells % p->seg->h->chunk_cells && !b.copy_entry && goes_on(p, row, n_cells))
        cut_through(p, &table[b.n_entries - 1]);
    b.lease++;
    b.state = n_cells || to == POOL_ACTIVE ? to : POOL_FREE;
    b.last_window = b.keep = b.resume = 0;
    b.holder = 0;
    if (b.state == POOL_FREE || b.state == POOL_IDLE) b.gateway = 0;
    if (op) b.op_incarnation = op->incarnation, b.op_number = op->number;
    assert(b.n_entries <= before);
    if (b.copy_entry) p->refs[pool_entry_chunk(b.copy_entry)]++;
    segment_commit(p->seg, row, &b);
    for (uint32_t i = b.n_entries; i < before; i++) {
        uint32_t chunk = pool_entry_chunk(table[i]);
        DEATH_POINT("table-clear");
        shm_store_u64(&table[i], 0);
        pool_chunk_put(p, chunk);
    }
    if (old_copy) pool_chunk_put(p, pool_entry_chunk(old_copy));
}

void pool_count(const struct pool *p, struct pool_counts *ret)
{
    *ret = (struct pool_counts){.free = p->n_free};
    memset(p->scratch, 0, ((size_t)p->seg->h->n_chunks + 1) * sizeof(*p->scratch));
    static const size_t of_state[] = {
        [POOL_ACTIVE] = offsetof(struct pool_counts, active),
        [POOL_WAITING] = offsetof(struct pool_counts, waiting),
        [POOL_CLOSING] = offsetof(struct pool_counts, closing),
        [POOL_IDLE] = offsetof(struct pool_counts, idle),
    };
    for (uint32_t row = 0; row < p->seg->h->n_rows; row++) {
        const struct pool_body *b = segment_body(p->seg, row);
        ret->rows[b->state]++;
        if (b->state == POOL_FREE) continue;
        uint32_t *count = (uint32_t *)((char *)ret + of_state[b->state]);
        for (uint32_t i = 0; i <= b->n_entries; i++) { /* the last one: what is to be copied */
            uint64_t entry = i < b->n_entries ? segment_table(p->seg, row)[i] : b->copy_entry;
            uint32_t chunk = pool_entry_chunk(entry);
            if (chunk == 0) continue;
            if (p->refs[chunk] == 1)
                ++*count;
            else if (p->scratch[chunk]++ == 0)
                ret->shared++;
        }
    }
}
