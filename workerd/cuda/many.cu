/* SPDX-License-Identifier: MIT */
/*
 * y = W x for more token rows than few.cu has at once: held against the multiply-adds that follow
 * the tensor cores (two for each integer sum of 32 products), of which a multiprocessor makes four
 * a cycle for all lanes of a warp. The arithmetic is product.cuh's.
 *
 * A block of threads makes 128 outputs (CUDA_GATE: 64 of each matrix) of 128 token rows. When a
 * range of k ends its sums are added to those of the ranges before, each thread its own, in shared
 * memory: registers hold one set. Tiles past the last repeat it and are not kept. A warp makes 32
 * by 32, all of k, two pieces between barriers: sixteen warps, since with eight of 64 by 32 a
 * scheduler waits half of its cycles.
 */
#include "workerd/cuda/product.cuh"

enum {
    THREADS = 512,
    WARPS = THREADS / WARP,
    OUTS = 128,
    ROWS = 128,
    OUT_TILES = OUTS / 16,
    ROW_TILES = ROWS / CUDA_X_ROWS,
    SUMS = OUTS * ROWS / THREADS / 4, /* of a thread, in fours */
    TOTALS_BYTES = OUTS * ROWS * 4,
    SLOTS = 6, /* pieces: two are multiplied, two on their way, two just read */
};

template <int PACK> constexpr __host__ __device__ int slot_bytes()
{
    return OUT_TILES * piece<PACK>::bytes + ROW_TILES * CUDA_X_BYTES;
}

/* Where eight token rows lie, of the block's ROW_TILES times eight from row0 on. */
__device__ __forceinline__ const uint8_t *rows_of(const cuda_product &a, uint32_t row0, int t)
{
    const uint64_t eight = min(row0 / CUDA_X_ROWS + t, (a.n_rows - 1) / CUDA_X_ROWS);
    return (const uint8_t *)a.x.q + eight * (a.x.k_pad / CUDA_PIECE) * CUDA_X_BYTES;
}

/* The sums of the ranges so far, of this thread. */
struct totals {
    float4 *at;
    bool some;

    __device__ __forceinline__ void add(float acc[SUMS][4])
    {
#pragma unroll
        for (int i = 0; i < SUMS; i++) {
            float *v = acc[i];
            float4 t = some ? at[i * THREADS] : make_float4(0, 0, 0, 0);
            v[0] = t.x + v[0], v[1] = t.y + v[1], v[2] = t.z + v[2], v[3] = t.w + v[3];
        }
    }
    __device__ __forceinline__ void keep(float acc[SUMS][4])
    {
        add(acc);
#pragma unroll
        for (int i = 0; i < SUMS; i++) {
            float *v = acc[i];
            at[i * THREADS] = make_float4(v[0], v[1], v[2], v[3]);
            v[0] = v[1] = v[2] = v[3] = 0;
        }
        some = true;
    }
};

/* Where the range that has piece i ends. */
struct range_walk {
    uint32_t n_pieces, r, end;

    __device__ __forceinline__ explicit range_walk(uint32_t n) : n_pieces(n), r(0), end(0)
    {
        past(0);
    }
    __device__ __forceinline__ void past(uint32_t i)
    {
        while (end <= i)
            end = range_begin(n_pieces, ++r);
    }
};

__device__ __forceinline__ void scales_read(const cuda_product &a, uint32_t row0, float *scales)
{
    for (uint32_t t = threadIdx.x / 8; t < ROWS; t += THREADS / 8) {
        float s = row_scale(a, min(row0 + t, a.n_rows - 1));
        if (threadIdx.x % 8 == 0) scales[t] = s;
    }
}

template <int PACK> constexpr __host__ __device__ int shared_bytes()
{
    return TOTALS_BYTES + SLOTS * slot_bytes<PACK>();
}

/* Of one warp: the eight token rows and the half of 16 outputs' weights that it brings. */
template <int PACK, int M> struct feed {
    const uint8_t *w, *x;
    int w_at, x_at, lane;

    __device__ __forceinline__ feed(const cuda_product &a, const tile_place &p, uint32_t row0,
                                    int warp, int lane)
        : lane(lane)
    {
        const int t = warp / 2, half = warp % 2 * (piece<PACK>::bytes / 2);
        w = weights_of<PACK>(a, p, t, OUT_TILES / M) + half + lane * 16;
        w_at = t * piece<PACK>::bytes + half + lane * 16;
        x = rows_of(a, row0, warp) + lane * 16;
        x_at = OUT_TILES * piece<PACK>::bytes + warp * CUDA_X_BYTES + lane * 16;
    }
    __device__ __forceinline__ void ask_weights(uint8_t *slot, uint32_t i) const
    {
        const uint8_t *from = w + (uint64_t)i * piece<PACK>::bytes;
        const int bytes = piece<PACK>::bytes / 2;
#pragma unroll
        for (int at = 0; at < bytes; at += WARP * 16)
            if (at + WARP * 16 <= bytes || at + lane * 16 < bytes)
                copy16(slot + w_at + at, from + at);
    }
    __device__ __forceinline__ void ask_rows(uint8_t *slot, uint32_t i) const
    {
        const uint8_t *from = x + (uint64_t)i * CUDA_X_BYTES;
        uint8_t *to = slot + x_at;
        copy16(to, from);
        if (lane < (PACK == CUDA_Q8_0 ? 4 : 8)) copy16(to + 512, from + 512);
    }
};

template <int PACK>
__device__ __forceinline__ void piece_add(const uint8_t *slot, int warp, int lane,
                                          float acc[SUMS][4])
{
    const uint8_t *from = slot + warp / 4 * 2 * piece<PACK>::bytes;
    const uint8_t *rows = slot + OUT_TILES * piece<PACK>::bytes + warp % 4 * 4 * CUDA_X_BYTES;
    weights<PACK> w[2];
#pragma unroll
    for (int m = 0; m < 2; m++)
        w[m].read(from + m * piece<PACK>::bytes, lane);
#pragma unroll
    for (int n = 0; n < 4; n++) {
        codes<PACK> x;
        x.read(rows + n * CUDA_X_BYTES, lane);
#pragma unroll
        for (int b = 0; b < 2; b++)
#pragma unroll
            for (int m = 0; m < 2; m++)
                block_add<PACK>(w[m], x, b, acc[m * 4 + n]);
    }
}

template <int PACK, int M>
__device__ __forceinline__ void tile_sum(const cuda_product &a, const tile_place &place,
                                         uint32_t row0, uint8_t *shared, int warp, int lane,
                                         float acc[SUMS][4])
{
    const uint32_t n = a.x.k_pad / CUDA_PIECE;
    const int slot = slot_bytes<PACK>();
    const feed<PACK, M> f(a, place, row0, warp, lane);
    uint8_t *ring = shared + TOTALS_BYTES;
    totals total = {(float4 *)shared + threadIdx.x, false};
    range_walk range(n);
#pragma unroll
    for (uint32_t i = 0; i < 4; i++)
        if (i < n) f.ask_weights(ring + i * slot, i);
    dependency_wait();
#pragma unroll
    for (uint32_t i = 0; i < 4; i++) {
        if (i < n) f.ask_rows(ring + i * slot, i);
        if (i % 2) copies_commit();
    }
    for (uint32_t g = 0, at = 0; g < n; g += 2) {
        copies_wait<1>();
        __syncthreads();
        uint8_t *free = ring + (at >= 2 ? at - 2 : SLOTS - 2) * slot;
#pragma unroll
        for (uint32_t i = 0; i < 2; i++)
            if (g + 4 + i < n) {
                f.ask_weights(free + i * slot, g + 4 + i);
                f.ask_rows(free + i * slot, g + 4 + i);
            }
        copies_commit();
#pragma unroll
        for (uint32_t i = 0; i < 2; i++)
            if (g + i < n) {
                piece_add<PACK>(ring + (at + i) * slot, warp, lane, acc);
                if (g + i + 1 == range.end && g + i + 1 < n) {
                    total.keep(acc);
                    range.past(g + i + 1);
                }
            }
        at = at + 2 == SLOTS ? 0 : at + 2;
    }
    copies_wait<0>();
    total.add(acc);
}

__device__ __forceinline__ void tile_write(float *out, int warp, int lane, const float acc[SUMS][4])
{
#pragma unroll
    for (int m = 0; m < 2; m++)
#pragma unroll
        for (int n = 0; n < 4; n++)
#pragma unroll
            for (int k = 0; k < 4; k++) {
                int row = warp % 4 * 32 + n * 8 + lane % 4 * 2 + k % 2;
                int o = warp / 4 * 32 + m * 16 + lane / 4 + k / 2 * 8;
                out[row * tile_sums<OUTS>::STRIDE + o] = acc[m * 4 + n][k];
            }
}

template <int PACK, int M> __global__ void __launch_bounds__(THREADS, 1) many(const cuda_product a)
{
    dependency_release();
    __shared__ float scales[ROWS];
    uint8_t *shared = shared_memory();
    const int warp = threadIdx.x / WARP, lane = threadIdx.x % WARP;
    const uint32_t row0 = blockIdx.x * ROWS;
    const tile_place place = place_of(a, blockIdx.y, OUTS / M);
    float acc[SUMS][4] = {};
    tile_sum<PACK, M>(a, place, row0, shared, warp, lane, acc);
    scales_read(a, row0, scales);
    __syncthreads();
    float *out = (float *)shared;
    tile_write(out, warp, lane, acc);
    __syncthreads();
    const tile_sums<OUTS> sums = {out, scales, row0, min(a.n_rows - row0, (uint32_t)ROWS)};
    sums_follow<M, OUTS, THREADS, false>(a, place, sums);
}

template <int PACK, int M> static cudaError_t launch_many(cudaStream_t s, const cuda_product *a)
{
    /* Token tiles go fastest: those of one weight tile run together and share it in the L2. */
    dim3 grid((a->n_rows + ROWS - 1) / ROWS, tiles_of(a, OUTS / M));
    return launch(s, a->dependent, many<PACK, M>, grid, THREADS, shared_bytes<PACK>(), *a);
}

extern "C" cudaError_t cuda_launch_many(cudaStream_t s, const struct cuda_product *a)
{
    return products::of(a, [=](auto v) { return launch_many<v.pack, v.matrices>(s, a); });
}

extern "C" cudaError_t cuda_many_prepare(bool *there)
{
    cudaError_t e = products::all(
        [](auto v) { return allow_shared(many<v.pack, v.matrices>, shared_bytes<v.pack>()); });
    *there = e == cudaSuccess;
    if (e == cudaErrorInvalidValue) { /* more than the card has */
        (void)cudaGetLastError();
        return cudaSuccess;
    }
    return e;
}
