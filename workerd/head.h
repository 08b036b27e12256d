/* SPDX-License-Identifier: MIT */
#ifndef WORKERD_HEAD_H
#define WORKERD_HEAD_H
/*
 * The head of a pipeline: takes requests from gateways, asks poold for rows, composes windows,
 * hands sampled tokens back. Only stage 0's worker has one. Everything in it is the loop thread's;
 * with the stages it shares the link, the page's second words and the tokens file, by the rules in
 * proto/.
 *
 * It resumes nothing by itself: when a stage is lost its attempts end with STAGE_LOST and the
 * gateway decides what is submitted again.
 */
#include "common/pool_client.h"
#include "workerd/gateways.h"
#include "workerd/link.h"
#include "workerd/pool_map.h"

struct head;

struct head_setup {
    struct loop *loop;
    struct pool_client *pool_client;
    const char *endpoint; /* where gateways reach it */
    uint64_t self;        /* this process's incarnation */
    uint32_t pipeline, n_lanes, piece;
    uint32_t prompt_share; /* worker.prompt_share */
    uint32_t piece_least;  /* rows of a prompt below which a piece takes hardly less */
    bool reserve_all;      /* pool.admission = full */
    uint32_t default_tokens;
    bool trace_all;    /* logits of every row are wanted */
    bool feed;         /* worker.feed */
    bool exact_prefix; /* worker.exact_prefix */
    struct model_card card;
    void (*drained)(void *arg); /* after head_drain: nothing is in flight and all rows are closed */
    void *arg;
};

int head_new(const struct head_setup *setup, struct why *why, struct head **ret);
void head_free(struct head *h); /* takes NULL */

/* The pool's files are mapped; another pool than before: all that was known of the old one goes. */
void head_use_pool(struct head *h, struct pool_map *pool);
/* A new life: windows may be posted to this link. ring becomes the head's. */
void head_serve(struct head *h, uint32_t life, struct link *link, int ring);
/* The life is over: a stage was lost. */
void head_life_over(struct head *h);

/* What an attach says: rows believed to be held, and operations without an answer. The arrays are
 * the caller's to free. */
size_t head_rows(const struct head *h, uint32_t **ret);
size_t head_pending(const struct head *h, uint64_t **ret);
void head_attached(struct head *h, const uint32_t *rows, size_t n_rows);
void head_pool_lost(struct head *h);

/* An answer of poold, or GiveBack; false when it is for none of the head's operations. */
bool head_answer(struct head *h, const Cistern__Envelope *m);
void head_gateway_died(struct head *h, uint64_t gateway);
/* Now and then: sends what could not be sent, tries what had no room. */
void head_tick(struct head *h);
/* Takes nothing new; when the windows in flight are back all rows are closed, then drained is
 * called. */
void head_drain(struct head *h);

#endif
