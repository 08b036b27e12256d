/* SPDX-License-Identifier: MIT */
/*
 * Rounds the K and V of a window's rows into their cells (keep.cuh), for formats of 8 and 4 bits:
 * a tile of a product does not hold whole groups. Where each row is of a lane of its own, K/V of 8
 * bits needs no kernel for it: flash.cu.
 */
#include "workerd/cuda/keep.cuh"

enum { THREADS = 128 };

__global__ void __launch_bounds__(THREADS) keep(const cuda_keep a)
{
    dependency_release();
    dependency_wait();
    const uint32_t heads = a.kv.n_kv_heads * a.kv.n_groups;
    const uint32_t task = (blockIdx.x * THREADS + threadIdx.x) / GROUP_LANES;
    const uint32_t row = min(task / (2 * heads), a.n_rows - 1);
    const uint32_t head = task % heads / a.kv.n_groups, group = task % a.kv.n_groups;
    const bool is_v = task / heads % 2;
    const float4 v = kept_quad::ask(a.kv, row, is_v, head, group);
    const kept_quad q(a.kv, v, is_v, head, group, task / (2 * heads) < a.n_rows);
    const cuda_row place = a.kv.rows[row];
    q.write(a.kv, place, entry_of(a.kv, place.lane, place.pos));
}

extern "C" cudaError_t cuda_launch_keep(cudaStream_t s, const struct cuda_keep *a)
{
    uint64_t lanes = (uint64_t)a->n_rows * 2 * a->kv.n_kv_heads * a->kv.n_groups * GROUP_LANES;
    dim3 grid((uint32_t)((lanes + THREADS - 1) / THREADS));
    return launch(s, a->dependent, keep, grid, THREADS, 0, *a);
}
