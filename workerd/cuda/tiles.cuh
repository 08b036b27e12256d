/* SPDX-License-Identifier: MIT */
#ifndef WORKERD_CUDA_TILES_CUH
#define WORKERD_CUDA_TILES_CUH
/*
 * Shared memory of tiles.cu, and K and V on their way into it. A unit of a head is consecutive
 * bytes, so reads are of 1 KiB and more, also over PCIe.
 */
#include "workerd/cuda/flash.cuh"
#include "workerd/cuda/keep.cuh"

enum {
    TILE_THREADS = 256,
    TILE_ROWS = CUDA_FLASH_ROWS,
    PAIR_ROWS = 32, /* of two warps */
    STRETCH_CELLS = STRETCH * CELLS,
};
static_assert(CELLS / UNIT == TILE_THREADS / WARP, "a warp asks for a unit");

/* Where sixteen bytes of a part's cell lie: 64 halves of all cells after the other, each as half_at
 * has it, which is wgmma's swizzle of 128 bytes. */
enum { SLAB = 64, SLAB_HALVES = CELLS * SLAB };
__device__ __forceinline__ uint32_t cell_at(uint32_t cell, uint32_t sixteen)
{
    return sixteen / 8 * SLAB_HALVES + half_at<SLAB>(cell, sixteen % 8);
}

/* weights: [128][CELLS], of the scores. With DEEP, cells of two parts in turn. */
template <int HD, bool CODES, bool DEEP> struct tile_memory {
    static const int WEIGHTS = TILE_ROWS * CELLS * 2, HALVES = CELLS * HD * 2;
    static const int RING = WEIGHTS + (DEEP ? 4 : 2) * HALVES; /* of codes: struct tile_codes */
    static const int bytes = RING + (DEEP && CODES ? CELLS * HD * 2 / 16 * (16 + 4) : 0);

    __device__ __forceinline__ static __half *weights() { return (__half *)shared_memory(); }
    __device__ __forceinline__ static __half *cells(bool is_v, uint32_t part)
    {
        const uint32_t set = DEEP ? part % 2 : 0;
        return (__half *)(shared_memory() + WEIGHTS + (2 * set + is_v) * HALVES);
    }
};

struct tile_shared {
    const uint8_t *blocks[2][STRETCH_CELLS / UNIT]; /* of a stretch and the next */
    float most[2][TILE_ROWS];                       /* of half of a part's cells */
    float most_before[TILE_ROWS];                   /* of all stretches before, whose o is y */
    float sum_before[TILE_ROWS];
};

/* A part's cells of one K/V head: where they are, and which of them there are. */
struct tile_part {
    const uint8_t *const *blocks; /* [CELLS / UNIT] */
    uint32_t first, end;

    __device__ __forceinline__ tile_part(const tile_shared &s, uint32_t i, uint32_t end)
        : blocks(s.blocks[i / STRETCH % 2] + i % STRETCH * (CELLS / UNIT)), first(i * CELLS),
          end(end)
    {
    }
};

/* Each warp asks for the halves of a unit of cells; zeros where there is none. */
template <int HD>
__device__ __forceinline__ void halves_ask(const cuda_attend &a, const tile_part &part, bool is_v,
                                           __half *to)
{
    const int PIECES = HD / 8, CELLS_AT_ONCE = WARP / PIECES;
    const uint32_t hd = a.kv.head_dim, shift = a.kv.block_shift, unit = threadIdx.x / WARP;
    const uint32_t c = unit * UNIT + threadIdx.x % WARP / PIECES, piece = threadIdx.x % PIECES;
    const uint32_t at = part.first + c, d = piece * 8 < hd ? piece * 8 : 0;
    const uint32_t cell = (blockIdx.x << shift) + (at & ((1u << shift) - 1));
    const uint8_t *from = part.blocks[unit] + (is_v ? a.kv.v_off : 0) + (cell * hd + d) * 2;
    const uint32_t end = piece * 8 < hd ? part.end : 0, first = cell_at(c, piece);
    __half *to_swapped[4]; /* by i % 4 */
#pragma unroll
    for (int i = 0; i < 4; i++)
        to_swapped[i] = to + (first ^ i * CELLS_AT_ONCE % 8 * 8);
    if (part.first + CELLS <= part.end && hd == HD) {
#pragma unroll
        for (int i = 0; i < UNIT / CELLS_AT_ONCE; i++)
            copy16(to_swapped[i % 4] + i * CELLS_AT_ONCE * SLAB, from + i * CELLS_AT_ONCE * HD * 2);
        return;
    }
#pragma unroll
    for (int i = 0; i < UNIT / CELLS_AT_ONCE; i++) {
        const bool there = at + i * CELLS_AT_ONCE < end;
        copy16_first(to_swapped[i % 4] + i * CELLS_AT_ONCE * SLAB,
                     from + (there ? i * CELLS_AT_ONCE * hd * 2 : 0), there ? 16 : 0);
    }
}

/* The same for codes: of its warp's unit of cells, a thread asks for pieces of 16 codes and for
 * their scales (the four bytes that a scale is in), and later makes halves of what it asked for
 * itself; DEEP: where not, it reads them then. PLAIN: it is known that there are HD values, and
 * that codes are of 8 bits. */
template <int HD, bool DEEP, bool IS_V, bool PLAIN = false> struct tile_codes {
    static const int PIECES = HD / 16, CELLS_AT_ONCE = WARP / PIECES, N = UNIT / CELLS_AT_ONCE;
    const uint8_t *codes, *scale; /* of the first piece */
    uint32_t n, step;             /* pieces that there are; bytes from one to the next */
    bool eight;

    /* Eight threads have four pieces of two cells each, which lie in different banks. */
    __device__ __forceinline__ static uint32_t cell()
    {
        const uint32_t lane = threadIdx.x % WARP;
        return threadIdx.x / WARP * UNIT + (HD > 64 ? lane / 16 * 2 + lane / 4 % 2 : lane / 4);
    }
    __device__ __forceinline__ static uint32_t dim()
    {
        return (threadIdx.x % 4 + (HD > 64 ? threadIdx.x / 8 % 2 * 4 : 0)) * 16;
    }
    __device__ __forceinline__ static uint8_t *ring(uint32_t i)
    {
        return shared_memory() + tile_memory<HD, true, DEEP>::RING +
               ((IS_V * N + i) * TILE_THREADS + threadIdx.x) * 16;
    }
    __device__ __forceinline__ static uint32_t *ring_scale(uint32_t i)
    {
        return (uint32_t *)(shared_memory() + tile_memory<HD, true, DEEP>::RING +
                            2 * N * TILE_THREADS * 16) +
               (IS_V * N + i) * TILE_THREADS + threadIdx.x;
    }

    __device__ __forceinline__ tile_codes(const cuda_attend &a, const tile_part &part)
        : eight(PLAIN || (IS_V ? a.kv.v_bits : a.kv.k_bits) == 8)
    {
        const cuda_kv &kv = a.kv;
        const uint32_t hd = PLAIN ? HD : kv.head_dim, shift = kv.block_shift;
        const uint32_t at = part.first + cell(), n_groups = PLAIN ? HD / GROUP : kv.n_groups;
        const uint32_t in_block = at & ((1u << shift) - 1), d = dim();
        const uint8_t *block = part.blocks[threadIdx.x / WARP];
        const uint32_t of = ((blockIdx.x << shift) + in_block) * hd + d;
        codes = block + (IS_V ? kv.v_off : 0) + (eight ? of : of / 2);
        scale = block + (IS_V ? kv.v_scale_off : kv.k_scale_off) +
                (((blockIdx.x * n_groups + d / GROUP) << shift) + in_block) * 2;
        step = CELLS_AT_ONCE * hd / (eight ? 1 : 2);
        n = d < hd && at < part.end ? (part.end - at + CELLS_AT_ONCE - 1) / CELLS_AT_ONCE : 0;
    }
    template <int BITS> __device__ __forceinline__ void ask_bits(uint32_t i, uint32_t step) const
    {
        const uint8_t *word = (const uint8_t *)((uintptr_t)scale & ~(uintptr_t)3);
        if (BITS == 8)
            copy16(ring(i), codes + i * step);
        else
            copy8(ring(i), codes + i * step);
        copy4(ring_scale(i), word + i * CELLS_AT_ONCE * 2);
    }
    __device__ __forceinline__ void ask() const
    {
        const uint32_t full = CELLS_AT_ONCE * HD;
        if (n >= N && step == full && eight) {
#pragma unroll
            for (int i = 0; i < N; i++)
                ask_bits<8>(i, full);
        } else {
            for (uint32_t i = 0; i < min(n, (uint32_t)N); i++)
                if (eight)
                    ask_bits<8>(i, step);
                else
                    ask_bits<4>(i, step);
        }
    }
    template <int BITS> __device__ __forceinline__ void put_bits(__half *to) const
    {
        const uint32_t first = cell_at(cell(), dim() / 8);
        uint4 code[N];
        uint32_t by[N];
#pragma unroll
        for (int i = 0; i < N; i++) {
            const uint8_t *from = DEEP ? ring(i) : codes + i * step;
            code[i] = make_uint4(0, 0, 0, 0);
            by[i] = 0;
            if (!DEEP && i >= n) continue;
            if (BITS == 8) {
                code[i] = *(const uint4 *)from;
            } else {
                uint2 v = *(const uint2 *)from;
                code[i].x = v.x, code[i].y = v.y;
            }
            by[i] = DEEP ? *ring_scale(i) >> ((uintptr_t)scale % 4 * 8)
                         : *(const uint16_t *)(scale + i * CELLS_AT_ONCE * 2);
        }
#pragma unroll
        for (int i = 0; i < N; i++) {
            uint4 halves[2];
            codes_make<BITS, !IS_V && BITS == 8>(
                code[i], __ushort_as_half((unsigned short)(i < n ? by[i] : 0)), halves);
            const uint32_t at = (first ^ i * CELLS_AT_ONCE % 8 * 8) + i * CELLS_AT_ONCE * SLAB;
            *(uint4 *)(to + at) = halves[0];
            *(uint4 *)(to + (at ^ 8)) = halves[1];
        }
    }
    __device__ __forceinline__ void put(__half *to) const
    {
        if (eight)
            put_bits<8>(to);
        else
            put_bits<4>(to);
    }
};

/* Where (token row, query head) i of a block is. */
struct query_place {
    uint32_t row, head;
    bool there;

    __device__ __forceinline__ query_place(const cuda_attend &a, uint32_t i)
    {
        const cuda_span span = a.spans[a.first_row + blockIdx.y];
        const uint32_t group = a.kv.n_heads / a.kv.n_kv_heads;
        there = i < span.n_rows * group;
        row = span.first_row + (there ? i / group : 0);
        head = blockIdx.x * group + i % group;
    }
    /* Where its values lie in y. */
    __device__ __forceinline__ float *values(const cuda_attend &a) const
    {
        return a.y.f + (uint64_t)row * a.y.width + head * a.kv.head_dim;
    }
};

/* The sums that a divided block leaves of (token row, query head) i and a stretch. */
__device__ __forceinline__ uint64_t tile_entry(const cuda_attend &a, uint32_t i, uint32_t stretch)
{
    const uint64_t tile = (uint64_t)blockIdx.y * a.kv.n_kv_heads + blockIdx.x;
    return (tile * TILE_ROWS + i) * a.stretches + stretch;
}

/* A block's parts. */
struct tile_parts {
    uint32_t begin, n, end; /* parts begin to n; cells before end */
    uint32_t pos, lane;     /* of the span's first row */

    __device__ __forceinline__ tile_parts(const cuda_attend &a)
    {
        const cuda_span span = a.spans[a.first_row + blockIdx.y];
        const cuda_row first = a.kv.rows[span.first_row];
        pos = first.pos, lane = first.lane, end = pos + span.n_rows;
        begin = blockIdx.z * a.each * STRETCH;
        n = (end + CELLS - 1) / CELLS;
        if (a.each) n = min(n, begin + a.each * STRETCH);
    }
    /* Nothing has been joined yet; where the cells of the first stretch lie. */
    __device__ __forceinline__ void start(const cuda_attend &a, tile_shared &s) const
    {
        s.most_before[threadIdx.x % TILE_ROWS] = -CUDART_INF_F;
        s.sum_before[threadIdx.x % TILE_ROWS] = 0;
        blocks_find(a, lane, begin * CELLS, end, STRETCH_CELLS, s.blocks[begin / STRETCH % 2]);
        __syncthreads();
    }
    /* Where cells lie, until a stretch after the one that part i is in. */
    __device__ __forceinline__ void find(const cuda_attend &a, tile_shared &s, uint32_t i) const
    {
        const uint32_t stretch = i / STRETCH + 1;
        if (i % STRETCH == 0)
            blocks_find(a, lane, stretch * STRETCH_CELLS, end, STRETCH_CELLS,
                        s.blocks[stretch % 2]);
    }
};

template <int HD, bool IS_V, bool PLAIN = false>
__device__ __forceinline__ void codes_ask(const cuda_attend &a, const tile_shared &s,
                                          const tile_parts &parts, uint32_t i)
{
    if (i < parts.n) tile_codes<HD, true, IS_V, PLAIN>(a, tile_part(s, i, parts.end)).ask();
    copies_commit();
}

/* Part i's codes, asked for before, become halves. */
template <int HD, bool IS_V, bool PLAIN = false>
__device__ __forceinline__ void codes_put(const cuda_attend &a, const tile_shared &s,
                                          const tile_parts &parts, uint32_t i)
{
    if (i >= parts.n) return;
    const tile_part part(s, i, parts.end);
    tile_codes<HD, true, IS_V, PLAIN>(a, part).put(tile_memory<HD, true, true>::cells(IS_V, i));
}

/* The same for K or V, of which the next part's are asked for then, if nothing but what the thread
 * asked for the other was asked for since. */
template <int HD, bool IS_V, bool PLAIN = false>
__device__ __forceinline__ void codes_go_on(const cuda_attend &a, const tile_shared &s,
                                            const tile_parts &parts, uint32_t i)
{
    copies_wait<1>();
    codes_put<HD, IS_V, PLAIN>(a, s, parts, i);
    codes_ask<HD, IS_V, PLAIN>(a, s, parts, i + 1);
}

/* Part i's K and V are asked for. */
template <int HD, bool CODES>
__device__ __forceinline__ void cells_ask_for(const cuda_attend &a, const tile_shared &s,
                                              const tile_parts &parts, uint32_t i)
{
    typedef tile_memory<HD, CODES, true> memory;
    if (CODES) {
        codes_ask<HD, false>(a, s, parts, i);
        codes_ask<HD, true>(a, s, parts, i);
        return;
    }
    if (i < parts.n) {
        const tile_part part(s, i, parts.end);
        halves_ask<HD>(a, part, false, memory::cells(false, i));
        halves_ask<HD>(a, part, true, memory::cells(true, i));
    }
    copies_commit();
}

/* Where a lane's values of a row lie in y, or in what is left for tiles_join: two, and eight
 * further on two more. */
template <int N> struct row_values {
    float *at;
    uint32_t there; /* twos */
    float2 y[N];

    /* first: the first of the row's values that is this lane's. */
    __device__ __forceinline__ row_values(const cuda_attend &a, float *row, uint32_t first)
        : at(row + first), there(first < a.kv.head_dim ? (a.kv.head_dim - first + 7) / 8 : 0)
    {
    }
    __device__ __forceinline__ void read(bool none)
    {
#pragma unroll
        for (int n = 0; n < N; n++)
            y[n] = none || n >= there ? make_float2(0, 0) : *(const float2 *)(at + n * 8);
    }
    /* A stretch's sums join them; the last one's are divided then. */
    __device__ __forceinline__ void join(const float o[N][4], int h, float old, float fresh,
                                         bool is_last, float by)
    {
#pragma unroll
        for (int n = 0; n < N; n++) {
            if (n >= there) continue;
            float2 x = y[n];
            x.x = fmaf(x.x, old, o[n][2 * h] * fresh);
            x.y = fmaf(x.y, old, o[n][2 * h + 1] * fresh);
            if (is_last) x = make_float2(__fdiv_rn(x.x, by), __fdiv_rn(x.y, by));
            *(float2 *)(at + n * 8) = x;
        }
    }
    __device__ __forceinline__ void leave(const float o[N][4], int h) const
    {
#pragma unroll
        for (int n = 0; n < N; n++)
            if (n < there) *(float2 *)(at + n * 8) = make_float2(o[n][2 * h], o[n][2 * h + 1]);
    }
};

/* After part i, maybe the block's last: what a stretch has joins those before it, or is left for
 * tiles_join. */
template <class ROWS>
__device__ __forceinline__ void stretch_end(const cuda_attend &a, tile_shared &s, uint32_t i,
                                            bool is_last, ROWS &rows)
{
    if ((i + 1) % STRETCH && !is_last) return;
    if (a.each)
        rows.stretch_leave(a, i / STRETCH);
    else
        rows.stretch_join(a, s, is_last);
    rows.stretch_begin();
}

/* groups.cu. there: this card and this code have warpgroups' products. */
cudaError_t launch_tile_groups(cudaStream_t s, const cuda_attend *a, dim3 grid);
cudaError_t tile_groups_prepare(bool *there);

#endif
