/* SPDX-License-Identifier: MIT */
#ifndef WORKERD_CPU_OPS_H
#define WORKERD_CPU_OPS_H
/*
 * The mathematical operations of backend.h for the CPU (what each computes is said there), and the
 * list that they are enqueued on.
 */
#include "workerd/cpu/cpu.h"

/* Most entries that one operation enqueues. */
enum { CPU_OPS_PER_CALL = 2 };

void cpu_embed(struct backend *b, struct backend_buffer *x, const struct backend_weight *table);
void cpu_load(struct backend *b, struct backend_buffer *x, const float *host);
void cpu_store_rows(struct backend *b, float *host, const struct backend_buffer *x);
void cpu_rms_norm(struct backend *b, struct backend_buffer *y, const struct backend_buffer *x,
                  const struct backend_weight *w);
void cpu_qkv(struct backend *b, struct backend_buffer *q, struct backend_buffer *x,
             struct backend_weight *const w[3], uint32_t layer);
void cpu_attend(struct backend *b, struct backend_buffer *y, const struct backend_buffer *q,
                uint32_t layer);
void cpu_project(struct backend *b, struct backend_buffer *x, struct backend_buffer *y,
                 const struct backend_weight *w);
void cpu_gate_up(struct backend *b, struct backend_buffer *h, struct backend_buffer *x,
                 const struct backend_weight *gate, const struct backend_weight *up);
void cpu_pick(struct backend *b, struct backend_buffer *y, const struct backend_buffer *x,
              const uint32_t *rows, uint32_t n);
void cpu_matmul(struct backend *b, struct backend_buffer *y, struct backend_buffer *x,
                const struct backend_weight *w);
void cpu_sample(struct backend *b, const struct backend_buffer *x, struct sampler_row *rows);
/* Runs the list and empties it. 0, or the first failure since the last sync. */
int cpu_sync(struct backend *b);

#endif
