/* SPDX-License-Identifier: MIT */
/* Owns the algorithms of str's methods that filters share. Pure but for the render's budget. */
#include "gateway/template/text.h"

#include <errno.h>
#include <string.h>

static void add_cased(struct str_buf *b, uint32_t cp, enum unicode_case to, bool from_value)
{
    uint32_t out[UNICODE_MAX_FULL], n = unicode_to(to, cp, out);
    for (uint32_t i = 0; i < n; i++)
        buf_char(b, out[i], from_value);
}

static bool starts_word(enum text_case how, bool first, uint32_t previous)
{
    if (how == TEXT_CAPITALIZE || first) return first;
    if (how == TEXT_TITLE) return !unicode_is_cased(previous);
    return unicode_is_space(previous) || previous == '-' || previous == '(' || previous == '{' ||
           previous == '[' || previous == '<';
}

static enum unicode_case case_of(enum text_case how, bool starts, uint32_t cp)
{
    uint32_t to[UNICODE_MAX_FULL];
    bool is_lower = unicode_to(UNICODE_LOWER, cp, to) == 1 && to[0] == cp;
    if (how == TEXT_LOWER) return UNICODE_LOWER;
    if (how == TEXT_UPPER) return UNICODE_UPPER;
    if (how == TEXT_SWAP) return is_lower ? UNICODE_UPPER : UNICODE_LOWER;
    if (!starts) return UNICODE_LOWER;
    return how == TEXT_TITLE_FILTER ? UNICODE_UPPER : UNICODE_TITLE;
}

/* Unicode 3.13, Final_Sigma, without the case-ignorable characters between. */
static bool is_final_sigma(const struct str *s, uint32_t off, uint32_t previous)
{
    uint32_t next = 0, cp, n = utf8_get(s->text + off, &cp);
    if (cp != 0x3a3 || !previous || !unicode_is_cased(previous)) return false;
    if (off + n < s->bytes) (void)utf8_get(s->text + off + n, &next);
    return !next || !unicode_is_cased(next);
}

int text_case(struct render *r, const struct str *s, enum text_case how, struct value *ret)
{
    struct str_buf b = render_buf(r);
    b.markup = s->markup;
    int e = render_step(r, 1 + s->bytes / 8); /* tables are searched for each character */
    if (e < 0) return e;
    uint32_t previous = 0, before_sigma = 0;
    for (uint32_t off = 0; off < s->bytes && !b.failed;) {
        uint32_t cp, n = utf8_get(s->text + off, &cp);
        bool from_value = str_from_value_at(s, off);
        bool starts = starts_word(how, off == 0, previous);
        enum unicode_case to = case_of(how, starts, cp);
        if (to == UNICODE_LOWER && is_final_sigma(s, off, before_sigma))
            buf_char(&b, 0x3c2, from_value);
        else
            add_cased(&b, cp, to, from_value);
        previous = cp;
        /* jinja2 lowers the rest of a word by itself, so a sigma there has nothing before it. */
        before_sigma = how == TEXT_TITLE_FILTER && starts ? 0 : cp;
        off += n;
    }
    return render_buf_value(&b, ret);
}

static bool strips(const struct str *chars, const char *at, uint32_t n, uint32_t cp)
{
    return chars ? memmem(chars->text, chars->bytes, at, n) != NULL : unicode_is_space(cp);
}

int text_strip(struct render *r, const struct str *s, const struct str *chars, bool left,
               bool right, struct value *ret)
{
    uint32_t from = 0, to = s->bytes, cp;
    while (left && from < to) {
        uint32_t n = utf8_get(s->text + from, &cp);
        if (!strips(chars, s->text + from, n, cp)) break;
        from += n;
    }
    while (right && to > from) {
        uint32_t at = to - 1;
        while (((uint8_t)s->text[at] & 0xc0) == 0x80)
            at--;
        uint32_t n = utf8_get(s->text + at, &cp);
        if (!strips(chars, s->text + at, n, cp)) break;
        to = at;
    }
    uint64_t tried = 1 + from + (s->bytes - to);
    int e = render_scan(r, tried * (chars ? 1 + chars->bytes : 1));
    if (e < 0) return e;
    const struct str *out = str_sub(&r->arena, s, from, to - from);
    if (!out) return -E2BIG;
    *ret = value_str(out);
    return 0;
}

/* A list that grows at its end. */
struct grown {
    struct list list;
    uint32_t cap;
};

static int grow(struct render *r, struct grown *g, const struct str *s, uint32_t from, uint32_t to)
{
    const struct str *piece = str_sub(&r->arena, s, from, to - from);
    if (!piece) return -E2BIG;
    if (g->list.n == g->cap) {
        uint32_t cap = g->cap ? g->cap * 2 : 8;
        struct value *items =
            arena_grow(&r->arena, g->list.items, g->cap * sizeof(*items), cap * sizeof(*items));
        if (!items) return -E2BIG;
        g->list.items = items;
        g->cap = cap;
    }
    g->list.items[g->list.n++] = value_str(piece);
    return render_step(r, 1);
}

static bool space_at(const struct str *s, uint32_t off, uint32_t *ret_bytes)
{
    uint32_t cp;
    *ret_bytes = utf8_get(s->text + off, &cp);
    return unicode_is_space(cp);
}

static uint32_t skip(const struct str *s, uint32_t off, bool spaces)
{
    uint32_t n;
    while (off < s->bytes && space_at(s, off, &n) == spaces)
        off += n;
    return off;
}

static uint32_t skip_back(const struct str *s, uint32_t end, bool spaces)
{
    while (end > 0) {
        uint32_t n, at = end - 1;
        while (((uint8_t)s->text[at] & 0xc0) == 0x80)
            at--;
        if (space_at(s, at, &n) != spaces) break;
        end = at;
    }
    return end;
}

static int split_spaces(struct render *r, const struct str *s, int64_t max, struct grown *g)
{
    int e = 0;
    uint32_t from = skip(s, 0, true);
    while (e == 0 && from < s->bytes) {
        uint32_t to = max == 0 ? s->bytes : skip(s, from, false);
        e = grow(r, g, s, from, to);
        from = skip(s, to, true);
        if (max > 0) max--;
    }
    return e;
}

static int rsplit_spaces(struct render *r, const struct str *s, int64_t max, struct grown *g)
{
    int e = 0;
    uint32_t to = skip_back(s, s->bytes, true);
    while (e == 0 && to > 0) {
        uint32_t from = max == 0 ? 0 : skip_back(s, to, false);
        e = grow(r, g, s, from, to);
        to = skip_back(s, from, true);
        if (max > 0) max--;
    }
    return e;
}

static int split_at(struct render *r, const struct str *s, const struct str *sep, int64_t max,
                    struct grown *g)
{
    uint32_t from = 0;
    for (; max != 0; max -= max > 0) {
        int64_t at = str_find(s, sep, from);
        if (at < 0) break;
        int e = grow(r, g, s, from, (uint32_t)at);
        if (e < 0) return e;
        from = (uint32_t)at + sep->bytes;
    }
    return grow(r, g, s, from, s->bytes);
}

static int rsplit_at(struct render *r, const struct str *s, const struct str *sep, int64_t max,
                     struct grown *g)
{
    uint32_t to = s->bytes;
    for (; max != 0; max -= max > 0) {
        int64_t at = str_rfind(s, sep, 0, to);
        if (at < 0) break;
        int e = grow(r, g, s, (uint32_t)at + sep->bytes, to);
        if (e < 0) return e;
        to = (uint32_t)at;
    }
    return grow(r, g, s, 0, to);
}

static void reverse(struct list *l)
{
    for (uint32_t i = 0; i < l->n / 2; i++) {
        struct value v = l->items[i];
        l->items[i] = l->items[l->n - 1 - i];
        l->items[l->n - 1 - i] = v;
    }
}

int text_split(struct render *r, const struct str *s, const struct str *separator, int64_t max,
               bool from_right, struct value *ret)
{
    struct grown g = {0};
    if (separator && !separator->bytes) return render_fail(r, -EPROTO, "an empty separator");
    /* Looking backwards compares at each byte, for as long as the separator is. */
    int e = render_scan(r, (uint64_t)s->bytes * (from_right && separator ? separator->bytes : 1));
    if (e < 0) return e;
    if (separator)
        e = from_right ? rsplit_at(r, s, separator, max, &g) : split_at(r, s, separator, max, &g);
    else
        e = from_right ? rsplit_spaces(r, s, max, &g) : split_spaces(r, s, max, &g);
    if (from_right) reverse(&g.list);
    return e < 0 ? e : value_list(r, VALUE_LIST, g.list.items, g.list.n, ret);
}

int text_split_lines(struct render *r, const struct str *s, bool keep_ends, struct list *ret)
{
    struct grown g = {0};
    int e = render_scan(r, s->bytes);
    uint32_t from = 0, off = 0;
    while (e == 0 && off < s->bytes) {
        uint32_t cp, n = utf8_get(s->text + off, &cp), end = off;
        off += n;
        if (!unicode_is_line_end(cp)) continue;
        if (cp == '\r' && off < s->bytes && s->text[off] == '\n') off++;
        e = grow(r, &g, s, from, keep_ends ? off : end);
        from = off;
    }
    if (e == 0 && from < s->bytes) e = grow(r, &g, s, from, s->bytes);
    *ret = g.list;
    return e;
}

/* str.replace with an empty old: the new text goes before each character and at the end. */
static void replace_between(const struct str *s, const struct str *new, int64_t count,
                            struct str_buf *b, struct arena *a)
{
    for (uint32_t off = 0; !b->failed; count -= count > 0) {
        if (count == 0) {
            const struct str *rest = str_sub(a, s, off, s->bytes - off);
            b->failed = b->failed || !rest;
            if (rest) buf_str(b, rest);
            return;
        }
        buf_str(b, new);
        if (off == s->bytes) return;
        uint32_t cp, n = utf8_get(s->text + off, &cp);
        buf_add(b, s->text + off, n, str_from_value_at(s, off));
        off += n;
    }
}

int text_replace(struct render *r, const struct str *s, const struct str *old,
                 const struct str *new, int64_t count, struct value *ret)
{
    struct str_buf b = render_buf(r);
    b.markup = s->markup;
    int e = render_scan(r, s->bytes);
    uint32_t from = 0;
    if (!old->bytes) {
        replace_between(s, new, count, &b, &r->arena);
        count = 0;
        from = s->bytes;
    }
    for (; e == 0 && count != 0; count -= count > 0) {
        int64_t at = str_find(s, old, from);
        if (at < 0) break;
        const struct str *kept = str_sub(&r->arena, s, from, (uint32_t)at - from);
        if (!kept) return -E2BIG;
        buf_str(&b, kept);
        buf_str(&b, new);
        from = (uint32_t)at + old->bytes;
        e = render_step(r, 1);
    }
    if (e < 0) return e;
    const struct str *rest = str_sub(&r->arena, s, from, s->bytes - from);
    if (!rest) return -E2BIG;
    buf_str(&b, rest);
    return render_buf_value(&b, ret);
}

int text_pad(struct render *r, const struct str *s, int64_t width, const struct str *fill, char how,
             struct value *ret)
{
    if (fill && fill->chars != 1)
        return render_fail(r, -EPROTO, "text is filled with one character");
    int64_t pad = width > (int64_t)s->chars ? width - s->chars : 0;
    /* CPython's str.center puts the odd one to the left when both are odd. */
    int64_t left = how == '>' ? pad : how == '<' ? 0 : pad / 2 + (pad & width & 1);
    int e = render_step(r, (uint64_t)pad);
    if (e < 0) return e;
    struct str_buf b = render_buf(r);
    b.markup = s->markup;
    for (int64_t i = 0; i <= pad && !b.failed; i++) {
        if (i == left) buf_str(&b, s);
        if (i == pad) break;
        if (fill)
            buf_str(&b, fill);
        else
            buf_lit(&b, " ");
    }
    return render_buf_value(&b, ret);
}
