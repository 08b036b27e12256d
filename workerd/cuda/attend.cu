/* SPDX-License-Identifier: MIT */
/*
 * y = softmax(q K^T / sqrt(head_dim)) V over the chunk table, by parts of 256 cells that begin at
 * fixed positions: `split` makes for each (row, K/V head, part) the largest score, the sum and the
 * weighted V; `join` adds the parts in order. So a row's bits depend on its position and the cells
 * alone, wherever these lie.
 *
 * split: 256 threads; eight lanes share a cell, each with 8 consecutive values of every 64; a warp
 * has 32 consecutive cells, four at a time. Up to four query heads of the K/V head at once share
 * what was read; K of a head is 16 cells x head_dim consecutive values, so reads are of 2 KiB and
 * more, also over PCIe. Cells past the row's own are left out by selection: stale bytes may be NaN.
 */
#include "workerd/cuda/device.cuh"

#include <math_constants.h>

enum {
    THREADS = 256,
    WARPS = THREADS / WARP,
    HEADS = 4, /* query heads at once */
    JOIN_THREADS = 256,
};

/* Eight values as they are stored. */
template <typename T> struct raw8 {
    uint4 v[sizeof(T) / 2];
};

__device__ __forceinline__ void values_of(const raw8<float> &from, float to[8])
{
#pragma unroll
    for (int i = 0; i < 2; i++) {
        to[4 * i] = __uint_as_float(from.v[i].x);
        to[4 * i + 1] = __uint_as_float(from.v[i].y);
        to[4 * i + 2] = __uint_as_float(from.v[i].z);
        to[4 * i + 3] = __uint_as_float(from.v[i].w);
    }
}
__device__ __forceinline__ void values_of(const raw8<__half> &from, float to[8])
{
    const __half2 *h = (const __half2 *)from.v;
#pragma unroll
    for (int i = 0; i < 4; i++) {
        float2 f = __half22float2(h[i]);
        to[2 * i] = f.x;
        to[2 * i + 1] = f.y;
    }
}

/* Codes of K or V with their scale (proto/kv_block.h). */
template <int BITS> struct codes {
};
template <int BITS> struct raw8<codes<BITS>> {
    uint2 v;
    float d;
};

__device__ __forceinline__ void values_of(const raw8<codes<8>> &from, float to[8])
{
#pragma unroll
    for (int i = 0; i < 8; i++)
        to[i] = from.d * (float)(int8_t)((i < 4 ? from.v.x : from.v.y) >> i % 4 * 8);
}
__device__ __forceinline__ void values_of(const raw8<codes<4>> &from, float to[8])
{
#pragma unroll
    for (int i = 0; i < 8; i++)
        to[i] = from.d * (float)((int)(from.v.x >> i * 4 & 15) - 8);
}

/* Of one block of threads. */
struct part_shared {
    const uint8_t *block[CUDA_SPLIT_CELLS / CUDA_UNIT_CELLS]; /* of each unit of cells */
    float p[HEADS][CUDA_SPLIT_CELLS];                         /* scores, then weights */
};

/* The 8 values of a cell from value `at` on, of K or V. */
template <typename T>
__device__ __forceinline__ void raw_read(const cuda_attend &a, const uint8_t *block, bool is_v,
                                         uint64_t line, uint32_t cell, uint32_t at, raw8<T> &to)
{
    const T *from = (const T *)(block + (is_v ? a.kv.v_off : 0));
    to = *(const raw8<T> *)(from + ((line << a.kv.block_shift) + cell) * a.kv.head_dim + at);
}
template <int BITS>
__device__ __forceinline__ void raw_read(const cuda_attend &a, const uint8_t *block, bool is_v,
                                         uint64_t line, uint32_t cell, uint32_t at,
                                         raw8<codes<BITS>> &to)
{
    const uint64_t value = ((line << a.kv.block_shift) + cell) * a.kv.head_dim + at;
    const uint8_t *from = block + (is_v ? a.kv.v_off : 0) + value * BITS / 8;
    const uint64_t scale = ((line * a.kv.n_groups + at / 64) << a.kv.block_shift) + cell;
    if (BITS == 8)
        to.v = *(const uint2 *)from;
    else
        to.v.x = *(const uint32_t *)from;
    to.d = __half2float(
        ((const __half *)(block + (is_v ? a.kv.v_scale_off : a.kv.k_scale_off)))[scale]);
}

/* Reads that a thread has under way: of its eight cells as many as 32 registers hold: two blocks of
 * threads share a multiprocessor. */
template <typename T, int CHUNKS> constexpr __host__ __device__ int cells_ahead()
{
    return CHUNKS * sizeof(raw8<T>) <= 16 ? 8 : CHUNKS * sizeof(raw8<T>) <= 32 ? 4 : 2;
}

__device__ __forceinline__ uint32_t own_cell(uint32_t i)
{
    return threadIdx.x / WARP * 32 + i * 4 + threadIdx.x % WARP / 8;
}

/* Asks for this thread's values of its cells from the i-th on. */
template <typename T, int CHUNKS, int N>
__device__ __forceinline__ void cells_ask(const cuda_attend &a, const part_shared *s,
                                          uint32_t first, uint32_t n, uint32_t head, bool is_v,
                                          uint32_t i0, raw8<T> to[N][CHUNKS])
{
#pragma unroll
    for (int i = 0; i < N; i++)
#pragma unroll
        for (int k = 0; k < CHUNKS; k++) {
            uint32_t c = own_cell(i0 + i), at = k * 64 + threadIdx.x % 8 * 8;
            uint32_t cell = (first + c) & ((1u << a.kv.block_shift) - 1);
            if (c < n && at < a.kv.head_dim)
                raw_read(a, s->block[c / CUDA_UNIT_CELLS], is_v, head, cell, at, to[i][k]);
        }
}

template <typename T, int CHUNKS, int N>
__device__ __forceinline__ void scores_add(const cuda_attend &a, part_shared *s, uint32_t n,
                                           const float q[HEADS][CHUNKS][8], uint32_t i0,
                                           const raw8<T> kv[N][CHUNKS])
{
#pragma unroll
    for (int i = 0; i < N; i++) {
        const uint32_t c = own_cell(i0 + i);
        float sum[HEADS] = {};
#pragma unroll
        for (int k = 0; k < CHUNKS; k++) {
            float v[8];
            if (k * 64 + threadIdx.x % 8 * 8 >= a.kv.head_dim) break;
            values_of(kv[i][k], v);
#pragma unroll
            for (int h = 0; h < HEADS; h++)
#pragma unroll
                for (int d = 0; d < 8; d++)
                    sum[h] = fmaf(q[h][k][d], v[d], sum[h]);
        }
#pragma unroll
        for (int h = 0; h < HEADS; h++) {
            for (int o = 4; o; o >>= 1)
                sum[h] += __shfl_xor_sync(~0u, sum[h], o);
            if (threadIdx.x % 8 == 0) s->p[h][c] = c < n ? sum[h] * a.scale : -CUDART_INF_F;
        }
    }
}

template <int CHUNKS>
__device__ __forceinline__ void query_read(const cuda_attend &a, uint32_t row, uint32_t h0,
                                           uint32_t n_heads, float q[HEADS][CHUNKS][8])
{
#pragma unroll
    for (int h = 0; h < HEADS; h++)
#pragma unroll
        for (int k = 0; k < CHUNKS; k++) {
            uint32_t at = k * 64 + threadIdx.x % 8 * 8;
            bool there = at < a.kv.head_dim && h < n_heads;
            const float4 *from =
                (const float4 *)(a.q.f + (uint64_t)row * a.q.width + (h0 + h) * a.kv.head_dim + at);
            float4 x = there ? from[0] : make_float4(0, 0, 0, 0);
            float4 y = there ? from[1] : make_float4(0, 0, 0, 0);
            q[h][k][0] = x.x, q[h][k][1] = x.y, q[h][k][2] = x.z, q[h][k][3] = x.w;
            q[h][k][4] = y.x, q[h][k][5] = y.y, q[h][k][6] = y.z, q[h][k][7] = y.w;
        }
}

/* Warp h turns the scores of head h into weights. */
__device__ __forceinline__ void weights_make(part_shared *s, float *ml)
{
    const uint32_t h = threadIdx.x / WARP, lane = threadIdx.x % WARP;
    float most = -CUDART_INF_F, sum = 0;
    for (uint32_t c = lane; c < CUDA_SPLIT_CELLS; c += WARP)
        most = fmaxf(most, s->p[h][c]);
    for (int o = 16; o; o >>= 1)
        most = fmaxf(most, __shfl_xor_sync(~0u, most, o));
    for (uint32_t c = lane; c < CUDA_SPLIT_CELLS; c += WARP) {
        float p = expf(s->p[h][c] - most);
        s->p[h][c] = p;
        sum += p;
    }
    for (int o = 16; o; o >>= 1)
        sum += __shfl_xor_sync(~0u, sum, o);
    if (lane == 0) *(float2 *)ml = make_float2(most, sum);
}

template <typename T, int CHUNKS, int N>
__device__ __forceinline__ void values_add(const cuda_attend &a, const part_shared *s, uint32_t n,
                                           uint32_t i0, const raw8<T> kv[N][CHUNKS],
                                           float o[HEADS][CHUNKS][8])
{
#pragma unroll
    for (int i = 0; i < N; i++) {
        const uint32_t c = own_cell(i0 + i);
        if (c >= n) break;
        float p[HEADS];
#pragma unroll
        for (int h = 0; h < HEADS; h++)
            p[h] = s->p[h][c];
#pragma unroll
        for (int k = 0; k < CHUNKS; k++) {
            float v[8];
            if (k * 64 + threadIdx.x % 8 * 8 >= a.kv.head_dim) break;
            values_of(kv[i][k], v);
#pragma unroll
            for (int h = 0; h < HEADS; h++)
#pragma unroll
                for (int d = 0; d < 8; d++)
                    o[h][k][d] = fmaf(p[h], v[d], o[h][k][d]);
        }
    }
}

/* Over the four cells that a warp has at once. */
template <int CHUNKS> __device__ __forceinline__ void warp_join(float o[HEADS][CHUNKS][8])
{
#pragma unroll
    for (int h = 0; h < HEADS; h++)
#pragma unroll
        for (int k = 0; k < CHUNKS; k++)
#pragma unroll
            for (int d = 0; d < 8; d++) {
                o[h][k][d] += __shfl_xor_sync(~0u, o[h][k][d], 8);
                o[h][k][d] += __shfl_xor_sync(~0u, o[h][k][d], 16);
            }
}

/* The warps' sums, in order. to: of the first head; stride: between heads. */
template <int CHUNKS>
__device__ __forceinline__ void block_join(float (*sums)[WARPS][CHUNKS * 64],
                                           const float o[HEADS][CHUNKS][8], uint32_t n_heads,
                                           uint32_t hd, float *to, uint64_t stride)
{
    const uint32_t warp = threadIdx.x / WARP, lane = threadIdx.x % WARP;
    if (lane < 8) {
#pragma unroll
        for (int h = 0; h < HEADS; h++)
#pragma unroll
            for (int k = 0; k < CHUNKS; k++)
#pragma unroll
                for (int d = 0; d < 8; d += 4)
                    *(float4 *)&sums[h][warp][k * 64 + lane * 8 + d] =
                        make_float4(o[h][k][d], o[h][k][d + 1], o[h][k][d + 2], o[h][k][d + 3]);
    }
    __syncthreads();
    for (uint32_t i = threadIdx.x; i < n_heads * hd; i += THREADS) {
        uint32_t h = i / hd, d = i % hd;
        float v = sums[h][0][d];
#pragma unroll
        for (int w = 1; w < WARPS; w++)
            v += sums[h][w][d];
        to[h * stride + d] = v;
    }
    __syncthreads();
}

template <typename K, typename V, int CHUNKS>
__global__ void __launch_bounds__(THREADS, CHUNKS > 2 ? 1 : 2) split(const cuda_attend a)
{
    const int N = cells_ahead<K, CHUNKS>() < cells_ahead<V, CHUNKS>() ? cells_ahead<K, CHUNKS>()
                                                                      : cells_ahead<V, CHUNKS>();
    __shared__ part_shared s;
    __shared__ __align__(16) float sums[HEADS][WARPS][CHUNKS * 64];
    dependency_release();
    dependency_wait();
    const uint32_t row = a.first_row + blockIdx.z, head = blockIdx.y, part = blockIdx.x;
    const cuda_row r = a.kv.rows[row];
    const uint32_t first = part * CUDA_SPLIT_CELLS, hd = a.kv.head_dim;
    if (first > r.pos) return;
    const uint32_t n = min(r.pos + 1 - first, (uint32_t)CUDA_SPLIT_CELLS);
    blocks_find(a, r.lane, first, r.pos + 1, CUDA_SPLIT_CELLS, s.block);
    __syncthreads();
    const uint32_t group = a.kv.n_heads / a.kv.n_kv_heads;
    for (uint32_t g = 0; g < group; g += HEADS) {
        const uint32_t h0 = head * group + g, n_heads = min(group - g, (uint32_t)HEADS);
        const uint64_t at = ((uint64_t)blockIdx.z * a.kv.n_heads + h0) * a.n_splits + part;
        raw8<K> k[N][CHUNKS];
        raw8<V> v[N][CHUNKS];
        float q[HEADS][CHUNKS][8], o[HEADS][CHUNKS][8] = {};
        query_read<CHUNKS>(a, row, h0, n_heads, q);
#pragma unroll
        for (int i = 0; i < 8; i += N) {
            cells_ask<K, CHUNKS, N>(a, &s, first, n, head, false, i, k);
            scores_add<K, CHUNKS, N>(a, &s, n, q, i, k);
        }
        cells_ask<V, CHUNKS, N>(a, &s, first, n, head, true, 0, v);
        __syncthreads();
        uint32_t warp = threadIdx.x / WARP;
        if (warp < n_heads) weights_make(&s, a.ml + (at + warp * a.n_splits) * 2);
        __syncthreads();
#pragma unroll
        for (int i = 0; i < 8; i += N) {
            if (i > 0) cells_ask<V, CHUNKS, N>(a, &s, first, n, head, true, i, v);
            values_add<V, CHUNKS, N>(a, &s, n, i, v, o);
        }
        warp_join<CHUNKS>(o);
        block_join<CHUNKS>(sums, o, n_heads, hd, a.o + at * hd, (uint64_t)a.n_splits * hd);
    }
}

/* One (row, head): the parts in order, each scaled to the largest score so far. */
__global__ void __launch_bounds__(JOIN_THREADS) join(const cuda_attend a)
{
    dependency_release();
    dependency_wait();
    const uint32_t local = blockIdx.y, head = blockIdx.x, hd = a.kv.head_dim, d = threadIdx.x;
    const uint32_t row = a.first_row + local;
    const uint32_t n = a.kv.rows[row].pos / CUDA_SPLIT_CELLS + 1;
    const uint64_t at = ((uint64_t)local * a.kv.n_heads + head) * a.n_splits;
    float most = -CUDART_INF_F, sum = 0, o = 0;
    for (uint32_t i = 0; i < n; i++) {
        float2 ml = *(const float2 *)(a.ml + (at + i) * 2);
        float v = d < hd ? a.o[(at + i) * hd + d] : 0;
        float higher = fmaxf(most, ml.x), old = expf(most - higher), fresh = expf(ml.x - higher);
        sum = fmaf(sum, old, ml.y * fresh);
        o = fmaf(o, old, v * fresh);
        most = higher;
    }
    float v = d < hd ? __fdiv_rn(o, sum) : 0;
    if (d < hd) a.y.f[(uint64_t)row * a.y.width + head * hd + d] = v;
    if (a.quantise && d / WARP * WARP < hd)
        quantise_block(v, d % WARP, row_codes(a.y, row), (head * hd + d) / CUDA_BLOCK);
}

template <typename K, typename V>
static cudaError_t launch_split(cudaStream_t s, const cuda_attend *a)
{
    dim3 grid(a->n_splits, a->kv.n_kv_heads, a->n_rows);
    switch ((a->kv.head_dim + 63) / 64) {
    case 1:
        return launch(s, a->dependent, split<K, V, 1>, grid, THREADS, 0, *a);
    case 2:
        return launch(s, a->dependent, split<K, V, 2>, grid, THREADS, 0, *a);
    default:
        return launch(s, a->dependent, split<K, V, 4>, grid, THREADS, 0, *a);
    }
}

extern "C" cudaError_t cuda_launch_attend(cudaStream_t s, const struct cuda_attend *a)
{
    cudaError_t e = a->kv.k_bits == 32   ? launch_split<float, float>(s, a)
                    : a->kv.k_bits == 16 ? launch_split<__half, __half>(s, a)
                    : a->kv.k_bits == 4  ? launch_split<codes<4>, codes<4>>(s, a)
                    : a->kv.v_bits == 4  ? launch_split<codes<8>, codes<4>>(s, a)
                                         : launch_split<codes<8>, codes<8>>(s, a);
    if (e) return e;
    uint32_t threads = (a->kv.head_dim + WARP - 1) / WARP * WARP;
    return launch(s, a->dependent, join, dim3(a->kv.n_heads, a->n_rows), threads, 0, *a);
}
