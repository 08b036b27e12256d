/* SPDX-License-Identifier: MIT */
/*
 * The fields of a chat completions request. Names, types and ranges are those of OpenAI's API
 * reference; top_k and min_p those of llama.cpp's server.
 */
#include <check.h>
#include <errno.h>
#include <string.h>

#include "gateway/api/fields.h"
#include "tests/suite.h"

#define M "\"messages\":[{\"role\":\"user\",\"content\":\"a\"}]"

/* param: what the refusal names; part: a piece of its sentence. */
static const struct {
    const char *body, *param, *part;
    enum fault_kind kind;
} refused[] = {
    {"",                                                       "",                             "not valid JSON",                  FAULT_REQUEST},
    {"{",                                                      "",                             "at byte 1",                       FAULT_REQUEST},
    {"{" M "} x",                                              "",                             "not valid JSON",                  FAULT_REQUEST},
    {"[]",                                                     "",                             "must be an object, not an array", FAULT_REQUEST},
    {"3",                                                      "",                             "not valid JSON",                  FAULT_REQUEST},
    {"{\"a\":\"\xff\"}",                                       "",                             "not valid JSON",                  FAULT_REQUEST},
    {"{}",                                                     "messages",                     "missing",                         FAULT_REQUEST},
    {"{\"messages\":null}",                                    "messages",                     "missing",                         FAULT_REQUEST},
    {"{\"messages\":\"x\"}",                                   "messages",                     "an array, not a string",          FAULT_REQUEST},
    {"{\"messages\":[]}",                                      "messages",                     "must not be empty",               FAULT_REQUEST},
    {"{" M ",\"stream\":1}",                                   "stream",                       "a boolean, not an integer",       FAULT_REQUEST},
    {"{" M ",\"stream_options\":[]}",                          "stream_options",               "an object",                       FAULT_REQUEST},
    {"{" M ",\"stream_options\":{\"include_usage\":\"yes\"}}", "stream_options.include_usage",
     "a boolean",                                                                                                                 FAULT_REQUEST},
    {"{" M ",\"max_tokens\":0}",                               "max_tokens",                   "between 1 and",                   FAULT_REQUEST},
    {"{" M ",\"max_tokens\":-1}",                              "max_tokens",                   "between 1 and",                   FAULT_REQUEST},
    {"{" M ",\"max_tokens\":1.5}",                             "max_tokens",                   "an integer, not a number",        FAULT_REQUEST},
    {"{" M ",\"max_tokens\":\"5\"}",                           "max_tokens",                   "an integer, not a string",        FAULT_REQUEST},
    {"{" M ",\"max_tokens\":9223372036854775807}",             "max_tokens",                   "between",                         FAULT_REQUEST},
    {"{" M ",\"max_tokens\":99999999999999999999}",            "",                             "not valid JSON",                  FAULT_REQUEST},
    {"{" M ",\"max_completion_tokens\":true}",                 "max_completion_tokens",        "an integer",
     FAULT_REQUEST                                                                                                                             },
    {"{" M ",\"temperature\":2.1}",                            "temperature",                  "between 0 and 2",                 FAULT_REQUEST},
    {"{" M ",\"temperature\":-0.1}",                           "temperature",                  "between 0 and 2",                 FAULT_REQUEST},
    {"{" M ",\"temperature\":\"hot\"}",                        "temperature",                  "a number",                        FAULT_REQUEST},
    {"{" M ",\"top_p\":1.01}",                                 "top_p",                        "between 0 and 1",                 FAULT_REQUEST},
    {"{" M ",\"min_p\":-1}",                                   "min_p",                        "between 0 and 1",                 FAULT_REQUEST},
    {"{" M ",\"top_k\":-1}",                                   "top_k",                        "between 0 and",                   FAULT_REQUEST},
    {"{" M ",\"n\":9}",                                        "n",                            "between 1 and 8",                 FAULT_REQUEST},
    {"{" M ",\"n\":0}",                                        "n",                            "between 1 and 8",                 FAULT_REQUEST},
    {"{" M ",\"model\":7}",                                    "model",                        "a string",                        FAULT_REQUEST},
    {"{" M ",\"tool_choice\":\"required\"}",                   "tool_choice",                  "auto or none",                    FAULT_FIELD  },
    {"{" M ",\"presence_penalty\":2.5}",                       "presence_penalty",             "between -2 and 2",                FAULT_REQUEST},
    {"{" M ",\"frequency_penalty\":-2.1}",                     "frequency_penalty",            "between -2 and 2",                FAULT_REQUEST},
    {"{" M ",\"repeat_penalty\":0}",                           "repeat_penalty",               "between 0.1 and 10",              FAULT_REQUEST},
    {"{" M ",\"repeat_last_n\":-2}",                           "repeat_last_n",                "between -1 and",                  FAULT_REQUEST},
    {"{" M ",\"logit_bias\":7}",                               "logit_bias",                   "an object or an array",           FAULT_REQUEST},
    {"{" M ",\"logprobs\":1}",                                 "logprobs",                     "a boolean",                       FAULT_REQUEST},
    {"{" M ",\"logprobs\":true,\"top_logprobs\":21}",          "top_logprobs",                 "between 0 and 20",
     FAULT_REQUEST                                                                                                                             },
    {"{" M ",\"top_logprobs\":2}",                             "top_logprobs",                 "needs 'logprobs'",                FAULT_REQUEST},
    {"{" M ",\"min_tokens\":-1}",                              "min_tokens",                   "between 0 and",                   FAULT_REQUEST},
    {"{" M ",\"seed\":1.5}",                                   "seed",                         "an integer",                      FAULT_REQUEST},
    {"{" M ",\"stop\":\"\"}",                                  "stop",                         "empty",                           FAULT_REQUEST},
    {"{" M ",\"stop\":[\"a\",\"\"]}",                          "stop[1]",                      "empty",                           FAULT_REQUEST},
    {"{" M ",\"stop\":[1]}",                                   "stop[0]",                      "a string",                        FAULT_REQUEST},
    {"{" M ",\"stop\":{}}",                                    "stop",                         "a string or an array",            FAULT_REQUEST},
    {"{" M ",\"stop\":[\"a\",\"a\",\"a\",\"a\",\"a\",\"a\",\"a\",\"a\",\"a\",\"a\",\"a\",\"a\","
     "\"a\",\"a\",\"a\",\"a\",\"a\"]}",                   "stop",                         "at most 16",                      FAULT_REQUEST},
    {"{" M ",\"functions\":[{}]}",                             "functions",                    "not supported",                   FAULT_FIELD  },
    {"{" M ",\"tools\":{}}",                                   "tools",                        "an array",                        FAULT_REQUEST},
    {"{" M ",\"response_format\":{\"type\":\"json_object\"}}", "response_format.type",
     "must be \"text\"",                                                                                                          FAULT_FIELD  },
};

START_TEST(a_wrong_field_is_refused_by_name)
{
    struct fault fault;
    struct ask ask = {.max_tokens = 77};
    const char *body = refused[_i].body;
    ck_assert_int_eq(ask_parse(API_CHAT, body, strlen(body), &fault, &ask), -EINVAL);
    ck_assert_str_eq(fault.param, refused[_i].param);
    ck_assert_msg(strstr(fault.text, refused[_i].part), "'%s' does not say '%s'", fault.text,
                  refused[_i].part);
    ck_assert_int_eq(fault.kind, refused[_i].kind);
    ck_assert_uint_eq(ask.max_tokens, 77); /* untouched */
}
END_TEST

static struct ask parse(const char *body)
{
    struct fault fault = {.text = ""};
    struct ask ask;
    int r = ask_parse(API_CHAT, body, strlen(body), &fault, &ask);
    ck_assert_msg(r == 0, "%s: %s", body, fault.text);
    return ask;
}

START_TEST(what_is_not_said_has_a_preset)
{
    struct ask a = parse("{" M "}");
    ck_assert(!a.stream && !a.include_usage && !a.seeded);
    ck_assert_uint_eq(a.max_tokens, 0);
    ck_assert_uint_eq(a.stop.n, 0);
    ck_assert_uint_eq(a.top_k, 0);
    ck_assert(a.temperature == 1 && a.top_p == 1 && a.min_p == 0);
    ck_assert_uint_eq(json_array_size(a.messages), 1);
    ask_fini(&a);
}
END_TEST

START_TEST(null_and_unknown_fields_are_ignored)
{
    struct ask a =
        parse("{" M ",\"temperature\":null,\"stop\":null,\"seed\":null,\"max_tokens\":null,"
              "\"stream_options\":null,\"tools\":null,\"user\":\"u\",\"metadata\":{\"a\":1},"
              "\"store\":true,\"model\":\"m\",\"response_format\":null,\"tool_choice\":\"auto\"}");
    ck_assert(a.temperature == 1 && !a.seeded && a.stop.n == 0 && a.max_tokens == 0);
    ask_fini(&a);
}
END_TEST

START_TEST(every_field_arrives)
{
    struct ask a =
        parse("{" M ",\"stream\":true,\"stream_options\":{\"include_usage\":true},"
              "\"max_tokens\":12,\"temperature\":0,\"top_p\":0.25,\"min_p\":0.5,\"top_k\":40,"
              "\"seed\":-3,\"stop\":[\"a\",\"bc\"],\"n\":3,\"logprobs\":false,\"tools\":[],"
              "\"response_format\":{\"type\":\"text\"}}");
    ck_assert(a.stream && a.include_usage && a.seeded);
    ck_assert_uint_eq(a.max_tokens, 12);
    ck_assert(a.temperature == 0 && a.top_p == 0.25f && a.min_p == 0.5f);
    ck_assert_uint_eq(a.top_k, 40);
    ck_assert_uint_eq(a.n, 3);
    ck_assert_uint_eq(a.seed, (uint64_t)-3);
    ck_assert_uint_eq(a.stop.n, 2);
    ck_assert_str_eq(a.stop.at[1], "bc");
    ask_fini(&a);
    a = parse("{" M ",\"stop\":\"x\",\"max_completion_tokens\":5,\"max_tokens\":9}");
    ck_assert_uint_eq(a.stop.n, 1);
    ck_assert_uint_eq(a.max_tokens, 5); /* the name that OpenAI keeps wins over the old one */
    ask_fini(&a);
}
END_TEST

START_TEST(deep_nesting_is_refused_not_followed)
{
    enum { DEPTH = 100000 };
    char *body = malloc(DEPTH + 1);
    memset(body, '[', DEPTH);
    body[DEPTH] = 0;
    struct fault fault;
    struct ask ask;
    ck_assert_int_eq(ask_parse(API_CHAT, body, DEPTH, &fault, &ask), -EINVAL);
    free(body);
}
END_TEST

int main(void)
{
    TCase *tc = tcase_create("fields");
    tcase_add_loop_test(tc, a_wrong_field_is_refused_by_name, 0, ARRAY_LEN(refused));
    tcase_add_test(tc, what_is_not_said_has_a_preset);
    tcase_add_test(tc, null_and_unknown_fields_are_ignored);
    tcase_add_test(tc, every_field_arrives);
    tcase_add_test(tc, deep_nesting_is_refused_not_followed);
    return suite_run("fields", tc);
}
