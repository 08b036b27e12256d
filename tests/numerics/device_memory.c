/* SPDX-License-Identifier: MIT */
#include "tests/numerics/device_memory.h"

#include <check.h>
#include <stddef.h>

static void *got[32];
static uint32_t n_got;

void ok(cudaError_t e) { ck_assert_msg(e == cudaSuccess, "%s", cudaGetErrorString(e)); }

void *get(uint64_t bytes, const void *from)
{
    void *p = NULL;
    ok(cudaMalloc(&p, bytes));
    if (from) ok(cudaMemcpyAsync(p, from, bytes, cudaMemcpyHostToDevice, NULL));
    if (!from) ok(cudaMemsetAsync(p, 0, bytes, NULL));
    ok(cudaStreamSynchronize(NULL));
    got[n_got++] = p;
    return p;
}

void give_all(void)
{
    while (n_got > 0)
        ok(cudaFree(got[--n_got]));
}
