/* SPDX-License-Identifier: MIT */
#ifndef GATEWAY_TOKENIZER_TOKENIZER_H
#define GATEWAY_TOKENIZER_TOKENIZER_H
/*
 * Text to token ids and back, by the byte-level BPE vocabulary of a GGUF file. The gateway makes
 * one a model at start; it copies what it needs, so the file may be closed. Immutable after
 * tokenizer_new: any thread may use it. It knows nothing of chat templates and requests, but it
 * keeps their promise: text whose span has parse_special off never becomes a control token.
 */
#include <stdbool.h>

#include "common/gguf.h"

struct tokenizer;

/* "No such token", for vocabularies without BOS or EOS. */
enum { TOKENIZER_NONE = UINT32_MAX };

/* A piece of the text to tokenise; the spans of a text are joined without anything between them. */
struct tokenizer_span {
    const char *at; /* any bytes; what isn't UTF-8 is read as U+FFFD */
    size_t bytes;
    bool parse_special; /* control tokens written out here are control tokens */
};

/* What to add where the vocabulary asks for it. */
enum tokenizer_add {
    TOKENIZER_ADD_BOS = 1, /* unless the text begins with it */
    TOKENIZER_ADD_EOS = 2, /* unless the text ends with it */
};

/* The result; the caller frees ids. */
struct tokenizer_ids {
    uint32_t *ids; /* NULL when there are none */
    size_t n;
};

struct tokenizer_piece {
    const char *at; /* not NUL-terminated, and not whole UTF-8 characters either */
    size_t bytes;
};

/* -ENOTSUP: another kind of vocabulary or an unknown pre-tokeniser; -EPROTO: a vocabulary that
 * contradicts itself; -ENOMEM. */
int tokenizer_new(const struct gguf *g, struct why *why, struct tokenizer **ret);
void tokenizer_free(struct tokenizer *t);
static inline void tokenizer_freep(struct tokenizer **t) { tokenizer_free(*t); }

/* Tokenises the spans as one text: BPE knows no span borders, and only control tokens heed
 * parse_special. add is a set of enum tokenizer_add.
 * -E2BIG: more than max_tokens; then ret->n says how many (0: the text is beyond any limit) and
 * ret->ids is NULL. Otherwise ret is touched only on success. -ENOMEM, -EIO (the regular
 * expressions' library failed). */
int tokenizer_encode(const struct tokenizer *t, const struct tokenizer_span *spans, size_t n_spans,
                     unsigned add, size_t max_tokens, struct tokenizer_ids *ret);

/* The bytes that a token stands for, valid as long as t; a control token's is its name. Empty for
 * an id that the vocabulary doesn't have. */
struct tokenizer_piece tokenizer_piece(const struct tokenizer *t, uint32_t id);
/* Not text for a reader: control and unknown tokens. */
bool tokenizer_is_control(const struct tokenizer *t, uint32_t id);
bool tokenizer_is_eog(const struct tokenizer *t, uint32_t id);
/* The tokens that end a generation, ascending. */
const uint32_t *tokenizer_eog(const struct tokenizer *t, size_t *ret_n);
uint32_t tokenizer_n_vocab(const struct tokenizer *t);
uint32_t tokenizer_bos(const struct tokenizer *t); /* or TOKENIZER_NONE */
uint32_t tokenizer_eos(const struct tokenizer *t); /* or TOKENIZER_NONE */

#endif
