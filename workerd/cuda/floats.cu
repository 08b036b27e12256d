/* SPDX-License-Identifier: MIT */
/*
 * y = W x with F16 or F32 weights and float32 activations: models kept in floats, and the float32
 * reference. Not made for speed. A tile is 32 outputs by four token rows; eight lanes share an
 * output, lane j takes the blocks of 32 k with b = j mod 8 in order, each k by one fma; shuffles
 * join them. Also which kernel a product takes.
 */
#include "workerd/cuda/epilogue.cuh"

enum {
    THREADS = 256,
    ROWS = 4,
    FEW_ROWS = 64, /* two tiles of few.cu, which share weights in the L2; half a tile of many.cu */
};

template <int PACK> __device__ __forceinline__ float weight_at(const void *row, uint32_t k)
{
    return PACK == CUDA_F16 ? __half2float(((const __half *)row)[k]) : ((const float *)row)[k];
}

template <int PACK>
__device__ __forceinline__ void dot_rows(const cuda_product &a, const cuda_matrix &w, uint32_t of,
                                         uint32_t row0, uint32_t j, float acc[ROWS])
{
    const uint32_t value_bytes = PACK == CUDA_F16 ? 2 : 4;
    const void *codes = (const uint8_t *)w.codes + (uint64_t)of * w.n_in * value_bytes;
    const float *x[ROWS];
    for (uint32_t r = 0; r < ROWS; r++) {
        acc[r] = 0;
        x[r] = a.x.f + (uint64_t)min(row0 + r, a.n_rows - 1) * a.x.width;
    }
    for (uint32_t b = j; b < w.n_in / CUDA_BLOCK; b += 8)
        for (uint32_t k = b * CUDA_BLOCK; k < (b + 1) * CUDA_BLOCK; k++) {
            float v = weight_at<PACK>(codes, k);
#pragma unroll
            for (uint32_t r = 0; r < ROWS; r++)
                acc[r] = fmaf(v, x[r][k], acc[r]);
        }
    for (uint32_t r = 0; r < ROWS; r++)
        for (int o = 4; o; o >>= 1)
            acc[r] += __shfl_xor_sync(~0u, acc[r], o);
}

template <int PACK> __global__ void __launch_bounds__(THREADS) floats(const cuda_product a)
{
    __shared__ __align__(16) float out[2][ROWS][CUDA_TILE];
    const uint32_t warp = threadIdx.x / WARP, lane = threadIdx.x % WARP, j = lane % 8;
    const uint32_t o = warp * 4 + lane / 8, row0 = blockIdx.y * ROWS;
    const uint32_t n = a.epilogue == CUDA_GATE ? 2 : 1;
    const tile_place place = place_of(a, blockIdx.x, CUDA_TILE);
    dependency_release();
    dependency_wait();
    for (uint32_t m = 0; m < n; m++) {
        const cuda_matrix &w = a.m[place.matrix + m];
        float acc[ROWS];
        dot_rows<PACK>(a, w, min(place.first + o, w.n_out - 1), row0, j, acc);
        for (uint32_t r = 0; j == 0 && r < ROWS; r++)
            out[m][r][o] = acc[r];
    }
    __syncthreads();
    if (warp > 0) return; /* a row is eight lanes' */
    const uint32_t r = lane / 8, row = min(row0 + r, a.n_rows - 1), of = lane % 8 * 4;
    before b = read_before(a, place.matrix, place.first + of, row, row_scale(a, row));
    if (row0 + r >= a.n_rows) b.leave_out();
    epilogue(a, place.matrix, place.first + of, row, b, *(const float4 *)&out[0][r][of],
             *(const float4 *)&out[n - 1][r][of]);
}

extern "C" cudaError_t cuda_launch_floats(cudaStream_t s, const struct cuda_product *a)
{
    dim3 grid(tiles_of(a, CUDA_TILE), (a->n_rows + ROWS - 1) / ROWS);
    return a->pack == CUDA_F16 ? launch(s, a->dependent, floats<CUDA_F16>, grid, THREADS, 0, *a)
                               : launch(s, a->dependent, floats<CUDA_F32>, grid, THREADS, 0, *a);
}

extern "C" cudaError_t cuda_launch_product(cudaStream_t s, const struct cuda_product *a)
{
    if (cuda_is_float(a->pack)) return cuda_launch_floats(s, a);
    if (a->halves) return cuda_launch_halves(s, a);
    return a->n_rows <= FEW_ROWS || !a->many ? cuda_launch_few(s, a) : cuda_launch_many(s, a);
}

extern "C" cudaError_t cuda_product_prepare(struct cuda_product_ways *ret)
{
    cudaFuncAttributes of;
    cudaError_t e = cudaFuncGetAttributes(&of, floats<CUDA_F16>);
    if (!e) e = cuda_few_prepare(&ret->deep);
    if (e) return e;
    /* Of the code that was compiled, not of the card: older PTX holds no wait. */
    ret->overlaps = of.ptxVersion >= 90;
    ret->halves = cuda_halves_prepare();
    return cuda_many_prepare(&ret->many);
}
