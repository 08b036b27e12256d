/* SPDX-License-Identifier: MIT */
#ifndef WORKERD_MASS_H
#define WORKERD_MASS_H
/*
 * The arithmetic of drawing a token, for the host (sampler.c) and the device (cuda/sample.cu)
 * alike: each step is one rounding of IEEE 754 or exact, so both get the same bits. How likely a
 * token is beside the most likely one is an integer, its mass. Sums of masses are exact, so their
 * order doesn't matter: threads may add in any, and a sum over a row's parts is the row's.
 *
 * Everything here wants a build that joins no product with a sum.
 */
#include <math.h>
#include <stdbool.h>
#include <stdint.h>

#ifdef __cplusplus
#define MASS_FN __device__ __forceinline__
#else
#define MASS_FN static inline
#endif

enum {
    MASS_BITS = 43,           /* the most likely token has 2^43 */
    MASS_VOCAB_MAX = 1 << 20, /* tokens of a vocabulary: a row's masses add up to 2^63 at most */
};
#define MASS_ROUND 768.0 /* 1.5 x 2^9: of a double near it the last bit counts 2^-43 */
#define MASS_ROUND_BITS INT64_C(0x4088000000000000)

/* e^x by 2^k e^r: the Taylor series of e^r to r^12, |r| <= log(2) / 2, which leaves out less than
 * 2e-16; log(2) in two parts, k times the first is exact. */
#define MASS_EXP_LEAST -708.0 /* below it e^x is no normal number */
#define MASS_EXP_TERMS                                                                             \
    {                                                                                              \
        1.0 / 479001600, 1.0 / 39916800, 1.0 / 3628800, 1.0 / 362880, 1.0 / 40320, 1.0 / 5040,     \
            1.0 / 720, 1.0 / 120, 1.0 / 24, 1.0 / 6, 0.5, 1, 1                                     \
    }
enum { MASS_EXP_N = 13 };
#define MASS_INTEGER                                                                               \
    6755399441055744.0 /* 1.5 x 2^52, added and subtracted: rounds to an integer                   \
                        */
#define MASS_LOG2_E 0x1.71547652b82fep+0
#define MASS_LN2_HIGH 0x1.62e42fefa3800p-1
#define MASS_LN2_LOW 0x1.ef35793c76730p-45

MASS_FN int64_t mass_bits_of(double v)
{
#ifdef __CUDA_ARCH__
    return __double_as_longlong(v);
#else
    union {
        double v;
        int64_t bits;
    } u;
    u.v = v;
    return u.bits;
#endif
}
MASS_FN double mass_double_of(int64_t bits)
{
#ifdef __CUDA_ARCH__
    return __longlong_as_double(bits);
#else
    union {
        double v;
        int64_t bits;
    } u;
    u.bits = bits;
    return u.v;
#endif
}

/* e^x for x <= 0, within 1e-14 of it; 0 where e^x is no normal number, and for a NaN. Ours, since a
 * library's bits differ between processors, and a token drawn must not. */
MASS_FN double mass_exp(double x)
{
    const double term[MASS_EXP_N] = MASS_EXP_TERMS;
    bool normal = x >= MASS_EXP_LEAST;
    double y = normal ? x : 0, sum = y * MASS_LOG2_E + MASS_INTEGER, k = sum - MASS_INTEGER;
    double r = y - k * MASS_LN2_HIGH;
    r -= k * MASS_LN2_LOW;
    double p = term[0];
    for (int i = 1; i < MASS_EXP_N; i++)
        p = p * r + term[i];
    /* k lies in the lowest bits of the sum. */
    uint64_t power = ((uint64_t)mass_bits_of(sum) + 1023) << 52;
    return normal ? p * mass_double_of((int64_t)power) : 0;
}

/* How likely a logit is beside the largest, at 1 / per. Equal infinities are equally likely. */
MASS_FN double mass_weight(float logit, float most, double per)
{
    return mass_exp(logit == most ? 0 : ((double)logit - (double)most) * per);
}
MASS_FN uint64_t mass_of(float logit, float most, double per)
{
    double near = mass_weight(logit, most, per) + MASS_ROUND;
    return (uint64_t)(mass_bits_of(near) - MASS_ROUND_BITS);
}

/* The least mass that is so much of a total: 0 <= share < 1. */
MASS_FN uint64_t mass_share(float share, uint64_t total)
{
    return share > 0 ? (uint64_t)ceil((double)share * (double)total) : 0;
}

/* log(total / 2^43) for a total of at least that, within 1e-15 or 1 ulp: 2^k m with m in [0.70,
 * 1.42], log(m) = 2 atanh(s), s = (m - 1) / (m + 1), |s| < 0.172, by its series to s^21, which
 * leaves out less than 1e-18. */
MASS_FN double mass_log(uint64_t total)
{
    int64_t bits = mass_bits_of((double)total);
    int k = (int)(bits >> 52) - 1023;
    double m = mass_double_of((bits & INT64_C(0xfffffffffffff)) | INT64_C(0x3ff0000000000000));
    if (m > 1.4140625) {
        m *= 0.5;
        k++;
    }
    double s = (m - 1) / (m + 1), z = s * s, p = 0;
    for (int i = 21; i >= 1; i -= 2)
        p = p * z + 1.0 / i;
    double far = (double)(k - MASS_BITS);
    return far * MASS_LN2_HIGH + (far * MASS_LN2_LOW + 2 * s * p);
}

/* The logarithm of a token's probability. Equal infinities are 0 apart. */
MASS_FN float mass_logprob(float logit, float most, double norm)
{
    return (float)((logit == most ? 0 : (double)logit - (double)most) - norm);
}

/* splitmix64's finisher (Steele, Lea, Flood 2014) over a counter made of the position. */
MASS_FN uint64_t mass_mixed(uint64_t v)
{
    v = (v ^ v >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
    v = (v ^ v >> 27) * UINT64_C(0x94d049bb133111eb);
    return v ^ v >> 31;
}

/* Where in a total the token lies that is drawn, below it: of (seed, position) and nothing else. */
MASS_FN uint64_t mass_drawn(uint64_t seed, uint32_t pos, uint64_t total)
{
    uint64_t u = mass_mixed(mass_mixed(seed) + (pos + UINT64_C(1)) * UINT64_C(0x9e3779b97f4a7c15));
#ifdef __CUDA_ARCH__
    return __umul64hi(u, total);
#else
    return (uint64_t)((unsigned __int128)u * total >> 64);
#endif
}

#endif
