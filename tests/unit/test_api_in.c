/* SPDX-License-Identifier: MIT */
/*
 * What the bodies of Anthropic's messages and OpenAI's responses become for a template: the form of
 * messages that transformers documents for chat templates (roles, content, reasoning_content,
 * tool_calls with arguments as objects where a client sent objects, results as role "tool").
 */
#include <check.h>
#include <errno.h>
#include <string.h>

#include "gateway/api/anthropic_in.h"
#include "gateway/api/responses_in.h"
#include "gateway/chat_tools.h"
#include "tests/suite.h"

static struct ask parse(enum api_id api, const char *body)
{
    struct fault fault = {.text = ""};
    struct ask ask;
    int r = ask_parse(api, body, strlen(body), &fault, &ask);
    ck_assert_msg(r == 0, "%s: %s", body, fault.text);
    return ask;
}

static void check_json(const json_t *is, const char *expected, const char *body)
{
    json_t *right = json_loads(expected, JSON_DECODE_ANY, NULL);
    char *text = json_dumps(is, JSON_COMPACT | JSON_ENCODE_ANY);
    ck_assert_msg(right != NULL, "%s is no JSON", expected);
    ck_assert_msg(json_equal(is, right), "%s\nbecame %s\nnot    %s", body, text, expected);
    free(text);
    json_decref(right);
}

#define U(content) "{\"role\":\"user\",\"content\":" content "}"
#define A(content) "{\"role\":\"assistant\",\"content\":" content "}"
#define S(content) "{\"role\":\"system\",\"content\":" content "}"
#define CALL                                                                                       \
    "{\"id\":\"t\",\"type\":\"function\",\"function\":{\"name\":\"f\",\"arguments\":{\"a\":1}}}"

static const struct {
    const char *body, *messages, *prefill; /* prefill: NULL: none */
} messages[] = {
    {"{\"messages\":[" U("\"a\"") "]}",                                                          "[" U("\"a\"") "]",                NULL   },
    {"{\"system\":\"s\",\"messages\":[" U("\"a\"") "]}",                                         "[" S("\"s\"") "," U("\"a\"") "]", NULL   },
    {"{\"system\":\"\",\"messages\":[" U("\"a\"") "]}",                                          "[" U("\"a\"") "]",                NULL   },
    {"{\"system\":[{\"type\":\"text\",\"text\":\"s\"},{\"type\":\"text\",\"text\":\"t\"}],"
     "\"messages\":[" U(
         "[{\"type\":\"text\",\"text\":\"a\"},{\"type\":\"text\",\"text\":\"b\"}]") "]}",
     "[" S("\"st\"") "," U("\"ab\"") "]",                                                                                           NULL   },
    {"{\"messages\":[" U("[]") "]}",                                                             "[" U("\"\"") "]",                 NULL   },
 /* an agent's header changes with each request: it must not */
    {"{\"system\":\"x-anthropic-billing-header: cc_version=2.1; cc_entrypoint=cli; "
     "cch=0f3a9;"
     "\\nBe\",\"messages\":[" U("\"cch=1\"") "]}",
     "[" S("\"x-anthropic-billing-header: cc_version=2.1; cc_entrypoint=cli; "
           "cch=0;\\nBe\"") "," U("\"cch=1\"") "]",
     NULL                                                                                                                                  },
    {"{\"system\":\"x-anthropic-billing-header: a\\ncch=0f3a9\",\"messages\":[" U("\"a\"") "]}",
     "[" S("\"x-anthropic-billing-header: a\\ncch=0f3a9\"") "," U("\"a\"") "]",                                                     NULL   },
    {"{\"messages\":[" U("\"a\"") "," A(
         "[{\"type\":\"thinking\",\"thinking\":\"h\",\"signature\":\"s\"},"
         "{\"type\":\"redacted_thinking\",\"data\":\"d\"},{\"type\":"
         "\"text\",\"text\":\"x\"},"
         "{\"type\":\"tool_use\",\"id\":\"t\",\"name\":\"f\",\"input\":{"
         "\"a\":1}}]") "," U("[{\"type\":\"tool_result\",\"tool_use_id\":"
                             "\"t\",\"is_error\":true,\"content\":"
                             "[{\"type\":\"text\",\"text\":\"r\"}]},{"
                             "\"type\":\"tool_result\",\"tool_use_id\":"
                             "\"u\"},"
                             "{\"type\":\"text\",\"text\":\"b\"}]") "]}",
     "[" U("\"a\"") ",{\"role\":\"assistant\",\"content\":\"x\",\"reasoning_content\":\"h\","
                    "\"tool_calls\":[" CALL
                    "]},{\"role\":\"tool\",\"tool_call_id\":\"t\",\"content\":\"r\"},"
                    "{\"role\":\"tool\",\"tool_call_id\":\"u\",\"content\":\"\"}," U("\"b\"") "]",
     NULL                                                                                                                                  },
    {"{\"messages\":[" U("\"a\"") "," A("\"b\"") "]}",                                           "[" U("\"a\"") "]",                "\"b\""},
    {"{\"messages\":[" A("\"b\"") "]}",                                                          "[" A("\"b\"") "]",                NULL   },
};

START_TEST(a_message_becomes_those_of_templates)
{
    struct fault fault = {.text = ""};
    struct anthropic_in in;
    const char *body = messages[_i].body;
    struct ask ask = parse(API_MESSAGES, body);
    ck_assert_msg(anthropic_in_from(&ask, &fault, &in) == 0, "%s: %s", body, fault.text);
    check_json(in.messages, messages[_i].messages, body);
    ck_assert_int_eq(in.prefill != NULL, messages[_i].prefill != NULL);
    if (in.prefill) check_json(in.prefill, messages[_i].prefill, body);
    anthropic_in_fini(&in);
    ask_fini(&ask);
}
END_TEST

static const struct {
    const char *body, *messages;
} items[] = {
    {"{\"input\":\"a\"}",                                                                          "[" U("\"a\"") "]"                                                                },
    {"{\"input\":\"a\",\"instructions\":\"i\"}",                                                   "[" S("\"i\"") "," U("\"a\"") "]"                                                 },
    {"{\"input\":[{\"role\":\"developer\",\"content\":\"d\"},{\"type\":\"message\",\"role\":"
     "\"user\",\"content\":[{\"type\":\"input_text\",\"text\":\"a\"},{\"type\":\"input_text\","
     "\"text\":\"b\"}]}]}",                                                                   "[{\"role\":\"developer\",\"content\":\"d\"}," U("\"ab\"") "]"                    },
    {"{\"input\":[" U(
         "\"a\"") ",{\"type\":\"reasoning\",\"summary\":[]},"
                  "{\"type\":\"function_call\",\"call_id\":\"t\",\"name\":\"f\",\"arguments\":\"{}"
                  "\"},"
                  "{\"type\":\"function_call\",\"call_id\":\"u\",\"name\":\"g\",\"arguments\":\"\"}"
                  ","
                  "{\"type\":\"function_call_output\",\"call_id\":\"t\",\"output\":\"r\"}]}", "[" U("\"a\"") ",{\"role\":\"assistant\",\"content\":\"\",\"tool_calls\":["
                    "{\"id\":\"t\",\"type\":\"function\",\"function\":{\"name\":\"f\","
                    "\"arguments\":\"{}\"}},"
                    "{\"id\":\"u\",\"type\":\"function\",\"function\":{\"name\":\"g\","
                    "\"arguments\":\"\"}}]},"
                    "{\"role\":\"tool\",\"tool_call_id\":\"t\",\"content\":\"r\"}]"},
};

START_TEST(items_become_messages)
{
    struct fault fault = {.text = ""};
    struct responses_in in;
    struct ask ask = parse(API_RESPONSES, items[_i].body);
    ck_assert_msg(responses_in_from(&ask, &fault, &in) == 0, "%s", fault.text);
    check_json(in.messages, items[_i].messages, items[_i].body);
    responses_in_fini(&in);
    ask_fini(&ask);
}
END_TEST

START_TEST(tools_have_one_form)
{
    struct fault fault;
    struct anthropic_in a;
    struct responses_in r;
    const char *form = "[{\"type\":\"function\",\"function\":{\"name\":\"f\",\"description\":\"d\","
                       "\"parameters\":{\"type\":\"object\"}}}]";
    struct ask ask =
        parse(API_MESSAGES,
              "{\"messages\":[" U("\"a\"") "],\"tools\":[{\"name\":\"f\","
                                           "\"description\":\"d\",\"input_schema\":{\"type\":"
                                           "\"object\"},\"cache_control\":{}}]}");
    ck_assert_int_eq(anthropic_in_from(&ask, &fault, &a), 0);
    check_json(a.tools, form, "messages");
    anthropic_in_fini(&a);
    ask_fini(&ask);
    ask = parse(API_RESPONSES, "{\"input\":\"a\",\"tools\":[{\"type\":\"function\",\"name\":\"f\","
                               "\"description\":\"d\",\"parameters\":{\"type\":\"object\"},"
                               "\"strict\":true}]}");
    ck_assert_int_eq(responses_in_from(&ask, &fault, &r), 0);
    check_json(r.tools, form, "responses");
    responses_in_fini(&r);
    ask_fini(&ask);
}
END_TEST

/* Arguments that are text of an object become one; what is no JSON stays as it was written. */
static const struct {
    const char *arguments, *becomes;
} arguments[] = {
    {"\"{\\\"a\\\":1}\"", "{\"a\":1}"      },
    {"{\"a\":1}",         "{\"a\":1}"      },
    {"\"\"",              "\"\""           },
    {"\"[1]\"",           "\"[1]\""        },
    {"\"{\\\"a\\\":\"",   "\"{\\\"a\\\":\""},
};

START_TEST(arguments_become_objects)
{
    char text[256];
    struct fault fault;
    json_t *checked = NULL;
    (void)snprintf(text, sizeof(text),
                   "[{\"id\":null,\"function\":{\"name\":\"f\",\"arguments\":%s}}]",
                   arguments[_i].arguments);
    json_t *calls = json_loads(text, 0, NULL);
    ck_assert_int_eq(tool_calls_from(calls, 3, &fault, &checked), 0);
    const json_t *function = json_object_get(json_array_get(checked, 0), "function");
    check_json(json_object_get(function, "arguments"), arguments[_i].becomes, text);
    json_decref(calls);
    json_decref(checked);
}
END_TEST

static const struct {
    const char *calls, *param;
} wrong_calls[] = {
    {"{}",                                                "messages[3].tool_calls"                 },
    {"[7]",                                               "messages[3].tool_calls[0].function"     },
    {"[{\"function\":{}}]",                               "messages[3].tool_calls[0].function.name"},
    {"[{\"function\":{\"name\":\"\"}}]",                  "messages[3].tool_calls[0].function.name"},
    {"[{\"id\":7,\"function\":{\"name\":\"f\"}}]",        "messages[3].tool_calls[0].id"           },
    {"[{\"function\":{\"name\":\"f\",\"arguments\":7}}]",
     "messages[3].tool_calls[0].function.arguments"                                                },
};

START_TEST(wrong_calls_are_named)
{
    struct fault fault;
    json_t *checked = NULL, *calls = json_loads(wrong_calls[_i].calls, 0, NULL);
    ck_assert_int_eq(tool_calls_from(calls, 3, &fault, &checked), -EINVAL);
    ck_assert_str_eq(fault.param, wrong_calls[_i].param);
    ck_assert_ptr_null(checked);
    json_decref(calls);
}
END_TEST

START_TEST(tools_written_out_keep_the_system_message)
{
    json_t *list = json_loads("[" S("\"s\"") ",{\"role\":\"assistant\",\"content\":\"x\","
                                             "\"tool_calls\":[" CALL
                                             "]},{\"role\":\"tool\",\"content\":\"r\"}]",
                              0, NULL);
    json_t *tools = json_loads("[{\"type\":\"function\",\"function\":{\"name\":\"f\"}}]", 0, NULL);
    tools_write_out(list, tools);
    ck_assert_uint_eq(json_array_size(list), 3);
    const char *system = json_string_value(json_object_get(json_array_get(list, 0), "content"));
    ck_assert(strncmp(system, "s\n\n", 3) == 0 && strstr(system, "{\"name\":\"f\"}"));
    check_json(json_array_get(list, 1),
               A("\"x\\n<tool_call>\\n{\\\"name\\\":\\\"f\\\",\\\"arguments\\\":{\\\"a\\\":1}}\\n"
                 "</tool_call>\""),
               "call");
    check_json(json_array_get(list, 2), U("\"<tool_response>\\nr\\n</tool_response>\""), "result");
    json_decref(list);
    json_decref(tools);
}
END_TEST

int main(void)
{
    TCase *tc = tcase_create("api_in");
    tcase_add_loop_test(tc, a_message_becomes_those_of_templates, 0, ARRAY_LEN(messages));
    tcase_add_loop_test(tc, items_become_messages, 0, ARRAY_LEN(items));
    tcase_add_test(tc, tools_have_one_form);
    tcase_add_loop_test(tc, arguments_become_objects, 0, ARRAY_LEN(arguments));
    tcase_add_loop_test(tc, wrong_calls_are_named, 0, ARRAY_LEN(wrong_calls));
    tcase_add_test(tc, tools_written_out_keep_the_system_message);
    return suite_run("api_in", tc);
}
