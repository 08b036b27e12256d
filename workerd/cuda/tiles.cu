/* SPDX-License-Identifier: MIT */
/*
 * Attention of a prompt's rows (flash.cuh): a block of eight warps has 128 (token row, query head)
 * of a span of one lane's rows and one K/V head. Two warps have 32 of them: each makes the scores
 * of half of a part's cells, then the sums of half of head_dim's values, so what a warp reads of K
 * and V is multiplied by two tiles of rows; the weights go from one to the other through shared
 * memory.
 *
 * DEEP: the next part's K and V are on their way while one's are multiplied. Codes come as they are
 * and become halves in between: half of the warps do that before they multiply, the others after,
 * so that a scheduler has one of each. Without (a card with less shared memory) K comes while V is
 * multiplied, and V while K is.
 *
 * The sums of the stretches before lie in y until the last one has joined. Where rows are few and
 * cells many (window.c), the stretches are divided among blocks, which leave each one's sums, and
 * tiles_join does the same with them.
 */
#include "workerd/cuda/tiles.cuh"

enum { JOIN_THREADS = 128 };

/* ---- a warp's rows ---- */

/* What a lane has: of two tiles of 16 rows the scores of half of a part's cells, and sums of half
 * of head_dim's values. */
template <int HD> struct tile_rows {
    static const int N = HD / 16;         /* eights of values */
    float most[2][2], sum[2], o[2][N][4]; /* of the stretch; sum: of the first tile alone */
    uint32_t q[2][HD / 16][4];

    __device__ __forceinline__ static int half() { return threadIdx.x / WARP % 2; }
    __device__ __forceinline__ static uint32_t lane() { return threadIdx.x % WARP; }
    /* The first of a tile's rows: either warp of a pair has another one as its first tile. */
    __device__ __forceinline__ static uint32_t tile(int t)
    {
        return threadIdx.x / (2 * WARP) * PAIR_ROWS + (t ^ half()) * 16;
    }
    __device__ __forceinline__ static uint32_t row(int t, int h)
    {
        return tile(t) + lane() / 4 + 8 * h;
    }
    __device__ __forceinline__ static void pair_wait()
    {
        barrier_wait(1 + threadIdx.x / (2 * WARP), 2 * WARP);
    }

    __device__ __forceinline__ void stretch_begin()
    {
#pragma unroll
        for (int t = 0; t < 2; t++) {
            most[t][0] = most[t][1] = -CUDART_INF_F;
            sum[t] = 0;
#pragma unroll
            for (int n = 0; n < N; n++)
                o[t][n][0] = o[t][n][1] = o[t][n][2] = o[t][n][3] = 0;
        }
    }
    /* A's fragments, from the float32 rows. */
    __device__ __forceinline__ void query_read(const cuda_attend &a)
    {
        const uint32_t hd = a.kv.head_dim;
#pragma unroll
        for (int t = 0; t < 2; t++)
#pragma unroll
            for (int h = 0; h < 2; h++) {
                const query_place at(a, row(t, h));
                const float *from = a.q.f + (uint64_t)at.row * a.q.width + at.head * hd;
#pragma unroll
                for (int k = 0; k < HD / 8; k++) {
                    uint32_t d = query_dim(a, k, (int)lane());
                    float2 v = at.there && d < hd ? *(const float2 *)(from + d) : make_float2(0, 0);
                    q[t][k / 2][k % 2 * 2 + h] = halves_of(v.x, v.y);
                }
            }
    }
    __device__ __forceinline__ void scores(const __half *k, float s[2][8][4]) const
    {
        const uint32_t at = cell_at(half() * (CELLS / 2) + lane() % 8, lane() / 8);
#pragma unroll
        for (int n = 0; n < 8; n++)
#pragma unroll
            for (int t = 0; t < 2; t++)
                s[t][n][0] = s[t][n][1] = s[t][n][2] = s[t][n][3] = 0;
#pragma unroll
        for (int i = 0; i < HD / 16; i += 2) {
            const __half *from = k + (at ^ i % 4 * 16) + i / 4 * SLAB_HALVES;
#pragma unroll
            for (int n = 0; n < 8; n++) {
                uint32_t b[4];
                load_matrices(b, from + n * 8 * SLAB);
                mma_f16(s[0][n], q[0][i], b[0], b[1]);
                mma_f16(s[1][n], q[1][i], b[0], b[1]);
                mma_f16(s[0][n], q[0][i + 1], b[2], b[3]);
                mma_f16(s[1][n], q[1][i + 1], b[2], b[3]);
            }
        }
    }
    /* The part's p are made from its scores. pos: of the span's first row. */
    __device__ __forceinline__ void weights(const cuda_attend &a, tile_shared &shared,
                                            const __half *k, __half *p_at, uint32_t first,
                                            uint32_t pos)
    {
        const uint32_t group = a.kv.n_heads / a.kv.n_kv_heads;
        float s[2][8][4];
        scores(k, s);
#pragma unroll
        for (int t = 0; t < 2; t++) {
            float part[2];
            if (first + CELLS > pos + 1) {
                const int own[2] = {(int)(pos + row(t, 0) / group), (int)(pos + row(t, 1) / group)};
                scores_select<8, 2>(own, (int)first + half() * (CELLS / 2), (int)lane(), s[t]);
            }
            scores_most<8, 2>(s[t], part);
            if (lane() % 4 == 0) {
                shared.most[half()][row(t, 0)] = part[0];
                shared.most[half()][row(t, 1)] = part[1];
            }
        }
        pair_wait();
#pragma unroll
        for (int t = 0; t < 2; t++) {
            const float part[2] = {part_most(shared, t, 0), part_most(shared, t, 1)};
            const uint32_t at = half_at<CELLS>(row(t, 0), half() * 8) + lane() % 4 * 2;
#pragma unroll
            for (int n = 0; n < 8; n++) {
                uint32_t p[2];
                weights_make<2>(s[t][n], part, a.scale * LOG2_E, p);
                *(uint32_t *)(p_at + (at ^ n * 8)) = p[0];
                *(uint32_t *)(p_at + (at ^ n * 8) + 8 * CELLS) = p[1];
            }
        }
    }
    __device__ __forceinline__ static float part_most(const tile_shared &s, int t, int h)
    {
        return fmaxf(s.most[0][row(t, h)], s.most[1][row(t, h)]);
    }
    /* V is multiplied by the weights; the part joins its stretch. */
    __device__ __forceinline__ void part_join(const cuda_attend &a, const tile_shared &shared,
                                              const __half *p_at, const __half *v)
    {
        const uint32_t at[2] = {half_at<CELLS>(tile(0) + lane() % 16, lane() / 16),
                                half_at<CELLS>(tile(1) + lane() % 16, lane() / 16)};
        const uint32_t v_at = cell_at(lane() % 16, half() * N + lane() / 16);
        float of[2][N][4] = {}, l[4] = {};
#pragma unroll
        for (int i = 0; i < CELLS / 16; i++) {
            uint32_t p[2][4];
#pragma unroll
            for (int t = 0; t < 2; t++)
                load_matrices(p[t], p_at + (at[t] ^ i * 16));
            mma_f16(l, p[0], ONES, ONES);
#pragma unroll
            for (int n = 0; n < N; n += 2) {
                uint32_t b[4];
                load_transposed(b, v + (v_at ^ n * 8) + i * 16 * SLAB);
                mma_f16(of[0][n], p[0], b[0], b[1]);
                mma_f16(of[1][n], p[1], b[0], b[1]);
                mma_f16(of[0][n + 1], p[0], b[2], b[3]);
                mma_f16(of[1][n + 1], p[1], b[2], b[3]);
            }
        }
#pragma unroll
        for (int t = 0; t < 2; t++)
#pragma unroll
            for (int h = 0; h < 2; h++) {
                const float part = part_most(shared, t, h);
                if (part == -CUDART_INF_F) continue;
                const joint j(most[t][h], part, a.scale * LOG2_E);
                if (t == 0) sum[h] = fmaf(sum[h], j.old, l[2 * h] * j.fresh);
                values_join<N>(o[t], of[t], h, j);
            }
    }
    /* The first of the values that a lane has, eight more for each further n; the next is beside
     * it. */
    __device__ __forceinline__ static uint32_t first_value()
    {
        return half() * N * 8 + lane() % 4 * 2;
    }
    /* The stretch joins those before it, in y; by the last one's sum it is divided. A row that has
     * no cell in the stretch stays as it is. */
    __device__ __forceinline__ void stretch_join(const cuda_attend &a, tile_shared &s, bool is_last)
    {
        float old[2][2], fresh[2][2], before[2][2], sum_before[2];
        bool first[2][2];
#pragma unroll
        for (int t = 0; t < 2; t++)
#pragma unroll
            for (int h = 0; h < 2; h++) {
                before[t][h] = s.most_before[row(t, h)];
                if (t == 0) sum_before[h] = s.sum_before[row(0, h)];
                first[t][h] = before[t][h] == -CUDART_INF_F;
                old[t][h] = 1, fresh[t][h] = -0.0f; /* x 1 + 0 -0 is x, also if that is -0 */
                if (most[t][h] == -CUDART_INF_F) continue;
                const joint j(before[t][h], most[t][h], a.scale * LOG2_E);
                old[t][h] = j.old, fresh[t][h] = j.fresh;
                if (t == 0) sum_before[h] = fmaf(sum_before[h], j.old, sum[h] * j.fresh);
            }
        pair_wait();
#pragma unroll
        for (int h = 0; h < 2; h++) {
            if (lane() % 4) continue;
            s.most_before[row(0, h)] = before[0][h];
            s.sum_before[row(0, h)] = sum_before[h];
        }
        if (is_last) pair_wait();
#pragma unroll
        for (int t = 0; t < 2; t++) {
            row_values<N> v[2] = {
                {a, query_place(a, row(t, 0)).values(a), first_value()},
                {a, query_place(a, row(t, 1)).values(a), first_value()},
            };
            v[0].read(first[t][0]);
            v[1].read(first[t][1]);
#pragma unroll
            for (int h = 0; h < 2; h++) {
                const bool stays = most[t][h] == -CUDART_INF_F && !is_last;
                if (query_place(a, row(t, h)).there && !stays)
                    v[h].join(o[t], h, old[t][h], fresh[t][h], is_last, s.sum_before[row(t, h)]);
            }
        }
    }
    /* What tiles_join joins. */
    __device__ __forceinline__ void stretch_leave(const cuda_attend &a, uint32_t stretch) const
    {
#pragma unroll
        for (int t = 0; t < 2; t++)
#pragma unroll
            for (int h = 0; h < 2; h++) {
                const uint64_t at = tile_entry(a, row(t, h), stretch);
                if (t == 0 && lane() % 4 == 0)
                    *(float2 *)(a.ml + at * 2) = make_float2(most[t][h], sum[h]);
                row_values<N>(a, a.o + at * a.kv.head_dim, first_value()).leave(o[t], h);
            }
    }
};

/* ---- the kernels ---- */

template <int HD, bool CODES, bool DEEP> struct tile_loop;

template <int HD, bool CODES> struct tile_loop<HD, CODES, true> {
    typedef tile_memory<HD, CODES, true> memory;

    __device__ __forceinline__ static void codes_next(const cuda_attend &a, const tile_shared &s,
                                                      const tile_parts &parts, uint32_t i)
    {
        codes_go_on<HD, false>(a, s, parts, i);
        codes_go_on<HD, true>(a, s, parts, i);
    }
    __device__ __forceinline__ static void begin(const cuda_attend &a, tile_shared &s,
                                                 const tile_parts &parts)
    {
        cells_ask_for<HD, CODES>(a, s, parts, parts.begin);
        if (CODES) codes_next(a, s, parts, parts.begin);
    }
    __device__ __forceinline__ static void part(const cuda_attend &a, tile_shared &s,
                                                const tile_parts &parts, uint32_t i,
                                                tile_rows<HD> &rows)
    {
        const bool early = threadIdx.x < TILE_THREADS / 2;
        if (!CODES) copies_wait<0>();
        __syncthreads();
        if (!CODES) cells_ask_for<HD, false>(a, s, parts, i + 1);
        parts.find(a, s, i);
#pragma unroll 1
        for (int turn = 0; turn < (CODES ? 2 : 1); turn++) {
            if (CODES && (turn == 0) == early) {
                codes_next(a, s, parts, i + 1);
                continue;
            }
            rows.weights(a, s, memory::cells(false, i), memory::weights(), i * CELLS, parts.pos);
            rows.pair_wait();
            rows.part_join(a, s, memory::weights(), memory::cells(true, i));
        }
    }
};

template <int HD, bool CODES> struct tile_loop<HD, CODES, false> {
    typedef tile_memory<HD, CODES, false> memory;

    /* Codes come at once, halves later. */
    __device__ __forceinline__ static void get(const cuda_attend &a, const tile_shared &s,
                                               const tile_parts &parts, uint32_t i, bool is_v)
    {
        if (i >= parts.n) return;
        const tile_part part(s, i, parts.end);
        if (!CODES)
            halves_ask<HD>(a, part, is_v, memory::cells(is_v, i));
        else if (is_v)
            tile_codes<HD, false, true>(a, part).put(memory::cells(true, i));
        else
            tile_codes<HD, false, false>(a, part).put(memory::cells(false, i));
        copies_commit();
    }
    __device__ __forceinline__ static void begin(const cuda_attend &a, tile_shared &s,
                                                 const tile_parts &parts)
    {
        get(a, s, parts, parts.begin, false);
    }
    __device__ __forceinline__ static void part(const cuda_attend &a, tile_shared &s,
                                                const tile_parts &parts, uint32_t i,
                                                tile_rows<HD> &rows)
    {
        const bool early = !CODES || threadIdx.x < TILE_THREADS / 2;
        copies_wait<0>();
        __syncthreads();
        if (early) get(a, s, parts, i, true);
        parts.find(a, s, i);
        rows.weights(a, s, memory::cells(false, i), memory::weights(), i * CELLS, parts.pos);
        if (!early) get(a, s, parts, i, true);
        copies_wait<0>();
        __syncthreads();
        if (early) get(a, s, parts, i + 1, false);
        rows.part_join(a, s, memory::weights(), memory::cells(true, i));
        if (!early) get(a, s, parts, i + 1, false);
    }
};

template <int HD, bool CODES, bool DEEP>
__global__ void __launch_bounds__(TILE_THREADS, 1) flash_tiles(const cuda_attend a)
{
    typedef tile_loop<HD, CODES, DEEP> loop;
    __shared__ tile_shared s;
    dependency_release();
    dependency_wait();
    const tile_parts parts(a);
    if (parts.begin >= parts.n) return;
    parts.start(a, s);
    loop::begin(a, s, parts);
    tile_rows<HD> rows;
    rows.stretch_begin();
    rows.query_read(a);
    for (uint32_t i = parts.begin; i < parts.n; i++) {
        const bool is_last = i + 1 == parts.n;
        loop::part(a, s, parts, i, rows);
        stretch_end(a, s, i, is_last, rows);
    }
}

/* A warp joins the stretches of a (token row, query head) as stretch_join does; a lane has four
 * values. */
__global__ void __launch_bounds__(JOIN_THREADS) tiles_join(const cuda_attend a)
{
    dependency_release();
    dependency_wait();
    const uint32_t i = blockIdx.z * (JOIN_THREADS / WARP) + threadIdx.x / WARP, hd = a.kv.head_dim;
    const uint32_t d = threadIdx.x % WARP * 4;
    const query_place at(a, i);
    if (!at.there || d >= hd) return;
    const uint32_t n = a.kv.rows[at.row].pos / STRETCH_CELLS + 1;
    const float2 *ml = (const float2 *)a.ml + tile_entry(a, i, 0);
    const float *from = a.o + tile_entry(a, i, 0) * hd + d;
    float most = -CUDART_INF_F, sum = 0;
    float4 o = make_float4(0, 0, 0, 0);
#pragma unroll 8
    for (uint32_t e = 0; e < n; e++) {
        const float4 v = *(const float4 *)(from + (uint64_t)e * hd);
        const float2 part = ml[e];
        const joint j(most, part.x, a.scale * LOG2_E);
        sum = fmaf(sum, j.old, part.y * j.fresh);
        o = make_float4(fmaf(o.x, j.old, v.x * j.fresh), fmaf(o.y, j.old, v.y * j.fresh),
                        fmaf(o.z, j.old, v.z * j.fresh), fmaf(o.w, j.old, v.w * j.fresh));
    }
    *(float4 *)(a.y.f + (uint64_t)at.row * a.y.width + at.head * hd + d) = make_float4(
        __fdiv_rn(o.x, sum), __fdiv_rn(o.y, sum), __fdiv_rn(o.z, sum), __fdiv_rn(o.w, sum));
}

/* ---- launching ---- */

template <int HD, bool CODES>
static cudaError_t launch_tiles(cudaStream_t s, const cuda_attend *a, dim3 grid)
{
    if (a->tiles == CUDA_TILES_DEEP)
        return launch(s, a->dependent, flash_tiles<HD, CODES, true>, grid, TILE_THREADS,
                      tile_memory<HD, CODES, true>::bytes, *a);
    return launch(s, a->dependent, flash_tiles<HD, CODES, false>, grid, TILE_THREADS,
                  tile_memory<HD, CODES, false>::bytes, *a);
}

template <int HD> static cudaError_t launch_dim(cudaStream_t s, const cuda_attend *a, dim3 grid)
{
    return a->kv.k_bits < 16 ? launch_tiles<HD, true>(s, a, grid)
                             : launch_tiles<HD, false>(s, a, grid);
}

extern "C" cudaError_t cuda_launch_flash_tiles(cudaStream_t s, const struct cuda_attend *a)
{
    const uint32_t n = a->each ? (a->stretches + a->each - 1) / a->each : 1;
    const dim3 grid(a->kv.n_kv_heads, a->n_rows, n),
        join(a->kv.n_kv_heads, a->n_rows, TILE_ROWS / (JOIN_THREADS / WARP));
    cudaError_t e = a->tiles == CUDA_TILES_GROUPS ? launch_tile_groups(s, a, grid)
                    : a->kv.head_dim <= 64        ? launch_dim<64>(s, a, grid)
                                                  : launch_dim<128>(s, a, grid);
    if (e || !a->each) return e;
    return launch(s, a->dependent, tiles_join, join, JOIN_THREADS, 0, *a);
}

template <int HD, bool DEEP> static cudaError_t allow_tiles()
{
    cudaError_t e = allow_shared(flash_tiles<HD, false, DEEP>, tile_memory<HD, false, DEEP>::bytes);
    return e ? e : allow_shared(flash_tiles<HD, true, DEEP>, tile_memory<HD, true, DEEP>::bytes);
}

extern "C" cudaError_t cuda_tiles_prepare(enum cuda_tiles *best)
{
    bool groups;
    cudaError_t e = allow_tiles<64, false>();
    if (!e) e = allow_tiles<128, false>();
    if (!e) e = tile_groups_prepare(&groups);
    if (e) return e;
    const bool deep =
        allow_tiles<64, true>() == cudaSuccess && allow_tiles<128, true>() == cudaSuccess;
    if (!deep) (void)cudaGetLastError(); /* more than the card has */
    *best = groups ? CUDA_TILES_GROUPS : deep ? CUDA_TILES_DEEP : CUDA_TILES_NEAR;
    return cudaSuccess;
}
