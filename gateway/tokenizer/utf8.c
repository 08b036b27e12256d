/* SPDX-License-Identifier: MIT */
/*
 * Repairs broken UTF-8; see utf8.h. Called by tokenizer.c for each stretch of plain text. It works
 * on memory that the caller owns.
 */
#include "gateway/tokenizer/utf8.h"

#include <assert.h>

#include "gateway/ascii.h"

enum { REPLACEMENT = 0xfffd };

/* Bytes of the sequence that a lead byte announces; 0 when it cannot lead. */
static size_t announced(uint8_t lead)
{
    if (lead < 0x80) return 1;
    if (lead < 0xc0) return 0;
    if (lead < 0xe0) return 2;
    if (lead < 0xf0) return 3;
    return lead < 0xf8 ? 4 : 0;
}

/* The character at the head of text and its length there; a broken one is REPLACEMENT of 1 byte. */
static uint32_t decode(const uint8_t *text, size_t bytes, size_t *ret_length)
{
    size_t n = announced(text[0]);
    *ret_length = 1;
    if (n == 1) return text[0];
    if (n == 0 || n > bytes) return REPLACEMENT;
    uint32_t c = text[0] & (0x7fu >> n);
    for (size_t i = 1; i < n; i++) {
        if ((text[i] & 0xc0) != 0x80) return REPLACEMENT;
        c = c << 6 | (text[i] & 0x3fu);
    }
    if (c > 0x10ffff) return REPLACEMENT;
    *ret_length = n;
    return c;
}

static size_t encoded_bytes(uint32_t c)
{
    return c < 0x80 ? 1 : c < 0x800 ? 2 : c < 0x10000 ? 3 : 4;
}

static void encode(uint32_t c, size_t n, uint8_t *ret)
{
    static const uint8_t lead[] = {0, 0, 0xc0, 0xe0, 0xf0};
    for (size_t i = n - 1; i > 0; i--, c >>= 6)
        ret[i] = (uint8_t)(0x80 | (c & 0x3f));
    ret[0] = (uint8_t)(lead[n] | c);
}

size_t utf8_sound(const uint8_t *text, size_t bytes)
{
    size_t at = 0;
    while ((at += ascii_bytes(text + at, bytes - at)) < bytes) {
        size_t n;
        uint32_t c = decode(text + at, bytes - at, &n);
        if (encoded_bytes(c) != n) break; /* broken or overlong */
        at += n;
    }
    return at;
}

size_t utf8_repair(const uint8_t *text, size_t bytes, uint8_t *ret)
{
    size_t written = 0;
    for (size_t at = 0, n; at < bytes; at += n) {
        uint32_t c = decode(text + at, bytes - at, &n);
        size_t out = encoded_bytes(c);
        assert(out <= 3 * n);
        encode(c, out, ret + written);
        written += out;
    }
    return written;
}
