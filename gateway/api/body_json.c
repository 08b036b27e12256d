/* SPDX-License-Identifier: MIT */
/* See body_json.h. Called by fields.c with what a client sent. */
#include "gateway/api/body_json.h"

#include <stdbool.h>
#include <string.h>

#include "gateway/bytebuf.h"

enum { DIGITS_64 = 19 /* of the largest 64-bit integer */ };

static bool is_digit(char c) { return c >= '0' && c <= '9'; }

static bool is_beyond_64(const char *digits, size_t n, bool negative)
{
    if (n != DIGITS_64) return n > DIGITS_64;
    return memcmp(digits, negative ? "9223372036854775808" : "9223372036854775807", n) > 0;
}

/* The end of the string that begins at at, or of the text. */
static size_t skip_string(const char *text, size_t bytes, size_t at)
{
    for (at++; at < bytes && text[at] != '"'; at++)
        if (text[at] == '\\') at++;
    return at < bytes ? at + 1 : bytes;
}

/* The end of a number's digits; *ret_beyond: it is an integer that 64 bits do not hold. */
static size_t skip_number(const char *text, size_t bytes, size_t at, bool *ret_beyond)
{
    bool negative = text[at] == '-';
    size_t begin = at + negative, end = begin;
    while (end < bytes && is_digit(text[end]))
        end++;
    bool is_integer = end == bytes || !strchr(".eE", text[end]) || text[end] == '\0';
    *ret_beyond = is_integer && is_beyond_64(text + begin, end - begin, negative);
    if (!is_integer) /* what follows are its own digits, not another number's */
        while (end < bytes && (is_digit(text[end]) || (text[end] && strchr(".eE+-", text[end]))))
            end++;
    return end;
}

/* Copies the text with an exponent behind each integer that is too large. */
static void write_as_reals(const char *text, size_t bytes, struct bytebuf *ret)
{
    size_t copied = 0;
    for (size_t at = 0; at < bytes;) {
        bool beyond = false;
        if (text[at] == '"')
            at = skip_string(text, bytes, at);
        else if (text[at] == '-' || is_digit(text[at]))
            at = skip_number(text, bytes, at, &beyond);
        else
            at++;
        if (!beyond) continue;
        bytebuf_add(ret, text + copied, at - copied);
        bytebuf_addf(ret, "e0");
        copied = at;
    }
    bytebuf_add(ret, text + copied, bytes - copied);
}

json_t *body_json(const char *text, size_t bytes, json_error_t *ret_error)
{
    json_error_t second;
    json_t *v = json_loadb(text, bytes, JSON_ALLOW_NUL, ret_error);
    if (v || json_error_code(ret_error) != json_error_numeric_overflow) return v;
    struct bytebuf reals = {0};
    write_as_reals(text, bytes, &reals);
    v = json_loadb(bytebuf_bytes(&reals), bytebuf_size(&reals), JSON_ALLOW_NUL, &second);
    bytebuf_fini(&reals);
    /* Places in the copy are not the client's; a number that is too large even so is the first's.
     */
    if (!v && json_error_code(&second) != json_error_numeric_overflow) *ret_error = second;
    return v;
}
