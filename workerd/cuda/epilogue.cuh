/* SPDX-License-Identifier: MIT */
#ifndef WORKERD_CUDA_EPILOGUE_CUH
#define WORKERD_CUDA_EPILOGUE_CUH
/*
 * What follows a product, element by element, the same for all its kernels: storing, adding to the
 * residual and quantising for the norm that follows, rope and the K/V write, silu and quantising.
 * Eight lanes that lie together have a tile's 32 outputs of one token row, four each; all lanes of
 * a warp come here.
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
    float4 y;                 /* CUDA_ADD, CUDA_GATED */
    float4 norm;              /* CUDA_ADD: w */
    float4 turn;              /* cos, sin of two pairs */
    uint8_t *host, *resident; /* where values of K or V go */
    float scale;              /* of the product */
    bool there;

    /* Of a row that is not there nothing is written. */
    __device__ __forceinline__ void leave_out()
    {
        there = false;
        host = resident = nullptr;
    }
};

/* Through to the pool, and to GPU memory where the chunk has a place there. */
__device__ __forceinline__ void cell_find(const cuda_kv &kv, uint32_t row, uint32_t out, bool is_v,
                                          before &b)
{
    if (kv.fresh) {
        uint32_t width = kv.n_kv_heads * kv.head_dim;
        b.host = (uint8_t *)(kv.fresh + ((uint64_t)row * 2 + is_v) * width + out);
        return;
    }
    cuda_row r = kv.rows[row];
    cuda_entry e = entry_of(kv, r.lane, r.pos);
    uint32_t cell = r.pos & ((1u << kv.block_shift) - 1);
    uint32_t at = (((out / kv.head_dim) << kv.block_shift) + cell) * kv.head_dim;
    uint64_t off = (is_v ? kv.v_off : 0) + (uint64_t)(at + out % kv.head_dim) * (kv.k_bits / 8);
    b.host = block_of(kv, e, r.pos, false) + off;
    b.resident = e.slot >= 0 ? block_of(kv, e, r.pos, true) + off : nullptr;
}

__device__ __forceinline__ float row_scale(const cuda_product &a, uint32_t row)
{
    if (!a.scaled) return 1;
    return norm_scale(a.x.squares + (uint64_t)row * (a.x.width / CUDA_BLOCK), a.x.width, a.eps);
}

/* out: of the matrix, the first of this lane's four; scale: row_scale's. */
__device__ __forceinline__ before read_before(const cuda_product &a, uint32_t matrix, uint32_t out,
                                              uint32_t row, float scale)
{
    const float4 zero = make_float4(0, 0, 0, 0);
    before b = {zero, zero, zero, nullptr, nullptr, scale, out < a.m[matrix].n_out};
    if (!b.there) return b;
    if (a.epilogue == CUDA_ADD || a.epilogue == CUDA_GATED)
        b.y = *(const float4 *)(a.y.f + (uint64_t)row * a.y.width + out);
    if (a.epilogue == CUDA_ADD && a.norm) b.norm = *(const float4 *)(a.norm + out);
    if (a.epilogue != CUDA_QKV) return b;
    const uint32_t part = a.part[matrix], d = out % a.kv.head_dim;
    if (part < 2 && d < a.kv.rope_dims)
        b.turn = *(const float4 *)(a.kv.rope + (uint64_t)row * a.kv.rope_dims + d);
    if (part > 0) cell_find(a.kv, row, out, part == 2, b);
    return b;
}

/* Rope turns the pairs (2i, 2i+1): arXiv:2104.09864. */
__device__ __forceinline__ float4 turned(float4 v, float4 turn)
{
    return make_float4(fmaf(v.x, turn.x, -(v.y * turn.y)), fmaf(v.x, turn.y, v.y * turn.x),
                       fmaf(v.z, turn.z, -(v.w * turn.w)), fmaf(v.z, turn.w, v.w * turn.z));
}

__device__ __forceinline__ void values_write(const cuda_kv &kv, uint8_t *to, float4 v)
{
    if (!to) return;
    if (kv.k_bits != 16) {
        *(float4 *)to = v;
        return;
    }
    __half2 h[2]; /* finite: what is past a row's cell is multiplied by 0 */
    quad_halves(v, h);
    *(uint2 *)to = *(const uint2 *)h;
}

/* A vocabulary can be of any length. */
__device__ __forceinline__ void quad_store(float *y, uint32_t width, uint32_t left, float4 v)
{
    if (width % 4 == 0) {
        *(float4 *)y = v;
        return;
    }
    y[0] = v.x;
    if (left > 1) y[1] = v.y;
    if (left > 2) y[2] = v.z;
    if (left > 3) y[3] = v.w;
}

__device__ __forceinline__ float gated(float v, float up) /* arXiv:2002.05202 */
{
    return __fdiv_rn(v, 1.0f + expf(-v)) * up;
}

/* v: the product; up: of CUDA_GATE the second one, else the same. out, row: as of read_before.
 * HALVES: of a prompt's row (struct cuda_rows). */
template <bool HALVES = false>
__device__ __forceinline__ void epilogue(const cuda_product &a, uint32_t matrix, uint32_t out,
                                         uint32_t row, const before &b, float4 v, float4 up)
{
    const float4 scale = make_float4(b.scale, b.scale, b.scale, b.scale);
    float *y = a.y.f + (uint64_t)row * a.y.width + out;
    if (a.scaled) v = quad_product(v, scale), up = quad_product(up, scale);
    if (a.epilogue == CUDA_STORE) {
        if (b.there) quad_store(y, a.y.width, a.m[matrix].n_out - out, v);
    } else if (a.epilogue == CUDA_ADD) {
        v = make_float4(b.y.x + v.x, b.y.y + v.y, b.y.z + v.z, b.y.w + v.w);
        if (b.there) *(float4 *)y = v;
        if (HALVES || !a.norm) return;
        float squares = quad_squares(v);
        quantise_quads(quad_product(v, b.norm), b.there, out, row_codes(a.z, row));
        if (b.there && out % CUDA_BLOCK == 0)
            a.z.squares[(uint64_t)row * (a.z.width / CUDA_BLOCK) + out / CUDA_BLOCK] = squares;
    } else if (a.epilogue == CUDA_QKV) {
        if (!b.there) return;
        uint32_t part = a.part[matrix];
        if (part < 2 && out % a.kv.head_dim < a.kv.rope_dims) v = turned(v, b.turn);
        if (part == 0) *(float4 *)y = v;
        values_write(a.kv, b.host, v);
        values_write(a.kv, b.resident, v);
    } else {
        if (a.epilogue == CUDA_GATED) v = b.y;
        float4 h = make_float4(0, 0, 0, 0);
        if (b.there)
            h = make_float4(gated(v.x, up.x), gated(v.y, up.y), gated(v.z, up.z), gated(v.w, up.w));
        if (b.there && (!HALVES || a.floats)) *(float4 *)y = h;
        if (!HALVES)
            quantise_quads(h, b.there, out, row_codes(a.y, row));
        else if (b.there)
            halves_write(a.y, row - a.first_row, out, h);
    }
}

/* A tile's sums in shared memory: of n_rows of the product's token rows, from row0 on. */
template <int OUTS> struct tile_sums {
    static const int STRIDE = OUTS + 4; /* rows of a warp in different banks */
    const float *at;                    /* [row][STRIDE] */
    const float *scales;                /* [row]: row_scale's; of a prompt's rows there are none */
    uint32_t row0, n_rows;
};

/* What follows all of them, of OUTS outputs, of two matrices half as many of each. A lane has four
 * outputs of AHEAD rows at a time. */
template <int MATRICES, int OUTS, int THREADS, bool HALVES>
__device__ __forceinline__ void sums_follow(const cuda_product &a, const tile_place &place,
                                            const tile_sums<OUTS> &s)
{
    const int AHEAD = 4, lanes = OUTS / MATRICES / 4, step = THREADS / lanes;
    const uint32_t of = threadIdx.x % lanes * 4, n = s.n_rows;
    for (uint32_t t0 = 0; t0 < n; t0 += step * AHEAD) {
        before b[AHEAD];
#pragma unroll
        for (int i = 0; i < AHEAD; i++) {
            const uint32_t t = t0 + i * step + threadIdx.x / lanes, at = min(t, n - 1);
            const uint32_t row = (HALVES ? a.first_row : 0) + s.row0 + at;
            b[i] = read_before(a, place.matrix, place.first + of, row, HALVES ? 1 : s.scales[at]);
            if (t >= n) b[i].leave_out();
        }
#pragma unroll
        for (int i = 0; i < AHEAD; i++) {
            const uint32_t at = min(t0 + i * step + threadIdx.x / lanes, n - 1);
            const uint32_t row = (HALVES ? a.first_row : 0) + s.row0 + at;
            const float4 *v = (const float4 *)(s.at + at * s.STRIDE + of);
            epilogue<HALVES>(a, place.matrix, place.first + of, row, b[i], v[0],
                             v[MATRICES == 2 ? OUTS / 8 : 0]);
        }
    }
}

#endif
