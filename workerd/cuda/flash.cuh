/* SPDX-License-Identifier: MIT */
#ifndef WORKERD_CUDA_FLASH_CUH
#define WORKERD_CUDA_FLASH_CUH
/*
 * y = softmax(q K^T / sqrt(head_dim)) V over the chunk table with tensor cores
 * (arXiv:2205.14135, 2311.01282): the arithmetic of a (token row, query head), whoever computes it.
 * q is rounded to halves; parts of 128 cells begin at fixed positions; of a part, the scores are
 * float32 sums over head_dim in steps of 16, m the largest of them, p = 2^((s - m) scale log2 e)
 * rounded to halves, sum(p) and sum(p V) float32 sums over the cells in steps of 16; the parts of a
 * stretch of eight join in order, each scaled to the largest score so far, and the stretches
 * likewise. So a row's bits depend on its position and the cells alone, wherever these lie. Cells
 * past the row's own are left out by selection; what else is there is finite (epilogue.cuh,
 * keep.cuh), so that 0 times it is 0.
 */
#include "workerd/cuda/cells.cuh"

#include <math_constants.h>

#define LOG2_E 1.44269504f
#define ONES 0x3c003c00u /* two halves */

/* The value that a lane has of A's fragments of q, in eight k; the next one is beside it. In the
 * order in which K's dimensions are multiplied: cells.cuh. */
__device__ __forceinline__ uint32_t query_dim(const cuda_attend &a, int k, int lane)
{
    const int t = lane % 4;
    return a.kv.k_bits == 8 ? k / 2 * 16 + t * 4 + k % 2 * 2 : k * 8 + t * 2;
}

/* Scores of 16 rows and N eights of cells from `cells` on. */
template <int HD, int N>
__device__ __forceinline__ void scores_make(const uint32_t q[HD / 16][4], const __half *cells,
                                            int lane, float s[N][4])
{
#pragma unroll
    for (int n = 0; n < N; n++) {
        s[n][0] = s[n][1] = s[n][2] = s[n][3] = 0;
#pragma unroll
        for (int k = 0; k < HD / 16; k += 2) {
            uint32_t b[4];
            load_matrices(b, cells + half_at<HD>(n * 8 + lane % 8, k * 2 + lane / 8));
            mma_f16(s[n], q[k], b[0], b[1]);
            mma_f16(s[n], q[k + 1], b[2], b[3]);
        }
    }
}

/* Leaves out the cells past a row's own; pos: of this lane's two rows, -1: none. Of the rows there
 * are 8 H. */
template <int N, int H>
__device__ __forceinline__ void scores_select(const int pos[2], int first, int lane, float s[N][4])
{
#pragma unroll
    for (int n = 0; n < N; n++)
#pragma unroll
        for (int i = 0; i < 2 * H; i++)
            if (first + n * 8 + lane % 4 * 2 + i % 2 > pos[i / 2]) s[n][i] = -CUDART_INF_F;
}

template <int N, int H>
__device__ __forceinline__ void scores_most(const float s[N][4], float most[2])
{
#pragma unroll
    for (int h = 0; h < H; h++) {
        most[h] = -CUDART_INF_F;
#pragma unroll
        for (int n = 0; n < N; n++)
            most[h] = fmaxf(most[h], fmaxf(s[n][2 * h], s[n][2 * h + 1]));
        most[h] = fmaxf(most[h], __shfl_xor_sync(~0u, most[h], 1));
        most[h] = fmaxf(most[h], __shfl_xor_sync(~0u, most[h], 2));
    }
}

__device__ __forceinline__ uint32_t halves_of(float x, float y)
{
    __half2 h = __floats2half2_rn(x, y);
    return *(const uint32_t *)&h;
}

/* p of an eight of cells: this lane's first row, then its second. */
template <int H>
__device__ __forceinline__ void weights_make(const float s[4], const float most[2], float scale,
                                             uint32_t p[2])
{
#pragma unroll
    for (int h = 0; h < H; h++) {
        const float by = most[h] == -CUDART_INF_F ? 0.0f : -(most[h] * scale);
        p[h] = halves_of(power_of_2(fmaf(s[2 * h], scale, by)),
                         power_of_2(fmaf(s[2 * h + 1], scale, by)));
    }
}

/* o += p V for 16 cells (from step * 16 on) and N eights of head_dim (from d on). */
template <int HD, int N>
__device__ __forceinline__ void values_add(const uint32_t p[4], const __half *v, int step, int d,
                                           int lane, float o[N][4])
{
#pragma unroll
    for (int n = 0; n < N; n += 2) {
        uint32_t b[4];
        load_transposed(b, v + half_at<HD>(step * 16 + lane % 16, d / 8 + lane / 16 + n));
        mma_f16(o[n], p, b[0], b[1]);
        mma_f16(o[n + 1], p, b[2], b[3]);
    }
}

/* A part joins what is before it: factors of the old and of the part's. */
struct joint {
    float old, fresh;

    __device__ __forceinline__ joint(float &most, float part, float scale)
    {
        float higher = fmaxf(most, part);
        old = power_of_2((most - higher) * scale);
        fresh = power_of_2((part - higher) * scale);
        most = higher;
    }
};

/* A part's sums of a lane's values of one row, which are o[n][2 h] and the next, join those before.
 */
template <int N>
__device__ __forceinline__ void values_join(float o[N][4], const float of[N][4], int h,
                                            const joint &j)
{
#pragma unroll
    for (int n = 0; n < N; n++)
#pragma unroll
        for (int i = 2 * h; i < 2 * h + 2; i++)
            o[n][i] = fmaf(o[n][i], j.old, of[n][i] * j.fresh);
}

#endif
