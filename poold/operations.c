/* SPDX-License-Identifier: MIT */
/*
 * Operations on conversations as messages: checked at the door, done by pool.h's functions,
 * answered with the row as it stands. One that has to wait (for windows to drain) is kept here and
 * tried again whenever something moved; none waits longer than its deadline.
 */
#include <errno.h>
#include <string.h>

#include "common/log.h"
#include "poold/daemon.h"

enum {
    WAIT_US = 2000000,  /* for what is closing; then an open does without it */
    DRAIN_US = 1000,    /* between looks at the pages while something waits for them */
    PENDING_MAX = 8192, /* operations that wait: far above lanes x pipelines */
};

enum op_kind { OP_OPEN, OP_GROW, OP_TRUNCATE, OP_CLOSE };

struct pending {
    struct pending *next;
    enum op_kind kind;
    struct op_id id;
    uint32_t pipeline; /* of the head that asks */
    uint64_t deadline_us;
    struct pool_open open;
    uint32_t *tokens; /* open's */
    struct row_seen seen;
    uint32_t cells;       /* grow, truncate: to; close: keep */
    uint64_t last_window; /* truncate, close */
    bool resume;          /* close */
};

static void op_free(struct pending *op)
{
    if (!op) return;
    free(op->tokens);
    free(op);
}
static void op_freep(struct pending **op) { op_free(*op); }

/* ---- the messages, checked ---- */

static int open_from(const Cistern__Open *o, const struct worker_facts *f, struct pending *ret)
{
    size_t n = o->tokens.len / sizeof(uint32_t);
    if (o->pipeline != f->pipeline || o->lane >= f->max_lanes || n == 0 ||
        o->tokens.len % sizeof(uint32_t) || n > f->geometry.context_tokens)
        return -EPROTO;
    ret->tokens = xcalloc(n, sizeof(uint32_t));
    memcpy(ret->tokens, o->tokens.data, n * sizeof(uint32_t));
    ret->open = (struct pool_open){
        .op = ret->id,
        .pipeline = o->pipeline,
        .lane = o->lane,
        .tokens = ret->tokens,
        .n_tokens = (uint32_t)n,
        .max_cells = o->max_cells,
        .salt = o->salt,
        .arrival = o->arrival,
        .gateway = o->gateway,
        .resume = o->resume_row > 0,
        .resume_row = o->resume_row - 1,
        .resume_generation = o->resume_generation,
    };
    return 0;
}

static int op_from(const Cistern__Envelope *m, const struct worker_facts *f, struct pending *ret)
{
    switch (m->body_case) {
    case CISTERN__ENVELOPE__BODY_OPEN:
        ret->kind = OP_OPEN;
        return open_from(m->open, f, ret);
    case CISTERN__ENVELOPE__BODY_GROW:
        ret->kind = OP_GROW;
        ret->seen = (struct row_seen){m->grow->row, m->grow->generation, m->grow->version};
        ret->cells = m->grow->to_cells;
        return 0;
    case CISTERN__ENVELOPE__BODY_TRUNCATE:
        ret->kind = OP_TRUNCATE;
        ret->seen =
            (struct row_seen){m->truncate->row, m->truncate->generation, m->truncate->version};
        ret->cells = m->truncate->to_cells;
        ret->last_window = m->truncate->last_window;
        return 0;
    case CISTERN__ENVELOPE__BODY_CLOSE:
        ret->kind = OP_CLOSE;
        ret->seen = (struct row_seen){m->close->row, m->close->generation, m->close->version};
        ret->cells = m->close->keep_cells;
        ret->last_window = m->close->last_window;
        ret->resume = m->close->resume;
        return 0;
    default:
        return -EPROTO;
    }
}

/* ---- doing and answering ---- */

static int op_do(struct daemon *d, struct pending *op, uint32_t *ret_row)
{
    bool late = now_us() >= op->deadline_us;
    *ret_row = op->seen.row;
    switch (op->kind) {
    case OP_OPEN:
        op->open.may_wait = !late;
        return pool_open_row(d->pool, &op->open, ret_row);
    case OP_GROW: {
        int r = pool_grow(d->pool, op->id, op->seen, op->cells);
        return r == -EAGAIN && late ? -ENOSPC : r;
    }
    case OP_TRUNCATE:
        return pool_truncate(d->pool, op->id, op->seen, op->cells, op->last_window);
    case OP_CLOSE: {
        struct pool_close close = {op->id, op->seen, op->last_window, op->cells, op->resume};
        return pool_close_row(d->pool, &close);
    }
    }
    return -EPROTO;
}

static void answer_row(struct daemon *d, const struct op_id *id, uint32_t row, Cistern__Code code)
{
    const struct pool_body *b = segment_body(d->pool->seg, row);
    Cistern__Row answer = CISTERN__ROW__INIT;
    answer.code = code;
    answer.row = row;
    answer.generation = b->generation;
    answer.version = d->pool->seg->rows[row].version;
    answer.state = b->state;
    answer.lease = b->lease;
    answer.base_cells = b->base;
    answer.n_entries = b->n_entries;
    answer.lane = b->lane;
    answer.arrival = b->arrival;
    answer.copy_cells = b->copy_cells;
    answer.copy_chunk = pool_entry_chunk(b->copy_entry);
    Cistern__Envelope m = CISTERN__ENVELOPE__INIT;
    m.body_case = CISTERN__ENVELOPE__BODY_ROW;
    m.row = &answer;
    daemon_send(d, id->incarnation, id->number, &m);
}

static void answer(struct daemon *d, const struct pending *op, int r, uint32_t row)
{
    uint64_t to = op->id.incarnation, number = op->id.number;
    switch (r) {
    case 0:
        answer_row(d, &op->id, row, CISTERN__CODE__OK);
        break;
    case -ESTALE:
        answer_row(d, &op->id, row, CISTERN__CODE__STALE);
        break;
    case -ENOSPC:
        daemon_refuse(d, to, number, CISTERN__CODE__POOL_FULL, "the pool has no room now");
        break;
    case -E2BIG:
        daemon_refuse(d, to, number, CISTERN__CODE__NEVER_FITS,
                      "longer than the context of %u tokens",
                      d->pool->seg->h->geometry.context_tokens);
        break;
    case -ENOENT:
        daemon_refuse(d, to, number, CISTERN__CODE__UNKNOWN, "no such row");
        break;
    default:
        daemon_refuse(d, to, number, CISTERN__CODE__FAILED, "%s", strerror(-r));
        break;
    }
}

static void on_drain(void *arg) { operations_retry(arg); }

/* The pages are looked at every millisecond while something waits for them, and not otherwise. */
static void mind_pages(struct daemon *d)
{
    bool wanted = d->pool && (d->pool->n_closing > 0 || d->pending);
    if (!d->drain_timer && loop_add_timer(d->loop, on_drain, d, &d->drain_timer) < 0) return;
    if (wanted != d->draining)
        (void)loop_set_timer(d->drain_timer, wanted ? DRAIN_US : 0, wanted ? DRAIN_US : 0);
    d->draining = wanted;
}

void operations_retry(struct daemon *d)
{
    if (!d->pool) return;
    (void)pool_drain(d->pool);
    for (struct pending **at = &d->pending; *at;) {
        struct pending *op = *at;
        uint32_t row;
        int r = op_do(d, op, &row);
        if (r == -EAGAIN) {
            at = &op->next;
            continue;
        }
        *at = op->next;
        answer(d, op, r, row);
        op_free(op);
    }
    mind_pages(d);
}

static uint32_t count_pending(const struct daemon *d, struct op_id id, bool *ret_known)
{
    uint32_t n = 0;
    for (const struct pending *op = d->pending; op; op = op->next, n++)
        if (op->id.incarnation == id.incarnation && op->id.number == id.number) *ret_known = true;
    return n;
}

static void keep(struct daemon *d, struct pending *op)
{
    struct pending **at = &d->pending;
    while (*at)
        at = &(*at)->next; /* in the order they came */
    *at = op;
}

void operation(struct daemon *d, struct process *who, const Cistern__Envelope *m)
{
    const struct worker_facts *f = who->owner;
    if (!d->pool || who->role != POOL_ROLE_WORKER || !who->placed || f->stage != 0) {
        daemon_refuse(d, who->incarnation, m->number, CISTERN__CODE__DENIED,
                      "only an attached head operates on conversations");
        return;
    }
    CLEANUP(op_freep) struct pending *op = xnew(struct pending);
    op->id = (struct op_id){who->incarnation, m->number};
    op->pipeline = f->pipeline;
    op->deadline_us = now_us() + WAIT_US;
    if (op_from(m, f, op) < 0) {
        daemon_refuse(d, who->incarnation, m->number, CISTERN__CODE__MALFORMED,
                      "the operation has a field out of its range");
        return;
    }
    bool known = false;
    if (count_pending(d, op->id, &known) >= PENDING_MAX) {
        daemon_refuse(d, who->incarnation, m->number, CISTERN__CODE__POOL_FULL,
                      "too many operations wait");
        return;
    }
    if (known) return; /* sent again while it waits: it will be answered once */
    uint32_t row;
    int r = op_do(d, op, &row);
    if (r == -EAGAIN)
        keep(d, TAKE(op));
    else
        answer(d, op, r, row);
    operations_retry(d);
}

void operations_forget(struct daemon *d, uint64_t incarnation)
{
    for (struct pending **at = &d->pending; *at;) {
        struct pending *op = *at;
        if (op->id.incarnation != incarnation) {
            at = &op->next;
            continue;
        }
        *at = op->next;
        op_free(op);
    }
}

void operations_free(struct daemon *d)
{
    while (d->pending) {
        struct pending *op = d->pending;
        d->pending = op->next;
        op_free(op);
    }
}
