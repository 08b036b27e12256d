/* SPDX-License-Identifier: MIT */
/*
 * Who waits for whom at a head: a prompt that shares its beginning with one that is being read, a
 * long prompt that lets a shorter one pass, a conversation whose room an older one needs. Decides;
 * the moving is admission.c's.
 */
#include "common/log.h"
#include "workerd/head_state.h"

enum { YIELDS_MAX = 2 }; /* of one prompt: then it is read to its end */

/* Tokens that two requests begin with alike; exact: by their kinds, too. */
static uint32_t common(const struct request *a, const struct request *b, bool exact)
{
    uint32_t n = min_u32(a->n_tokens, b->n_tokens), i = 0;
    uint32_t heeded = exact ? UINT32_MAX : ~POOL_TOKEN_GENERATED;
    while (i < n && !((a->words[i] ^ b->words[i]) & heeded))
        i++;
    return i;
}

bool turns_may_go(const void *head, const struct request *r)
{
    const struct head *h = head;
    if (request_is_fresh(r)) return true;             /* it shares nothing */
    if (h->pool && h->pool->lane_chunks) return true; /* neither does anyone */
    for (uint32_t i = 0; h->pool && i < h->setup.n_lanes; i++) {
        const struct lane *l = &h->lanes[i];
        bool reading = l->state == LANE_PROMPT || l->state == LANE_OPENING;
        if (!reading || l->request->salt != r->salt) continue;
        uint32_t chunk = h->pool->chunk_cells, done = l->state == LANE_PROMPT ? l->done : 0;
        if (common(l->request, r, head_is_exact(h, r)) >= done + chunk) return false;
    }
    return true;
}

/* The prompt with the most left to read, if that is more than twice the request's whole prompt. */
static struct lane *longest_reader(struct head *h, const struct request *r)
{
    struct lane *best = NULL;
    uint32_t most = 2 * r->n_tokens;
    for (uint32_t i = 0; i < h->setup.n_lanes; i++) {
        struct lane *l = &h->lanes[i];
        if (l->state != LANE_PROMPT || lane_unposted(l) <= most) continue;
        /* One that takes nothing over would begin anew. */
        if (l->request->n_yields == YIELDS_MAX || request_is_fresh(l->request)) continue;
        most = lane_unposted(l);
        best = l;
    }
    return best;
}

void turns_yield(struct head *h)
{
    const struct request *first = h->queue.first;
    if (h->pool && h->pool->lane_chunks) return; /* what gave way would be overwritten */
    if (!first || first->admitted || !turns_may_go(h, first)) return;
    struct lane *l = longest_reader(h, first);
    if (!l) return;
    struct request *r = queue_take(&h->queue, NULL, NULL);
    l->request->n_yields++;
    shm_store_u64(&h->pool->page->yields, h->pool->page->yields + 1);
    log_debug("lane %u gives way with %u tokens of its prompt unread, to a prompt of %u",
              (unsigned)(l - h->lanes), lane_unposted(l), r->n_tokens);
    admission_requeue(h, l, true);
    admission_open(h, (uint32_t)(l - h->lanes), r);
}

static void give_back(struct head *h, struct lane *l)
{
    shm_store_u64(&h->pool->page->given_back, h->pool->page->given_back + 1);
    log_info("row %u gives back its room to an older conversation", l->row);
    admission_requeue(h, l, false);
}

void turns_give_back(struct head *h, uint32_t row, uint64_t generation)
{
    for (uint32_t i = 0; i < h->setup.n_lanes; i++) {
        struct lane *l = &h->lanes[i];
        if (lane_is_active(l) && l->row == row && l->generation == generation)
            return give_back(h, l);
    }
}

void turns_unpark(struct head *h)
{
    const struct request *first = h->queue.first;
    struct lane *youngest = NULL;
    if (!first || !first->admitted || !h->pool || h->pool->lane_chunks) return;
    for (uint32_t i = 0; i < h->setup.n_lanes; i++) {
        struct lane *l = &h->lanes[i];
        if (!lane_is_dry(l) || !l->growing) return; /* it goes on, or is free */
        if (!youngest || l->arrival > youngest->arrival) youngest = l;
    }
    if (youngest && youngest->arrival > first->arrival) give_back(h, youngest);
}

void turns_move(struct head *h, const Cistern__Move *move)
{
    for (uint32_t i = 0; i < h->setup.n_lanes; i++) {
        struct lane *l = &h->lanes[i];
        if (!lane_is_active(l) || l->row != move->row || l->generation != move->generation)
            continue;
        log_info("row %u moves to pipeline %u", move->row, move->pipeline);
        admission_move(h, l, move->pipeline + 1);
        return;
    }
}

/* What was admitted here stays until there is a place for it to go to. */
static bool may_stay(const struct head *h, const struct request *r)
{
    return h->leaving == 1 && r->admitted;
}

void turns_leave(struct head *h)
{
    struct request_queue stay = {0};
    struct request *r;
    static const struct ending moved = {
        .reason = CISTERN__REASON__ERROR,
        .code = CISTERN__CODE__MOVED,
        .text = "the pipeline is being drained",
    };
    if (!h->leaving) return;
    while ((r = queue_take(&h->queue, NULL, NULL))) {
        if (may_stay(h, r)) {
            queue_put(&stay, r);
            continue;
        }
        gateways_finished(h->gateways, r, &moved);
        request_free(r);
    }
    h->queue = stay;
    for (uint32_t i = 0; h->leaving == 2 && i < h->setup.n_lanes; i++)
        if (h->lanes[i].state != LANE_FREE) admission_move(h, &h->lanes[i], 0);
}
