/* SPDX-License-Identifier: MIT */
#ifndef WORKERD_CPU_TEAM_H
#define WORKERD_CPU_TEAM_H
/*
 * The compute threads of the CPU backend. The device thread is member 0; it alone calls these, but
 * for team_barrier, which every member calls from inside the function that team_run gave it. One
 * member: no thread, no barrier, no system call.
 */
#include <stdbool.h>

#include "common/base.h"

struct team;

/* cpus: a list like "0-3,8", member i is pinned to the i-th of it; NULL: no pinning. */
int team_new(uint32_t n, const char *cpus, bool may_spin, struct why *why, struct team **ret);
void team_free(struct team *t);
static inline void team_freep(struct team **t) { team_free(*t); }
uint32_t team_size(const struct team *t);

/* Every member runs fn(arg, its number); returns when all have. */
void team_run(struct team *t, void (*fn)(void *arg, uint32_t member), void *arg);
void team_barrier(struct team *t);

#endif
