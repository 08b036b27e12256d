// SPDX-License-Identifier: MIT
// Reads memory with all of a card, 16 bytes a load: what memory_kinds measures reads by. One block of
// 512 threads for each half of a multiprocessor's threads; the sum is stored so that no load is left out.
#include <cuda_runtime.h>

static __global__ void read_all(const uint4 *from, size_t n, unsigned long long *sum)
{
    unsigned long long s = 0;
    for (size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x; i < n;
         i += (size_t)gridDim.x * blockDim.x) {
        uint4 v = from[i];
        s += v.x + v.y + v.z + v.w;
    }
    atomicAdd(sum, s);
}

extern "C" cudaError_t bench_read(cudaStream_t stream, const void *from, size_t bytes,
                                  unsigned long long *sum)
{
    read_all<<<264, 512, 0, stream>>>((const uint4 *)from, bytes / 16, sum);
    return cudaGetLastError();
}
