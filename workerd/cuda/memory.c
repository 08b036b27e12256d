/* SPDX-License-Identifier: MIT */
/*
 * Memory of the device and pinned memory, and the weights in it. Nothing is freed before the
 * backend is.
 */
#include <errno.h>
#include <string.h>

#include "common/gguf.h"
#include "workerd/cuda/cuda.h"

struct allocation {
    struct allocation *next;
    void *at;
    enum { ON_DEVICE, PINNED, ON_HOST } where;
};

struct cuda_memory {
    struct allocation *all;
};

struct cuda_memory *cuda_memory_new(void) { return xnew(struct cuda_memory); }

void cuda_memory_free(struct cuda_memory *m)
{
    if (!m) return;
    for (struct allocation *a = m->all, *next; a; a = next) {
        next = a->next;
        if (a->where == ON_DEVICE) (void)cudaFree(a->at);
        if (a->where == PINNED) (void)cudaFreeHost(a->at);
        if (a->where == ON_HOST) free(a->at);
        free(a);
    }
    free(m);
}

static void *keep(struct backend *b, void *at, int where)
{
    struct allocation *a = xnew(struct allocation);
    *a = (struct allocation){.next = b->memory->all, .at = at, .where = where};
    b->memory->all = a;
    return at;
}

void *cuda_get(struct backend *b, uint64_t bytes)
{
    void *at = NULL;
    if (cuda_budget_room(&b->budget, UINT64_MAX) < bytes ||
        cudaMalloc(&at, bytes ? bytes : 1) != cudaSuccess) {
        b->wanted = bytes;
        (void)cudaGetLastError(); /* said by the caller; not sticky */
        return NULL;
    }
    b->budget.buffers += bytes;
    keep(b, at, ON_DEVICE);
    /* On our own stream, which the default one does not wait for, nor it for that: zeros that come
     * later than what is written next would stay. */
    return cudaMemsetAsync(at, 0, bytes, b->stream) == cudaSuccess ? at : NULL;
}

void *cuda_get_pinned(struct backend *b, uint64_t bytes)
{
    void *at = NULL;
    if (cudaHostAlloc(&at, bytes ? bytes : 1, cudaHostAllocMapped) != cudaSuccess) {
        b->wanted = bytes;
        (void)cudaGetLastError();
        return NULL;
    }
    return keep(b, at, PINNED);
}

void *cuda_get_host(struct backend *b, size_t bytes) { return keep(b, xcalloc(1, bytes), ON_HOST); }

static enum cuda_pack pack_of(uint32_t type, bool float32)
{
    if (float32) return CUDA_F32;
    switch (type) {
    case GGML_Q4_0:
        return CUDA_Q4_0;
    case GGML_Q4_1:
        return CUDA_Q4_1;
    case GGML_Q8_0:
        return CUDA_Q8_0;
    case GGML_F16:
        return CUDA_F16;
    default:
        return CUDA_F32;
    }
}

bool cuda_multiplies(uint32_t type)
{
    return type == GGML_F32 || type == GGML_F16 || type == GGML_Q4_0 || type == GGML_Q4_1 ||
           type == GGML_Q8_0;
}

static uint64_t matrix_bytes(enum cuda_pack pack, uint32_t n_out, uint32_t n_in)
{
    /* Whole tiles: a kernel reads all of their outputs. */
    uint64_t tiles = ((uint64_t)n_out + CUDA_TILE - 1) / CUDA_TILE * (CUDA_TILE / 16);
    uint64_t pieces = tiles * ((n_in + CUDA_PIECE - 1) / CUDA_PIECE);
    switch (pack) {
    case CUDA_F32:
        return 4 * (uint64_t)n_out * n_in;
    case CUDA_F16:
        return 2 * (uint64_t)n_out * n_in;
    default:
        return pieces * CUDA_PIECE_BYTES(pack);
    }
}

int cuda_refuse_memory(const struct backend *b, const char *what, uint64_t bytes, struct why *why)
{
    size_t free_bytes = 0, all = 0;
    (void)cudaMemGetInfo(&free_bytes, &all);
    return cuda_budget_refuse(&b->budget, what, bytes, free_bytes, all, why);
}

static int refuse_upload(const struct backend_tensor *t, int r, struct why *why)
{
    cudaError_t e = cudaGetLastError();
    if (e != cudaSuccess)
        return why_set(why, r, "%s: upload failed: %s", t->name, cudaGetErrorString(e));
    return why_set(why, r, "%s: can't be read: %s", t->name, strerror(-r));
}

int cuda_weight(struct backend *b, enum weight_use use, const struct backend_tensor *t,
                struct why *why, struct backend_weight **ret)
{
    if (t->n_in == 0 || t->n_in % CUDA_BLOCK || t->n_in > CUDA_WIDTH_MAX || t->n_out == 0)
        return why_set(why, -ENOTSUP, "%s: rows of %u values: must be a multiple of %d up to %d",
                       t->name, t->n_in, CUDA_BLOCK, CUDA_WIDTH_MAX);
    bool plain = use == WEIGHT_LOOKUP;
    struct backend_weight *w = cuda_get_host(b, sizeof(*w));
    *w = (struct backend_weight){
        .pack = pack_of(t->type, b->want.float32 || use == WEIGHT_VECTOR),
        .type = t->type,
        .m = {.n_out = t->n_out, .n_in = t->n_in},
    };
    uint64_t file_row = (uint64_t)t->n_in / ggml_block_values(t->type) * ggml_block_bytes(t->type);
    uint64_t bytes = plain ? t->n_out * file_row : matrix_bytes(w->pack, t->n_out, t->n_in);
    w->m.codes = cuda_get(b, bytes);
    int r = w->m.codes ? 0 : -ENOMEM;
    if (r == 0)
        r = plain ? cuda_upload_plain(b, t, bytes, (uint8_t *)w->m.codes)
                  : cuda_upload_matrix(b, t, w);
    if (r == -ENOMEM) return cuda_refuse_memory(b, t->name, bytes, why);
    if (r < 0) return refuse_upload(t, r, why);
    if (use == WEIGHT_MATRIX && cuda_is_float(w->pack)) b->float_matrices = true;
    b->budget.weights += bytes;
    b->budget.buffers -= bytes;
    *ret = w;
    return 0;
}
