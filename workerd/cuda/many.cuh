/* SPDX-License-Identifier: MIT */
#ifndef WORKERD_CUDA_MANY_CUH
#define WORKERD_CUDA_MANY_CUH
/*
 * What the kernels of y = W x for the token rows of prompts share (many.cu, many_groups.cu). A
 * block of threads makes 128 outputs (CUDA_GATE: 64 of each matrix) of 128 token rows.  When a
 * range of k ends its sums are added to those of the ranges before, each thread its own, in shared
 * memory: registers hold one set. Tiles past the last repeat it and are not kept.
 */
#include "workerd/cuda/product.cuh"

enum {
    THREADS = 512,
    WARPS = THREADS / WARP,
    OUTS = 128,
    ROWS = 128,
    OUT_TILES = OUTS / 16,
    ROW_TILES = ROWS / CUDA_X_ROWS,
    SUMS = OUTS * ROWS / THREADS / 4, /* of a thread, in fours */
    TOTALS_BYTES = OUTS * ROWS * 4,
    OUT_STRIDE = OUTS + 4, /* rows of a warp's sums in different banks */
};

template <int PACK> constexpr __host__ __device__ int slot_bytes()
{
    return OUT_TILES * piece<PACK>::bytes + ROW_TILES * CUDA_X_BYTES;
}

/* Where tile t of the block's OUT_TILES lies: its first piece. */
template <int PACK, int M>
__device__ __forceinline__ const uint8_t *weights_of(const cuda_product &a, const tile_place &p,
                                                     int t)
{
    const int each = OUT_TILES / M;
    const cuda_matrix &m = a.m[p.matrix + t / each];
    const uint64_t tile = min(p.first / 16 + t % each, (m.n_out - 1) / 16);
    return (const uint8_t *)m.codes + tile * (a.x.k_pad / CUDA_PIECE) * piece<PACK>::bytes;
}

/* Where eight token rows lie, of the block's ROW_TILES times eight from row0 on. */
__device__ __forceinline__ const uint8_t *rows_of(const cuda_product &a, uint32_t row0, int t)
{
    const uint64_t eight = min(row0 / CUDA_X_ROWS + t, (a.n_rows - 1) / CUDA_X_ROWS);
    return (const uint8_t *)a.x.q + eight * (a.x.k_pad / CUDA_PIECE) * CUDA_X_BYTES;
}

/* The sums of the ranges so far, of this thread. */
struct totals {
    float4 *at;
    bool some;

    __device__ __forceinline__ void add(float acc[SUMS][4])
    {
#pragma unroll
        for (int i = 0; i < SUMS; i++) {
            float *v = acc[i];
            float4 t = some ? at[i * THREADS] : make_float4(0, 0, 0, 0);
            v[0] = t.x + v[0], v[1] = t.y + v[1], v[2] = t.z + v[2], v[3] = t.w + v[3];
        }
    }
    __device__ __forceinline__ void keep(float acc[SUMS][4])
    {
        add(acc);
#pragma unroll
        for (int i = 0; i < SUMS; i++) {
            float *v = acc[i];
            at[i * THREADS] = make_float4(v[0], v[1], v[2], v[3]);
            v[0] = v[1] = v[2] = v[3] = 0;
        }
        some = true;
    }
};

/* Where the range that has piece i ends. */
struct range_walk {
    uint32_t n_pieces, r, end;

    __device__ __forceinline__ explicit range_walk(uint32_t n) : n_pieces(n), r(0), end(0)
    {
        past(0);
    }
    __device__ __forceinline__ void past(uint32_t i)
    {
        while (end <= i)
            end = range_begin(n_pieces, ++r);
    }
};

/* A lane has four outputs of AHEAD rows at a time, 32 lanes those of M rows. */
template <int M>
__device__ __forceinline__ void rows_write(const cuda_product &a, const tile_place &place,
                                           uint32_t row0, const float *out, const float *scales)
{
    const int AHEAD = 4, lanes = OUTS / M / 4, step = THREADS / lanes;
    const uint32_t of = threadIdx.x % lanes * 4, n = min(a.n_rows - row0, (uint32_t)ROWS);
    for (uint32_t t0 = 0; t0 < n; t0 += step * AHEAD) {
        before b[AHEAD];
#pragma unroll
        for (int i = 0; i < AHEAD; i++) {
            const uint32_t t = t0 + i * step + threadIdx.x / lanes, at = min(t, n - 1);
            b[i] = read_before(a, place.matrix, place.first + of, row0 + at, scales[at]);
            if (t >= n) b[i].there = false, b[i].host = b[i].resident = nullptr;
        }
#pragma unroll
        for (int i = 0; i < AHEAD; i++) {
            const uint32_t at = min(t0 + i * step + threadIdx.x / lanes, n - 1);
            const float4 *v = (const float4 *)(out + at * OUT_STRIDE + of);
            epilogue(a, place.matrix, place.first + of, row0 + at, b[i], v[0],
                     v[M == 2 ? OUTS / 8 : 0]);
        }
    }
}

__device__ __forceinline__ void scales_read(const cuda_product &a, uint32_t row0, float *scales)
{
    for (uint32_t t = threadIdx.x / 8; t < ROWS; t += THREADS / 8) {
        float s = row_scale(a, min(row0 + t, a.n_rows - 1));
        if (threadIdx.x % 8 == 0) scales[t] = s;
    }
}

#endif
