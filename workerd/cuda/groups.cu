/* SPDX-License-Identifier: MIT */
/*
 * Attention of a prompt's rows (flash.cuh) on Hopper cards: what tiles.cu does, with the same bits,
 * by wgmma. Each of two warpgroups has 64 of a block's 128 (token row, query head); q, K and V are
 * read from shared memory by the tensor cores themselves, scores become weights in the registers
 * that they are multiplied from, and a warp has all cells of a part and all values of its 16 rows.
 *
 * The next part's K and V are on their way while one's are multiplied. One warpgroup asks for them,
 * or makes halves of codes, before it multiplies, and the other while it does, so that one makes
 * weights while the other multiplies.
 */
#include "workerd/cuda/tiles.cuh"
#include "workerd/cuda/warpgroup.cuh"

enum {
    GROUP_THREADS = 128, /* of a warpgroup */
    GROUP_ROWS = 64,
    AT_ONCE = 2, /* sixteens of cells whose weights are made before V is multiplied by them */
};

/* Shared memory: tile_memory's, with q where weights are, [row] as cells; then tile_shared. */
template <int HD, bool CODES> struct group_memory {
    typedef tile_memory<HD, CODES, true> tile;
    static const int SHARED = tile::bytes, bytes = SHARED + sizeof(tile_shared);
    static_assert(TILE_ROWS * HD * 2 <= tile::WEIGHTS && (int)TILE_ROWS == CELLS &&
                      SHARED % 16 == 0,
                  "");

    __device__ __forceinline__ static tile_shared &shared()
    {
        return *(tile_shared *)(shared_memory() + SHARED);
    }
    __device__ __forceinline__ static __half *query() { return tile::weights(); }
};

/* What a lane has: of two rows all of a part's scores, then the sums. */
template <int HD> struct group_rows {
    static const int N = HD / 8; /* eights of values */
    float most[2], sum[2], o[N][4];

    __device__ __forceinline__ static uint32_t lane() { return threadIdx.x % WARP; }
    __device__ __forceinline__ static uint32_t group() { return threadIdx.x / GROUP_THREADS; }
    __device__ __forceinline__ static uint32_t row(int h)
    {
        return threadIdx.x / WARP * 16 + lane() / 4 + 8 * h;
    }
    __device__ __forceinline__ static uint32_t first_value() { return lane() % 4 * 2; }

    __device__ __forceinline__ void stretch_begin()
    {
        most[0] = most[1] = -CUDART_INF_F;
        sum[0] = sum[1] = 0;
#pragma unroll
        for (int n = 0; n < N; n++)
            o[n][0] = o[n][1] = o[n][2] = o[n][3] = 0;
    }
    /* The float32 rows as halves, in the order in which K's dimensions are multiplied. */
    __device__ __forceinline__ static void query_put(const cuda_attend &a, __half *to)
    {
        const uint32_t hd = a.kv.head_dim;
#pragma unroll
        for (int h = 0; h < 2; h++) {
            const query_place at(a, row(h));
            const float *from = a.q.f + (uint64_t)at.row * a.q.width + at.head * hd;
#pragma unroll
            for (int k = 0; k < HD / 8; k++) {
                const uint32_t d = query_dim(a, k, (int)lane());
                float2 v = at.there && d < hd ? *(const float2 *)(from + d) : make_float2(0, 0);
                *(uint32_t *)(to + cell_at(row(h), k) + lane() % 4 * 2) = halves_of(v.x, v.y);
            }
        }
    }
    __device__ __forceinline__ static void scores(const __half *q, const __half *k, float s[16][4])
    {
        const uint64_t of_q = matrix_at(q + group() * GROUP_ROWS * SLAB, 0);
        const uint64_t of_k = matrix_at(k, 0);
        group_begin();
#pragma unroll
        for (int i = 0; i < HD / 16; i++) {
            const uint32_t at = (i / 4 * SLAB_HALVES + i % 4 * 16) * 2 / 16;
            if (i == 0)
                group_product<true>(s, of_q + at, of_k + at);
            else
                group_product<false>(s, of_q + at, of_k + at);
        }
        group_commit();
    }
    /* The largest of a part's scores. pos: of the span's first row. */
    __device__ __forceinline__ static void scores_look(const cuda_attend &a, uint32_t first,
                                                       uint32_t pos, float s[16][4], float part[2])
    {
        const uint32_t group = a.kv.n_heads / a.kv.n_kv_heads;
        if (first + CELLS > pos + 1) {
            const int own[2] = {(int)(pos + row(0) / group), (int)(pos + row(1) / group)};
            scores_select<16, 2>(own, (int)first, (int)lane(), s);
        }
        scores_most<16, 2>(s, part);
    }
    /* Scores become weights p, A's fragments, whose sum is l; V begins to be multiplied by what
     * there is of them. */
    __device__ __forceinline__ static void values(const cuda_attend &a, const __half *v,
                                                  const float s[16][4], const float part[2],
                                                  uint32_t p[8][4], float l[4], float of[N][4])
    {
        const uint64_t of_v = matrix_at(v, SLAB_HALVES * 2);
        l[0] = l[1] = l[2] = l[3] = 0;
#pragma unroll
        for (int first = 0; first < 8; first += AT_ONCE) {
#pragma unroll
            for (int i = first; i < first + AT_ONCE; i++) {
                weights_make<2>(s[2 * i], part, a.scale * LOG2_E, p[i]);
                weights_make<2>(s[2 * i + 1], part, a.scale * LOG2_E, p[i] + 2);
                mma_f16(l, p[i], ONES, ONES);
            }
            group_begin();
#pragma unroll
            for (int i = first; i < first + AT_ONCE; i++) {
                const uint32_t at = i * 16 * SLAB * 2 / 16;
                if (i == 0)
                    group_product_across<N, true>(of, p[i], of_v + at);
                else
                    group_product_across<N, false>(of, p[i], of_v + at);
            }
            group_commit();
        }
    }
    /* The part joins its stretch. */
    __device__ __forceinline__ void part_join(const cuda_attend &a, const float of[N][4],
                                              const float part[2], const float l[4])
    {
#pragma unroll
        for (int h = 0; h < 2; h++) {
            if (part[h] == -CUDART_INF_F) continue;
            const joint j(most[h], part[h], a.scale * LOG2_E);
            sum[h] = fmaf(sum[h], j.old, l[2 * h] * j.fresh);
            values_join<N>(o, of, h, j);
        }
    }
    /* The stretch joins those before it, in y; by the last one's sum it is divided. A row that has
     * no cell in the stretch stays as it is. */
    __device__ __forceinline__ void stretch_join(const cuda_attend &a, tile_shared &shared,
                                                 bool is_last)
    {
#pragma unroll
        for (int h = 0; h < 2; h++) {
            const query_place at(a, row(h));
            float before = shared.most_before[row(h)], by = shared.sum_before[row(h)];
            const bool has = most[h] != -CUDART_INF_F;
            float old = 1, fresh = -0.0f; /* x 1 + 0 -0 is x, also if that is -0 */
            row_values<N> v(a, at.values(a), first_value());
            v.read(before == -CUDART_INF_F);
            if (has) {
                const joint j(before, most[h], a.scale * LOG2_E);
                old = j.old, fresh = j.fresh;
                by = fmaf(by, old, sum[h] * fresh);
            }
            __syncwarp();
            if (lane() % 4 == 0) {
                shared.most_before[row(h)] = before;
                shared.sum_before[row(h)] = by;
            }
            if (at.there && (has || is_last)) v.join(o, h, old, fresh, is_last, by);
        }
        __syncwarp();
    }
    /* What tiles_join joins. */
    __device__ __forceinline__ void stretch_leave(const cuda_attend &a, uint32_t stretch) const
    {
#pragma unroll
        for (int h = 0; h < 2; h++) {
            const uint64_t at = tile_entry(a, row(h), stretch);
            if (lane() % 4 == 0) *(float2 *)(a.ml + at * 2) = make_float2(most[h], sum[h]);
            row_values<N>(a, a.o + at * a.kv.head_dim, first_value()).leave(o, h);
        }
    }
};

/* One part: its cells are there, the next one's come meanwhile. */
template <int HD, bool CODES, bool PLAIN>
__device__ __forceinline__ void group_part(const cuda_attend &a, tile_shared &s,
                                           const tile_parts &parts, uint32_t i,
                                           group_rows<HD> &rows)
{
    typedef tile_memory<HD, CODES, true> memory;
    const bool early = rows.group() == 0;
    float score[16][4], of[HD / 8][4], part[2], l[4];
    uint32_t p[8][4];
    if (!CODES) copies_wait<0>();
    group_publish();
    __syncthreads();
    if (CODES && early) codes_go_on<HD, false, PLAIN>(a, s, parts, i + 1);
    if (!CODES && !early) cells_ask_for<HD, false>(a, s, parts, i + 1);
    rows.scores(group_memory<HD, CODES>::query(), memory::cells(false, i), score);
    if (!CODES && early) cells_ask_for<HD, false>(a, s, parts, i + 1);
    parts.find(a, s, i);
    group_wait<16>(score);
    rows.scores_look(a, i * CELLS, parts.pos, score, part);
    rows.values(a, memory::cells(true, i), score, part, p, l, of);
    if (CODES) {
        if (!early) codes_go_on<HD, false, PLAIN>(a, s, parts, i + 1);
        codes_go_on<HD, true, PLAIN>(a, s, parts, i + 1);
    }
    group_wait<HD / 8>(of);
    rows.part_join(a, of, part, l);
}

/* PLAIN: struct tile_codes. */
template <int HD, bool CODES, bool PLAIN>
__global__ void __launch_bounds__(TILE_THREADS, 1) flash_groups(const cuda_attend a)
{
#ifdef WARPGROUPS
    typedef group_memory<HD, CODES> memory;
    tile_shared &s = memory::shared();
    dependency_release();
    dependency_wait();
    const tile_parts parts(a);
    if (parts.begin >= parts.n) return;
    if (shared_address(shared_memory()) % SWIZZLE_BYTES) __trap();
    parts.start(a, s);
    group_rows<HD> rows;
    cells_ask_for<HD, CODES>(a, s, parts, parts.begin);
    rows.query_put(a, memory::query());
    if (CODES) {
        codes_go_on<HD, false>(a, s, parts, parts.begin);
        codes_go_on<HD, true>(a, s, parts, parts.begin);
    }
    rows.stretch_begin();
    for (uint32_t i = parts.begin; i < parts.n; i++) {
        const bool is_last = i + 1 == parts.n;
        group_part<HD, CODES, PLAIN>(a, s, parts, i, rows);
        stretch_end(a, s, i, is_last, rows);
    }
#endif
}

/* ---- launching ---- */

template <int HD, bool CODES, bool PLAIN>
static cudaError_t launch_groups(cudaStream_t s, const cuda_attend *a, dim3 grid)
{
    return launch(s, a->dependent, flash_groups<HD, CODES, PLAIN>, grid, TILE_THREADS,
                  group_memory<HD, CODES>::bytes, *a);
}

template <int HD> static cudaError_t launch_dim(cudaStream_t s, const cuda_attend *a, dim3 grid)
{
    if (a->kv.k_bits == 16) return launch_groups<HD, false, false>(s, a, grid);
    if (a->kv.k_bits == 8 && a->kv.v_bits == 8 && a->kv.head_dim == HD)
        return launch_groups<HD, true, true>(s, a, grid);
    return launch_groups<HD, true, false>(s, a, grid);
}

cudaError_t launch_tile_groups(cudaStream_t s, const cuda_attend *a, dim3 grid)
{
    return a->kv.head_dim <= 64 ? launch_dim<64>(s, a, grid) : launch_dim<128>(s, a, grid);
}

template <int HD> static cudaError_t allow_groups()
{
    cudaError_t e = allow_shared(flash_groups<HD, false, false>, group_memory<HD, false>::bytes);
    if (!e) e = allow_shared(flash_groups<HD, true, false>, group_memory<HD, true>::bytes);
    return e ? e : allow_shared(flash_groups<HD, true, true>, group_memory<HD, true>::bytes);
}

cudaError_t tile_groups_prepare(bool *there)
{
    cudaFuncAttributes of;
    cudaError_t e = cudaFuncGetAttributes(&of, flash_groups<64, false, false>);
    if (e) return e;
    *there = of.ptxVersion == 90 && allow_groups<64>() == cudaSuccess &&
             allow_groups<128>() == cudaSuccess;
    if (!*there) (void)cudaGetLastError();
    return cudaSuccess;
}
