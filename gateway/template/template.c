/* SPDX-License-Identifier: MIT */
/* Owns a compiled template and the life of a render: limits, the context's conversion from JSON,
 * the output's spans. Called by the gateway's API handlers. */
#include "gateway/template/template.h"
#include "gateway/template/eval.h"

#include <errno.h>
#include <string.h>

enum {
    /* Of a template's source. The largest known ones have 20 KB. */
    SOURCE_MAX_BYTES = 1 << 20,
    /* A node has about 100 bytes, a token 56, and both come a few bytes of source apart. */
    COMPILED_MAX_BYTES = 256 << 20,
    /* A render of 1,000 messages takes about 200,000 steps; this many take about a second, in which
     * the gateway serves nobody else. */
    DEFAULT_STEPS = 10 * 1000 * 1000,
    DEFAULT_OUTPUT_BYTES = 32 << 20, /* a million tokens and more */
    DEFAULT_MEMORY_BYTES = 512 << 20,
    /* A level takes under 1 KiB of stack, so all of them fit into a thread's 8 MiB, sanitizers on.
     */
    DEFAULT_DEPTH = 2000,
};

struct chat_template {
    struct arena arena;
    const struct node *root;
};

int render_fail(struct render *r, int err, const char *format, ...)
{
    char what[400];
    va_list ap;
    va_start(ap, format);
    (void)vsnprintf(what, sizeof(what), format, ap);
    va_end(ap);
    return why_set(r->why, err, "line %u of the template: %s", r->line, what);
}

int render_fail_undefined(struct render *r, struct value v)
{
    if (!v.str) return render_fail(r, -EPROTO, "a value is undefined");
    return render_fail(r, -EPROTO, "'%.*s' is undefined", (int)min_u32(v.str->bytes, 64),
                       v.str->text);
}

int render_step(struct render *r, uint64_t steps)
{
    if (steps > r->steps_left)
        return render_fail(r, -E2BIG, "more than %llu steps", (unsigned long long)r->steps_limit);
    r->steps_left -= steps;
    return 0;
}

int render_enter(struct render *r)
{
    if (r->depth == r->depth_limit)
        return render_fail(r, -E2BIG, "it nests deeper than %u", r->depth_limit);
    r->depth++;
    return 0;
}

struct str_buf render_buf(struct render *r)
{
    return (struct str_buf){.arena = &r->arena, .limit_bytes = r->text_limit_bytes};
}

int render_buf_value(struct str_buf *b, struct value *ret)
{
    const struct str *s;
    int e = buf_finish(b, &s);
    if (e == 0) *ret = value_str(s);
    return e;
}

int render_text(struct render *r, const char *text, struct value *ret)
{
    const struct str *s = str_lit(&r->arena, text);
    if (!s) return -E2BIG;
    *ret = value_str(s);
    return 0;
}

int chat_template_new(const char *source, size_t bytes, struct why *why, struct chat_template **ret)
{
    if (bytes > SOURCE_MAX_BYTES)
        return why_set(why, -E2BIG, "the template has %zu bytes, more than %d", bytes,
                       SOURCE_MAX_BYTES);
    if (!utf8_valid(source, bytes)) return why_set(why, -EPROTO, "the template is not UTF-8");
    CLEANUP(freep) struct chat_template *t = calloc(1, sizeof(*t));
    if (!t) return why_set(why, -E2BIG, "no memory left for the template");
    t->arena = (struct arena){.limit_bytes = COMPILED_MAX_BYTES, .why = why};
    int r = parse_template(&t->arena, source, bytes, &t->root);
    t->arena.why = NULL; /* the caller's, and nothing is allocated here any more */
    if (r < 0) {
        arena_fini(&t->arena);
        return r;
    }
    *ret = TAKE(t);
    return 0;
}

void chat_template_free(struct chat_template *t)
{
    if (!t) return;
    arena_fini(&t->arena);
    free(t);
}

static int from_json(struct render *r, const json_t *j, bool from_value, struct value *ret);

static int list_from_json(struct render *r, const json_t *j, bool from_value, struct value *ret)
{
    struct list *l;
    int e = list_new(r, (uint32_t)json_array_size(j), &l);
    for (uint32_t i = 0; e == 0 && i < l->n; i++)
        e = from_json(r, json_array_get(j, i), from_value, &l->items[i]);
    if (e == 0) *ret = (struct value){.kind = VALUE_LIST, .list = l};
    return e;
}

static int str_from_json(struct render *r, const char *text, size_t bytes, bool from_value,
                         struct value *ret)
{
    int e = render_scan(r, bytes);
    if (e < 0) return e;
    if (!utf8_valid(text, bytes)) return render_fail(r, -EPROTO, "a value is not UTF-8");
    const struct str *s = str_new(&r->arena, text, bytes, from_value);
    if (!s) return -E2BIG;
    *ret = value_str(s);
    return 0;
}

static int dict_from_json(struct render *r, const json_t *j, bool from_value, struct value *ret)
{
    struct dict *d;
    int e = dict_new(r, &d);
    /* jansson's iterators take a pointer to non-const and don't write. */
    json_t *object = (json_t *)(uintptr_t)j;
    for (void *i = json_object_iter(object); e == 0 && i; i = json_object_iter_next(object, i)) {
        const char *name = json_object_iter_key(i);
        struct value key, value;
        e = str_from_json(r, name, json_object_iter_key_len(i), from_value, &key);
        if (e == 0) e = from_json(r, json_object_iter_value(i), from_value, &value);
        if (e == 0) e = dict_set(r, d, key, value);
    }
    if (e == 0) *ret = (struct value){.kind = VALUE_DICT, .dict = d};
    return e;
}

/* Strings stay where they are in the JSON, which outlives the render. */
static int from_json(struct render *r, const json_t *j, bool from_value, struct value *ret)
{
    if (r->depth == VALUE_MAX_DEPTH)
        return render_fail(r, -E2BIG, "the messages nest deeper than %d", VALUE_MAX_DEPTH);
    int e = render_step(r, 1);
    if (e == 0) e = render_enter(r);
    if (e < 0) return e;
    switch (json_typeof(j)) {
    case JSON_OBJECT:
        e = dict_from_json(r, j, from_value, ret);
        break;
    case JSON_ARRAY:
        e = list_from_json(r, j, from_value, ret);
        break;
    case JSON_STRING:
        e = str_from_json(r, json_string_value(j), json_string_length(j), from_value, ret);
        break;
    case JSON_INTEGER:
        *ret = value_int(json_integer_value(j));
        break;
    case JSON_REAL:
        *ret = value_float(json_real_value(j));
        break;
    case JSON_TRUE:
    case JSON_FALSE:
        *ret = value_bool(json_typeof(j) == JSON_TRUE);
        break;
    default:
        *ret = (struct value){.kind = VALUE_NONE};
        break;
    }
    render_leave(r);
    return e;
}

static int variables_from(struct render *r, const json_t *j, bool from_value, struct dict **ret)
{
    struct value v;
    if (!json_is_object(j)) return dict_new(r, ret);
    int e = from_json(r, j, from_value, &v);
    if (e == 0) *ret = v.dict;
    return e;
}

static int take_spans(const struct str_buf *b, struct rendered *ret)
{
    CLEANUP(freep) char *text = malloc(b->bytes + 1);
    CLEANUP(freep) struct template_span *spans = calloc(b->n_runs + 1, sizeof(*spans));
    if (!text || !spans) return -E2BIG;
    if (b->bytes) memcpy(text, b->text, b->bytes);
    text[b->bytes] = '\0';
    size_t off = 0;
    for (uint32_t i = 0; i < b->n_runs; i++) {
        spans[i] = (struct template_span){off, b->runs[i].end - off, b->runs[i].from_value};
        off = b->runs[i].end;
    }
    ret->spans = TAKE(spans);
    ret->text = TAKE(text);
    ret->bytes = b->bytes;
    ret->n_spans = b->n_runs;
    return 0;
}

static int run(struct render *r, const struct chat_template *t, const struct template_input *in,
               struct rendered *ret)
{
    struct str_buf out = render_buf(r);
    struct frame f = {.out = &out};
    enum flow flow = FLOW_ON;
    int e = variables_from(r, in->values, true, &r->values);
    if (e == 0) e = variables_from(r, in->trusted, false, &r->trusted);
    if (e == 0) e = scope_new(r, NULL, &f.scope);
    if (e == 0) e = exec(r, t->root, &f, &flow);
    if (e == 0 && flow != FLOW_ON)
        e = render_fail(r, -EPROTO, "break and continue belong into a loop");
    return e < 0 ? e : take_spans(&out, ret);
}

int chat_template_render(const struct chat_template *t, const struct template_input *in,
                         struct why *why, struct rendered *ret)
{
    const struct template_limits *l = &in->limits;
    uint64_t steps = l->steps ? l->steps : DEFAULT_STEPS;
    struct render r = {
        .arena = {.limit_bytes = l->memory_bytes ? l->memory_bytes : DEFAULT_MEMORY_BYTES,
                  .why = why},
        .why = why,
        .steps_left = steps,
        .steps_limit = steps,
        .depth_limit = l->depth ? l->depth : DEFAULT_DEPTH,
        .text_limit_bytes = l->output_bytes ? l->output_bytes : DEFAULT_OUTPUT_BYTES,
        .now_s = in->now_s,
        .line = 1,
    };
    int e = run(&r, t, in, ret);
    arena_fini(&r.arena);
    return e;
}

void rendered_fini(struct rendered *r)
{
    free(r->text);
    free(r->spans);
    *r = (struct rendered){0};
}
