/* SPDX-License-Identifier: MIT */
/* Renders what stdin asks for, so that a script can compare with jinja2: one JSON object a line,
 * {template, values, trusted, now}, and one a line back: {text, spans} or {error, why}. Called by
 * run.py. */
#include "gateway/template/template.h"

#include <string.h>

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

int main(void)
{
    char *line = xcalloc(1, LINE_MAX_BYTES);
    while (fgets(line, LINE_MAX_BYTES, stdin)) {
        json_t *ask = json_loads(line, JSON_ALLOW_NUL, NULL), *said = ask ? answer(ask) : NULL;
        char *text = json_dumps(said ? said : json_null(), JSON_COMPACT | JSON_ENCODE_ANY);
        (void)puts(text ? text : "null");
        (void)fflush(stdout);
        free(text);
        json_decref(said);
        json_decref(ask);
    }
    free(line);
    return 0;
}
