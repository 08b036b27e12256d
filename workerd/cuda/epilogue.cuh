/* SPDX-License-Identifier: MIT */
#ifndef WORKERD_CUDA_EPILOGUE_CUH
#define WORKERD_CUDA_EPILOGUE_CUH
/*
 * What follows a product, element by element, the same for all its kernels: storing, adding to the
 * residual, rope and the K/V write, silu and quantising. A warp has a tile's 32 outputs of one
 * token row, one a lane.
 */
#include "workerd/cuda/device.cuh"

/* Which matrix a tile belongs to, and its first output there. */
struct tile_place {
    uint32_t matrix, first;
};

__device__ __forceinline__ tile_place place_of(const cuda_product &a, uint32_t tile)
{
    tile_place p = {0, tile * CUDA_TILE};
    if (a.epilogue == CUDA_GATE) return p;
    while (p.matrix + 1 < a.n_matrices) {
        uint32_t outs = (a.m[p.matrix].n_out + CUDA_TILE - 1) / CUDA_TILE * CUDA_TILE;
        if (p.first < outs) break;
        p.first -= outs;
        p.matrix++;
    }
    return p;
}

static inline uint32_t tiles_of(const struct cuda_product *a)
{
    uint32_t n = 0, matrices = a->epilogue == CUDA_GATE ? 1 : a->n_matrices;
    for (uint32_t i = 0; i < matrices; i++)
        n += (a->m[i].n_out + CUDA_TILE - 1) / CUDA_TILE;
    return n;
}

/* Rope turns the pairs (2i, 2i+1): arXiv:2104.09864. All lanes of the warp come here. */
__device__ __forceinline__ float turned(const cuda_kv &kv, uint32_t row, uint32_t d, float v)
{
    float other = __shfl_xor_sync(~0u, v, 1);
    if (d >= kv.rope_dims) return v;
    const float *t = kv.rope + ((uint64_t)row * (kv.rope_dims / 2) + d / 2) * 2;
    return d % 2 ? fmaf(other, t[1], v * t[0]) : fmaf(v, t[0], -(other * t[1]));
}

__device__ __forceinline__ void value_write(const cuda_kv &kv, uint8_t *block, uint64_t off,
                                            uint32_t i, float v)
{
    if (kv.is_f32)
        ((float *)(block + off))[i] = v;
    else
        ((__half *)(block + off))[i] = __float2half_rn(v);
}

/* Through to the pool, and to GPU memory where the chunk has a place there. */
__device__ __forceinline__ void cell_write(const cuda_kv &kv, uint32_t row, uint32_t out, bool is_v,
                                           float v)
{
    cuda_row r = kv.rows[row];
    cuda_entry e = entry_of(kv, r.lane, r.pos);
    uint32_t cell = r.pos & ((1u << kv.block_shift) - 1);
    uint32_t at = (((out / kv.head_dim) << kv.block_shift) + cell) * kv.head_dim;
    uint64_t off = is_v ? kv.v_off : 0;
    value_write(kv, block_of(kv, e, r.pos, false), off, at + out % kv.head_dim, v);
    if (e.slot >= 0) value_write(kv, block_of(kv, e, r.pos, true), off, at + out % kv.head_dim, v);
}

/* v: the product; up: of CUDA_GATE the second one, else the same. */
__device__ __forceinline__ void epilogue(const cuda_product &a, const tile_place &p, uint32_t row,
                                         uint32_t lane, float v, float up)
{
    uint32_t out = p.first + lane;
    bool there = out < a.m[p.matrix].n_out;
    float *y = a.y.f + (uint64_t)row * a.y.width + out;
    if (a.epilogue == CUDA_STORE) {
        if (there) *y = v;
    } else if (a.epilogue == CUDA_ADD) {
        if (there) *y += v;
    } else if (a.epilogue == CUDA_QKV) {
        uint32_t part = a.part[p.matrix];
        if (part < 2) v = turned(a.kv, row, out % a.kv.head_dim, v);
        if (!there) return;
        if (part == 0)
            *y = v;
        else
            cell_write(a.kv, row, out, part == 2, v);
    } else {
        if (a.epilogue == CUDA_GATED) v = there ? *y : 0.0f;
        float h = there ? __fdiv_rn(v, 1.0f + expf(-v)) * up : 0.0f; /* arXiv:2002.05202 */
        if (there) *y = h;
        quantise_block(h, lane, a.y.q + (uint64_t)row * a.y.k_pad,
                       a.y.ds + (uint64_t)row * (a.y.k_pad / CUDA_BLOCK) * 2, p.first / CUDA_TILE);
    }
}

/* The order in which a product's eight sums are added: the same in every kernel. */
__device__ __forceinline__ float sum8(const float p[8])
{
    return ((p[0] + p[4]) + (p[2] + p[6])) + ((p[1] + p[5]) + (p[3] + p[7]));
}

#endif
