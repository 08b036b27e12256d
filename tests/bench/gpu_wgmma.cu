/* SPDX-License-Identifier: MIT */
/*
 * Whether wgmma and mma.sync make the same bits of halves, which groups.cu builds on; prints CSV.
 * For each kind of data 264 products of 64 x 128 by 128 x 128 values as groups.cu has them made: A
 * and B from shared memory, as scores are, and A from registers and B's rows across, as values are;
 * the same sums by mma_f16, with the same k in the same order; how many of them differ.
 *
 *   gpu_wgmma [SEED]       uses cuda:0; ends with 1 if any bit differs
 */
#include "workerd/cuda/warpgroup.cuh"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { M = 64, N = 128, K = 128, PRODUCTS = 264, A_HALVES = M * K, B_HALVES = N * K };
enum { MEMORY = (A_HALVES + B_HALVES) * 2, THREADS = 128, SUMS = M * N, KINDS = 8 };

#define OK(call)                                                                                   \
    do {                                                                                           \
        cudaError_t e_ = (call);                                                                   \
        if (e_ != cudaSuccess) {                                                                   \
            fprintf(stderr, "%s: %s\n", #call, cudaGetErrorString(e_));                            \
            exit(2);                                                                               \
        }                                                                                          \
    } while (0)

/* Rows of 128 halves as two slabs of `rows` rows of 64, swizzled. */
__device__ __forceinline__ __half *put(__half *to, const __half *from, int rows)
{
    for (int i = threadIdx.x; i < rows * 16; i += THREADS) {
        const int row = i / 16, sixteen = i % 16;
        *(uint4 *)(to + sixteen / 8 * rows * 64 + row * 64 + (sixteen % 8 ^ row % 8) * 8) =
            ((const uint4 *)from)[i];
    }
    return to;
}

/* A's fragment of 16 k, and B's of 16 k and 8 columns, as mma.sync has them. */
__device__ __forceinline__ void fragment(const __half *a, int row, int k, int t, uint32_t to[4])
{
    for (int e = 0; e < 4; e++)
        to[e] = *(const uint32_t *)(a + (row + e % 2 * 8) * K + k * 16 + e / 2 * 8 + t * 2);
}
__device__ __forceinline__ uint32_t pair(const __half *b, int n, int k, bool across)
{
    const __half2 v = across ? __half2{b[k * N + n], b[(k + 1) * N + n]}
                             : __half2{b[n * K + k], b[n * K + k + 1]};
    return *(const uint32_t *)&v;
}

/* A [M][K], B [N][K], or [K][N] where across; c and d [M][N]; d = c + A B. */
template <bool ACROSS, bool BY_WARPS>
static __global__ void __launch_bounds__(THREADS)
    product(const __half *a, const __half *b, const float *c, float *d)
{
#ifdef WARPGROUPS
    a += blockIdx.x * A_HALVES, b += blockIdx.x * B_HALVES;
    c += blockIdx.x * SUMS, d += blockIdx.x * SUMS;
    const __half *at = put((__half *)shared_memory(), a, M);
    const __half *bt = put((__half *)shared_memory() + A_HALVES, b, N);
    const int row = threadIdx.x / WARP * 16 + threadIdx.x % WARP / 4, t = threadIdx.x % 4;
    float s[16][4];
    for (int i = 0; i < 64; i++)
        s[i / 4][i % 4] = c[(row + i % 4 / 2 * 8) * N + i / 4 * 8 + t * 2 + i % 2];
    uint32_t f[K / 16][4];
    for (int k = 0; k < K / 16; k++)
        fragment(a, row, k, t, f[k]);
    group_publish();
    __syncthreads();
    group_begin();
#pragma unroll
    for (int k = 0; k < K / 16; k++) {
        const uint64_t of_a = matrix_at(at + k / 4 * M * 64 + k % 4 * 16, 0);
        const uint64_t of_b = ACROSS ? matrix_at(bt + k * 16 * 64, N * 64 * 2)
                                     : matrix_at(bt + k / 4 * N * 64 + k % 4 * 16, 0);
        if (BY_WARPS) {
#pragma unroll
            for (int n = 0; n < 16; n++)
                mma_f16(s[n], f[k], pair(b, n * 8 + row % 8, k * 16 + t * 2, ACROSS),
                        pair(b, n * 8 + row % 8, k * 16 + t * 2 + 8, ACROSS));
        } else if (ACROSS) {
            group_product_across<16, false>(s, f[k], of_b);
        } else {
            group_product<false>(s, of_a, of_b);
        }
    }
    group_commit();
    group_wait<16>(s);
    for (int i = 0; i < 64; i++)
        d[(row + i % 4 / 2 * 8) * N + i / 4 * 8 + t * 2 + i % 2] = s[i / 4][i % 4];
#endif
}

/* A half's bits. Sums of the kinds: ordinary; of any size; with much that is lost beside little; of
 * subnormal numbers; few and far apart; weights up to 1; the largest, which cancel. */
static uint16_t half_of(int kind)
{
    const uint16_t r = (uint16_t)(rand() >> 3 ^ rand() << 9), sign = r & 0x8000, low = r & 0x3ff;
    const __half ordinary = __float2half((float)rand() / (float)RAND_MAX - 0.5f);
    uint16_t bits;
    switch (kind) {
    case 0:
        memcpy(&bits, &ordinary, 2);
        return bits;
    case 1:
        return r & 0xfbff;
    case 2:
        return sign | low | (uint16_t)(rand() % 31 << 10);
    case 3:
        return rand() % 4 ? sign | 0x3c00 | low : r & 0xfbff;
    case 4:
        return sign | low;
    case 5:
        return rand() % 8 ? 0 : sign | (rand() % 2 ? 0x7800 : 0x0400) | low;
    case 6:
        return (uint16_t)(0x3c00 - (rand() % 12 << 10)) | low;
    default:
        return sign | 0x7bff;
    }
}

/* mixed: half of B is of the other kinds, and the sums begin with something. */
static void fill(int kind, bool mixed, uint16_t *a, uint16_t *b, float *c)
{
    for (int i = 0; i < PRODUCTS * A_HALVES; i++)
        a[i] = half_of(kind);
    for (int i = 0; i < PRODUCTS * B_HALVES; i++)
        b[i] = half_of(mixed && rand() % 2 ? (kind + i / 7) % KINDS : kind);
    for (int i = 0; i < PRODUCTS * SUMS; i++)
        c[i] = mixed ? ((float)rand() / (float)RAND_MAX - 0.5f) * (float)(1 << rand() % 30) /
                           (float)(1 << 15)
                     : 0;
}

template <bool ACROSS, bool BY_WARPS>
static void run(const void *a, const void *b, const void *c, void *d, float *to)
{
    OK(allow_shared(product<ACROSS, BY_WARPS>, MEMORY));
    OK(cudaMemset(d, 0xff, PRODUCTS * SUMS * sizeof(float)));
    product<ACROSS, BY_WARPS><<<PRODUCTS, THREADS, MEMORY>>>((const __half *)a, (const __half *)b,
                                                             (const float *)c, (float *)d);
    OK(cudaGetLastError());
    OK(cudaMemcpy(to, d, PRODUCTS * SUMS * sizeof(float), cudaMemcpyDeviceToHost));
}

static int differ(const float *x, const float *y)
{
    int n = 0;
    for (int i = 0; i < PRODUCTS * SUMS; i++)
        n += memcmp(&x[i], &y[i], sizeof(*x)) != 0;
    return n;
}

int main(int argc, char **argv)
{
    const size_t bytes[4] = {(size_t)PRODUCTS * A_HALVES * 2, (size_t)PRODUCTS * B_HALVES * 2,
                             PRODUCTS * SUMS * sizeof(float), PRODUCTS * SUMS * sizeof(float)};
    void *host[4], *card[4];
    float *other = (float *)malloc(bytes[3]);
    cudaFuncAttributes of;
    int bad = 0;
    srand(argc > 1 ? (unsigned)atoi(argv[1]) : 1);
    OK(cudaFuncGetAttributes(&of, product<false, false>));
    if (of.ptxVersion != 90) return fprintf(stderr, "no card with wgmma\n"), 2;
    for (int i = 0; i < 4; i++) {
        host[i] = malloc(bytes[i]);
        OK(cudaMalloc(&card[i], bytes[i]));
    }
    printf("kind,mixed,sums,scores differ,values differ\n");
    for (int kind = 0; kind < 2 * KINDS; kind++) {
        int n[2];
        fill(kind / 2, kind % 2, (uint16_t *)host[0], (uint16_t *)host[1], (float *)host[2]);
        for (int i = 0; i < 3; i++)
            OK(cudaMemcpy(card[i], host[i], bytes[i], cudaMemcpyHostToDevice));
        run<false, true>(card[0], card[1], card[2], card[3], (float *)host[3]);
        run<false, false>(card[0], card[1], card[2], card[3], other);
        n[0] = differ((float *)host[3], other);
        run<true, true>(card[0], card[1], card[2], card[3], (float *)host[3]);
        run<true, false>(card[0], card[1], card[2], card[3], other);
        n[1] = differ((float *)host[3], other);
        printf("%d,%d,%d,%d,%d\n", kind / 2, kind % 2, PRODUCTS * SUMS, n[0], n[1]);
        bad |= n[0] | n[1];
    }
    return bad != 0;
}
