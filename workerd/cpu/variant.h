/* SPDX-License-Identifier: MIT */
#ifndef WORKERD_CPU_VARIANT_H
#define WORKERD_CPU_VARIANT_H
/*
 * The kernels of one variant, by the names that simd.h's KERNEL gives them; variant.c puts them
 * into its table. Included by kernel files only.
 */
#include "workerd/cpu/cpu.h"
#include "workerd/cpu/simd.h"

void KERNEL(norm)(float *y, const float *x, const float *w, uint32_t n, float eps);
void KERNEL(quantise)(const struct backend_buffer *x, uint32_t row);
void KERNEL(product)(const struct cpu_op *op, uint32_t thread, uint32_t tile, uint32_t row,
                     uint32_t n_rows);
void KERNEL(keep)(const struct cpu_geometry *g, uint8_t *block, uint32_t cell,
                  const struct cpu_group *which, const float *x);
void KERNEL(attend)(const struct cpu_op *op, uint32_t thread, const struct cpu_query *q,
                    uint32_t kv_head);

#endif
