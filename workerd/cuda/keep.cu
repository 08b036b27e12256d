/* SPDX-License-Identifier: MIT */
/*
 * Rounds the K and V of a window's rows into their cells, for formats of 8 and 4 bits:
 * proto/kv_block.h says how, the CPU does the same. A group of 64 values of a head is 16 lanes'
 * work, four values each: a tile of a product does not hold whole groups. Codes are finite whatever
 * the values are.
 */
#include "workerd/cuda/device.cuh"

enum { THREADS = 128, LANES = 16, GROUP = 64 };

#define ROUND 12582912.0f /* 1.5 x 2^23: of a float near it the last bits are an integer */
#define ROUND_BITS 0x4b400000

/* Of the 16 lanes' values the one of largest magnitude, of two such the positive one. */
__device__ __forceinline__ float most_of(float4 v)
{
    const float all[4] = {v.x, v.y, v.z, v.w};
    float most = 0;
#pragma unroll
    for (int i = 0; i < 4; i++)
        if (fabsf(all[i]) > fabsf(most) || (fabsf(all[i]) == fabsf(most) && all[i] > most))
            most = all[i];
    for (int o = LANES / 2; o; o >>= 1) {
        float v = __shfl_xor_sync(~0u, most, o);
        if (fabsf(v) > fabsf(most) || (fabsf(v) == fabsf(most) && v > most)) most = v;
    }
    return most;
}

__device__ __forceinline__ int rounded(float v, float r, int low, int high)
{
    int code = __float_as_int(fmaf(v, r, ROUND)) - ROUND_BITS;
    return min(max(code, low), high);
}

/* to: the block; line: of the scales, [K/V head][group]; d: of this lane's first value. */
__device__ __forceinline__ void group_write(const cuda_kv &kv, uint8_t *to, bool is_v,
                                            uint32_t head, uint32_t group, uint32_t cell,
                                            uint32_t d, const int code[4], __half scale)
{
    const uint32_t bits = is_v ? kv.v_bits : kv.k_bits, shift = kv.block_shift;
    const uint64_t off = is_v ? kv.v_off : 0, scales = is_v ? kv.v_scale_off : kv.k_scale_off;
    uint8_t *at = to + off + (((uint64_t)((head << shift) + cell) * kv.head_dim + d) * bits) / 8;
    if (d < kv.head_dim && bits == 8)
        *(char4 *)at = make_char4((signed char)code[0], (signed char)code[1], (signed char)code[2],
                                  (signed char)code[3]);
    if (d < kv.head_dim && bits == 4)
        *(uint16_t *)at = (uint16_t)((code[0] + 8) | (code[1] + 8) << 4 | (code[2] + 8) << 8 |
                                     (code[3] + 8) << 12);
    if (d % GROUP == 0)
        *(__half *)(to + scales + 2 * (((uint64_t)(head * kv.n_groups + group) << shift) + cell)) =
            scale;
}

__global__ void __launch_bounds__(THREADS) keep(const cuda_keep a)
{
    dependency_release();
    dependency_wait();
    const cuda_kv &kv = a.kv;
    const uint32_t heads = kv.n_kv_heads * kv.n_groups;
    const uint32_t task = (blockIdx.x * THREADS + threadIdx.x) / LANES;
    const uint32_t row = min(task / (2 * heads), a.n_rows - 1);
    const bool is_v = task / heads % 2, there = task / (2 * heads) < a.n_rows;
    const uint32_t head = task % heads / kv.n_groups, group = task % kv.n_groups;
    const uint32_t d = group * GROUP + threadIdx.x % LANES * 4;
    const float *from =
        kv.fresh + (((uint64_t)row * 2 + is_v) * kv.n_kv_heads + head) * kv.head_dim;
    float4 v = make_float4(0, 0, 0, 0);
    if (d < kv.head_dim) v = *(const float4 *)(from + d);
    const bool four = (is_v ? kv.v_bits : kv.k_bits) == 4;
    const float most = most_of(v);
    float by = four ? __fdiv_rn(most, -8.0f) : __fdiv_rn(fabsf(most), 127.0f);
    const __half scale = __float2half_rn(fminf(fmaxf(by, -65504.0f), 65504.0f));
    const float wide = __half2float(scale), r = wide != 0 ? __fdiv_rn(1.0f, wide) : 0;
    const int low = four ? -8 : -127, high = four ? 7 : 127;
    const int code[4] = {rounded(v.x, r, low, high), rounded(v.y, r, low, high),
                         rounded(v.z, r, low, high), rounded(v.w, r, low, high)};
    if (!there) return;
    const cuda_row place = kv.rows[row];
    const cuda_entry e = entry_of(kv, place.lane, place.pos);
    const uint32_t cell = place.pos & ((1u << kv.block_shift) - 1);
    group_write(kv, block_of(kv, e, place.pos, false), is_v, head, group, cell, d, code, scale);
    if (e.slot >= 0)
        group_write(kv, block_of(kv, e, place.pos, true), is_v, head, group, cell, d, code, scale);
}

extern "C" cudaError_t cuda_launch_keep(cudaStream_t s, const struct cuda_keep *a)
{
    uint64_t lanes = (uint64_t)a->n_rows * 2 * a->kv.n_kv_heads * a->kv.n_groups * LANES;
    dim3 grid((uint32_t)((lanes + THREADS - 1) / THREADS));
    return launch(s, a->dependent, keep, grid, THREADS, 0, *a);
}
