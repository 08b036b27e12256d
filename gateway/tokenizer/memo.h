/* SPDX-License-Identifier: MIT */
#ifndef GATEWAY_TOKENIZER_MEMO_H
#define GATEWAY_TOKENIZER_MEMO_H
/*
 * What short pieces of a text were merged to, for when they come again: most of a long text is
 * words that it had before. A piece's symbols depend on its bytes alone, so what is kept is exact.
 * Working memory of one call of tokenizer_encode; a piece that falls into another's place replaces
 * it.
 */
#include <stdbool.h>

#include "common/base.h"

enum {
    MEMO_BYTES = 16,  /* of a piece; longer ones come again rarely */
    MEMO_SYMBOLS = 5, /* that it was merged to */
    MEMO_PIECES = 16384,
};

struct memo_piece {
    uint64_t words[MEMO_BYTES / 8]; /* its bytes, padded with zeros */
    uint32_t symbol[MEMO_SYMBOLS];
    uint8_t n_bytes, n_symbols; /* n_bytes 0: nothing */
    uint8_t pad_[2];
};

struct memo {
    struct memo_piece *pieces; /* NULL: it keeps nothing */
};

/* The place of these bytes, which *ret_hit says that it holds; NULL: they are not kept. at:
 * MEMO_BYTES can be read, however few of them are the piece's. */
struct memo_piece *memo_place(const struct memo *m, const uint8_t *at, size_t bytes, bool *ret_hit);

#endif
