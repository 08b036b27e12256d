/* SPDX-License-Identifier: MIT */
#ifndef WORKERD_CPU_SIMD_H
#define WORKERD_CPU_SIMD_H
/*
 * Sixteen float lanes, for kernels that are written once and compiled for each variant. Every
 * function here is the same sequence of IEEE operations on each lane in every variant, so the
 * variants' results are equal bit for bit; the tests hold them so. Nothing may be added whose
 * result depends on the variant (approximate reciprocals, sums across lanes in another order).
 *
 *   vf   16 floats
 *   hw   4-bit or 8-bit codes of a native vector: HALVES of them make 16 outputs, 4 codes each
 *   hi   int32 lanes of a native vector
 */
#include <stdint.h>

/* Where vectors are arrays the compiler chooses: forced, the sanitizers' build took minutes. */
#if defined(CPU_VARIANT_plain)
#define SIMD_FN static inline
#else
#define SIMD_FN static inline __attribute__((always_inline))
#endif

#if defined(CPU_VARIANT_avx512)
#include "workerd/cpu/simd_avx512.h"
#include "workerd/cpu/simd_x86.h"
#elif defined(CPU_VARIANT_avx2)
#include "workerd/cpu/simd_avx2.h"
#include "workerd/cpu/simd_x86.h"
#elif defined(CPU_VARIANT_plain)
#include "workerd/cpu/simd_plain.h"
#else
#error "the build names a variant for each kernel library"
#endif

enum { LANES = 16 };

#define SIMD_JOIN_(a, b) a##_##b
#define SIMD_JOIN(a, b) SIMD_JOIN_(a, b)
/* A kernel's name in this variant. */
#define KERNEL(name) SIMD_JOIN(name, CPU_VARIANT)

/* Sum and largest of the lanes, as a tree of halves. */
SIMD_FN float vf_hsum(vf v)
{
    float t[LANES];
    vf_store(t, v);
    for (int w = LANES / 2; w > 0; w /= 2)
        for (int i = 0; i < w; i++)
            t[i] += t[i + w];
    return t[0];
}

SIMD_FN float vf_hmax(vf v)
{
    float t[LANES];
    vf_store(t, v);
    for (int w = LANES / 2; w > 0; w /= 2)
        for (int i = 0; i < w; i++)
            t[i] = t[i] > t[i + w] ? t[i] : t[i + w];
    return t[0];
}

/* Adding this to a float of magnitude under 2^22 rounds it to an integer, to nearest even, and
 * leaves that integer in the low bits. */
#define SIMD_ROUND 12582912.0f

/* e^x, x limited to [-86, 88]: x = n ln 2 + r, a polynomial in r (Cephes' expf, relative error
 * about 1e-7), then n added to the exponent. ln 2 is in two parts so that n times the first is
 * exact. */
SIMD_FN vf vf_exp(vf x)
{
    x = vf_min(vf_max(x, vf_set1(-86.0f)), vf_set1(88.0f));
    vf t = vf_fma(x, vf_set1(1.44269504088896341f), vf_set1(SIMD_ROUND));
    vf n = vf_sub(t, vf_set1(SIMD_ROUND));
    vf r = vf_fma(n, vf_set1(-0.693359375f), x);
    r = vf_fma(n, vf_set1(2.12194440e-4f), r);
    vf p = vf_set1(1.9875691500e-4f);
    p = vf_fma(p, r, vf_set1(1.3981999507e-3f));
    p = vf_fma(p, r, vf_set1(8.3334519073e-3f));
    p = vf_fma(p, r, vf_set1(4.1665795894e-2f));
    p = vf_fma(p, r, vf_set1(1.6666665459e-1f));
    p = vf_fma(p, r, vf_set1(5.0000001201e-1f));
    p = vf_fma(p, vf_mul(r, r), vf_add(r, vf_set1(1.0f)));
    return vf_raise(p, t);
}

#endif
