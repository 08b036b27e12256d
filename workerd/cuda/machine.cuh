/* SPDX-License-Identifier: MIT */
#ifndef WORKERD_CUDA_MACHINE_CUH
#define WORKERD_CUDA_MACHINE_CUH
/*
 * The instructions that C++ has no words for, and how a kernel is launched. Fragments are those of
 * the PTX manual's mma: a warp's lane has row lane / 4 (and 8 more) of A and C, column lane / 4 of
 * B.
 */
#include <cuda_fp16.h>
#include <cuda_runtime.h>
#include <stdint.h>

enum { WARP = 32 };

/* Programmatic dependent launch (sm_90 on): every kernel of a window waits here before it touches
 * anything that an earlier one wrote, so what it sees is complete, also through several kernels.
 * Before the wait only what no kernel of the window writes may be read: weights, rows, tables, and
 * cells that the windows before have written, which are on the same stream. */
__device__ __forceinline__ void dependency_wait()
{
#if __CUDA_ARCH__ >= 900
    cudaGridDependencySynchronize();
#endif
}
/* The next kernel may begin where there is room. First thing in each kernel: what comes early asks
 * for what it may, and waits as above. */
__device__ __forceinline__ void dependency_release()
{
#if __CUDA_ARCH__ >= 900
    cudaTriggerProgrammaticLaunchCompletion();
#endif
}

template <typename... A, typename... B>
static cudaError_t launch(cudaStream_t s, bool dependent, void (*kernel)(A...), dim3 grid,
                          unsigned threads, size_t shared_bytes, B... args)
{
    cudaLaunchConfig_t c = {};
    cudaLaunchAttribute at = {};
    at.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    at.val.programmaticStreamSerializationAllowed = 1;
    c.gridDim = grid;
    c.blockDim = threads;
    c.dynamicSmemBytes = shared_bytes;
    c.stream = s;
    c.attrs = &at;
    c.numAttrs = dependent ? 1 : 0;
    return cudaLaunchKernelEx(&c, kernel, A(args)...);
}

/* Lets a kernel's launches ask for so much shared memory. */
template <typename... A> static cudaError_t allow_shared(void (*kernel)(A...), int bytes)
{
    return cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
}

/* The shared memory that the launch asked for. */
__device__ __forceinline__ uint8_t *shared_memory()
{
    extern __shared__ __align__(128) uint8_t shared[];
    return shared;
}

__device__ __forceinline__ uint32_t shared_address(const void *p)
{
    return (uint32_t)__cvta_generic_to_shared(p);
}

/* Copies into shared memory that go on while the thread does; a group is what was asked for since
 * the last commit. */
__device__ __forceinline__ void copy16(void *to, const void *from)
{
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(shared_address(to)), "l"(from)
                 : "memory");
}
__device__ __forceinline__ void copy8(void *to, const void *from)
{
    asm volatile("cp.async.ca.shared.global [%0], [%1], 8;" ::"r"(shared_address(to)), "l"(from)
                 : "memory");
}
__device__ __forceinline__ void copy4(void *to, const void *from)
{
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"(shared_address(to)), "l"(from)
                 : "memory");
}
/* The first `bytes` of 16 and zeros behind them; `from` must be an address also when there are
 * none.
 */
__device__ __forceinline__ void copy16_first(void *to, const void *from, uint32_t bytes)
{
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared_address(to)),
                 "l"(from), "r"(bytes)
                 : "memory");
}
__device__ __forceinline__ void copies_commit()
{
    asm volatile("cp.async.commit_group;" ::: "memory");
}
template <int LEFT> __device__ __forceinline__ void copies_wait()
{
    asm volatile("cp.async.wait_group %0;" ::"n"(LEFT) : "memory");
}

/* Waits for the other threads, `threads` in all, that name the same barrier (0 is __syncthreads').
 */
__device__ __forceinline__ void barrier_wait(int barrier, int threads)
{
    asm volatile("bar.sync %0, %1;" ::"r"(barrier), "r"(threads) : "memory");
}

/* d = a b + c: 16 rows by 8 columns, k 32, int8 codes and exact integer sums. */
__device__ __forceinline__ void mma_s8(int d[4], const uint32_t a[4], const uint32_t b[2], int c0,
                                       int c1)
{
    asm("mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
        "{%10,%11,%10,%11};"
        : "=r"(d[0]), "=r"(d[1]), "=r"(d[2]), "=r"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]), "r"(c0), "r"(c1));
}

/* c += a b: 16 rows by 8 columns, k 16, halves and float32 sums. */
__device__ __forceinline__ void mma_f16(float c[4], const uint32_t a[4], uint32_t b0, uint32_t b1)
{
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
        "{%0,%1,%2,%3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

/* Four matrices of 8 x 8 halves: lane l names row l % 8 of matrix l / 8 and gets row l / 4, columns
 * 2 (l % 4) and the next, of each. */
__device__ __forceinline__ void load_matrices(uint32_t r[4], const void *row)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(shared_address(row))
                 : "memory");
}
/* The same, each matrix transposed. */
__device__ __forceinline__ void load_transposed(uint32_t r[4], const void *row)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(shared_address(row))
                 : "memory");
}

/* 2^x; results below the least normal number are 0. */
__device__ __forceinline__ float power_of_2(float x)
{
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

#endif
