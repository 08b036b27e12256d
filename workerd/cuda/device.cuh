/* SPDX-License-Identifier: MIT */
#ifndef WORKERD_CUDA_DEVICE_CUH
#define WORKERD_CUDA_DEVICE_CUH
/*
 * What the kernels share. Compiled with -fmad=false: a product and a sum are joined only where
 * fmaf says so, so two kernels that write the same expressions give the same bits.
 */
#include "workerd/cuda/kernels.h"
#include "workerd/cuda/machine.cuh"

/* 1.5 x 2^23: of a float near it the last bits are an integer. */
#define ROUND 12582912.0f
#define ROUND_BITS 0x4b400000

/* Codes of token rows lie as matrices of eight rows by 16 bytes (kernels.h): of eight rows and a
 * piece of 64 values together. Of one token row: */
struct row_codes {
    int8_t *at; /* of its first piece */

    __device__ __forceinline__ row_codes(const cuda_rows &x, uint32_t row)
        : at(x.q + (uint64_t)(row / 8) * (x.k_pad / CUDA_PIECE) * CUDA_X_BYTES), r(row % 8)
    {
    }
    /* Value i of block b; four consecutive ones from a multiple of four on lie together. */
    __device__ __forceinline__ int8_t *code(uint32_t b, uint32_t i) const
    {
        return at + (uint64_t)(b / 2) * CUDA_X_BYTES + b % 2 * 256 + i / 16 * 128 + r * 16 + i % 16;
    }
    /* Of block b: what its codes are multiplied with, and their sum. */
    __device__ __forceinline__ void scale_write(uint32_t b, float d, int sum) const
    {
        int8_t *to = at + (uint64_t)(b / 2) * CUDA_X_BYTES + CUDA_X_SCALES + r / 2 * 16 +
                     b % 2 * 8 + r % 2 * 4;
        *(float *)to = d;
        *(int *)(to + CUDA_X_SUMS - CUDA_X_SCALES) = sum;
    }

  private:
    uint32_t r;
};

/* A warp makes the codes of one block, a value a lane: d = max |v| / 127, code = v / d rounded to
 * nearest even. Below the limit a block counts as zeros: 127 / max must be finite. */
__device__ __forceinline__ void quantise_block(float v, uint32_t lane, const row_codes &to,
                                               uint32_t b)
{
    float most = fabsf(v);
    for (int o = 16; o; o >>= 1)
        most = fmaxf(most, __shfl_xor_sync(~0u, most, o));
    bool some = most >= 1e-30f;
    int code = some ? __float2int_rn(v * __fdiv_rn(127.0f, most)) : 0;
    int sum = code;
    for (int o = 16; o; o >>= 1)
        sum += __shfl_xor_sync(~0u, sum, o);
    *to.code(b, lane) = (int8_t)code;
    if (lane == 0) to.scale_write(b, some ? __fdiv_rn(most, 127.0f) : 0.0f, sum);
}

/* Finite, whatever the values are: tensor cores multiply some of them by 0. */
__device__ __forceinline__ void quad_halves(float4 v, __half2 h[2])
{
    const float most = 65504.0f;
    h[0] = __floats2half2_rn(fminf(fmaxf(v.x, -most), most), fminf(fmaxf(v.y, -most), most));
    h[1] = __floats2half2_rn(fminf(fmaxf(v.z, -most), most), fminf(fmaxf(v.w, -most), most));
}

/* Values i to i + 3 of a prompt's row, i a multiple of four (struct cuda_rows). */
__device__ __forceinline__ void halves_write(const cuda_rows &x, uint32_t row, uint32_t i, float4 v)
{
    __half2 h[2];
    quad_halves(v, h);
    const uint32_t in_tile = row % CUDA_HALVES_ROWS, sixteen = i % CUDA_PIECE / 16 * 2;
    const uint64_t piece =
        (uint64_t)(row / CUDA_HALVES_ROWS) * (x.k_pad / CUDA_PIECE) + i / CUDA_PIECE;
    uint8_t *at = x.h + (piece * CUDA_HALVES_ROWS + in_tile) * (CUDA_PIECE * 2);
#pragma unroll
    for (uint32_t j = 0; j < 2; j++)
        *(__half2 *)(at + ((sixteen + j) ^ row % 8) * 16 + i % 16) = h[j];
}

/* Over eight lanes that lie together; the order of additions is the same in all of them. */
__device__ __forceinline__ float sum_of_8(float v)
{
    for (int o = 4; o; o >>= 1)
        v += __shfl_xor_sync(~0u, v, o);
    return v;
}

/* The same codes by eight lanes with four values each, from value i on. All lanes come here. */
__device__ __forceinline__ void quantise_quads(float4 v, bool there, uint32_t i,
                                               const row_codes &to)
{
    float most = fmaxf(fmaxf(fabsf(v.x), fabsf(v.y)), fmaxf(fabsf(v.z), fabsf(v.w)));
    for (int o = 4; o; o >>= 1)
        most = fmaxf(most, __shfl_xor_sync(~0u, most, o));
    bool some = most >= 1e-30f;
    float per = some ? __fdiv_rn(127.0f, most) : 0.0f;
    int c[4] = {__float2int_rn(v.x * per), __float2int_rn(v.y * per), __float2int_rn(v.z * per),
                __float2int_rn(v.w * per)};
    int sum = c[0] + c[1] + c[2] + c[3];
    for (int o = 4; o; o >>= 1)
        sum += __shfl_xor_sync(~0u, sum, o);
    if (!there) return;
    *(char4 *)to.code(i / CUDA_BLOCK, i % CUDA_BLOCK) =
        make_char4((signed char)c[0], (signed char)c[1], (signed char)c[2], (signed char)c[3]);
    if (i % CUDA_BLOCK == 0)
        to.scale_write(i / CUDA_BLOCK, some ? __fdiv_rn(most, 127.0f) : 0.0f, sum);
}

/* RMSNorm (arXiv:1910.07467) in two steps: the codes of x w do not depend on the norm's divisor but
 * by their scales, so whoever makes x makes them and the squares of each block of 32; whoever
 * multiplies them divides the sums. */
__device__ __forceinline__ float quad_squares(float4 v)
{
    return sum_of_8(fmaf(v.x, v.x, fmaf(v.y, v.y, fmaf(v.z, v.z, v.w * v.w))));
}
__device__ __forceinline__ float4 quad_product(float4 v, float4 w)
{
    return make_float4(v.x * w.x, v.y * w.y, v.z * w.z, v.w * w.w);
}
/* 1 / sqrt(mean square + eps), from the squares of a row's blocks, by eight lanes together. */
__device__ __forceinline__ float norm_scale(const float *squares, uint32_t width, float eps)
{
    float sum = 0;
#pragma unroll 16
    for (uint32_t i = threadIdx.x % 8; i < width / CUDA_BLOCK; i += 8)
        sum += squares[i];
    return __fdiv_rn(1.0f, __fsqrt_rn(__fdiv_rn(sum_of_8(sum), (float)width) + eps));
}

/* Where a cell's block lies; resident: in GPU memory, where it has a place. */
__device__ __forceinline__ uint8_t *block_of(const cuda_kv &kv, const cuda_entry &e, uint32_t pos,
                                             bool resident)
{
    uint32_t in_chunk = pos & ((1u << kv.chunk_shift) - 1);
    const bool passing = resident && (uint32_t)e.slot >= kv.n_slots;
    const uint32_t at = !resident ? e.chunk : passing ? e.slot - kv.n_slots : e.slot;
    uint8_t *chunks = !resident ? kv.host : passing ? kv.passing : kv.resident;
    return chunks + at * kv.chunk_bytes + (uint64_t)(in_chunk >> kv.block_shift) * kv.block_bytes;
}

__device__ __forceinline__ cuda_entry entry_of(const cuda_kv &kv, uint32_t lane, uint32_t pos)
{
    return kv.tables[(uint64_t)lane * kv.table_room + (pos >> kv.chunk_shift)];
}

/* Where each unit of n cells from a multiple of one on lies; of those past `end`, an address. */
__device__ __forceinline__ void blocks_find(const cuda_attend &a, uint32_t lane, uint32_t first,
                                            uint32_t end, uint32_t n, const uint8_t **to)
{
    uint32_t pos = first + threadIdx.x * CUDA_UNIT_CELLS;
    if (threadIdx.x >= n / CUDA_UNIT_CELLS) return;
    to[threadIdx.x] = a.kv.host;
    if (pos >= end) return;
    cuda_entry e = entry_of(a.kv, lane, pos);
    to[threadIdx.x] = block_of(a.kv, e, pos, e.slot >= 0);
}

#endif
