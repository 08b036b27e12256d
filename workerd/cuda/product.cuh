/* SPDX-License-Identifier: MIT */
#ifndef WORKERD_CUDA_PRODUCT_CUH
#define WORKERD_CUDA_PRODUCT_CUH
/*
 * The arithmetic of an element of y = W x, W quantised, whatever the number of rows: block b of 32
 * k gives isum, the exact integer sum of the codes' products, and p = fma(isum dw, dx, p)   and for
 * Q4_1   p = fma(mw, dx sum(x), p); the blocks of each of eight ranges of k in order, then the
 * ranges' sums in order. isum dw is rounded once.
 *
 * An integer sum becomes a float without a conversion: the tensor cores add to the bits of 1.5 x
 * 2^23, of which a sum below 2^22 is then the last bits; (f - 1.5 x 2^23) dw is one fma, since
 * 1.5 x 2^23 dw is exact.
 */
#include "workerd/cuda/epilogue.cuh"

/* The first piece of range r. */
__device__ __forceinline__ uint32_t range_begin(uint32_t n_pieces, uint32_t r)
{
    return n_pieces * r / CUDA_RANGES;
}

template <int PACK> struct piece {
    static const int bytes = CUDA_PIECE_BYTES(PACK);
};

/* The first piece of tile t of a block of threads, which has `each` tiles of 16 outputs of a
 * matrix. A matrix that has not so many repeats its last one: what is made of that is not kept. */
template <int PACK>
__device__ __forceinline__ const uint8_t *weights_of(const cuda_product &a, const tile_place &p,
                                                     int t, int each)
{
    const cuda_matrix &m = a.m[p.matrix + t / each];
    const uint64_t tile = min(p.first / 16 + t % each, (m.n_out - 1) / 16);
    return (const uint8_t *)m.codes + tile * (a.x.k_pad / CUDA_PIECE) * piece<PACK>::bytes;
}

/* A lane's part of 16 outputs by 64 k. [block][...][output half] */
template <int PACK> struct weights {
    uint32_t a[2][4];
    float d[2][2], base[2][2], m[2][2];

    __device__ __forceinline__ void read(const uint8_t *at, int lane)
    {
        if (PACK == CUDA_Q8_0) {
            const uint8_t *row =
                at + lane / 8 % 2 * CUDA_Q8_0_HALF + lane / 16 * 128 + lane % 8 * 16;
            load_matrices(a[0], row);
            load_matrices(a[1], row + 256);
        } else {
            uint4 v = *(const uint4 *)(at + lane * 16);
            const uint32_t w[2][2] = {
                {v.x, v.y},
                {v.z, v.w}
            };
#pragma unroll
            for (int b = 0; b < 2; b++)
#pragma unroll
                for (int i = 0; i < 2; i++) {
                    a[b][i] = w[b][i] & 0x0f0f0f0f;
                    a[b][2 + i] = w[b][i] >> 4 & 0x0f0f0f0f;
                }
        }
        read_scales(at, lane);
    }

    __device__ __forceinline__ void read_scales(const uint8_t *at, int lane)
    {
        if (PACK == CUDA_Q8_0) {
#pragma unroll
            for (int i = 0; i < 2; i++) {
                const uint8_t *of = at + i * CUDA_Q8_0_HALF + 512 + lane / 4 * 4;
                float2 x = __half22float2(*(const __half2 *)of);
                d[0][i] = x.x, d[1][i] = x.y;
            }
        } else {
            halves(at + 512 + lane / 4 * 8, d);
            if (PACK == CUDA_Q4_1) halves(at + 512 + 64 + lane / 4 * 8, m);
        }
#pragma unroll
        for (int b = 0; b < 2; b++)
#pragma unroll
            for (int i = 0; i < 2; i++)
                base[b][i] = -(ROUND * d[b][i]);
    }

    __device__ __forceinline__ static void halves(const uint8_t *at, float to[2][2])
    {
        uint2 v = *(const uint2 *)at;
        float2 x = __half22float2(*(const __half2 *)&v.x),
               y = __half22float2(*(const __half2 *)&v.y);
        to[0][0] = x.x, to[0][1] = x.y, to[1][0] = y.x, to[1][1] = y.y;
    }
};

/* A lane's part of eight token rows by 64 k; the scales are those of rows 2 (lane % 4) and the
 * next, which its sums are of. */
template <int PACK> struct codes {
    uint32_t b[2][2];
    float d[2][2], sum[2][2];
    int start[2][2];

    __device__ __forceinline__ void read(const uint8_t *at, int lane)
    {
        uint32_t v[4];
        load_matrices(v, at + lane * 16);
        float4 s = *(const float4 *)(at + CUDA_X_SCALES + lane % 4 * 16);
        b[0][0] = v[0], b[0][1] = v[1], b[1][0] = v[2], b[1][1] = v[3];
        d[0][0] = s.x, d[0][1] = s.y, d[1][0] = s.z, d[1][1] = s.w;
        int4 n = make_int4(0, 0, 0, 0);
        if (PACK != CUDA_Q8_0) n = *(const int4 *)(at + CUDA_X_SUMS + lane % 4 * 16);
        const int of[2][2] = {
            {n.x, n.y},
            {n.z, n.w}
        };
#pragma unroll
        for (int k = 0; k < 2; k++)
#pragma unroll
            for (int i = 0; i < 2; i++) {
                start[k][i] = ROUND_BITS - (PACK == CUDA_Q4_0 ? 8 * of[k][i] : 0);
                sum[k][i] = PACK == CUDA_Q4_1 ? d[k][i] * (float)of[k][i] : 0.0f;
            }
    }
};

/* acc: outputs lane / 4 and + 8, token rows 2 (lane % 4) and the next: [output half][row] */
template <int PACK>
__device__ __forceinline__ void block_add(const weights<PACK> &w, const codes<PACK> &x, int b,
                                          float acc[4])
{
    int c[4];
    mma_s8(c, w.a[b], x.b[b], x.start[b][0], x.start[b][1]);
#pragma unroll
    for (int i = 0; i < 4; i++) {
        float t = fmaf(__int_as_float(c[i]), w.d[b][i / 2], w.base[b][i / 2]);
        acc[i] = fmaf(t, x.d[b][i % 2], acc[i]);
        if (PACK == CUDA_Q4_1) acc[i] = fmaf(w.m[b][i / 2], x.sum[b][i % 2], acc[i]);
    }
}

/* ---- launching ---- */

/* What a kernel is compiled for: weights of a type, and one matrix or the two of CUDA_GATE. */
template <int PACK, int MATRICES> struct variant {
    static const int pack = PACK, matrices = MATRICES;
};

template <int... PACKS> struct variants {
    /* f of the product's variant. */
    template <class F> static cudaError_t of(const cuda_product *a, F f)
    {
        const bool two = a->epilogue == CUDA_GATE;
        cudaError_t e = cudaErrorInvalidValue;
        ((e = a->pack != PACKS ? e : two ? f(variant<PACKS, 2>()) : f(variant<PACKS, 1>())), ...);
        return e;
    }
    /* f of each, until one fails. */
    template <class F> static cudaError_t all(F f)
    {
        cudaError_t e = cudaSuccess;
        ((e = e ? e : f(variant<PACKS, 1>()), e = e ? e : f(variant<PACKS, 2>())), ...);
        return e;
    }
};

/* The types that are multiplied as codes. A new one has its place here, and its layout in
 * kernels.h, above, and where weights are repacked (rows.cu, memory.c). */
typedef variants<CUDA_Q4_0, CUDA_Q4_1, CUDA_Q8_0> products;

#endif
