/* SPDX-License-Identifier: MIT */
/*
 * The door for Generate: one sound message, and each field out of its range with the code that its
 * gateway must get; the order of the queue by the rule in workerd/requests.h.
 */
#include <check.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "tests/suite.h"
#include "workerd/requests.h"

static uint32_t prompt[200], generated[100], stops[REQUEST_STOPS_MAX + 1];
static uint32_t bias_ids[REQUEST_BIASES_MAX + 1];
static float biases[REQUEST_BIASES_MAX + 1];
static const struct request_limits limits = {.context_tokens = 100, .n_vocab = 50};

static Cistern__Generate sound(void)
{
    Cistern__Generate g = CISTERN__GENERATE__INIT;
    for (uint32_t i = 0; i < ARRAY_LEN(prompt); i++)
        prompt[i] = i % 50;
    for (uint32_t i = 0; i < ARRAY_LEN(generated); i++)
        generated[i] = 49 - i % 50;
    g.request = 5;
    g.attempt = 2;
    g.prompt = (ProtobufCBinaryData){10 * sizeof(uint32_t), (uint8_t *)prompt};
    g.max_tokens = 20;
    g.top_p = 1;
    g.stop_tokens = stops;
    g.n_stop_tokens = 1;
    return g;
}

static void resize(Cistern__Generate *g, size_t n_prompt, size_t n_generated)
{
    g->prompt = (ProtobufCBinaryData){n_prompt * sizeof(uint32_t), (uint8_t *)prompt};
    g->generated = (ProtobufCBinaryData){n_generated * sizeof(uint32_t), (uint8_t *)generated};
}

static const struct {
    size_t n_prompt, n_generated;
    uint32_t max_tokens, max;
} sizes[] = {
    {10, 0,  20, 30 },
    {10, 5,  20, 30 }, /* max_tokens counts those of earlier attempts */
    {10, 0,  0,  100}, /* none: up to the context */
    {90, 0,  20, 100}, /* never past it */
    {99, 1,  20, 100},
    {1,  99, 0,  100},
};

START_TEST(a_sound_one_is_taken)
{
    Cistern__Generate g = sound();
    resize(&g, sizes[_i].n_prompt, sizes[_i].n_generated);
    g.max_tokens = sizes[_i].max_tokens;
    struct refusal refusal = {0};
    CLEANUP(request_freep) struct request *r = NULL;
    ck_assert_msg(request_from(&g, 9, &limits, &refusal, &r) == 0, "%s", refusal.text);
    ck_assert_uint_eq(r->max, sizes[_i].max);
    ck_assert_uint_eq(r->n_prompt, sizes[_i].n_prompt);
    ck_assert_uint_eq(request_generated(r), sizes[_i].n_generated);
    ck_assert_uint_eq(request_token(r, r->n_prompt - 1), (r->n_prompt - 1) % 50);
    if (sizes[_i].n_generated) ck_assert_uint_eq(request_token(r, r->n_prompt), 49);
    ck_assert(request_stops_at(r, 0));
    ck_assert(!request_stops_at(r, 1));
}
END_TEST

/* Prompts of 12 tokens and 3 generated ones; where the prompt's cells were generated, and the kinds
 * that follow from it: p prompt, g generated. */
static const struct {
    uint32_t n, spans[8];
    const char *kinds;
} reused[] = {
    {0, {0},                "ppppppppppppggg"},
    {2,
     {0, 12},
     "gggggggggggg"
     "ggg"                                   },
    {2, {4, 3},             "ppppgggpppppggg"},
    {4, {0, 1, 11, 1},      "gppppppppppgggg"},
    {6, {1, 2, 4, 1, 6, 5}, "pggpgpgggggpggg"},
};

START_TEST(a_prompt_has_the_kinds_that_it_had)
{
    Cistern__Generate g = sound();
    resize(&g, 12, 3);
    g.generated_spans = (uint32_t *)reused[_i].spans;
    g.n_generated_spans = reused[_i].n;
    struct refusal refusal = {0};
    CLEANUP(request_freep) struct request *r = NULL;
    ck_assert_msg(request_from(&g, 9, &limits, &refusal, &r) == 0, "%s", refusal.text);
    const char *kinds = reused[_i].kinds;
    for (uint32_t pos = 0; pos < 15; pos++) {
        enum link_kind kind = kinds[pos] == 'g' ? LINK_GENERATED : LINK_PROMPT;
        ck_assert_int_eq(request_kind(r, pos), kind);
        ck_assert_uint_eq(request_token(r, pos), pos < 12 ? prompt[pos] : generated[pos - 12]);
        size_t alike = kinds[pos] == 'g' ? strspn(kinds + pos, "g") : strspn(kinds + pos, "p");
        ck_assert_uint_eq(request_alike(r, pos), pos + alike);
    }
    CLEANUP(freep) uint32_t *spans = NULL;
    ck_assert_uint_eq(request_spans(r, &spans), reused[_i].n);
    if (reused[_i].n) ck_assert_mem_eq(spans, reused[_i].spans, reused[_i].n * sizeof(uint32_t));
}
END_TEST

static void spanned(Cistern__Generate *g, size_t n, uint32_t a, uint32_t b, uint32_t c, uint32_t d)
{
    static uint32_t spans[4];
    memcpy(spans, (uint32_t[]){a, b, c, d}, sizeof(spans));
    g->generated_spans = spans;
    g->n_generated_spans = n;
}

static void biased(Cistern__Generate *g, size_t n)
{
    g->bias_ids = bias_ids;
    g->biases = biases;
    g->n_bias_ids = g->n_biases = n;
}

START_TEST(changes_to_the_logits_arrive)
{
    Cistern__Generate g = sound();
    biased(&g, REQUEST_BIASES_MAX);
    bias_ids[7] = 49;
    biases[7] = -INFINITY;
    g.repeat = 1.5f;
    g.repeat_last = UINT32_MAX;
    g.presence = -2;
    g.frequency = 2;
    g.min_tokens = 3;
    g.n_top = LINK_TOP_MAX;
    g.probs = g.prompt_probs = g.progress = true;
    struct refusal refusal = {0};
    CLEANUP(request_freep) struct request *r = NULL;
    ck_assert_msg(request_from(&g, 9, &limits, &refusal, &r) == 0, "%s", refusal.text);
    const struct sampling *s = &r->sampling;
    ck_assert(s->repeat == 1.5f && s->repeat_last == UINT32_MAX);
    ck_assert(s->presence == -2 && s->frequency == 2);
    ck_assert_uint_eq(s->n_biases, REQUEST_BIASES_MAX);
    ck_assert(s->biases[7].id == 49 && isinf(s->biases[7].add));
    ck_assert(r->min_tokens == 3 && r->n_top == LINK_TOP_MAX);
    ck_assert(r->probs && r->prompt_probs && r->progress);
}
END_TEST

static void no_prompt(Cistern__Generate *g) { resize(g, 0, 0); }
static void half_a_word(Cistern__Generate *g) { g->prompt.len--; }
static void half_a_generated(Cistern__Generate *g) { g->generated = g->prompt, g->generated.len--; }
static void fills_the_context(Cistern__Generate *g) { resize(g, 100, 0); }
static void past_the_context(Cistern__Generate *g) { resize(g, 200, 0); }
static void too_many_generated(Cistern__Generate *g) { resize(g, 10, 91); }
static void too_many_stops(Cistern__Generate *g) { g->n_stop_tokens = REQUEST_STOPS_MAX + 1; }
static void unknown_token(Cistern__Generate *g) { (void)g, prompt[9] = 50; }
static void unknown_generated(Cistern__Generate *g) { resize(g, 10, 3), generated[2] = 50; }
static void cold(Cistern__Generate *g) { g->temperature = -1; }
static void hot(Cistern__Generate *g) { g->temperature = INFINITY; }
static void nan_temperature(Cistern__Generate *g) { g->temperature = NAN; }
static void top_p_over(Cistern__Generate *g) { g->top_p = 1.5f; }
static void min_p_nan(Cistern__Generate *g) { g->min_p = NAN; }
static void presence_nan(Cistern__Generate *g) { g->presence = NAN; }
static void frequency_inf(Cistern__Generate *g) { g->frequency = -INFINITY; }
static void repeat_negative(Cistern__Generate *g) { g->repeat = -1; }
static void too_many_top(Cistern__Generate *g) { g->n_top = LINK_TOP_MAX + 1; }
static void too_many_biases(Cistern__Generate *g) { biased(g, REQUEST_BIASES_MAX + 1); }
static void bias_without_id(Cistern__Generate *g) { biased(g, 2), g->n_bias_ids = 1; }
static void bias_unknown(Cistern__Generate *g) { biased(g, 3), bias_ids[2] = 50; }
static void bias_nan(Cistern__Generate *g) { biased(g, 3), biases[2] = NAN; }
static void bias_infinite(Cistern__Generate *g) { biased(g, 3), biases[2] = INFINITY; }

static void span_past(Cistern__Generate *g) { spanned(g, 2, 4, 7, 0, 0); }
static void span_behind(Cistern__Generate *g) { spanned(g, 2, 11, 1, 0, 0); }
static void span_wraps(Cistern__Generate *g) { spanned(g, 2, 4, UINT32_MAX, 0, 0); }
static void span_of_none(Cistern__Generate *g) { spanned(g, 2, 4, 0, 0, 0); }
static void spans_overlap(Cistern__Generate *g) { spanned(g, 4, 4, 3, 6, 1); }
static void half_a_span(Cistern__Generate *g) { spanned(g, 3, 4, 3, 8, 0); }

static const struct {
    void (*change)(Cistern__Generate *g);
    Cistern__Code code;
} hostile[] = {
    {no_prompt,          CISTERN__CODE__MALFORMED },
    {half_a_word,        CISTERN__CODE__MALFORMED },
    {half_a_generated,   CISTERN__CODE__MALFORMED },
    {fills_the_context,  CISTERN__CODE__NEVER_FITS},
    {past_the_context,   CISTERN__CODE__NEVER_FITS},
    {too_many_generated, CISTERN__CODE__MALFORMED },
    {too_many_stops,     CISTERN__CODE__MALFORMED },
    {unknown_token,      CISTERN__CODE__MALFORMED },
    {unknown_generated,  CISTERN__CODE__MALFORMED },
    {cold,               CISTERN__CODE__MALFORMED },
    {hot,                CISTERN__CODE__MALFORMED },
    {nan_temperature,    CISTERN__CODE__MALFORMED },
    {top_p_over,         CISTERN__CODE__MALFORMED },
    {min_p_nan,          CISTERN__CODE__MALFORMED },
    {presence_nan,       CISTERN__CODE__MALFORMED },
    {frequency_inf,      CISTERN__CODE__MALFORMED },
    {repeat_negative,    CISTERN__CODE__MALFORMED },
    {too_many_top,       CISTERN__CODE__MALFORMED },
    {too_many_biases,    CISTERN__CODE__MALFORMED },
    {bias_without_id,    CISTERN__CODE__MALFORMED },
    {bias_unknown,       CISTERN__CODE__MALFORMED },
    {bias_nan,           CISTERN__CODE__MALFORMED },
    {bias_infinite,      CISTERN__CODE__MALFORMED },
    {span_past,          CISTERN__CODE__MALFORMED },
    {span_behind,        CISTERN__CODE__MALFORMED },
    {span_wraps,         CISTERN__CODE__MALFORMED },
    {span_of_none,       CISTERN__CODE__MALFORMED },
    {spans_overlap,      CISTERN__CODE__MALFORMED },
    {half_a_span,        CISTERN__CODE__MALFORMED },
};

START_TEST(hostile_ones_are_refused)
{
    Cistern__Generate g = sound();
    hostile[_i].change(&g);
    struct refusal refusal = {0};
    struct request *r = NULL;
    ck_assert_int_lt(request_from(&g, 9, &limits, &refusal, &r), 0);
    ck_assert_ptr_null(r);
    ck_assert_int_eq(refusal.code, hostile[_i].code);
    ck_assert_uint_gt(strlen(refusal.text), 0);
}
END_TEST

static struct request *queued(uint64_t gateway, uint64_t id, uint64_t arrival)
{
    struct request *r = xnew(struct request);
    r->gateway = gateway;
    r->id = id;
    r->arrival = arrival;
    r->admitted = arrival != 0;
    return r;
}

static void takes(struct request_queue *q, uint64_t id)
{
    CLEANUP(request_freep) struct request *r = queue_take(q, NULL, NULL);
    ck_assert_uint_eq(r ? r->id : 0, id);
}

START_TEST(who_was_admitted_goes_first)
{
    struct request_queue q = {0};
    queue_put(&q, queued(1, 1, 0));
    queue_put(&q, queued(1, 2, 0));
    queue_put(&q, queued(1, 3, 70)); /* submitted again: before all that are new */
    queue_put(&q, queued(1, 4, 60)); /* older than 3 */
    queue_put(&q, queued(1, 5, 80));
    queue_put(&q, queued(1, 6, 0));
    queue_put_first(&q, queued(1, 7, 0));
    ck_assert_uint_eq(q.n, 7);
    static const uint64_t order[] = {7, 4, 3, 5, 1, 2, 6};
    for (size_t i = 0; i < ARRAY_LEN(order); i++)
        takes(&q, order[i]);
    ck_assert_ptr_null(queue_take(&q, NULL, NULL));
    ck_assert_uint_eq(q.n, 0);
}
END_TEST

START_TEST(one_gateways_requests_are_found)
{
    struct request_queue q = {0};
    queue_put(&q, queued(1, 1, 0));
    queue_put(&q, queued(2, 1, 0));
    queue_put(&q, queued(1, 2, 0));
    CLEANUP(request_freep) struct request *a = queue_take_of(&q, 1, false, 2);
    ck_assert(a && a->gateway == 1 && a->id == 2);
    ck_assert_ptr_null(queue_take_of(&q, 1, false, 2));
    ck_assert_ptr_null(queue_take_of(&q, 3, true, 0));
    CLEANUP(request_freep) struct request *b = queue_take_of(&q, 2, true, 0);
    ck_assert(b && b->gateway == 2);
    ck_assert_uint_eq(q.n, 1);
    takes(&q, 1);
}
END_TEST

int main(void)
{
    TCase *tc = tcase_create("requests");
    tcase_add_loop_test(tc, a_sound_one_is_taken, 0, ARRAY_LEN(sizes));
    tcase_add_loop_test(tc, a_prompt_has_the_kinds_that_it_had, 0, ARRAY_LEN(reused));
    tcase_add_test(tc, changes_to_the_logits_arrive);
    tcase_add_loop_test(tc, hostile_ones_are_refused, 0, ARRAY_LEN(hostile));
    tcase_add_test(tc, who_was_admitted_goes_first);
    tcase_add_test(tc, one_gateways_requests_are_found);
    return suite_run("requests", tc);
}
