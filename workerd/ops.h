/* SPDX-License-Identifier: MIT */
#ifndef WORKERD_OPS_H
#define WORKERD_OPS_H
/*
 * The head's operations at poold that have no answer yet. Each keeps its number until it is
 * answered, through any number of poold's lives: poold tells a retry from a new operation by it.
 * Loop thread only.
 */
#include <stdbool.h>

#include "common/pool_client.h"
#include "workerd/requests.h"

enum op_kind { OP_OPEN, OP_GROW, OP_CLOSE };

struct op {
    struct op *next;
    uint64_t number;
    bool sent; /* to this life of poold */
    enum op_kind kind;
    uint32_t lane;                 /* of OPEN and GROW */
    uint64_t serial;               /* of the lane's request then */
    const struct request *request; /* of OPEN: the lane keeps it until the answer */
    bool abandoned;                /* OPEN: its request is over */
    bool exact;                    /* OPEN: kinds must be the same, too */
    uint32_t row;                  /* of GROW and CLOSE, as the fields below */
    uint64_t generation, version;
    uint32_t cells; /* OPEN: to reserve at least, or 0; GROW: to; CLOSE: to keep */
    uint64_t last_window;
    bool resume;
    uint32_t tries; /* of CLOSE: times that its version was stale */
};

struct ops {
    struct pool_client *client;
    uint32_t pipeline;
    bool attached; /* nothing is sent before poold has answered the attach */
    struct op *first;
    uint32_t n;
};

/* Copies op, numbers it and sends it when that is possible. */
void ops_add(struct ops *o, const struct op *op);
/* The lane's Open without an answer is no longer wanted: poold need not wait for room for it. */
void ops_abandon(struct ops *o, uint32_t lane, uint64_t serial);
/* Takes out the operation that an answer is for; NULL when there is none. The caller frees it. */
struct op *ops_take(struct ops *o, uint64_t number);
/* Sends what is not sent yet, in order. */
void ops_flush(struct ops *o);
/* poold is gone: all will be sent again after ops_attached. */
void ops_lost(struct ops *o);
void ops_attached(struct ops *o);
/* Drops operations of one kind without an answer: their rows are no more. */
void ops_drop(struct ops *o, enum op_kind kind);
void ops_fini(struct ops *o);

#endif
