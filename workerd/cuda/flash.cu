/* SPDX-License-Identifier: MIT */
/*
 * Attention of single token rows (flash.cuh). A block of four warps has one K/V head of a row, 16
 * query heads at most, and one part or the parts of a stretch: a warp makes the scores of 32 cells,
 * then a quarter of head_dim; K of the next part is on its way while V is multiplied, and V while K
 * is. `join.cu` joins what they made. Codes of 8 bits come into shared memory as they are and
 * become halves on their way to the tensor cores, each once: more of them are under way, and
 * nothing is written twice.
 *
 * alone: of lanes with one row all cells but the row's own were there when the window began, and
 * are asked for before the kernel waits for its predecessor. keep: of such lanes the new cell's K
 * and V need not lie in the pool before: the block that has the row's last part rounds them, for
 * itself and into the pool.
 */
#include "workerd/cuda/flash.cuh"
#include "workerd/cuda/keep.cuh"

enum {
    FEW_THREADS = 128,
    FEW_HEADS = 16,
};

struct few_shared {
    const uint8_t *blocks[STRETCH * CELLS / UNIT];
    float most[4][FEW_HEADS];
};
/* Of a row of p: eight of them lie in different banks. */
enum { P_HALVES = CELLS + 8, P_BYTES = FEW_HEADS * P_HALVES * 2 };

/* A's fragments of a row's heads. Of 16 there are 8 H. */
template <int HD, int H>
__device__ __forceinline__ void few_query(const cuda_attend &a, uint32_t row, uint32_t h0,
                                          uint32_t n_heads, int lane, uint32_t q[HD / 16][4])
{
    const uint32_t hd = a.kv.head_dim;
#pragma unroll
    for (int h = 0; h < 2; h++) {
        if (h >= H) {
#pragma unroll
            for (int k = 0; k < HD / 8; k++)
                q[k / 2][k % 2 * 2 + h] = 0;
            continue;
        }
        const uint32_t head = lane / 4 + 8 * h;
        const float *from = a.q.f + (uint64_t)row * a.q.width + (h0 + head) * hd;
#pragma unroll
        for (int k = 0; k < HD / 8; k++) {
            uint32_t d = query_dim(a, k, lane);
            float2 v = make_float2(0, 0);
            if (head < n_heads && d < hd) v = *(const float2 *)(from + d);
            q[k / 2][k % 2 * 2 + h] = halves_of(v.x, v.y);
        }
    }
}

/* K or V of a part as halves, made of codes on their way into shared memory (CODES) or kept as
 * such. */
template <int HD, bool CODES> struct half_cells {
    static const int dim = HD, N = HD / 32, bytes = cells_bytes<HD>();
    static const int blocks = HD > 128 ? 1 : HD > 64 ? 3 : 6; /* of threads a multiprocessor */

    __device__ __forceinline__ static void ask(const cuda_attend &a, const uint8_t *const *blocks,
                                               uint32_t head, bool is_v, uint32_t first,
                                               uint32_t end, uint8_t *to)
    {
        if (CODES) {
            cells_codes<HD, FEW_THREADS> c;
            c.ask(a, blocks, head, is_v, first, end);
            c.put(a, is_v, (__half *)to);
        } else {
            cells_ask<HD, FEW_THREADS>(a, blocks, head, is_v ? a.kv.v_off : 0, first, end,
                                       (__half *)to);
        }
    }
    __device__ __forceinline__ static void keep(const kept_quad &, uint8_t *, uint32_t) {}
    __device__ __forceinline__ static void scores(const uint32_t q[HD / 16][4], const uint8_t *k,
                                                  int warp, int lane, float s[4][4])
    {
        scores_make<HD, 4>(q, (const __half *)k + warp * 32 * HD, lane, s);
    }
    __device__ __forceinline__ static void values(const uint32_t p[4], const uint8_t *v, int step,
                                                  int warp, int lane, float o[N][4])
    {
        values_add<HD, N>(p, (const __half *)v, step, warp * (HD / 4), lane, o);
    }
    /* to: of the head that is a lane's first (h 0) or second row. */
    __device__ __forceinline__ static void store(float *to, uint32_t hd, int h, int warp, int lane,
                                                 const float o[N][4])
    {
#pragma unroll
        for (int n = 0; n < N; n++) {
            uint32_t d = warp * (HD / 4) + n * 8 + lane % 4 * 2;
            if (d < hd) *(float2 *)(to + d) = make_float2(o[n][2 * h], o[n][2 * h + 1]);
        }
    }
};

/* K or V of a part as codes of 8 bits, [cell][HD], and scales, [group][cell]. The scales of cells
 * that are not there are zeros, their codes whatever there is. A cell's sixteens lie in another
 * order, as half_at's do. */
template <int HD> struct byte_cells {
    static const int dim = HD, N = HD / 32, GROUPS = (HD + GROUP - 1) / GROUP;
    static const int LINE = HD < 128 ? 128 / HD : 1; /* cells of 128 bytes */
    static const int scales_at = CELLS * HD, bytes = scales_at + GROUPS * CELLS * 2;
    static const int blocks = HD > 128 ? 2 : 5;

    __device__ __forceinline__ static const __half *scales(const uint8_t *cells)
    {
        return (const __half *)(cells + scales_at);
    }
    /* Where a cell's sixteen is. */
    __device__ __forceinline__ static uint32_t place(uint32_t cell, uint32_t sixteen)
    {
        return cell * HD + (sixteen ^ cell / LINE % (8 / LINE)) * 16;
    }
    __device__ __forceinline__ static void ask(const cuda_attend &a, const uint8_t *const *blocks,
                                               uint32_t head, bool is_v, uint32_t first,
                                               uint32_t end, uint8_t *to)
    {
        const uint32_t hd = a.kv.head_dim, shift = a.kv.block_shift, mask = (1u << shift) - 1;
        const uint64_t off = is_v ? a.kv.v_off : 0;
#pragma unroll
        for (int i = 0; i < CELLS * (HD / 16) / FEW_THREADS; i++) {
            const uint32_t p = i * FEW_THREADS + threadIdx.x, c = p / (HD / 16);
            const uint32_t d = p % (HD / 16) * 16, cell = (head << shift) + ((first + c) & mask);
            if (first + c < end && d < hd)
                copy16(to + place(c, d / 16), blocks[c / UNIT] + off + (uint64_t)(cell * hd + d));
        }
        if (threadIdx.x >= GROUPS * CELLS / 8) return;
        const uint32_t g = threadIdx.x / (CELLS / 8), c = threadIdx.x % (CELLS / 8) * 8;
        const uint32_t n = g < a.kv.n_groups && first + c < end ? min(end - first - c, 8u) : 0;
        const uint32_t at = ((head * a.kv.n_groups + g) << shift) + ((first + c) & mask);
        const uint8_t *block = blocks[n ? c / UNIT : 0];
        copy16_first(to + scales_at + (g * CELLS + c) * 2,
                     block + (is_v ? a.kv.v_scale_off : a.kv.k_scale_off) + (n ? at * 2 : 0),
                     n * 2);
    }
    __device__ __forceinline__ static void keep(const kept_quad &k, uint8_t *to, uint32_t cell)
    {
        if (!k.there) return;
        *(char4 *)(to + place(cell, k.d / 16) + k.d % 16) = k.bytes();
        if (k.d % GROUP == 0) *(__half *)(to + scales_at + (k.group * CELLS + cell) * 2) = k.scale;
    }
    __device__ __forceinline__ static void scores(const uint32_t q[HD / 16][4], const uint8_t *k,
                                                  int warp, int lane, float s[4][4])
    {
        const __half *by = scales(k) + warp * 32 + lane / 4;
#pragma unroll
        for (int n = 0; n < 4; n++) {
            s[n][0] = s[n][1] = s[n][2] = s[n][3] = 0;
#pragma unroll
            for (int g = 0; g < GROUPS; g++) {
                uint32_t w[4];
                load_matrices(w,
                              k + place(warp * 32 + n * 8 + lane % 8, g * (GROUP / 16) + lane / 8));
                const __half2 scale = __half2half2(by[g * CELLS + n * 8]);
#pragma unroll
                for (int i = 0; i < GROUP / 16; i++) {
                    const uint32_t v = w[i] ^ 0x80808080;
                    mma_f16(s[n], q[g * (GROUP / 16) + i], codes_halves(v, 0x4140, scale),
                            codes_halves(v, 0x4342, scale));
                }
            }
        }
    }
    /* A matrix' columns are pairs of values, so one of its registers has those of two cells. */
    __device__ __forceinline__ static void values(const uint32_t p[4], const uint8_t *v, int step,
                                                  int warp, int lane, float o[N][4])
    {
        const int first = warp * (HD / 4), U = HD / 64; /* of 16 values */
        const __half *by = scales(v) + first / GROUP * CELLS + step * 16 + lane % 4 * 2;
        const __half2 scale[2] = {*(const __half2 *)by, *(const __half2 *)(by + 8)};
#pragma unroll
        for (int u = 0; u < U; u += 2) {
            uint32_t w[4];
            load_transposed(
                w, v + place(step * 16 + lane % 16, first / 16 + (U > 1 ? u + lane / 16 : 0)));
#pragma unroll
            for (int m = 0; m < (U > 1 ? 2 : 1); m++) {
                const uint32_t x = w[2 * m] ^ 0x80808080, y = w[2 * m + 1] ^ 0x80808080;
                mma_f16(o[2 * (u + m)], p, codes_halves(x, 0x4240, scale[0]),
                        codes_halves(y, 0x4240, scale[1]));
                mma_f16(o[2 * (u + m) + 1], p, codes_halves(x, 0x4341, scale[0]),
                        codes_halves(y, 0x4341, scale[1]));
            }
        }
    }
    __device__ __forceinline__ static void store(float *to, uint32_t hd, int h, int warp, int lane,
                                                 const float o[N][4])
    {
#pragma unroll
        for (int u = 0; u < N / 2; u++) {
            uint32_t d = warp * (HD / 4) + u * 16 + lane % 4 * 4;
            if (d < hd)
                *(float4 *)(to + d) = make_float4(o[2 * u][2 * h], o[2 * u + 1][2 * h],
                                                  o[2 * u][2 * h + 1], o[2 * u + 1][2 * h + 1]);
        }
    }
};

/* The largest score of each row, over the four warps. */
template <int H>
__device__ __forceinline__ void few_most(few_shared *s, int warp, int lane, float most[2])
{
#pragma unroll
    for (int h = 0; h < H; h++)
        if (lane % 4 == 0) s->most[warp][lane / 4 + 8 * h] = most[h];
    __syncthreads();
#pragma unroll
    for (int h = 0; h < H; h++) {
        int row = lane / 4 + 8 * h;
        most[h] =
            fmaxf(fmaxf(s->most[0][row], s->most[1][row]), fmaxf(s->most[2][row], s->most[3][row]));
    }
}

/* All warps are done with K when this ends. */
template <class KV, int H>
__device__ __forceinline__ void few_scores(const cuda_attend &a, few_shared *s,
                                           const uint32_t q[KV::dim / 16][4], const uint8_t *k,
                                           __half *p_at, int pos, int first, float most[2])
{
    const int warp = threadIdx.x / WARP, lane = threadIdx.x % WARP;
    const int own[2] = {pos, pos};
    float score[4][4];
    KV::scores(q, k, warp, lane, score);
    if (first + CELLS - 1 > pos) scores_select<4, H>(own, first + warp * 32, lane, score);
    scores_most<4, H>(score, most);
    few_most<H>(s, warp, lane, most);
#pragma unroll
    for (int n = 0; n < 4; n++) {
        uint32_t p[2];
        weights_make<H>(score[n], most, a.scale * LOG2_E, p);
#pragma unroll
        for (int h = 0; h < H; h++)
            *(uint32_t *)&p_at[(lane / 4 + 8 * h) * P_HALVES + warp * 32 + n * 8 + lane % 4 * 2] =
                p[h];
    }
}

/* What a warp has of the heads: a quarter of their values. */
template <class KV, int H> struct few_sums {
    float most[H], sum[H], o[KV::N][4];

    __device__ __forceinline__ few_sums() : o{}
    {
#pragma unroll
        for (int h = 0; h < H; h++)
            most[h] = -CUDART_INF_F, sum[h] = 0;
    }
    __device__ __forceinline__ void part_join(const cuda_attend &a, const __half *p_at,
                                              const uint8_t *v, const float part[2])
    {
        const int warp = threadIdx.x / WARP, lane = threadIdx.x % WARP;
        float of[KV::N][4] = {}, l[4] = {};
#pragma unroll
        for (int i = 0; i < CELLS / 16; i++) {
            uint32_t p[4];
            load_matrices(p, p_at + lane % 16 * P_HALVES + i * 16 + lane / 16 * 8);
            KV::values(p, v, i, warp, lane, of);
            mma_f16(l, p, ONES, ONES);
        }
#pragma unroll
        for (int h = 0; h < H; h++) {
            const joint j(most[h], part[h], a.scale * LOG2_E);
            sum[h] = fmaf(sum[h], j.old, l[2 * h] * j.fresh);
            values_join<KV::N>(o, of, h, j);
        }
    }
    /* at: of the block's parts, the first head: index of ml; heads are `stride` apart. */
    __device__ __forceinline__ void write(const cuda_attend &a, uint64_t at, uint32_t stride,
                                          uint32_t n_heads) const
    {
        const int warp = threadIdx.x / WARP, lane = threadIdx.x % WARP;
#pragma unroll
        for (int h = 0; h < H; h++) {
            const uint32_t head = lane / 4 + 8 * h;
            if (head >= n_heads) continue;
            const uint64_t to = at + (uint64_t)head * stride;
            if (warp == 0 && lane % 4 == 0)
                *(float2 *)(a.ml + to * 2) = make_float2(most[h], sum[h]);
            KV::store(a.o + to * a.kv.head_dim, a.kv.head_dim, h, warp, lane, o);
        }
    }
};

template <class KV, int H>
__global__ void __launch_bounds__(FEW_THREADS, KV::blocks) flash(const cuda_attend a)
{
    __shared__ few_shared s;
    dependency_release();
    if (!a.alone) dependency_wait();
    const uint32_t group = a.kv.n_heads / a.kv.n_kv_heads, rounds = (group + 8 * H - 1) / (8 * H);
    const uint32_t row = a.listed ? a.listed[a.first_row + blockIdx.z] : a.first_row + blockIdx.z;
    const uint32_t head = blockIdx.y / rounds, g = blockIdx.y % rounds * 8 * H;
    const cuda_row r = a.kv.rows[row];
    uint32_t first = blockIdx.x * a.together * CELLS;
    if (first > r.pos) return;
    const uint32_t end = min(first + a.together * CELLS, r.pos + 1);
    uint8_t *k = shared_memory(), *v = k + KV::bytes;
    __half *p = (__half *)(v + KV::bytes);
    const uint8_t *const *blocks = s.blocks;
    const uint32_t h0 = head * group + g, n_heads = min(group - g, 8u * H);
    uint32_t q[KV::dim / 16][4];
    if (a.alone && !a.keep && end > r.pos) dependency_wait();
    blocks_find(a, r.lane, first, end, a.together * CELLS, s.blocks);
    __syncthreads();
    KV::ask(a, blocks, head, false, first, end, k);
    copies_commit();
    KV::ask(a, blocks, head, true, first, end, v);
    copies_commit();
    /* Of the row's own cell, and of q, as much is asked for as can be before any of it is needed.
     */
    const uint32_t task = threadIdx.x / GROUP_LANES;
    cuda_entry entry = {};
    float4 own = make_float4(0, 0, 0, 0);
    if (a.keep && end > r.pos) entry = entry_of(a.kv, r.lane, r.pos);
    if (a.alone && (a.keep || end <= r.pos)) dependency_wait();
    if (a.keep && end > r.pos) own = kept_quad::ask(a.kv, row, task % 2, head, task / 2);
    few_query<KV::dim, H>(a, row, h0, n_heads, threadIdx.x % WARP, q);
    few_sums<KV, H> sums;
    for (;;) {
        const uint32_t next = first + CELLS;
        float most[2];
        if (a.keep && next > r.pos) { /* the row's own cell is not there yet */
            const kept_quad fresh(a.kv, own, task % 2, head, task / 2, task / 2 < a.kv.n_groups);
            if (g == 0) fresh.write(a.kv, r, entry);
            copies_wait<0>();
            __syncthreads();
            KV::keep(fresh, fresh.is_v ? v : k, r.pos - first);
        }
        copies_wait<1>();
        __syncthreads();
        few_scores<KV, H>(a, &s, q, k, p, (int)r.pos, (int)first, most);
        blocks += CELLS / UNIT;
        if (next < end) KV::ask(a, blocks, head, false, next, end, k);
        copies_commit();
        copies_wait<1>();
        __syncthreads();
        sums.part_join(a, p, v, most);
        if (next >= end) break;
        __syncthreads();
        KV::ask(a, blocks, head, true, next, end, v);
        copies_commit();
        first = next;
    }
    const uint32_t entries = a.n_splits / a.together;
    sums.write(a, ((uint64_t)blockIdx.z * a.kv.n_heads + h0) * entries + blockIdx.x, entries,
               n_heads);
}

/* ---- launching ---- */

template <class KV> constexpr int shared_bytes() { return 2 * KV::bytes + P_BYTES; }

template <class KV> static cudaError_t launch_parts(cudaStream_t s, const cuda_attend *a)
{
    const uint32_t group = a->kv.n_heads / a->kv.n_kv_heads;
    dim3 grid(a->n_splits / a->together, a->kv.n_kv_heads, a->n_rows);
    if (group <= 8)
        return launch(s, a->dependent, flash<KV, 1>, grid, FEW_THREADS, shared_bytes<KV>(), *a);
    grid.y *= (group + FEW_HEADS - 1) / FEW_HEADS;
    return launch(s, a->dependent, flash<KV, 2>, grid, FEW_THREADS, shared_bytes<KV>(), *a);
}

template <int HD> static cudaError_t launch_dim(cudaStream_t s, const cuda_attend *a)
{
    if (a->kv.k_bits == 16) return launch_parts<half_cells<HD, false>>(s, a);
    if (a->kv.v_bits == 4) return launch_parts<half_cells<HD, true>>(s, a);
    return launch_parts<byte_cells<HD>>(s, a);
}

extern "C" cudaError_t cuda_launch_flash(cudaStream_t s, const struct cuda_attend *a)
{
    cudaError_t e = a->kv.head_dim <= 64    ? launch_dim<64>(s, a)
                    : a->kv.head_dim <= 128 ? launch_dim<128>(s, a)
                                            : launch_dim<256>(s, a);
    if (e) return e;
    return cuda_launch_join(s, a);
}

template <class KV> static cudaError_t allow_parts()
{
    cudaError_t e = allow_shared(flash<KV, 1>, shared_bytes<KV>());
    return e ? e : allow_shared(flash<KV, 2>, shared_bytes<KV>());
}

template <int HD> static cudaError_t allow_dim()
{
    cudaError_t e = allow_parts<half_cells<HD, false>>();
    if (!e) e = allow_parts<half_cells<HD, true>>();
    return e ? e : allow_parts<byte_cells<HD>>();
}

extern "C" cudaError_t cuda_flash_prepare(uint32_t *dim_max)
{
    cudaError_t e = allow_dim<64>();
    if (!e) e = allow_dim<128>();
    *dim_max = 256;
    if (!e && allow_dim<256>() != cudaSuccess) {
        (void)cudaGetLastError(); /* more than the card has */
        *dim_max = 128;
    }
    return e;
}
