/* SPDX-License-Identifier: MIT */
/* Owns the filters that make text or numbers of one value. Finds filters of all families. */
#include "gateway/template/filter.h"
#include "gateway/template/text.h"

#include <ctype.h>
#include <errno.h>
#include <math.h>
#include <string.h>

#define FILTER(name)                                                                               \
    static int filter_##name(struct render *r, struct value in, const struct args *args,           \
                             struct value *ret)

enum {
    JSON_MAX_INDENT = 1000,   /* spaces a level */
    INDENT_MAX_WIDTH = 10000, /* spaces a line */
    NUMBER_MAX_BYTES = 400,   /* of text that int and float read: longer is no number */
    ROUND_MAX_DIGITS = 300,
};

bool flag_given(struct value v) { return value_given(v) && value_truth(v); }

static int as_text(struct render *r, const char *what, struct value in, const struct args *args,
                   const struct str **ret)
{
    int e = args_take(r, what, args, "", 0, NULL);
    return e < 0 ? e : value_to_str(r, in, ret);
}

static int change_case(struct render *r, struct value in, const struct args *args,
                       enum text_case how, struct value *ret)
{
    const struct str *s;
    int e = as_text(r, "this filter", in, args, &s);
    return e < 0 ? e : text_case(r, s, how, ret);
}

FILTER(lower) { return change_case(r, in, args, TEXT_LOWER, ret); }
FILTER(upper) { return change_case(r, in, args, TEXT_UPPER, ret); }
FILTER(capitalize) { return change_case(r, in, args, TEXT_CAPITALIZE, ret); }
FILTER(title) { return change_case(r, in, args, TEXT_TITLE_FILTER, ret); }

FILTER(string)
{
    const struct str *s;
    int e = as_text(r, "string", in, args, &s);
    if (e == 0) *ret = value_str(s);
    return e;
}

FILTER(safe)
{
    const struct str *s;
    int e = as_text(r, "safe", in, args, &s);
    if (e == 0 && !(s = str_as_markup(&r->arena, s, true))) e = -E2BIG;
    if (e == 0) *ret = value_str(s);
    return e;
}

static int escape(struct render *r, struct value in, const struct args *args, bool again,
                  struct value *ret)
{
    const struct str *s;
    int e = as_text(r, "escape", in, args, &s);
    if (e == 0) e = render_scan(r, s->bytes);
    if (e < 0) return e;
    struct str_buf b = render_buf(r);
    b.markup = true;
    if (s->markup && !again)
        buf_str(&b, s);
    else
        buf_escaped(&b, s);
    return render_buf_value(&b, ret);
}

FILTER(escape) { return escape(r, in, args, false, ret); }
FILTER(forceescape) { return escape(r, in, args, true, ret); }

FILTER(trim)
{
    struct value v;
    const struct str *s, *chars = NULL;
    int e = args_take(r, "trim", args, "chars", 0, &v);
    if (e == 0) e = value_to_str(r, in, &s);
    if (e == 0 && value_given(v) && v.kind != VALUE_NONE && v.kind != VALUE_STR)
        e = render_fail(r, -EPROTO, "trim takes a string");
    if (e == 0 && v.kind == VALUE_STR) chars = v.str;
    return e < 0 ? e : text_strip(r, s, chars, true, true, ret);
}

FILTER(replace)
{
    struct value v[3];
    const struct str *s, *old, *new;
    int64_t count = -1;
    int e = args_take(r, "replace", args, "old new count", 2, v);
    if (e == 0) e = value_to_str(r, in, &s);
    if (e == 0) e = value_to_str(r, v[0], &old);
    if (e == 0) e = value_to_str(r, v[1], &new);
    if (e == 0 && value_given(v[2]) && v[2].kind != VALUE_NONE)
        e = value_to_int(r, "replace", v[2], &count);
    if (e == 0 && !(s = str_as_markup(&r->arena, s, false))) e = -E2BIG;
    return e < 0 ? e : text_replace(r, s, old, new, count, ret);
}

FILTER(center)
{
    struct value v;
    const struct str *s;
    int64_t width = 80;
    int e = args_take(r, "center", args, "width", 0, &v);
    if (e == 0 && value_given(v)) e = value_to_int(r, "center", v, &width);
    if (e == 0) e = value_to_str(r, in, &s);
    return e < 0 ? e : text_pad(r, s, width, NULL, '^', ret);
}

/* A number of spaces, or the text itself. */
static int indentation(struct render *r, struct value v, int64_t missing, int64_t max,
                       const struct str **ret)
{
    int64_t n = missing;
    if (v.kind == VALUE_STR) {
        *ret = v.str;
        return 0;
    }
    int e = value_given(v) ? value_to_int(r, "an indentation", v, &n) : 0;
    if (e == 0 && n > max) e = render_fail(r, -E2BIG, "an indentation is at most %d", (int)max);
    struct str_buf b = render_buf(r);
    for (int64_t i = 0; e == 0 && i < n; i++)
        buf_lit(&b, " ");
    return e < 0 ? e : buf_finish(&b, ret);
}

FILTER(indent)
{
    struct value v[3];
    const struct str *by;
    struct list lines;
    int e = args_take(r, "indent", args, "width first blank", 0, v);
    if (e == 0) e = indentation(r, v[0], 4, INDENT_MAX_WIDTH, &by);
    if (e == 0 && in.kind == VALUE_UNDEFINED) e = render_fail_undefined(r, in);
    if (e == 0 && in.kind != VALUE_STR) e = render_fail(r, -EPROTO, "indent takes a string");
    if (e == 0) e = text_split_lines(r, in.str, false, &lines);
    if (e < 0) return e;
    struct str_buf b = render_buf(r);
    b.markup = in.str->markup;
    if (flag_given(v[1])) buf_str(&b, by);
    for (uint32_t i = 0; i < lines.n && !b.failed; i++) {
        const struct str *line = lines.items[i].str;
        if (i) buf_lit(&b, "\n");
        if (i && (line->bytes || flag_given(v[2]))) buf_str(&b, by);
        buf_str(&b, line);
    }
    /* jinja2 adds a newline before it splits, so that a text that ends with one keeps it. */
    const struct str *s = in.str;
    uint32_t last = 0, at = s->chars ? str_offset(s, s->chars - 1) : 0;
    if (s->bytes) (void)utf8_get(s->text + at, &last);
    bool ends = unicode_is_line_end(last) && last != '\r'; /* which becomes \r\n: one end */
    if (ends) buf_lit(&b, "\n");
    if (ends && flag_given(v[2])) buf_str(&b, by);
    return render_buf_value(&b, ret);
}

static int separator(struct render *r, struct value v, const char *missing, const struct str **ret)
{
    *ret = v.kind == VALUE_STR ? v.str : str_new(&r->arena, missing, strlen(missing), true);
    return *ret ? 0 : -E2BIG;
}

/* As transformers defines it: json.dumps, without escaping HTML. */
FILTER(tojson)
{
    struct value v[4];
    struct json_style style = {0};
    const struct str *s;
    int e = args_take(r, "tojson", args, "ensure_ascii indent separators sort_keys", 0, v);
    if (e < 0) return e;
    style.ensure_ascii = flag_given(v[0]);
    style.sort_keys = flag_given(v[3]);
    if (value_given(v[1]) && v[1].kind != VALUE_NONE)
        e = indentation(r, v[1], 0, JSON_MAX_INDENT, &style.indent);
    struct value pair[2] = {{.kind = VALUE_MISSING}, {.kind = VALUE_MISSING}};
    if ((v[2].kind == VALUE_TUPLE || v[2].kind == VALUE_LIST) && v[2].list->n == 2)
        memcpy(pair, v[2].list->items, sizeof(pair));
    else if (value_given(v[2]) && v[2].kind != VALUE_NONE)
        return render_fail(r, -EPROTO, "tojson takes two separators");
    if (e == 0) e = separator(r, pair[0], style.indent ? "," : ", ", &style.item_separator);
    if (e == 0) e = separator(r, pair[1], ": ", &style.key_separator);
    if (e == 0) e = value_to_json(r, in, &style, &s);
    if (e == 0) *ret = value_str(s);
    return e;
}

FILTER(format)
{
    struct value v;
    const struct str *s;
    if (args->n_pos && args->n_named)
        return render_fail(r, -EPROTO, "format takes either values or names");
    struct args rest = {.names = args->names, .named = args->named, .n_named = args->n_named};
    struct value function;
    const struct str *dict = str_lit(&r->arena, "dict");
    if (!dict) return -E2BIG;
    function = (struct value){.kind = VALUE_FUNCTION, .function = function_find(dict)};
    int e = args->n_named ? value_call(r, function, &rest, &v)
                          : value_list(r, VALUE_TUPLE, args->pos, args->n_pos, &v);
    if (e == 0) e = value_to_str(r, in, &s);
    return e < 0 ? e : format_percent(r, s, v, ret);
}

/* Python's int() and float() of a text: one number, white space around it, "_" between digits. */
static bool number_text(const struct str *s, char ret[NUMBER_MAX_BYTES])
{
    uint32_t from = 0, to = s->bytes, n = 0;
    while (from < to && isspace((unsigned char)s->text[from]))
        from++;
    while (to > from && isspace((unsigned char)s->text[to - 1]))
        to--;
    if (to == from || to - from >= NUMBER_MAX_BYTES) return false;
    for (uint32_t i = from; i < to; i++) {
        char c = s->text[i];
        bool between = i > from && i + 1 < to && isalnum((unsigned char)s->text[i - 1]) &&
                       isalnum((unsigned char)s->text[i + 1]);
        if (c == '_' && between) continue;
        if (c == '_' || c == '\0') return false;
        ret[n++] = c;
    }
    ret[n] = '\0';
    return true;
}

/* -EINVAL: not an integer; -ERANGE: one, but too large. */
static int parse_int(const struct str *s, int64_t base, int64_t *ret)
{
    char text[NUMBER_MAX_BYTES], *end;
    if (base < 0 || base == 1 || base > 36 || !number_text(s, text)) return -EINVAL;
    const char *digits = text + (text[0] == '-' || text[0] == '+');
    char prefix = digits[0] == '0' ? (char)tolower((unsigned char)digits[1]) : '\0';
    int named = prefix == 'x' ? 16 : prefix == 'o' ? 8 : prefix == 'b' ? 2 : 0;
    if (named && (base == named || base == 0)) {
        if (!isxdigit((unsigned char)digits[2])) return -EINVAL;
        memmove(text + (text[0] == '-'), digits + 2, strlen(digits + 2) + 1);
        base = named;
    }
    errno = 0;
    *ret = strtoll(text, &end, base ? (int)base : 10);
    if (*end != '\0' || end == text) return -EINVAL;
    return errno ? -ERANGE : 0;
}

static bool parse_float(const struct str *s, double *ret)
{
    char text[NUMBER_MAX_BYTES], *end;
    if (!number_text(s, text) || strpbrk(text, "xXpP(")) return false;
    *ret = strtod(text, &end);
    return *end == '\0' && end != text;
}

static int float_to_int(double d, int64_t *ret)
{
    if (isnan(d) || isinf(d)) return -EINVAL;
    if (d >= 9223372036854775808.0 || d < -9223372036854775808.0) return -ERANGE;
    *ret = (int64_t)d;
    return 0;
}

FILTER(int)
{
    struct value v[2];
    int64_t base = 10, i = 0;
    double d;
    int e = args_take(r, "int", args, "default base", 0, v);
    if (e == 0 && in.kind == VALUE_UNDEFINED) e = render_fail_undefined(r, in);
    if (e < 0) return e;
    if (value_given(v[1])) base = value_is_integral(v[1]) ? value_integer(v[1]) : -1;
    int found = -EINVAL;
    if (in.kind == VALUE_STR) {
        found = parse_int(in.str, base, &i);
        if (found == -EINVAL && parse_float(in.str, &d)) found = float_to_int(d, &i);
    } else if (in.kind == VALUE_FLOAT) {
        found = float_to_int(in.real, &i);
        if (isinf(in.real)) return render_fail(r, -EPROTO, "infinity is no integer");
    } else if (value_is_integral(in)) {
        found = 0;
        i = value_integer(in);
    }
    if (found == -ERANGE) return render_fail(r, -E2BIG, "an integer does not fit into 64 bits");
    *ret = found == 0 ? value_int(i) : value_given(v[0]) ? v[0] : value_int(0);
    return 0;
}

FILTER(float)
{
    struct value v;
    double d;
    int e = args_take(r, "float", args, "default", 0, &v);
    if (e == 0 && in.kind == VALUE_UNDEFINED) e = render_fail_undefined(r, in);
    if (e < 0) return e;
    if (value_is_number(in))
        *ret = value_float(value_real(in));
    else if (in.kind == VALUE_STR && parse_float(in.str, &d))
        *ret = value_float(d);
    else
        *ret = value_given(v) ? v : value_float(0);
    return 0;
}

FILTER(abs)
{
    struct value zero = value_int(0);
    bool negative;
    int e = args_take(r, "abs", args, "", 0, NULL);
    if (e == 0 && !value_is_number(in)) e = render_fail(r, -EPROTO, "abs takes a number");
    if (e == 0) e = value_relation(r, OP_LT, in, zero, &negative);
    if (e < 0) return e;
    *ret = in.kind == VALUE_FLOAT ? value_float(fabs(in.real)) : value_int(value_integer(in));
    return negative ? value_negate(r, in, ret) : 0;
}

/* Python rounds the decimal that the double stands for, half to even, as printf does. */
static double round_digits(double d, int64_t digits)
{
    char text[1024];
    if (digits >= 0) {
        (void)snprintf(text, sizeof(text), "%.*f", (int)digits, d);
        return strtod(text, NULL);
    }
    double unit = pow(10, (double)-digits);
    return nearbyint(d / unit) * unit;
}

FILTER(round)
{
    struct value v[2];
    int64_t digits = 0;
    int e = args_take(r, "round", args, "precision method", 0, v);
    if (e == 0 && value_given(v[0])) e = value_to_int(r, "round", v[0], &digits);
    if (e == 0 && !value_is_number(in)) e = render_fail(r, -EPROTO, "round takes a number");
    if (e == 0 && (digits > ROUND_MAX_DIGITS || digits < -ROUND_MAX_DIGITS))
        e = render_fail(r, -E2BIG, "round takes at most %d digits", ROUND_MAX_DIGITS);
    if (e < 0) return e;
    bool named = v[1].kind == VALUE_STR, common = !named || str_is(v[1].str, "common");
    double scale = pow(10, (double)digits), d = value_real(in);
    if (!common && !str_is(v[1].str, "ceil") && !str_is(v[1].str, "floor"))
        return render_fail(r, -EPROTO, "round knows common, ceil and floor");
    if (!common)
        *ret = value_float((str_is(v[1].str, "ceil") ? ceil(d * scale) : floor(d * scale)) / scale);
    else if (value_is_integral(in) && digits >= 0)
        *ret = value_int(value_integer(in));
    else if (value_is_integral(in))
        *ret = value_int((int64_t)round_digits(d, digits));
    else
        *ret = value_float(round_digits(d, digits));
    return 0;
}

FILTER(wordcount)
{
    const struct str *s;
    int e = as_text(r, "wordcount", in, args, &s);
    if (e == 0) e = render_scan(r, s->bytes);
    if (e < 0) return e;
    int64_t n = 0;
    bool in_word = false;
    for (uint32_t off = 0; off < s->bytes;) {
        uint32_t cp;
        off += utf8_get(s->text + off, &cp);
        bool word = unicode_is_alpha(cp) || unicode_is_decimal(cp) || cp == '_';
        n += word && !in_word;
        in_word = word;
    }
    *ret = value_int(n);
    return 0;
}

FILTER(urlencode)
{
    const struct str *s;
    int e = as_text(r, "urlencode", in, args, &s);
    if (e == 0 && (in.kind == VALUE_DICT || in.kind == VALUE_LIST || in.kind == VALUE_TUPLE))
        e = render_fail(r, -EPROTO, "urlencode takes text");
    if (e == 0) e = render_scan(r, s->bytes);
    if (e < 0) return e;
    struct str_buf b = render_buf(r);
    for (uint32_t i = 0; i < s->bytes && !b.failed; i++) {
        char text[4];
        unsigned char c = (unsigned char)s->text[i];
        bool plain = isalnum(c) || (c && strchr("_.-~/", c));
        int n = snprintf(text, sizeof(text), plain ? "%c" : "%%%02X", c);
        buf_add(&b, text, (size_t)n, str_from_value_at(s, i));
    }
    return render_buf_value(&b, ret);
}

const struct filter *filter_of_text(const struct str *name)
{
#define ROW(name)                                                                                  \
    {                                                                                              \
#name, filter_##name                                                                       \
    }
    static const struct filter filters[] = {
        ROW(tojson),      ROW(trim),      ROW(string),
        ROW(upper),       ROW(lower),     ROW(replace),
        ROW(safe),        ROW(indent),    ROW(capitalize),
        ROW(title),       ROW(int),       ROW(float),
        ROW(abs),         ROW(round),     ROW(center),
        ROW(format),      ROW(escape),    ROW(urlencode),
        ROW(forceescape), ROW(wordcount), {"e", filter_escape},
    };
#undef ROW
    for (size_t i = 0; i < ARRAY_LEN(filters); i++)
        if (str_is(name, filters[i].name)) return &filters[i];
    return NULL;
}

const struct filter *filter_find(const struct str *name)
{
    const struct filter *f = filter_of_text(name);
    if (!f) f = filter_of_items(name);
    return f ? f : filter_of_choice(name);
}
