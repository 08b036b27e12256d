/* SPDX-License-Identifier: MIT */
#ifndef WORKERD_CUDA_CELLS_CUH
#define WORKERD_CUDA_CELLS_CUH
/*
 * A part's K or V of one head on its way into shared memory, as halves whatever they are kept as
 * (proto/kv_block.h): [cell][HD]. Part of flash.cuh's arithmetic: a code times its scale is
 * rounded to a half once. K of codes of 8 bits has its dimensions in another order within each 16,
 * pairs 0 2 4 6 1 3 5 7: what ldmatrix gives a lane of codes as they are (flash.cu), and query_dim
 * of q.
 */
#include "workerd/cuda/device.cuh"

enum {
    CELLS = CUDA_FLASH_CELLS,
    STRETCH = CUDA_FLASH_STRETCH,
    UNIT = CUDA_UNIT_CELLS,
};

template <int HD> constexpr __host__ __device__ int cells_bytes() { return CELLS * HD * 2; }

/* Where sixteen bytes of a row of W halves lie: those of eight rows in different banks. From there,
 * those whose number differs in bits t lie at ^ 8 t, and those of the eighth row after at + 8 W.
 * Rows that are longer by sixteen bytes would be in different banks, too, but a line of global
 * memory that lies across two lines of shared memory is asked for twice, from host memory over PCIe
 * (tests/bench/README.md). */
template <int W> __device__ __forceinline__ uint32_t half_at(uint32_t row, uint32_t sixteen)
{
    return row * W + (sixteen ^ row % 8) * 8;
}

/* Asks for K or V (off) of one head and the cells [first, end); zeros where none is. */
template <int HD, int THREADS>
__device__ __forceinline__ void cells_ask(const cuda_attend &a, const uint8_t *const *blocks,
                                          uint32_t head, uint64_t off, uint32_t first, uint32_t end,
                                          __half *to)
{
    const uint32_t hd = a.kv.head_dim, mask = (1u << a.kv.block_shift) - 1;
#pragma unroll 8
    for (uint32_t i = threadIdx.x; i < CELLS * (HD / 8); i += THREADS) {
        const uint32_t c = i / (HD / 8), d = i % (HD / 8) * 8;
        const bool there = first + c < end && d < hd;
        const __half *from = (const __half *)(blocks[c / UNIT] + off) +
                             (((uint64_t)head << a.kv.block_shift) + ((first + c) & mask)) * hd +
                             (there ? d : 0);
        copy16_first(to + half_at<HD>(c, d / 8), from, there ? 16 : 0);
    }
}

/* Two codes as halves, times their scale: rounded once. bits: 1024 + code + bias, as halves. */
__device__ __forceinline__ uint32_t halves_of_codes(uint32_t bits, uint32_t bias, __half2 scale)
{
    __half2 h = __hmul2(__hsub2(*(const __half2 *)&bits, *(const __half2 *)&bias), scale);
    return *(const uint32_t *)&h;
}

/* Of four codes of 8 bits, plus 128, the two that `which` takes, below the bytes of 1024. */
__device__ __forceinline__ uint32_t codes_halves(uint32_t codes, uint32_t which, __half2 scale)
{
    return halves_of_codes(__byte_perm(codes, 0x64646464, which), 0x64806480, scale);
}

/* Sixteen codes of a cell as halves; the two eights of K's of 8 bits in the order of query_dim. */
template <int BITS, bool TURNED>
__device__ __forceinline__ void codes_make(const uint4 &code, __half scale, uint4 to[2])
{
    const __half2 by = __half2half2(scale);
    const uint32_t w[4] = {code.x, code.y, code.z, code.w};
    uint32_t h[8];
#pragma unroll
    for (int k = 0; k < 8; k++) {
        if (BITS == 8) {
            h[k] = codes_halves(w[k / 2] ^ 0x80808080, k % 2 ? 0x4342 : 0x4140, by);
        } else { /* the halves of byte k % 4 */
            uint32_t v = w[k / 4], j = k % 4;
            uint32_t bits = __byte_perm(v & 0x0f0f0f0f, v >> 4 & 0x0f0f0f0f,
                                        j | j << 4 | (4 + j) << 8 | (4 + j) << 12);
            h[k] = halves_of_codes((bits & 0x00ff00ff) | 0x64006400, 0x64086408, by);
        }
    }
    to[0] = TURNED ? make_uint4(h[0], h[2], h[4], h[6]) : make_uint4(h[0], h[1], h[2], h[3]);
    to[1] = TURNED ? make_uint4(h[1], h[3], h[5], h[7]) : make_uint4(h[4], h[5], h[6], h[7]);
}

/* The same for codes of 8 and 4 bits: a thread reads its pieces of 16 codes of one cell, all at
 * once, and later makes halves of them. */
template <int HD, int THREADS> struct cells_codes {
    static const int N = CELLS * (HD / 16) / THREADS;
    uint4 code[N];
    __half scale[N];

    template <int BITS>
    __device__ __forceinline__ void read(const cuda_kv &kv, const uint8_t *const *blocks,
                                         uint32_t head, uint64_t off, uint64_t scales,
                                         uint32_t first, uint32_t end)
    {
        const uint32_t mask = (1u << kv.block_shift) - 1, hd = kv.head_dim;
        const uint64_t codes_at = off + ((uint64_t)head << kv.block_shift) * hd * BITS / 8;
        const uint64_t scales_at = scales + ((uint64_t)head * kv.n_groups << kv.block_shift) * 2;
#pragma unroll
        for (int i = 0; i < N; i++) {
            const uint32_t p = i * THREADS + threadIdx.x, c = p / (HD / 16), d = p % (HD / 16) * 16;
            const bool there = first + c < end && d < hd;
            const uint32_t cell = there ? (first + c) & mask : 0, of = there ? d : 0;
            const uint8_t *block = blocks[there ? c / UNIT : 0]; /* the first is there */
            const uint8_t *from = block + codes_at + (cell * hd + of) * BITS / 8;
            if (BITS == 8) {
                code[i] = *(const uint4 *)from;
            } else {
                uint2 v = *(const uint2 *)from;
                code[i].x = v.x, code[i].y = v.y;
            }
            const __half *s = (const __half *)(block + scales_at);
            scale[i] = s[((of / 64) << kv.block_shift) + cell];
        }
#pragma unroll
        for (int i = 0; i < N; i++) { /* left out by selection: what is there may be anything */
            const uint32_t p = i * THREADS + threadIdx.x;
            if (first + p / (HD / 16) < end && p % (HD / 16) * 16 < hd) continue;
            code[i] = make_uint4(0, 0, 0, 0);
            scale[i] = __ushort_as_half(0);
        }
    }
    __device__ __forceinline__ void ask(const cuda_attend &a, const uint8_t *const *blocks,
                                        uint32_t head, bool is_v, uint32_t first, uint32_t end)
    {
        const cuda_kv &kv = a.kv;
        const uint64_t off = is_v ? kv.v_off : 0, scales = is_v ? kv.v_scale_off : kv.k_scale_off;
        if ((is_v ? kv.v_bits : kv.k_bits) == 8)
            read<8>(kv, blocks, head, off, scales, first, end);
        else
            read<4>(kv, blocks, head, off, scales, first, end);
    }
    __device__ __forceinline__ void put(const cuda_attend &a, bool is_v, __half *to) const
    {
        const bool eight = (is_v ? a.kv.v_bits : a.kv.k_bits) == 8;
#pragma unroll
        for (int i = 0; i < N; i++) {
            const uint32_t p = i * THREADS + threadIdx.x, c = p / (HD / 16), d = p % (HD / 16) * 16;
            uint4 at[2];
            if (!eight)
                codes_make<4, false>(code[i], scale[i], at);
            else if (is_v)
                codes_make<8, false>(code[i], scale[i], at);
            else
                codes_make<8, true>(code[i], scale[i], at);
            *(uint4 *)(to + half_at<HD>(c, d / 8)) = at[0];
            *(uint4 *)(to + half_at<HD>(c, d / 8 + 1)) = at[1];
        }
    }
};

#endif
