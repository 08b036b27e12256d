/* SPDX-License-Identifier: MIT */
/*
 * Chunks that have no place in GPU memory, in windows where several rows of a lane read them: rows
 * that read over PCIe would each read everything. They come by DMA, once a window, a layer at a
 * time, into one of two memories: a layer's while the one before is computed. Lanes with one row
 * read each cell once anyway, and do so over PCIe. Such windows are no graphs: what is copied lies
 * elsewhere in each.
 *
 * Called by the device thread: the places when a window begins, the rest when its list is launched.
 */
#include <errno.h>

#include "workerd/cuda/cuda.h"

int cuda_passing_open(struct backend *b)
{
    struct cuda_passing *p = &b->passing;
    cudaError_t e = cudaStreamCreateWithFlags(&p->stream, cudaStreamNonBlocking);
    if (e == cudaSuccess) e = cudaEventCreateWithFlags(&p->left, cudaEventDisableTiming);
    for (int i = 0; i < 2 && e == cudaSuccess; i++)
        e = cudaEventCreateWithFlags(&p->there[i], cudaEventDisableTiming);
    return e == cudaSuccess ? 0 : -EIO;
}

void cuda_passing_close(struct backend *b)
{
    struct cuda_passing *p = &b->passing;
    if (p->stream) (void)cudaStreamSynchronize(p->stream);
    cuda_passing_free(b);
    for (int i = 0; i < 2; i++)
        if (p->there[i]) (void)cudaEventDestroy(p->there[i]);
    if (p->left) (void)cudaEventDestroy(p->left);
    if (p->stream) (void)cudaStreamDestroy(p->stream);
}

void cuda_passing_free(struct backend *b)
{
    struct cuda_passing *p = &b->passing;
    if (p->memory) (void)cudaFree(p->memory);
    p->memory = NULL;
    free(TAKE(p->pass));
    p->n_places = p->n = 0;
}

uint64_t cuda_passing_new(struct backend *b, uint32_t n)
{
    struct cuda_passing *p = &b->passing;
    if (n == 0) return 0;
    uint64_t bytes = 2 * (uint64_t)n * b->chunk_bytes;
    if (cudaMalloc((void **)&p->memory, bytes) != cudaSuccess) {
        (void)cudaGetLastError();
        p->memory = NULL;
        return 0; /* slower, not wrong */
    }
    p->pass = xcalloc(n, sizeof(*p->pass));
    p->n_places = n;
    return bytes;
}

int32_t cuda_passing_take(struct backend *b, uint32_t chunk, uint32_t cells)
{
    struct cuda_passing *p = &b->passing;
    if (chunk == 0 || p->n == p->n_places) return CUDA_NOT_RESIDENT;
    p->pass[p->n] = (struct cuda_pass){.chunk = chunk, .cells = cells};
    return (int32_t)(b->resident.n_slots + p->n++);
}

uint8_t *cuda_passing_of(const struct backend *b, uint32_t layer)
{
    const struct cuda_passing *p = &b->passing;
    return p->memory ? p->memory + (uint64_t)(layer % 2) * p->n_places * b->chunk_bytes : NULL;
}

/* Neighbours in the pool come together. */
static void layer_copy(struct backend *b, uint32_t layer)
{
    const struct cuda_passing *p = &b->passing;
    uint32_t whole = 1u << b->chunk_shift;
    for (uint32_t i = 0, n; i < p->n; i += n) {
        const struct cuda_pass *first = &p->pass[i];
        uint32_t cells = first->cells;
        for (n = 1; i + n < p->n && cells == n * whole && first[n].chunk == first->chunk + n; n++)
            cells += first[n].cells;
        struct cuda_fetch f = {layer, first->chunk, cells,
                               cuda_passing_of(b, layer) + i * b->chunk_bytes};
        cuda_resident_copy(b, p->stream, &f);
    }
}

/* After all that was launched so far: what reads and writes the layer's memory, and what wrote the
 * cells into the pool, in the windows before. */
static void layer_begin(struct backend *b, uint32_t layer)
{
    struct cuda_passing *p = &b->passing;
    (void)cuda_ok(b, cudaEventRecord(p->left, b->stream));
    (void)cuda_ok(b, cudaStreamWaitEvent(p->stream, p->left, 0));
    layer_copy(b, layer);
    (void)cuda_ok(b, cudaEventRecord(p->there[layer % 2], p->stream));
}

void cuda_passing_layer(struct backend *b, uint32_t layer)
{
    if (layer == 0) layer_begin(b, 0);
    if (layer + 1 < b->want.n_layers) layer_begin(b, layer + 1);
    (void)cuda_ok(b, cudaStreamWaitEvent(b->stream, b->passing.there[layer % 2], 0));
}
