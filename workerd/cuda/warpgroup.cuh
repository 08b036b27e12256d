/* SPDX-License-Identifier: MIT */
#ifndef WORKERD_CUDA_WARPGROUP_CUH
#define WORKERD_CUDA_WARPGROUP_CUH
/*
 * wgmma: four warps multiply 64 rows together, with B (and A) read from shared memory by the tensor
 * cores themselves, while the warps do something else. In code of sm_90a alone. Of halves it makes
 * the same bits as mma.sync with the same k in the same order (tests/bench/gpu_wgmma.cu; so does
 * the model of arXiv:2511.10909). A warp has 16 rows, its lanes what mma's would have.
 *
 * group_begin, products, group_commit, and group_wait before the sums, or A's registers, are
 * touched.
 */
#include "workerd/cuda/machine.cuh"

#ifdef __CUDA_ARCH_FEAT_SM90_ALL
#define WARPGROUPS
#endif

/* Eight rows of 128 bytes each, swizzled: what the descriptor calls its stride. */
enum { SWIZZLE_BYTES = 1024 };

/* Of a matrix in shared memory that begins at a multiple of 1 KiB in rows of 64 halves, swizzled,
 * of which this is a part. slab_bytes: from 64 of its columns to the next, if it is read
 * transposed. */
__device__ __forceinline__ uint64_t matrix_at(const void *p, uint32_t slab_bytes)
{
    return (uint64_t)(shared_address(p) >> 4) | (uint64_t)(slab_bytes >> 4) << 16 |
           (uint64_t)(SWIZZLE_BYTES >> 4) << 32 | (uint64_t)1 << 62;
}

#define REGISTERS_16 "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15"
#define REGISTERS_32 REGISTERS_16 ",%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31"
#define REGISTERS_64                                                                               \
    REGISTERS_32 ",%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47,%48,%49,%50,"   \
                 "%51,%52,%53,%54,%55,%56,%57,%58,%59,%60,%61,%62,%63"
#define SUMS_4(way, i) way(d[i][0]), way(d[i][1]), way(d[i][2]), way(d[i][3])
#define SUMS_16(way, i) SUMS_4(way, i), SUMS_4(way, i + 1), SUMS_4(way, i + 2), SUMS_4(way, i + 3)
#define SUMS_OF_16(way) SUMS_16(way, 0)
#define SUMS_32(way) SUMS_16(way, 0), SUMS_16(way, 4)
#define SUMS_64(way) SUMS_32(way), SUMS_16(way, 8), SUMS_16(way, 12)
#define SUM_MADE "=f"
#define SUM_ADDED "+f"
#define WGMMA(n) "wgmma.mma_async.sync.aligned.m64n" #n "k16.f32.f16.f16 "

/* d (+)= A B: 128 columns; k 16; A's rows and B's columns are rows in shared memory. FIRST: what
 * was in d is not added to. */
template <bool FIRST>
__device__ __forceinline__ void group_product(float d[16][4], uint64_t a, uint64_t b)
{
    if (FIRST)
        asm volatile(WGMMA(128) "{" REGISTERS_64 "}, %64, %65, 0, 1, 1, 0, 0;"
                     : SUMS_64(SUM_MADE)
                     : "l"(a), "l"(b));
    else
        asm volatile(WGMMA(128) "{" REGISTERS_64 "}, %64, %65, 1, 1, 1, 0, 0;"
                     : SUMS_64(SUM_ADDED)
                     : "l"(a), "l"(b));
}

/* d (+)= A B: A in registers, B's rows in shared memory, 8 N columns. */
template <int N, bool FIRST>
__device__ __forceinline__ void group_product_across(float d[N][4], const uint32_t a[4], uint64_t b)
{
    if constexpr (N == 16 && FIRST)
        asm volatile(WGMMA(128) "{" REGISTERS_64 "}, {%64,%65,%66,%67}, %68, 0, 1, 1, 1;"
                     : SUMS_64(SUM_MADE)
                     : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
    else if constexpr (N == 16)
        asm volatile(WGMMA(128) "{" REGISTERS_64 "}, {%64,%65,%66,%67}, %68, 1, 1, 1, 1;"
                     : SUMS_64(SUM_ADDED)
                     : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
    else if constexpr (FIRST)
        asm volatile(WGMMA(64) "{" REGISTERS_32 "}, {%32,%33,%34,%35}, %36, 0, 1, 1, 1;"
                     : SUMS_32(SUM_MADE)
                     : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
    else
        asm volatile(WGMMA(64) "{" REGISTERS_32 "}, {%32,%33,%34,%35}, %36, 1, 1, 1, 1;"
                     : SUMS_32(SUM_ADDED)
                     : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
}

/* d (+)= A B: A in registers, B's columns are rows in shared memory, 8 N of them. */
#define PRODUCT_ALONG(n, registers, sums, x, y, z, w, at, is)                                      \
    asm volatile("{\n"                                                                             \
                 ".reg .pred more;\n"                                                              \
                 "setp.eq.b32 more, %" #is ", 0;\n" WGMMA(n) "{" registers "}, {%" #x ",%" #y      \
                                                             ",%" #z ",%" #w "}, %" #at            \
                                                             ", more, 1, 1, 0;\n"                  \
                                                             "}"                                   \
                 : sums(SUM_ADDED)                                                                 \
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"((int)first))
template <int N>
__device__ __forceinline__ void group_product_along(float d[N][4], const uint32_t a[4], uint64_t b,
                                                    bool first)
{
    if constexpr (N == 16)
        PRODUCT_ALONG(128, REGISTERS_64, SUMS_64, 64, 65, 66, 67, 68, 69);
    else if constexpr (N == 8)
        PRODUCT_ALONG(64, REGISTERS_32, SUMS_32, 32, 33, 34, 35, 36, 37);
    else
        PRODUCT_ALONG(32, REGISTERS_16, SUMS_OF_16, 16, 17, 18, 19, 20, 21);
}
#undef PRODUCT_ALONG

/* Registers of this warp that products will use are ready. */
__device__ __forceinline__ void group_begin()
{
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}
__device__ __forceinline__ void group_commit()
{
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}
/* From here on: not before. */
__device__ __forceinline__ void sum_settle(float &sum) { asm volatile("" : "+f"(sum)); }
/* All products are done, and none of their sums is used before. */
template <int N> __device__ __forceinline__ void group_wait(float d[N][4])
{
    asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory");
#pragma unroll
    for (int n = 0; n < N; n++)
#pragma unroll
        for (int i = 0; i < 4; i++)
            sum_settle(d[n][i]);
}

/* All but those of the last commit are done. */
__device__ __forceinline__ void group_wait_but_one()
{
    asm volatile("wgmma.wait_group.sync.aligned 1;" ::: "memory");
}

/* What this thread wrote into shared memory is there for the tensor cores, after the next barrier.
 */
__device__ __forceinline__ void group_publish()
{
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

/* A barrier's phase ends when `count` have arrived; what they had written is seen by who waits. */
__device__ __forceinline__ void phase_init(uint64_t *barrier, uint32_t count)
{
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared_address(barrier)),
                 "r"(count)
                 : "memory");
}
/* They are seen by copies that go on by themselves, after the next barrier. */
__device__ __forceinline__ void phases_publish()
{
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}
__device__ __forceinline__ void phase_arrive(uint64_t *barrier)
{
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(shared_address(barrier))
                 : "memory");
}
/* Returns when the phase of this parity (0: the first) has ended. */
__device__ __forceinline__ void phase_wait(uint64_t *barrier, uint32_t parity)
{
    asm volatile("{\n"
                 ".reg .pred p;\n"
                 "again:\n"
                 "mbarrier.try_wait.parity.shared::cta.b64 p, [%0], %1;\n"
                 "@!p bra again;\n"
                 "}" ::"r"(shared_address(barrier)),
                 "r"(parity)
                 : "memory");
}

/* Arrives for this thread when its copies so far are there. */
__device__ __forceinline__ void copies_arrive(uint64_t *barrier)
{
    asm volatile(
        "cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(shared_address(barrier))
        : "memory");
}
/* Arrives; the phase does not end before all bytes, multiples of 16, are there as well. */
__device__ __forceinline__ void copy_bulk(void *to, const void *from, uint32_t bytes,
                                          uint64_t *barrier)
{
    asm volatile(
        "mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(barrier)),
        "r"(bytes)
        : "memory");
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], "
                 "%2, [%3];" ::"r"(shared_address(to)),
                 "l"(from), "r"(bytes), "r"(shared_address(barrier))
                 : "memory");
}

/* This warpgroup's threads give back registers down to N, or wait for up to N that others gave. */
template <int N> __device__ __forceinline__ void registers_give()
{
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(N));
}
template <int N> __device__ __forceinline__ void registers_take()
{
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(N));
}

#endif
