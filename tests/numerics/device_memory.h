/* SPDX-License-Identifier: MIT */
#ifndef TESTS_NUMERICS_DEVICE_MEMORY_H
#define TESTS_NUMERICS_DEVICE_MEMORY_H
/* Memory of the first GPU for tests of single kernels. What fails ends the test. */
#include <cuda_runtime.h>
#include <stdint.h>

void ok(cudaError_t e);
/* The device's copy of from[bytes], or zeros; until give_all. */
void *get(uint64_t bytes, const void *from);
void give_all(void);

#endif
