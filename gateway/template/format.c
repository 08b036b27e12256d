/* SPDX-License-Identifier: MIT */
/* Owns Python's two ways of formatting: '%s' % x and '{}'.format(x). Called by operators, methods
 * and filters. Widths are bounded, so that a template cannot ask for gigabytes with five bytes. */
#include "gateway/template/text.h"

#include <ctype.h>
#include <errno.h>
#include <inttypes.h>
#include <string.h>

enum {
    FORMAT_MAX_WIDTH = 1000, /* of a field, and of the digits behind the point */
    NUMBER_TEXT_BYTES = FORMAT_MAX_WIDTH + 400,
};

/* One field: how a value is laid out. */
struct spec {
    char fill[5]; /* one code point; empty: by default */
    char align;   /* '<', '>', '^', '=' or 0 */
    char sign;    /* '+', ' ' or 0 */
    bool alternate, zero, comma;
    int64_t width, precision; /* precision -1: none */
    char type;                /* 0: none */
};

static int number(struct render *r, const char **at, const char *end, int64_t *ret)
{
    int64_t n = 0;
    while (*at < end && isdigit((unsigned char)**at)) {
        n = n * 10 + *(*at)++ - '0';
        if (n > FORMAT_MAX_WIDTH)
            return render_fail(r, -E2BIG, "a field is wider than %d", FORMAT_MAX_WIDTH);
    }
    *ret = n;
    return 0;
}

static void group_thousands(char *text, size_t bytes)
{
    char out[NUMBER_TEXT_BYTES * 2];
    size_t first = text[0] == '-' || text[0] == '+' || text[0] == ' ', n = 0;
    size_t digits = strspn(text + first, "0123456789");
    for (size_t i = 0; text[i]; i++) {
        size_t left = first + digits - i;
        if (i > first && i < first + digits && left % 3 == 0) out[n++] = ',';
        out[n++] = text[i];
    }
    out[n] = '\0';
    if (n < bytes) memcpy(text, out, n + 1);
}

static void binary_digits(uint64_t v, char *text)
{
    char digits[65];
    int n = 0;
    do
        digits[n++] = (char)('0' + (v & 1));
    while (v >>= 1);
    while (n > 0)
        *text++ = digits[--n];
    *text = '\0';
}

static void int_text(int64_t v, const struct spec *s, char ret[NUMBER_TEXT_BYTES])
{
    uint64_t size = v < 0 ? 0 - (uint64_t)v : (uint64_t)v;
    char sign[2] = {v < 0 ? '-' : s->sign, '\0'}, digits[NUMBER_TEXT_BYTES / 2];
    const char *prefix = "";
    char type = s->type ? s->type : 'd';
    if (type == 'x')
        (void)snprintf(digits, sizeof(digits), "%" PRIx64, size);
    else if (type == 'X')
        (void)snprintf(digits, sizeof(digits), "%" PRIX64, size);
    else if (type == 'o')
        (void)snprintf(digits, sizeof(digits), "%" PRIo64, size);
    else if (type == 'b')
        binary_digits(size, digits);
    else
        (void)snprintf(digits, sizeof(digits), "%" PRIu64, size);
    if (s->alternate && type != 'd')
        prefix = type == 'x' ? "0x" : type == 'X' ? "0X" : type == 'o' ? "0o" : "0b";
    (void)snprintf(ret, NUMBER_TEXT_BYTES, "%s%s%s", sign, prefix, digits);
}

static void float_text(double d, const struct spec *s, char ret[NUMBER_TEXT_BYTES])
{
    char format[16], sign[2] = {s->sign, '\0'};
    bool percent = s->type == '%';
    char type = percent ? 'f' : s->type ? s->type : 'g';
    if (!s->type && s->precision < 0) {
        char text[32];
        real_repr(d, text);
        (void)snprintf(ret, NUMBER_TEXT_BYTES, "%s%s", d < 0 ? "" : sign, text);
        return;
    }
    (void)snprintf(format, sizeof(format), "%%%s%s.*%c", sign, s->alternate ? "#" : "", type);
    int precision = s->precision < 0 ? 6 : (int)s->precision;
    int n = snprintf(ret, NUMBER_TEXT_BYTES - 1, format, precision, percent ? d * 100 : d);
    if (percent && n > 0) strcpy(ret + n, "%");
}

static void add_fill(struct str_buf *b, const struct spec *s, int64_t n)
{
    for (int64_t i = 0; i < n && !b->failed; i++)
        buf_lit(b, s->fill[0] ? s->fill : " ");
}

/* Lays text out in the field. */
static void add_field(struct str_buf *b, const struct str *text, const struct spec *s, char align)
{
    int64_t pad = s->width > (int64_t)text->chars ? s->width - text->chars : 0;
    if (s->align) align = s->align;
    int64_t left = align == '<' ? 0 : align == '^' ? pad / 2 : pad;
    add_fill(b, s, align == '=' ? 0 : left);
    if (align != '=') {
        buf_str(b, text);
        add_fill(b, s, pad - left);
        return;
    }
    /* Between the sign, or 0x, and the digits. */
    size_t n = text->bytes && strchr("+- ", text->text[0]) != NULL;
    if (text->bytes > n + 1 && text->text[n] == '0' && isalpha((unsigned char)text->text[n + 1]))
        n += 2;
    buf_add(b, text->text, n, false);
    add_fill(b, s, pad);
    buf_add(b, text->text + n, text->bytes - n, false);
}

static int add_number(struct render *r, struct str_buf *b, struct value v, struct spec *s)
{
    char text[NUMBER_TEXT_BYTES];
    bool real = v.kind == VALUE_FLOAT || (s->type && strchr("fFeEgG%", s->type));
    if (s->type && !strchr(real ? "fFeEgG%n" : "dxXobn", s->type))
        return render_fail(r, -EPROTO, "a number has no format '%c'", s->type);
    if (real)
        float_text(value_real(v), s, text);
    else
        int_text(value_integer(v), s, text);
    if (s->comma) group_thousands(text, sizeof(text));
    if (s->zero && !s->align) {
        s->align = '=';
        if (!s->fill[0]) strcpy(s->fill, "0");
    }
    const struct str *str = str_lit(&r->arena, text);
    if (!str) return -E2BIG;
    add_field(b, str, s, '>');
    return 0;
}

static int add_text(struct render *r, struct str_buf *b, const struct str *text, struct spec *s)
{
    if (s->precision >= 0 && s->precision < (int64_t)text->chars)
        text = str_sub(&r->arena, text, 0, str_offset(text, (uint32_t)s->precision));
    if (!text) return -E2BIG;
    add_field(b, text, s, '<');
    return render_scan(r, text->bytes);
}

/* The arguments of a % being used up. */
struct percent {
    struct value args;
    uint32_t next;
    bool used_name;
};

static int next_argument(struct render *r, struct percent *p, struct value *ret)
{
    bool many = p->args.kind == VALUE_TUPLE;
    if (p->next >= (many ? p->args.list->n : 1))
        return render_fail(r, -EPROTO, "too few values for the format");
    *ret = many ? p->args.list->items[p->next] : p->args;
    p->next++;
    return 0;
}

static int width_or_star(struct render *r, struct percent *p, const char **at, const char *end,
                         int64_t *ret)
{
    struct value v;
    if (*at >= end || **at != '*') return number(r, at, end, ret);
    ++*at;
    int e = next_argument(r, p, &v);
    if (e == 0) e = value_to_int(r, "a width", v, ret);
    if (e == 0 && (*ret > FORMAT_MAX_WIDTH || *ret < -FORMAT_MAX_WIDTH))
        return render_fail(r, -E2BIG, "a field is wider than %d", FORMAT_MAX_WIDTH);
    return e;
}

/* %(name)s takes from a dict. */
static int named_value(struct render *r, const struct str *format, struct percent *p,
                       const char **at, const char *end, struct value *ret)
{
    const char *close = memchr(*at, ')', (size_t)(end - *at));
    if (!close || p->args.kind != VALUE_DICT)
        return render_fail(r, -EPROTO, "a name in a format takes a dict");
    struct value *found;
    const struct str *name =
        str_sub(&r->arena, format, (uint32_t)(*at + 1 - format->text), (uint32_t)(close - *at - 1));
    if (!name) return -E2BIG;
    int e = dict_get_text(r, p->args.dict, name, &found);
    if (e == 0 && !found) e = render_fail(r, -EPROTO, "a name of the format is not in the dict");
    if (e < 0) return e;
    *ret = *found;
    *at = close + 1;
    p->used_name = true;
    return 0;
}

static int percent_spec(struct render *r, struct percent *p, const char **at, const char *end,
                        struct spec *s)
{
    for (; *at < end && **at && strchr("#0- +", **at); ++*at) {
        if (**at == '#') s->alternate = true;
        if (**at == '0') s->zero = true;
        if (**at == '-') s->align = '<';
        if (**at == '+' || (**at == ' ' && !s->sign)) s->sign = **at;
    }
    int e = width_or_star(r, p, at, end, &s->width);
    if (s->width < 0) {
        s->align = '<';
        s->width = -s->width;
    }
    if (e == 0 && *at < end && **at == '.') {
        ++*at;
        e = width_or_star(r, p, at, end, &s->precision);
        if (s->precision < 0) s->precision = 0;
    }
    while (*at < end && **at && strchr("hlL", **at))
        ++*at;
    if (e == 0 && *at == end) e = render_fail(r, -EPROTO, "a format ends too soon");
    return e;
}

static int percent_number(struct render *r, struct str_buf *b, struct value v, struct spec *s)
{
    if (!value_is_number(v))
        return render_fail(r, -EPROTO, "'%%%c' takes a number, not %s", s->type,
                           value_type_name(v));
    bool whole = strchr("diu", s->type) != NULL;
    if (!whole && strchr("xXo", s->type) && v.kind == VALUE_FLOAT)
        return render_fail(r, -EPROTO, "'%%%c' takes an integer", s->type);
    if (whole && v.kind == VALUE_FLOAT) {
        if (!(v.real > -9e18 && v.real < 9e18))
            return render_fail(r, -E2BIG, "a number does not fit into 64 bits");
        v = value_int((int64_t)v.real);
    }
    if (whole) s->type = 'd';
    return add_number(r, b, v, s);
}

/* The number may come from a message, and would spell anything: a character of it is a value. */
static int percent_char(struct render *r, struct str_buf *b, struct value v, struct spec *s)
{
    char text[5] = "";
    if (v.kind == VALUE_STR && v.str->chars == 1) return add_text(r, b, v.str, s);
    int64_t cp = value_is_integral(v) ? value_integer(v) : -1;
    if (cp < 0 || cp > 0x10ffff || (cp >= 0xd800 && cp < 0xe000))
        return render_fail(r, -EPROTO, "'%%c' takes a character");
    const struct str *c = str_new(&r->arena, text, utf8_put((uint32_t)cp, text), true);
    return c ? add_text(r, b, c, s) : -E2BIG;
}

static int percent_field(struct render *r, struct str_buf *b, struct percent *p,
                         const struct value *named, const char **at, const char *end)
{
    struct spec s = {.precision = -1};
    struct value v;
    const struct str *text;
    if (*at < end && **at == '%') {
        ++*at;
        buf_lit(b, "%");
        return 0;
    }
    int e = percent_spec(r, p, at, end, &s);
    if (e < 0) return e;
    s.type = *(*at)++;
    if (named)
        v = *named;
    else if ((e = next_argument(r, p, &v)) < 0)
        return e;
    if (s.type && strchr("diuxXofFeEgG", s.type)) return percent_number(r, b, v, &s);
    if (s.type == 'c') return percent_char(r, b, v, &s);
    if (s.type != 's' && s.type != 'r')
        return render_fail(r, -EPROTO, "a format has a character that it should not");
    struct str_buf repr = render_buf(r);
    if (s.type == 'r' && (e = value_repr(r, &repr, v)) == 0)
        e = buf_finish(&repr, &text);
    else if (e == 0)
        e = value_to_str(r, v, &text);
    if (!s.align) s.align = '>';
    return e < 0 ? e : add_text(r, b, text, &s);
}

static int add_piece(struct render *r, struct str_buf *b, const struct str *s, const char *from,
                     const char *to)
{
    const struct str *piece =
        str_sub(&r->arena, s, (uint32_t)(from - s->text), (uint32_t)(to - from));
    if (!piece) return -E2BIG;
    buf_str(b, piece);
    return render_scan(r, piece->bytes);
}

int format_percent(struct render *r, const struct str *format, struct value args, struct value *ret)
{
    struct percent p = {.args = args};
    struct str_buf b = render_buf(r);
    b.markup = format->markup;
    const char *at = format->text, *end = at + format->bytes;
    int e = 0;
    while (e == 0 && at < end) {
        const char *mark = memchr(at, '%', (size_t)(end - at));
        struct value named;
        e = add_piece(r, &b, format, at, mark ? mark : end);
        at = mark ? mark + 1 : end;
        if (e < 0 || !mark) break;
        bool has_name = at < end && *at == '(';
        if (has_name) e = named_value(r, format, &p, &at, end, &named);
        if (e == 0) e = percent_field(r, &b, &p, has_name ? &named : NULL, &at, end);
    }
    /* What Python takes for a mapping here is whatever has items. */
    bool is_mapping = args.kind == VALUE_DICT || args.kind == VALUE_LIST ||
                      args.kind == VALUE_RANGE || args.kind == VALUE_UNDEFINED;
    uint32_t n = args.kind == VALUE_TUPLE ? args.list->n : !is_mapping;
    if (e == 0 && p.next < n && !p.used_name)
        e = render_fail(r, -EPROTO, "not all values were used by the format");
    return e < 0 ? e : render_buf_value(&b, ret);
}

/* [[fill]align][sign][#][0][width][,][.precision][type] */
static int braces_spec(struct render *r, const char *at, const char *end, struct spec *s)
{
    uint32_t cp, n = at < end ? utf8_get(at, &cp) : 0;
    int e = 0;
    if (n && at + n < end && strchr("<>^=", at[n]) && at[n]) {
        memcpy(s->fill, at, n);
        s->align = at[n];
        at += n + 1;
    } else if (at < end && *at && strchr("<>^=", *at)) {
        s->align = *at++;
    }
    if (at < end && *at && strchr("+- ", *at)) s->sign = *at++;
    if (s->sign == '-') s->sign = 0;
    if (at < end && *at == '#') s->alternate = at++;
    if (at < end && *at == '0') s->zero = at++;
    e = number(r, &at, end, &s->width);
    if (at < end && *at == ',') s->comma = at++;
    if (e == 0 && at + 1 < end && *at == '.' && isdigit((unsigned char)at[1])) {
        at++;
        e = number(r, &at, end, &s->precision);
    }
    if (at < end) s->type = *at++;
    if (e == 0 && at < end) e = render_fail(r, -EPROTO, "a format specification is not understood");
    return e;
}

static int add_formatted(struct render *r, struct str_buf *b, struct value v, struct spec *s,
                         bool has_spec)
{
    const struct str *text;
    bool as_number =
        v.kind == VALUE_INT || v.kind == VALUE_FLOAT || (v.kind == VALUE_BOOL && has_spec);
    if (as_number) return add_number(r, b, v, s);
    if (v.kind != VALUE_STR && has_spec)
        return render_fail(r, -EPROTO, "%s takes no format specification", value_type_name(v));
    if (s->type && s->type != 's') return render_fail(r, -EPROTO, "a str has no such format");
    int e = value_to_str(r, v, &text);
    if (e == 0 && s->zero && !s->fill[0]) strcpy(s->fill, "0");
    return e < 0 ? e : add_text(r, b, text, s);
}

/* The value that a field names (next: of the next plain field; -1 when fields have numbers): "",
 * "0", "name", then ".attribute" and "[item]". */
static int field_value(struct render *r, const struct str *name, const struct args *args,
                       int64_t *next, struct value *ret)
{
    uint32_t n = 0;
    int64_t i = 0;
    while (n < name->bytes && name->text[n] != '.' && name->text[n] != '[')
        n++;
    bool digits = n > 0 && n < 6;
    for (uint32_t at = 0; at < n && digits; at++) {
        digits = isdigit((unsigned char)name->text[at]);
        i = i * 10 + name->text[at] - '0';
    }
    const struct str *first = str_sub(&r->arena, name, 0, n);
    if (!first) return -E2BIG;
    if (n == 0 || digits) {
        if (digits ? *next > 0 : *next < 0)
            return render_fail(r, -EPROTO, "a format mixes numbered and plain fields");
        if (n == 0) i = *next;
        *next = digits ? -1 : *next + 1;
        if (i >= args->n_pos) return render_fail(r, -EPROTO, "too few values for the format");
        *ret = args->pos[i];
    } else {
        uint32_t at = 0;
        while (at < args->n_named && !str_equal(args->names[at], first))
            at++;
        if (at == args->n_named) return render_fail(r, -EPROTO, "a name of the format is missing");
        *ret = args->named[at];
    }
    if (n < name->bytes) return render_fail(r, -EPROTO, "attributes in a format are not supported");
    return 0;
}

static int braces_field(struct render *r, struct str_buf *b, const struct str *field,
                        const struct args *args, int64_t *next)
{
    struct spec s = {.precision = -1};
    struct value v;
    const char *end = field->text + field->bytes;
    const char *colon = memchr(field->text, ':', field->bytes);
    const char *name_end = colon ? colon : end,
               *bang = memchr(field->text, '!', (size_t)(name_end - field->text));
    if (bang) name_end = bang;
    const struct str *name = str_sub(&r->arena, field, 0, (uint32_t)(name_end - field->text));
    int e = name ? field_value(r, name, args, next, &v) : -E2BIG;
    if (e == 0 && colon) e = braces_spec(r, colon + 1, end, &s);
    if (e < 0) return e;
    char conversion = bang && bang + 2 == (colon ? colon : end) ? bang[1] : 0;
    if (bang && conversion != 'r' && conversion != 's')
        return render_fail(r, -EPROTO, "a format has an unknown conversion");
    struct str_buf text = render_buf(r);
    if (conversion == 'r') e = value_repr(r, &text, v);
    if (conversion == 's') e = value_print(r, &text, v);
    if (e == 0 && conversion) e = render_buf_value(&text, &v);
    return e < 0 ? e : add_formatted(r, b, v, &s, colon && colon + 1 < end);
}

int format_braces(struct render *r, const struct str *format, const struct args *args,
                  struct value *ret)
{
    struct str_buf b = render_buf(r);
    b.markup = format->markup;
    const char *at = format->text, *end = at + format->bytes;
    int64_t next = 0;
    int e = 0;
    while (e == 0 && at < end) {
        const char *mark = at;
        while (mark < end && *mark != '{' && *mark != '}')
            mark++;
        bool doubled = mark + 1 < end && mark[1] == *mark;
        e = add_piece(r, &b, format, at, doubled ? mark + 1 : mark);
        at = doubled ? mark + 2 : mark;
        if (e < 0 || doubled || mark == end) continue;
        const char *close = *mark == '{' ? memchr(mark, '}', (size_t)(end - mark)) : NULL;
        if (!close) return render_fail(r, -EPROTO, "a format has a single brace");
        const struct str *field = str_sub(&r->arena, format, (uint32_t)(mark + 1 - format->text),
                                          (uint32_t)(close - mark - 1));
        e = field ? braces_field(r, &b, field, args, &next) : -E2BIG;
        at = close + 1;
    }
    return e < 0 ? e : render_buf_value(&b, ret);
}
