/* SPDX-License-Identifier: MIT */
/*
 * The operations on conversations: open, grow, truncate, close, drop, and what a death does to
 * them. Each is one commit (an open that takes a cached conversation over first cuts it, which is a
 * state of its own). Called by operations.c after the message was checked.
 */
#include <assert.h>
#include <errno.h>
#include <string.h>

#include "common/death.h"
#include "poold/match.h"
#include "poold/plan.h"
#include "poold/pool.h"
#include "poold/ranges.h"

static void touch(struct pool *p, uint32_t row)
{
    DEATH_POINT("row-use");
    p->seg->rows[row].last_use = pool_clock_us();
}

static bool made_by(const struct pool_body *b, struct op_id op)
{
    return b->op_incarnation == op.incarnation && b->op_number == op.number;
}

/* 0: go on. 1: this very operation made the row what it is. */
static int look(const struct pool *p, struct op_id op, struct row_seen seen)
{
    if (seen.row >= p->seg->h->n_rows) return -ENOENT;
    const struct pool_body *b = segment_body(p->seg, seen.row);
    if (made_by(b, op)) return 1;
    if (b->generation != seen.generation || p->seg->rows[seen.row].version != seen.version)
        return -ESTALE;
    return 0;
}

/* Entries [from, to) get fresh chunks, of the range that begins with first when that is not 0; they
 * count only after the commit of the caller. */
static void reserve(struct pool *p, uint32_t row, uint32_t first, uint32_t from, uint32_t to)
{
    uint64_t *table = segment_table(p->seg, row);
    assert(to <= p->seg->h->table_entries);
    for (uint32_t i = from; i < to; i++) {
        uint64_t entry = pool_chunk_take(p, first ? first + i : 0);
        DEATH_POINT("table-reserve");
        shm_store_u64(&table[i], entry);
    }
}

/* Cells to reserve for a prompt: itself and one growth unit, or what was asked for, at most the
 * context. */
static uint32_t open_entries(const struct pool *p, const struct pool_open *ask)
{
    const struct pool_header *h = p->seg->h;
    uint64_t cells = ask->n_tokens + (uint64_t)h->grow_chunks * h->chunk_cells;
    cells = max_u64(cells, ask->max_cells);
    return pool_entries_for(p, min_u64(cells, h->geometry.context_tokens));
}

/* A body that is bound to the asker's lane. b: what the row is now, or a new conversation's. */
static void bind(struct pool *p, const struct pool_open *ask, uint32_t row, struct pool_body b)
{
    b.lease++;
    b.state = POOL_ACTIVE;
    b.pipeline = ask->pipeline;
    b.lane = ask->lane;
    b.life = p->seg->pipelines[ask->pipeline].life;
    b.salt = ask->salt;
    b.gateway = ask->gateway;
    b.arrival = ask->arrival;
    p->next_arrival = max_u64(p->next_arrival, b.arrival + 1);
    b.op_incarnation = ask->op.incarnation;
    b.op_number = ask->op.number;
    segment_commit(p->seg, row, &b);
    touch(p, row);
}

/* Chunks that the row alone holds at and past entry from: what cutting it there gives back. */
static uint32_t tail_gain(const struct pool *p, uint32_t row, uint32_t from)
{
    uint32_t n = 0;
    for (uint32_t i = from; i < segment_body(p->seg, row)->n_entries; i++)
        n += p->refs[pool_entry_chunk(segment_table(p->seg, row)[i])] == 1;
    return n;
}

/* The entry whose beginning a fork copies: the source's own, or the one that it was to copy itself.
 */
static uint64_t chunk_of_match(const struct pool *p, uint32_t source, uint32_t i)
{
    const struct pool_body *b = segment_body(p->seg, source);
    return i < b->n_entries ? segment_table(p->seg, source)[i] : b->copy_entry;
}

/* Begins a new conversation that shares the whole chunks below common with source; the beginning of
 * the partly common one is for the stages to copy. */
static int open_new(struct pool *p, const struct pool_open *ask, uint32_t source, uint32_t common,
                    uint32_t *ret_row)
{
    uint32_t c = p->seg->h->chunk_cells, shared = common / c, rest = common % c;
    uint32_t entries = open_entries(p, ask), row = 0;
    /* The source is spared as a whole: it is the most wanted conversation there is. When that
     * leaves too little room it is neither spared nor shared. */
    int r = plan_has_row(p, source, ask->may_wait);
    struct plan_ask room = {entries - shared, source, ask->arrival, ask->may_wait};
    if (r == 0) r = plan_room(p, &room);
    if (r == -ENOSPC && source != PLAN_NOBODY) return open_new(p, ask, PLAN_NOBODY, 0, ret_row);
    if (r < 0) return r;
    row = plan_row(p, source);
    uint64_t *table = segment_table(p->seg, row);
    for (uint32_t i = 0; i < shared; i++) {
        uint64_t entry = segment_table(p->seg, source)[i];
        p->refs[pool_entry_chunk(entry)]++;
        DEATH_POINT("table-share");
        shm_store_u64(&table[i], entry); /* of a free row: nobody's until the commit */
    }
    reserve(p, row, range_first(p, ask->pipeline, ask->lane), shared, entries);
    const struct pool_body *old = segment_body(p->seg, row);
    struct pool_body b = {
        .generation = old->generation + 1,
        .lease = old->lease,
        .base = shared * c,
        .n_entries = entries,
    };
    if (rest) {
        b.copy_entry = chunk_of_match(p, source, shared);
        b.copy_cells = rest;
        p->refs[pool_entry_chunk(b.copy_entry)]++;
    }
    bind(p, ask, row, b);
    if (common) {
        segment_count(&p->seg->h->counters.forks, 1);
        touch(p, source);
    }
    *ret_row = row;
    return 0;
}

/* Takes a cached or waiting conversation over: what it has beyond the common cells goes first. */
static int open_over(struct pool *p, const struct pool_open *ask, uint32_t row, uint32_t cells,
                     uint32_t *ret_row)
{
    if (cells == 0) return open_new(p, ask, PLAN_NOBODY, 0, ret_row);
    uint32_t have = pool_entries_for(p, cells);
    uint32_t entries = max_u32(open_entries(p, ask), have);
    uint32_t tail = tail_gain(p, row, have);
    /* One more than it seems: a cut inside a shared chunk wants another one to copy into. */
    uint32_t need = entries - have;
    if (cells % p->seg->h->chunk_cells && !p->seg->h->lane_chunks) need++;
    struct plan_ask room = {need - min_u32(need, tail), row, ask->arrival, ask->may_wait};
    int r = plan_room(p, &room);
    if (r < 0) return r;
    const struct pool_body *old = segment_body(p->seg, row);
    if (cells < pool_cached_cells(old) || have < old->n_entries)
        pool_cut(p, row, cells, old->state, NULL);
    struct pool_body b = *segment_body(p->seg, row);
    reserve(p, row, range_first(p, ask->pipeline, ask->lane), b.n_entries, entries);
    b.n_entries = entries;
    struct pool_counters *count = &p->seg->h->counters;
    segment_count(b.state == POOL_IDLE ? &count->takeovers : &count->resumes, 1);
    if (b.pipeline != ask->pipeline || b.lane != ask->lane) segment_count(&count->moves, 1);
    bind(p, ask, row, b);
    *ret_row = row;
    return 0;
}

/* A turn rarely continues exactly (templates drop reasoning, answers are tokenised anew): a cached
 * conversation goes on when what would be cut off is little; else it stays whole and lends its
 * chunks. */
static bool takes_over(const struct pool *p, const struct match *m)
{
    return m->valid - m->cells <= max_u32(m->cells / 4, p->seg->h->chunk_cells);
}

static bool find_op(const struct pool *p, struct op_id op, uint32_t *ret_row)
{
    for (uint32_t row = 0; row < p->seg->n_used; row++) {
        const struct pool_body *b = segment_body(p->seg, row);
        if (b->state != POOL_ACTIVE || !made_by(b, op)) continue;
        *ret_row = row;
        return true;
    }
    return false;
}

/* Whether the row of the request's last attempt is there. It may be active still: the next attempt
 * can come by another head before the first one's close does. */
static bool resumes(const struct pool *p, const struct pool_open *ask)
{
    if (!ask->resume || ask->resume_row >= p->seg->h->n_rows) return false;
    const struct pool_body *b = segment_body(p->seg, ask->resume_row);
    return b->generation == ask->resume_generation && b->salt == ask->salt &&
           (b->state == POOL_WAITING || b->state == POOL_CLOSING ||
            (b->state == POOL_ACTIVE && b->arrival == ask->arrival));
}

/* The identity layout's open: goes on in whoever lives on the lane's range, as far as both have it
 * in common, or drops it. What waits for this request elsewhere can't follow: it is cached there.
 */
static int open_on_range(struct pool *p, const struct pool_open *ask, uint32_t *ret_row)
{
    uint32_t row, cells = 0;
    int r = range_resident(p, range_first(p, ask->pipeline, ask->lane), &row);
    if (r < 0) return r;
    const struct pool_body *b = row == UINT32_MAX ? NULL : segment_body(p->seg, row);
    if (b && !ask->fresh && b->salt == ask->salt)
        cells = match_common(p, row, ask, min_u32(b->base, ask->n_tokens - 1));
    if (resumes(p, ask) && ask->resume_row != row) {
        const struct pool_body *left = segment_body(p->seg, ask->resume_row);
        if (left->state == POOL_WAITING) pool_cut(p, ask->resume_row, left->base, POOL_IDLE, NULL);
    }
    if (b && cells == 0) pool_cut(p, row, 0, POOL_IDLE, NULL);
    return open_over(p, ask, row, cells, ret_row);
}

int pool_open_row(struct pool *p, const struct pool_open *ask, uint32_t *ret_row)
{
    if (find_op(p, ask->op, ret_row)) return 0;
    if (ask->n_tokens == 0 || ask->n_tokens > p->seg->h->geometry.context_tokens) return -E2BIG;
    if (p->seg->h->lane_chunks) return open_on_range(p, ask, ret_row);
    if (resumes(p, ask)) {
        const struct pool_body *b = segment_body(p->seg, ask->resume_row);
        if (b->state != POOL_WAITING && ask->may_wait) return -EAGAIN;
        uint32_t limit = min_u32(pool_cached_cells(b), ask->n_tokens - 1);
        /* Nobody waits for it any more: it is cached like any other. */
        if (b->state == POOL_WAITING && ask->fresh)
            pool_cut(p, ask->resume_row, pool_cached_cells(b), POOL_IDLE, NULL);
        else if (b->state == POOL_WAITING)
            return open_over(p, ask, ask->resume_row, match_common(p, ask->resume_row, ask, limit),
                             ret_row);
    }
    struct match m = match_best(p, ask, ask->may_wait);
    if (m.row == PLAN_NOBODY) return open_new(p, ask, PLAN_NOBODY, 0, ret_row);
    if (m.state == POOL_CLOSING) return -EAGAIN;
    if (m.state == POOL_IDLE && takes_over(p, &m))
        return open_over(p, ask, m.row, m.cells, ret_row);
    return open_new(p, ask, m.row, m.cells, ret_row);
}

/* The entry that the row was copied from, once every stage's word has passed the copied cells: the
 * row no longer names it. 0: there is none, or it is still needed. */
static uint64_t take_copied(const struct pool *p, uint32_t row, struct pool_body *b)
{
    uint64_t entry = b->copy_entry;
    if (!entry || pool_valid_cells(p, row) < pool_cached_cells(b)) return 0;
    b->base +=
        b->copy_cells; /* complete in the row's own chunk: what a folded lease may count on */
    b->copy_entry = b->copy_cells = 0;
    return entry;
}

int pool_grow(struct pool *p, struct op_id op, struct row_seen seen, uint32_t to_cells)
{
    int r = look(p, op, seen);
    if (r != 0) return r < 0 ? r : 0;
    struct pool_body b = *segment_body(p->seg, seen.row);
    if (b.state != POOL_ACTIVE) return -ESTALE;
    if (to_cells > p->seg->h->geometry.context_tokens) return -E2BIG;
    uint32_t entries = max_u32(pool_entries_for(p, to_cells), b.n_entries);
    struct plan_ask room = {entries - b.n_entries, PLAN_NOBODY, b.arrival, true};
    r = plan_room(p, &room);
    if (r < 0) return r;
    reserve(p, seen.row, range_first(p, b.pipeline, b.lane), b.n_entries, entries);
    b.n_entries = entries;
    uint64_t copied = take_copied(p, seen.row, &b);
    b.op_incarnation = op.incarnation;
    b.op_number = op.number;
    segment_commit(p->seg, seen.row, &b);
    if (copied) pool_chunk_put(p, pool_entry_chunk(copied));
    touch(p, seen.row);
    return 0;
}

/* The second commit of a cut inside a shared chunk: the active row gets another one to copy into. A
 * retry comes here too, after a death in between. */
static int count_in(struct pool *p, uint32_t row)
{
    struct pool_body b = *segment_body(p->seg, row);
    bool wants = b.copy_entry && b.n_entries == b.base / p->seg->h->chunk_cells;
    if (b.state != POOL_ACTIVE || !wants) return 0;
    struct plan_ask room = {1, PLAN_NOBODY, b.arrival, true};
    int r = plan_room(p, &room);
    if (r < 0) return r;
    reserve(p, row, 0, b.n_entries, b.n_entries + 1);
    b.n_entries++;
    segment_commit(p->seg, row, &b);
    return 0;
}

/* In the identity layout there is no other chunk to write to: what a save still reads, from this
 * cell on, is waited for. */
static bool is_being_saved(const struct pool *p, uint32_t row, uint32_t cells)
{
    if (!p->seg->h->lane_chunks) return false;
    for (uint32_t i = cells / p->seg->h->chunk_cells; i < segment_body(p->seg, row)->n_entries; i++)
        if (p->refs[pool_entry_chunk(segment_table(p->seg, row)[i])] > 1) return true;
    return false;
}

/* The first commit alone is a row that is whole, and shorter. The chunk to copy into is found
 * before it, so that a refusal takes nothing. */
static int truncate_row(struct pool *p, struct op_id op, uint32_t row, uint32_t cells)
{
    uint32_t state = segment_body(p->seg, row)->state;
    if (state == POOL_ACTIVE && is_being_saved(p, row, cells)) return -EAGAIN;
    struct plan_ask room = {1, PLAN_NOBODY, segment_body(p->seg, row)->arrival, true};
    bool may_copy = state == POOL_ACTIVE && !p->seg->h->lane_chunks;
    int r = may_copy ? plan_room(p, &room) : 0;
    if (r < 0) return r;
    pool_cut(p, row, cells, state, &op);
    return count_in(p, row);
}

int pool_truncate(struct pool *p, struct op_id op, struct row_seen seen, uint32_t to_cells,
                  uint64_t last_window)
{
    int r = look(p, op, seen);
    if (r != 0) return r < 0 ? r : count_in(p, seen.row);
    const struct pool_body *b = segment_body(p->seg, seen.row);
    if (b->state != POOL_ACTIVE && b->state != POOL_IDLE) return -ESTALE;
    if (b->state == POOL_ACTIVE && !pool_drained(p, b->pipeline, last_window)) return -EAGAIN;
    uint32_t cells = min_u32(to_cells, b->state == POOL_ACTIVE ? pool_valid_cells(p, seen.row)
                                                               : pool_cached_cells(b));
    return truncate_row(p, op, seen.row, cells);
}

int pool_close_row(struct pool *p, const struct pool_close *ask)
{
    int r = look(p, ask->op, ask->seen);
    if (r != 0) return r < 0 ? r : 0;
    struct pool_body b = *segment_body(p->seg, ask->seen.row);
    if (b.state != POOL_ACTIVE) return -ESTALE;
    b.state = POOL_CLOSING;
    b.last_window = ask->last_window;
    b.keep = ask->keep;
    b.resume = ask->resume && b.gateway;
    b.op_incarnation = ask->op.incarnation;
    b.op_number = ask->op.number;
    segment_commit(p->seg, ask->seen.row, &b);
    p->n_closing++;
    touch(p, ask->seen.row);
    return 0;
}

int pool_drop(struct pool *p, uint32_t row, uint64_t generation)
{
    if (row >= p->seg->h->n_rows) return -ENOENT;
    const struct pool_body *b = segment_body(p->seg, row);
    if (b->state == POOL_FREE || b->generation != generation) return -ENOENT;
    if (b->state != POOL_IDLE && b->state != POOL_WAITING) return -EBUSY;
    pool_cut(p, row, 0, POOL_IDLE, NULL);
    return 0;
}

/* The second commit of an end: the lease begins anew with what is complete in the pool. */
static void fold(struct pool *p, uint32_t row)
{
    const struct pool_body *b = segment_body(p->seg, row);
    uint32_t cells = min_u32(pool_valid_cells(p, row), b->keep);
    uint32_t to = b->resume ? POOL_WAITING : POOL_IDLE;
    p->n_closing--;
    pool_cut(p, row, cells, to, NULL);
    touch(p, row);
}

uint32_t pool_drain(struct pool *p)
{
    uint32_t n = 0;
    for (uint32_t row = 0; p->n_closing && row < p->seg->n_used; row++) {
        const struct pool_body *b = segment_body(p->seg, row);
        if (b->state != POOL_CLOSING || b->holder) continue;
        if (!pool_drained(p, b->pipeline, b->last_window)) continue;
        fold(p, row);
        n++;
    }
    return n;
}

static bool spared(const struct pool_orphans *o, uint32_t row, const struct pool_body *b)
{
    for (size_t i = 0; i < o->n_keep_rows; i++)
        if (o->keep_rows[i] == row) return true;
    for (size_t i = 0; i < o->n_pending; i++)
        if (b->op_incarnation == o->incarnation && b->op_number == o->pending[i]) return true;
    return false;
}

void pool_close_orphans(struct pool *p, const struct pool_orphans *o)
{
    for (uint32_t row = 0; row < p->seg->n_used; row++) {
        struct pool_body b = *segment_body(p->seg, row);
        if (b.state != POOL_ACTIVE || b.pipeline != o->pipeline || spared(o, row, &b)) continue;
        b.state = POOL_CLOSING;
        b.last_window = o->last_window;
        b.keep = UINT32_MAX;
        b.resume = o->resume && b.gateway;
        segment_commit(p->seg, row, &b);
        p->n_closing++;
    }
}

void pool_give_up_waiting(struct pool *p, uint64_t gateway, uint64_t before_us)
{
    for (uint32_t row = 0; row < p->seg->n_used; row++) {
        const struct pool_body *b = segment_body(p->seg, row);
        bool gone = gateway ? b->gateway == gateway : p->seg->rows[row].last_use < before_us;
        if (b->state == POOL_WAITING && gone)
            pool_cut(p, row, pool_cached_cells(b), POOL_IDLE, NULL);
    }
}
