/* SPDX-License-Identifier: MIT */
/*
 * The way of the weights to the device: from the file through pinned buffers that several threads
 * fill, one while the other is on its way, and repacked there. What it holds goes when the arena is
 * taken up: no weight comes after that.
 */
#include <errno.h>
#include <string.h>

#include "common/gguf.h"
#include "workerd/cuda/cuda.h"
#include "workerd/cuda/readers.h"

enum {
    STAGING_BYTES = 16 << 20, /* one is on its way while the next is filled */
    SLOTS = 3,
    READERS = 12, /* 8 read 27 GB/s, 12 and 16 read 33 of an H200's 55 (tests/bench/README.md) */
};

struct slot {
    uint8_t *pinned, *raw; /* raw: as the file has it, on the device */
    cudaEvent_t done;      /* both may be used again */
};

struct cuda_upload {
    struct slot slot[SLOTS];
    uint32_t turn;
    struct readers *readers;
};

void cuda_upload_free(struct backend *b)
{
    struct cuda_upload *u = TAKE(b->upload);
    if (!u) return;
    (void)cudaStreamSynchronize(b->stream);
    for (uint32_t i = 0; i < SLOTS; i++) {
        struct slot *s = &u->slot[i];
        if (s->done) (void)cudaEventDestroy(s->done);
        if (s->pinned) (void)cudaFreeHost(s->pinned);
        if (s->raw) (void)cudaFree(s->raw);
        if (s->raw) b->budget.buffers -= STAGING_BYTES;
    }
    readers_free(u->readers);
    free(u);
}

/* When the first weight comes. */
static int upload_begin(struct backend *b)
{
    if (b->upload) return 0;
    struct cuda_upload *u = b->upload = xnew(struct cuda_upload);
    u->readers = readers_new(READERS);
    for (uint32_t i = 0; i < SLOTS; i++) {
        struct slot *s = &u->slot[i];
        cudaError_t e = cudaHostAlloc((void **)&s->pinned, STAGING_BYTES, cudaHostAllocDefault);
        if (e == cudaSuccess) e = cudaEventCreateWithFlags(&s->done, cudaEventDisableTiming);
        if (e == cudaSuccess) e = cudaMalloc((void **)&s->raw, STAGING_BYTES);
        if (e == cudaSuccess) b->budget.buffers += STAGING_BYTES;
        if (e == cudaSuccess) continue;
        (void)cudaGetLastError();
        return e == cudaErrorMemoryAllocation ? -ENOMEM : -EIO;
    }
    return 0;
}

/* A part of the tensor into a buffer and on its way to `to`. */
static int piece_up(struct backend *b, const struct backend_tensor *t, uint64_t at, uint64_t bytes,
                    void *to)
{
    struct cuda_upload *u = b->upload;
    struct slot *s = &u->slot[u->turn];
    if (cudaEventSynchronize(s->done) != cudaSuccess) return -EIO;
    int r = readers_read(u->readers, t->fd, t->off + at, s->pinned, bytes);
    if (r < 0) return r;
    cudaError_t e = cudaMemcpyAsync(to, s->pinned, bytes, cudaMemcpyHostToDevice, b->stream);
    return e == cudaSuccess ? 0 : -EIO;
}

static int piece_done(struct backend *b)
{
    struct cuda_upload *u = b->upload;
    cudaError_t e = cudaEventRecord(u->slot[u->turn].done, b->stream);
    u->turn = (u->turn + 1) % SLOTS;
    return e == cudaSuccess ? 0 : -EIO;
}

int cuda_upload_plain(struct backend *b, const struct backend_tensor *t, uint64_t bytes,
                      uint8_t *to)
{
    int r = upload_begin(b);
    for (uint64_t at = 0, n; at < bytes && r == 0; at += n) {
        n = min_u64(STAGING_BYTES, bytes - at);
        r = piece_up(b, t, at, n, to + at);
        if (r == 0) r = piece_done(b);
    }
    return r;
}

int cuda_upload_matrix(struct backend *b, const struct backend_tensor *t,
                       const struct backend_weight *w)
{
    uint64_t row = (uint64_t)t->n_in / ggml_block_values(t->type) * ggml_block_bytes(t->type);
    uint32_t rows = (uint32_t)(STAGING_BYTES / row);
    int r = upload_begin(b);
    for (uint32_t at = 0, n; at < t->n_out && r == 0; at += n) {
        void *raw = b->upload->slot[b->upload->turn].raw;
        n = min_u32(rows, t->n_out - at);
        r = piece_up(b, t, at * row, n * row, raw);
        struct cuda_repack a = {
            .from = raw,
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
