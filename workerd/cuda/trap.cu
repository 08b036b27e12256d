/* SPDX-License-Identifier: MIT */
/*
 * A kernel that fails, for tests: what an illegal access or a broken card looks like to the host.
 * Only in builds with -Ddeath_points=true.
 */
#include "workerd/cuda/kernels.h"
#include "workerd/cuda/machine.cuh"

static __global__ void trap() { __trap(); }

extern "C" cudaError_t cuda_launch_trap(cudaStream_t s)
{
    return launch(s, false, trap, dim3(1), WARP, 0);
}
