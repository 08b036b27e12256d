/* SPDX-License-Identifier: MIT */
/*
 * What is done to single token rows: RMS norm, int8 codes, halves, looking up and picking rows,
 * carrying them from and to another card, the angles of rope. A row's arithmetic is that of its own
 * block of threads.
 */
#include "common/gguf.h"
#include "workerd/cuda/device.cuh"

enum { NORM_THREADS = 1024, ROW_THREADS = 256 };

/* RMSNorm in one step: where no product made what it is of, or floats are multiplied. A thread has
 * four consecutive values of every 4,096; the norm's weights, which no kernel writes, are asked for
 * before the wait. */
__global__ void __launch_bounds__(NORM_THREADS) norm(const cuda_norm a)
{
    __shared__ float squares[CUDA_WIDTH_MAX / CUDA_BLOCK];
    const uint32_t n4 = a.x.width / 4, row = a.first_row + blockIdx.x;
    const float4 zero = make_float4(0, 0, 0, 0);
    const float4 *w = (const float4 *)a.w;
    dependency_release();
    float4 first = threadIdx.x < n4 ? w[threadIdx.x] : zero;
    dependency_wait();
    const float4 *x = (const float4 *)(a.x.f + (uint64_t)row * a.x.width);
    for (uint32_t base = 0; base < n4; base += NORM_THREADS) {
        uint32_t i = base + threadIdx.x;
        float sum = quad_squares(i < n4 ? x[i] : zero);
        if (i < n4 && i % 8 == 0) squares[i / 8] = sum;
    }
    __syncthreads();
    for (uint32_t i = threadIdx.x; i < n4 / 8; i += NORM_THREADS)
        a.y.squares[(uint64_t)row * (n4 / 8) + i] = squares[i];
    const float scale = norm_scale(squares, a.x.width, a.eps);
    const row_codes codes(a.y, row);
    float4 *y = (float4 *)(a.y.f + (uint64_t)row * a.y.width);
    for (uint32_t base = 0; base < n4; base += NORM_THREADS) {
        uint32_t i = base + threadIdx.x;
        bool there = i < n4;
        float4 v = there ? x[i] : zero, by = base == 0 ? first : there ? w[i] : zero;
        float4 normal = make_float4(v.x * scale * by.x, v.y * scale * by.y, v.z * scale * by.z,
                                    v.w * scale * by.w);
        if (there && a.floats) y[i] = normal;
        if (!a.halves)
            quantise_quads(quad_product(v, by), there, i * 4, codes);
        else if (there)
            halves_write(a.y, blockIdx.x, i * 4, normal);
    }
}

__global__ void __launch_bounds__(ROW_THREADS) quantise(const cuda_rows x)
{
    dependency_release();
    dependency_wait();
    const row_codes codes(x, blockIdx.x);
    const float *f = x.f + (uint64_t)blockIdx.x * x.width;
    for (uint32_t i = threadIdx.x; i < x.width; i += ROW_THREADS)
        quantise_block(f[i], threadIdx.x % WARP, codes, i / CUDA_BLOCK);
}

__global__ void __launch_bounds__(ROW_THREADS) halve(const cuda_halve a)
{
    dependency_release();
    dependency_wait();
    const float4 *f = (const float4 *)(a.x.f + (uint64_t)(a.first_row + blockIdx.x) * a.x.width);
    for (uint32_t i = threadIdx.x; i < a.x.width / 4; i += ROW_THREADS)
        halves_write(a.x, blockIdx.x, i * 4, f[i]);
}

extern "C" cudaError_t cuda_launch_halve(cudaStream_t s, const struct cuda_halve *a)
{
    return launch(s, a->dependent, halve, a->n_rows, ROW_THREADS, 0, *a);
}

extern "C" cudaError_t cuda_launch_norm(cudaStream_t s, const struct cuda_norm *a)
{
    return launch(s, a->dependent, norm, a->n_rows, NORM_THREADS, 0, *a);
}

extern "C" cudaError_t cuda_launch_quantise(cudaStream_t s, const struct cuda_quantise *a)
{
    return launch(s, false, quantise, a->n_rows, ROW_THREADS, 0, a->x);
}

/* ---- ggml's blocks ---- */

__device__ __forceinline__ float half_at(const uint8_t *p)
{
    return __half2float(__ushort_as_half((unsigned short)(p[0] | p[1] << 8)));
}

__device__ __forceinline__ uint32_t block_bytes(uint32_t type)
{
    return type == GGML_Q4_0 ? 18 : type == GGML_Q4_1 ? 20 : 34;
}

/* Value i of a row. */
__device__ float value_of(uint32_t type, const uint8_t *row, uint32_t i)
{
    if (type == GGML_F32) return ((const float *)row)[i];
    if (type == GGML_F16) return __half2float(((const __half *)row)[i]);
    const uint8_t *b = row + (uint64_t)(i / CUDA_BLOCK) * block_bytes(type);
    uint32_t k = i % CUDA_BLOCK;
    float d = half_at(b);
    if (type == GGML_Q8_0) return d * (float)(int8_t)b[2 + k];
    int code = b[(type == GGML_Q4_1 ? 4 : 2) + k % 16];
    code = k < 16 ? code & 15 : code >> 4;
    return type == GGML_Q4_1 ? d * (float)code + half_at(b + 2) : d * (float)(code - 8);
}

__device__ __forceinline__ uint64_t row_bytes(uint32_t type, uint32_t n)
{
    return type == GGML_F32   ? 4ull * n
           : type == GGML_F16 ? 2ull * n
                              : (uint64_t)(n / CUDA_BLOCK) * block_bytes(type);
}

__global__ void __launch_bounds__(ROW_THREADS) lookup(const cuda_lookup a)
{
    uint32_t id = a.rows[blockIdx.x].token;
    if (id & CUDA_TOKEN_FED)
        id = a.chosen[id & ~CUDA_TOKEN_FED];
    else if (id == CUDA_TOKEN_LATE)
        id = *(const volatile uint32_t *)(a.late + blockIdx.x);
    uint64_t token = min(id, a.n_out - 1);
    const uint8_t *__restrict__ row =
        (const uint8_t *)a.table + token * row_bytes(a.type, a.y.width);
    float *__restrict__ y = a.y.f + (uint64_t)blockIdx.x * a.y.width;
#pragma unroll 8
    for (uint32_t i = threadIdx.x; i < a.y.width; i += ROW_THREADS)
        y[i] = value_of(a.type, row, i);
}

/* The piece of block b of output `row`. */
__device__ __forceinline__ uint64_t piece_at(const cuda_repack &a, uint32_t row, uint32_t b)
{
    uint64_t n_pieces = (a.n_in + CUDA_PIECE - 1) / CUDA_PIECE;
    return (row / 16 * n_pieces + b / 2) * CUDA_PIECE_BYTES(a.pack);
}
/* Where byte k of the block (of four bits: k and k + 16) lies there. */
__device__ __forceinline__ uint32_t code_in_piece(const cuda_repack &a, uint32_t row, uint32_t b,
                                                  uint32_t k)
{
    uint32_t lane = row % 8 * 4 + k % 16 / 4, half = row % 16 / 8;
    if (a.pack == CUDA_Q8_0)
        return half * CUDA_Q8_0_HALF + b % 2 * 256 + k / 16 * 128 + row % 8 * 16 + k % 16;
    return lane * 16 + b % 2 * 8 + half * 4 + k % 4;
}
/* Likewise its scale, or of two the one of that number. */
__device__ __forceinline__ uint32_t scale_in_piece(const cuda_repack &a, uint32_t row, uint32_t b,
                                                   uint32_t number)
{
    uint32_t half = row % 16 / 8;
    if (a.pack == CUDA_Q8_0) return half * CUDA_Q8_0_HALF + 512 + row % 8 * 4 + b % 2 * 2;
    return 512 + number * 64 + row % 8 * 8 + b % 2 * 4 + half * 2;
}

/* A block of threads repacks one row. Padding is there already. */
__global__ void __launch_bounds__(ROW_THREADS) repack(const cuda_repack a)
{
    const uint32_t row = a.first + blockIdx.x, n_blocks = a.n_in / CUDA_BLOCK;
    const uint8_t *from = (const uint8_t *)a.from + blockIdx.x * row_bytes(a.type, a.n_in);
    if (a.pack == CUDA_F32 || a.pack == CUDA_F16) {
        for (uint32_t i = threadIdx.x; i < a.n_in; i += ROW_THREADS) {
            float v = value_of(a.type, from, i);
            if (a.pack == CUDA_F32)
                ((float *)a.codes)[(uint64_t)row * a.n_in + i] = v;
            else
                ((__half *)a.codes)[(uint64_t)row * a.n_in + i] = __float2half_rn(v);
        }
        return;
    }
    const uint32_t code_bytes = a.pack == CUDA_Q8_0 ? 32 : 16;
    const uint32_t scales = a.pack == CUDA_Q4_1 ? 2 : 1;
    for (uint32_t i = threadIdx.x; i < n_blocks * code_bytes; i += ROW_THREADS) {
        uint32_t b = i / code_bytes, k = i % code_bytes;
        const uint8_t *at = from + (uint64_t)b * block_bytes(a.type) + scales * 2 + k;
        ((uint8_t *)a.codes)[piece_at(a, row, b) + code_in_piece(a, row, b, k)] = *at;
    }
    for (uint32_t i = threadIdx.x; i < n_blocks * scales; i += ROW_THREADS) {
        uint32_t b = i / scales;
        const uint8_t *at = from + (uint64_t)b * block_bytes(a.type) + i % scales * 2;
        uint8_t *to =
            (uint8_t *)a.codes + piece_at(a, row, b) + scale_in_piece(a, row, b, i % scales);
        *(uint16_t *)to = (uint16_t)(at[0] | at[1] << 8);
    }
}

extern "C" cudaError_t cuda_launch_lookup(cudaStream_t s, const struct cuda_lookup *a)
{
    return launch(s, false, lookup, a->n_rows, ROW_THREADS, 0, *a);
}

extern "C" cudaError_t cuda_launch_repack(cudaStream_t s, const struct cuda_repack *a)
{
    return launch(s, false, repack, a->n_out, ROW_THREADS, 0, *a);
}

/* ---- positions and picks ---- */

/* Angles in double: a float's error at position 8,000 would show in the logits. */
__global__ void __launch_bounds__(ROW_THREADS) turn(const cuda_turn a)
{
    uint32_t i = blockIdx.x * ROW_THREADS + threadIdx.x;
    if (i >= a.n_rows * a.n_pairs) return;
    double s, c;
    sincos((double)a.rows[i / a.n_pairs].pos * a.freq[i % a.n_pairs], &s, &c);
    a.rope[2 * (uint64_t)i] = (float)c;
    a.rope[2 * (uint64_t)i + 1] = (float)s;
}

__global__ void __launch_bounds__(ROW_THREADS) pick(const cuda_pick a)
{
    const uint32_t n4 = a.x.width / 4;
    dependency_release();
    const float4 *__restrict__ x = (const float4 *)a.x.f + (uint64_t)a.rows[blockIdx.x] * n4;
    float4 *__restrict__ y = (float4 *)a.y.f + (uint64_t)blockIdx.x * n4;
    dependency_wait();
#pragma unroll 4
    for (uint32_t i = threadIdx.x; i < n4; i += ROW_THREADS)
        y[i] = x[i];
}

extern "C" cudaError_t cuda_launch_turn(cudaStream_t s, const struct cuda_turn *a)
{
    uint32_t n = a->n_rows * a->n_pairs;
    if (n == 0) return cudaSuccess;
    return launch(s, false, turn, (n + ROW_THREADS - 1) / ROW_THREADS, ROW_THREADS, 0, *a);
}

extern "C" cudaError_t cuda_launch_pick(cudaStream_t s, const struct cuda_pick *a)
{
    return launch(s, a->dependent, pick, a->n_rows, ROW_THREADS, 0, *a);
}

/* ---- from card to card ---- */

/* A few rows, as nodes of the window's graph; what lies on the other card is complete when the
 * kernel is. */
__global__ void __launch_bounds__(ROW_THREADS) carry(const cuda_carry a)
{
    dependency_release();
    dependency_wait();
    const uint32_t i = blockIdx.x * ROW_THREADS + threadIdx.x;
    if (i >= a.n_quads) return;
    if (a.out)
        ((float4 *)a.ways->out)[i] = ((const float4 *)a.x)[i];
    else
        ((float4 *)a.x)[i] = ((const float4 *)a.ways->in)[i];
}

extern "C" cudaError_t cuda_launch_carry(cudaStream_t s, const struct cuda_carry *a)
{
    uint32_t n = (a->n_quads + ROW_THREADS - 1) / ROW_THREADS;
    return launch(s, a->dependent, carry, n, ROW_THREADS, 0, *a);
}
