/* SPDX-License-Identifier: MIT */
/*
 * Weights are read from end to end for every token, so they lie in few large mappings for which
 * huge pages are asked: a matrix of a small model is shorter than one such page.
 */
#include "workerd/cpu/store.h"

#include <sys/mman.h>

enum {
    SLAB_BYTES = 16 << 20, /* eight huge pages; what is larger gets a mapping of its own */
    ALIGN = 64,
};

struct slab {
    struct slab *next;
    char *at;
    size_t bytes, used;
};

struct cpu_store {
    struct slab *slabs;
};

struct cpu_store *cpu_store_new(void) { return xnew(struct cpu_store); }

void cpu_store_free(struct cpu_store *s)
{
    if (!s) return;
    for (struct slab *l = s->slabs, *next; l; l = next) {
        next = l->next;
        (void)munmap(l->at, l->bytes);
        free(l);
    }
    free(s);
}

static struct slab *slab_new(size_t bytes)
{
    void *at = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (at == MAP_FAILED) return NULL;
    (void)madvise(at, bytes, MADV_HUGEPAGE); /* a wish: slower without, not wrong */
    struct slab *l = xnew(struct slab);
    *l = (struct slab){.at = at, .bytes = bytes};
    return l;
}

void *cpu_store_get(struct cpu_store *s, size_t bytes)
{
    if (bytes > SIZE_MAX / 2) return NULL;
    bytes = (bytes + ALIGN - 1) / ALIGN * ALIGN;
    struct slab *l = s->slabs;
    if (!l || l->bytes - l->used < bytes) {
        l = slab_new(bytes > SLAB_BYTES ? bytes : SLAB_BYTES);
        if (!l) return NULL;
        l->next = s->slabs;
        s->slabs = l;
    }
    void *at = l->at + l->used;
    l->used += bytes;
    return at;
}
