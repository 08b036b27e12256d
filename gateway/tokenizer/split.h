/* SPDX-License-Identifier: MIT */
#ifndef GATEWAY_TOKENIZER_SPLIT_H
#define GATEWAY_TOKENIZER_SPLIT_H
/*
 * Pre-tokenisers: the regular expressions that cut a text into the pieces within which merging
 * happens. A vocabulary names the one it was trained with (tokenizer.ggml.pre). Immutable after
 * split_new; any thread may use it, each call with its own state.
 */
#include "common/gguf.h"

struct split;

/* Takes a piece; a negative result ends the splitting and is returned by split_text. */
typedef int split_piece(void *arg, const uint8_t *at, size_t bytes);

/* What a vocabulary with this pre-tokeniser does besides, unless its own keys say otherwise. */
struct split_habits {
    bool whole_first; /* a piece that is a token is that token, without merging */
    bool add_bos;
};

/* name is the one in the file, empty when it has none. -ENOTSUP: unknown. */
int split_new(struct gguf_str name, struct why *why, struct split **ret);
void split_free(struct split *s);
static inline void split_freep(struct split **s) { split_free(*s); }
struct split_habits split_habits(const struct split *s);

/* Cuts UTF-8 (surrogates may occur) into pieces, in order; together they are the whole text.
 * -ENOMEM, -EIO, or what piece returned. */
int split_text(const struct split *s, const uint8_t *text, size_t bytes, split_piece *piece,
               void *arg);

#endif
