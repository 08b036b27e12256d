/* SPDX-License-Identifier: MIT */
/*
 * Probabilities and biases of a request over its attempts, against a head that request_rig.c plays:
 * each token's come with it, once; those of the prompt are owed until all are told.
 */
#include <check.h>
#include <string.h>

#include "tests/suite.h"
#include "tests/unit/request_rig.h"

/* Logprobs -1, -2, .. and alternatives id + 1, by the index of the token. */
static void send_probable(uint32_t attempt, uint32_t index, size_t n, size_t n_probs,
                          uint32_t n_top)
{
    uint32_t ids[SENT_MAX], top[SENT_MAX];
    float logprobs[SENT_MAX];
    for (uint32_t i = 0; i < SENT_MAX; i++) {
        ids[i] = 20 + index + i;
        top[i] = ids[i] + 1;
        logprobs[i] = -1.0F - (float)(index + i);
    }
    Cistern__Probs p = CISTERN__PROBS__INIT;
    p.logprobs = p.top_logprobs = logprobs;
    p.n_logprobs = n_probs;
    p.n_top = n_top;
    p.top_ids = top;
    p.n_top_ids = p.n_top_logprobs = n_probs * n_top;
    Cistern__Tokens t = CISTERN__TOKENS__INIT;
    t.request = head.generate.request;
    t.attempt = attempt;
    t.index = index;
    t.n_ids = n;
    t.ids = ids;
    t.probs = n_probs ? &p : NULL;
    Cistern__Envelope m = CISTERN__ENVELOPE__INIT;
    m.body_case = CISTERN__ENVELOPE__BODY_TOKENS;
    m.tokens = &t;
    deliver(&m);
}

START_TEST(probabilities_come_with_their_tokens_once)
{
    more = (struct request_ask){.probs = true, .n_top = 1};
    begin(60000);
    send_started(1);
    send_probable(1, 0, 2, 2, 1);
    send_probable(1, 1, 2, 2, 1); /* half of it is a repeat */
    requests_lost(requests, &head.pipeline);
    run_until_submitted(2);
    ck_assert(head.generate.probs && head.generate.n_top == 1);
    send_probable(2, 3, 1, 1, 1);
    ck_assert_uint_eq(got.n, 4);
    for (uint32_t i = 0; i < 4; i++)
        ck_assert(got.ids[i] == 20 + i && got.logprobs[i] == -1.0F - (float)i);
    end();
}
END_TEST

static const struct {
    size_t n_probs;
    uint32_t n_top;
} misshapen[] = {
    {0, 1},
    {1, 1},
    {2, 0},
    {2, 2}
};

START_TEST(misshapen_probabilities_end_it)
{
    more = (struct request_ask){.probs = true, .n_top = 1};
    begin(60000);
    send_started(1);
    send_probable(1, 0, 2, misshapen[_i].n_probs, misshapen[_i].n_top);
    ck_assert_uint_eq(got.n, 0);
    ck_assert_uint_eq(got.finished, 1);
    ck_assert_int_eq(got.end.fault, FAULT_INTERNAL);
    end();
}
END_TEST

/* Of the prompt's n tokens from position first on: -first, .. */
static void send_read(uint32_t attempt, uint32_t n_read, uint32_t first, size_t n)
{
    float logprobs[SENT_MAX];
    for (uint32_t i = 0; i < n; i++)
        logprobs[i] = -(float)(first + i);
    Cistern__Probs p = CISTERN__PROBS__INIT;
    p.logprobs = logprobs;
    p.n_logprobs = n;
    Cistern__Read r = CISTERN__READ__INIT;
    r.request = head.generate.request;
    r.attempt = attempt;
    r.n_read = n_read;
    r.first = first;
    r.probs = &p;
    Cistern__Envelope m = CISTERN__ENVELOPE__INIT;
    m.body_case = CISTERN__ENVELOPE__BODY_READ;
    m.read = &r;
    deliver(&m);
}

/* The prompt has three tokens, of which the first follows nothing. */
START_TEST(a_prompt_is_told_once_over_all_attempts)
{
    more = (struct request_ask){.prompt_probs = true};
    begin(60000);
    ck_assert(head.generate.prompt_probs);
    send_started(1);
    send_read(1, 2, 1, 1);
    ck_assert_uint_eq(got.n_read_probs, 1);
    requests_lost(requests, &head.pipeline);
    run_until_submitted(2);
    ck_assert(head.generate.prompt_probs); /* one is still owed: all is computed again */
    send_started(2);
    send_read(1, 3, 2, 1); /* late, from the dead */
    send_read(2, 1, 1, 1);
    ck_assert_uint_eq(got.n_read_probs, 1);
    send_read(2, 3, 1, 2);
    ck_assert_uint_eq(got.n_read_probs, 2);
    ck_assert(got.read_logprobs[0] == -1 && got.read_logprobs[1] == -2);
    ck_assert_uint_eq(got.n_read, 3);
    send_tokens(2, 0, 1, (uint32_t[]){21});
    requests_lost(requests, &head.pipeline);
    run_until_submitted(3);
    ck_assert(!head.generate.prompt_probs); /* nothing is owed: it may go on from the pool */
    end();
}
END_TEST

START_TEST(a_token_before_the_prompt_is_told_is_a_gap)
{
    more = (struct request_ask){.prompt_probs = true};
    begin(60000);
    send_started(1);
    send_tokens(1, 0, 1, (uint32_t[]){21});
    ck_assert_uint_eq(got.n, 0);
    run_until_submitted(2);
    send_started(2);
    send_read(2, 3, 2, 1); /* the first of two is missing */
    ck_assert_uint_eq(got.n_read_probs, 0);
    run_until_submitted(3);
    end();
}
END_TEST

static const struct {
    uint32_t n_read, first;
    size_t n;
} impossible[] = {
    {4, 1,          1},
    {3, 0,          1},
    {3, 1,          3},
    {3, UINT32_MAX, 1}
};

START_TEST(a_prompt_longer_than_it_is_ends_it)
{
    more = (struct request_ask){.prompt_probs = true};
    begin(60000);
    send_started(1);
    send_read(1, impossible[_i].n_read, impossible[_i].first, impossible[_i].n);
    ck_assert_uint_eq(got.finished, 1);
    ck_assert_int_eq(got.end.fault, FAULT_INTERNAL);
    end();
}
END_TEST

START_TEST(biases_are_sent_with_every_attempt)
{
    static const uint32_t ids[] = {5, 6};
    static const float biases[] = {1, -2};
    more = (struct request_ask){.bias_ids = ids, .biases = biases, .n_biases = 2};
    begin(60000);
    requests_lost(requests, &head.pipeline);
    run_until_submitted(2);
    ck_assert_uint_eq(head.generate.n_biases, 2);
    ck_assert_uint_eq(head.generate.n_bias_ids, 2);
    ck_assert(head.generate.bias_ids[1] == 6 && head.generate.biases[1] == -2);
    end();
}
END_TEST

int main(void)
{
    TCase *t = tcase_create("request_probs");
    tcase_set_timeout(t, 60);
    tcase_add_test(t, probabilities_come_with_their_tokens_once);
    tcase_add_loop_test(t, misshapen_probabilities_end_it, 0, ARRAY_LEN(misshapen));
    tcase_add_test(t, a_prompt_is_told_once_over_all_attempts);
    tcase_add_test(t, a_token_before_the_prompt_is_told_is_a_gap);
    tcase_add_loop_test(t, a_prompt_longer_than_it_is_ends_it, 0, ARRAY_LEN(impossible));
    tcase_add_test(t, biases_are_sent_with_every_attempt);
    return suite_run("request_probs", t);
}
