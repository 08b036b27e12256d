/* SPDX-License-Identifier: MIT */
/*
 * See scan.h. The alternatives are those of split.c's expressions, in their order; a change
 * there is a change here (tests/unit/test_scan.c holds both equal). Called by split.c.
 */
#include "gateway/tokenizer/scan.h"

enum kind { OTHER = 1, LETTER = 2, DIGIT = 4, WHITE = 8, BREAK = 16 /* \r or \n, WHITE too */ };

#define O OTHER
#define L LETTER
#define D DIGIT
#define W WHITE
#define B (WHITE | BREAK)
/* Of ASCII; 0: not ASCII. \t, \v and \f are WHITE; control characters are OTHER. */
static const uint8_t kinds[256] = {
    O, O, O, O, O, O, O, O, O, W, B, W, W, B, O, O, O, O, O, O, O, O, O, O, O, O, O, O, O, O, O, O,
    W, O, O, O, O, O, O, O, O, O, O, O, O, O, O, O, D, D, D, D, D, D, D, D, D, D, O, O, O, O, O, O,
    O, L, L, L, L, L, L, L, L, L, L, L, L, L, L, L, L, L, L, L, L, L, L, L, L, L, L, O, O, O, O, O,
    O, L, L, L, L, L, L, L, L, L, L, L, L, L, L, L, L, L, L, L, L, L, L, L, L, L, L, O, O, O, O, O,
};
#undef O
#undef L
#undef D
#undef W
#undef B

/* The end of the run of these kinds; 0: what ends it is not ASCII, and may belong to it. */
static size_t run(const uint8_t *text, size_t bytes, size_t at, uint8_t wanted)
{
    while (at < bytes && kinds[text[at]] & wanted)
        at++;
    return at == bytes || kinds[text[at]] ? at : 0;
}

/* [white]+(?![^white]), else one character: of several before something the last one is left. */
static size_t white(const uint8_t *text, size_t bytes, size_t from)
{
    size_t end = run(text, bytes, from, WHITE);
    return end == 0 || end == bytes || end - from == 1 ? end : end - 1;
}

size_t scan_gpt2(const uint8_t *text, size_t bytes, size_t from)
{
    size_t at = from + (text[from] == ' ' && from + 1 < bytes);
    uint8_t kind = kinds[text[at]];
    if (kind == 0 || text[from] == '\'') return 0;
    if (kind & WHITE) return white(text, bytes, from);
    return run(text, bytes, at, kind);
}

/* Other characters, then line breaks. */
static size_t others(const uint8_t *text, size_t bytes, size_t at)
{
    at = run(text, bytes, at, OTHER);
    while (at > 0 && at < bytes && kinds[text[at]] & BREAK)
        at++;
    return at;
}

/* White space up to its last line break, else as white(). */
static size_t breaks(const uint8_t *text, size_t bytes, size_t from)
{
    size_t end = run(text, bytes, from, WHITE), last = end;
    while (last > from && !(kinds[text[last - 1]] & BREAK))
        last--;
    return last > from ? last : white(text, bytes, from);
}

static size_t cl100k(const uint8_t *text, size_t bytes, size_t from, size_t n_digits)
{
    uint8_t kind = kinds[text[from]];
    uint8_t next = from + 1 < bytes ? kinds[text[from + 1]] : WHITE;
    if (kind == 0 || next == 0 || text[from] == '\'') return 0;
    if (kind & LETTER) return run(text, bytes, from, LETTER);
    if (kind & DIGIT) {
        size_t end = from + 1;
        while (end < bytes && end - from < n_digits && kinds[text[end]] & DIGIT)
            end++;
        return end == bytes || end - from == n_digits || kinds[text[end]] ? end : 0;
    }
    if (next & LETTER && !(kind & BREAK)) return run(text, bytes, from + 1, LETTER);
    if (kind & OTHER) return others(text, bytes, from);
    if (text[from] == ' ' && next & OTHER) return others(text, bytes, from + 1);
    return breaks(text, bytes, from);
}

size_t scan_cl100k(const uint8_t *text, size_t bytes, size_t from)
{
    return cl100k(text, bytes, from, 3);
}

size_t scan_cl100k_digit(const uint8_t *text, size_t bytes, size_t from)
{
    return cl100k(text, bytes, from, 1);
}

size_t scan_digit(const uint8_t *text, size_t bytes, size_t from)
{
    while (from < bytes && kinds[text[from]] & ~DIGIT)
        from++;
    return from;
}
