/* SPDX-License-Identifier: MIT */
/*
 * The ways of a file's bytes from the page cache to a card, beside each other: by mapping or by
 * reading, through pinned buffers or by pinning the mapping itself. What workerd/cuda/upload.c does
 * was chosen by it. Prints CSV. Usage:
 *     upload_bench DEVICE FILE [GIB]
 */
#include <cuda_runtime_api.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdbool.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>

#include "common/base.h"
#include "workerd/cuda/readers.h"

enum { SLOTS_MAX = 8, THREADS_MAX = 64 };

#ifndef MADV_POPULATE_READ
#define MADV_POPULATE_READ 22
#endif

static double seconds(void)
{
    struct timespec t;
    (void)clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static void check(cudaError_t e, const char *what)
{
    if (e == cudaSuccess) return;
    fprintf(stderr, "%s: %s\n", what, cudaGetErrorString(e));
    exit(1);
}

struct file {
    int fd;
    uint64_t bytes;
};

struct way {
    const char *name;
    enum { NEW_THREADS, NEW_THREADS_POPULATE, READ, REGISTER } how;
    uint32_t threads, mib, slots;
};

/* ---- threads made for each piece, copying from the mapping ---- */

struct part {
    uint8_t *to;
    const uint8_t *from;
    size_t bytes;
    bool populate;
    pthread_t thread;
};

static void *part_run(void *arg)
{
    const struct part *p = arg;
    uintptr_t page = (uintptr_t)p->from & ~(uintptr_t)4095;
    if (p->populate)
        (void)madvise((void *)page, p->bytes + ((uintptr_t)p->from - page), MADV_POPULATE_READ);
    memcpy(p->to, p->from, p->bytes);
    return NULL;
}

static void copy_wide(const struct way *w, uint8_t *to, const uint8_t *from, size_t bytes)
{
    struct part p[THREADS_MAX];
    size_t each = round_up_u64((bytes + w->threads - 1) / w->threads, 4096);
    for (size_t i = 0; i < w->threads; i++) {
        size_t at = min_u64(i * each, bytes);
        p[i] = (struct part){to + at, from + at, min_u64(each, bytes - at),
                             w->how == NEW_THREADS_POPULATE, 0};
        if (i) (void)pthread_create(&p[i].thread, NULL, part_run, &p[i]);
    }
    (void)part_run(&p[0]);
    for (size_t i = 1; i < w->threads; i++)
        (void)pthread_join(p[i].thread, NULL);
}

/* ---- one way ---- */

static double by_pieces(const struct way *w, const struct file *f, uint8_t *to, cudaStream_t s,
                        double *ret_ready)
{
    size_t piece = (size_t)w->mib << 20;
    uint8_t *slot[SLOTS_MAX];
    cudaEvent_t done[SLOTS_MAX];
    double t = seconds();
    for (uint32_t i = 0; i < w->slots; i++) {
        check(cudaHostAlloc((void **)&slot[i], piece, cudaHostAllocDefault), "cudaHostAlloc");
        check(cudaEventCreateWithFlags(&done[i], cudaEventDisableTiming), "event");
    }
    struct readers *readers = w->how == READ ? readers_new(w->threads) : NULL;
    const uint8_t *map = NULL;
    if (!readers) map = mmap(NULL, f->bytes, PROT_READ, MAP_PRIVATE, f->fd, 0);
    *ret_ready = seconds() - t;
    for (uint64_t at = 0, n, i = 0; at < f->bytes; at += n, i = (i + 1) % w->slots) {
        n = min_u64(piece, f->bytes - at);
        check(cudaEventSynchronize(done[i]), "wait");
        if (readers && readers_read(readers, f->fd, at, slot[i], n) < 0) exit(1);
        if (!readers) copy_wide(w, slot[i], map + at, n);
        check(cudaMemcpyAsync(to + at, slot[i], n, cudaMemcpyHostToDevice, s), "copy");
        check(cudaEventRecord(done[i], s), "record");
    }
    check(cudaStreamSynchronize(s), "end");
    t = seconds() - t;
    for (uint32_t i = 0; i < w->slots; i++) {
        (void)cudaFreeHost(slot[i]);
        (void)cudaEventDestroy(done[i]);
    }
    readers_free(readers);
    if (map) (void)munmap((void *)map, f->bytes);
    return t;
}

static double by_registering(const struct way *w, const struct file *f, uint8_t *to, cudaStream_t s,
                             double *ret_ready)
{
    double t = seconds();
    uint64_t step = (uint64_t)w->mib << 20;
    uint8_t *map = mmap(NULL, f->bytes, PROT_READ, MAP_SHARED, f->fd, 0);
    *ret_ready = 0;
    for (uint64_t at = 0; at < f->bytes; at += step) {
        uint64_t n = min_u64(step, f->bytes - at);
        cudaError_t e = cudaHostRegister(map + at, n, cudaHostRegisterReadOnly);
        if (e != cudaSuccess) {
            fprintf(stderr, "registering: %s\n", cudaGetErrorString(e));
            (void)cudaGetLastError();
            return -1;
        }
        check(cudaMemcpyAsync(to + at, map + at, n, cudaMemcpyHostToDevice, s), "copy");
    }
    check(cudaStreamSynchronize(s), "end");
    t = seconds() - t;
    for (uint64_t at = 0; at < f->bytes; at += step)
        (void)cudaHostUnregister(map + at);
    (void)munmap(map, f->bytes);
    return t;
}

static const struct way ways[] = {
    {"threads made anew, copied from the mapping", NEW_THREADS,          8,  32,   2},
    {"threads made anew, mapping populated",       NEW_THREADS_POPULATE, 8,  32,   2},
    {"threads that stay, read",                    READ,                 4,  16,   3},
    {"threads that stay, read",                    READ,                 8,  4,    4},
    {"threads that stay, read",                    READ,                 8,  8,    3},
    {"threads that stay, read",                    READ,                 8,  16,   3},
    {"threads that stay, read",                    READ,                 8,  32,   2},
    {"threads that stay, read",                    READ,                 12, 16,   3},
    {"threads that stay, read",                    READ,                 16, 8,    4},
    {"threads that stay, read",                    READ,                 16, 16,   3},
    {"threads that stay, read",                    READ,                 16, 32,   3},
    {"the mapping registered",                     REGISTER,             1,  256,  0},
    {"the mapping registered",                     REGISTER,             1,  1024, 0},
};

int main(int argc, char **argv)
{
    struct stat st;
    struct file f = {.fd = argc > 2 ? open(argv[2], O_RDONLY | O_CLOEXEC) : -1};
    if (f.fd < 0 || fstat(f.fd, &st) < 0) {
        fprintf(stderr, "usage: upload_bench DEVICE FILE [GIB]\n");
        return 2;
    }
    uint64_t most = argc > 3 ? strtoull(argv[3], NULL, 10) << 30 : UINT64_MAX;
    f.bytes = min_u64((uint64_t)st.st_size, most) & ~UINT64_C(4095);
    check(cudaSetDevice(atoi(argv[1])), "device");
    uint8_t *to;
    cudaStream_t s;
    check(cudaMalloc((void **)&to, f.bytes), "memory");
    check(cudaStreamCreateWithFlags(&s, cudaStreamNonBlocking), "stream");
    printf("way,threads,mib,slots,round,set_up_s,seconds,gb_s\n");
    for (int round = 0; round < 2; round++)
        for (size_t i = 0; i < ARRAY_LEN(ways); i++) {
            const struct way *w = &ways[i];
            double ready = 0;
            double t = w->how == REGISTER ? by_registering(w, &f, to, s, &ready)
                                          : by_pieces(w, &f, to, s, &ready);
            printf("\"%s\",%u,%u,%u,%d,%.3f,%.3f,%.1f\n", w->name, w->threads, w->mib, w->slots,
                   round, ready, t, (double)f.bytes / t / 1e9);
            (void)fflush(stdout);
        }
    return 0;
}
