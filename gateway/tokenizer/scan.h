/* SPDX-License-Identifier: MIT */
#ifndef GATEWAY_TOKENIZER_SCAN_H
#define GATEWAY_TOKENIZER_SCAN_H
/*
 * What the well-known expressions of split.c match in ASCII text, without the regular expressions'
 * machine: most pieces of most texts. Each looks at text[from, bytes), from < bytes, and returns
 * where the piece that begins at from ends; 0: a byte that decides is not ASCII, or the piece
 * begins with an apostrophe, and the expression itself must be asked. A single character that no
 * alternative matches is a piece, too. They keep nothing; any thread may call them.
 */
#include <stddef.h>
#include <stdint.h>

typedef size_t scan_piece(const uint8_t *text, size_t bytes, size_t from);

scan_piece scan_gpt2;
scan_piece scan_cl100k;       /* numbers of up to three digits */
scan_piece scan_cl100k_digit; /* digits one by one */

/* \p{N}: the place of the next digit, or bytes; a place before that, where text that is not ASCII
 * begins, and the expression must be asked from there. */
size_t scan_digit(const uint8_t *text, size_t bytes, size_t from);

#endif
