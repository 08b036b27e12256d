/* SPDX-License-Identifier: MIT */
#ifndef GATEWAY_TOKENIZER_SPECIAL_H
#define GATEWAY_TOKENIZER_SPECIAL_H
/*
 * The tokens that are found in a text literally, before it is split for merging: control, unknown
 * and user-defined ones. Owned by a tokenizer; immutable once made.
 */
#include "gateway/tokenizer/vocab.h"

struct special {
    uint32_t *ids; /* sorted by text */
    size_t n;
    size_t first[257]; /* of ids: where those that begin with a byte or a greater one start */
};

int special_init(struct special *s, const struct vocab *v, const struct gguf *g, struct why *why);
void special_fini(struct special *s);

/* Whether one begins with this byte. */
static inline bool special_begins(const struct special *s, uint8_t byte)
{
    return s->first[byte] != s->first[byte + 1];
}

/* The longest one at the head of a text of which bytes are left, control tokens only within the
 * first control_bytes; NO_SYMBOL when there is none. */
uint32_t special_match(const struct special *s, const struct vocab *v, const char *text,
                       size_t bytes, size_t control_bytes);

#endif
