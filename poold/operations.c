/* SPDX-License-Identifier: MIT */
/*
 * Operations on conversations as messages: checked at the door, done by pool.h's functions,
 * answered with the row as it stands. All go through one queue in the order of age, where those
 * stay that have to wait: for windows to drain, or (pool.when_dry = wait) for room. While an older
 * one waits for room, no younger one takes any.
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

/* How long it has waited: not as long as for what is closing; longer; longer than for room. */
enum patience { PATIENT, LATE, TOO_LATE };

struct pending {
    struct pending *next;
    enum op_kind kind;
    struct op_id id;
    uint32_t pipeline;      /* of the head that asks */
    uint64_t arrival;       /* age of the conversation */
    uint64_t since_us;      /* when it came */
    enum patience patience; /* when it was tried last */
    bool tried, blocked;    /* blocked: it waits for room, nobody younger takes any */
    bool admitted;          /* open: of an earlier attempt; it is never refused for room */
    struct pool_open open;
    uint32_t *tokens; /* open's, once it has to wait: until then they are the message's */
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
    ret->open = (struct pool_open){
        .op = ret->id,
        .pipeline = o->pipeline,
        .lane = o->lane,
        .tokens = (const uint32_t *)o->tokens.data, /* allocated by itself, so aligned */
        .n_tokens = (uint32_t)n,
        .exact = o->exact,
        .max_cells = o->max_cells,
        .salt = o->salt,
        .gateway = o->gateway,
        .fresh = o->fresh,
        .resume = o->resume_row > 0,
        .resume_row = o->resume_row - 1,
        .resume_generation = o->resume_generation,
    };
    ret->arrival = o->arrival;
    ret->admitted = o->arrival != 0;
    return 0;
}

/* It outlives its message. A long prompt is not copied before it has to wait: that costs as much as
 * finding its place. */
static void op_keep(struct pending *op)
{
    size_t n = op->open.n_tokens;
    if (op->kind != OP_OPEN || op->tokens) return;
    op->tokens = reallocarray(NULL, n, sizeof(uint32_t));
    if (!op->tokens) abort();
    memcpy(op->tokens, op->open.tokens, n * sizeof(uint32_t));
    op->open.tokens = op->tokens;
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
    struct pool_close close = {op->id, op->seen, op->last_window, op->cells, op->resume};
    *ret_row = op->seen.row;
    switch (op->kind) {
    case OP_OPEN:
        op->open.may_wait = op->patience == PATIENT;
        op->open.arrival = op->arrival;
        return pool_open_row(d->pool, &op->open, ret_row);
    case OP_GROW:
        return pool_grow(d->pool, op->id, op->seen, op->cells);
    case OP_TRUNCATE:
        return pool_truncate(d->pool, op->id, op->seen, op->cells, op->last_window);
    case OP_CLOSE:
        return pool_close_row(d->pool, &close);
    }
    return -EPROTO;
}

static bool wants_room(const struct pending *op)
{
    return op->kind == OP_OPEN || op->kind == OP_GROW;
}

/* An older conversation that runs, or that was admitted and comes back, takes from the youngest
 * that is younger: its head is asked to close it, once, and enters it again when there is room.
 * Without that who comes back and those who run, and may not grow meanwhile, would wait for each
 * other. */
static void ask_back(struct daemon *d, const struct pending *op)
{
    uint32_t row = UINT32_MAX;
    if (op->kind == OP_OPEN && d->pool->n_closing) return; /* that may suffice */
    if (op->kind == OP_GROW || op->admitted) row = pool_youngest(d->pool, op->arrival);
    if (row == UINT32_MAX) return; /* nobody to take from: it parks until something is free */
    const struct pool_body *b = segment_body(d->pool->seg, row);
    struct pipeline_state *p = &d->pipeline[b->pipeline];
    struct process *head = process_at(d->processes, b->pipeline, 0);
    if (!head || (p->asked_row == row && p->asked_lease == b->lease)) return;
    p->asked_row = row;
    p->asked_lease = b->lease;
    Cistern__GiveBack give = CISTERN__GIVE_BACK__INIT;
    give.row = row;
    give.generation = b->generation;
    Cistern__Envelope m = CISTERN__ENVELOPE__INIT;
    m.body_case = CISTERN__ENVELOPE__BODY_GIVE_BACK;
    m.give_back = &give;
    daemon_send(d, head->incarnation, 0, &m);
}

/* By the clock. */
static enum patience patience(const struct daemon *d, const struct pending *op)
{
    uint64_t waited = now_us() - op->since_us;
    uint64_t room_us = max_u64(WAIT_US, d->config->gateway.queue_wait_ms * UINT64_C(1000));
    return waited < WAIT_US ? PATIENT : waited < room_us ? LATE : TOO_LATE;
}

/* What -ENOSPC means for this operation: it waits (true), or is told. */
static bool waits_for_room(const struct daemon *d, const struct pending *op)
{
    if (op->admitted) return true;
    if (d->config->pool.when_dry != POOL_DRY_WAIT) return false;
    return op->kind == OP_GROW || op->patience < TOO_LATE;
}

/* Nothing has changed for it since it was tried last: only its patience may have run out. */
static bool not_yet(const struct daemon *d, struct pending *op, bool moved)
{
    enum patience before = op->patience;
    bool first = !op->tried;
    op->tried = true;
    op->patience = patience(d, op);
    return !first && !moved && op->patience == before && wants_room(op);
}

/* Whether the operation stays in the queue. *blocked: an older one waits for room. */
static bool op_stays(struct daemon *d, struct pending *op, bool *blocked, int *ret,
                     uint32_t *ret_row)
{
    if (*blocked && wants_room(op)) return true;
    int r = op_do(d, op, ret_row);
    if (r == -EAGAIN && (op->kind != OP_GROW || op->patience == PATIENT)) return true;
    if (r == -EAGAIN) r = -ENOSPC; /* what was closing has not sufficed */
    *ret = r;
    if (r != -ENOSPC || !waits_for_room(d, op)) return false;
    *blocked = op->blocked = true;
    ask_back(d, op);
    return true;
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

/* Time from receipt to answer, in classes of four times the last one's. */
static void count_answer(struct daemon *d, const struct pending *op, int r, uint32_t row)
{
    struct pool_counters *c = &d->pool->seg->h->counters;
    uint64_t us = now_us() - op->since_us;
    uint32_t i = 0;
    while (i + 1 < POOL_LATENCIES && us >= UINT64_C(32) << (2 * i))
        i++;
    segment_count(&c->latency[i], 1);
    segment_count(&c->latency_us, us);
    if (op->kind != OP_OPEN || r < 0) return;
    segment_count(&c->prefix_hit_tokens, pool_cached_cells(segment_body(d->pool->seg, row)));
}

bool operations_blocked(const struct daemon *d)
{
    for (const struct pending *op = d->pending; op; op = op->next)
        if (op->blocked) return true;
    return false;
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
    bool blocked = false, moved = d->pool->seg->commits != d->retried;
    for (struct pending **at = &d->pending; *at;) {
        struct pending *op = *at;
        uint32_t row = 0;
        int r = 0;
        if (not_yet(d, op, moved)) {
            blocked |= op->blocked;
            at = &op->next;
            continue;
        }
        op->blocked = false;
        if (op_stays(d, op, &blocked, &r, &row)) {
            at = &op->next;
            continue;
        }
        *at = op->next;
        answer(d, op, r, row);
        count_answer(d, op, r, row);
        op_free(op);
        moved = true; /* also for those behind it */
    }
    d->retried = d->pool->seg->commits;
    mind_pages(d);
}

static struct pending **find_pending(struct daemon *d, struct op_id id, uint32_t *ret_before)
{
    struct pending **at = &d->pending;
    uint32_t n = 0;
    for (; *at; at = &(*at)->next, n++)
        if ((*at)->id.incarnation == id.incarnation && (*at)->id.number == id.number) break;
    *ret_before = n;
    return at;
}

/* The oldest conversation first; of equal age in the order they came. */
static void queue(struct daemon *d, struct pending *op)
{
    struct pending **at = &d->pending;
    while (*at && (*at)->arrival <= op->arrival)
        at = &(*at)->next;
    op->next = *at;
    *at = op;
}

/* A conversation's age: what its row says, or what the message says, or it is the youngest. */
static void set_age(struct daemon *d, struct pending *op)
{
    bool row = op->kind != OP_OPEN && op->seen.row < d->pool->seg->h->n_rows;
    if (row)
        op->arrival = segment_body(d->pool->seg, op->seen.row)->arrival;
    else if (op->kind == OP_OPEN && !op->arrival)
        op->arrival = pool_next_arrival(d->pool);
}

void operation_abandon(struct daemon *d, struct process *who, const Cistern__Envelope *m)
{
    uint32_t before;
    struct pending **at =
        find_pending(d, (struct op_id){who->incarnation, m->abandon->number}, &before);
    struct pending *op = *at;
    if (!op || op->kind != OP_OPEN) return; /* answered already */
    *at = op->next;
    daemon_refuse(d, who->incarnation, op->id.number, CISTERN__CODE__UNKNOWN, "abandoned");
    op_free(op);
    operations_retry(d);
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
    op->since_us = now_us();
    if (op_from(m, f, op) < 0) {
        daemon_refuse(d, who->incarnation, m->number, CISTERN__CODE__MALFORMED,
                      "the operation has a field out of its range");
        return;
    }
    uint32_t n;
    if (*find_pending(d, op->id, &n)) return; /* sent again while it waits: answered once */
    if (n >= PENDING_MAX) {
        daemon_refuse(d, who->incarnation, m->number, CISTERN__CODE__POOL_FULL,
                      "too many operations wait");
        return;
    }
    set_age(d, op);
    struct op_id id = op->id;
    queue(d, TAKE(op));
    operations_retry(d);
    struct pending *waits = *find_pending(d, id, &n);
    if (waits) op_keep(waits);
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
