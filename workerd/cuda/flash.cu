/* SPDX-License-Identifier: MIT */
/*
 * y = softmax(q K^T / sqrt(head_dim)) V over the chunk table with tensor cores, for K/V in halves
 * (arXiv:2205.14135, 2311.01282). The arithmetic of a (token row, query head), whoever computes it:
 * q is rounded to halves; parts of 128 cells begin at fixed positions; of a part, the scores are
 * float32 sums over head_dim in steps of 16, m the largest of them, p = 2^((s - m) scale log2 e)
 * rounded to halves, sum(p) and sum(p V) float32 sums over the cells in steps of 16; parts join in
 * order, each scaled to the largest score so far. So a row's bits depend on its position and the
 * cells alone, wherever these lie. Cells past the row's own are left out by selection; those that
 * no row of the window has are zeros, others finite (epilogue.cuh), so that 0 times them is 0.
 *
 * flash: a block of four warps has a part of one token row and K/V head, 16 query heads at most; a
 * warp makes the scores of 32 cells, then a quarter of head_dim. Parts meet in `flash_join`.
 * flash_tiles: a block of eight warps has 128 (token row, query head) of a span of one lane's rows
 * and one K/V head, a warp 16 of them with all cells; K of the next part is on its way while V is
 * multiplied, and V while K is. K/V of a head is 16 cells x head_dim consecutive values, so reads
 * are of 2 KiB and more, also over PCIe.
 */
#include "workerd/cuda/cells.cuh"

#include <math_constants.h>

enum {
    FEW_THREADS = 128,
    FEW_HEADS = 16,
    TILE_THREADS = 256,
    JOIN_THREADS = 256,
};

#define LOG2_E 1.44269504f
#define ONES 0x3c003c00u /* two halves */

/* Scores of 16 rows and N eights of cells from `cells` on. */
template <int HD, int N>
__device__ __forceinline__ void scores_make(const uint32_t q[HD / 16][4], const __half *cells,
                                            int lane, float s[N][4])
{
#pragma unroll
    for (int n = 0; n < N; n++) {
        s[n][0] = s[n][1] = s[n][2] = s[n][3] = 0;
#pragma unroll
        for (int k = 0; k < HD / 16; k += 2) {
            uint32_t b[4];
            load_matrices(b, cells + (n * 8 + lane % 8) * row_halves<HD>() + k * 16 + lane / 8 * 8);
            mma_f16(s[n], q[k], b[0], b[1]);
            mma_f16(s[n], q[k + 1], b[2], b[3]);
        }
    }
}

/* Leaves out the cells past a row's own; pos: of this lane's two rows, -1: none. */
template <int N>
__device__ __forceinline__ void scores_select(const int pos[2], int first, int lane, float s[N][4])
{
#pragma unroll
    for (int n = 0; n < N; n++)
#pragma unroll
        for (int i = 0; i < 4; i++)
            if (first + n * 8 + lane % 4 * 2 + i % 2 > pos[i / 2]) s[n][i] = -CUDART_INF_F;
}

template <int N> __device__ __forceinline__ void scores_most(const float s[N][4], float most[2])
{
#pragma unroll
    for (int h = 0; h < 2; h++) {
        most[h] = -CUDART_INF_F;
#pragma unroll
        for (int n = 0; n < N; n++)
            most[h] = fmaxf(most[h], fmaxf(s[n][2 * h], s[n][2 * h + 1]));
        most[h] = fmaxf(most[h], __shfl_xor_sync(~0u, most[h], 1));
        most[h] = fmaxf(most[h], __shfl_xor_sync(~0u, most[h], 2));
    }
}

__device__ __forceinline__ uint32_t halves_of(float x, float y)
{
    __half2 h = __floats2half2_rn(x, y);
    return *(const uint32_t *)&h;
}

/* p of an eight of cells: this lane's first row, then its second. */
__device__ __forceinline__ void weights_make(const float s[4], const float most[2], float scale,
                                             uint32_t p[2])
{
#pragma unroll
    for (int h = 0; h < 2; h++) {
        const float by = most[h] == -CUDART_INF_F ? 0.0f : -(most[h] * scale);
        p[h] = halves_of(power_of_2(fmaf(s[2 * h], scale, by)),
                         power_of_2(fmaf(s[2 * h + 1], scale, by)));
    }
}

/* o += p V for 16 cells (from step * 16 on) and N eights of head_dim (from d on). */
template <int HD, int N>
__device__ __forceinline__ void values_add(const uint32_t p[4], const __half *v, int step, int d,
                                           int lane, float o[N][4])
{
    const __half *at = v + (step * 16 + lane % 16) * row_halves<HD>() + d + lane / 16 * 8;
#pragma unroll
    for (int n = 0; n < N; n += 2) {
        uint32_t b[4];
        load_transposed(b, at + n * 8);
        mma_f16(o[n], p, b[0], b[1]);
        mma_f16(o[n + 1], p, b[2], b[3]);
    }
}

/* A part joins what is before it: factors of the old and of the part's. */
struct joint {
    float old, fresh;

    __device__ __forceinline__ joint(float &most, float part, float scale)
    {
        float higher = fmaxf(most, part);
        old = power_of_2((most - higher) * scale);
        fresh = power_of_2((part - higher) * scale);
        most = higher;
    }
};

/* ---- a part of a single row ---- */

struct few_shared {
    const uint8_t *blocks[CELLS / UNIT];
    float most[4][FEW_HEADS];
};
enum { P_HALVES = CELLS + 8 }; /* of a row of p: as of cells */

/* A's fragments of a row's heads. */
template <int HD>
__device__ __forceinline__ void few_query(const cuda_attend &a, uint32_t row, uint32_t h0,
                                          uint32_t n_heads, int lane, uint32_t q[HD / 16][4])
{
    const uint32_t hd = a.kv.head_dim;
#pragma unroll
    for (int h = 0; h < 2; h++) {
        const uint32_t head = lane / 4 + 8 * h;
        const float *from = a.q.f + (uint64_t)row * a.q.width + (h0 + head) * hd;
#pragma unroll
        for (int k = 0; k < HD / 8; k++) {
            uint32_t d = k * 8 + lane % 4 * 2;
            float2 v = make_float2(0, 0);
            if (head < n_heads && d < hd) v = *(const float2 *)(from + d);
            q[k / 2][k % 2 * 2 + h] = halves_of(v.x, v.y);
        }
    }
}

/* The largest score of each row, over the four warps. */
__device__ __forceinline__ void few_most(few_shared *s, int warp, int lane, float most[2])
{
    if (lane % 4 == 0) s->most[warp][lane / 4] = most[0], s->most[warp][lane / 4 + 8] = most[1];
    __syncthreads();
#pragma unroll
    for (int h = 0; h < 2; h++) {
        int row = lane / 4 + 8 * h;
        most[h] =
            fmaxf(fmaxf(s->most[0][row], s->most[1][row]), fmaxf(s->most[2][row], s->most[3][row]));
    }
}

/* p takes the place of K, once all warps have their scores. */
template <int HD>
__device__ __forceinline__ void few_scores(const cuda_attend &a, few_shared *s,
                                           const uint32_t q[HD / 16][4], __half *k, int pos,
                                           int first, float most[2])
{
    const int warp = threadIdx.x / WARP, lane = threadIdx.x % WARP;
    const int own[2] = {pos, pos};
    float score[4][4];
    scores_make<HD, 4>(q, k + warp * 32 * row_halves<HD>(), lane, score);
    scores_select<4>(own, first + warp * 32, lane, score);
    scores_most<4>(score, most);
    few_most(s, warp, lane, most);
#pragma unroll
    for (int n = 0; n < 4; n++) {
        uint32_t p[2];
        weights_make(score[n], most, a.scale * LOG2_E, p);
#pragma unroll
        for (int h = 0; h < 2; h++)
            *(uint32_t *)&k[(lane / 4 + 8 * h) * P_HALVES + warp * 32 + n * 8 + lane % 4 * 2] =
                p[h];
    }
}

/* at: of the part, the first head: index of ml; heads are n_splits apart. */
template <int HD>
__device__ __forceinline__ void few_values(const cuda_attend &a, const __half *weights,
                                           const __half *v, uint64_t at, uint32_t n_heads,
                                           const float most[2])
{
    const int N = HD / 32, warp = threadIdx.x / WARP, lane = threadIdx.x % WARP;
    float o[N][4] = {}, sum[4] = {};
#pragma unroll
    for (int i = 0; i < CELLS / 16; i++) {
        uint32_t p[4];
        load_matrices(p, weights + lane % 16 * P_HALVES + i * 16 + lane / 16 * 8);
        values_add<HD, N>(p, v, i, warp * (HD / 4), lane, o);
        mma_f16(sum, p, ONES, ONES);
    }
#pragma unroll
    for (int h = 0; h < 2; h++) {
        const uint32_t head = lane / 4 + 8 * h;
        if (head >= n_heads) continue;
        const uint64_t to = at + (uint64_t)head * a.n_splits;
        if (warp == 0 && lane % 4 == 0)
            *(float2 *)(a.ml + to * 2) = make_float2(most[h], sum[2 * h]);
#pragma unroll
        for (int n = 0; n < N; n++) {
            uint32_t d = warp * (HD / 4) + n * 8 + lane % 4 * 2;
            if (d < a.kv.head_dim)
                *(float2 *)(a.o + to * a.kv.head_dim + d) =
                    make_float2(o[n][2 * h], o[n][2 * h + 1]);
        }
    }
}

/* K and V on their way, K first. */
template <int HD, bool CODES>
__device__ __forceinline__ void few_cells(const cuda_attend &a, const uint8_t *const *blocks,
                                          uint32_t head, uint32_t first, uint32_t end, __half *k,
                                          __half *v)
{
    if (CODES) {
        cells_codes<HD, FEW_THREADS> kc, vc;
        kc.ask(a, blocks, head, false, first, end);
        vc.ask(a, blocks, head, true, first, end);
        kc.put(a, false, k);
        vc.put(a, true, v);
        return;
    }
    cells_ask<HD, FEW_THREADS>(a, blocks, head, 0, first, end, k);
    copies_commit();
    cells_ask<HD, FEW_THREADS>(a, blocks, head, a.kv.v_off, first, end, v);
    copies_commit();
}

template <int HD, bool CODES>
__global__ void __launch_bounds__(FEW_THREADS) flash(const cuda_attend a)
{
    __shared__ few_shared s;
    dependency_release();
    dependency_wait();
    const uint32_t group = a.kv.n_heads / a.kv.n_kv_heads, rounds = (group + 15) / 16;
    const uint32_t row = a.listed ? a.listed[a.first_row + blockIdx.z] : a.first_row + blockIdx.z;
    const uint32_t head = blockIdx.y / rounds, g = blockIdx.y % rounds * FEW_HEADS;
    const cuda_row r = a.kv.rows[row];
    const uint32_t first = blockIdx.x * CELLS;
    if (first > r.pos) return;
    __half *k = (__half *)shared_memory(), *v = k + CELLS * row_halves<HD>();
    const uint32_t h0 = head * group + g, n_heads = min(group - g, (uint32_t)FEW_HEADS);
    const uint64_t at = ((uint64_t)blockIdx.z * a.kv.n_heads + h0) * a.n_splits + blockIdx.x;
    uint32_t q[HD / 16][4];
    float most[2];
    blocks_find(a, r.lane, first, r.pos + 1, s.blocks);
    __syncthreads();
    few_cells<HD, CODES>(a, s.blocks, head, first, r.pos + 1, k, v);
    few_query<HD>(a, row, h0, n_heads, threadIdx.x % WARP, q);
    copies_wait<1>();
    __syncthreads();
    few_scores<HD>(a, &s, q, k, (int)r.pos, (int)first, most);
    copies_wait<0>();
    __syncthreads();
    few_values<HD>(a, k, v, at, n_heads, most);
}

/* ---- the parts of a single row ---- */

enum {
    JOIN_PARTS = 64,    /* at once: two a lane of a warp */
    JOIN_VALUES = 8192, /* of a buffer: 64 parts of heads of 128 */
};

struct join_shared {
    float old[JOIN_PARTS], fresh[JOIN_PARTS], sum[JOIN_PARTS];
    float most; /* of all parts before */
};

/* What each part is multiplied with: joint's factors for all of them at once, since the largest of
 * several does not depend on their order. By the first warp; ml: this lane's two parts. */
__device__ __forceinline__ void factors_make(join_shared *s, int lane, const float2 ml[2],
                                             float scale)
{
    float upto = fmaxf(ml[0].x, ml[1].x);
    __syncwarp();
    for (int o = 1; o < WARP; o *= 2) {
        float v = __shfl_up_sync(~0u, upto, o);
        if (lane >= o) upto = fmaxf(upto, v);
    }
    float most = __shfl_up_sync(~0u, upto, 1);
    most = lane == 0 ? s->most : fmaxf(most, s->most);
    __syncwarp();
    if (lane == WARP - 1) s->most = fmaxf(upto, s->most);
#pragma unroll
    for (int i = 0; i < 2; i++) {
        const joint j(most, ml[i].x, scale);
        s->old[2 * lane + i] = j.old;
        s->fresh[2 * lane + i] = j.fresh;
        s->sum[2 * lane + i] = ml[i].y;
    }
}

/* One (row, head): the parts in order, a buffer of them on its way while another is joined. */
__global__ void __launch_bounds__(JOIN_THREADS) flash_join(const cuda_attend a)
{
    __shared__ join_shared s;
    dependency_release();
    dependency_wait();
    const uint32_t local = blockIdx.y, head = blockIdx.x, hd = a.kv.head_dim, d = threadIdx.x;
    const uint32_t row = a.listed ? a.listed[a.first_row + local] : a.first_row + local;
    const uint32_t n = a.kv.rows[row].pos / CELLS + 1, most = min(JOIN_VALUES / hd, JOIN_PARTS);
    const uint64_t at = ((uint64_t)local * a.kv.n_heads + head) * a.n_splits;
    float *buffer = (float *)shared_memory(), sum = 0, o = 0;
    const float2 none = make_float2(-CUDART_INF_F, 0);
    if (d == 0) s.most = -CUDART_INF_F;
    for (uint32_t i = 0, k = 0; i < n + most; i += most, k ^= 1) {
        float2 ml[2] = {none, none};
        for (uint32_t j = d * 4; i < n && j < min(n - i, most) * hd; j += blockDim.x * 4)
            copy16(buffer + k * JOIN_VALUES + j, a.o + (at + i) * hd + j);
        copies_commit();
#pragma unroll
        for (uint32_t j = 0; j < 2; j++)
            if (d < WARP && i + 2 * d + j < n && 2 * d + j < most)
                ml[j] = ((const float2 *)a.ml)[at + i + 2 * d + j];
        if (i > 0) {
            const float *values = buffer + (k ^ 1) * JOIN_VALUES + d;
            copies_wait<1>();
            __syncthreads();
            for (uint32_t j = 0; j < min(n - (i - most), most); j++) {
                sum = fmaf(sum, s.old[j], s.sum[j] * s.fresh[j]);
                if (d < hd) o = fmaf(o, s.old[j], values[j * hd] * s.fresh[j]);
            }
            __syncthreads();
        }
        if (d < WARP) factors_make(&s, d, ml, a.scale * LOG2_E);
    }
    float v = d < hd ? __fdiv_rn(o, sum) : 0;
    if (d < hd) a.y.f[(uint64_t)row * a.y.width + head * hd + d] = v;
    if (a.quantise && d / WARP * WARP < hd)
        quantise_block(v, d % WARP, row_codes(a.y, row), (head * hd + d) / CUDA_BLOCK);
}

/* ---- a tile of rows ---- */

/* What a lane has of its two (token row, query head)s. */
template <int HD> struct tile_rows {
    int pos[2]; /* -1: there is none */
    uint32_t row[2], head[2];
    float most[2], sum[2], o[HD / 8][4];
    uint32_t q[HD / 16][4];

    __device__ __forceinline__ tile_rows(const cuda_attend &a, const cuda_span &span,
                                         uint32_t kv_head, int warp, int lane)
    {
        const uint32_t group = a.kv.n_heads / a.kv.n_kv_heads;
#pragma unroll
        for (int h = 0; h < 2; h++) {
            uint32_t i = warp * 16 + lane / 4 + 8 * h;
            bool there = i < span.n_rows * group;
            row[h] = span.first_row + (there ? i / group : 0);
            head[h] = kv_head * group + i % group;
            pos[h] = there ? (int)a.kv.rows[row[h]].pos : -1;
            most[h] = -CUDART_INF_F;
            sum[h] = 0;
        }
#pragma unroll
        for (int n = 0; n < HD / 8; n++)
            o[n][0] = o[n][1] = o[n][2] = o[n][3] = 0;
    }
    /* A's fragments, from the float32 rows. */
    __device__ __forceinline__ void query_read(const cuda_attend &a, int lane)
    {
        const uint32_t hd = a.kv.head_dim;
#pragma unroll
        for (int h = 0; h < 2; h++) {
            const float *from = a.q.f + (uint64_t)row[h] * a.q.width + head[h] * hd;
#pragma unroll
            for (int k = 0; k < HD / 8; k++) {
                uint32_t d = k * 8 + lane % 4 * 2;
                float2 v = pos[h] >= 0 && d < hd ? *(const float2 *)(from + d) : make_float2(0, 0);
                q[k / 2][k % 2 * 2 + h] = halves_of(v.x, v.y);
            }
        }
    }
    /* The part's p are made from its scores; V is multiplied by them. */
    __device__ __forceinline__ void part_scores(const cuda_attend &a, const __half *k, int first,
                                                int lane, float part[2], uint32_t p[CELLS / 8][2])
    {
        float s[CELLS / 8][4];
        scores_make<HD, CELLS / 8>(q, k, lane, s);
        if (first + CELLS - 1 > min(pos[0], pos[1])) scores_select<CELLS / 8>(pos, first, lane, s);
        scores_most<CELLS / 8>(s, part);
#pragma unroll
        for (int n = 0; n < CELLS / 8; n++)
            weights_make(s[n], part, a.scale * LOG2_E, p[n]);
    }
    __device__ __forceinline__ void part_join(const cuda_attend &a, const __half *v, int lane,
                                              const float part[2], const uint32_t p[CELLS / 8][2])
    {
        float of[HD / 8][4] = {}, l[4] = {};
#pragma unroll
        for (int i = 0; i < CELLS / 16; i++) {
            const uint32_t f[4] = {p[2 * i][0], p[2 * i][1], p[2 * i + 1][0], p[2 * i + 1][1]};
            values_add<HD, HD / 8>(f, v, i, 0, lane, of);
            mma_f16(l, f, ONES, ONES);
        }
#pragma unroll
        for (int h = 0; h < 2; h++) {
            if (part[h] == -CUDART_INF_F) continue;
            const joint j(most[h], part[h], a.scale * LOG2_E);
            sum[h] = fmaf(sum[h], j.old, l[2 * h] * j.fresh);
#pragma unroll
            for (int n = 0; n < HD / 8; n++)
#pragma unroll
                for (int i = 2 * h; i < 2 * h + 2; i++)
                    o[n][i] = fmaf(o[n][i], j.old, of[n][i] * j.fresh);
        }
    }
    __device__ __forceinline__ void write(const cuda_attend &a, int lane) const
    {
#pragma unroll
        for (int h = 0; h < 2; h++) {
            float *to = a.y.f + (uint64_t)row[h] * a.y.width + head[h] * a.kv.head_dim;
#pragma unroll
            for (int n = 0; n < HD / 8; n++) {
                uint32_t d = n * 8 + lane % 4 * 2;
                if (pos[h] >= 0 && d < a.kv.head_dim)
                    *(float2 *)(to + d) = make_float2(__fdiv_rn(o[n][2 * h], sum[h]),
                                                      __fdiv_rn(o[n][2 * h + 1], sum[h]));
            }
        }
    }
};

/* Codes are halves at once: no registers are free to keep them in. */
template <int HD, bool CODES>
__device__ __forceinline__ void tile_cells(const cuda_attend &a, const uint8_t *const *blocks,
                                           uint32_t head, bool is_v, uint32_t first, uint32_t end,
                                           __half *to)
{
    if (CODES) {
        cells_codes<HD, TILE_THREADS> c;
        c.ask(a, blocks, head, is_v, first, end);
        c.put(a, is_v, to);
    } else {
        cells_ask<HD, TILE_THREADS>(a, blocks, head, is_v ? a.kv.v_off : 0, first, end, to);
    }
    copies_commit();
}

template <int HD, bool CODES>
__global__ void __launch_bounds__(TILE_THREADS, 1) flash_tiles(const cuda_attend a)
{
    __shared__ const uint8_t *blocks[2][CELLS / UNIT];
    dependency_release();
    dependency_wait();
    const int warp = threadIdx.x / WARP, lane = threadIdx.x % WARP;
    const uint32_t head = blockIdx.x;
    const cuda_span span = a.spans[a.first_row + blockIdx.y];
    const cuda_row last = a.kv.rows[span.first_row + span.n_rows - 1];
    const uint32_t end = last.pos + 1, n_parts = (end + CELLS - 1) / CELLS;
    __half *k = (__half *)shared_memory(), *v = k + CELLS * row_halves<HD>();
    tile_rows<HD> rows(a, span, head, warp, lane);
    blocks_find(a, last.lane, 0, end, blocks[0]);
    __syncthreads();
    tile_cells<HD, CODES>(a, blocks[0], head, false, 0, end, k);
    rows.query_read(a, lane);
    for (uint32_t i = 0; i < n_parts; i++) {
        const uint32_t first = i * CELLS;
        float part[2];
        uint32_t p[CELLS / 8][2];
        tile_cells<HD, CODES>(a, blocks[i % 2], head, true, first, end, v);
        if (i + 1 < n_parts) blocks_find(a, last.lane, first + CELLS, end, blocks[(i + 1) % 2]);
        copies_wait<1>();
        __syncthreads();
        rows.part_scores(a, k, (int)first, lane, part, p);
        __syncthreads();
        if (i + 1 < n_parts)
            tile_cells<HD, CODES>(a, blocks[(i + 1) % 2], head, false, first + CELLS, end, k);
        else
            copies_commit();
        copies_wait<1>();
        __syncthreads();
        rows.part_join(a, v, lane, part, p);
        __syncthreads();
    }
    rows.write(a, lane);
}

/* ---- launching ---- */

template <int HD> static cudaError_t launch_few(cudaStream_t s, const cuda_attend *a)
{
    uint32_t rounds = (a->kv.n_heads / a->kv.n_kv_heads + FEW_HEADS - 1) / FEW_HEADS;
    dim3 grid(a->n_splits, a->kv.n_kv_heads * rounds, a->n_rows);
    return launch(s, a->dependent, a->kv.k_bits < 16 ? flash<HD, true> : flash<HD, false>, grid,
                  FEW_THREADS, 2 * cells_bytes<HD>(), *a);
}

extern "C" cudaError_t cuda_launch_flash(cudaStream_t s, const struct cuda_attend *a)
{
    cudaError_t e = a->kv.head_dim <= 64    ? launch_few<64>(s, a)
                    : a->kv.head_dim <= 128 ? launch_few<128>(s, a)
                                            : launch_few<256>(s, a);
    if (e) return e;
    uint32_t threads = (a->kv.head_dim + WARP - 1) / WARP * WARP;
    uint32_t values = a->n_splits * a->kv.head_dim; /* one buffer when that holds all */
    if (a->n_splits > JOIN_PARTS || values > JOIN_VALUES) values = 2 * JOIN_VALUES;
    return launch(s, a->dependent, flash_join, dim3(a->kv.n_heads, a->n_rows), threads,
                  values * sizeof(float), *a);
}

template <int HD> static cudaError_t launch_tiles(cudaStream_t s, const cuda_attend *a)
{
    dim3 grid(a->kv.n_kv_heads, a->n_rows);
    return launch(s, a->dependent,
                  a->kv.k_bits < 16 ? flash_tiles<HD, true> : flash_tiles<HD, false>, grid,
                  TILE_THREADS, 2 * cells_bytes<HD>(), *a);
}

extern "C" cudaError_t cuda_launch_flash_tiles(cudaStream_t s, const struct cuda_attend *a)
{
    return a->kv.head_dim <= 64 ? launch_tiles<64>(s, a) : launch_tiles<128>(s, a);
}

template <int HD> static cudaError_t allow_few()
{
    cudaError_t e = allow_shared(flash<HD, false>, 2 * cells_bytes<HD>());
    return e ? e : allow_shared(flash<HD, true>, 2 * cells_bytes<HD>());
}
template <int HD> static cudaError_t allow_tiles()
{
    cudaError_t e = allow_shared(flash_tiles<HD, false>, 2 * cells_bytes<HD>());
    return e ? e : allow_shared(flash_tiles<HD, true>, 2 * cells_bytes<HD>());
}

extern "C" cudaError_t cuda_flash_prepare(uint32_t *dim_max)
{
    cudaError_t e = allow_few<64>();
    if (!e) e = allow_few<128>();
    if (!e) e = allow_tiles<64>();
    if (!e) e = allow_tiles<128>();
    if (!e) e = allow_shared(flash_join, 2 * JOIN_VALUES * sizeof(float));
    *dim_max = 256;
    if (!e && allow_few<256>() != cudaSuccess) {
        (void)cudaGetLastError(); /* more than the card has */
        *dim_max = 128;
    }
    return e;
}
