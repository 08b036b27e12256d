/* SPDX-License-Identifier: MIT */
/*
 * Saves and restores as changes of rows (transfers.h). Called by tools.c; the bytes are the tool's
 * to copy. Each begins and ends with one commit, so a death in between leaves a row of a tool that
 * is ended at the next start.
 */
#include "poold/transfers.h"

#include <errno.h>

#include "common/death.h"
#include "poold/plan.h"
#include "poold/ranges.h"

/* The body of a new row of this holder; what it held before is nobody's. */
static struct pool_body held_body(const struct pool *p, uint32_t row, uint64_t holder)
{
    const struct pool_body *old = segment_body(p->seg, row);
    return (struct pool_body){
        .generation = old->generation + 1,
        .lease = old->lease + 1,
        .state = POOL_CLOSING,
        .holder = holder,
    };
}

/* What a save takes: cells, and the entry that the last, partly filled chunk is in. */
struct saving {
    uint32_t cells;
    uint64_t last;
};

/* Of a conversation that goes on, what every stage and the head have published: that does not
 * change any more, whatever is written behind it. Where the beginning of a chunk is still to be
 * copied, the one to copy from has it. */
static struct saving saving_of(const struct pool *p, uint32_t row)
{
    const struct pool_body *b = segment_body(p->seg, row);
    uint32_t cached = pool_cached_cells(b), c = p->seg->h->chunk_cells;
    bool runs = b->state == POOL_ACTIVE || b->state == POOL_CLOSING;
    uint32_t valid = runs ? pool_valid_cells(p, row) : 0;
    struct saving s = {.cells = max_u32(valid, cached)};
    if (b->state == POOL_CLOSING) s.cells = min_u32(s.cells, b->keep);
    uint32_t k = s.cells / c;
    bool to_copy = b->copy_entry && k == b->base / c && !(runs && valid >= cached);
    if (s.cells % c) s.last = to_copy ? b->copy_entry : segment_table(p->seg, row)[k];
    return s;
}

static void share(struct pool *p, uint32_t from, const struct saving *s, uint32_t row,
                  struct pool_body *b)
{
    uint32_t c = p->seg->h->chunk_cells;
    uint64_t *table = segment_table(p->seg, row);
    b->n_entries = s->cells / c;
    b->base = b->n_entries * c;
    for (uint32_t i = 0; i < b->n_entries; i++) {
        uint64_t entry = segment_table(p->seg, from)[i];
        p->refs[pool_entry_chunk(entry)]++;
        DEATH_POINT("save-share");
        shm_store_u64(&table[i], entry); /* of a free row: nobody's until the commit */
    }
    b->copy_cells = s->cells % c;
    b->copy_entry = s->last;
    if (s->last) p->refs[pool_entry_chunk(s->last)]++;
}

int transfer_save(struct pool *p, uint32_t row, uint64_t generation, uint64_t holder,
                  uint32_t *ret_row)
{
    if (row >= p->seg->h->n_rows) return -ENOENT;
    const struct pool_body *source = segment_body(p->seg, row);
    if (source->state == POOL_FREE || source->generation != generation) return -ENOENT;
    if (source->holder) return -EBUSY;
    struct saving saving = saving_of(p, row);
    if (saving.cells == 0) return -ENODATA;
    int r = plan_has_row(p, row, false);
    if (r < 0) return r;
    uint32_t own = plan_row(p, row);
    struct pool_body b = held_body(p, own, holder);
    b.salt = source->salt;
    b.arrival = source->arrival;
    share(p, row, &saving, own, &b);
    segment_commit(p->seg, own, &b);
    segment_count(&p->seg->h->counters.saves, 1);
    *ret_row = own;
    return 0;
}

/* The identity layout: a lane's range for it, whose cached conversation goes. */
static int clear_range(struct pool *p, struct transfer_restore *at)
{
    uint32_t row = UINT32_MAX;
    if (!p->seg->h->lane_chunks) return 0;
    if (at->lane == POOL_NO_LANE) {
        int r = range_choose(p, &at->pipeline, &at->lane);
        if (r < 0) return r;
    }
    if (at->lane >= p->seg->h->pipeline_lanes) return -EXDEV;
    uint32_t first = range_first(p, at->pipeline, at->lane);
    if (first > p->seg->h->n_chunks) return -EXDEV;
    if (range_resident(p, first, &row) < 0) return -EBUSY;
    if (row != UINT32_MAX) pool_cut(p, row, 0, POOL_IDLE, NULL);
    return 0;
}

int transfer_restore(struct pool *p, const struct transfer_restore *want, uint32_t *ret_row)
{
    struct transfer_restore at = *want, *ask = &at;
    uint32_t cells = ask->cells;
    if (cells == 0 || cells > p->seg->h->geometry.context_tokens) return -E2BIG;
    uint32_t n = pool_entries_for(p, cells);
    struct plan_ask room = {n, PLAN_NOBODY, UINT64_MAX, false};
    int r = plan_has_row(p, PLAN_NOBODY, false);
    if (r == 0) r = clear_range(p, ask);
    if (r == 0) r = plan_room(p, &room);
    if (r < 0) return r;
    uint32_t first = range_first(p, ask->pipeline, ask->lane);
    uint32_t row = plan_row(p, PLAN_NOBODY);
    struct pool_body b = held_body(p, row, ask->holder);
    uint64_t *table = segment_table(p->seg, row);
    for (uint32_t i = 0; i < n; i++) {
        uint64_t entry = pool_chunk_take(p, first ? first + i : 0);
        DEATH_POINT("restore-reserve");
        shm_store_u64(&table[i], entry);
    }
    b.n_entries = n;
    b.keep = cells; /* what it will be, when it is complete */
    b.salt = ask->salt;
    b.pipeline = ask->pipeline;
    b.lane = ask->lane;
    segment_commit(p->seg, row, &b);
    segment_count(&p->seg->h->counters.restores, 1);
    *ret_row = row;
    return 0;
}

int transfer_end(struct pool *p, uint32_t row, uint64_t generation, uint64_t holder, bool complete)
{
    if (row >= p->seg->h->n_rows) return -ENOENT;
    struct pool_body b = *segment_body(p->seg, row);
    if (b.state != POOL_CLOSING || b.generation != generation || b.holder != holder) return -ENOENT;
    if (!complete || b.keep == 0) {
        pool_cut(p, row, 0, POOL_IDLE, NULL);
        return 0;
    }
    DEATH_POINT("restore-use");
    p->seg->rows[row].last_use = pool_clock_us();
    b.base = b.keep;
    b.keep = 0;
    b.holder = 0;
    b.lease++;
    b.state = POOL_IDLE;
    segment_commit(p->seg, row, &b);
    return 0;
}

void transfers_forget(struct pool *p, uint64_t holder)
{
    for (uint32_t row = 0; row < p->seg->n_used; row++)
        if (segment_body(p->seg, row)->holder == holder) pool_cut(p, row, 0, POOL_IDLE, NULL);
}
