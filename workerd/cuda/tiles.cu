/* SPDX-License-Identifier: MIT */
/*
 * Attention of a prompt's rows (flash.cuh): a block of eight warps has 128 (token row, query head)
 * of a span of one lane's rows and one K/V head, a warp 16 of them with all cells; K of the next
 * part is on its way while V is multiplied, and V while K is. The sums of the stretches before lie
 * in y until the last one has joined. K/V of a head is 16 cells x head_dim consecutive values, so
 * reads are of 2 KiB and more, also over PCIe.
 */
#include "workerd/cuda/flash.cuh"

enum { TILE_THREADS = 256 };

/* Where a lane's first or second (token row, query head) is; found anew rather than kept in
 * registers. */
struct tile_place {
    uint32_t row, head;
    bool there;

    __device__ __forceinline__ tile_place(const cuda_attend &a, int h)
    {
        const cuda_span span = a.spans[a.first_row + blockIdx.y];
        const uint32_t group = a.kv.n_heads / a.kv.n_kv_heads;
        const uint32_t i = threadIdx.x / WARP * 16 + threadIdx.x % WARP / 4 + 8 * h;
        there = i < span.n_rows * group;
        row = span.first_row + (there ? i / group : 0);
        head = blockIdx.x * group + i % group;
    }
};

/* What a lane has of its two (token row, query head)s. */
template <int HD> struct tile_rows {
    int pos[2];                          /* -1: there is none */
    float most[2], sum[2], o[HD / 8][4]; /* of the stretch */
    float most_before[2], sum_before[2]; /* of all before it, whose o is y */
    uint32_t q[HD / 16][4];

    __device__ __forceinline__ tile_rows(const cuda_attend &a)
    {
#pragma unroll
        for (int h = 0; h < 2; h++) {
            const tile_place at(a, h);
            pos[h] = at.there ? (int)a.kv.rows[at.row].pos : -1;
            most_before[h] = -CUDART_INF_F;
            sum_before[h] = 0;
        }
        stretch_begin();
    }
    __device__ __forceinline__ void stretch_begin()
    {
#pragma unroll
        for (int h = 0; h < 2; h++) {
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
            const tile_place at(a, h);
            const float *from = a.q.f + (uint64_t)at.row * a.q.width + at.head * hd;
#pragma unroll
            for (int k = 0; k < HD / 8; k++) {
                uint32_t d = query_dim(a, k, lane);
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
        if (first + CELLS - 1 > min(pos[0], pos[1]))
            scores_select<CELLS / 8, 2>(pos, first, lane, s);
        scores_most<CELLS / 8, 2>(s, part);
#pragma unroll
        for (int n = 0; n < CELLS / 8; n++)
            weights_make<2>(s[n], part, a.scale * LOG2_E, p[n]);
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
    /* The stretch joins those before it, in y; by the last one's sum it is divided. A row that has
     * no cell in the stretch stays as it is. */
    __device__ __forceinline__ void stretch_join(const cuda_attend &a, bool is_last, int lane)
    {
#pragma unroll
        for (int h = 0; h < 2; h++) {
            const bool first = most_before[h] == -CUDART_INF_F, none = most[h] == -CUDART_INF_F;
            if (pos[h] < 0 || (none && !is_last)) continue;
            float old = 1, fresh = 0;
            if (!none) {
                const joint j(most_before[h], most[h], a.scale * LOG2_E);
                old = j.old, fresh = j.fresh;
                sum_before[h] = fmaf(sum_before[h], old, sum[h] * fresh);
            }
            const tile_place at(a, h);
            float *to = a.y.f + (uint64_t)at.row * a.y.width + at.head * a.kv.head_dim;
#pragma unroll
            for (int n = 0; n < HD / 8; n++) {
                uint32_t d = n * 8 + lane % 4 * 2;
                if (d >= a.kv.head_dim) continue;
                float2 v = first ? make_float2(0, 0) : *(const float2 *)(to + d);
                v.x = fmaf(v.x, old, o[n][2 * h] * fresh);
                v.y = fmaf(v.y, old, o[n][2 * h + 1] * fresh);
                if (is_last)
                    v = make_float2(__fdiv_rn(v.x, sum_before[h]), __fdiv_rn(v.y, sum_before[h]));
                *(float2 *)(to + d) = v;
            }
        }
        stretch_begin();
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
    const int lane = threadIdx.x % WARP;
    const uint32_t head = blockIdx.x;
    const cuda_span span = a.spans[a.first_row + blockIdx.y];
    const cuda_row last = a.kv.rows[span.first_row + span.n_rows - 1];
    const uint32_t end = last.pos + 1, n_parts = (end + CELLS - 1) / CELLS;
    __half *k = (__half *)shared_memory(), *v = k + CELLS * row_halves<HD>();
    tile_rows<HD> rows(a);
    blocks_find(a, last.lane, 0, end, CELLS, blocks[0]);
    __syncthreads();
    tile_cells<HD, CODES>(a, blocks[0], head, false, 0, end, k);
    rows.query_read(a, lane);
    for (uint32_t i = 0; i < n_parts; i++) {
        const uint32_t first = i * CELLS;
        float part[2];
        uint32_t p[CELLS / 8][2];
        tile_cells<HD, CODES>(a, blocks[i % 2], head, true, first, end, v);
        if (i + 1 < n_parts)
            blocks_find(a, last.lane, first + CELLS, end, CELLS, blocks[(i + 1) % 2]);
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
        if ((i + 1) % CUDA_FLASH_STRETCH == 0 || i + 1 == n_parts)
            rows.stretch_join(a, i + 1 == n_parts, lane);
        __syncthreads();
    }
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

template <int HD> static cudaError_t allow_tiles()
{
    cudaError_t e = allow_shared(flash_tiles<HD, false>, 2 * cells_bytes<HD>());
    return e ? e : allow_shared(flash_tiles<HD, true>, 2 * cells_bytes<HD>());
}

extern "C" cudaError_t cuda_tiles_prepare(void)
{
    cudaError_t e = allow_tiles<64>();
    return e ? e : allow_tiles<128>();
}
