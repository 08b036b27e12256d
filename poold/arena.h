/* SPDX-License-Identifier: MIT */
#ifndef POOLD_ARENA_H
#define POOLD_ARENA_H
/*
 * The arena of one stage, a file or CUDA memory (the pool's memory kind). A file is made once,
 * every page of it allocated and touched by several threads before anybody gets it, and locked when
 * asked; CUDA memory is pinned by the driver, and after a restart of poold it is what a worker
 * hands back. Making and filling run beside the loop, which is told by an event; the magic is
 * stored last, so a half-filled arena is none.
 */
#include "common/lifeline.h"
#include "common/loop.h"
#include "poold/store.h"

struct arena;

struct arena_want {
    const char *dir;
    const struct pool_header *h;
    uint32_t stage, first_layer, n_layers;
    uint32_t n_threads;
    uint32_t lock; /* enum pool_lock */
    /* CUDA memory that a worker has of this stage of this pool; NULL, -1: nobody has any. */
    const struct lifeline_arena *held;
    int held_fd; /* stays the caller's */
};

/* Opens the one that is there or begins to make it; done(arg, result, text) is called from the
 * loop, later, once. text: of a failure, or what was done. *ret_fresh: it was not there, so what
 * rows say of their K/V is not so. -EINVAL: the one there has other layers; why says which.
 */
int arena_new(struct loop *l, const struct arena_want *want,
              void (*done)(void *arg, int result, const char *text), void *arg, struct why *why,
              struct arena **ret, bool *ret_fresh);
void arena_free(struct arena *a); /* waits for its threads */
int arena_fd(const struct arena *a);
bool arena_ready(const struct arena *a);
uint32_t arena_percent(const struct arena *a);
uint64_t arena_bytes(const struct arena *a);
/* Of CUDA memory, for who maps it; 0: it is a file. */
uint64_t arena_cuda_bytes(const struct arena *a);
/* The layers that it holds, as made. */
void arena_layers(const struct arena *a, uint32_t *ret_first, uint32_t *ret_n);

#endif
