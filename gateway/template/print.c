/* SPDX-License-Identifier: MIT */
/* Owns how values become text: Python's str() and repr(), and json.dumps() as chat templates know
 * it. Called by the evaluator, filters and methods.
 *
 * Origin of what is written: a string keeps its runs, escapes belong to the character that they
 * stand for; a number, a boolean or None by itself counts as the template's (it cannot spell a
 * control token); the punctuation of a printed list, dict or JSON text counts as a value, since
 * what is between it does. */
#include "gateway/template/render.h"
#include "gateway/template/unicode.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <string.h>

enum {
    FLOAT_MAX_DIGITS = 17,  /* enough for any double to come back */
    FLOAT_FIXED_BELOW = 16, /* repr() writes an exponent from 1e16 on */
    FLOAT_FIXED_FROM = -4,  /* and below 1e-4 */
};

static void punctuation(struct str_buf *b, const char *text)
{
    buf_add(b, text, strlen(text), true);
}

/* The shortest digits that give the same double, laid out as Python does. */
void real_repr(double d, char ret[32])
{
    if (isnan(d) || isinf(d)) {
        strcpy(ret, isnan(d) ? "nan" : d < 0 ? "-inf" : "inf");
        return;
    }
    char text[26]; /* of -1.2345678901234567e-308 and the NUL */
    for (int digits = 1; digits <= FLOAT_MAX_DIGITS; digits++) {
        (void)snprintf(text, sizeof(text), "%.*e", digits - 1, d);
        if (strtod(text, NULL) == d) break;
    }
    char *mark = strchr(text, 'e');
    int exponent = (int)strtol(mark + 1, NULL, 10) % 400; /* at most 324, said to the compiler */
    *mark = '\0';
    int digits = (int)strlen(text) - (text[0] == '-') - (strchr(text, '.') != NULL);
    if (exponent < FLOAT_FIXED_FROM || exponent >= FLOAT_FIXED_BELOW) {
        (void)snprintf(ret, 32, "%se%c%02d", text, exponent < 0 ? '-' : '+', abs(exponent) % 1000);
        return;
    }
    int decimals = digits - 1 - exponent;
    (void)snprintf(ret, 32, "%.*f", decimals > 1 ? decimals : 1, d);
}

static void escape_point(struct str_buf *b, uint32_t cp, bool from_value)
{
    char text[16];
    const char *format = cp < 0x100 ? "\\x%02x" : cp < 0x10000 ? "\\u%04x" : "\\U%08x";
    int n = snprintf(text, sizeof(text), format, cp);
    buf_add(b, text, (size_t)n, from_value);
}

static void repr_str(struct str_buf *b, const struct str *s)
{
    static const char plain[] = "\n\r\t\\", letters[] = "nrt\\";
    bool single = memchr(s->text, '\'', s->bytes) != NULL;
    const char *quote = single && !memchr(s->text, '"', s->bytes) ? "\"" : "'";
    if (s->markup) punctuation(b, "Markup(");
    punctuation(b, quote);
    for (uint32_t off = 0; off < s->bytes && !b->failed;) {
        uint32_t cp, n = utf8_get(s->text + off, &cp);
        bool from_value = str_from_value_at(s, off);
        const char *known = cp && cp < 0x80 ? strchr(plain, (int)cp) : NULL;
        if (known || cp == (uint8_t)quote[0]) {
            buf_add(b, "\\", 1, from_value);
            buf_add(b, known ? &letters[known - plain] : quote, 1, from_value);
        } else if (unicode_is_printable(cp)) {
            buf_add(b, s->text + off, n, from_value);
        } else {
            escape_point(b, cp, from_value);
        }
        off += n;
    }
    punctuation(b, quote);
    if (s->markup) punctuation(b, ")");
}

static int repr_list(struct render *r, struct str_buf *b, const struct list *l, const char *marks)
{
    buf_add(b, &marks[0], 1, true);
    for (uint32_t i = 0; i < l->n; i++) {
        if (i) punctuation(b, ", ");
        int e = value_repr(r, b, l->items[i]);
        if (e < 0) return e;
    }
    if (marks[0] == '(' && l->n == 1) punctuation(b, ",");
    buf_add(b, &marks[1], 1, true);
    return 0;
}

static int repr_dict(struct render *r, struct str_buf *b, const struct dict *d)
{
    punctuation(b, "{");
    for (uint32_t i = 0; i < d->n; i++) {
        if (i) punctuation(b, ", ");
        int e = value_repr(r, b, d->pairs[i].key);
        if (e < 0) return e;
        punctuation(b, ": ");
        e = value_repr(r, b, d->pairs[i].value);
        if (e < 0) return e;
    }
    punctuation(b, "}");
    return 0;
}

static int repr_view(struct render *r, struct str_buf *b, struct value v)
{
    static const char *const names[] = {"dict_keys(", "dict_values(", "dict_items("};
    struct list items;
    punctuation(b, names[v.view->kind]);
    int e = value_items(r, v, &items);
    if (e == 0) e = repr_list(r, b, &items, "[]");
    punctuation(b, ")");
    return e;
}

static void repr_range(struct str_buf *b, const struct range *range)
{
    char text[96];
    int64_t stop = range->start + range->step * (int64_t)range->n;
    int n = snprintf(text, sizeof(text), "range(%" PRId64 ", %" PRId64, range->start, stop);
    if (range->step != 1)
        n += snprintf(text + n, sizeof(text) - (size_t)n, ", %" PRId64, range->step);
    buf_add(b, text, (size_t)n, true);
    punctuation(b, ")");
}

static void repr_other(struct str_buf *b, struct value v)
{
    char text[96];
    struct value name = {.kind = VALUE_NONE};
    if (v.kind == VALUE_MACRO) name = macro_name(v.macro);
    (void)snprintf(text, sizeof(text), "<%s%s", value_type_name(v),
                   v.kind != VALUE_MACRO    ? ""
                   : name.kind == VALUE_STR ? " "
                                            : " anonymous");
    punctuation(b, text);
    if (name.kind == VALUE_STR) repr_str(b, name.str);
    punctuation(b, ">");
}

static int repr_container(struct render *r, struct str_buf *b, struct value v)
{
    int e = render_enter(r);
    if (e < 0) return e;
    if (v.kind == VALUE_DICT)
        e = repr_dict(r, b, v.dict);
    else if (v.kind == VALUE_VIEW)
        e = repr_view(r, b, v);
    else
        e = repr_list(r, b, v.list, v.kind == VALUE_LIST ? "[]" : "()");
    render_leave(r);
    return e;
}

int value_repr(struct render *r, struct str_buf *b, struct value v)
{
    int e = render_step(r, 1);
    if (e < 0) return e;
    switch (v.kind) {
    case VALUE_STR:
        repr_str(b, v.str);
        return render_scan(r, v.str->bytes);
    case VALUE_LIST:
    case VALUE_TUPLE:
    case VALUE_VIEW:
    case VALUE_DICT:
        return repr_container(r, b, v);
    case VALUE_UNDEFINED:
        punctuation(b, "Undefined");
        return 0;
    default:
        return value_print(r, b, v);
    }
}

int value_print(struct render *r, struct str_buf *b, struct value v)
{
    char text[32];
    switch (v.kind) {
    case VALUE_UNDEFINED:
        return 0;
    case VALUE_NONE:
        buf_lit(b, "None");
        return 0;
    case VALUE_BOOL:
        buf_lit(b, v.boolean ? "True" : "False");
        return 0;
    case VALUE_INT:
        (void)snprintf(text, sizeof(text), "%" PRId64, v.integer);
        buf_lit(b, text);
        return 0;
    case VALUE_FLOAT:
        real_repr(v.real, text);
        buf_lit(b, text);
        return 0;
    case VALUE_STR:
        buf_str(b, v.str);
        return render_scan(r, v.str->bytes);
    case VALUE_RANGE:
        repr_range(b, v.range);
        return 0;
    case VALUE_LIST:
    case VALUE_TUPLE:
    case VALUE_VIEW:
    case VALUE_DICT:
        return value_repr(r, b, v);
    default:
        repr_other(b, v);
        return 0;
    }
}

int value_to_str(struct render *r, struct value v, const struct str **ret)
{
    if (v.kind == VALUE_STR) {
        *ret = v.str;
        return 0;
    }
    struct str_buf b = render_buf(r);
    int e = value_print(r, &b, v);
    return e < 0 ? e : buf_finish(&b, ret);
}

/* One json.dumps under way. */
struct json_writer {
    struct render *r;
    struct str_buf b;
    const struct json_style *style;
    uint32_t level;
};

static int write_json(struct json_writer *w, struct value v);

static void json_escape(struct str_buf *b, uint32_t cp, bool from_value)
{
    char text[16];
    uint32_t high = cp >= 0x10000 ? 0xd800 + ((cp - 0x10000) >> 10) : 0;
    uint32_t low = high ? 0xdc00 + ((cp - 0x10000) & 0x3ff) : cp;
    int n = high ? snprintf(text, sizeof(text), "\\u%04x\\u%04x", high, low)
                 : snprintf(text, sizeof(text), "\\u%04x", low);
    buf_add(b, text, (size_t)n, from_value);
}

static int json_str(struct json_writer *w, const struct str *s)
{
    static const char plain[] = "\"\\\n\r\t\f\b", letters[] = "\"\\nrtfb";
    struct str_buf *b = &w->b;
    punctuation(b, "\"");
    for (uint32_t off = 0; off < s->bytes && !b->failed;) {
        uint32_t cp, n = utf8_get(s->text + off, &cp);
        bool from_value = str_from_value_at(s, off);
        const char *known = cp && cp < 0x80 ? strchr(plain, (int)cp) : NULL;
        if (known) {
            buf_add(b, "\\", 1, from_value);
            buf_add(b, &letters[known - plain], 1, from_value);
        } else if (cp < 0x20 || (cp > 0x7e && w->style->ensure_ascii)) {
            json_escape(b, cp, from_value);
        } else {
            buf_add(b, s->text + off, n, from_value);
        }
        off += n;
    }
    punctuation(b, "\"");
    return render_scan(w->r, s->bytes);
}

static void json_newline(struct json_writer *w)
{
    if (!w->style->indent) return;
    punctuation(&w->b, "\n");
    for (uint32_t i = 0; i < w->level && !w->b.failed; i++)
        buf_str(&w->b, w->style->indent);
}

static int json_list(struct json_writer *w, const struct list *l)
{
    punctuation(&w->b, "[");
    w->level++;
    for (uint32_t i = 0; i < l->n; i++) {
        if (i) buf_str(&w->b, w->style->item_separator);
        json_newline(w);
        int e = write_json(w, l->items[i]);
        if (e < 0) return e;
    }
    w->level--;
    if (l->n) json_newline(w);
    punctuation(&w->b, "]");
    return 0;
}

static int json_scalar(struct json_writer *w, struct value v)
{
    char text[32] = "null";
    if (v.kind == VALUE_BOOL)
        strcpy(text, v.boolean ? "true" : "false");
    else if (v.kind == VALUE_INT)
        (void)snprintf(text, sizeof(text), "%" PRId64, v.integer);
    else if (v.kind == VALUE_FLOAT && (isnan(v.real) || isinf(v.real)))
        strcpy(text, isnan(v.real) ? "NaN" : v.real < 0 ? "-Infinity" : "Infinity");
    else if (v.kind == VALUE_FLOAT)
        real_repr(v.real, text);
    else if (v.kind != VALUE_NONE)
        return render_fail(w->r, -EPROTO, "tojson: %s cannot be written as JSON",
                           value_type_name(v));
    punctuation(&w->b, text);
    return 0;
}

/* Keys that are no strings are written as they would be as values, in quotes. */
static int json_key(struct json_writer *w, struct value key)
{
    if (key.kind == VALUE_STR) return json_str(w, key.str);
    punctuation(&w->b, "\"");
    int e = json_scalar(w, key);
    punctuation(&w->b, "\"");
    return e;
}

static int sorted_pairs(struct render *r, const struct dict *d, struct pair **ret)
{
    struct pair *pairs = arena_zero(&r->arena, d->n, sizeof(*pairs));
    if (!pairs) return -E2BIG;
    for (uint32_t i = 0; i < d->n; i++) {
        uint32_t low = 0, high = i;
        while (low < high) {
            uint32_t mid = (low + high) / 2;
            int order;
            int e = value_compare(r, d->pairs[i].key, pairs[mid].key, &order);
            if (e < 0) return e;
            if (order < 0)
                high = mid;
            else
                low = mid + 1;
        }
        int e = render_scan(r, (i - low) * sizeof(*pairs));
        if (e < 0) return e;
        memmove(pairs + low + 1, pairs + low, (i - low) * sizeof(*pairs));
        pairs[low] = d->pairs[i];
    }
    *ret = pairs;
    return 0;
}

static int json_dict(struct json_writer *w, const struct dict *d)
{
    struct pair *pairs = d->pairs;
    int e = w->style->sort_keys ? sorted_pairs(w->r, d, &pairs) : 0;
    if (e < 0) return e;
    punctuation(&w->b, "{");
    w->level++;
    for (uint32_t i = 0; i < d->n; i++) {
        if (i) buf_str(&w->b, w->style->item_separator);
        json_newline(w);
        e = json_key(w, pairs[i].key);
        buf_str(&w->b, w->style->key_separator);
        if (e == 0) e = write_json(w, pairs[i].value);
        if (e < 0) return e;
    }
    w->level--;
    if (d->n) json_newline(w);
    punctuation(&w->b, "}");
    return 0;
}

static int write_json(struct json_writer *w, struct value v)
{
    int e = render_step(w->r, 1);
    if (e == 0) e = render_enter(w->r);
    if (e < 0) return e;
    if (v.kind == VALUE_STR)
        e = json_str(w, v.str);
    else if (v.kind == VALUE_LIST || v.kind == VALUE_TUPLE)
        e = json_list(w, v.list);
    else if (v.kind == VALUE_DICT)
        e = json_dict(w, v.dict);
    else
        e = json_scalar(w, v);
    render_leave(w->r);
    return e;
}

int value_to_json(struct render *r, struct value v, const struct json_style *style,
                  const struct str **ret)
{
    struct json_writer w = {.r = r, .b = render_buf(r), .style = style};
    int e = write_json(&w, v);
    return e < 0 ? e : buf_finish(&w.b, ret);
}
