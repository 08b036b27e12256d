/* SPDX-License-Identifier: MIT */
#ifndef WORKERD_CUDA_DEVICE_CUH
#define WORKERD_CUDA_DEVICE_CUH
/*
 * What the kernels share. Compiled with -fmad=false: a product and a sum are joined only where
 * fmaf says so, so two kernels that write the same expressions give the same bits.
 */
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include "workerd/cuda/kernels.h"

enum { WARP = 32 };

/* Programmatic dependent launch (sm_90 on): every kernel of a window waits here before it touches
 * anything that an earlier one wrote, so what it sees is complete, also through several kernels.
 * Before the wait only weights may be read. */
__device__ __forceinline__ void dependency_wait()
{
#if __CUDA_ARCH__ >= 900
    cudaGridDependencySynchronize();
#endif
}
__device__ __forceinline__ void dependency_release()
{
#if __CUDA_ARCH__ >= 900
    cudaTriggerProgrammaticLaunchCompletion();
#endif
}

template <typename... A, typename... B>
static cudaError_t launch(cudaStream_t s, bool dependent, void (*kernel)(A...), dim3 grid,
                          unsigned threads, size_t shared_bytes, B... args)
{
    cudaLaunchConfig_t c = {};
    cudaLaunchAttribute at = {};
    at.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    at.val.programmaticStreamSerializationAllowed = 1;
    c.gridDim = grid;
    c.blockDim = threads;
    c.dynamicSmemBytes = shared_bytes;
    c.stream = s;
    c.attrs = &at;
    c.numAttrs = dependent ? 1 : 0;
    return cudaLaunchKernelEx(&c, kernel, A(args)...);
}

/* Where byte i of block b lies in a row of codes. */
__device__ __forceinline__ uint32_t code_at(uint32_t b, uint32_t i)
{
    return b / 8 * CUDA_GROUP + i / 16 * 128 + b % 8 * 16 + i % 16;
}

/* A warp makes the codes of one block, a value a lane: d = max |v| / 127, code = v / d rounded to
 * nearest even. Below the limit a block counts as zeros: 127 / max must be finite. */
__device__ __forceinline__ void quantise_block(float v, uint32_t lane, int8_t *q, float *ds,
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
    q[code_at(b, lane)] = (int8_t)code;
    if (lane == 0)
        *(float2 *)(ds + 2 * b) = make_float2(some ? __fdiv_rn(most, 127.0f) : 0.0f, (float)sum);
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
