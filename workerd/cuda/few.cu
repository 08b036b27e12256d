/* SPDX-License-Identifier: MIT */
/*
 * y = W x for one to four token rows, W quantised: what generating one token reads, so it is held
 * against the bandwidth of device memory.
 *
 * The arithmetic of an element, here and in many.cu, whatever the number of rows: block b of 32 k
 * gives isum, the exact integer sum of the codes' products; sum j of eight takes the blocks
 * b = j mod 8 in order,
 *     p[j] = fma(isum, dw * dx, p[j])   and for Q4_1   p[j] = fma(mw, dx * sum(x), p[j]);
 * then sum8 adds them.
 *
 * A block of threads makes one tile of 32 outputs: a warp four of them, eight lanes each, lane j
 * the sum j. So a load of a warp is four pieces of 128 consecutive bytes. The first weights are
 * asked for before the kernel waits for its predecessor.
 */
#include "workerd/cuda/epilogue.cuh"

enum { THREADS = 256, ROWS_MAX = 4, FEW_SHARED_MAX = 160 << 10 };

template <int PACK> struct piece { /* a lane's block of 32 values */
    int4 w[PACK == CUDA_Q8_0 ? 2 : 1];
    __half2 s;
};

template <int PACK>
__device__ __forceinline__ void piece_load(piece<PACK> &p, const int4 *codes, const __half *scales,
                                           uint32_t group, uint32_t n_groups, uint32_t j)
{
    if (group >= n_groups) {
        p.w[0] = make_int4(0, 0, 0, 0);
        if (PACK == CUDA_Q8_0) p.w[PACK == CUDA_Q8_0] = p.w[0];
        p.s = __half2half2(__ushort_as_half(0));
        return;
    }
    if (PACK == CUDA_Q8_0) {
        p.w[0] = __ldcs(codes + group * 16 + j);
        p.w[PACK == CUDA_Q8_0] = __ldcs(codes + group * 16 + 8 + j);
    } else {
        p.w[0] = __ldcs(codes + group * 8 + j);
    }
    if (PACK == CUDA_Q4_1)
        p.s = *((const __half2 *)scales + group * 8 + j);
    else
        p.s = __half2half2(scales[group * 8 + j]);
}

__device__ __forceinline__ int dot16(int4 a, int4 b, int sum)
{
    sum = __dp4a(a.x, b.x, sum);
    sum = __dp4a(a.y, b.y, sum);
    sum = __dp4a(a.z, b.z, sum);
    return __dp4a(a.w, b.w, sum);
}

__device__ __forceinline__ int4 low4(int4 v)
{
    return make_int4(v.x & 0x0f0f0f0f, v.y & 0x0f0f0f0f, v.z & 0x0f0f0f0f, v.w & 0x0f0f0f0f);
}
__device__ __forceinline__ int4 high4(int4 v)
{
    return make_int4(v.x >> 4 & 0x0f0f0f0f, v.y >> 4 & 0x0f0f0f0f, v.z >> 4 & 0x0f0f0f0f,
                     v.w >> 4 & 0x0f0f0f0f);
}

template <int PACK>
__device__ __forceinline__ float piece_dot(const piece<PACK> &p, int4 x0, int4 x1, float2 ds,
                                           float acc)
{
    float d = __low2float(p.s) * ds.x;
    if (PACK == CUDA_Q8_0)
        return fmaf((float)dot16(p.w[PACK == CUDA_Q8_0], x1, dot16(p.w[0], x0, 0)), d, acc);
    int sum = dot16(high4(p.w[0]), x1, dot16(low4(p.w[0]), x0, 0));
    if (PACK == CUDA_Q4_0) return fmaf((float)(sum - 8 * (int)ds.y), d, acc);
    acc = fmaf((float)sum, d, acc);
    return fmaf(__high2float(p.s), ds.x * ds.y, acc);
}

/* x of R rows into shared memory: codes, then {scale, sum}. Rows past the last repeat it. */
template <int R>
__device__ __forceinline__ void x_load(const cuda_product &a, uint32_t row0, int4 *xq, float2 *xs)
{
    uint32_t n16 = a.x.k_pad / 16, nb = a.x.k_pad / CUDA_BLOCK;
#pragma unroll
    for (int r = 0; r < R; r++) {
        uint64_t row = min(row0 + r, a.n_rows - 1);
        const int4 *q = (const int4 *)(a.x.q + row * a.x.k_pad);
        const float2 *s = (const float2 *)a.x.ds + row * nb;
        for (uint32_t i = threadIdx.x; i < n16; i += THREADS)
            xq[r * n16 + i] = q[i];
        for (uint32_t i = threadIdx.x; i < nb; i += THREADS)
            xs[r * nb + i] = s[i];
    }
}

/* M matrices (two for CUDA_GATE) by R rows. A ring of U groups of eight blocks is on its way: 64
 * KiB a block of threads, two of which a multiprocessor holds. */
template <int PACK, int M, int R, int U>
__global__ void __launch_bounds__(THREADS, 2) few(const cuda_product a)
{
    extern __shared__ int4 shared[];
    __shared__ float out[M][R][CUDA_TILE];
    const uint32_t warp = threadIdx.x / WARP, lane = threadIdx.x % WARP, j = lane % 8;
    const uint32_t n_groups = a.x.k_pad / CUDA_GROUP, row0 = blockIdx.y * R;
    const tile_place place = place_of(a, blockIdx.x);
    const uint32_t o = warp * 4 + lane / 8;
    const int4 *codes[M];
    const __half *scales[M];
    piece<PACK> ring[M][U];
#pragma unroll
    for (int m = 0; m < M; m++) {
        const cuda_matrix &w = a.m[place.matrix + m];
        uint64_t of = min(place.first + o, w.n_out - 1);
        codes[m] = (const int4 *)w.codes + of * n_groups * (PACK == CUDA_Q8_0 ? 16 : 8);
        scales[m] = (const __half *)w.scales + of * n_groups * (PACK == CUDA_Q4_1 ? 16 : 8);
    }
#pragma unroll
    for (int u = 0; u < U; u++)
#pragma unroll
        for (int m = 0; m < M; m++)
            piece_load<PACK>(ring[m][u], codes[m], scales[m], u, n_groups, j);
    dependency_wait();
    int4 *xq = shared;
    float2 *xs = (float2 *)(shared + R * (a.x.k_pad / 16));
    x_load<R>(a, row0, xq, xs);
    __syncthreads();
    dependency_release();
    float acc[M][R] = {};
    for (uint32_t g = 0; g < n_groups; g += U) {
#pragma unroll
        for (int u = 0; u < U; u++) {
            if (g + u >= n_groups) break;
#pragma unroll
            for (int r = 0; r < R; r++) {
                const int4 *q = xq + r * (a.x.k_pad / 16) + (g + u) * 16 + j;
                float2 ds = xs[r * (a.x.k_pad / CUDA_BLOCK) + (g + u) * 8 + j];
                int4 x0 = q[0], x1 = q[8];
#pragma unroll
                for (int m = 0; m < M; m++)
                    acc[m][r] = piece_dot<PACK>(ring[m][u], x0, x1, ds, acc[m][r]);
            }
#pragma unroll
            for (int m = 0; m < M; m++)
                piece_load<PACK>(ring[m][u], codes[m], scales[m], g + U + u, n_groups, j);
        }
    }
#pragma unroll
    for (int m = 0; m < M; m++)
#pragma unroll
        for (int r = 0; r < R; r++) {
            float v = acc[m][r];
            v += __shfl_xor_sync(~0u, v, 4);
            v += __shfl_xor_sync(~0u, v, 2);
            v += __shfl_xor_sync(~0u, v, 1);
            if (j == 0) out[m][r][o] = v;
        }
    __syncthreads();
    if (warp < R && row0 + warp < a.n_rows)
        epilogue(a, place, row0 + warp, lane, out[0][warp][lane], out[M - 1][warp][lane]);
}

/* Groups ahead: what 128 registers hold beside the rest. */
template <int PACK, int M> constexpr int ahead() { return (PACK == CUDA_Q8_0 ? 8 : 12) / M; }

template <int PACK, int M, int R>
static cudaError_t launch_few(cudaStream_t s, const cuda_product *a)
{
    const int U = ahead<PACK, M>();
    dim3 grid(tiles_of(a), (a->n_rows + R - 1) / R);
    size_t bytes = (size_t)R * (a->x.k_pad + a->x.k_pad / CUDA_BLOCK * sizeof(float2));
    return launch(s, a->dependent, few<PACK, M, R, U>, grid, THREADS, bytes, *a);
}

template <int PACK, int M> static cudaError_t by_rows(cudaStream_t s, const cuda_product *a)
{
    size_t row_bytes = a->x.k_pad + a->x.k_pad / CUDA_BLOCK * sizeof(float2);
    if (a->n_rows == 1 || row_bytes * 2 > FEW_SHARED_MAX) return launch_few<PACK, M, 1>(s, a);
    if (a->n_rows == 2 || row_bytes * 4 > FEW_SHARED_MAX) return launch_few<PACK, M, 2>(s, a);
    return launch_few<PACK, M, 4>(s, a);
}

template <int PACK> static cudaError_t by_matrices(cudaStream_t s, const cuda_product *a)
{
    return a->epilogue == CUDA_GATE ? by_rows<PACK, 2>(s, a) : by_rows<PACK, 1>(s, a);
}

extern "C" cudaError_t cuda_launch_few(cudaStream_t s, const struct cuda_product *a)
{
    if (a->pack == CUDA_Q4_0) return by_matrices<CUDA_Q4_0>(s, a);
    if (a->pack == CUDA_Q4_1) return by_matrices<CUDA_Q4_1>(s, a);
    return by_matrices<CUDA_Q8_0>(s, a);
}

template <int PACK, int M, int R> static cudaError_t allow()
{
    const int U = ahead<PACK, M>();
    return cudaFuncSetAttribute(few<PACK, M, R, U>, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                FEW_SHARED_MAX / (R == 1 ? 2 : 1));
}

template <int PACK, int M> static cudaError_t allow_rows()
{
    cudaError_t e = allow<PACK, M, 1>();
    if (!e) e = allow<PACK, M, 2>();
    return e ? e : allow<PACK, M, 4>();
}

template <int PACK> static cudaError_t allow_matrices()
{
    cudaError_t e = allow_rows<PACK, 1>();
    return e ? e : allow_rows<PACK, 2>();
}

extern "C" cudaError_t cuda_few_prepare(void)
{
    cudaError_t e = allow_matrices<CUDA_Q4_0>();
    if (!e) e = allow_matrices<CUDA_Q4_1>();
    return e ? e : allow_matrices<CUDA_Q8_0>();
}
