/* SPDX-License-Identifier: MIT */
#ifndef COMMON_SHA256_H
#define COMMON_SHA256_H
/*
 * SHA-256 (FIPS 180-4) for fingerprints: it tells models apart and recognises files. No secret is
 * kept by it. The caller owns the struct; nothing is allocated.
 */
#include <stddef.h>
#include <stdint.h>

struct sha256 {
    uint32_t h[8];
    uint64_t n_bytes; /* taken so far */
    uint8_t block[64];
};

void sha256_init(struct sha256 *s);
void sha256_add(struct sha256 *s, const void *data, size_t bytes);
/* Ends the sum; s must be initialised anew before it is used again. */
void sha256_end(struct sha256 *s, uint8_t ret[32]);
/* The same as 64 lower-case hex digits and a NUL. */
void sha256_end_hex(struct sha256 *s, char ret[65]);

#endif
