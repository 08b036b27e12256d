/* SPDX-License-Identifier: MIT */
/*
 * y = W x for more than four token rows, W quantised, on int8 tensor cores (mma.m16n8k32). The
 * arithmetic of an element is that of few.cu, bit for bit: one mma gives the exact integer sum of
 * one block of 32 k, warp j of eight takes the blocks b = j mod 8 in order, sum8 adds the warps'.
 *
 * A block of threads makes a tile of 32 outputs by N token rows. Groups of eight blocks come
 * through shared memory, three to
 * eight stages deep; rows there are 16 bytes longer than they need to be, so that
 * the eight rows of a fragment lie in different banks. Token rows past the last repeat it and are
 * not kept.
 */
#include "workerd/cuda/epilogue.cuh"

enum { THREADS = 256, PAD = 16, STAGES_BYTES = 100 << 10, OUT_STRIDE = CUDA_TILE + 1 };

template <int PACK> struct shape {
    static const int row_bytes = PACK == CUDA_Q8_0 ? 256 : 128; /* codes of a group */
    static const int row_stride = row_bytes + PAD;
    static const int scale_bytes = PACK == CUDA_Q4_1 ? 32 : 16;
    static const int matrix_bytes = CUDA_TILE * (row_stride + scale_bytes);
};
enum { X_STRIDE = CUDA_GROUP + PAD, DS_BYTES = 64 };

template <int PACK, int M, int N> __host__ __device__ constexpr int stage_bytes()
{
    return M * shape<PACK>::matrix_bytes + N * (X_STRIDE + DS_BYTES);
}
/* As many as leave room for a second block of threads, three at least. */
template <int PACK, int M, int N> __host__ __device__ constexpr int stages()
{
    const int n = STAGES_BYTES / stage_bytes<PACK, M, N>();
    return n < 3 ? 3 : n > 8 ? 8 : n;
}
template <int PACK, int M, int N> __host__ __device__ constexpr int shared_bytes()
{
    const int loads = stages<PACK, M, N>() * stage_bytes<PACK, M, N>();
    const int sums = 8 * N * OUT_STRIDE * 4;
    return loads > sums ? loads : sums;
}

__device__ __forceinline__ void copy16(void *to, const void *from)
{
    uint32_t at = (uint32_t)__cvta_generic_to_shared(to);
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(at), "l"(from));
}
__device__ __forceinline__ void copies_commit() { asm volatile("cp.async.commit_group;"); }
template <int LEFT> __device__ __forceinline__ void copies_wait()
{
    asm volatile("cp.async.wait_group %0;" ::"n"(LEFT) : "memory");
}

__device__ __forceinline__ void mma(int c[4], const uint32_t a[4], const uint32_t b[2])
{
    asm("mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
        "{%10,%10,%10,%10};"
        : "=r"(c[0]), "=r"(c[1]), "=r"(c[2]), "=r"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]), "r"(0));
}

template <int PACK, int M>
__device__ __forceinline__ void weights_ask(const cuda_product &a, const tile_place &p, uint8_t *at,
                                            uint32_t group)
{
    using S = shape<PACK>;
    const uint32_t n_groups = a.x.k_pad / CUDA_GROUP;
    const int row16 = S::row_bytes / 16, scale16 = S::scale_bytes / 16;
    for (int m = 0; m < M; m++, at += S::matrix_bytes) {
        const cuda_matrix &w = a.m[p.matrix + m];
        for (int i = threadIdx.x; i < CUDA_TILE * row16; i += THREADS) {
            uint64_t o = min(p.first + i / row16, w.n_out - 1);
            copy16(at + i / row16 * S::row_stride + i % row16 * 16,
                   (const uint8_t *)w.codes + (o * n_groups + group) * S::row_bytes +
                       i % row16 * 16);
        }
        uint8_t *scales = at + CUDA_TILE * S::row_stride;
        for (int i = threadIdx.x; i < CUDA_TILE * scale16; i += THREADS) {
            uint64_t o = min(p.first + i / scale16, w.n_out - 1);
            copy16(scales + i * 16, (const uint8_t *)w.scales +
                                        (o * n_groups + group) * S::scale_bytes + i % scale16 * 16);
        }
    }
}

template <int N>
__device__ __forceinline__ void x_ask(const cuda_product &a, uint32_t row0, uint8_t *at,
                                      uint32_t group)
{
    for (int i = threadIdx.x; i < N * (CUDA_GROUP / 16); i += THREADS) {
        uint64_t row = min(row0 + i / 16, a.n_rows - 1);
        copy16(at + i / 16 * X_STRIDE + i % 16 * 16,
               a.x.q + row * a.x.k_pad + group * CUDA_GROUP + i % 16 * 16);
    }
    at += N * X_STRIDE;
    for (int i = threadIdx.x; i < N * (DS_BYTES / 16); i += THREADS) {
        uint64_t row = min(row0 + i / 4, a.n_rows - 1);
        copy16(at + i * 16, (const uint8_t *)a.x.ds + row * (a.x.k_pad / CUDA_BLOCK) * 8 +
                                group * DS_BYTES + i % 4 * 16);
    }
}

/* The A fragment of 16 rows and one block, and the scales of this thread's two rows. */
template <int PACK>
__device__ __forceinline__ void fragment(const uint8_t *w, int row0, int j, int lane, uint32_t f[4],
                                         float d[2], float m[2])
{
    using S = shape<PACK>;
    const uint8_t *scales = w + CUDA_TILE * S::row_stride;
#pragma unroll
    for (int i = 0; i < 2; i++) {
        int row = row0 + lane / 4 + 8 * i;
        const uint8_t *at = w + row * S::row_stride + j * 16 + lane % 4 * 4;
        if (PACK == CUDA_Q8_0) {
            f[i] = *(const uint32_t *)at;
            f[2 + i] = *(const uint32_t *)(at + 128);
        } else {
            uint32_t v = *(const uint32_t *)at;
            f[i] = v & 0x0f0f0f0f;
            f[2 + i] = v >> 4 & 0x0f0f0f0f;
        }
        if (PACK == CUDA_Q4_1) {
            __half2 s = ((const __half2 *)(scales + row * S::scale_bytes))[j];
            d[i] = __low2float(s);
            m[i] = __high2float(s);
        } else {
            d[i] = __half2float(((const __half *)(scales + row * S::scale_bytes))[j]);
        }
    }
}

template <int PACK>
__device__ __forceinline__ float add_block(int sum, float d, float m, float2 ds, float acc)
{
    if (PACK == CUDA_Q4_0) sum -= 8 * (int)ds.y;
    acc = fmaf((float)sum, d * ds.x, acc);
    return PACK == CUDA_Q4_1 ? fmaf(m, ds.x * ds.y, acc) : acc;
}

/* Warp j's block of one group. */
template <int PACK, int M, int N>
__device__ __forceinline__ void group_add(const uint8_t *stage, int j, int lane,
                                          float acc[M][2][N / 8][4])
{
    const uint8_t *x = stage + M * shape<PACK>::matrix_bytes;
    const float2 *ds = (const float2 *)(x + N * X_STRIDE);
    uint32_t f[M][2][4];
    float d[M][2][2], m[M][2][2];
#pragma unroll
    for (int i = 0; i < M; i++)
#pragma unroll
        for (int h = 0; h < 2; h++)
            fragment<PACK>(stage + i * shape<PACK>::matrix_bytes, 16 * h, j, lane, f[i][h], d[i][h],
                           m[i][h]);
#pragma unroll
    for (int n = 0; n < N / 8; n++) {
        const uint8_t *at = x + (n * 8 + lane / 4) * X_STRIDE + j * 16 + lane % 4 * 4;
        uint32_t b[2] = {*(const uint32_t *)at, *(const uint32_t *)(at + 128)};
        float2 s[2] = {ds[(n * 8 + lane % 4 * 2) * 8 + j], ds[(n * 8 + lane % 4 * 2 + 1) * 8 + j]};
#pragma unroll
        for (int i = 0; i < M; i++)
#pragma unroll
            for (int h = 0; h < 2; h++) {
                int c[4];
                mma(c, f[i][h], b);
#pragma unroll
                for (int k = 0; k < 4; k++)
                    acc[i][h][n][k] = add_block<PACK>(c[k], d[i][h][k / 2], m[i][h][k / 2],
                                                      s[k % 2], acc[i][h][n][k]);
            }
    }
}

/* The warps' sums meet in shared memory; a warp then has whole rows. */
template <int N>
__device__ __forceinline__ void sums_write(float *sums, int warp, int lane,
                                           const float acc[2][N / 8][4])
{
#pragma unroll
    for (int h = 0; h < 2; h++)
#pragma unroll
        for (int n = 0; n < N / 8; n++)
#pragma unroll
            for (int k = 0; k < 4; k++) {
                int token = n * 8 + lane % 4 * 2 + k % 2, out = 16 * h + lane / 4 + k / 2 * 8;
                sums[(warp * N + token) * OUT_STRIDE + out] = acc[h][n][k];
            }
}

template <int N> __device__ __forceinline__ float sums_read(const float *sums, int token, int out)
{
    float p[8];
#pragma unroll
    for (int w = 0; w < 8; w++)
        p[w] = sums[(w * N + token) * OUT_STRIDE + out];
    return sum8(p);
}

template <int PACK, int M, int N>
__global__ void __launch_bounds__(THREADS) many(const cuda_product a)
{
    extern __shared__ __align__(16) uint8_t shared[];
    const int STAGES = stages<PACK, M, N>();
    const int stage = stage_bytes<PACK, M, N>(), x_off = M * shape<PACK>::matrix_bytes;
    const int warp = threadIdx.x / WARP, lane = threadIdx.x % WARP;
    const uint32_t row0 = blockIdx.x * N, n_groups = a.x.k_pad / CUDA_GROUP;
    const tile_place place = place_of(a, blockIdx.y);
    float acc[M][2][N / 8][4] = {};
    for (uint32_t g = 0; g < STAGES - 1 && g < n_groups; g++)
        weights_ask<PACK, M>(a, place, shared + g * stage, g);
    dependency_wait();
    dependency_release();
    for (uint32_t g = 0; g < STAGES - 1; g++) {
        if (g < n_groups) x_ask<N>(a, row0, shared + g * stage + x_off, g);
        copies_commit();
    }
    for (uint32_t g = 0; g < n_groups; g++) {
        copies_wait<STAGES - 2>();
        __syncthreads();
        uint32_t ahead = g + STAGES - 1;
        if (ahead < n_groups) {
            weights_ask<PACK, M>(a, place, shared + ahead % STAGES * stage, ahead);
            x_ask<N>(a, row0, shared + ahead % STAGES * stage + x_off, ahead);
        }
        copies_commit();
        group_add<PACK, M, N>(shared + g % STAGES * stage, warp, lane, acc);
    }
    copies_wait<0>();
    float *sums = (float *)shared;
    float kept[N / 8] = {}; /* of CUDA_GATE: the gate's product */
#pragma unroll
    for (int i = 0; i < M; i++) {
        __syncthreads();
        sums_write<N>(sums, warp, lane, acc[i]);
        __syncthreads();
#pragma unroll
        for (int t = 0; t < N / 8; t++) {
            float v = sums_read<N>(sums, t * 8 + warp, lane);
            if (i + 1 < M)
                kept[t] = v;
            else if (row0 + t * 8 + warp < a.n_rows)
                epilogue(a, place, row0 + t * 8 + warp, lane, M == 2 ? kept[t] : v, v);
        }
    }
}

template <int PACK, int M, int N>
static cudaError_t launch_many(cudaStream_t s, const cuda_product *a)
{
    /* Token tiles go fastest: those of one weight tile run together and share it in the L2. */
    dim3 grid((a->n_rows + N - 1) / N, tiles_of(a));
    return launch(s, a->dependent, many<PACK, M, N>, grid, THREADS, shared_bytes<PACK, M, N>(), *a);
}

template <int PACK, int M> static cudaError_t by_rows(cudaStream_t s, const cuda_product *a)
{
    if (a->n_rows <= 8) return launch_many<PACK, M, 8>(s, a);
    if (a->n_rows <= 16) return launch_many<PACK, M, 16>(s, a);
    if (a->n_rows <= 32) return launch_many<PACK, M, 32>(s, a);
    return launch_many<PACK, M, 64>(s, a);
}

template <int PACK> static cudaError_t by_matrices(cudaStream_t s, const cuda_product *a)
{
    return a->epilogue == CUDA_GATE ? by_rows<PACK, 2>(s, a) : by_rows<PACK, 1>(s, a);
}

extern "C" cudaError_t cuda_launch_many(cudaStream_t s, const struct cuda_product *a)
{
    if (a->pack == CUDA_Q4_0) return by_matrices<CUDA_Q4_0>(s, a);
    if (a->pack == CUDA_Q4_1) return by_matrices<CUDA_Q4_1>(s, a);
    return by_matrices<CUDA_Q8_0>(s, a);
}

template <int PACK, int M, int N> static cudaError_t allow()
{
    return cudaFuncSetAttribute(many<PACK, M, N>, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                shared_bytes<PACK, M, N>());
}

template <int PACK, int M> static cudaError_t allow_rows()
{
    cudaError_t e = allow<PACK, M, 8>();
    if (!e) e = allow<PACK, M, 16>();
    if (!e) e = allow<PACK, M, 32>();
    return e ? e : allow<PACK, M, 64>();
}

template <int PACK> static cudaError_t allow_matrices()
{
    cudaError_t e = allow_rows<PACK, 1>();
    return e ? e : allow_rows<PACK, 2>();
}

extern "C" cudaError_t cuda_many_prepare(void)
{
    cudaError_t e = allow_matrices<CUDA_Q4_0>();
    if (!e) e = allow_matrices<CUDA_Q4_1>();
    return e ? e : allow_matrices<CUDA_Q8_0>();
}
