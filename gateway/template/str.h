/* SPDX-License-Identifier: MIT */
#ifndef GATEWAY_TEMPLATE_STR_H
#define GATEWAY_TEMPLATE_STR_H
/*
 * Text that remembers where it comes from. A string is bytes of valid UTF-8 and the runs of them
 * that come from values (messages, tools, ...) or from the template's own text. Every operation
 * keeps the runs; comparing ignores them. Strings are immutable and live in an arena.
 *
 * Indices in this header are bytes; what a template sees are code points.
 */
#include "gateway/template/arena.h"

#include <stdbool.h>

struct str_run {
    uint32_t end; /* byte after the run */
    bool from_value;
};

struct str {
    const char *text;
    uint32_t bytes;
    uint32_t chars;  /* code points */
    uint32_t n_runs; /* 0: the whole string is from_value or not; else 2 or more */
    bool from_value;
    bool markup; /* passed through safe or escape: joined by +, the other side is escaped */
    const struct str_run *runs;
};

/* Largest string, in bytes; offsets are 32 bits. */
enum { STR_MAX_BYTES = 1 << 30 };

/* A string being put together. A failure sticks and comes out of buf_finish. */
struct str_buf {
    struct arena *arena;
    size_t limit_bytes;
    char *text;
    size_t bytes, cap;
    struct str_run *runs;
    uint32_t n_runs, cap_runs;
    bool markup;
    bool failed;
};

/* Does not copy the text, which must outlive the string. NULL: out of memory. */
const struct str *str_new(struct arena *a, const char *text, size_t bytes, bool from_value);
/* A string of the template engine itself: a literal of the C source. */
const struct str *str_lit(struct arena *a, const char *text);
const struct str *str_sub(struct arena *a, const struct str *s, uint32_t off, uint32_t bytes);
const struct str *str_as_markup(struct arena *a, const struct str *s, bool markup);
bool str_equal(const struct str *a, const struct str *b);
bool str_is(const struct str *s, const char *text);
int str_compare(const struct str *a, const struct str *b);
/* Byte offset of the first sub at or after off, or of the last one before end, or -1. */
int64_t str_find(const struct str *s, const struct str *sub, uint32_t off);
int64_t str_rfind(const struct str *s, const struct str *sub, uint32_t off, uint32_t end);
/* Byte offset of code point i (i <= chars), and back. */
uint32_t str_offset(const struct str *s, uint32_t i);
uint32_t str_index(const struct str *s, uint32_t off);
bool str_from_value_at(const struct str *s, uint32_t off);

void buf_add(struct str_buf *b, const char *text, size_t bytes, bool from_value);
void buf_lit(struct str_buf *b, const char *text);
void buf_char(struct str_buf *b, uint32_t cp, bool from_value);
void buf_str(struct str_buf *b, const struct str *s);
void buf_escaped(struct str_buf *b, const struct str *s); /* HTML, as markupsafe does it */
int buf_finish(struct str_buf *b, const struct str **ret);

/* The text must be valid; returns the bytes of the code point. */
uint32_t utf8_get(const char *text, uint32_t *ret);
uint32_t utf8_put(uint32_t cp, char *ret);
bool utf8_valid(const char *text, size_t bytes);
uint32_t utf8_count(const char *text, size_t bytes);

#endif
