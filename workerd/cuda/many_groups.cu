/* SPDX-License-Identifier: MIT */
/*
 * y = W x for the token rows of prompts where the tensor cores work for warpgroups (sm_90): what
 * many.cu does, bit for bit, but a warp's instructions are the three that follow each integer sum
 * and hardly any others, since wgmma reads codes from shared memory by itself.
 *
 * Of a block's tile (many.cuh) a warpgroup makes 64 by 64, one block of k at a time: while it waits
 * for that the other three have their sums to scale. Four more warps bring the pieces; nobody waits
 * for all.
 */
#include "workerd/cuda/many.cuh"
#include "workerd/cuda/warpgroup.cuh"

enum {
    SLOTS = 8,     /* pieces */
    FEEDERS = 128, /* threads that bring pieces, behind those that multiply */
    ASKED = 4,     /* pieces of a feeder that are on their way */
    SLOT_BYTES = slot_bytes<CUDA_Q8_0>(),
    SLOT_ROWS = OUT_TILES * CUDA_Q8_0_BYTES, /* of token rows, in a slot behind the weights */
    SHARED_BYTES = TOTALS_BYTES + SLOTS * SLOT_BYTES,
    GROUP_OUTS = 64, /* of a warpgroup */
    GROUP_ROWS = 64,
    BLOCK_CODES = 256, /* from a block's codes to the next one's, of eight outputs or rows */
};

#ifdef WARPGROUPS

struct ring {
    uint8_t *at;
    uint64_t *full, *empty; /* [SLOTS] */
};

/* A warp's part of 16 outputs by 64 rows, [eight rows][as mma's]. */
__device__ __forceinline__ void sums_add(const int d[SUMS][4], const weights<CUDA_Q8_0> &w, int b,
                                         const uint8_t *rows, int lane, float acc[SUMS][4])
{
    const uint8_t *at = rows + CUDA_X_SCALES + lane % 4 * 16 + b * 8;
#pragma unroll
    for (int n = 0; n < SUMS; n++) {
        const float2 s = *(const float2 *)(at + n * CUDA_X_BYTES);
#pragma unroll
        for (int k = 0; k < 4; k++) {
            float t = fmaf(__int_as_float(d[n][k] + FLOAT_BITS), w.d[b][k / 2], w.base[b][k / 2]);
            acc[n][k] = fmaf(t, k % 2 ? s.y : s.x, acc[n][k]);
        }
    }
}

/* Where a warp is in the ring: which slot, and the parity of its phase. */
struct turn_of {
    uint32_t slot, parity;

    __device__ __forceinline__ void next()
    {
        slot = slot + 1 == SLOTS ? 0 : slot + 1;
        if (slot == 0) parity ^= 1;
    }
};

/* Of one feeder: its 16 bytes of each FEEDERS in a row, of the weights and of the token rows. */
template <int M> struct feeder {
    static const int W_CHUNKS = OUT_TILES * CUDA_Q8_0_BYTES / 16;
    static const int X_CHUNKS = ROW_TILES * CUDA_X_BYTES / 16;
    static const int W = (W_CHUNKS + FEEDERS - 1) / FEEDERS, X = X_CHUNKS / FEEDERS;
    const uint8_t *w[W], *x[X];
    uint32_t at;

    __device__ __forceinline__ feeder(const cuda_product &a, const tile_place &p, uint32_t row0,
                                      uint32_t thread)
        : at(thread * 16)
    {
        const int wide = CUDA_Q8_0_BYTES / 16, eight = CUDA_X_BYTES / 16;
#pragma unroll
        for (int i = 0; i < W; i++) {
            const int c = min(thread + i * FEEDERS, W_CHUNKS - 1);
            w[i] = weights_of<CUDA_Q8_0, M>(a, p, c / wide) + c % wide * 16;
        }
#pragma unroll
        for (int i = 0; i < X; i++) {
            const int c = thread + i * FEEDERS;
            x[i] = rows_of(a, row0, c / eight) + c % eight * 16;
        }
    }
    __device__ __forceinline__ void ask_weights(uint8_t *slot)
    {
#pragma unroll
        for (int i = 0; i < W; i++, slot += FEEDERS * 16) {
            if (i + 1 < W || at < (W_CHUNKS - (W - 1) * FEEDERS) * 16) copy16(slot + at, w[i]);
            w[i] += CUDA_Q8_0_BYTES;
        }
    }
    __device__ __forceinline__ void ask_rows(uint8_t *slot)
    {
        slot += SLOT_ROWS;
#pragma unroll
        for (int i = 0; i < X; i++, slot += FEEDERS * 16) {
            copy16(slot + at, x[i]);
            x[i] += CUDA_X_BYTES;
        }
    }
};

/* The feeders' part: pieces into the ring as they are read. */
template <int M>
__device__ __forceinline__ void tile_feed(const cuda_product &a, const tile_place &place,
                                          uint32_t row0, const ring &r, uint32_t thread, int lane)
{
    const uint32_t n = a.x.k_pad / CUDA_PIECE;
    feeder<M> f(a, place, row0, thread);
#pragma unroll
    for (uint32_t i = 0; i < ASKED; i++)
        if (i < n) f.ask_weights(r.at + i * SLOT_BYTES);
    dependency_wait();
#pragma unroll
    for (uint32_t i = 0; i < ASKED; i++) {
        if (i < n) f.ask_rows(r.at + i * SLOT_BYTES);
        copies_commit();
    }
    turn_of there = {0, 0}, next = {ASKED, 1};
    for (uint32_t i = 0; i < n; i++) {
        copies_wait<ASKED - 1>();
        group_publish();
        __syncwarp();
        if (lane == 0) phase_arrive(&r.full[there.slot]);
        if (i + ASKED < n) {
            phase_wait(&r.empty[next.slot], next.parity);
            f.ask_weights(r.at + next.slot * SLOT_BYTES);
            f.ask_rows(r.at + next.slot * SLOT_BYTES);
        }
        copies_commit();
        there.next(), next.next();
    }
}

__device__ __forceinline__ void tile_sum(uint32_t n, uint8_t *shared, const ring &r, int warp,
                                         int lane, float acc[SUMS][4])
{
    const int group = __shfl_sync(~0u, warp / 4, 0);
    const uint8_t *w_at = r.at + group / 2 * (GROUP_OUTS / 16) * CUDA_Q8_0_BYTES;
    const uint8_t *x_at = r.at + SLOT_ROWS + group % 2 * (GROUP_ROWS / CUDA_X_ROWS) * CUDA_X_BYTES;
    const uint64_t w = codes_at(w_at, CUDA_Q8_0_HALF);
    const uint64_t x = codes_at(x_at, CUDA_X_BYTES);
    totals total = {(float4 *)shared + threadIdx.x, false};
    range_walk range(n);
    turn_of now = {0, 0};
    for (uint32_t i = 0; i < n; i++, now.next()) {
        const uint32_t slot = now.slot * SLOT_BYTES;
        weights<CUDA_Q8_0> scales;
        int d[SUMS][4];
        phase_wait(&r.full[now.slot], now.parity);
        group_begin();
        group_product_s8(d, w + slot / 16, x + slot / 16);
        group_commit();
        scales.read_scales(w_at + slot + warp % 4 * CUDA_Q8_0_BYTES, lane);
        group_wait<SUMS>(d);
        sums_add(d, scales, 0, x_at + slot, lane, acc);
        group_begin();
        group_product_s8(d, w + (slot + BLOCK_CODES) / 16, x + (slot + BLOCK_CODES) / 16);
        group_commit();
        group_wait<SUMS>(d);
        sums_add(d, scales, 1, x_at + slot, lane, acc);
        __syncwarp();
        if (lane == 0) phase_arrive(&r.empty[now.slot]);
        if (i + 1 == range.end && i + 1 < n) {
            total.keep(acc);
            range.past(i + 1);
        }
    }
    total.add(acc);
}

__device__ __forceinline__ void tile_write(float *out, int warp, int lane, const float acc[SUMS][4])
{
    const int row0 = warp / 4 % 2 * GROUP_ROWS + lane % 4 * 2;
    const int out0 = warp / 8 * GROUP_OUTS + warp % 4 * 16 + lane / 4;
#pragma unroll
    for (int n = 0; n < SUMS; n++)
#pragma unroll
        for (int k = 0; k < 4; k++)
            out[(row0 + n * 8 + k % 2) * OUT_STRIDE + out0 + k / 2 * 8] = acc[n][k];
}

#endif

template <int M>
__global__ void __launch_bounds__(THREADS + FEEDERS, 1) many_groups(const cuda_product a)
{
#ifdef WARPGROUPS
    dependency_release();
    __shared__ float scales[ROWS];
    __shared__ uint64_t phases[2][SLOTS];
    uint8_t *shared = shared_memory();
    const ring r = {shared + TOTALS_BYTES, phases[0], phases[1]};
    const int warp = threadIdx.x / WARP, lane = threadIdx.x % WARP;
    const uint32_t row0 = blockIdx.x * ROWS;
    const tile_place place = place_of(a, blockIdx.y, OUTS / M);
    if (threadIdx.x < SLOTS) {
        phase_init(&r.full[threadIdx.x], FEEDERS / WARP);
        phase_init(&r.empty[threadIdx.x], WARPS);
    }
    __syncthreads();
    if (warp >= WARPS) {
        tile_feed<M>(a, place, row0, r, threadIdx.x - THREADS, lane);
        return;
    }
    float acc[SUMS][4] = {};
    tile_sum(a.x.k_pad / CUDA_PIECE, shared, r, warp, lane, acc);
    dependency_wait();
    scales_read(a, row0, scales);
    barrier_wait(1, THREADS);
    float *out = (float *)shared;
    tile_write(out, warp, lane, acc);
    barrier_wait(1, THREADS);
    rows_write<M>(a, place, row0, out, scales);
#endif
}

template <int M> static cudaError_t launch_many(cudaStream_t s, const cuda_product *a)
{
    dim3 grid((a->n_rows + ROWS - 1) / ROWS, tiles_of(a, OUTS / M)); /* as in many.cu */
    return launch(s, a->dependent, many_groups<M>, grid, THREADS + FEEDERS, SHARED_BYTES, *a);
}

extern "C" cudaError_t cuda_launch_many_groups(cudaStream_t s, const struct cuda_product *a)
{
    return a->epilogue == CUDA_GATE ? launch_many<2>(s, a) : launch_many<1>(s, a);
}

extern "C" bool cuda_many_groups_prepare(void)
{
    cudaFuncAttributes of;
    cudaError_t e = cudaFuncGetAttributes(&of, many_groups<1>);
    /* Of the code that was compiled: what the driver makes of older PTX is empty. */
    if (!e && of.ptxVersion != 90) return false;
    if (!e) e = allow_shared(many_groups<1>, SHARED_BYTES);
    if (!e) e = allow_shared(many_groups<2>, SHARED_BYTES);
    if (e) (void)cudaGetLastError();
    return e == cudaSuccess;
}
