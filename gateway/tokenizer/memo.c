/* SPDX-License-Identifier: MIT */
/*
 * See memo.h. Called by tokenizer.c for every piece.
 */
#include "gateway/tokenizer/memo.h"

#include <assert.h>
#include <string.h>

static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "a word's first byte is its lowest");

/* The first n bytes of a word, the others 0. */
static uint64_t beginning(uint64_t word, size_t n)
{
    return n >= 8 ? word : word & ((UINT64_C(1) << 8 * n) - 1);
}

struct memo_piece *memo_place(const struct memo *m, const uint8_t *at, size_t bytes, bool *ret_hit)
{
    uint64_t words[MEMO_BYTES / 8];
    if (!m->pieces || bytes > MEMO_BYTES) return NULL;
    memcpy(words, at, sizeof(words));
    words[1] = bytes > 8 ? beginning(words[1], bytes - 8) : 0;
    words[0] = beginning(words[0], bytes);
    /* Fibonacci hashing; whom it crowds together only evict each other. */
    uint64_t h = (words[0] ^ words[1] * UINT64_C(0xff51afd7ed558ccd)) + bytes;
    h = (h ^ h >> 29) * UINT64_C(0x9e3779b97f4a7c15);
    struct memo_piece *p = &m->pieces[h >> 32 & (MEMO_PIECES - 1)];
    *ret_hit = p->n_bytes == bytes && p->words[0] == words[0] && p->words[1] == words[1];
    if (*ret_hit) return p;
    *p = (struct memo_piece){
        .words = {words[0], words[1]}
    }; /* whose symbols are not known yet */
    return p;
}
