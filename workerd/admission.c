/* SPDX-License-Identifier: MIT */
/*
 * Who gets a lane, and how a lane is given back: the head's side of open, grow and close. Called by
 * head.c; sends by ops.c and gateways.c.
 */
#include <assert.h>
#include <string.h>

#include "common/log.h"
#include "workerd/head_state.h"

enum {
    CLOSE_TRIES = 8,   /* a Close whose version is stale this often is a fault, not a race */
    AHEAD_WINDOWS = 2, /* cells asked for ahead cover at least so many windows of one token */
};

static void event(struct lane *l, enum lane_event on)
{
    int r = lane_move(l, on);
    assert(r == 0);
    (void)r;
}

/* The lane as it was before anybody had it. */
static void lane_clear(struct lane *l)
{
    request_free(l->request);
    *l = (struct lane){.state = l->state};
}

static void tell_end(struct head *h, const struct request *r, const struct ending *ending)
{
    if (ending) gateways_finished(h->gateways, r, ending);
}

static void row_close(struct head *h, const struct lane *l, uint32_t keep, bool resume)
{
    struct op op = {
        .kind = OP_CLOSE,
        .row = l->row,
        .generation = l->generation,
        .version = l->version,
        .cells = keep,
        .last_window = resume ? pool_window(h->life, POOL_WINDOW_ALL) : l->last_window,
        .resume = resume,
    };
    ops_add(&h->ops, &op);
}

void admission_end(struct head *h, struct lane *l, const struct ending *ending, uint32_t keep,
                   bool resume)
{
    if (l->state == LANE_FREE || l->state == LANE_ABANDONED) return;
    tell_end(h, l->request, ending);
    bool active = lane_is_active(l);
    if (active) row_close(h, l, keep, resume);
    event(l, LANE_END);
    if (active)
        lane_clear(l);
    else /* the Open in flight still needs the request */
        ops_abandon(&h->ops, (uint32_t)(l - h->lanes), l->serial);
}

void admission_requeue(struct head *h, struct lane *l, bool resume)
{
    struct request *r = TAKE(l->request);
    struct op op = {
        .kind = OP_CLOSE,
        .row = l->row,
        .generation = l->generation,
        .version = l->version,
        .cells = resume ? lane_cells(l) : 0,
        .last_window = l->last_window,
        .resume = resume,
    };
    ops_add(&h->ops, &op);
    r->admitted = true;
    r->arrival = l->arrival;
    r->resume_row = resume ? l->row + 1 : 0;
    r->resume_generation = l->generation;
    event(l, LANE_END);
    lane_clear(l);
    queue_put(&h->queue, r);
}

void admission_move(struct head *h, struct lane *l, uint32_t to)
{
    struct ending e = {
        .reason = CISTERN__REASON__ERROR,
        .code = CISTERN__CODE__MOVED,
        .text = "it is to go on in another pipeline",
        .to = to,
    };
    if (!lane_is_active(l)) return admission_end(h, l, &e, 0, false);
    struct op op = {
        .kind = OP_CLOSE,
        .row = l->row,
        .generation = l->generation,
        .version = l->version,
        .cells = lane_cells(l),
        .last_window = l->last_window,
        .resume = true,
    };
    /* Closed before its gateway hears of it: who asks for the row finds it on its way. */
    ops_add(&h->ops, &op);
    tell_end(h, l->request, &e);
    event(l, LANE_END);
    lane_clear(l);
}

void admission_give_up(struct head *h, struct lane *l, const struct ending *ending)
{
    if (!lane_is_active(l)) return;
    tell_end(h, l->request, ending);
    event(l, LANE_END);
    lane_clear(l);
}

/* ---- open ---- */

void admission_open(struct head *h, uint32_t lane, struct request *r)
{
    struct lane *l = &h->lanes[lane];
    event(l, LANE_OPEN);
    l->request = r;
    l->serial = ++h->serial;
    struct op op = {.kind = OP_OPEN,
                    .lane = lane,
                    .serial = l->serial,
                    .request = r,
                    .exact = head_is_exact(h, r)};
    if (h->setup.reserve_all) op.cells = r->reserve;
    ops_add(&h->ops, &op);
}

void admission_run(struct head *h)
{
    if (!h->link || h->no_room || h->draining) return;
    uint32_t n = min_u32(h->setup.n_lanes, h->link->h.max_lanes);
    for (uint32_t i = 0; i < n && h->queue.n; i++) {
        if (h->lanes[i].state != LANE_FREE) continue;
        struct request *r = queue_take(&h->queue, turns_may_go, h);
        if (!r) return; /* all that wait, wait for prompts that are being read */
        admission_open(h, i, r);
    }
    turns_yield(h);
}

/* Whether poold's answer makes sense for this pool and request. */
static bool row_is_sane(const struct head *h, const struct request *r, const Cistern__Row *row)
{
    return row->code == CISTERN__CODE__OK && row->row < h->pool->n_rows &&
           row->n_entries <= h->pool->table_entries && row->copy_chunk <= h->pool->n_chunks &&
           row->copy_cells < h->pool->chunk_cells &&
           (uint64_t)row->base_cells + row->copy_cells < r->n_tokens &&
           row->base_cells + row->copy_cells <= (uint64_t)row->n_entries * h->pool->chunk_cells;
}

static void row_enter(struct head *h, struct lane *l, const Cistern__Row *row)
{
    struct request *r = l->request;
    l->row = row->row;
    l->generation = row->generation;
    l->version = row->version;
    l->lease = row->lease;
    l->arrival = row->arrival;
    l->reserved = row->n_entries * h->pool->chunk_cells;
    l->known = r->n_tokens;
    l->posted = l->done = row->base_cells + row->copy_cells;
    l->copy_chunk = row->copy_chunk;
    l->copy_cells = row->copy_cells;
    l->feed_to = h->setup.feed && !sampling_penalises(&r->sampling) ? r->max : 0;
    r->arrival = row->arrival;
    windows_reuse(h, l);
}

/* An attempt that goes on computes again what the one before it had computed and not published. */
static void count_reread(struct head *h, const struct lane *l)
{
    struct pool_page *page = h->pool->page;
    if (request_generated(l->request) == 0) return;
    uint64_t n = l->request->n_tokens - 1 - l->posted;
    shm_store_u64(&page->reread_tokens, page->reread_tokens + n);
}

static void open_granted(struct head *h, const struct op *op, const Cistern__Row *row)
{
    struct lane *l = &h->lanes[op->lane];
    bool abandoned = l->state == LANE_ABANDONED;
    bool sane = row_is_sane(h, l->request, row);
    if (sane) row_enter(h, l, row);
    if (sane && !abandoned) {
        l->group = schedule_group(h->lanes, h->setup.n_lanes, h->link ? h->link->h.n_stages : 1);
        event(l, LANE_GRANTED);
        count_reread(h, l);
        gateways_started(h->gateways, l->request, l, min_u32(l->posted, l->request->n_prompt));
        return;
    }
    if (sane) row_close(h, l, l->posted, false);
    if (!sane) log_error("poold granted a row that makes no sense; the request is ended");
    struct ending e = {.reason = CISTERN__REASON__ERROR,
                       .code = CISTERN__CODE__FAILED,
                       .text = "the pool's answer makes no sense"};
    if (!abandoned) tell_end(h, l->request, &e);
    event(l, LANE_REFUSED);
    lane_clear(l);
}

/* Whether the request is to wait for its row rather than be told. */
static bool waits(const struct request *r, Cistern__Code code)
{
    if (code == CISTERN__CODE__NOT_READY) return true; /* a stage is coming back */
    return r->admitted && code == CISTERN__CODE__POOL_FULL;
}

static void open_refused(struct head *h, const struct op *op, const Cistern__Refused *refused)
{
    struct lane *l = &h->lanes[op->lane];
    bool abandoned = l->state == LANE_ABANDONED;
    event(l, LANE_REFUSED);
    if (!abandoned && waits(l->request, refused->code)) {
        queue_put_first(&h->queue, TAKE(l->request));
        h->no_room = true;
    } else if (!abandoned) {
        struct ending e = {
            .reason = CISTERN__REASON__ERROR, .code = refused->code, .text = refused->text};
        tell_end(h, l->request, &e);
    }
    lane_clear(l);
}

/* ---- grow ---- */

void admission_growth(struct head *h)
{
    if (!h->pool) return;
    uint32_t chunk = h->pool->chunk_cells;
    uint32_t ahead = max_u32(chunk / 4, AHEAD_WINDOWS);
    uint64_t most = (uint64_t)h->pool->table_entries * chunk;
    for (uint32_t i = 0; i < h->setup.n_lanes; i++) {
        struct lane *l = &h->lanes[i];
        if (!lane_is_active(l)) continue;
        /* The last token is never fed back, so it needs no cell. */
        uint32_t to = lane_growth(l, ahead, h->pool->grow_chunks * chunk, l->request->max - 1);
        if (!to) continue;
        struct op op = {
            .kind = OP_GROW,
            .lane = i,
            .serial = l->serial,
            .row = l->row,
            .generation = l->generation,
            .version = l->version,
            .cells = (uint32_t)min_u64(to, most),
        };
        l->growing = true;
        ops_add(&h->ops, &op);
    }
}

/* The lane that a Grow was for, or NULL when its request is over. */
static struct lane *grown_lane(struct head *h, const struct op *op)
{
    struct lane *l = &h->lanes[op->lane];
    return lane_is_active(l) && l->serial == op->serial ? l : NULL;
}

/* OK, or STALE with the row as it stands: then the next step asks again with the right version. */
static void grow_answered(struct head *h, const struct op *op, const Cistern__Row *row)
{
    struct lane *l = grown_lane(h, op);
    if (!l) return;
    l->growing = false;
    if (row->row != l->row || row->generation != l->generation || row->lease != l->lease ||
        row->n_entries > h->pool->table_entries) {
        log_error("row %u is no longer lane %u's; its request is ended", l->row, op->lane);
        struct ending e = {.reason = CISTERN__REASON__ERROR,
                           .code = CISTERN__CODE__STALE,
                           .text = "the pool gave the conversation away"};
        admission_end(h, l, &e, lane_cells(l), false);
        return;
    }
    l->version = row->version;
    l->reserved = row->n_entries * h->pool->chunk_cells;
    l->refused = false;
}

static void grow_refused(struct head *h, const struct op *op, const Cistern__Refused *refused)
{
    struct lane *l = grown_lane(h, op);
    if (!l) return;
    l->growing = false;
    bool full = refused->code == CISTERN__CODE__POOL_FULL;
    if (full && !lane_is_dry(l)) {
        l->refused = true; /* room may come until the cells that it has are used up */
        return;
    }
    struct ending e = {
        .reason = CISTERN__REASON__ERROR, .code = refused->code, .text = refused->text};
    if (full) {
        e = (struct ending){.reason = CISTERN__REASON__LENGTH, .truncated = true};
        shm_store_u64(&h->pool->page->truncations, h->pool->page->truncations + 1);
    }
    admission_end(h, l, &e, lane_cells(l), false);
}

/* ---- close ---- */

void admission_close_unknown(struct head *h, uint32_t row)
{
    if (row >= h->pool->n_rows) return;
    struct pool_body body;
    uint64_t version = pool_row_read(&pool_rows(h->pool->control)[row], &body);
    struct op op = {
        .kind = OP_CLOSE,
        .row = row,
        .generation = body.generation,
        .version = version,
        .cells = body.base,
        /* No window of this head holds it, unless it is of an earlier attempt: all that it posted.
         */
        .last_window = h->life ? pool_window(h->life, h->link ? h->posted : POOL_WINDOW_ALL) : 0,
    };
    ops_add(&h->ops, &op);
}

/* The row changed while the Close was under way (a Grow before it): closed as it is now. */
static void close_answered(struct head *h, const struct op *op, const Cistern__Row *row)
{
    h->no_room = false;
    if (row->code != CISTERN__CODE__STALE || row->row != op->row ||
        row->generation != op->generation || row->state != POOL_ACTIVE)
        return;
    if (op->tries == CLOSE_TRIES) {
        log_error("row %u can't be closed: its version is always another", op->row);
        return;
    }
    struct op again = *op;
    again.version = row->version;
    again.tries++;
    ops_add(&h->ops, &again);
}

/* ---- answers ---- */

void admission_row(struct head *h, const struct op *op, const Cistern__Row *row)
{
    switch (op->kind) {
    case OP_OPEN:
        return open_granted(h, op, row);
    case OP_GROW:
        return grow_answered(h, op, row);
    case OP_CLOSE:
        return close_answered(h, op, row);
    }
}

void admission_refused(struct head *h, const struct op *op, const Cistern__Refused *refused)
{
    switch (op->kind) {
    case OP_OPEN:
        return open_refused(h, op, refused);
    case OP_GROW:
        return grow_refused(h, op, refused);
    case OP_CLOSE:
        h->no_room = false;
        log_warn("row %u was not closed: %s", op->row, refused->text);
        return;
    }
}
