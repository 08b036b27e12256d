/* SPDX-License-Identifier: MIT */
#ifndef WORKERD_CPU_SIMD_PLAIN_H
#define WORKERD_CPU_SIMD_PLAIN_H
/*
 * simd.h in C alone: any processor, and what the other variants are compared with.
 */
#include <math.h>

#include "workerd/cpu/f16.h"

#define CPU_VARIANT plain
enum { HALVES = 1, ROWS_MAX = 4, SCORE_VECS = 1 };

typedef struct {
    float f[16];
} vf;
typedef struct {
    uint8_t b[64];
} hw;
typedef struct {
    int32_t i[16];
} hi;

#define SIMD_EACH(expression)                                                                      \
    vf simd_r_;                                                                                    \
    for (int i = 0; i < 16; i++)                                                                   \
        simd_r_.f[i] = (expression);                                                               \
    return simd_r_

SIMD_FN vf vf_set1(float f) { SIMD_EACH(f); }
SIMD_FN vf vf_load(const float *p) { SIMD_EACH(p[i]); }
SIMD_FN void vf_store(float *p, vf v) { memcpy(p, v.f, sizeof(v.f)); }
SIMD_FN vf vf_load_f16(const uint16_t *p) { SIMD_EACH(f16_to_f32(p[i])); }
SIMD_FN vf vf_load_i8(const int8_t *p) { SIMD_EACH((float)p[i]); }
/* The low (shift 0) or high (4) four bits of 16 bytes, less 8. */
SIMD_FN vf vf_load_u4(const uint8_t *p, int shift) { SIMD_EACH((float)((p[i] >> shift & 15) - 8)); }
/* The 16 nibbles of 8 bytes in order, the low one of each first, less 8. */
SIMD_FN vf vf_load_u4_pairs(const uint8_t *p)
{
    SIMD_EACH((float)((p[i / 2] >> (i % 2 * 4) & 15) - 8));
}
SIMD_FN void vf_store_f16(uint16_t *p, vf v)
{
    for (int i = 0; i < 16; i++)
        p[i] = f32_to_f16(v.f[i]);
}
SIMD_FN vf vf_add(vf a, vf b) { SIMD_EACH(a.f[i] + b.f[i]); }
SIMD_FN vf vf_sub(vf a, vf b) { SIMD_EACH(a.f[i] - b.f[i]); }
SIMD_FN vf vf_mul(vf a, vf b) { SIMD_EACH(a.f[i] * b.f[i]); }
SIMD_FN vf vf_div(vf a, vf b) { SIMD_EACH(a.f[i] / b.f[i]); }
SIMD_FN vf vf_fma(vf a, vf b, vf c) { SIMD_EACH(fmaf(a.f[i], b.f[i], c.f[i])); }
SIMD_FN vf vf_max(vf a, vf b) { SIMD_EACH(a.f[i] > b.f[i] ? a.f[i] : b.f[i]); }
SIMD_FN vf vf_min(vf a, vf b) { SIMD_EACH(a.f[i] < b.f[i] ? a.f[i] : b.f[i]); }
SIMD_FN vf vf_abs(vf a) { SIMD_EACH(fabsf(a.f[i])); }
/* Lanes below n from a, the others from b. */
SIMD_FN vf vf_keep(vf a, vf b, int n) { SIMD_EACH(i < n ? a.f[i] : b.f[i]); }
/* Lane 2i from 2i+1 and the other way round; each pair's first, each pair's second, twice. */
SIMD_FN vf vf_swap(vf a) { SIMD_EACH(a.f[i ^ 1]); }
SIMD_FN vf vf_firsts(vf a) { SIMD_EACH(a.f[i & ~1]); }
SIMD_FN vf vf_seconds(vf a) { SIMD_EACH(a.f[i | 1]); }
/* The sign of even lanes turned. */
SIMD_FN vf vf_negate_firsts(vf a) { SIMD_EACH(i & 1 ? a.f[i] : -a.f[i]); }
/* p times 2^n, where t holds n + SIMD_ROUND. */
SIMD_FN vf vf_raise(vf p, vf t)
{
    SIMD_EACH(f32_of_bits(bits_of_f32(p.f[i]) + (bits_of_f32(t.f[i]) << 23)));
}
/* The low byte of each lane's bits. */
SIMD_FN void vf_store_low8(int8_t *p, vf t)
{
    for (int i = 0; i < 16; i++)
        p[i] = (int8_t)(uint8_t)bits_of_f32(t.f[i]);
}

SIMD_FN vf vf_from_halves(const hi *h) { SIMD_EACH((float)h->i[i]); }
/* Codes of a block of 32: four vectors, low nibbles k-groups 0-3, high nibbles 4-7. */
SIMD_FN void hw_decode4(const uint8_t *at, int half, hw w[8])
{
    (void)half;
    for (int g = 0; g < 4; g++)
        for (int i = 0; i < 64; i++) {
            w[g].b[i] = at[64 * g + i] & 15;
            w[g + 4].b[i] = at[64 * g + i] >> 4;
        }
}
SIMD_FN hi hi_dot4(const hw w[8], const int8_t *x)
{
    hi s = {{0}};
    for (int g = 0; g < 8; g++)
        for (int i = 0; i < 16; i++)
            for (int j = 0; j < 4; j++)
                s.i[i] += w[g].b[4 * i + j] * x[4 * g + j];
    return s;
}
SIMD_FN void hw_decode8(const int8_t *at, int half, hw w[8])
{
    (void)half;
    memcpy(w, at, 8 * sizeof(hw));
}
SIMD_FN hi hi_dot8(const hw w[8], const int8_t *x, int32_t sum)
{
    (void)sum;
    hi s = {{0}};
    for (int g = 0; g < 8; g++)
        for (int i = 0; i < 16; i++)
            for (int j = 0; j < 4; j++)
                s.i[i] += (int8_t)w[g].b[4 * i + j] * x[4 * g + j];
    return s;
}
SIMD_FN hi hi_add1(hi s, int32_t v)
{
    for (int i = 0; i < 16; i++)
        s.i[i] += v;
    return s;
}

#endif
