/* SPDX-License-Identifier: MIT */
/*
 * The head's events: gateways' messages, poold's answers, lives, drain. Each changes what it must
 * and ends with head_step, which does whatever can be done now. Called by worker.c and by the loop.
 */
#include "workerd/head.h"

#include <errno.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>

#include "common/log.h"
#include "workerd/head_state.h"

static const struct ending stage_lost = {
    .reason = CISTERN__REASON__ERROR,
    .code = CISTERN__CODE__STAGE_LOST,
    .text = "a stage of the pipeline was lost",
};
static const struct ending draining_end = {
    .reason = CISTERN__REASON__ERROR,
    .code = CISTERN__CODE__DRAINING,
    .text = "the worker is being stopped",
};

/* ---- gateways ---- */

static void refuse_generate(struct head *h, uint64_t from, const Cistern__Generate *g,
                            Cistern__Code code, const char *text)
{
    struct refusal refusal = {.code = code};
    (void)snprintf(refusal.text, sizeof(refusal.text), "%s", text);
    gateways_refused(h->gateways, from, g, &refusal);
}

/* The lane that runs this gateway's request, or NULL. */
static struct lane *lane_of(struct head *h, uint64_t gateway, uint64_t request)
{
    for (uint32_t i = 0; i < h->setup.n_lanes; i++) {
        struct lane *l = &h->lanes[i];
        if (l->state == LANE_FREE || l->state == LANE_ABANDONED) continue;
        if (l->request->gateway == gateway && l->request->id == request) return l;
    }
    return NULL;
}

static void on_generate(struct head *h, uint64_t from, const Cistern__Generate *g)
{
    struct request_limits limits = {h->setup.card.context_tokens, h->setup.card.n_vocab,
                                    h->setup.default_tokens};
    struct refusal refusal = {0};
    struct request *r = NULL;
    if (h->draining)
        return refuse_generate(h, from, g, CISTERN__CODE__DRAINING, "the worker is being stopped");
    if (h->leaving)
        return refuse_generate(h, from, g, CISTERN__CODE__MOVED, "the pipeline is being drained");
    if (h->life && !h->link)
        return refuse_generate(h, from, g, CISTERN__CODE__NOT_READY, stage_lost.text);
    if (h->queue.n >= HEAD_QUEUE_MAX)
        return refuse_generate(h, from, g, CISTERN__CODE__QUEUE_FULL, "too many requests wait");
    if (request_from(g, from, &limits, &refusal, &r) < 0)
        return gateways_refused(h->gateways, from, g, &refusal);
    /* A gateway has one attempt of a request at a time: a newer one takes the place of an older. */
    request_free(queue_take_of(&h->queue, from, false, r->id));
    struct lane *l = lane_of(h, from, r->id);
    if (l) admission_end(h, l, NULL, lane_cells(l), false);
    if (r->n_tokens >= r->max) {
        struct ending e = {.reason = CISTERN__REASON__LENGTH};
        gateways_finished(h->gateways, r, &e);
        request_free(r);
        return;
    }
    queue_put(&h->queue, r);
}

static void on_cancel(struct head *h, uint64_t from, const Cistern__Cancel *c)
{
    struct ending e = {.reason = CISTERN__REASON__CANCELLED};
    struct lane *l = lane_of(h, from, c->request);
    if (l && l->request->attempt == c->attempt) {
        uint64_t keep = c->keep_set ? (uint64_t)l->request->n_prompt + c->keep : UINT32_MAX;
        admission_end(h, l, &e, (uint32_t)min_u64(keep, lane_cells(l)), false);
        return;
    }
    struct request *r = l ? NULL : queue_take_of(&h->queue, from, false, c->request);
    if (r && r->attempt != c->attempt) return queue_put(&h->queue, r);
    if (r) gateways_finished(h->gateways, r, &e);
    request_free(r);
}

static void on_gateway(void *arg, uint64_t from, const Cistern__Envelope *m)
{
    struct head *h = arg;
    switch (m->body_case) {
    case CISTERN__ENVELOPE__BODY_HELLO:
        gateways_model(h->gateways, from, m->number, &h->setup.card);
        break;
    case CISTERN__ENVELOPE__BODY_GENERATE:
        on_generate(h, from, m->generate);
        break;
    case CISTERN__ENVELOPE__BODY_CANCEL:
        on_cancel(h, from, m->cancel);
        break;
    default:
        log_warn("a gateway sent a message that is not for a worker; dropped");
        return;
    }
    head_step(h);
}

static void gateway_drop(struct head *h, uint64_t gateway)
{
    struct request *r;
    while ((r = queue_take_of(&h->queue, gateway, true, 0)))
        request_free(r);
    for (uint32_t i = 0; i < h->setup.n_lanes; i++) {
        struct lane *l = &h->lanes[i];
        if (l->state != LANE_FREE && l->request->gateway == gateway)
            admission_end(h, l, NULL, lane_cells(l), false);
    }
}

void head_gateway_died(struct head *h, uint64_t gateway)
{
    gateway_drop(h, gateway);
    head_step(h);
}

/* ---- the step ---- */

static void drain_step(struct head *h)
{
    if (h->link && h->posted != h->done) return;
    for (uint32_t i = 0; i < h->setup.n_lanes; i++)
        admission_end(h, &h->lanes[i], &draining_end, lane_cells(&h->lanes[i]), false);
    if (h->ops.n == 0) h->setup.drained(h->setup.arg);
}

void head_step(struct head *h)
{
    for (uint64_t gone; (gone = gateways_failed(h->gateways));)
        gateway_drop(h, gone);
    if (h->draining) return drain_step(h);
    turns_leave(h);
    admission_run(h);
    admission_growth(h);
    if (h->link) windows_post(h);
}

static void on_ring(void *arg, uint32_t events)
{
    (void)events;
    struct head *h = arg;
    eventfd_t n;
    (void)eventfd_read(h->ring, &n); /* the bell tells what is finished; this only woke us */
    windows_collect(h);
    head_step(h);
}

static void queue_end(struct head *h, const struct ending *ending)
{
    struct request *r;
    while ((r = queue_take(&h->queue, NULL, NULL))) {
        gateways_finished(h->gateways, r, ending);
        request_free(r);
    }
}

/* ---- lives ---- */

/* Everything is ended, also what has no lane yet: another pipeline may be ready for it. */
void head_life_over(struct head *h)
{
    if (!h->link) return;
    log_warn("life %u is over with %u windows in flight", h->life, (unsigned)(h->posted - h->done));
    /* The last stage may have finished windows whose ring is still to come: they count. */
    windows_collect(h);
    loop_remove(TAKE(h->ringing));
    closep(&h->ring);
    h->ring = -1;
    windows_end(h);
    link_unref(TAKE(h->link));
    for (uint32_t i = 0; i < h->setup.n_lanes; i++)
        admission_end(h, &h->lanes[i], &stage_lost, lane_cells(&h->lanes[i]), true);
    queue_end(h, &stage_lost);
    head_step(h);
}

void head_serve(struct head *h, uint32_t life, struct link *link, int ring)
{
    head_life_over(h);
    h->life = life;
    h->link = link_ref(link);
    h->ring = ring;
    h->no_room = false;
    windows_begin(h);
    int r = loop_add_fd(h->setup.loop, ring, EPOLLIN, on_ring, h, &h->ringing);
    if (r < 0) {
        log_error("the link's eventfd can't be watched (%s); this worker ends", strerror(-r));
        _exit(1);
    }
    head_step(h);
}

void head_use_pool(struct head *h, struct pool_map *pool)
{
    if (h->pool && h->pool->pool_id != pool->pool_id) {
        log_warn("poold has another pool now; what was held in the old one is lost");
        head_life_over(h);
        for (uint32_t i = 0; i < h->setup.n_lanes; i++) /* those granted between two lives */
            admission_give_up(h, &h->lanes[i], &stage_lost);
        ops_drop(&h->ops, OP_GROW);
        ops_drop(&h->ops, OP_CLOSE);
    }
    pool_map_unref(h->pool);
    h->pool = pool_map_ref(pool);
}

/* ---- poold ---- */

size_t head_rows(const struct head *h, uint32_t **ret)
{
    size_t n = 0;
    uint32_t *rows = xcalloc((size_t)h->setup.n_lanes + h->ops.n, sizeof(*rows));
    for (uint32_t i = 0; i < h->setup.n_lanes; i++)
        if (lane_is_active(&h->lanes[i])) rows[n++] = h->lanes[i].row;
    for (const struct op *op = h->ops.first; op; op = op->next)
        if (op->kind == OP_CLOSE) rows[n++] = op->row;
    *ret = rows;
    return n;
}

size_t head_pending(const struct head *h, uint64_t **ret)
{
    size_t n = 0;
    uint64_t *numbers = xcalloc(h->ops.n, sizeof(*numbers));
    for (const struct op *op = h->ops.first; op; op = op->next)
        numbers[n++] = op->number;
    *ret = numbers;
    return n;
}

static bool is_listed(const uint32_t *rows, size_t n, uint32_t row)
{
    for (size_t i = 0; i < n; i++)
        if (rows[i] == row) return true;
    return false;
}

/* Whether the head holds the row, is closing it, or will learn of it by the answer to an Open. */
static bool row_is_known(const struct head *h, uint32_t row)
{
    for (uint32_t i = 0; i < h->setup.n_lanes; i++)
        if (lane_is_active(&h->lanes[i]) && h->lanes[i].row == row) return true;
    struct pool_body body;
    if (row >= h->pool->n_rows) return true; /* not one that can be closed */
    (void)pool_row_read(&pool_rows(h->pool->control)[row], &body);
    for (const struct op *op = h->ops.first; op; op = op->next) {
        if (op->kind == OP_CLOSE && op->row == row) return true;
        if (body.op_incarnation == h->setup.self && body.op_number == op->number) return true;
    }
    return false;
}

void head_attached(struct head *h, const uint32_t *rows, size_t n_rows)
{
    for (uint32_t i = 0; i < h->setup.n_lanes; i++) {
        struct lane *l = &h->lanes[i];
        if (!lane_is_active(l) || is_listed(rows, n_rows, l->row)) continue;
        log_warn("poold does not know row %u any more; its request is ended", l->row);
        admission_give_up(h, l, &stage_lost);
    }
    for (size_t i = 0; i < n_rows; i++)
        if (!row_is_known(h, rows[i])) admission_close_unknown(h, rows[i]);
    ops_attached(&h->ops);
    head_step(h);
}

void head_pool_lost(struct head *h) { ops_lost(&h->ops); }

bool head_answer(struct head *h, const Cistern__Envelope *m)
{
    if (m->body_case == CISTERN__ENVELOPE__BODY_GIVE_BACK) {
        turns_give_back(h, m->give_back->row, m->give_back->generation);
        head_step(h);
        return true;
    }
    if (m->body_case == CISTERN__ENVELOPE__BODY_MOVE) {
        turns_move(h, m->move);
        head_step(h);
        return true;
    }
    if (m->body_case == CISTERN__ENVELOPE__BODY_PIPELINE) {
        if (m->pipeline->pipeline == h->setup.pipeline) h->leaving = m->pipeline->draining;
        head_step(h);
        return true;
    }
    bool is_row = m->body_case == CISTERN__ENVELOPE__BODY_ROW;
    if (!is_row && m->body_case != CISTERN__ENVELOPE__BODY_REFUSED) return false;
    CLEANUP(freep) struct op *op = ops_take(&h->ops, m->number);
    if (!op) return false;
    if (is_row)
        admission_row(h, op, m->row);
    else
        admission_refused(h, op, m->refused);
    head_step(h);
    return true;
}

void head_tick(struct head *h)
{
    h->no_room = false;
    ops_flush(&h->ops);
    turns_unpark(h);
    head_step(h);
}

void head_drain(struct head *h)
{
    h->draining = true;
    queue_end(h, &draining_end);
    head_step(h);
}

/* ---- life and death of the object ---- */

int head_new(const struct head_setup *setup, struct why *why, struct head **ret)
{
    struct head *h = xnew(struct head);
    h->setup = *setup;
    h->ring = -1;
    h->ops = (struct ops){.client = setup->pool_client, .pipeline = setup->pipeline};
    h->share.percent = setup->prompt_share;
    h->share.least = setup->piece_least;
    h->lanes = xcalloc(setup->n_lanes, sizeof(*h->lanes));
    h->plan = xcalloc(setup->n_lanes, sizeof(*h->plan));
    int r =
        gateways_new(setup->loop, setup->endpoint, setup->self, on_gateway, h, why, &h->gateways);
    if (r < 0) return head_free(h), r;
    *ret = h;
    return 0;
}

void head_free(struct head *h)
{
    if (!h) return;
    loop_remove(h->ringing);
    closep(&h->ring);
    windows_end(h);
    link_unref(h->link);
    pool_map_unref(h->pool);
    ops_fini(&h->ops);
    struct request *r;
    while ((r = queue_take(&h->queue, NULL, NULL)))
        request_free(r);
    for (uint32_t i = 0; i < h->setup.n_lanes; i++)
        request_free(h->lanes[i].request);
    free(h->lanes);
    free(h->plan);
    gateways_free(h->gateways);
    free(h);
}
