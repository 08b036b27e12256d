/* SPDX-License-Identifier: MIT */
#ifndef GATEWAY_TOKENIZER_VOCAB_H
#define GATEWAY_TOKENIZER_VOCAB_H
/*
 * The tables of a byte-level BPE vocabulary. Symbols are byte strings that merging can meet: the
 * tokens come first, so a symbol below n_tokens is a token's id; behind them stand the bytes and
 * the merges' operands and results that have no token. Owned by a tokenizer; immutable once read.
 */
#include "common/gguf.h"

/* tokenizer.ggml.token_type */
enum token_type {
    TOKEN_NORMAL = 1,
    TOKEN_UNKNOWN = 2,
    TOKEN_CONTROL = 3,
    TOKEN_USER_DEFINED = 4,
    TOKEN_UNUSED = 5,
    TOKEN_BYTE = 6,
};

enum {
    /* Tokens of a vocabulary and merges. The largest published ones have 2^18 and 2^19; 16 times as
     * much keeps every symbol's number in 32 bits and the tables under 2 GB. */
    VOCAB_TOKENS_MAX = 1 << 22,
    VOCAB_MERGES_MAX = 1 << 23,
    NO_SYMBOL = UINT32_MAX,
};

struct vocab_merge {
    uint32_t left, right; /* left is NO_SYMBOL in an empty slot */
    uint32_t rank;        /* lower ones first */
    uint32_t result;
};

struct vocab {
    uint32_t n_tokens, n_symbols;
    uint8_t *types; /* of the tokens, enum token_type */
    uint8_t *bytes; /* of all symbols, one after the other */
    size_t bytes_room;
    size_t *end; /* of each symbol in bytes; a symbol begins where its forerunner ends */
    size_t end_room;
    uint32_t *slots; /* hash table of the symbols that merging may meet */
    uint64_t n_slots, n_used;
    struct vocab_merge *merges; /* hash table */
    uint64_t n_merge_slots;
    uint64_t seed; /* of the hashes: a hostile file cannot aim at collisions */
    uint32_t byte_symbol[256];
};

int vocab_read(struct vocab *v, const struct gguf *g, struct why *why);
void vocab_fini(struct vocab *v);

struct gguf_str vocab_symbol(const struct vocab *v, uint32_t symbol);
/* By bytes, of those that merging may meet (no control, unknown or user-defined token), or
 * NO_SYMBOL. */
uint32_t vocab_find(const struct vocab *v, const void *at, size_t bytes);
/* The merge of two neighbours, or NULL. */
const struct vocab_merge *vocab_merge(const struct vocab *v, uint32_t left, uint32_t right);
/* Control and unknown tokens. */
bool vocab_is_control(const struct vocab *v, uint32_t token);
/* A control token whose text is known to end a turn or a document. */
bool vocab_is_end(const struct vocab *v, uint32_t token);

#endif
