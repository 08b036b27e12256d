/* SPDX-License-Identifier: MIT */
/*
 * A generation's life against a head that request_rig.c plays. What is expected follows from the
 * section on deaths in ARCHITECTURE.md: a token counts only when it is of the current attempt and
 * bears the next index; a repeat is dropped; a gap ends the attempt; a re-submission carries prompt
 * and generated tokens apart, and the row, generation and arrival of the last attempt.
 */
#include <check.h>
#include <errno.h>
#include <string.h>

#include "tests/suite.h"
#include "tests/unit/request_rig.h"

/* have: tokens so far, at attempt 3. */
static const struct {
    uint32_t attempt, have, index;
    size_t n;
    int result;
    size_t skip;
} checks[] = {
    {3, 0, 0,          1, 0,         0},
    {3, 5, 5,          2, 0,         0},
    {3, 5, 4,          2, 0,         1}, /* half of it is a repeat */
    {3, 5, 4,          1, -EALREADY, 0},
    {3, 5, 0,          5, -EALREADY, 0},
    {3, 5, 0,          6, 0,         5},
    {3, 5, 6,          1, -EBADMSG,  0},
    {3, 5, 5,          0, -EALREADY, 0}, /* an empty message is no news */
    {2, 5, 5,          1, -ESTALE,   0},
    {4, 5, 5,          1, -ESTALE,   0},
    {3, 5, UINT32_MAX, 1, -EBADMSG,  0},
};

START_TEST(only_the_next_token_of_this_attempt_counts)
{
    Cistern__Tokens t = CISTERN__TOKENS__INIT;
    size_t skip = 0;
    t.attempt = checks[_i].attempt;
    t.index = checks[_i].index;
    t.n_ids = checks[_i].n;
    ck_assert_int_eq(tokens_check(3, checks[_i].have, &t, &skip), checks[_i].result);
    ck_assert_uint_eq(skip, checks[_i].skip);
}
END_TEST

START_TEST(tokens_arrive_once_and_in_order)
{
    begin(60000);
    ck_assert_uint_eq(head.n_generate, 1);
    ck_assert_uint_eq(head.generate.attempt, 1);
    ck_assert_uint_eq(head.pipeline.load, 1);
    send_started(1);
    ck_assert_uint_eq(got.started, 1);
    ck_assert_uint_eq(request_cached_tokens(request), 2);
    send_tokens(1, 0, 2, (uint32_t[]){21, 22});
    send_tokens(1, 1, 2, (uint32_t[]){22, 23});
    send_tokens(9, 3, 1, (uint32_t[]){66}); /* another attempt's */
    ck_assert_uint_eq(got.n, 3);
    ck_assert_uint_eq(got.ids[2], 23);
    send_finished(1, CISTERN__REASON__STOP, CISTERN__CODE__OK, 3);
    ck_assert_uint_eq(got.finished, 1);
    ck_assert_int_eq(got.end.fault, FAULT_NONE);
    ck_assert_uint_eq(requests_in_flight(requests), 0);
    end();
}
END_TEST

START_TEST(a_lost_head_is_followed_by_an_attempt_that_goes_on)
{
    begin(60000);
    send_started(1);
    send_tokens(1, 0, 2, (uint32_t[]){21, 22});
    requests_lost(requests, &head.pipeline);
    ck_assert_uint_eq(head.pipeline.load, 0);
    run_until_submitted(2);
    ck_assert_uint_eq(head.generate.attempt, 2);
    ck_assert_uint_eq(head.generate.prompt.len, 3 * 4);
    ck_assert_uint_eq(head.prompt[2], 13);
    ck_assert_uint_eq(head.generate.generated.len, 2 * 4);
    ck_assert_uint_eq(head.generated[1], 22);
    ck_assert_uint_eq(head.generate.resume_row, 8);
    ck_assert_uint_eq(head.generate.resume_generation, 5);
    ck_assert_uint_eq(head.generate.arrival, 42);
    ck_assert_uint_eq(head.generate.seed, 99);
    send_started(2);
    send_tokens(1, 2, 1, (uint32_t[]){66}); /* late, from the dead */
    send_tokens(2, 2, 1, (uint32_t[]){23});
    ck_assert_uint_eq(got.started, 1);
    ck_assert_uint_eq(got.n, 3);
    ck_assert_uint_eq(got.ids[2], 23);
    end();
}
END_TEST

/* What a head says of the kinds in the prompt the next one is told; the newest word counts. */
START_TEST(kinds_of_the_prompt_are_handed_on)
{
    begin(60000);
    ck_assert_uint_eq(head.generate.n_generated_spans, 0);
    Cistern__Started s = CISTERN__STARTED__INIT;
    Cistern__Envelope m = CISTERN__ENVELOPE__INIT;
    m.body_case = CISTERN__ENVELOPE__BODY_STARTED;
    m.started = &s;
    s.request = head.generate.request;
    for (s.attempt = 1; s.attempt <= 2; s.attempt++) {
        uint32_t spans[] = {0, 1, 2, s.attempt};
        s.generated_spans = spans;
        s.n_generated_spans = 4;
        deliver(&m);
        requests_lost(requests, &head.pipeline);
        run_until_submitted(s.attempt + 1);
        ck_assert_uint_eq(head.generate.n_generated_spans, 4);
        ck_assert_mem_eq(head.generate.generated_spans, spans, sizeof(spans));
    }
    s.n_generated_spans = 0;
    deliver(&m);
    requests_lost(requests, &head.pipeline);
    run_until_submitted(4);
    ck_assert_uint_eq(head.generate.n_generated_spans, 0);
    s.n_generated_spans = 5; /* of a prompt of 3: never */
    s.generated_spans = (uint32_t[]){0, 1, 1, 1, 2};
    s.attempt = 4;
    deliver(&m);
    ck_assert_uint_eq(got.finished, 1);
    ck_assert_int_eq(got.end.fault, FAULT_INTERNAL);
    end();
}
END_TEST

START_TEST(a_gap_ends_the_attempt)
{
    begin(60000);
    send_started(1);
    send_tokens(1, 1, 1, (uint32_t[]){22});
    ck_assert_uint_eq(got.n, 0);
    ck_assert_uint_eq(head.n_cancel, 1);
    ck_assert_uint_eq(head.cancel.attempt, 1);
    run_until_submitted(2);
    ck_assert_uint_eq(head.generate.attempt, 2);
    end();
}
END_TEST

START_TEST(a_finish_with_tokens_missing_is_a_gap)
{
    begin(60000);
    send_started(1);
    send_tokens(1, 0, 1, (uint32_t[]){21});
    send_finished(1, CISTERN__REASON__LENGTH, CISTERN__CODE__OK, 2);
    ck_assert_uint_eq(got.finished, 0);
    run_until_submitted(2);
    end();
}
END_TEST

/* What a refusal does to a request that has a lane already (started), and to one that has none. */
static const struct {
    Cistern__Code code;
    bool started, again;
    enum fault_kind fault;
} refusals[] = {
    {CISTERN__CODE__STAGE_LOST, true,  true,  FAULT_NONE      },
    {CISTERN__CODE__STAGE_LOST, false, true,  FAULT_NONE      },
    {CISTERN__CODE__NOT_READY,  false, true,  FAULT_NONE      },
    {CISTERN__CODE__POOL_FULL,  false, false, FAULT_POOL_FULL },
    {CISTERN__CODE__POOL_FULL,  true,  true,  FAULT_NONE      },
    {CISTERN__CODE__QUEUE_FULL, false, false, FAULT_QUEUE_FULL},
    {CISTERN__CODE__NEVER_FITS, false, false, FAULT_CONTEXT   },
    {CISTERN__CODE__MALFORMED,  true,  false, FAULT_INTERNAL  },
};

START_TEST(a_refusal_is_tried_again_or_told)
{
    begin(60000);
    if (refusals[_i].started) send_started(1);
    send_finished(1, CISTERN__REASON__ERROR, refusals[_i].code, 0);
    if (refusals[_i].again) {
        ck_assert_uint_eq(got.finished, 0);
        run_until_submitted(2);
    } else {
        ck_assert_uint_eq(got.finished, 1);
        ck_assert_int_eq(got.end.fault, refusals[_i].fault);
    }
    end();
}
END_TEST

START_TEST(a_refused_message_is_known_by_its_number)
{
    begin(60000);
    Cistern__Refused refused = CISTERN__REFUSED__INIT;
    refused.code = CISTERN__CODE__STALE;
    Cistern__Envelope m = CISTERN__ENVELOPE__INIT;
    m.body_case = CISTERN__ENVELOPE__BODY_REFUSED;
    m.refused = &refused;
    m.number = head.number + 1; /* somebody else's */
    deliver(&m);
    ck_assert_uint_eq(head.pipeline.load, 1);
    m.number = head.number;
    deliver(&m);
    ck_assert_uint_eq(head.pipeline.load, 0);
    run_until_submitted(2);
    end();
}
END_TEST

START_TEST(without_a_pipeline_it_ends_at_the_deadline)
{
    begin(100);
    send_started(1);
    head.none_ready = true;
    requests_lost(requests, &head.pipeline);
    ck_assert_int_eq(loop_run(loop), 0);
    ck_assert_uint_eq(got.finished, 1);
    ck_assert_int_eq(got.end.fault, FAULT_STAGE_LOST);
    end();
}
END_TEST

START_TEST(a_client_that_leaves_is_cancelled_and_forgotten_when_confirmed)
{
    begin(60000);
    send_started(1);
    send_tokens(1, 0, 1, (uint32_t[]){21});
    request_leave(request);
    ck_assert_uint_eq(head.n_cancel, 1);
    ck_assert(!head.cancel.keep_set);
    send_tokens(1, 1, 1, (uint32_t[]){22}); /* was under way */
    ck_assert_uint_eq(got.n, 1);
    ck_assert_uint_eq(requests_in_flight(requests), 1); /* its lane is not free yet */
    send_finished(1, CISTERN__REASON__CANCELLED, CISTERN__CODE__OK, 2);
    ck_assert_uint_eq(requests_in_flight(requests), 0);
    ck_assert_uint_eq(got.finished, 0);
    end();
}
END_TEST

START_TEST(a_cancel_that_could_not_be_sent_is_sent_again)
{
    begin(60000);
    send_started(1);
    head.send_result = -EAGAIN;
    request_leave(request);
    ck_assert_uint_eq(head.n_cancel, 0);
    head.send_result = 0;
    send_tokens(1, 0, 1, (uint32_t[]){21});
    ck_assert_uint_eq(head.n_cancel, 1);
    end();
}
END_TEST

START_TEST(a_stop_string_says_what_to_keep)
{
    begin(60000);
    send_started(1);
    send_tokens(1, 0, 3, (uint32_t[]){21, 22, 23});
    request_stop(request, 2);
    ck_assert(head.cancel.keep_set);
    ck_assert_uint_eq(head.cancel.keep, 2);
    end();
}
END_TEST

static const struct {
    size_t n;
    uint32_t id;
} insane[] = {
    {9, 21     }, /* over max_tokens */
    {1, N_VOCAB},
};

START_TEST(tokens_that_cannot_be_end_the_request)
{
    uint32_t ids[9];
    begin(60000);
    send_started(1);
    for (size_t i = 0; i < ARRAY_LEN(ids); i++)
        ids[i] = insane[_i].id;
    send_tokens(1, 0, insane[_i].n, ids);
    ck_assert_uint_eq(got.n, 0);
    ck_assert_uint_eq(got.finished, 1);
    ck_assert_int_eq(got.end.fault, FAULT_INTERNAL);
    ck_assert_uint_eq(head.n_cancel, 1);
    end();
}
END_TEST

int main(void)
{
    TCase *tc = tcase_create("request");
    tcase_set_timeout(tc, 60);
    tcase_add_loop_test(tc, only_the_next_token_of_this_attempt_counts, 0, ARRAY_LEN(checks));
    tcase_add_test(tc, tokens_arrive_once_and_in_order);
    tcase_add_test(tc, a_lost_head_is_followed_by_an_attempt_that_goes_on);
    tcase_add_test(tc, kinds_of_the_prompt_are_handed_on);
    tcase_add_test(tc, a_gap_ends_the_attempt);
    tcase_add_test(tc, a_finish_with_tokens_missing_is_a_gap);
    tcase_add_loop_test(tc, a_refusal_is_tried_again_or_told, 0, ARRAY_LEN(refusals));
    tcase_add_test(tc, a_refused_message_is_known_by_its_number);
    tcase_add_test(tc, without_a_pipeline_it_ends_at_the_deadline);
    tcase_add_test(tc, a_client_that_leaves_is_cancelled_and_forgotten_when_confirmed);
    tcase_add_test(tc, a_cancel_that_could_not_be_sent_is_sent_again);
    tcase_add_test(tc, a_stop_string_says_what_to_keep);
    tcase_add_loop_test(tc, tokens_that_cannot_be_end_the_request, 0, ARRAY_LEN(insane));
    return suite_run("request", tc);
}
