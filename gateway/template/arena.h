/* SPDX-License-Identifier: MIT */
#ifndef GATEWAY_TEMPLATE_ARENA_H
#define GATEWAY_TEMPLATE_ARENA_H
/*
 * Memory of one compiled template or one render: handed out in order, given back all at once, never
 * more than its limit. Nothing in it is freed singly, so nothing in it has an owner to track.
 */
#include "common/base.h"

struct arena_block;
struct arena {
    struct arena_block *blocks;
    char *at; /* next free byte of the newest block */
    char *end;
    size_t bytes; /* taken from malloc so far */
    size_t limit_bytes;
    struct why *why; /* gets the sentence when the limit is met */
};

/* Return NULL, with the sentence in a->why, when the limit is met or malloc fails. */
void *arena_get(struct arena *a, size_t bytes);
void *arena_zero(struct arena *a, size_t n, size_t bytes);
/* Like realloc: the newest piece grows in place, others are copied. */
void *arena_grow(struct arena *a, void *old, size_t old_bytes, size_t new_bytes);
void arena_fini(struct arena *a);

#endif
