/* SPDX-License-Identifier: MIT */
#ifndef GATEWAY_TOKENIZER_BPE_H
#define GATEWAY_TOKENIZER_BPE_H
/*
 * Byte-pair merging of one piece of text. The struct is working memory of one call of
 * tokenizer_encode and belongs to it; it grows to the longest piece and is used again for the next.
 */
#include "gateway/tokenizer/vocab.h"

/* A part of the piece; its neighbours by index. */
struct bpe_part {
    uint32_t symbol;
    uint32_t prev, next; /* NO_SYMBOL at the ends */
};

/* Two neighbours that may merge, or could when it was noted. */
struct bpe_pair {
    uint64_t key; /* rank << 32 | index of the left part: the order in which pairs merge */
    uint32_t left, right;
};

struct bpe {
    struct bpe_part *parts;
    size_t room;            /* of parts; pairs have room for three times as many */
    struct bpe_pair *pairs; /* a heap: lowest rank first, leftmost of equals */
    size_t n_pairs;
};

void bpe_fini(struct bpe *b);
/* Merges text (at most UINT32_MAX / 4 bytes); b->parts from index 0 on, by next, are the result.
 * -ENOMEM. */
int bpe_merge(struct bpe *b, const struct vocab *v, const uint8_t *text, size_t bytes);

#endif
