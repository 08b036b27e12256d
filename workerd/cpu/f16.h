/* SPDX-License-Identifier: MIT */
#ifndef WORKERD_CPU_F16_H
#define WORKERD_CPU_F16_H
/*
 * IEEE half and single precision, one value at a time, on processors without an instruction for it.
 * The results are those of the instruction: rounding to nearest even, denormals kept.
 */
#include <stdint.h>
#include <string.h>

static inline float f32_of_bits(uint32_t u)
{
    float f;
    memcpy(&f, &u, sizeof(f));
    return f;
}

static inline uint32_t bits_of_f32(float f)
{
    uint32_t u;
    memcpy(&u, &f, sizeof(u));
    return u;
}

static inline float f16_to_f32(uint16_t h)
{
    uint32_t sign = (uint32_t)(h & 0x8000) << 16, rest = h & 0x7fff;
    if (rest >= 0x7c00) return f32_of_bits(sign | 0x7f800000 | rest << 13); /* infinite, NaN */
    /* As a single with the half's exponent field, times 2^112: right for denormals as well. */
    return f32_of_bits(sign | bits_of_f32(f32_of_bits(rest << 13) * 0x1p112f));
}

static inline uint16_t f32_to_f16(float f)
{
    uint32_t u = bits_of_f32(f), rest = u & 0x7fffffff;
    uint16_t sign = (uint16_t)(u >> 16 & 0x8000);
    if (rest > 0x7f800000) return (uint16_t)(sign | 0x7e00 | (rest >> 13 & 0x3ff));
    if (rest >= 0x477ff000) return sign | 0x7c00; /* rounds to 65536 or more */
    if (rest < 0x38800000) {
        /* A denormal half: adding 0.5 rounds at 2^-24, whose count is then the low bits. */
        float r = f32_of_bits(rest) + 0.5f;
        return (uint16_t)(sign | (bits_of_f32(r) - 0x3f000000));
    }
    uint32_t odd = rest >> 13 & 1;
    return (uint16_t)(sign | ((rest - 0x38000000 + 0xfff + odd) >> 13));
}

#endif
