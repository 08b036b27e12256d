/* SPDX-License-Identifier: MIT */
#ifndef WORKERD_CPU_STORE_H
#define WORKERD_CPU_STORE_H
/*
 * The CPU backend's memory: zeroed, aligned to a cache line, freed all at once. Device thread only.
 */
#include "common/base.h"

struct cpu_store;

struct cpu_store *cpu_store_new(void);
void cpu_store_free(struct cpu_store *s);
/* NULL when there is no memory. */
void *cpu_store_get(struct cpu_store *s, size_t bytes);

#endif
