/* SPDX-License-Identifier: MIT */
/*
 * What a client is told: statuses and codes are those of the table of refusals that OpenAI's
 * clients act on (400 without, 503 with a Retry-After); the shape is that of OpenAI's API
 * reference.
 */
#include <check.h>
#include <errno.h>
#include <string.h>

#include "gateway/api/errors.h"
#include "tests/suite.h"

static const struct {
    enum fault_kind kind;
    unsigned status;
    const char *code;
    unsigned retry_after_s;
} faults[] = {
    {FAULT_REQUEST,    400, "invalid_request",         0 },
    {FAULT_CONTEXT,    400, "context_length_exceeded", 0 },
    {FAULT_ROUTE,      404, "not_found",               0 },
    {FAULT_MODEL,      404, "model_not_found",         0 },
    {FAULT_METHOD,     405, "method_not_allowed",      0 },
    {FAULT_TOO_LARGE,  413, "request_too_large",       0 },
    {FAULT_QUEUE_FULL, 503, "queue_full",              2 },
    {FAULT_POOL_FULL,  503, "kv_pool_full",            10},
    {FAULT_LOADING,    503, "loading",                 2 },
    {FAULT_DRAINING,   503, "draining",                2 },
    {FAULT_STAGE_LOST, 503, "stage_lost",              2 },
    {FAULT_INTERNAL,   500, "internal_error",          0 },
};

START_TEST(each_fault_has_its_status_and_code)
{
    struct fault f;
    ck_assert_int_eq(fault_set(&f, faults[_i].kind, NULL, "A sentence."), -EINVAL);
    ck_assert_uint_eq(fault_row(f.kind)->status[FAULT_OPENAI], faults[_i].status);
    json_t *j = fault_json(&f);
    const json_t *error = json_object_get(j, "error");
    ck_assert_str_eq(json_string_value(json_object_get(error, "code")), faults[_i].code);
    ck_assert_str_eq(json_string_value(json_object_get(error, "message")), "A sentence.");
    ck_assert(json_is_string(json_object_get(error, "type")));
    ck_assert(json_is_null(json_object_get(error, "param")));
    json_int_t retry = json_integer_value(json_object_get(error, "retry_after"));
    ck_assert_int_eq(retry, faults[_i].retry_after_s);
    json_decref(j);
}
END_TEST

/* Anthropic's statuses and types, from its reference of errors. */
static const struct {
    enum fault_kind kind;
    unsigned status;
    const char *type;
} anthropic[] = {
    {FAULT_REQUEST,    400, "invalid_request_error"},
    {FAULT_CONTEXT,    400, "invalid_request_error"},
    {FAULT_KEY,        401, "authentication_error" },
    {FAULT_HOST,       403, "permission_error"     },
    {FAULT_MODEL,      404, "not_found_error"      },
    {FAULT_TOO_LARGE,  413, "request_too_large"    },
    {FAULT_KEY_BUSY,   429, "rate_limit_error"     },
    {FAULT_INTERNAL,   500, "api_error"            },
    {FAULT_QUEUE_FULL, 529, "overloaded_error"     },
    {FAULT_POOL_FULL,  503, "overloaded_error"     },
    {FAULT_STAGE_LOST, 529, "overloaded_error"     },
};

START_TEST(each_fault_has_anthropics_shape)
{
    struct fault f;
    (void)fault_set(&f, anthropic[_i].kind, "x", "A sentence.");
    ck_assert_uint_eq(fault_row(f.kind)->status[FAULT_ANTHROPIC], anthropic[_i].status);
    json_t *j = fault_json_anthropic(&f, "req_1");
    const json_t *error = json_object_get(j, "error");
    ck_assert_str_eq(json_string_value(json_object_get(j, "type")), "error");
    ck_assert_str_eq(json_string_value(json_object_get(j, "request_id")), "req_1");
    ck_assert_str_eq(json_string_value(json_object_get(error, "type")), anthropic[_i].type);
    ck_assert_str_eq(json_string_value(json_object_get(error, "message")), "A sentence.");
    json_decref(j);
}
END_TEST

static const struct {
    Cistern__Code code;
    enum fault_kind kind;
} codes[] = {
    {CISTERN__CODE__POOL_FULL,  FAULT_POOL_FULL },
    {CISTERN__CODE__NEVER_FITS, FAULT_CONTEXT   },
    {CISTERN__CODE__QUEUE_FULL, FAULT_QUEUE_FULL},
    {CISTERN__CODE__STAGE_LOST, FAULT_STAGE_LOST},
    {CISTERN__CODE__NOT_READY,  FAULT_LOADING   },
    {CISTERN__CODE__DRAINING,   FAULT_DRAINING  },
    {CISTERN__CODE__MALFORMED,  FAULT_INTERNAL  },
    {(Cistern__Code)9999,       FAULT_INTERNAL  },
};

START_TEST(each_code_of_a_head_becomes_a_fault)
{
    ck_assert_int_eq(fault_from_code(codes[_i].code), codes[_i].kind);
}
END_TEST

START_TEST(a_prompt_over_the_context_names_both_numbers)
{
    struct fault f;
    (void)fault_context(&f, "messages", 9000, 8192);
    json_t *j = fault_json(&f);
    const json_t *error = json_object_get(j, "error");
    ck_assert_int_eq(json_integer_value(json_object_get(error, "n_prompt_tokens")), 9000);
    ck_assert_int_eq(json_integer_value(json_object_get(error, "n_ctx")), 8192);
    ck_assert_str_eq(json_string_value(json_object_get(error, "param")), "messages");
    json_decref(j);
    /* Anthropic's own sentence, which its clients look for. */
    j = fault_json_anthropic(&f, "req");
    ck_assert_str_eq(json_string_value(json_object_get(json_object_get(j, "error"), "message")),
                     "prompt is too long: 9000 tokens > 8191 maximum");
    json_decref(j);
}
END_TEST

START_TEST(a_sentence_cut_inside_a_character_is_still_json)
{
    struct fault f;
    (void)fault_set(&f, FAULT_REQUEST, NULL, "cut \xc3");
    json_t *j = fault_json(&f);
    const json_t *message = json_object_get(json_object_get(j, "error"), "message");
    ck_assert_str_eq(json_string_value(message), "cut ?");
    json_decref(j);
}
END_TEST

int main(void)
{
    TCase *tc = tcase_create("errors");
    tcase_add_loop_test(tc, each_fault_has_anthropics_shape, 0, ARRAY_LEN(anthropic));
    tcase_add_loop_test(tc, each_fault_has_its_status_and_code, 0, ARRAY_LEN(faults));
    tcase_add_loop_test(tc, each_code_of_a_head_becomes_a_fault, 0, ARRAY_LEN(codes));
    tcase_add_test(tc, a_prompt_over_the_context_names_both_numbers);
    tcase_add_test(tc, a_sentence_cut_inside_a_character_is_still_json);
    return suite_run("errors", tc);
}
