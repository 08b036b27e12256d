/* SPDX-License-Identifier: MIT */
/* Owns the methods of str: what their arguments mean. The work is done in text.c. */
#include "gateway/template/method.h"
#include "gateway/template/text.h"

#include <errno.h>
#include <string.h>

#define METHOD(name)                                                                               \
    static int of_##name(struct render *r, struct value self, const struct args *args,             \
                         struct value *ret)

static int take_str(struct render *r, struct value v, const struct str **ret)
{
    if (v.kind != VALUE_STR)
        return render_fail(r, -EPROTO, "a method of str takes a str, not %s", value_type_name(v));
    *ret = v.str;
    return 0;
}

/* None and a missing argument are the same to these methods. */
static int take_optional_str(struct render *r, struct value v, const struct str **ret)
{
    *ret = NULL;
    return v.kind == VALUE_NONE || !value_given(v) ? 0 : take_str(r, v, ret);
}

static int take_optional_int(struct render *r, struct value v, int64_t missing, int64_t *ret)
{
    *ret = missing;
    return value_given(v) ? value_to_int(r, "a method of str", v, ret) : 0;
}

static int change_case(struct render *r, struct value self, const struct args *args,
                       enum text_case how, struct value *ret)
{
    int e = args_take(r, "a method of str", args, "", 0, NULL);
    return e < 0 ? e : text_case(r, self.str, how, ret);
}

METHOD(lower) { return change_case(r, self, args, TEXT_LOWER, ret); }
METHOD(upper) { return change_case(r, self, args, TEXT_UPPER, ret); }
METHOD(title) { return change_case(r, self, args, TEXT_TITLE, ret); }
METHOD(capitalize) { return change_case(r, self, args, TEXT_CAPITALIZE, ret); }
METHOD(swapcase) { return change_case(r, self, args, TEXT_SWAP, ret); }

static int strip(struct render *r, struct value self, const struct args *args, bool left,
                 bool right, struct value *ret)
{
    struct value v;
    const struct str *chars;
    int e = args_take(r, "strip()", args, "chars", 0, &v);
    if (e == 0) e = take_optional_str(r, v, &chars);
    return e < 0 ? e : text_strip(r, self.str, chars, left, right, ret);
}

METHOD(strip) { return strip(r, self, args, true, true, ret); }
METHOD(lstrip) { return strip(r, self, args, true, false, ret); }
METHOD(rstrip) { return strip(r, self, args, false, true, ret); }

static int split(struct render *r, struct value self, const struct args *args, bool from_right,
                 struct value *ret)
{
    struct value v[2];
    const struct str *separator = NULL;
    int64_t max;
    int e = args_take(r, "split()", args, "sep maxsplit", 0, v);
    if (e == 0) e = take_optional_str(r, v[0], &separator);
    if (e == 0) e = take_optional_int(r, v[1], -1, &max);
    return e < 0 ? e : text_split(r, self.str, separator, max, from_right, ret);
}

METHOD(split) { return split(r, self, args, false, ret); }
METHOD(rsplit) { return split(r, self, args, true, ret); }

METHOD(splitlines)
{
    struct value v;
    struct list lines;
    int e = args_take(r, "splitlines()", args, "keepends", 0, &v);
    if (e == 0) e = text_split_lines(r, self.str, value_given(v) && value_truth(v), &lines);
    return e < 0 ? e : value_list(r, VALUE_LIST, lines.items, lines.n, ret);
}

/* The part of the text that start and end name, as bytes from..to. false: start is behind the end,
 * where nothing is found, not even an empty string. */
static int take_bounds(struct render *r, const struct str *s, const struct value v[2],
                       uint32_t *ret_from, uint32_t *ret_to, bool *ret_any)
{
    int64_t bound[2] = {0, s->chars};
    for (int i = 0; i < 2; i++) {
        if (!value_given(v[i]) || v[i].kind == VALUE_NONE) continue;
        int e = value_to_int(r, "a method of str", v[i], &bound[i]);
        if (e < 0) return e;
        if (bound[i] < 0) bound[i] += s->chars;
        if (bound[i] < 0) bound[i] = 0;
    }
    *ret_any = bound[0] <= s->chars && bound[0] <= bound[1];
    if (bound[1] > s->chars) bound[1] = s->chars;
    if (bound[0] > bound[1]) bound[0] = bound[1];
    *ret_from = str_offset(s, (uint32_t)bound[0]);
    *ret_to = str_offset(s, (uint32_t)bound[1]);
    return render_scan(r, s->bytes);
}

/* The place of a string, in code points, or -1. */
static int find(struct render *r, struct value self, const struct args *args, bool last,
                int64_t *ret)
{
    struct value v[3];
    const struct str *sub = NULL;
    uint32_t from, to;
    bool any;
    int e = args_take(r, "find()", args, "sub start end", 1, v);
    if (e == 0) e = take_str(r, v[0], &sub);
    if (e == 0) e = take_bounds(r, self.str, v + 1, &from, &to, &any);
    if (e == 0 && last) e = render_scan(r, (uint64_t)self.str->bytes * sub->bytes);
    if (e < 0) return e;
    int64_t at = last ? str_rfind(self.str, sub, from, to) : str_find(self.str, sub, from);
    bool found = any && at >= 0 && at + sub->bytes <= to;
    *ret = found ? (int64_t)str_index(self.str, (uint32_t)at) : -1;
    return 0;
}

METHOD(find)
{
    ret->kind = VALUE_INT;
    return find(r, self, args, false, &ret->integer);
}

METHOD(rfind)
{
    ret->kind = VALUE_INT;
    return find(r, self, args, true, &ret->integer);
}

static int found(struct render *r, struct value v)
{
    return v.integer < 0 ? render_fail(r, -EPROTO, "index(): the substring is not there") : 0;
}

METHOD(index)
{
    int e = of_find(r, self, args, ret);
    return e < 0 ? e : found(r, *ret);
}

METHOD(rindex)
{
    int e = of_rfind(r, self, args, ret);
    return e < 0 ? e : found(r, *ret);
}

METHOD(count)
{
    struct value v[3];
    const struct str *sub = NULL;
    uint32_t from, to;
    bool any;
    int64_t n = 0;
    int e = args_take(r, "count()", args, "sub start end", 1, v);
    if (e == 0) e = take_str(r, v[0], &sub);
    if (e == 0) e = take_bounds(r, self.str, v + 1, &from, &to, &any);
    if (e < 0) return e;
    if (any && !sub->bytes) n = (int64_t)utf8_count(self.str->text + from, to - from) + 1;
    for (int64_t at = from; sub->bytes; n++) {
        at = str_find(self.str, sub, (uint32_t)at);
        if (at < 0 || at + sub->bytes > to) break;
        at += sub->bytes;
    }
    *ret = value_int(n);
    return 0;
}

/* startswith and endswith take one string or a tuple of them. */
static int ends(struct render *r, struct value self, const struct args *args, bool at_start,
                struct value *ret)
{
    struct value v[3];
    uint32_t from, to;
    bool any;
    int e = args_take(r, "startswith()", args, "prefix start end", 1, v);
    if (e == 0) e = take_bounds(r, self.str, v + 1, &from, &to, &any);
    if (e < 0) return e;
    struct list choices = {.items = v, .n = 1};
    if (v[0].kind == VALUE_TUPLE) choices = *v[0].list;
    *ret = value_bool(false);
    for (uint32_t i = 0; i < choices.n && !ret->boolean; i++) {
        const struct str *s = NULL;
        e = take_str(r, choices.items[i], &s);
        if (e == 0) e = render_scan(r, s->bytes);
        if (e < 0) return e;
        const char *at = self.str->text + (at_start ? from : to - min_u32(s->bytes, to));
        bool fits = any && s->bytes <= to - from;
        ret->boolean = fits && memcmp(at, s->text, s->bytes) == 0;
    }
    return 0;
}

METHOD(startswith) { return ends(r, self, args, true, ret); }
METHOD(endswith) { return ends(r, self, args, false, ret); }

METHOD(replace)
{
    struct value v[3];
    const struct str *old = NULL, *new = NULL;
    int64_t count;
    int e = args_take(r, "replace()", args, "old new count", 2, v);
    if (e == 0) e = take_str(r, v[0], &old);
    if (e == 0) e = take_str(r, v[1], &new);
    if (e == 0) e = take_optional_int(r, v[2], -1, &count);
    return e < 0 ? e : text_replace(r, self.str, old, new, count, ret);
}

METHOD(join)
{
    struct value v;
    struct list items;
    int e = args_take(r, "join()", args, "iterable", 1, &v);
    if (e == 0) e = value_items(r, v, &items);
    struct str_buf b = render_buf(r);
    b.markup = self.str->markup;
    for (uint32_t i = 0; e == 0 && i < items.n; i++) {
        const struct str *s = NULL;
        e = take_str(r, items.items[i], &s);
        if (e < 0) return e;
        if (i) buf_str(&b, self.str);
        buf_str(&b, s);
        e = render_scan(r, s->bytes);
    }
    return e < 0 ? e : render_buf_value(&b, ret);
}

static int partition(struct render *r, struct value self, const struct args *args, bool last,
                     struct value *ret)
{
    struct value v, parts[3];
    const struct str *sep = NULL, *s = self.str;
    int e = args_take(r, "partition()", args, "sep", 1, &v);
    if (e == 0) e = take_str(r, v, &sep);
    if (e == 0 && !sep->bytes) e = render_fail(r, -EPROTO, "an empty separator");
    if (e == 0) e = render_scan(r, (uint64_t)s->bytes * (last ? sep->bytes : 1));
    if (e < 0) return e;
    int64_t at = last ? str_rfind(s, sep, 0, s->bytes) : str_find(s, sep, 0);
    uint32_t from = at >= 0 ? (uint32_t)at : last ? 0 : s->bytes;
    uint32_t to = at >= 0 ? from + sep->bytes : from;
    const struct str *texts[] = {str_sub(&r->arena, s, 0, from),
                                 str_sub(&r->arena, s, from, to - from),
                                 str_sub(&r->arena, s, to, s->bytes - to)};
    for (int i = 0; i < 3; i++) {
        if (!texts[i]) return -E2BIG;
        parts[i] = value_str(texts[i]);
    }
    return value_list(r, VALUE_TUPLE, parts, 3, ret);
}

METHOD(partition) { return partition(r, self, args, false, ret); }
METHOD(rpartition) { return partition(r, self, args, true, ret); }

METHOD(removeprefix)
{
    struct value v, there;
    int e = args_take(r, "removeprefix()", args, "prefix", 1, &v);
    if (e == 0) e = ends(r, self, &(struct args){.pos = &v, .n_pos = 1}, true, &there);
    if (e < 0) return e;
    uint32_t n = there.boolean && v.kind == VALUE_STR ? v.str->bytes : 0;
    const struct str *s = str_sub(&r->arena, self.str, n, self.str->bytes - n);
    if (s) *ret = value_str(s);
    return s ? 0 : -E2BIG;
}

METHOD(removesuffix)
{
    struct value v, there;
    int e = args_take(r, "removesuffix()", args, "suffix", 1, &v);
    if (e == 0) e = ends(r, self, &(struct args){.pos = &v, .n_pos = 1}, false, &there);
    if (e < 0) return e;
    uint32_t n = there.boolean && v.kind == VALUE_STR ? v.str->bytes : 0;
    const struct str *s = str_sub(&r->arena, self.str, 0, self.str->bytes - n);
    if (s) *ret = value_str(s);
    return s ? 0 : -E2BIG;
}

static int pad(struct render *r, struct value self, const struct args *args, char how,
               struct value *ret)
{
    struct value v[2];
    const struct str *fill;
    int64_t width;
    int e = args_take(r, "a method that pads", args, "width fillchar", 1, v);
    if (e == 0) e = take_optional_int(r, v[0], 0, &width);
    if (e == 0) e = take_optional_str(r, v[1], &fill);
    return e < 0 ? e : text_pad(r, self.str, width, fill, how, ret);
}

METHOD(center) { return pad(r, self, args, '^', ret); }
METHOD(ljust) { return pad(r, self, args, '<', ret); }
METHOD(rjust) { return pad(r, self, args, '>', ret); }

METHOD(zfill)
{
    struct value v, digits, padded;
    const struct str *zero = str_lit(&r->arena, "0");
    int64_t width;
    int e = args_take(r, "zfill()", args, "width", 1, &v);
    if (e == 0) e = value_to_int(r, "zfill()", v, &width);
    if (e < 0 || !zero) return e < 0 ? e : -E2BIG;
    uint32_t sign = self.str->bytes && (self.str->text[0] == '-' || self.str->text[0] == '+');
    const struct str *rest = str_sub(&r->arena, self.str, sign, self.str->bytes - sign);
    const struct str *mark = str_sub(&r->arena, self.str, 0, sign);
    if (!rest || !mark) return -E2BIG;
    digits = value_str(rest);
    if (width > 0) width -= sign;
    e = text_pad(r, digits.str, width, zero, '>', &padded);
    struct str_buf b = render_buf(r);
    buf_str(&b, mark);
    if (e == 0) buf_str(&b, padded.str);
    return e < 0 ? e : render_buf_value(&b, ret);
}

METHOD(format) { return format_braces(r, self.str, args, ret); }

static bool is_ascii(uint32_t cp) { return cp < 0x80; }
static bool is_alnum(uint32_t cp) { return unicode_is_alpha(cp) || unicode_is_decimal(cp); }

static bool is_cased_as(uint32_t cp, enum unicode_case as)
{
    uint32_t to[UNICODE_MAX_FULL];
    return !unicode_is_cased(cp) || (unicode_to(as, cp, to) == 1 && to[0] == cp);
}
static bool is_lower(uint32_t cp) { return is_cased_as(cp, UNICODE_LOWER); }
static bool is_upper(uint32_t cp) { return is_cased_as(cp, UNICODE_UPPER); }

/* Whether the test holds for every character, and the other one for some. */
static int all(struct render *r, struct value self, const struct args *args, bool (*test)(uint32_t),
               bool (*some)(uint32_t), struct value *ret)
{
    int e = args_take(r, "a method of str", args, "", 0, NULL);
    if (e == 0) e = render_step(r, 1 + self.str->bytes / 8);
    bool any = !some, every = true;
    for (uint32_t off = 0; e == 0 && every && off < self.str->bytes;) {
        uint32_t cp;
        off += utf8_get(self.str->text + off, &cp);
        every = test(cp);
        any = any || some(cp);
    }
    *ret = value_bool(any && every);
    return e;
}

METHOD(isalpha) { return all(r, self, args, unicode_is_alpha, unicode_is_alpha, ret); }
METHOD(isalnum) { return all(r, self, args, is_alnum, is_alnum, ret); }
METHOD(isdigit) { return all(r, self, args, unicode_is_decimal, unicode_is_decimal, ret); }
METHOD(isspace) { return all(r, self, args, unicode_is_space, unicode_is_space, ret); }
METHOD(islower) { return all(r, self, args, is_lower, unicode_is_cased, ret); }
METHOD(isupper) { return all(r, self, args, is_upper, unicode_is_cased, ret); }
METHOD(isascii) { return all(r, self, args, is_ascii, NULL, ret); }
METHOD(isprintable) { return all(r, self, args, unicode_is_printable, NULL, ret); }

const struct method *method_of_str(const struct str *name)
{
#define ROW(name)                                                                                  \
    {                                                                                              \
#name, of_##name                                                                           \
    }
    static const struct method methods[] = {
        ROW(strip),
        ROW(lstrip),
        ROW(rstrip),
        ROW(split),
        ROW(startswith),
        ROW(endswith),
        ROW(replace),
        ROW(lower),
        ROW(upper),
        ROW(title),
        ROW(capitalize),
        ROW(join),
        ROW(find),
        ROW(rfind),
        ROW(index),
        ROW(rindex),
        ROW(count),
        ROW(rsplit),
        ROW(splitlines),
        ROW(partition),
        ROW(rpartition),
        ROW(removeprefix),
        ROW(removesuffix),
        ROW(center),
        ROW(ljust),
        ROW(rjust),
        ROW(zfill),
        ROW(format),
        ROW(swapcase),
        ROW(isalpha),
        ROW(isalnum),
        ROW(isdigit),
        ROW(isspace),
        ROW(islower),
        ROW(isupper),
        ROW(isascii),
        ROW(isprintable),
        {"casefold",  of_lower  },
        {"isdecimal", of_isdigit},
        {"isnumeric", of_isdigit},
    };
#undef ROW
    for (size_t i = 0; i < ARRAY_LEN(methods); i++)
        if (str_is(name, methods[i].name)) return &methods[i];
    return NULL;
}
