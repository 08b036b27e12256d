/* SPDX-License-Identifier: MIT */
/*
 * Which chunks of the pool have a copy in GPU memory. The pool is always complete, so a copy may go
 * at any time; it is valid for the generation that it was made of, and for the cells that it says.
 * A chunk is loaded when a window reads it and a place can be had whose chunk no window has read of
 * late; what then finds none is read over PCIe or passes through (passing.c). CLOCK chooses
 * (Corbato 1968) among those: generating reads all of a conversation over and over, so a place
 * taken from what is being read would be wanted back in the same or the next window.
 */
#include <errno.h>
#include <string.h>

#include "workerd/cuda/cuda.h"

enum {
    LATE_WINDOWS = POOL_STAGES_MAX + 1 /* groups of lanes that take turns, and the next turn */
};

static uint64_t slot_bytes(const struct backend *b) { return b->chunk_bytes * b->want.n_layers; }

void cuda_resident_free(struct backend *b)
{
    struct cuda_resident *r = &b->resident;
    if (r->memory) (void)cudaFree(r->memory);
    free(r->slot);
    free(r->slot_of);
    b->budget.resident = 0;
    *r = (struct cuda_resident){0};
}

int cuda_resident_new(struct backend *b, struct why *why)
{
    struct cuda_resident *r = &b->resident;
    cuda_resident_free(b);
    cuda_passing_free(b);
    size_t free_bytes = 0, all = 0;
    if (cudaMemGetInfo(&free_bytes, &all) != cudaSuccess)
        return why_set(why, -EIO, "cannot ask for the GPU's free memory");
    uint64_t room = cuda_budget_resident(&b->budget, free_bytes);
    struct cuda_places p =
        cuda_places_of(room / b->chunk_bytes, b->want.n_layers, b->arena->n_chunks,
                       b->want.kv_resident >> b->chunk_shift, b->table_room);
    uint64_t passing = cuda_passing_new(b, (uint32_t)p.passing), n = p.slots;
    if (n > 0 && cudaMalloc((void **)&r->memory, n * slot_bytes(b)) != cudaSuccess) {
        (void)cudaGetLastError();
        r->memory = NULL;
        n = 0; /* slower, not wrong */
    }
    b->budget.resident = n * slot_bytes(b) + passing;
    r->n_slots = (uint32_t)n;
    r->slot = xcalloc(n, sizeof(*r->slot));
    r->slot_of = xcalloc((size_t)b->arena->n_chunks + 1, sizeof(*r->slot_of));
    for (uint32_t i = 0; i <= b->arena->n_chunks; i++)
        r->slot_of[i] = CUDA_NOT_RESIDENT;
    return 0;
}

void cuda_resident_cut(struct backend *b, uint32_t chunk, uint32_t cells)
{
    int32_t at = b->resident.slot_of[chunk];
    if (at >= 0) b->resident.slot[at].filled = min_u32(b->resident.slot[at].filled, cells);
}

/* A place that no row of this window or of those before it reads. */
static int32_t place_find(struct backend *b)
{
    struct cuda_resident *r = &b->resident;
    if (r->full_at == b->window) return CUDA_NOT_RESIDENT;
    for (uint64_t step = 0; step < 2 * (uint64_t)r->n_slots; step++) {
        struct cuda_slot *s = &r->slot[r->hand];
        int32_t at = (int32_t)r->hand;
        r->hand = (r->hand + 1) % r->n_slots;
        if (s->chunk && b->window - s->window < LATE_WINDOWS) continue;
        if (s->chunk && s->used) {
            s->used = false;
            continue;
        }
        return at;
    }
    r->full_at = b->window;
    return CUDA_NOT_RESIDENT;
}

void cuda_resident_copy(struct backend *b, cudaStream_t s, const struct cuda_fetch *f)
{
    uint32_t blocks = (f->cells + (1u << b->block_shift) - 1) >> b->block_shift;
    uint64_t bytes = blocks * b->want.block_bytes;
    const uint8_t *from = b->run[f->layer] + f->chunk * b->chunk_bytes;
    uint8_t *to = f->to;
    while (bytes > 0) {
        uint64_t left =
            CUDA_REGISTER_BYTES - (uint64_t)(from - b->registered) % CUDA_REGISTER_BYTES;
        uint64_t n = min_u64(bytes, left);
        (void)cuda_ok(b, cudaMemcpyAsync(to, from, n, cudaMemcpyHostToDevice, s));
        to += n;
        from += n;
        bytes -= n;
    }
}

static void chunk_load(struct backend *b, uint32_t chunk, int32_t slot, uint32_t cells)
{
    for (uint32_t i = 0; i < b->want.n_layers && cells; i++) {
        uint64_t place = (uint64_t)i * b->resident.n_slots + (uint32_t)slot;
        struct cuda_fetch f = {i, chunk, cells, b->resident.memory + place * b->chunk_bytes};
        cuda_resident_copy(b, b->stream, &f);
    }
}

int32_t cuda_resident_take(struct backend *b, uint64_t entry, uint32_t before, uint32_t after)
{
    struct cuda_resident *r = &b->resident;
    uint32_t chunk = pool_entry_chunk(entry), generation = pool_entry_generation(entry);
    if (r->n_slots == 0 || chunk == 0) return CUDA_NOT_RESIDENT;
    int32_t at = r->slot_of[chunk];
    if (at < 0) {
        at = place_find(b);
        if (at < 0) return at;
        struct cuda_slot *s = &r->slot[at];
        if (s->chunk) r->slot_of[s->chunk] = CUDA_NOT_RESIDENT;
        *s = (struct cuda_slot){.chunk = chunk, .generation = generation};
        r->slot_of[chunk] = at;
    }
    struct cuda_slot *s = &r->slot[at];
    if (s->generation != generation || s->filled < before) {
        chunk_load(b, chunk, at, before);
        s->generation = generation;
        s->filled = before;
    }
    if (after > before) s->filled = after; /* the cells behind are of tokens taken back */
    s->used = true;
    s->window = b->window;
    return at;
}
