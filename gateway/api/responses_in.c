/* SPDX-License-Identifier: MIT */
/*
 * See responses_in.h. Input is a string or a list of items. Calls of functions are items of their
 * own here and belong to the assistant's message before them in templates.
 */
#include "gateway/api/responses_in.h"

#include <errno.h>
#include <string.h>

#include "gateway/bytebuf.h"

struct place {
    char name[64];
};

static struct place item_place(size_t i)
{
    struct place p;
    (void)snprintf(p.name, sizeof(p.name), "input[%zu]", i);
    return p;
}

static int bad(struct fault *fault, const struct place *at, const char *member, const char *what)
{
    char name[128];
    (void)snprintf(name, sizeof(name), "%s%s", at->name, member);
    return fault_set(fault, FAULT_REQUEST, name, "'%s' must be %s.", name, what);
}

static int refuse_type(struct fault *fault, const struct place *at, const char *type)
{
    return fault_set(fault, FAULT_FIELD, at->name,
                     "'%s' has the type '%.32s', which is not taken here.", at->name, type);
}

static const char *string_of(const json_t *object, const char *name)
{
    return json_string_value(json_object_get(object, name));
}

/* ---- text -------------------------------------------------------------------------------- */

static int part_from(const json_t *part, const struct place *at, struct fault *fault,
                     struct bytebuf *out)
{
    static const char *const types[][2] = {
        {"input_text",  "text"   },
        {"output_text", "text"   },
        {"text",        "text"   },
        {"refusal",     "refusal"},
    };
    const char *type = string_of(part, "type");
    if (!type) return bad(fault, at, ".content", "a string or parts with a type");
    for (size_t i = 0; i < ARRAY_LEN(types); i++) {
        if (strcmp(type, types[i][0]) != 0) continue;
        const json_t *text = json_object_get(part, types[i][1]);
        if (!json_is_string(text)) return bad(fault, at, ".content", "parts with a text");
        bytebuf_add(out, json_string_value(text), json_string_length(text));
        return 0;
    }
    return refuse_type(fault, at, type);
}

/* A string, or an array of parts that are text. */
static int text_from(const json_t *v, const struct place *at, const char *member,
                     struct fault *fault, json_t **ret)
{
    CLEANUP(bytebuf_fini) struct bytebuf text = {0};
    if (json_is_string(v)) {
        *ret = json_incref((json_t *)(uintptr_t)v);
        return 0;
    }
    if (!json_is_array(v)) return bad(fault, at, member, "a string or an array of parts");
    for (size_t i = 0; i < json_array_size(v); i++) {
        int r = part_from(json_array_get(v, i), at, fault, &text);
        if (r < 0) return r;
    }
    *ret = json_stringn(bytebuf_bytes(&text), bytebuf_size(&text));
    return 0;
}

/* ---- items ------------------------------------------------------------------------------- */

static int take_message(const json_t *item, const struct place *at, struct fault *fault,
                        json_t *messages)
{
    static const char *const roles[] = {"user", "assistant", "system", "developer"};
    const char *role = string_of(item, "role");
    bool known = false;
    json_t *text = NULL;
    for (size_t i = 0; role && i < ARRAY_LEN(roles); i++)
        known |= strcmp(role, roles[i]) == 0;
    if (!known) return bad(fault, at, ".role", "one of user, assistant, system, developer");
    int r = text_from(json_object_get(item, "content"), at, ".content", fault, &text);
    if (r < 0) return r;
    return json_array_append_new(messages, json_pack("{s:s,s:o}", "role", role, "content", text));
}

/* The assistant's message that a call belongs to: the last one, or a new one. */
static json_t *caller_of(json_t *messages)
{
    json_t *last = json_array_get(messages, json_array_size(messages) - 1);
    const char *role = string_of(last, "role");
    if (role && strcmp(role, "assistant") == 0) {
        if (!json_object_get(last, "tool_calls"))
            (void)json_object_set_new(last, "tool_calls", json_array());
        return last;
    }
    json_t *m = json_pack("{s:s,s:s,s:[]}", "role", "assistant", "content", "", "tool_calls");
    (void)json_array_append_new(messages, m);
    return m;
}

static int take_call(const json_t *item, const struct place *at, struct fault *fault,
                     json_t *messages)
{
    const char *id = string_of(item, "call_id"), *name = string_of(item, "name");
    const json_t *arguments = json_object_get(item, "arguments");
    if (!id) return bad(fault, at, ".call_id", "a string");
    if (!name || !*name) return bad(fault, at, ".name", "a string that is not empty");
    if (!json_is_string(arguments)) return bad(fault, at, ".arguments", "a string");
    json_t *call = json_pack("{s:s,s:s,s:{s:s,s:O}}", "id", id, "type", "function", "function",
                             "name", name, "arguments", arguments);
    return json_array_append_new(json_object_get(caller_of(messages), "tool_calls"), call);
}

static int take_output(const json_t *item, const struct place *at, struct fault *fault,
                       json_t *messages)
{
    const char *id = string_of(item, "call_id");
    json_t *text = NULL;
    if (!id) return bad(fault, at, ".call_id", "a string");
    int r = text_from(json_object_get(item, "output"), at, ".output", fault, &text);
    if (r < 0) return r;
    return json_array_append_new(
        messages, json_pack("{s:s,s:s,s:o}", "role", "tool", "tool_call_id", id, "content", text));
}

/* What the model thought is shown to it by no template; clients send it back all the same. */
static int take_reasoning(const json_t *item, const struct place *at, struct fault *fault,
                          json_t *messages)
{
    (void)item;
    (void)at;
    (void)fault;
    (void)messages;
    return 0;
}

static int take_item(const json_t *item, size_t i, struct fault *fault, json_t *messages)
{
    static const struct {
        const char *type;
        int (*take)(const json_t *item, const struct place *at, struct fault *fault,
                    json_t *messages);
    } types[] = {
        {"message",              take_message  },
        {"function_call",        take_call     },
        {"function_call_output", take_output   },
        {"reasoning",            take_reasoning},
    };
    struct place at = item_place(i);
    const json_t *said = json_object_get(item, "type");
    const char *type = said ? json_string_value(said) : "message";
    if (!json_is_object(item)) return bad(fault, &at, "", "an object");
    if (!type) return bad(fault, &at, ".type", "a string");
    for (size_t k = 0; k < ARRAY_LEN(types); k++)
        if (strcmp(type, types[k].type) == 0) return types[k].take(item, &at, fault, messages);
    return refuse_type(fault, &at, type);
}

static int messages_from(const struct ask *ask, struct fault *fault, json_t *messages)
{
    const json_t *input = ask->prompt;
    if (ask->system && json_string_length(ask->system) > 0)
        (void)json_array_append_new(
            messages, json_pack("{s:s,s:O}", "role", "system", "content", ask->system));
    if (json_is_string(input))
        return json_array_append_new(messages,
                                     json_pack("{s:s,s:O}", "role", "user", "content", input));
    if (!json_is_array(input)) return field_wrong(fault, "input", "a string or an array", input);
    for (size_t i = 0; i < json_array_size(input); i++) {
        int r = take_item(json_array_get(input, i), i, fault, messages);
        if (r < 0) return r;
    }
    if (json_array_size(messages) == 0)
        return fault_set(fault, FAULT_REQUEST, "input", "'input' must not be empty.");
    return 0;
}

/* ---- tools ------------------------------------------------------------------------------- */

static int tool_from(const json_t *tool, size_t i, struct fault *fault, json_t *tools)
{
    static const char *const members[] = {"name", "description", "parameters"};
    struct place at;
    (void)snprintf(at.name, sizeof(at.name), "tools[%zu]", i);
    const char *type = string_of(tool, "type"), *name = string_of(tool, "name");
    if (!type) return bad(fault, &at, ".type", "a string");
    if (strcmp(type, "function") != 0) return refuse_type(fault, &at, type);
    if (!name || !*name) return bad(fault, &at, ".name", "a string that is not empty");
    json_t *function = json_object();
    for (size_t k = 0; k < ARRAY_LEN(members); k++) {
        json_t *v = json_object_get(tool, members[k]);
        if (v && !json_is_null(v)) (void)json_object_set(function, members[k], v);
    }
    return json_array_append_new(tools,
                                 json_pack("{s:s,s:o}", "type", "function", "function", function));
}

int responses_in_from(const struct ask *ask, struct fault *fault, struct responses_in *ret)
{
    CLEANUP(responses_in_fini)
    struct responses_in in = {.messages = json_array(), .tools = json_array()};
    int r = messages_from(ask, fault, in.messages);
    for (size_t i = 0; r == 0 && i < json_array_size(ask->tools); i++)
        r = tool_from(json_array_get(ask->tools, i), i, fault, in.tools);
    if (r < 0) return r;
    *ret = in;
    in = (struct responses_in){0};
    return 0;
}

void responses_in_fini(struct responses_in *in)
{
    json_decref(in->messages);
    json_decref(in->tools);
    *in = (struct responses_in){0};
}
