/* SPDX-License-Identifier: MIT */
/*
 * Memory of the device and pinned memory, and the way of the weights into it: from the mapped file
 * through two pinned buffers, repacked on the device. Nothing is freed before the backend is.
 */
#include <errno.h>
#include <pthread.h>
#include <string.h>

#include "common/gguf.h"
#include "workerd/cuda/cuda.h"

enum {
    STAGING_BYTES = 32 << 20, /* two of them keep the copy engine busy while the next is filled */
    COPIERS = 8,              /* threads that fill one: a page fault for each page of the file */
    WIDTH_MAX = 1 << 16,      /* of a matrix: two rows of activations fit a block's shared memory */
};

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
    if (cudaMalloc(&at, bytes ? bytes : 1) != cudaSuccess) {
        (void)cudaGetLastError(); /* said by the caller; not sticky */
        return NULL;
    }
    b->other_bytes += bytes;
    keep(b, at, ON_DEVICE);
    /* On our own stream, which the default one does not wait for, nor it for that: zeros that come
     * later than what is written next would stay. */
    return cudaMemsetAsync(at, 0, bytes, b->stream) == cudaSuccess ? at : NULL;
}

void *cuda_get_pinned(struct backend *b, uint64_t bytes)
{
    void *at = NULL;
    if (cudaHostAlloc(&at, bytes ? bytes : 1, cudaHostAllocMapped) != cudaSuccess) {
        (void)cudaGetLastError();
        return NULL;
    }
    return keep(b, at, PINNED);
}

void *cuda_get_host(struct backend *b, size_t bytes) { return keep(b, xcalloc(1, bytes), ON_HOST); }

int cuda_upload_new(struct backend *b)
{
    for (int i = 0; i < 2; i++) {
        b->staging[i] = cuda_get_pinned(b, STAGING_BYTES);
        b->raw[i] = cuda_get(b, STAGING_BYTES);
        if (!b->staging[i] || !b->raw[i]) return -ENOMEM;
        if (cudaEventCreateWithFlags(&b->staged[i], cudaEventDisableTiming) != cudaSuccess)
            return -EIO;
    }
    return 0;
}

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
    case CUDA_Q8_0:
        return pieces * CUDA_Q8_0_BYTES;
    case CUDA_Q4_1:
        return pieces * CUDA_Q4_1_BYTES;
    default:
        return pieces * CUDA_Q4_0_BYTES;
    }
}

struct copier {
    uint8_t *to;
    const uint8_t *from;
    size_t bytes;
    pthread_t thread;
    bool runs;
};

static void *copier_run(void *arg)
{
    const struct copier *c = arg;
    memcpy(c->to, c->from, c->bytes);
    return NULL;
}

/* By several threads; what finds none is copied by this one. */
static void copy_wide(uint8_t *to, const uint8_t *from, size_t bytes)
{
    struct copier c[COPIERS];
    size_t each = round_up_u64((bytes + COPIERS - 1) / COPIERS, 4096);
    for (size_t i = 0; i < COPIERS; i++) {
        size_t at = min_u64(i * each, bytes);
        c[i] = (struct copier){to + at, from + at, min_u64(each, bytes - at), 0, false};
        c[i].runs = i + 1 < COPIERS && c[i].bytes > 0 &&
                    pthread_create(&c[i].thread, NULL, copier_run, &c[i]) == 0;
        if (!c[i].runs) (void)copier_run(&c[i]);
    }
    for (size_t i = 0; i < COPIERS; i++)
        if (c[i].runs) (void)pthread_join(c[i].thread, NULL);
}

/* Bytes into a pinned buffer and from there to the device. */
static int piece_up(struct backend *b, const uint8_t *from, uint64_t bytes, void *to)
{
    uint32_t i = b->turn;
    if (cudaEventSynchronize(b->staged[i]) != cudaSuccess) return -EIO;
    copy_wide(b->staging[i], from, bytes);
    cudaError_t e = cudaMemcpyAsync(to, b->staging[i], bytes, cudaMemcpyHostToDevice, b->stream);
    return e == cudaSuccess ? 0 : -EIO;
}

static int piece_done(struct backend *b)
{
    cudaError_t e = cudaEventRecord(b->staged[b->turn], b->stream);
    b->turn ^= 1;
    return e == cudaSuccess ? 0 : -EIO;
}

static int upload_plain(struct backend *b, const uint8_t *from, uint64_t bytes, uint8_t *to)
{
    int r = 0;
    for (uint64_t at = 0, n; at < bytes && r == 0; at += n) {
        n = min_u64(STAGING_BYTES, bytes - at);
        r = piece_up(b, from + at, n, to + at);
        if (r == 0) r = piece_done(b);
    }
    return r;
}

static int upload_matrix(struct backend *b, const struct backend_tensor *t,
                         const struct backend_weight *w)
{
    uint64_t row = (uint64_t)t->n_in / ggml_block_values(t->type) * ggml_block_bytes(t->type);
    uint32_t rows = (uint32_t)(STAGING_BYTES / row);
    int r = 0;
    for (uint32_t at = 0, n; at < t->n_out && r == 0; at += n) {
        n = min_u32(rows, t->n_out - at);
        r = piece_up(b, (const uint8_t *)t->data + at * row, n * row, b->raw[b->turn]);
        struct cuda_repack a = {
            .from = b->raw[b->turn],
            .type = t->type,
            .pack = w->pack,
            .n_out = n,
            .n_in = t->n_in,
            .first = at,
            .codes = (uint8_t *)w->m.codes,
        };
        if (r == 0 && cuda_launch_repack(b->stream, &a) != cudaSuccess) r = -EIO;
        if (r == 0) r = piece_done(b);
    }
    return r;
}

static int refuse_memory(const struct backend *b, const struct backend_tensor *t, uint64_t bytes,
                         struct why *why)
{
    size_t free_bytes = 0, all = 0;
    (void)cudaMemGetInfo(&free_bytes, &all);
    return why_set(why, -ENOMEM,
                   "%s: no GPU memory for its %llu bytes: %llu of weights and %llu of buffers are "
                   "there, %llu of %llu bytes are free",
                   t->name, (unsigned long long)bytes, (unsigned long long)b->weight_bytes,
                   (unsigned long long)(b->other_bytes - b->weight_bytes),
                   (unsigned long long)free_bytes, (unsigned long long)all);
}

int cuda_weight(struct backend *b, enum weight_use use, const struct backend_tensor *t,
                struct why *why, struct backend_weight **ret)
{
    if (t->n_in == 0 || t->n_in % CUDA_BLOCK || t->n_in > WIDTH_MAX || t->n_out == 0)
        return why_set(why, -ENOTSUP, "%s: rows of %u values: must be a multiple of %d up to %d",
                       t->name, t->n_in, CUDA_BLOCK, WIDTH_MAX);
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
        r = plain ? upload_plain(b, t->data, bytes, (uint8_t *)w->m.codes) : upload_matrix(b, t, w);
    if (r == -ENOMEM) return refuse_memory(b, t, bytes, why);
    if (r < 0)
        return why_set(why, r, "%s: upload failed: %s", t->name,
                       cudaGetErrorString(cudaGetLastError()));
    b->weight_bytes += bytes;
    *ret = w;
    return 0;
}
