/* SPDX-License-Identifier: MIT */
#ifndef WORKERD_CUDA_SAMPLE_CUH
#define WORKERD_CUDA_SAMPLE_CUH
/*
 * What sample.cu and choose.cu share: sums and the largest over threads, a row's tasks, the order
 * of tokens.
 */
#include "workerd/cuda/device.cuh"
#include "workerd/mass.h"

typedef unsigned long long mass_sum; /* uint64_t, as atomicAdd names it */

/* ---- sums over a block of threads; all of its threads come here ---- */

/* Of all threads with lower or the same index; *total: of all. */
__device__ inline mass_sum block_scan(mass_sum v, mass_sum *total)
{
    __shared__ mass_sum of_warp[WARP];
    const uint32_t lane = threadIdx.x % WARP, warp = threadIdx.x / WARP;
    for (int o = 1; o < WARP; o *= 2) {
        mass_sum before = __shfl_up_sync(~0u, v, o);
        if (lane >= (uint32_t)o) v += before;
    }
    __syncthreads(); /* whoever reads an earlier scan's sums */
    if (lane == WARP - 1) of_warp[warp] = v;
    __syncthreads();
    mass_sum before = 0, sum = 0;
    for (uint32_t i = 0; i < blockDim.x / WARP; i++) {
        if (i == warp) before = sum;
        sum += of_warp[i];
    }
    *total = sum;
    return before + v;
}

__device__ inline mass_sum block_sum(mass_sum v)
{
    mass_sum total;
    (void)block_scan(v, &total);
    return total;
}

/* ---- the largest ---- */

struct best {
    float v;
    uint32_t i; /* UINT32_MAX: none yet */
};

/* The larger, of equals the first. */
__device__ __forceinline__ best better(best a, best b)
{
    if (a.i == UINT32_MAX) return b;
    if (b.i == UINT32_MAX) return a;
    return b.v > a.v || (b.v == a.v && b.i < a.i) ? b : a;
}

__device__ __forceinline__ best warp_best(best b)
{
    for (int o = 16; o; o >>= 1) {
        best other = {__shfl_xor_sync(~0u, b.v, o), __shfl_xor_sync(~0u, b.i, o)};
        b = better(b, other);
    }
    return b;
}

/* As sampler.c: the first of the largest; with a NaN anywhere, the first that is a number. */
__device__ __forceinline__ uint32_t greedy(const cuda_extreme &e)
{
    uint32_t t = e.nan ? e.number : e.at;
    return t == UINT32_MAX ? 0 : t;
}

/* ---- tasks ---- */

/* A task of a row, and where its numbers lie. */
struct task {
    const cuda_choice &c;
    uint32_t n_parts, n_vocab;
    const float *logits; /* of a choice: after look */
    cuda_extreme *extremes;
    mass_sum *sums;
    uint32_t *bins, *listed;
    uint64_t *list;

    __device__ task(const cuda_sample &a, uint32_t row, uint32_t kind)
        : c(a.choices[row]), n_parts((a.n_vocab + CUDA_PART - 1) / CUDA_PART), n_vocab(a.n_vocab),
          logits(a.x.f + (uint64_t)row * a.x.width), is_choice(kind == CUDA_CHOICE)
    {
        uint64_t i = (uint64_t)row * CUDA_TASKS + kind;
        if (is_choice && adjusts()) logits = a.adjusted + (uint64_t)row * a.n_vocab;
        extremes = a.extremes + i * n_parts;
        sums = (mass_sum *)a.sums + i * n_parts;
        bins = a.bins + i * CUDA_BINS;
        listed = a.listed + i;
        list = a.list + i * CUDA_LIST;
    }
    __device__ bool adjusts() const { return c.n_biases || c.n_repeat || c.n_counted; }
    __device__ bool is_asked() const { return is_choice ? c.chooses : c.probs; }
    __device__ bool draws() const { return is_choice && c.temperature > 0; }
    __device__ bool is_bounded() const { return c.top_k > 0 && c.top_k < n_vocab; }
    __device__ bool filters() const { return c.top_k > 0 || c.top_p < 1 || c.min_p > 0; }
    /* Whether the first in order are wanted, and how many: 0 where that is still to be found. */
    __device__ bool lists() const { return is_choice ? draws() && filters() : c.n_top > 0; }
    __device__ uint32_t target() const
    {
        return is_choice ? is_bounded() ? c.top_k : 0 : min(c.n_top, n_vocab);
    }
    /* Whether the row's mass is wanted, and at what temperature. */
    __device__ bool weighs() const
    {
        return !is_choice || (draws() && (!filters() || (c.top_p < 1 && !is_bounded())));
    }
    __device__ double per() const { return draws() && !filters() ? 1 / (double)c.temperature : 1; }

  private:
    bool is_choice;
};

/* Of the row, by each warp for itself. */
__device__ inline cuda_extreme row_extreme(const task &t)
{
    best b = {0, UINT32_MAX};
    uint32_t number = UINT32_MAX, nan = 0;
    for (uint32_t i = threadIdx.x % WARP; i < t.n_parts; i += WARP) {
        cuda_extreme e = t.extremes[i];
        b = better(b, best{e.most, e.at});
        number = min(number, e.number);
        nan |= e.nan;
    }
    b = warp_best(b);
    number = __reduce_min_sync(~0u, number);
    nan = 1 - __reduce_min_sync(~0u, 1 - nan);
    return cuda_extreme{b.v, b.i, number, nan};
}

/* ---- the order: larger logits first, of equals the lower id ---- */

/* 0.0 and -0.0 are equals. */
__device__ __forceinline__ uint64_t place_of(float logit, uint32_t id)
{
    uint32_t bits = __float_as_uint(logit + 0.0f);
    bits = bits >> 31 ? ~bits : bits | 0x80000000u;
    return (uint64_t)bits << 32 | (uint32_t)~id;
}
__device__ __forceinline__ uint32_t id_at(uint64_t place) { return ~(uint32_t)place; }
__device__ __forceinline__ float logit_at(uint64_t place)
{
    uint32_t bits = (uint32_t)(place >> 32);
    return __uint_as_float(bits >> 31 ? bits & 0x7fffffffu : ~bits);
}

/* How far below the largest, in sixteenths: never less for what comes later in the order. */
__device__ __forceinline__ uint32_t bin_of(float logit, float most)
{
    float d = logit == most ? 0 : (most - logit) * 16;
    return d < CUDA_BINS - 1 ? (uint32_t)d : CUDA_BINS - 1;
}

#endif
