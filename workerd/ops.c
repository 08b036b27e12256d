/* SPDX-License-Identifier: MIT */
/*
 * Keeps, packs and sends the head's operations (ops.h). It does not know what an answer means: the
 * head takes the operation out by the answer's number and decides.
 */
#include "workerd/ops.h"

#include <errno.h>
#include <string.h>

#include "common/log.h"

static int send_open(struct ops *o, const struct op *op)
{
    const struct request *r = op->request;
    Cistern__Open open = CISTERN__OPEN__INIT;
    open.pipeline = o->pipeline;
    open.lane = op->lane;
    open.tokens.data = (uint8_t *)r->words;
    open.tokens.len = r->n_tokens * sizeof(*r->words);
    open.exact = op->exact;
    open.salt = r->salt;
    open.arrival = r->arrival;
    open.gateway = r->gateway;
    open.resume_row = r->resume_row;
    open.resume_generation = r->resume_generation;
    open.max_cells = op->cells;
    open.fresh = request_is_fresh(r);
    Cistern__Envelope m = CISTERN__ENVELOPE__INIT;
    m.number = op->number;
    m.body_case = CISTERN__ENVELOPE__BODY_OPEN;
    m.open = &open;
    return pool_client_send(o->client, &m);
}

static int send_grow(struct ops *o, const struct op *op)
{
    Cistern__Grow grow = CISTERN__GROW__INIT;
    grow.row = op->row;
    grow.generation = op->generation;
    grow.version = op->version;
    grow.to_cells = op->cells;
    Cistern__Envelope m = CISTERN__ENVELOPE__INIT;
    m.number = op->number;
    m.body_case = CISTERN__ENVELOPE__BODY_GROW;
    m.grow = &grow;
    return pool_client_send(o->client, &m);
}

static int send_close(struct ops *o, const struct op *op)
{
    Cistern__Close close_ = CISTERN__CLOSE__INIT;
    close_.row = op->row;
    close_.generation = op->generation;
    close_.version = op->version;
    close_.last_window = op->last_window;
    close_.keep_cells = op->cells;
    close_.resume = op->resume;
    Cistern__Envelope m = CISTERN__ENVELOPE__INIT;
    m.number = op->number;
    m.body_case = CISTERN__ENVELOPE__BODY_CLOSE;
    m.close = &close_;
    return pool_client_send(o->client, &m);
}

/* Lost when poold is away: then the Open is sent again, and this behind it. */
static void send_abandon(struct ops *o, const struct op *op)
{
    Cistern__Abandon abandon = CISTERN__ABANDON__INIT;
    abandon.number = op->number;
    Cistern__Envelope m = CISTERN__ENVELOPE__INIT;
    m.number = pool_client_number(o->client);
    m.body_case = CISTERN__ENVELOPE__BODY_ABANDON;
    m.abandon = &abandon;
    (void)pool_client_send(o->client, &m);
}

static int (*const senders[])(struct ops *, const struct op *) = {
    [OP_OPEN] = send_open,
    [OP_GROW] = send_grow,
    [OP_CLOSE] = send_close,
};

void ops_flush(struct ops *o)
{
    if (!o->attached) return;
    for (struct op *op = o->first; op; op = op->next) {
        if (op->sent) continue;
        int r = senders[op->kind](o, op);
        if (r < 0) {
            log_debug("poold takes no message now (%s); it is sent later", strerror(-r));
            return;
        }
        op->sent = true;
        if (op->abandoned) send_abandon(o, op);
    }
}

void ops_abandon(struct ops *o, uint32_t lane, uint64_t serial)
{
    for (struct op *op = o->first; op; op = op->next) {
        if (op->kind != OP_OPEN || op->lane != lane || op->serial != serial) continue;
        op->abandoned = true;
        if (op->sent) send_abandon(o, op);
    }
}

void ops_add(struct ops *o, const struct op *op)
{
    struct op *copy = xnew(struct op);
    *copy = *op;
    copy->next = NULL;
    copy->sent = false;
    copy->number = pool_client_number(o->client);
    struct op **at = &o->first;
    while (*at)
        at = &(*at)->next;
    *at = copy;
    o->n++;
    ops_flush(o);
}

struct op *ops_take(struct ops *o, uint64_t number)
{
    struct op **at = &o->first;
    while (*at && (*at)->number != number)
        at = &(*at)->next;
    struct op *op = *at;
    if (!op) return NULL;
    *at = op->next;
    op->next = NULL;
    o->n--;
    return op;
}

void ops_lost(struct ops *o)
{
    o->attached = false;
    for (struct op *op = o->first; op; op = op->next)
        op->sent = false;
}

void ops_attached(struct ops *o)
{
    o->attached = true;
    ops_flush(o);
}

void ops_drop(struct ops *o, enum op_kind kind)
{
    for (struct op **at = &o->first; *at;) {
        struct op *op = *at;
        if (op->kind != kind) {
            at = &op->next;
            continue;
        }
        *at = op->next;
        free(op);
        o->n--;
    }
}

void ops_fini(struct ops *o)
{
    while (o->first) {
        struct op *op = o->first;
        o->first = op->next;
        free(op);
    }
    o->n = 0;
}
