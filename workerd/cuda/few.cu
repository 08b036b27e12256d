/* SPDX-License-Identifier: MIT */
/*
 * y = W x for the token rows that generating reads: held against the bandwidth of device memory.
 * The arithmetic is product.cuh's.
 *
 * A block of threads makes 32 outputs (two matrices': CUDA_GATE) of up to 32 token rows; warp j has
 * range j of k, so a warp reads weights that lie one after the other, and no warp another's. They
 * come through a ring in shared memory of its own, with the codes of the rows; the ring's first
 * weights are asked for before the kernel waits for its predecessor. Two blocks of threads share a
 * multiprocessor; where no more tiles of one matrix are to be made, of up to eight rows, than there
 * are multiprocessors, a block has one for itself, and a longer ring (DEEP).
 */
#include "workerd/cuda/product.cuh"

enum {
    THREADS = 256,
    ROWS_MAX = 32,
    SHARED_BYTES = 96 << 10, /* of a block of threads, at most: every card has it, sm_90 twice */
    DEEP_BYTES = 136 << 10,
    RESERVED_BYTES = 1 << 10, /* of every block of threads, by CUDA */
    SLOTS_MAX = 8,
    OUT_STRIDE = CUDA_TILE + 4, /* rows of a warp's sums in different banks */
};

template <int PACK, int NT> constexpr __host__ __device__ int slot_bytes()
{
    return 2 * piece<PACK>::bytes + NT * CUDA_X_BYTES;
}
template <int PACK, int NT, bool DEEP> constexpr __host__ __device__ int slots()
{
    const int n = (DEEP ? DEEP_BYTES : SHARED_BYTES) / (CUDA_RANGES * slot_bytes<PACK, NT>());
    return n > SLOTS_MAX ? SLOTS_MAX : n;
}
template <int NT> constexpr __host__ __device__ int sums_values()
{
    return CUDA_RANGES * NT * CUDA_X_ROWS * OUT_STRIDE;
}
template <int PACK, int M, int NT, bool DEEP> constexpr __host__ __device__ int shared_bytes()
{
    const int ring = CUDA_RANGES * slots<PACK, NT, DEEP>() * slot_bytes<PACK, NT>();
    const int sums = M * sums_values<NT>() * 4;
    return ring > sums ? ring : sums;
}

/* Of one warp: which weights and rows its ring brings. */
template <int PACK, int M, int NT> struct feed {
    const uint8_t *w[M], *x;
    uint64_t w_tile, x_tile; /* bytes from 16 outputs, or eight rows, to the next */
    int lane;
    bool rows[NT]; /* whether the row that this lane brings is there */

    __device__ __forceinline__ feed(const cuda_product &a, const tile_place &p, uint32_t row0,
                                    uint32_t first, int lane)
        : lane(lane)
    {
        const uint32_t n_pieces = a.x.k_pad / CUDA_PIECE;
        w_tile = (uint64_t)n_pieces * piece<PACK>::bytes;
        x_tile = (uint64_t)n_pieces * CUDA_X_BYTES;
#pragma unroll
        for (int m = 0; m < M; m++)
            w[m] = (const uint8_t *)a.m[p.matrix + m].codes + p.first / 16 * w_tile +
                   (uint64_t)first * piece<PACK>::bytes + lane * 16;
        x = (const uint8_t *)a.x.q + row0 / CUDA_X_ROWS * x_tile + (uint64_t)first * CUDA_X_BYTES +
            lane * 16;
#pragma unroll
        for (int n = 0; n < NT; n++)
            rows[n] = row0 + n * CUDA_X_ROWS + lane % 8 < a.n_rows;
    }
    __device__ __forceinline__ void ask_weights(uint8_t *slot, int matrix, uint32_t i) const
    {
        const uint8_t *from = w[matrix] + (uint64_t)i * piece<PACK>::bytes;
        slot += lane * 16;
#pragma unroll
        for (int h = 0; h < 2; h++, from += w_tile, slot += piece<PACK>::bytes)
#pragma unroll
            for (int at = 0; at < piece<PACK>::bytes; at += WARP * 16)
                if (at + WARP * 16 <= piece<PACK>::bytes || at + lane * 16 < piece<PACK>::bytes)
                    copy16(slot + at, from + at);
    }
    __device__ __forceinline__ void ask_rows(uint8_t *slot, uint32_t i) const
    {
        const uint8_t *from = x + (uint64_t)i * CUDA_X_BYTES;
        slot += 2 * piece<PACK>::bytes + lane * 16;
#pragma unroll
        for (int n = 0; n < NT; n++, from += x_tile, slot += CUDA_X_BYTES) {
            if (rows[n]) copy16(slot, from);
            if (lane < (PACK == CUDA_Q8_0 ? 4 : 8)) copy16(slot + 512, from + 512);
        }
    }
};

template <int PACK, int NT>
__device__ __forceinline__ void item_add(const uint8_t *slot, const codes<PACK> x[NT], int lane,
                                         float acc[2][NT][4])
{
#pragma unroll
    for (int h = 0; h < 2; h++) {
        weights<PACK> w;
        w.read(slot + h * piece<PACK>::bytes, lane);
#pragma unroll
        for (int b = 0; b < 2; b++)
#pragma unroll
            for (int n = 0; n < NT; n++)
                block_add<PACK>(w, x[n], b, acc[h][n]);
    }
}

/* The ranges' sums meet in shared memory; eight lanes then have a row, four outputs each. */
template <int NT>
__device__ __forceinline__ void sums_write(float *sums, int warp, int lane,
                                           const float acc[2][NT][4])
{
#pragma unroll
    for (int h = 0; h < 2; h++)
#pragma unroll
        for (int n = 0; n < NT; n++)
#pragma unroll
            for (int k = 0; k < 4; k++) {
                int token = n * 8 + lane % 4 * 2 + k % 2, out = 16 * h + lane / 4 + k / 2 * 8;
                sums[(warp * NT * 8 + token) * OUT_STRIDE + out] = acc[h][n][k];
            }
}

template <int NT> __device__ __forceinline__ float4 sums_read(const float *sums, int token, int out)
{
    float4 v = *(const float4 *)&sums[token * OUT_STRIDE + out];
#pragma unroll
    for (int r = 1; r < CUDA_RANGES; r++) {
        float4 p = *(const float4 *)&sums[(r * NT * 8 + token) * OUT_STRIDE + out];
        v = make_float4(v.x + p.x, v.y + p.y, v.z + p.z, v.w + p.w);
    }
    return v;
}

/* Item i is matrix i % M of piece i / M; the rows come with the first matrix. Of n pieces the
 * ring's first are asked for, the weights before the predecessor ends. */
template <int PACK, int M, int NT, bool DEEP>
__device__ __forceinline__ void ring_fill(const feed<PACK, M, NT> &f, uint8_t *ring, uint32_t n)
{
    const int D = slots<PACK, NT, DEEP>(), slot = slot_bytes<PACK, NT>();
#pragma unroll
    for (int i = 0; i < D; i++)
        if (i / M < n) f.ask_weights(ring + i * slot, i % M, i / M);
    dependency_wait();
#pragma unroll
    for (int i = 0; i < D; i++) {
        if (i % M == 0 && i / M < n) f.ask_rows(ring + i * slot, i / M);
        copies_commit();
    }
}

template <int PACK, int M, int NT, bool DEEP>
__device__ __forceinline__ void range_sum(const feed<PACK, M, NT> &f, uint8_t *ring, uint32_t n,
                                          int lane, float acc[M][2][NT][4])
{
    const int D = slots<PACK, NT, DEEP>(), slot = slot_bytes<PACK, NT>();
    codes<PACK> x[NT];
    for (uint32_t i = 0, at = 0; i < n; i++)
#pragma unroll
        for (int m = 0; m < M; m++, at = at + 1 == D ? 0 : at + 1) {
            uint8_t *s = ring + at * slot;
            copies_wait<D - 1>();
            __syncwarp();
            if (m == 0)
#pragma unroll
                for (int t = 0; t < NT; t++)
                    x[t].read(s + 2 * piece<PACK>::bytes + t * CUDA_X_BYTES, lane);
            item_add<PACK, NT>(s, x, lane, acc[m]);
            __syncwarp();
            const uint32_t next = i + (m + D) / M;
            if (next < n) {
                f.ask_weights(s, (m + D) % M, next);
                if ((m + D) % M == 0) f.ask_rows(s, next);
            }
            copies_commit();
        }
    copies_wait<0>();
}

template <int PACK, int M, int NT, bool DEEP>
__global__ void __launch_bounds__(THREADS, 2) few(const cuda_product a)
{
    dependency_release();
    uint8_t *shared = shared_memory();
    const int warp = threadIdx.x / WARP, lane = threadIdx.x % WARP;
    const uint32_t row0 = blockIdx.x * NT * CUDA_X_ROWS;
    const tile_place place = place_of(a, blockIdx.y, CUDA_TILE);
    const uint32_t n_pieces = a.x.k_pad / CUDA_PIECE, first = range_begin(n_pieces, warp);
    const uint32_t n = range_begin(n_pieces, warp + 1) - first;
    uint8_t *ring = shared + warp * slots<PACK, NT, DEEP>() * slot_bytes<PACK, NT>();
    const feed<PACK, M, NT> f(a, place, row0, first, lane);
    ring_fill<PACK, M, NT, DEEP>(f, ring, n);
    /* A warp that has no rows leaves after the barriers. What the others need then is asked for
     * before the sums where there are registers for it. */
    const bool busy = warp < NT * 2, early = NT == 1;
    const uint32_t token = threadIdx.x / 8 % (NT * 8), of = threadIdx.x % 8 * 4;
    const uint32_t out = place.first + of, row = min(row0 + token, a.n_rows - 1);
    before b;
    if (early && busy) b = read_before(a, place.matrix, out, row, row_scale(a, row));
    float acc[M][2][NT][4] = {};
    range_sum<PACK, M, NT, DEEP>(f, ring, n, lane, acc);
    if (!early && busy) b = read_before(a, place.matrix, out, row, row_scale(a, row));
    if (busy && row0 + token >= a.n_rows) b.leave_out();
    float *sums = (float *)shared;
    __syncthreads();
#pragma unroll
    for (int m = 0; m < M; m++)
        sums_write<NT>(sums + m * sums_values<NT>(), warp, lane, acc[m]);
    __syncthreads();
    if (!busy) return;
    float4 v[M];
#pragma unroll
    for (int m = 0; m < M; m++)
        v[m] = sums_read<NT>(sums + m * sums_values<NT>(), token, of);
    epilogue(a, place.matrix, out, row, b, v[0], v[M - 1]);
}

template <int PACK, int M, int NT, bool DEEP>
static cudaError_t launch_few(cudaStream_t s, const cuda_product *a)
{
    /* Row tiles go fastest: those of the same weights run together and share them in the L2. */
    dim3 grid((a->n_rows + NT * 8 - 1) / (NT * 8), tiles_of(a, CUDA_TILE));
    return launch(s, a->dependent, few<PACK, M, NT, DEEP>, grid, THREADS,
                  shared_bytes<PACK, M, NT, DEEP>(), *a);
}

template <int PACK, int M> static cudaError_t by_rows(cudaStream_t s, const cuda_product *a)
{
    if (M == 1 && a->n_rows <= 8 && tiles_of(a, CUDA_TILE) <= a->deep_tiles)
        return launch_few<PACK, 1, 1, true>(s, a);
    if (a->n_rows <= 8) return launch_few<PACK, M, 1, false>(s, a);
    if (a->n_rows <= 16) return launch_few<PACK, M, 2, false>(s, a);
    return launch_few<PACK, M, ROWS_MAX / 8, false>(s, a);
}

extern "C" cudaError_t cuda_launch_few(cudaStream_t s, const struct cuda_product *a)
{
    return products::of(a, [=](auto v) { return by_rows<v.pack, v.matrices>(s, a); });
}

template <int PACK, int M, int NT, bool DEEP> static cudaError_t allow()
{
    return allow_shared(few<PACK, M, NT, DEEP>, shared_bytes<PACK, M, NT, DEEP>());
}

template <int PACK, int M> static cudaError_t allow_rows(bool deep)
{
    cudaError_t e = allow<PACK, M, 1, false>();
    if (!e) e = allow<PACK, M, 2, false>();
    if (!e) e = allow<PACK, M, ROWS_MAX / 8, false>();
    return e || M > 1 || !deep ? e : allow<PACK, 1, 1, true>();
}

/* Whether a multiprocessor has room for a block with the longer ring and, beside it, one of the
 * next kernel, which asks for its weights meanwhile. */
static bool deep_fits(void)
{
    int device, bytes;
    return cudaGetDevice(&device) == cudaSuccess &&
           cudaDeviceGetAttribute(&bytes, cudaDevAttrMaxSharedMemoryPerMultiprocessor, device) ==
               cudaSuccess &&
           bytes >= shared_bytes<CUDA_Q8_0, 1, 1, true>() + shared_bytes<CUDA_Q8_0, 1, 1, false>() +
                        2 * RESERVED_BYTES;
}

extern "C" cudaError_t cuda_few_prepare(bool *deep)
{
    const bool fits = deep_fits();
    cudaError_t e = products::all([=](auto v) { return allow_rows<v.pack, v.matrices>(fits); });
    if (!e) *deep = fits;
    return e;
}
