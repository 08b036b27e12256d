/* SPDX-License-Identifier: MIT */
#ifndef WORKERD_CPU_SIMD_AVX512_H
#define WORKERD_CPU_SIMD_AVX512_H
/*
 * simd.h with AVX-512 F, BW, VL and VNNI: sixteen lanes are one register.
 */
#include <immintrin.h>

#define CPU_VARIANT avx512
enum {
    HALVES = 1,
    ROWS_MAX = 8,   /* token rows whose sums fit in registers beside 8 vectors of codes */
    SCORE_VECS = 4, /* vectors of 16 cells scored together: 4 queries x 4 of 32 registers */
};

typedef __m512 vf;
typedef __m512i hw;
typedef __m512i hi;

SIMD_FN vf vf_set1(float f) { return _mm512_set1_ps(f); }
SIMD_FN vf vf_load(const float *p) { return _mm512_loadu_ps(p); }
SIMD_FN void vf_store(float *p, vf v) { _mm512_storeu_ps(p, v); }
SIMD_FN vf vf_load_f16(const uint16_t *p)
{
    return _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i_u *)p));
}
SIMD_FN vf vf_from_bytes(__m128i b) { return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(b)); }
SIMD_FN void vf_store_f16(uint16_t *p, vf v)
{
    _mm256_storeu_si256((__m256i_u *)p,
                        _mm512_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
}
SIMD_FN vf vf_add(vf a, vf b) { return _mm512_add_ps(a, b); }
SIMD_FN vf vf_sub(vf a, vf b) { return _mm512_sub_ps(a, b); }
SIMD_FN vf vf_mul(vf a, vf b) { return _mm512_mul_ps(a, b); }
SIMD_FN vf vf_div(vf a, vf b) { return _mm512_div_ps(a, b); }
SIMD_FN vf vf_fma(vf a, vf b, vf c) { return _mm512_fmadd_ps(a, b, c); }
/* The second operand when they don't compare, as in a > b ? a : b. */
SIMD_FN vf vf_max(vf a, vf b) { return _mm512_max_ps(a, b); }
SIMD_FN vf vf_min(vf a, vf b) { return _mm512_min_ps(a, b); }
SIMD_FN vf vf_abs(vf a) { return _mm512_abs_ps(a); }
/* Lanes below n from a, the others from b. */
SIMD_FN vf vf_keep(vf a, vf b, int n)
{
    uint32_t m = n >= 16 ? 0xffff : n <= 0 ? 0 : (1u << n) - 1;
    return _mm512_mask_blend_ps((__mmask16)m, b, a);
}
/* Lane 2i from 2i+1 and the other way round; each pair's first, each pair's second, twice. */
SIMD_FN vf vf_swap(vf a) { return _mm512_permute_ps(a, 0xb1); }
SIMD_FN vf vf_firsts(vf a) { return _mm512_moveldup_ps(a); }
SIMD_FN vf vf_seconds(vf a) { return _mm512_movehdup_ps(a); }
/* The sign of even lanes turned. */
SIMD_FN vf vf_negate_firsts(vf a)
{
    return _mm512_castsi512_ps(_mm512_xor_si512(
        _mm512_castps_si512(a), _mm512_set1_epi64((long long)UINT64_C(0x0000000080000000))));
}
/* p times 2^n, where t holds n + SIMD_ROUND. */
SIMD_FN vf vf_raise(vf p, vf t)
{
    return _mm512_castsi512_ps(
        _mm512_add_epi32(_mm512_castps_si512(p), _mm512_slli_epi32(_mm512_castps_si512(t), 23)));
}
/* The low byte of each lane's bits. */
SIMD_FN void vf_store_low8(int8_t *p, vf t)
{
    _mm_storeu_si128((__m128i_u *)p, _mm512_cvtepi32_epi8(_mm512_castps_si512(t)));
}

SIMD_FN vf vf_from_halves(const hi *h) { return _mm512_cvtepi32_ps(h[0]); }
SIMD_FN hi hi_x4(const int8_t *x)
{
    int32_t v;
    __builtin_memcpy(&v, x, 4);
    return _mm512_set1_epi32(v);
}
/* Codes of a block of 32: four vectors, low nibbles k-groups 0-3, high nibbles 4-7. */
SIMD_FN void hw_decode4(const uint8_t *at, int half, hw w[8])
{
    (void)half;
    const __m512i low = _mm512_set1_epi8(15);
    for (int g = 0; g < 4; g++) {
        __m512i c = _mm512_loadu_si512(at + 64 * g);
        w[g] = _mm512_and_si512(c, low);
        w[g + 4] = _mm512_and_si512(_mm512_srli_epi16(c, 4), low);
    }
}
SIMD_FN hi hi_dot4(const hw w[8], const int8_t *x)
{
    hi s = _mm512_setzero_si512();
    for (int g = 0; g < 8; g++)
        s = _mm512_dpbusd_epi32(s, w[g], hi_x4(x + 4 * g));
    return s;
}
/* Signed codes, moved up by 128 for an instruction that takes unsigned ones. */
SIMD_FN void hw_decode8(const int8_t *at, int half, hw w[8])
{
    (void)half;
    for (int g = 0; g < 8; g++)
        w[g] = _mm512_xor_si512(_mm512_loadu_si512(at + 64 * g), _mm512_set1_epi8(-128));
}
/* sum: of x's 32 codes. */
SIMD_FN hi hi_dot8(const hw w[8], const int8_t *x, int32_t sum)
{
    hi s = _mm512_set1_epi32(-128 * sum);
    for (int g = 0; g < 8; g++)
        s = _mm512_dpbusd_epi32(s, w[g], hi_x4(x + 4 * g));
    return s;
}
SIMD_FN hi hi_add1(hi s, int32_t v) { return _mm512_add_epi32(s, _mm512_set1_epi32(v)); }

#endif
