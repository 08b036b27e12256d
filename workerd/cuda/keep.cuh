/* SPDX-License-Identifier: MIT */
#ifndef WORKERD_CUDA_KEEP_CUH
#define WORKERD_CUDA_KEEP_CUH
/*
 * Rounds a group of 64 values of a K/V head for formats of 8 and 4 bits: proto/kv_block.h says how,
 * the CPU does the same. It is 16 lanes' work, four values each. Codes are finite whatever the
 * values are.
 */
#include "workerd/cuda/device.cuh"

enum { GROUP = 64, GROUP_LANES = 16 };

/* Of the 16 lanes' values the one of largest magnitude, of two such the positive one. */
__device__ __forceinline__ float most_of(float4 v)
{
    const float all[4] = {v.x, v.y, v.z, v.w};
    float most = 0;
#pragma unroll
    for (int i = 0; i < 4; i++)
        if (fabsf(all[i]) > fabsf(most) || (fabsf(all[i]) == fabsf(most) && all[i] > most))
            most = all[i];
    for (int o = GROUP_LANES / 2; o; o >>= 1) {
        float other = __shfl_xor_sync(~0u, most, o);
        if (fabsf(other) > fabsf(most) || (fabsf(other) == fabsf(most) && other > most))
            most = other;
    }
    return most;
}

__device__ __forceinline__ int rounded(float v, float r, int low, int high)
{
    int code = __float_as_int(fmaf(v, r, ROUND)) - ROUND_BITS;
    return min(max(code, low), high);
}

/* What a lane has of a group of one row's K or V. All lanes of a warp make theirs together. */
struct kept_quad {
    uint32_t head, group, d; /* d: the first of the four values */
    bool is_v, there;
    int code[4];
    __half scale;

    /* The values of the group that are this lane's. */
    __device__ __forceinline__ static float4 ask(const cuda_kv &kv, uint32_t row, bool is_v,
                                                 uint32_t head, uint32_t group)
    {
        const uint32_t d = group * GROUP + threadIdx.x % GROUP_LANES * 4;
        const uint64_t at = ((uint64_t)row * 2 + is_v) * kv.n_kv_heads + head;
        if (d >= kv.head_dim) return make_float4(0, 0, 0, 0);
        return *(const float4 *)(kv.fresh + at * kv.head_dim + d);
    }
    __device__ __forceinline__ kept_quad(const cuda_kv &kv, float4 v, bool is_v, uint32_t head,
                                         uint32_t group, bool there)
        : head(head), group(group), d(group * GROUP + threadIdx.x % GROUP_LANES * 4), is_v(is_v),
          there(there && d < kv.head_dim)
    {
        const bool four = (is_v ? kv.v_bits : kv.k_bits) == 4;
        const float most = most_of(v);
        float by = four ? __fdiv_rn(most, -8.0f) : __fdiv_rn(fabsf(most), 127.0f);
        scale = __float2half_rn(fminf(fmaxf(by, -65504.0f), 65504.0f));
        const float wide = __half2float(scale), r = wide != 0 ? __fdiv_rn(1.0f, wide) : 0;
        const int low = four ? -8 : -127, high = four ? 7 : 127;
        code[0] = rounded(v.x, r, low, high), code[1] = rounded(v.y, r, low, high);
        code[2] = rounded(v.z, r, low, high), code[3] = rounded(v.w, r, low, high);
    }
    __device__ __forceinline__ char4 bytes() const
    {
        return make_char4((signed char)code[0], (signed char)code[1], (signed char)code[2],
                          (signed char)code[3]);
    }
    __device__ __forceinline__ void write_block(const cuda_kv &kv, uint8_t *to, uint32_t cell) const
    {
        const uint32_t bits = is_v ? kv.v_bits : kv.k_bits, shift = kv.block_shift;
        const uint64_t off = is_v ? kv.v_off : 0, scales = is_v ? kv.v_scale_off : kv.k_scale_off;
        uint8_t *at =
            to + off + (((uint64_t)((head << shift) + cell) * kv.head_dim + d) * bits) / 8;
        if (bits == 8)
            *(char4 *)at = bytes();
        else
            *(uint16_t *)at = (uint16_t)((code[0] + 8) | (code[1] + 8) << 4 | (code[2] + 8) << 8 |
                                         (code[3] + 8) << 12);
        if (d % GROUP == 0)
            *(__half *)(to + scales +
                        2 * (((uint64_t)(head * kv.n_groups + group) << shift) + cell)) = scale;
    }
    /* Through to the pool, and to GPU memory where the chunk has a place there. e: entry_of. */
    __device__ __forceinline__ void write(const cuda_kv &kv, const cuda_row &place,
                                          const cuda_entry &e) const
    {
        if (!there) return;
        const uint32_t cell = place.pos & ((1u << kv.block_shift) - 1);
        write_block(kv, block_of(kv, e, place.pos, false), cell);
        if (e.slot >= 0) write_block(kv, block_of(kv, e, place.pos, true), cell);
    }
};

#endif
