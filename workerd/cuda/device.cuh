/* SPDX-License-Identifier: MIT */
#ifndef WORKERD_CUDA_DEVICE_CUH
#define WORKERD_CUDA_DEVICE_CUH
/*
 * What the kernels share. Compiled with -fmad=false: a product and a sum are joined only where
 * fmaf says so, so two kernels that write the same expressions give the same bits.
 */
#include "workerd/cuda/kernels.h"
#include "workerd/cuda/machine.cuh"

/* Codes of token rows lie as the fragments of mma's B (kernels.h): of eight rows and a piece of 64
 * values together. Of one token row: */
struct row_codes {
    int8_t *at; /* of its first piece */

    __device__ __forceinline__ row_codes(const cuda_rows &x, uint32_t row)
        : at(x.q + (uint64_t)(row / 8) * (x.k_pad / CUDA_PIECE) * CUDA_X_BYTES), r(row % 8)
    {
    }
    /* Value i of block b; four consecutive ones from a multiple of four on lie together. */
    __device__ __forceinline__ int8_t *code(uint32_t b, uint32_t i) const
    {
        return at + (uint64_t)(b / 2) * CUDA_X_BYTES + (r * 4 + i % 16 / 4) * 16 + b % 2 * 8 +
               i / 16 * 4 + i % 4;
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

/* Where a cell's block lies. */
__device__ __forceinline__ uint8_t *block_of(const cuda_kv &kv, const cuda_entry &e, uint32_t pos,
                                             bool resident)
{
    uint32_t in_chunk = pos & ((1u << kv.chunk_shift) - 1);
    uint8_t *chunk = resident ? kv.resident + (uint64_t)e.slot * kv.chunk_bytes
                              : kv.host + (uint64_t)e.chunk * kv.chunk_bytes;
    return chunk + (uint64_t)(in_chunk >> kv.block_shift) * kv.block_bytes;
}

__device__ __forceinline__ cuda_entry entry_of(const cuda_kv &kv, uint32_t lane, uint32_t pos)
{
    return kv.tables[(uint64_t)lane * kv.table_room + (pos >> kv.chunk_shift)];
}

#endif
