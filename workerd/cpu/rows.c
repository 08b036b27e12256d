/* SPDX-License-Identifier: MIT */
/*
 * What is done to one token row by itself: RMS norm, and int8 codes for the quantised products. Run
 * by the operations of cpu.c; compiled for each variant.
 */
#include "workerd/cpu/variant.h"

#include <math.h>

/* RMSNorm (arXiv:1910.07467). n is a multiple of 16. */
void KERNEL(norm)(float *y, const float *x, const float *w, uint32_t n, float eps)
{
    vf s = vf_set1(0);
    for (uint32_t i = 0; i < n; i += LANES) {
        vf v = vf_load(x + i);
        s = vf_fma(v, v, s);
    }
    vf scale = vf_set1(1.0f / sqrtf(vf_hsum(s) / (float)n + eps));
    for (uint32_t i = 0; i < n; i += LANES)
        vf_store(y + i, vf_mul(vf_mul(vf_load(x + i), scale), vf_load(w + i)));
}

/* A block whose largest value is below this counts as zeros: 127 divided by it must be finite. */
#define SMALLEST 1e-30f

/* d = max |x| / 127, code = x / d rounded to nearest even, for each block of 32. */
void KERNEL(quantise)(const struct backend_buffer *x, uint32_t row)
{
    const float *f = x->f + (size_t)row * x->width;
    int8_t *q = x->q + (size_t)row * x->width;
    size_t at = (size_t)row * (x->width / QBLOCK);
    for (uint32_t i = 0; i < x->width; i += QBLOCK, at++) {
        vf a = vf_load(f + i), b = vf_load(f + i + LANES);
        float most = vf_hmax(vf_max(vf_abs(a), vf_abs(b)));
        vf per = vf_set1(most >= SMALLEST ? 127.0f / most : 0.0f), round = vf_set1(SIMD_ROUND);
        vf_store_low8(q + i, vf_fma(a, per, round));
        vf_store_low8(q + i + LANES, vf_fma(b, per, round));
        int32_t sum = 0;
        for (uint32_t j = 0; j < QBLOCK; j++)
            sum += q[i + j];
        x->sum[at] = sum;
        x->d[at] = most >= SMALLEST ? most / 127.0f : 0.0f;
        x->s[at] = x->d[at] * (float)sum;
    }
}
