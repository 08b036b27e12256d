/* SPDX-License-Identifier: MIT */
#ifndef WORKERD_CPU_SIMD_AVX2_H
#define WORKERD_CPU_SIMD_AVX2_H
/*
 * simd.h with AVX2, FMA and F16C: sixteen lanes are two registers. The bounds that keep the 16-bit
 * sums exact stand at the two products.
 */
#include <immintrin.h>

#define CPU_VARIANT avx2
enum {
    HALVES = 2,
    ROWS_MAX = 4,   /* 8 vectors of codes and 4 sums of 16 registers */
    SCORE_VECS = 1, /* 4 queries x 2 registers */
};

typedef struct {
    __m256 a, b;
} vf;
typedef __m256i hw;
typedef __m256i hi;

#define SIMD_BOTH(f, x, y) ((vf){f((x).a, (y).a), f((x).b, (y).b)})

SIMD_FN vf vf_set1(float f) { return (vf){_mm256_set1_ps(f), _mm256_set1_ps(f)}; }
SIMD_FN vf vf_load(const float *p) { return (vf){_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)}; }
SIMD_FN void vf_store(float *p, vf v)
{
    _mm256_storeu_ps(p, v.a);
    _mm256_storeu_ps(p + 8, v.b);
}
SIMD_FN vf vf_load_f16(const uint16_t *p)
{
    return (vf){_mm256_cvtph_ps(_mm_loadu_si128((const __m128i_u *)p)),
                _mm256_cvtph_ps(_mm_loadu_si128((const __m128i_u *)(p + 8)))};
}
SIMD_FN vf vf_from_bytes(__m128i b)
{
    __m128i high = _mm_unpackhi_epi64(b, b);
    return (vf){_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(b)),
                _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(high))};
}
SIMD_FN void vf_store_f16(uint16_t *p, vf v)
{
    enum { NEAREST = _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC };
    _mm_storeu_si128((__m128i_u *)p, _mm256_cvtps_ph(v.a, NEAREST));
    _mm_storeu_si128((__m128i_u *)(p + 8), _mm256_cvtps_ph(v.b, NEAREST));
}
SIMD_FN vf vf_add(vf x, vf y) { return SIMD_BOTH(_mm256_add_ps, x, y); }
SIMD_FN vf vf_sub(vf x, vf y) { return SIMD_BOTH(_mm256_sub_ps, x, y); }
SIMD_FN vf vf_mul(vf x, vf y) { return SIMD_BOTH(_mm256_mul_ps, x, y); }
SIMD_FN vf vf_div(vf x, vf y) { return SIMD_BOTH(_mm256_div_ps, x, y); }
SIMD_FN vf vf_fma(vf x, vf y, vf z)
{
    return (vf){_mm256_fmadd_ps(x.a, y.a, z.a), _mm256_fmadd_ps(x.b, y.b, z.b)};
}
/* The second operand when they don't compare, as in a > b ? a : b. */
SIMD_FN vf vf_max(vf x, vf y) { return SIMD_BOTH(_mm256_max_ps, x, y); }
SIMD_FN vf vf_min(vf x, vf y) { return SIMD_BOTH(_mm256_min_ps, x, y); }
SIMD_FN vf vf_abs(vf x)
{
    __m256 sign = _mm256_set1_ps(-0.0f);
    return (vf){_mm256_andnot_ps(sign, x.a), _mm256_andnot_ps(sign, x.b)};
}
/* Lanes below n from x, the others from y. */
SIMD_FN vf vf_keep(vf x, vf y, int n)
{
    __m256i i = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
    __m256i ma = _mm256_cmpgt_epi32(_mm256_set1_epi32(n), i);
    __m256i mb = _mm256_cmpgt_epi32(_mm256_set1_epi32(n - 8), i);
    return (vf){_mm256_blendv_ps(y.a, x.a, _mm256_castsi256_ps(ma)),
                _mm256_blendv_ps(y.b, x.b, _mm256_castsi256_ps(mb))};
}
/* Lane 2i from 2i+1 and the other way round; each pair's first, each pair's second, twice. */
SIMD_FN vf vf_swap(vf x)
{
    return (vf){_mm256_permute_ps(x.a, 0xb1), _mm256_permute_ps(x.b, 0xb1)};
}
SIMD_FN vf vf_firsts(vf x) { return (vf){_mm256_moveldup_ps(x.a), _mm256_moveldup_ps(x.b)}; }
SIMD_FN vf vf_seconds(vf x) { return (vf){_mm256_movehdup_ps(x.a), _mm256_movehdup_ps(x.b)}; }
/* The sign of even lanes turned. */
SIMD_FN vf vf_negate_firsts(vf x)
{
    __m256 m = _mm256_setr_ps(-0.0f, 0, -0.0f, 0, -0.0f, 0, -0.0f, 0);
    return (vf){_mm256_xor_ps(x.a, m), _mm256_xor_ps(x.b, m)};
}
SIMD_FN __m256 simd_raise8(__m256 p, __m256 t)
{
    return _mm256_castsi256_ps(
        _mm256_add_epi32(_mm256_castps_si256(p), _mm256_slli_epi32(_mm256_castps_si256(t), 23)));
}
/* p times 2^n, where t holds n + SIMD_ROUND. */
SIMD_FN vf vf_raise(vf p, vf t) { return SIMD_BOTH(simd_raise8, p, t); }
/* The low byte of each lane's bits. */
SIMD_FN void vf_store_low8(int8_t *p, vf t)
{
    __m256i low = _mm256_set1_epi32(255);
    __m256i a = _mm256_and_si256(_mm256_castps_si256(t.a), low);
    __m256i b = _mm256_and_si256(_mm256_castps_si256(t.b), low);
    __m256i ab = _mm256_permute4x64_epi64(_mm256_packus_epi32(a, b), 0xd8);
    _mm_storeu_si128((__m128i_u *)p,
                     _mm_packus_epi16(_mm256_castsi256_si128(ab), _mm256_extracti128_si256(ab, 1)));
}

SIMD_FN vf vf_from_halves(const hi *h)
{
    return (vf){_mm256_cvtepi32_ps(h[0]), _mm256_cvtepi32_ps(h[1])};
}
SIMD_FN hi hi_x4(const int8_t *x)
{
    int32_t v;
    __builtin_memcpy(&v, x, 4);
    return _mm256_set1_epi32(v);
}
/* Codes of a block of 32: four vectors, low nibbles k-groups 0-3, high nibbles 4-7. */
SIMD_FN void hw_decode4(const uint8_t *at, int half, hw w[8])
{
    const __m256i low = _mm256_set1_epi8(15);
    for (int g = 0; g < 4; g++) {
        __m256i c = _mm256_loadu_si256((const __m256i_u *)(at + 64 * g + 32 * half));
        w[g] = _mm256_and_si256(c, low);
        w[g + 4] = _mm256_and_si256(_mm256_srli_epi16(c, 4), low);
    }
}
/* Eight pairs of at most 15 * 127 each: 30480, so the whole block is summed in 16 bits. */
SIMD_FN hi hi_dot4(const hw w[8], const int8_t *x)
{
    __m256i s = _mm256_maddubs_epi16(w[0], hi_x4(x));
    for (int g = 1; g < 8; g++)
        s = _mm256_add_epi16(s, _mm256_maddubs_epi16(w[g], hi_x4(x + 4 * g)));
    return _mm256_madd_epi16(s, _mm256_set1_epi16(1));
}
SIMD_FN void hw_decode8(const int8_t *at, int half, hw w[8])
{
    for (int g = 0; g < 8; g++)
        w[g] = _mm256_loadu_si256((const __m256i_u *)(at + 64 * g + 32 * half));
}
/* |w| is at most 128 and |x| at most 127: a pair is at most 32512, two pairs need 32 bits. */
SIMD_FN hi hi_dot8(const hw w[8], const int8_t *x, int32_t sum)
{
    (void)sum;
    const __m256i ones = _mm256_set1_epi16(1);
    __m256i s = _mm256_setzero_si256();
    for (int g = 0; g < 8; g++) {
        __m256i p =
            _mm256_maddubs_epi16(_mm256_abs_epi8(w[g]), _mm256_sign_epi8(hi_x4(x + 4 * g), w[g]));
        s = _mm256_add_epi32(s, _mm256_madd_epi16(p, ones));
    }
    return s;
}
SIMD_FN hi hi_add1(hi s, int32_t v) { return _mm256_add_epi32(s, _mm256_set1_epi32(v)); }

#endif
