/* SPDX-License-Identifier: MIT */
/*
 * See anthropic_in.h. One of Anthropic's messages may become several: the results of tools are
 * messages of their own in templates. Text is copied as it is, but for one line that changes with
 * every request of one client and would make all that follows it new.
 */
#include "gateway/api/anthropic_in.h"

#include <errno.h>
#include <string.h>

#include "gateway/bytebuf.h"

/* Where in the body, for the sentence and the field's name. */
struct place {
    char name[96];
};

__attribute__((format(printf, 1, 2))) static struct place place_of(const char *format, ...)
{
    struct place p;
    va_list ap;
    va_start(ap, format);
    (void)vsnprintf(p.name, sizeof(p.name), format, ap);
    va_end(ap);
    return p;
}

static int bad(struct fault *fault, const struct place *at, const char *member, const char *what)
{
    struct place p = place_of("%.80s%s", at->name, member);
    return fault_set(fault, FAULT_REQUEST, p.name, "'%s' must be %s.", p.name, what);
}

static int refuse_block(struct fault *fault, const struct place *at, const char *type)
{
    return fault_set(fault, FAULT_FIELD, at->name,
                     "'%s' has the type '%.32s', which is not taken here; this model takes text.",
                     at->name, type);
}

/* ---- text -------------------------------------------------------------------------------- */

/* A line like "x-anthropic-billing-header: cc_version=2.1.1; cch=0f3a9;" begins the system prompt
 * of an agent; its last part is another one each time. */
static void add_normalised(struct bytebuf *out, const char *text, size_t n)
{
    static const char header[] = "x-anthropic-billing-header:";
    static const char mark[] = "cch=";
    const char *end = text + n;
    const char *at = memmem(text, n, header, sizeof(header) - 1);
    const char *line_end = at ? memchr(at, '\n', (size_t)(end - at)) : NULL;
    if (!line_end) line_end = end;
    const char *value = at ? memmem(at, (size_t)(line_end - at), mark, sizeof(mark) - 1) : NULL;
    if (!value) {
        bytebuf_add(out, text, n);
        return;
    }
    value += sizeof(mark) - 1;
    const char *rest = value;
    while (rest < line_end && *rest != ';' && *rest != ' ')
        rest++;
    bytebuf_add(out, text, (size_t)(value - text));
    bytebuf_addf(out, "0");
    add_normalised(out, rest, (size_t)(end - rest));
}

static int block_text(const json_t *block, const struct place *at, struct fault *fault,
                      const json_t **ret)
{
    const json_t *text = json_object_get(block, "text");
    if (!json_is_string(text)) return bad(fault, at, ".text", "a string");
    *ret = text;
    return 0;
}

static const char *block_type(const json_t *block)
{
    return json_string_value(json_object_get(block, "type"));
}

/* A string, or an array of blocks that are all text. */
static int text_from(const json_t *v, const struct place *at, struct fault *fault,
                     struct bytebuf *out)
{
    if (json_is_string(v)) {
        bytebuf_add(out, json_string_value(v), json_string_length(v));
        return 0;
    }
    if (!json_is_array(v)) return bad(fault, at, "", "a string or an array of blocks");
    for (size_t i = 0; i < json_array_size(v); i++) {
        const json_t *block = json_array_get(v, i), *text = NULL;
        struct place here = place_of("%.80s[%zu]", at->name, i);
        const char *type = block_type(block);
        if (!type) return bad(fault, &here, ".type", "a string");
        if (strcmp(type, "text") != 0) return refuse_block(fault, &here, type);
        int r = block_text(block, &here, fault, &text);
        if (r < 0) return r;
        bytebuf_add(out, json_string_value(text), json_string_length(text));
    }
    return 0;
}

static json_t *string_from(const struct bytebuf *b)
{
    return json_stringn(bytebuf_bytes(b), bytebuf_size(b));
}

static int system_from(const json_t *system, const struct place *at, struct fault *fault,
                       json_t *messages)
{
    CLEANUP(bytebuf_fini) struct bytebuf text = {0}, normal = {0};
    int r = text_from(system, at, fault, &text);
    if (r < 0 || bytebuf_size(&text) == 0) return r;
    add_normalised(&normal, bytebuf_bytes(&text), bytebuf_size(&text));
    return json_array_append_new(
        messages, json_pack("{s:s,s:o}", "role", "system", "content", string_from(&normal)));
}

/* ---- messages ---------------------------------------------------------------------------- */

/* One of Anthropic's messages on its way to those of a template. */
struct turn {
    json_t *messages; /* where they go */
    bool assistant;
    struct bytebuf text, thinking;
    json_t *calls;
};

static void turn_fini(struct turn *t)
{
    bytebuf_fini(&t->text);
    bytebuf_fini(&t->thinking);
    json_decref(t->calls);
}

/* What has come together becomes a message. */
static void turn_flush(struct turn *t)
{
    json_t *m = json_pack("{s:s,s:o}", "role", t->assistant ? "assistant" : "user", "content",
                          string_from(&t->text));
    if (bytebuf_size(&t->thinking))
        (void)json_object_set_new(m, "reasoning_content", string_from(&t->thinking));
    if (t->calls) (void)json_object_set_new(m, "tool_calls", TAKE(t->calls));
    (void)json_array_append_new(t->messages, m);
    bytebuf_fini(&t->text);
    bytebuf_fini(&t->thinking);
}

static int take_tool_use(struct turn *t, const json_t *block, const struct place *at,
                         struct fault *fault)
{
    const json_t *id = json_object_get(block, "id"), *name = json_object_get(block, "name");
    const json_t *input = json_object_get(block, "input");
    if (!t->assistant) return bad(fault, at, "", "a block that a user may send");
    if (!json_is_string(id)) return bad(fault, at, ".id", "a string");
    if (!json_is_string(name) || json_string_length(name) == 0)
        return bad(fault, at, ".name", "a string that is not empty");
    if (!json_is_object(input)) return bad(fault, at, ".input", "an object");
    if (!t->calls) t->calls = json_array();
    return json_array_append_new(t->calls,
                                 json_pack("{s:O,s:s,s:{s:O,s:O}}", "id", id, "type", "function",
                                           "function", "name", name, "arguments", input));
}

static int take_tool_result(struct turn *t, const json_t *block, const struct place *at,
                            struct fault *fault)
{
    CLEANUP(bytebuf_fini) struct bytebuf text = {0};
    const json_t *id = json_object_get(block, "tool_use_id");
    const json_t *content = json_object_get(block, "content");
    struct place here = place_of("%.80s.content", at->name);
    if (t->assistant) return bad(fault, at, "", "a block that an assistant may have written");
    if (!json_is_string(id)) return bad(fault, at, ".tool_use_id", "a string");
    int r = content && !json_is_null(content) ? text_from(content, &here, fault, &text) : 0;
    if (r < 0) return r;
    if (bytebuf_size(&t->text)) turn_flush(t);
    return json_array_append_new(t->messages,
                                 json_pack("{s:s,s:O,s:o}", "role", "tool", "tool_call_id", id,
                                           "content", string_from(&text)));
}

static int take_thinking(struct turn *t, const json_t *block, const struct place *at,
                         struct fault *fault)
{
    const json_t *thinking = json_object_get(block, "thinking");
    if (!json_is_string(thinking)) return bad(fault, at, ".thinking", "a string");
    bytebuf_add(&t->thinking, json_string_value(thinking), json_string_length(thinking));
    return 0;
}

static int take_block(struct turn *t, const json_t *block, const struct place *at,
                      struct fault *fault)
{
    const char *type = block_type(block);
    const json_t *text = NULL;
    if (!type) return bad(fault, at, ".type", "a string");
    if (strcmp(type, "text") == 0) {
        int r = block_text(block, at, fault, &text);
        if (r == 0) bytebuf_add(&t->text, json_string_value(text), json_string_length(text));
        return r;
    }
    if (strcmp(type, "tool_use") == 0) return take_tool_use(t, block, at, fault);
    if (strcmp(type, "tool_result") == 0) return take_tool_result(t, block, at, fault);
    if (strcmp(type, "thinking") == 0) return take_thinking(t, block, at, fault);
    if (strcmp(type, "redacted_thinking") == 0) return 0; /* readable to its maker alone */
    return refuse_block(fault, at, type);
}

static int take_content(struct turn *t, const json_t *content, size_t i, struct fault *fault)
{
    struct place at = place_of("messages[%zu].content", i);
    if (json_is_string(content)) {
        bytebuf_add(&t->text, json_string_value(content), json_string_length(content));
        return 0;
    }
    if (!json_is_array(content)) return bad(fault, &at, "", "a string or an array of blocks");
    for (size_t k = 0; k < json_array_size(content); k++) {
        struct place here = place_of("messages[%zu].content[%zu]", i, k);
        int r = take_block(t, json_array_get(content, k), &here, fault);
        if (r < 0) return r;
    }
    return 0;
}

static int message_from(const json_t *message, size_t i, struct fault *fault, json_t *messages)
{
    struct place at = place_of("messages[%zu]", i);
    const char *role = json_string_value(json_object_get(message, "role"));
    size_t before = json_array_size(messages);
    if (!json_is_object(message)) return bad(fault, &at, "", "an object");
    struct place content = place_of("messages[%zu].content", i);
    if (role && strcmp(role, "system") == 0)
        return system_from(json_object_get(message, "content"), &content, fault, messages);
    if (!role || (strcmp(role, "user") != 0 && strcmp(role, "assistant") != 0))
        return bad(fault, &at, ".role", "user or assistant");
    CLEANUP(turn_fini)
    struct turn t = {.messages = messages, .assistant = strcmp(role, "assistant") == 0};
    int r = take_content(&t, json_object_get(message, "content"), i, fault);
    if (r < 0) return r;
    bool something = bytebuf_size(&t.text) || bytebuf_size(&t.thinking) || t.calls;
    if (something || json_array_size(messages) == before) turn_flush(&t);
    return 0;
}

/* An answer at the end is the beginning of the one that is asked for. */
static void take_prefill(struct anthropic_in *in)
{
    size_t n = json_array_size(in->messages);
    json_t *last = n > 1 ? json_array_get(in->messages, n - 1) : NULL;
    const char *role = json_string_value(json_object_get(last, "role"));
    if (!role || strcmp(role, "assistant") != 0 || json_object_get(last, "tool_calls")) return;
    in->prefill = json_incref(json_object_get(last, "content"));
    (void)json_array_remove(in->messages, n - 1);
}

/* ---- tools ------------------------------------------------------------------------------- */

static int tool_from(const json_t *tool, size_t i, struct fault *fault, json_t *tools)
{
    struct place at = place_of("tools[%zu]", i);
    const char *type = block_type(tool);
    const json_t *name = json_object_get(tool, "name");
    const json_t *description = json_object_get(tool, "description");
    const json_t *schema = json_object_get(tool, "input_schema");
    if (!json_is_object(tool)) return bad(fault, &at, "", "an object");
    if (type && strcmp(type, "custom") != 0) return bad(fault, &at, ".type", "'custom' here");
    if (!json_is_string(name)) return bad(fault, &at, ".name", "a string");
    if (!json_is_object(schema)) return bad(fault, &at, ".input_schema", "an object");
    if (description && !json_is_null(description) && !json_is_string(description))
        return bad(fault, &at, ".description", "a string");
    json_t *function = json_pack("{s:O}", "name", name);
    if (json_is_string(description))
        (void)json_object_set(function, "description", (json_t *)(uintptr_t)description);
    (void)json_object_set(function, "parameters", (json_t *)(uintptr_t)schema);
    return json_array_append_new(tools,
                                 json_pack("{s:s,s:o}", "type", "function", "function", function));
}

static int tools_from(const struct ask *ask, struct fault *fault, json_t **ret)
{
    CLEANUP(json_decrefp) json_t *tools = json_array();
    for (size_t i = 0; i < json_array_size(ask->tools); i++) {
        int r = tool_from(json_array_get(ask->tools, i), i, fault, tools);
        if (r < 0) return r;
    }
    if (!ask->no_tools) *ret = TAKE(tools);
    return 0;
}

int anthropic_in_from(const struct ask *ask, struct fault *fault, struct anthropic_in *ret)
{
    CLEANUP(anthropic_in_fini) struct anthropic_in in = {.messages = json_array()};
    struct place system = place_of("system");
    int r = ask->system ? system_from(ask->system, &system, fault, in.messages) : 0;
    for (size_t i = 0; r == 0 && i < json_array_size(ask->messages); i++)
        r = message_from(json_array_get(ask->messages, i), i, fault, in.messages);
    if (r == 0 && json_array_size(in.messages) == 0)
        r = fault_set(fault, FAULT_REQUEST, "messages", "'messages' has no text.");
    if (r == 0) r = tools_from(ask, fault, &in.tools);
    if (r < 0) return r;
    take_prefill(&in);
    *ret = in;
    in = (struct anthropic_in){0};
    return 0;
}

void anthropic_in_fini(struct anthropic_in *in)
{
    json_decref(in->messages);
    json_decref(in->tools);
    json_decref(in->prefill);
    *in = (struct anthropic_in){0};
}
