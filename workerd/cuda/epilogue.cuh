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

/* unit: outputs of a tile. */
__device__ __forceinline__ tile_place place_of(const cuda_product &a, uint32_t tile, uint32_t unit)
{
    tile_place p = {0, tile * unit};
    if (a.epilogue == CUDA_GATE) return p;
    while (p.matrix + 1 < a.n_matrices) {
        uint32_t outs = (a.m[p.matrix].n_out + unit - 1) / unit * unit;
        if (p.first < outs) break;
        p.first -= outs;
        p.matrix++;
    }
    return p;
}

static inline uint32_t tiles_of(const struct cuda_product *a, uint32_t unit)
{
    uint32_t n = 0, matrices = a->epilogue == CUDA_GATE ? 1 : a->n_matrices;
    for (uint32_t i = 0; i < matrices; i++)
        n += (a->m[i].n_out + unit - 1) / unit;
    return n;
}

/* What an epilogue reads, asked for before the product is there. */
struct before {
    float y; /* CUDA_ADD, CUDA_GATED */
    float2 turn;
    uint8_t *host, *resident; /* where a value of K or V goes */
};

/* Through to the pool, and to GPU memory where the chunk has a place there. */
__device__ __forceinline__ void cell_find(const cuda_kv &kv, uint32_t row, uint32_t out, bool is_v,
                                          before &b)
{
    cuda_row r = kv.rows[row];
    cuda_entry e = entry_of(kv, r.lane, r.pos);
    uint32_t cell = r.pos & ((1u << kv.block_shift) - 1);
    uint32_t at = (((out / kv.head_dim) << kv.block_shift) + cell) * kv.head_dim;
    uint64_t off = (is_v ? kv.v_off : 0) + (uint64_t)(at + out % kv.head_dim) * (kv.is_f32 ? 4 : 2);
    b.host = block_of(kv, e, r.pos, false) + off;
    b.resident = e.slot >= 0 ? block_of(kv, e, r.pos, true) + off : nullptr;
}

__device__ __forceinline__ before read_before(const cuda_product &a, const tile_place &p,
                                              uint32_t row, uint32_t lane)
{
    before b = {
        0, {1, 0},
         nullptr, nullptr
    };
    const uint32_t out = p.first + lane;
    if (out >= a.m[p.matrix].n_out) return b;
    if (a.epilogue == CUDA_ADD || a.epilogue == CUDA_GATED)
        b.y = a.y.f[(uint64_t)row * a.y.width + out];
    if (a.epilogue != CUDA_QKV) return b;
    const uint32_t part = a.part[p.matrix], d = out % a.kv.head_dim;
    if (part < 2 && d < a.kv.rope_dims)
        b.turn = ((const float2 *)a.kv.rope)[(uint64_t)row * (a.kv.rope_dims / 2) + d / 2];
    if (part > 0) cell_find(a.kv, row, out, part == 2, b);
    return b;
}

/* Rope turns the pairs (2i, 2i+1): arXiv:2104.09864. All lanes of the warp come here. */
__device__ __forceinline__ float turned(const cuda_kv &kv, uint32_t d, float2 turn, float v)
{
    float other = __shfl_xor_sync(~0u, v, 1);
    if (d >= kv.rope_dims) return v;
    return d % 2 ? fmaf(other, turn.y, v * turn.x) : fmaf(v, turn.x, -(other * turn.y));
}

__device__ __forceinline__ void value_write(const cuda_kv &kv, uint8_t *to, float v)
{
    if (!to) return;
    if (kv.is_f32)
        *(float *)to = v;
    else /* finite: tensor cores multiply by 0 what is past a row's own cell */
        *(__half *)to = __float2half_rn(fminf(fmaxf(v, -65504.0f), 65504.0f));
}

/* v: the product; up: of CUDA_GATE the second one, else the same. */
__device__ __forceinline__ void epilogue(const cuda_product &a, const tile_place &p, uint32_t row,
                                         uint32_t lane, const before &b, float v, float up)
{
    uint32_t out = p.first + lane;
    bool there = out < a.m[p.matrix].n_out;
    float *y = a.y.f + (uint64_t)row * a.y.width + out;
    if (a.epilogue == CUDA_STORE) {
        if (there) *y = v;
    } else if (a.epilogue == CUDA_ADD) {
        if (there) *y = b.y + v;
    } else if (a.epilogue == CUDA_QKV) {
        uint32_t part = a.part[p.matrix];
        if (part < 2) v = turned(a.kv, out % a.kv.head_dim, b.turn, v);
        if (!there) return;
        if (part == 0) *y = v;
        value_write(a.kv, b.host, v);
        value_write(a.kv, b.resident, v);
    } else {
        if (a.epilogue == CUDA_GATED) v = b.y;
        float h = there ? __fdiv_rn(v, 1.0f + expf(-v)) * up : 0.0f; /* arXiv:2002.05202 */
        if (there) *y = h;
        quantise_block(h, lane, row_codes(a.y, row), p.first / CUDA_TILE);
    }
}

#endif
