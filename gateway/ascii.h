/* SPDX-License-Identifier: MIT */
#ifndef GATEWAY_ASCII_H
#define GATEWAY_ASCII_H
/* How far a text is ASCII: eight bytes at a time, since most of most texts is. Used by whoever
 * looks at every character of a prompt. */
#include <stddef.h>
#include <stdint.h>
#include <string.h>

static inline size_t ascii_bytes(const uint8_t *text, size_t bytes)
{
    size_t n = 0;
    for (uint64_t word; n + sizeof(word) <= bytes; n += sizeof(word)) {
        memcpy(&word, text + n, sizeof(word));
        if (word & UINT64_C(0x8080808080808080)) break;
    }
    while (n < bytes && text[n] < 0x80)
        n++;
    return n;
}

#endif
