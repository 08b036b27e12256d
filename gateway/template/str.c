/* SPDX-License-Identifier: MIT */
/* Owns the representation of text with its origin. Used by everything in the template engine; knows
 * nothing of values or templates. */
#include "gateway/template/str.h"

#include <assert.h>
#include <errno.h>
#include <string.h>

#include "gateway/ascii.h"

uint32_t utf8_get(const char *text, uint32_t *ret)
{
    const uint8_t *p = (const uint8_t *)text;
    if (p[0] < 0x80) {
        *ret = p[0];
        return 1;
    }
    if (p[0] < 0xe0) {
        *ret = (p[0] & 0x1fu) << 6 | (p[1] & 0x3fu);
        return 2;
    }
    if (p[0] < 0xf0) {
        *ret = (p[0] & 0xfu) << 12 | (p[1] & 0x3fu) << 6 | (p[2] & 0x3fu);
        return 3;
    }
    *ret = (p[0] & 7u) << 18 | (p[1] & 0x3fu) << 12 | (p[2] & 0x3fu) << 6 | (p[3] & 0x3fu);
    return 4;
}

uint32_t utf8_put(uint32_t cp, char *ret)
{
    uint8_t *p = (uint8_t *)ret;
    if (cp < 0x80) {
        p[0] = (uint8_t)cp;
        return 1;
    }
    if (cp < 0x800) {
        p[0] = (uint8_t)(0xc0 | cp >> 6);
        p[1] = (uint8_t)(0x80 | (cp & 0x3f));
        return 2;
    }
    if (cp < 0x10000) {
        p[0] = (uint8_t)(0xe0 | cp >> 12);
        p[1] = (uint8_t)(0x80 | (cp >> 6 & 0x3f));
        p[2] = (uint8_t)(0x80 | (cp & 0x3f));
        return 3;
    }
    p[0] = (uint8_t)(0xf0 | cp >> 18);
    p[1] = (uint8_t)(0x80 | (cp >> 12 & 0x3f));
    p[2] = (uint8_t)(0x80 | (cp >> 6 & 0x3f));
    p[3] = (uint8_t)(0x80 | (cp & 0x3f));
    return 4;
}

bool utf8_valid(const char *text, size_t bytes)
{
    const uint8_t *p = (const uint8_t *)text, *end = p + bytes;
    while ((p += ascii_bytes(p, (size_t)(end - p))) < end) {
        uint32_t n = *p < 0xc2 ? 0 : *p < 0xe0 ? 2 : *p < 0xf0 ? 3 : *p < 0xf5 ? 4 : 0;
        if (n == 0 || n > (size_t)(end - p)) return false;
        for (uint32_t i = 1; i < n; i++)
            if ((p[i] & 0xc0) != 0x80) return false;
        uint32_t cp;
        (void)utf8_get((const char *)p, &cp);
        if (n == 3 && (cp < 0x800 || (cp >= 0xd800 && cp < 0xe000))) return false;
        if (n == 4 && (cp < 0x10000 || cp > 0x10ffff)) return false;
        p += n;
    }
    return true;
}

uint32_t utf8_count(const char *text, size_t bytes)
{
    uint32_t n = 0;
    for (size_t i = 0; i < bytes; i++)
        n += ((uint8_t)text[i] & 0xc0) != 0x80;
    return n;
}

const struct str *str_new(struct arena *a, const char *text, size_t bytes, bool from_value)
{
    if (bytes > STR_MAX_BYTES) {
        (void)why_set(a->why, -E2BIG, "a string of %zu bytes is too long", bytes);
        return NULL;
    }
    struct str *s = arena_zero(a, 1, sizeof(*s));
    if (!s) return NULL;
    s->text = text;
    s->bytes = (uint32_t)bytes;
    s->chars = utf8_count(text, bytes);
    s->from_value = from_value;
    return s;
}

const struct str *str_lit(struct arena *a, const char *text)
{
    return str_new(a, text, strlen(text), false);
}

/* The first run that ends after off. */
static uint32_t run_at(const struct str *s, uint32_t off)
{
    uint32_t low = 0, high = s->n_runs - 1;
    while (low < high) {
        uint32_t mid = (low + high) / 2;
        if (s->runs[mid].end > off)
            high = mid;
        else
            low = mid + 1;
    }
    return low;
}

bool str_from_value_at(const struct str *s, uint32_t off)
{
    return s->n_runs ? s->runs[run_at(s, off)].from_value : s->from_value;
}

const struct str *str_sub(struct arena *a, const struct str *s, uint32_t off, uint32_t bytes)
{
    assert(off <= s->bytes && bytes <= s->bytes - off);
    if (bytes == s->bytes) return s;
    struct str *sub = arena_zero(a, 1, sizeof(*sub));
    if (!sub) return NULL;
    sub->text = s->text + off;
    sub->bytes = bytes;
    sub->chars = s->chars == s->bytes ? bytes : utf8_count(sub->text, bytes);
    sub->markup = s->markup;
    sub->from_value = s->from_value;
    if (!s->n_runs || !bytes) return sub;
    uint32_t first = run_at(s, off), last = run_at(s, off + bytes - 1);
    sub->from_value = s->runs[first].from_value;
    if (first == last) return sub;
    struct str_run *runs = arena_zero(a, last - first + 1, sizeof(*runs));
    if (!runs) return NULL;
    for (uint32_t i = first; i <= last; i++) {
        runs[i - first] = s->runs[i];
        runs[i - first].end = min_u32(s->runs[i].end - off, bytes);
    }
    sub->runs = runs;
    sub->n_runs = last - first + 1;
    return sub;
}

const struct str *str_as_markup(struct arena *a, const struct str *s, bool markup)
{
    if (s->markup == markup) return s;
    struct str *copy = arena_zero(a, 1, sizeof(*copy));
    if (!copy) return NULL;
    *copy = *s;
    copy->markup = markup;
    return copy;
}

bool str_equal(const struct str *a, const struct str *b)
{
    return a->bytes == b->bytes && memcmp(a->text, b->text, a->bytes) == 0;
}

bool str_is(const struct str *s, const char *text)
{
    return s->bytes == strlen(text) && memcmp(s->text, text, s->bytes) == 0;
}

/* Byte order of UTF-8 is the order of code points. */
int str_compare(const struct str *a, const struct str *b)
{
    int c = memcmp(a->text, b->text, min_u32(a->bytes, b->bytes));
    return c ? (c > 0) - (c < 0) : (a->bytes > b->bytes) - (a->bytes < b->bytes);
}

int64_t str_find(const struct str *s, const struct str *sub, uint32_t off)
{
    if (off > s->bytes) return -1;
    const char *at = memmem(s->text + off, s->bytes - off, sub->text, sub->bytes);
    return at ? at - s->text : -1;
}

int64_t str_rfind(const struct str *s, const struct str *sub, uint32_t off, uint32_t end)
{
    if (end < off || sub->bytes > end - off) return -1;
    for (int64_t at = end - sub->bytes; at >= off; at--)
        if (memcmp(s->text + at, sub->text, sub->bytes) == 0) return at;
    return -1;
}

uint32_t str_offset(const struct str *s, uint32_t i)
{
    if (s->chars == s->bytes) return i;
    uint32_t off = 0;
    while (i-- > 0) {
        uint32_t cp;
        off += utf8_get(s->text + off, &cp);
    }
    return off;
}

uint32_t str_index(const struct str *s, uint32_t off)
{
    return s->chars == s->bytes ? off : utf8_count(s->text, off);
}

static bool buf_fail(struct str_buf *b)
{
    b->failed = true;
    return false;
}

static bool buf_reserve(struct str_buf *b, size_t bytes)
{
    if (b->failed) return false;
    size_t limit = b->limit_bytes < STR_MAX_BYTES ? b->limit_bytes : STR_MAX_BYTES;
    if (bytes > limit || b->bytes > limit - bytes) {
        (void)why_set(b->arena->why, -E2BIG, "the template makes a text of more than %zu bytes",
                      limit);
        return buf_fail(b);
    }
    if (b->bytes + bytes > b->cap) {
        size_t cap = b->cap * 2 > b->bytes + bytes ? b->cap * 2 : b->bytes + bytes + 32;
        char *text = arena_grow(b->arena, b->text, b->cap, cap);
        if (!text) return buf_fail(b);
        b->text = text;
        b->cap = cap;
    }
    if (b->n_runs == b->cap_runs) {
        uint32_t cap = b->cap_runs ? b->cap_runs * 2 : 4;
        struct str_run *runs =
            arena_grow(b->arena, b->runs, b->cap_runs * sizeof(*runs), cap * sizeof(*runs));
        if (!runs) return buf_fail(b);
        b->runs = runs;
        b->cap_runs = cap;
    }
    return true;
}

void buf_add(struct str_buf *b, const char *text, size_t bytes, bool from_value)
{
    if (!bytes || !buf_reserve(b, bytes)) return;
    memcpy(b->text + b->bytes, text, bytes);
    b->bytes += bytes;
    if (!b->n_runs || b->runs[b->n_runs - 1].from_value != from_value)
        b->runs[b->n_runs++].from_value = from_value;
    b->runs[b->n_runs - 1].end = (uint32_t)b->bytes;
}

void buf_lit(struct str_buf *b, const char *text) { buf_add(b, text, strlen(text), false); }

void buf_char(struct str_buf *b, uint32_t cp, bool from_value)
{
    char text[4];
    buf_add(b, text, utf8_put(cp, text), from_value);
}

void buf_str(struct str_buf *b, const struct str *s)
{
    if (!s->n_runs) {
        buf_add(b, s->text, s->bytes, s->from_value);
        return;
    }
    uint32_t off = 0;
    for (uint32_t i = 0; i < s->n_runs; i++) {
        buf_add(b, s->text + off, s->runs[i].end - off, s->runs[i].from_value);
        off = s->runs[i].end;
    }
}

void buf_escaped(struct str_buf *b, const struct str *s)
{
    static const char *const names[256] = {
        ['&'] = "&amp;", ['<'] = "&lt;", ['>'] = "&gt;", ['\''] = "&#39;", ['"'] = "&#34;"};
    for (uint32_t i = 0; i < s->bytes && !b->failed; i++) {
        const char *name = names[(uint8_t)s->text[i]];
        bool from_value = str_from_value_at(s, i);
        if (name)
            buf_add(b, name, strlen(name), from_value);
        else
            buf_add(b, s->text + i, 1, from_value);
    }
}

int buf_finish(struct str_buf *b, const struct str **ret)
{
    if (b->failed) return -E2BIG;
    struct str *s = arena_zero(b->arena, 1, sizeof(*s));
    if (!s) return -E2BIG;
    s->text = b->bytes ? b->text : "";
    s->bytes = (uint32_t)b->bytes;
    s->chars = utf8_count(s->text, b->bytes);
    s->markup = b->markup;
    s->from_value = b->n_runs == 1 && b->runs[0].from_value;
    if (b->n_runs > 1) {
        s->runs = b->runs;
        s->n_runs = b->n_runs;
    }
    *ret = s;
    return 0;
}
