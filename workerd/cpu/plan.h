/* SPDX-License-Identifier: MIT */
#ifndef WORKERD_CPU_PLAN_H
#define WORKERD_CPU_PLAN_H
/*
 * What the kernels need to know of a window, made once a window by the device thread: where each
 * row's K/V goes, the angles of its position, and the shares of attention. Nothing is allocated
 * after cpu_plan_new and cpu_plan_arena.
 */
#include "workerd/cpu/cpu.h"

int cpu_plan_new(struct backend *b, struct why *why);
/* Room for the chunk numbers of every lane, once the arena's chunk size is known. */
int cpu_plan_arena(struct backend *b, struct why *why);
void cpu_plan_begin(struct backend *b, const struct window *w);

#endif
