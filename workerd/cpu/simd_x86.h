/* SPDX-License-Identifier: MIT */
#ifndef WORKERD_CPU_SIMD_X86_H
#define WORKERD_CPU_SIMD_X86_H
/*
 * What simd_avx2.h and simd_avx512.h have alike: codes of K and V become floats sixteen at a time,
 * whatever the width of the registers. Included by simd.h behind either of them, for its
 * vf_from_bytes(), 16 signed bytes as floats.
 */

SIMD_FN vf vf_load_i8(const int8_t *p)
{
    return vf_from_bytes(_mm_loadu_si128((const __m128i_u *)p));
}
SIMD_FN vf simd_less8(__m128i nibbles)
{
    __m128i code = _mm_and_si128(nibbles, _mm_set1_epi8(15));
    return vf_from_bytes(_mm_sub_epi8(code, _mm_set1_epi8(8)));
}
/* The low (shift 0) or high (4) four bits of 16 bytes, less 8. */
SIMD_FN vf vf_load_u4(const uint8_t *p, int shift)
{
    return simd_less8(_mm_srli_epi16(_mm_loadu_si128((const __m128i_u *)p), shift));
}
/* The 16 nibbles of 8 bytes in order, the low one of each first, less 8. */
SIMD_FN vf vf_load_u4_pairs(const uint8_t *p)
{
    __m128i x = _mm_loadl_epi64((const __m128i_u *)p);
    return simd_less8(_mm_unpacklo_epi8(x, _mm_srli_epi16(x, 4)));
}

#endif
