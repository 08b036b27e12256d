/* SPDX-License-Identifier: MIT */
/* Owns the blocks behind an arena. Everything of the template engine allocates here; nothing here
 * knows what it hands out. */
#include "gateway/template/arena.h"

#include <errno.h>
#include <string.h>

enum {
    ARENA_BLOCK_BYTES = 64 << 10, /* the tenth of a usual render: few blocks, little waste */
    ARENA_ALIGN = 16,             /* what malloc promises, for any type of ours */
};

struct arena_block {
    struct arena_block *next;
    size_t pad_;
};

static int more(struct arena *a, size_t bytes)
{
    size_t want = sizeof(struct arena_block) + bytes;
    if (want < ARENA_BLOCK_BYTES) want = ARENA_BLOCK_BYTES;
    if (a->bytes > a->limit_bytes || want > a->limit_bytes - a->bytes)
        return why_set(a->why, -E2BIG, "the template needs more than %zu bytes of memory",
                       a->limit_bytes);
    struct arena_block *b = malloc(want);
    if (!b) return why_set(a->why, -E2BIG, "no memory left for the template");
    b->next = a->blocks;
    a->blocks = b;
    a->at = (char *)(b + 1);
    a->end = (char *)b + want;
    a->bytes += want;
    return 0;
}

void *arena_get(struct arena *a, size_t bytes)
{
    if (bytes > a->limit_bytes) {
        (void)more(a, a->limit_bytes); /* refuses, with the sentence */
        return NULL;
    }
    bytes = (bytes + ARENA_ALIGN - 1) & ~(size_t)(ARENA_ALIGN - 1);
    if (bytes > (size_t)(a->end - a->at) && more(a, bytes) < 0) return NULL;
    void *p = a->at;
    a->at += bytes;
    return p;
}

void *arena_zero(struct arena *a, size_t n, size_t bytes)
{
    size_t total;
    if (__builtin_mul_overflow(n, bytes, &total)) total = SIZE_MAX;
    void *p = arena_get(a, total);
    if (p) memset(p, 0, total);
    return p;
}

void *arena_grow(struct arena *a, void *old, size_t old_bytes, size_t new_bytes)
{
    size_t held = (old_bytes + ARENA_ALIGN - 1) & ~(size_t)(ARENA_ALIGN - 1);
    if (old && (char *)old + held == a->at && new_bytes <= (size_t)(a->end - (char *)old)) {
        a->at = (char *)old;
        return arena_get(a, new_bytes);
    }
    void *p = arena_get(a, new_bytes);
    if (p && old_bytes) memcpy(p, old, old_bytes);
    return p;
}

void arena_fini(struct arena *a)
{
    while (a->blocks) {
        struct arena_block *b = a->blocks;
        a->blocks = b->next;
        free(b);
    }
}
