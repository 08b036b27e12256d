/* SPDX-License-Identifier: MIT */
/*
 * Renders what stdin asks for, so that tests can compare with jinja2: one JSON object a line,
 * {template, values, trusted, now}, and one a line back: {text, spans} or {error, why}. With
 * "chat": {messages, tools} instead of values it goes the gateway's own way (checks, tools written
 * out for a template that knows none), by the tokeniser of the GGUF file that is the only argument,
 * and adds "knows_tools". Called by test_templates.py.
 */
#include <string.h>

#include "gateway/chat.h"
#include "gateway/template/template.h"

enum { LINE_MAX_BYTES = 16 << 20 };

static json_t *spans_of(const struct rendered *out)
{
    json_t *spans = json_array();
    for (size_t i = 0; i < out->n_spans; i++)
        json_array_append_new(
            spans, json_pack("[I,b]", (json_int_t)out->spans[i].bytes, out->spans[i].from_value));
    return spans;
}

static json_t *answer(const json_t *ask)
{
    struct why why = {""};
    struct rendered out = {0};
    struct chat_template *t = NULL;
    const json_t *source = json_object_get(ask, "template");
    struct template_input in = {.values = json_object_get(ask, "values"),
                                .trusted = json_object_get(ask, "trusted"),
                                .now_s = json_integer_value(json_object_get(ask, "now"))};
    int r = chat_template_new(json_string_value(source), json_string_length(source), &why, &t);
    if (r == 0) r = chat_template_render(t, &in, &why, &out);
    json_t *ret = r < 0
                      ? json_pack("{si,ss}", "error", r, "why", why.text)
                      : json_pack("{ss%,so}", "text", out.text, out.bytes, "spans", spans_of(&out));
    chat_template_free(t);
    rendered_fini(&out);
    return ret;
}

static json_t *answer_chat(const struct tokenizer *tokenizer, const json_t *ask)
{
    struct why why = {""};
    struct fault fault = {.kind = FAULT_NONE};
    struct bytebuf text = {0};
    CLEANUP(chat_format_freep) struct chat_format *c = NULL;
    const json_t *source = json_object_get(ask, "template"), *chat = json_object_get(ask, "chat");
    int r =
        chat_format_of(json_string_value(source), json_string_length(source), tokenizer, &why, &c);
    if (r < 0) return json_pack("{si,ss}", "error", r, "why", why.text);
    struct chat_input in = {.messages = json_object_get(chat, "messages"),
                            .tools = json_object_get(chat, "tools"),
                            .n_ctx = UINT32_MAX};
    r = chat_text(c, &in, &fault, &text);
    json_t *ret = r < 0 ? json_pack("{si,ss}", "error", r, "why", fault.text)
                        : json_pack("{ss%,sb}", "text", bytebuf_bytes(&text), bytebuf_size(&text),
                                    "knows_tools", chat_knows_tools(c));
    bytebuf_fini(&text);
    return ret;
}

static void serve(const struct tokenizer *tokenizer)
{
    char *line = xcalloc(1, LINE_MAX_BYTES);
    while (fgets(line, LINE_MAX_BYTES, stdin)) {
        json_t *ask = json_loads(line, JSON_ALLOW_NUL, NULL), *said = NULL;
        if (ask) said = json_object_get(ask, "chat") ? answer_chat(tokenizer, ask) : answer(ask);
        char *text = json_dumps(said ? said : json_null(), JSON_COMPACT | JSON_ENCODE_ANY);
        (void)puts(text ? text : "null");
        (void)fflush(stdout);
        free(text);
        json_decref(said);
        json_decref(ask);
    }
    free(line);
}

int main(int argc, char **argv)
{
    struct why why = {""};
    CLEANUP(gguf_freep) struct gguf *g = NULL;
    CLEANUP(tokenizer_freep) struct tokenizer *t = NULL;
    if (argc > 1 && (gguf_open(argv[1], &why, &g) < 0 || tokenizer_new(g, &why, &t) < 0)) {
        (void)fprintf(stderr, "%s\n", why.text);
        return 1;
    }
    serve(t);
    return 0;
}
