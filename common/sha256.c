/* SPDX-License-Identifier: MIT */
/*
 * SHA-256, written from FIPS 180-4 (the names a..h, w, k are the standard's). Called for the
 * model's fingerprint; it must give the same on every processor, so it is plain C without variants.
 */
#include "common/sha256.h"

#include <string.h>

/* FIPS 180-4, 4.2.2: fractional parts of the cube roots of the first 64 primes. */
static const uint32_t k[64] = {
    0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5,
    0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174,
    0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da,
    0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967,
    0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
    0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070,
    0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
    0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2,
};

static inline uint32_t ror(uint32_t x, unsigned n) { return x >> n | x << (32 - n); }

static inline uint32_t load_be32(const uint8_t *p)
{
    return (uint32_t)p[0] << 24 | (uint32_t)p[1] << 16 | (uint32_t)p[2] << 8 | p[3];
}

static inline void store_be32(uint8_t *p, uint32_t x)
{
    for (unsigned i = 0; i < 4; i++)
        p[i] = (uint8_t)(x >> (24 - 8 * i));
}

static void schedule(uint32_t w[64], const uint8_t *block)
{
    for (unsigned i = 0; i < 16; i++)
        w[i] = load_be32(block + (size_t)4 * i);
    for (unsigned i = 16; i < 64; i++) {
        uint32_t s0 = ror(w[i - 15], 7) ^ ror(w[i - 15], 18) ^ w[i - 15] >> 3;
        uint32_t s1 = ror(w[i - 2], 17) ^ ror(w[i - 2], 19) ^ w[i - 2] >> 10;
        w[i] = w[i - 16] + s0 + w[i - 7] + s1;
    }
}

static void compress(struct sha256 *s, const uint8_t *block)
{
    uint32_t w[64];
    schedule(w, block);
    uint32_t a = s->h[0], b = s->h[1], c = s->h[2], d = s->h[3];
    uint32_t e = s->h[4], f = s->h[5], g = s->h[6], h = s->h[7];
    for (unsigned i = 0; i < 64; i++) {
        uint32_t t1 =
            h + (ror(e, 6) ^ ror(e, 11) ^ ror(e, 25)) + ((e & f) ^ (~e & g)) + k[i] + w[i];
        uint32_t t2 = (ror(a, 2) ^ ror(a, 13) ^ ror(a, 22)) + ((a & b) ^ (a & c) ^ (b & c));
        h = g, g = f, f = e, e = d + t1;
        d = c, c = b, b = a, a = t1 + t2;
    }
    const uint32_t add[8] = {a, b, c, d, e, f, g, h};
    for (unsigned i = 0; i < 8; i++)
        s->h[i] += add[i];
}

void sha256_init(struct sha256 *s)
{
    /* FIPS 180-4, 5.3.3 */
    *s = (struct sha256){
        .h = {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a, 0x510e527f, 0x9b05688c, 0x1f83d9ab,
              0x5be0cd19}
    };
}

void sha256_add(struct sha256 *s, const void *data, size_t bytes)
{
    const uint8_t *p = data;
    while (bytes) {
        size_t at = s->n_bytes % 64;
        size_t take = bytes < 64 - at ? bytes : 64 - at;
        memcpy(s->block + at, p, take);
        s->n_bytes += take;
        p += take;
        bytes -= take;
        if (at + take == 64) compress(s, s->block);
    }
}

void sha256_end(struct sha256 *s, uint8_t ret[32])
{
    uint64_t n_bits = s->n_bytes * 8;
    uint8_t length[8];
    store_be32(length, (uint32_t)(n_bits >> 32));
    store_be32(length + 4, (uint32_t)n_bits);
    static const uint8_t pad[64] = {0x80};
    sha256_add(s, pad, 1 + (119 - s->n_bytes % 64) % 64);
    sha256_add(s, length, sizeof(length));
    for (unsigned i = 0; i < 8; i++)
        store_be32(ret + (size_t)4 * i, s->h[i]);
}

void sha256_end_hex(struct sha256 *s, char ret[65])
{
    static const char digit[] = "0123456789abcdef";
    uint8_t sum[32];
    sha256_end(s, sum);
    for (unsigned i = 0; i < 32; i++) {
        ret[2 * i] = digit[sum[i] >> 4];
        ret[2 * i + 1] = digit[sum[i] & 15];
    }
    ret[64] = '\0';
}
