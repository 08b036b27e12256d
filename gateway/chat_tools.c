/* SPDX-License-Identifier: MIT */
/*
 * See chat_tools.h. Called by chat.c for each chat; keeps nothing. What it writes out becomes the
 * content of messages, so it can hold no control tokens.
 */
#include "gateway/chat_tools.h"

#include <stdbool.h>
#include <string.h>

enum { TOOLS_MAX = 1024 /* agents send some dozens */ };

static int bad(struct fault *fault, const char *where, size_t i, const char *member,
               const char *what)
{
    char name[128];
    (void)snprintf(name, sizeof(name), "%.64s[%zu]%s", where, i, member);
    return fault_set(fault, FAULT_REQUEST, name, "'%s' must be %s.", name, what);
}

static bool is_word(const json_t *v) { return json_is_string(v) && json_string_length(v) > 0; }

static int tool_check(const json_t *tool, size_t i, struct fault *fault)
{
    const json_t *type = json_object_get(tool, "type");
    const json_t *function = json_object_get(tool, "function");
    const json_t *parameters = json_object_get(function, "parameters");
    const json_t *description = json_object_get(function, "description");
    if (!json_is_object(tool)) return bad(fault, "tools", i, "", "an object");
    if (!is_word(type)) return bad(fault, "tools", i, ".type", "a string");
    if (strcmp(json_string_value(type), "function") != 0)
        return bad(fault, "tools", i, ".type", "'function' on this server");
    if (!json_is_object(function)) return bad(fault, "tools", i, ".function", "an object");
    if (!is_word(json_object_get(function, "name")))
        return bad(fault, "tools", i, ".function.name", "a string that is not empty");
    if (parameters && !json_is_null(parameters) && !json_is_object(parameters))
        return bad(fault, "tools", i, ".function.parameters", "an object");
    if (description && !json_is_null(description) && !json_is_string(description))
        return bad(fault, "tools", i, ".function.description", "a string");
    return 0;
}

int tools_check(const json_t *tools, struct fault *fault)
{
    if (json_array_size(tools) > TOOLS_MAX)
        return fault_set(fault, FAULT_REQUEST, "tools", "'tools' must have at most %d members.",
                         TOOLS_MAX);
    for (size_t i = 0; i < json_array_size(tools); i++) {
        int r = tool_check(json_array_get(tools, i), i, fault);
        if (r < 0) return r;
    }
    return 0;
}

/* A model may have written arguments that are no JSON; they are shown to it as it wrote them. */
static json_t *arguments_from(const json_t *arguments)
{
    if (!json_is_string(arguments)) return json_deep_copy(arguments);
    json_t *object = json_loadb(json_string_value(arguments), json_string_length(arguments),
                                JSON_ALLOW_NUL, NULL);
    if (json_is_object(object)) return object;
    json_decref(object);
    return json_stringn(json_string_value(arguments), json_string_length(arguments));
}

static int call_from(const json_t *call, size_t message, size_t i, struct fault *fault,
                     json_t **ret)
{
    char where[64];
    (void)snprintf(where, sizeof(where), "messages[%zu].tool_calls", message);
    const json_t *function = json_object_get(call, "function");
    const json_t *id = json_object_get(call, "id");
    const json_t *arguments = json_object_get(function, "arguments");
    if (!json_is_object(function)) return bad(fault, where, i, ".function", "an object");
    if (!is_word(json_object_get(function, "name")))
        return bad(fault, where, i, ".function.name", "a string that is not empty");
    if (id && !json_is_null(id) && !json_is_string(id))
        return bad(fault, where, i, ".id", "a string");
    if (arguments && !json_is_string(arguments) && !json_is_object(arguments))
        return bad(fault, where, i, ".function.arguments", "a string");
    json_t *parsed = arguments ? arguments_from(arguments) : json_object();
    *ret = json_pack("{s:s,s:s,s:{s:O,s:o}}", "id", json_is_string(id) ? json_string_value(id) : "",
                     "type", "function", "function", "name", json_object_get(function, "name"),
                     "arguments", parsed);
    return 0;
}

int tool_calls_from(const json_t *calls, size_t i, struct fault *fault, json_t **ret)
{
    json_t *list = json_array();
    if (!json_is_array(calls)) {
        json_decref(list);
        return bad(fault, "messages", i, ".tool_calls", "an array");
    }
    for (size_t k = 0; k < json_array_size(calls); k++) {
        json_t *call = NULL;
        int r = call_from(json_array_get(calls, k), i, k, fault, &call);
        if (r < 0) {
            json_decref(list);
            return r;
        }
        (void)json_array_append_new(list, call);
    }
    *ret = list;
    return 0;
}

void tool_arguments_write_out(json_t *messages)
{
    for (size_t i = 0; i < json_array_size(messages); i++) {
        json_t *calls = json_object_get(json_array_get(messages, i), "tool_calls");
        for (size_t k = 0; k < json_array_size(calls); k++) {
            json_t *function = json_object_get(json_array_get(calls, k), "function");
            const json_t *arguments = json_object_get(function, "arguments");
            if (json_is_string(arguments)) continue;
            char *text = json_dumps(arguments, 0);
            if (!text) abort();
            (void)json_object_set_new(function, "arguments", json_string(text));
            free(text);
        }
    }
}

/* ---- as text ----------------------------------------------------------------------------- */

static void add_json(struct bytebuf *text, const json_t *v)
{
    char *s = json_dumps(v, JSON_COMPACT);
    if (!s) abort();
    bytebuf_addf(text, "%s\n", s);
    free(s);
}

void content_set(json_t *message, const struct bytebuf *text)
{
    (void)json_object_set_new(message, "content",
                              json_stringn(bytebuf_bytes(text), bytebuf_size(text)));
}

void content_add(struct bytebuf *text, const json_t *message)
{
    const json_t *content = json_object_get(message, "content");
    bytebuf_add(text, json_string_value(content), json_string_length(content));
}

/* The form is Hermes', which models meet most often in training. */
static void define(json_t *messages, const json_t *tools)
{
    struct bytebuf text = {0};
    json_t *first = json_array_get(messages, 0);
    const char *role = json_string_value(json_object_get(first, "role"));
    bool has_system = role && strcmp(role, "system") == 0;
    if (has_system) {
        content_add(&text, first);
        bytebuf_addf(&text, "\n\n");
    }
    bytebuf_addf(&text, "You may call these functions:\n<tools>\n");
    for (size_t i = 0; i < json_array_size(tools); i++)
        add_json(&text, json_array_get(tools, i));
    bytebuf_addf(&text, "</tools>\nTo call one, write its name and arguments as JSON:\n<tool_call>"
                        "\n{\"name\": ..., \"arguments\": {...}}\n</tool_call>");
    if (!has_system) {
        first = json_pack("{s:s}", "role", "system");
        (void)json_array_insert_new(messages, 0, first);
    }
    content_set(first, &text);
    bytebuf_fini(&text);
}

static bool is_result(const json_t *message)
{
    const char *role = json_string_value(json_object_get(message, "role"));
    return role && strcmp(role, "tool") == 0;
}

static void write_message(json_t *message)
{
    struct bytebuf text = {0};
    const json_t *calls = json_object_get(message, "tool_calls");
    bool result = is_result(message);
    if (!result && json_array_size(calls) == 0) return;
    if (result) bytebuf_addf(&text, "<tool_response>\n");
    content_add(&text, message);
    if (result) bytebuf_addf(&text, "\n</tool_response>");
    for (size_t i = 0; i < json_array_size(calls); i++) {
        bytebuf_addf(&text, "%s<tool_call>\n", bytebuf_size(&text) ? "\n" : "");
        const json_t *function = json_object_get(json_array_get(calls, i), "function");
        add_json(&text, function);
        bytebuf_addf(&text, "</tool_call>");
    }
    if (result) (void)json_object_set_new(message, "role", json_string("user"));
    (void)json_object_del(message, "tool_calls");
    content_set(message, &text);
    bytebuf_fini(&text);
}

/* Results of one turn are one message: many templates take users and assistants in turns alone. */
static void join_results(json_t *messages, size_t i)
{
    json_t *m = json_array_get(messages, i), *next = json_array_get(messages, i + 1);
    struct bytebuf text = {0};
    content_add(&text, m);
    bytebuf_addf(&text, "\n");
    content_add(&text, next);
    content_set(m, &text);
    bytebuf_fini(&text);
    (void)json_array_remove(messages, i + 1);
}

void tools_write_out(json_t *messages, const json_t *tools)
{
    for (size_t i = 0; i < json_array_size(messages); i++) {
        json_t *m = json_array_get(messages, i);
        bool result = is_result(m);
        write_message(m);
        while (result && is_result(json_array_get(messages, i + 1))) {
            write_message(json_array_get(messages, i + 1));
            join_results(messages, i);
        }
    }
    if (json_array_size(tools) > 0) define(messages, tools);
}
