/* SPDX-License-Identifier: MIT */
/*
 * The input is a Generate, as a head takes it from a gateway. One that is taken must hold to what
 * it was bounded by, and be taken again, the same, with the spans that Started would tell of it.
 */
#include <assert.h>
#include <string.h>

#include "workerd/requests.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

static const struct request_limits limits = {
    .context_tokens = 100, .n_vocab = 300, .default_tokens = 10};

static void check(const struct request *r)
{
    assert(r->n_prompt > 0 && r->n_prompt <= r->n_tokens && r->n_tokens <= limits.context_tokens);
    assert(r->max > r->n_prompt && r->max <= limits.context_tokens && r->reserve <= r->max);
    assert(r->n_stops <= REQUEST_STOPS_MAX && r->sampling.n_biases <= REQUEST_BIASES_MAX);
    assert(r->n_top <= LINK_TOP_MAX);
    for (uint32_t i = 0; i < r->n_tokens; i++)
        assert(request_token(r, i) < limits.n_vocab);
    for (uint32_t i = r->n_prompt; i < r->n_tokens; i++)
        assert(request_kind(r, i) == LINK_GENERATED);
    for (uint32_t i = 0; i < r->sampling.n_biases; i++)
        assert(r->biases[i].id < limits.n_vocab && r->biases[i].add == r->biases[i].add);
}

/* After a death: what Started said is handed on. */
static void again(Cistern__Generate *g, const struct request *r)
{
    CLEANUP(freep) uint32_t *spans = NULL;
    uint32_t *own = g->generated_spans;
    size_t n_own = g->n_generated_spans;
    struct refusal refusal = {0};
    g->n_generated_spans = request_spans(r, &spans);
    g->generated_spans = spans;
    assert(g->n_generated_spans <= (size_t)r->n_prompt + 1); /* the gateway takes no more */
    CLEANUP(request_freep) struct request *q = NULL;
    int e = request_from(g, 1, &limits, &refusal, &q);
    assert(e == 0 && q->n_tokens == r->n_tokens);
    assert(memcmp(q->words, r->words, r->n_tokens * sizeof(*r->words)) == 0);
    g->generated_spans = own;
    g->n_generated_spans = n_own;
}

static bool any(const void *arg, const struct request *r) { return r != arg; }

/* Through the queue, beside another, and out by its number. */
static void queued(struct request *r)
{
    struct request other = {.gateway = 2, .id = r->id, .arrival = 20, .admitted = true};
    struct request_queue q = {0};
    queue_put(&q, r);
    queue_put(&q, &other);
    bool older = r->admitted && r->arrival <= other.arrival;
    assert(q.n == 2 && q.first == (older ? r : &other));
    assert(queue_take_of(&q, 3, false, r->id) == NULL && queue_take_of(&q, 1, false, r->id) == r);
    queue_put_first(&q, r);
    assert(queue_take(&q, any, r) == &other && queue_take_of(&q, 1, true, 0) == r && q.n == 0);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    Cistern__Generate *g = cistern__generate__unpack(NULL, bytes, data);
    if (!g) return 0;
    CLEANUP(request_freep) struct request *r = NULL;
    struct refusal refusal = {0};
    if (request_from(g, 1, &limits, &refusal, &r) == 0) {
        check(r);
        queued(r);
        again(g, r);
    } else {
        assert(!r && refusal.code != CISTERN__CODE__OK && refusal.text[0]);
    }
    cistern__generate__free_unpacked(g, NULL);
    return 0;
}
