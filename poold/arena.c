/* SPDX-License-Identifier: MIT */
/*
 * Making and filling arenas. Owned by attach.c's stages; the filling threads touch only the
 * mapping, `next`, `filled` and `failed`, and end before the loop hears of them.
 */
#include "poold/arena.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/resource.h>

#include "common/config.h"
#include "common/cuda_host.h"
#include "common/death.h"
#include "common/system.h"

#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23
#endif

enum {
    FILL_THREADS_MAX = 64,
};
static const size_t fill_step_bytes = 64 << 20; /* what a thread takes at once */

struct arena {
    struct mapped_file file; /* of shm */
    struct cuda_host cuda;   /* of cuda; of one that was handed back the descriptor alone */
    struct pool_arena *h;    /* NULL: handed back, whoever maps it checks it */
    struct pool_arena head;  /* what the header will be; its magic is stored when all is filled */
    uint32_t memory;         /* enum pool_memory */
    uint32_t lock, n_threads;
    uint64_t began_us;
    size_t next, filled; /* filling threads, atomically: bytes given out and bytes done */
    int failed;          /* filling threads, atomically: the first errno */
    bool running, ready;
    pthread_t filler;
    int event;
    struct loop_source *filled_event;
    void (*done)(void *arg, int result, const char *text);
    void *arg;
    char text[256];
};

/* One run a layer, in order. */
static int lay_out(const struct arena_want *w, struct pool_arena *ret)
{
    const struct pool_header *h = w->h;
    const struct pool_geometry *g = &h->geometry;
    if (w->n_layers == 0 || w->n_layers > POOL_RUNS_MAX) return -EINVAL;
    *ret = (struct pool_arena){
        .pool_id = h->pool_id,
        .stage = w->stage,
        .n_runs = w->n_layers,
        .chunk_cells = h->chunk_cells,
        .block_cells = g->block_cells,
        .n_chunks = h->n_chunks,
    };
    uint64_t off = round_up_u64(sizeof(*ret), PAGE_BYTES), blocks = h->chunk_cells / g->block_cells,
             run_bytes;
    if (__builtin_mul_overflow(((uint64_t)h->n_chunks + 1) * blocks, g->block_bytes, &run_bytes) ||
        run_bytes > UINT64_MAX / 2 / POOL_RUNS_MAX)
        return -EOVERFLOW;
    for (uint32_t i = 0; i < w->n_layers; i++) {
        ret->run[i] = (struct pool_run){w->first_layer + i, POOL_RUN_KV, off, g->block_bytes};
        off += round_up_u64(run_bytes, PAGE_BYTES);
    }
    ret->bytes = off;
    return 0;
}

static int populate(char *at, size_t bytes)
{
    if (madvise(at, bytes, MADV_POPULATE_WRITE) == 0) return 0;
    /* EFAULT is what a full tmpfs answers; a kernel before 5.14 doesn't know the call, and there
     * the pages were allocated by posix_fallocate. */
    return errno == EFAULT ? -ENOSPC : errno == EINVAL ? 0 : -errno;
}

static void *fill_some(void *arg)
{
    struct arena *a = arg;
    for (;;) {
        size_t off = __atomic_fetch_add(&a->next, fill_step_bytes, __ATOMIC_RELAXED);
        if (off >= a->file.bytes || __atomic_load_n(&a->failed, __ATOMIC_RELAXED)) return NULL;
        size_t n = min_u64(fill_step_bytes, a->file.bytes - off);
        int r = populate((char *)a->file.at + off, n);
        if (r < 0) __atomic_store_n(&a->failed, r, __ATOMIC_RELAXED);
        __atomic_fetch_add(&a->filled, n, __ATOMIC_RELAXED);
    }
}

/* Locks when asked. Called by the filler thread, since locking tens of gigabytes takes time. */
static int lock(struct arena *a)
{
    if (a->lock == POOL_LOCK_NO) return 0;
    if (mlock(a->file.at, a->file.bytes) == 0) return 1;
    return a->lock == POOL_LOCK_YES ? -errno : 0;
}

static void fill_files(struct arena *a)
{
    pthread_t others[FILL_THREADS_MAX];
    uint32_t n = 0;
    while (n + 1 < a->n_threads && pthread_create(&others[n], NULL, fill_some, a) == 0)
        n++;
    (void)fill_some(a);
    for (uint32_t i = 0; i < n; i++)
        (void)pthread_join(others[i], NULL);
    int locked = a->failed ? 0 : lock(a);
    if (locked < 0) a->failed = locked;
    double seconds = (double)(now_us() - a->began_us) / 1e6;
    (void)snprintf(a->text, sizeof(a->text), "arena of stage %u: %zu bytes in %.2f s, %s",
                   a->head.stage, a->file.bytes, seconds, locked > 0 ? "locked" : "not locked");
}

/* The driver allocates, clears and pins in one call. */
static void fill_cuda(struct arena *a)
{
    struct why why = {0};
    int r = cuda_host_make(a->head.bytes, &why, &a->cuda);
    if (r < 0) {
        a->failed = r;
        (void)snprintf(
            a->text, sizeof(a->text),
            "pool.memory = cuda: the arena of stage %u: %.150s; lower pool.cells, or set "
            "pool.memory = shm",
            a->head.stage, why.text);
        return;
    }
    (void)madvise(a->cuda.at, a->cuda.bytes, MADV_DONTDUMP);
    double seconds = (double)(now_us() - a->began_us) / 1e6;
    (void)snprintf(a->text, sizeof(a->text), "arena of stage %u: %zu bytes of CUDA in %.2f s",
                   a->head.stage, a->cuda.bytes, seconds);
}

static void tell(struct arena *a)
{
    uint64_t one = 1;
    if (write(a->event, &one, sizeof(one)) < 0) abort();
}

static void *fill(void *arg)
{
    struct arena *a = arg;
    if (a->memory == POOL_MEMORY_CUDA)
        fill_cuda(a);
    else
        fill_files(a);
    tell(a);
    return NULL;
}

static void describe_failure(struct arena *a)
{
    struct rlimit limit = {0};
    if (a->memory == POOL_MEMORY_CUDA) return; /* the driver's words are there */
    (void)getrlimit(RLIMIT_MEMLOCK, &limit);
    if (a->failed == -ENOSPC)
        (void)snprintf(
            a->text, sizeof(a->text),
            "the arena of stage %u needs %zu bytes, more than pool.dir has room for; lower "
            "pool.cells, or give pool.dir a larger tmpfs",
            a->head.stage, a->file.bytes);
    else
        (void)snprintf(
            a->text, sizeof(a->text),
            "cannot lock the arena of stage %u, %zu bytes: %s; the limit (memlock) is %llu "
            "bytes; raise it, or set pool.lock = auto or no",
            a->head.stage, a->file.bytes, strerror(-a->failed), (unsigned long long)limit.rlim_cur);
}

/* Only of a new file: one that holds conversations would be none for the next poold if this one
 * died in between. */
static void sign(struct arena *a)
{
    DEATH_POINT("arena-header");
    *a->h = a->head;
    DEATH_POINT("arena-magic");
    shm_store_u64(&a->h->magic, POOL_ARENA_MAGIC);
    DEATH_POINT("arena-made");
}

static void on_filled(void *arg, uint32_t events)
{
    (void)events;
    struct arena *a = arg;
    if (a->running) (void)pthread_join(a->filler, NULL);
    a->running = false;
    loop_remove(TAKE(a->filled_event));
    if (a->cuda.at) a->h = a->cuda.at;
    if (a->failed) {
        describe_failure(a);
    } else {
        if (a->h && a->h->magic != POOL_ARENA_MAGIC) sign(a);
        a->ready = true;
    }
    a->done(a->arg, a->failed, a->text);
}

static int make_file(const struct arena_want *w, const char *name, struct why *why, struct arena *a)
{
    CLEANUP(freep) char *path = NULL;
    if (asprintf(&path, "%s/%s", w->dir, name) < 0) abort();
    (void)unlink(path);
    char what[64];
    (void)snprintf(what, sizeof(what), "the arena of stage %u", w->stage);
    /* For an error with numbers; filling finds out for sure. */
    int r = store_check_room(w->dir, a->head.bytes, what, why);
    if (r < 0) return r;
    a->file.bytes = a->head.bytes;
    a->file.fd = open(path, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600);
    if (a->file.fd < 0 || ftruncate(a->file.fd, (off_t)a->file.bytes) < 0)
        return why_set(why, -errno, "%s: cannot be made: %s", path, strerror(errno));
    a->file.at = mmap(NULL, a->file.bytes, PROT_READ | PROT_WRITE, MAP_SHARED, a->file.fd, 0);
    if (a->file.at == MAP_FAILED) {
        a->file.at = NULL;
        return why_set(why, -errno, "%s: cannot map %zu bytes: %s", path, a->file.bytes,
                       strerror(errno));
    }
    return 0;
}

static bool same_layout(const struct pool_arena *a, const struct pool_arena *b)
{
    size_t runs = a->n_runs * sizeof(a->run[0]);
    return a->bytes == b->bytes && a->stage == b->stage && a->n_runs == b->n_runs &&
           a->chunk_cells == b->chunk_cells && a->block_cells == b->block_cells &&
           a->n_chunks == b->n_chunks && memcmp(a->run, b->run, runs) == 0;
}

static int refuse_layers(const struct arena_want *w, uint32_t first, uint32_t n, struct why *why)
{
    return why_set(why, -EINVAL, "the arena of stage %u holds layers %u to %u, not %u to %u",
                   w->stage, first, first + n - 1, w->first_layer,
                   w->first_layer + w->n_layers - 1);
}

/* Finds the file of an earlier poold, or makes one. */
static int begin_file(struct arena *a, const struct arena_want *w, struct why *why, bool *ret_fresh)
{
    char name[32];
    (void)snprintf(name, sizeof(name), "arena-%u", w->stage);
    *ret_fresh = true;
    if (store_open(w->dir, name, a->head.bytes, &a->file) == 0) {
        const struct pool_arena *h = a->file.at;
        *ret_fresh = h->magic != POOL_ARENA_MAGIC || h->pool_id != w->h->pool_id;
        if (!*ret_fresh && !same_layout(h, &a->head))
            return refuse_layers(w, h->run[0].layer, h->n_runs, why);
        if (*ret_fresh) mapped_file_fini(&a->file);
    }
    int r = *ret_fresh ? make_file(w, name, why, a) : 0;
    if (r < 0) return r;
    a->h = a->file.at;
    (void)madvise(a->file.at, a->file.bytes, MADV_DONTDUMP);
    return 0;
}

/* What a worker hands back is taken as it is: the pool's id fixes all but the layers, and whoever
 * maps it checks its header. poold itself has no use for its bytes. */
static int begin_cuda(struct arena *a, const struct arena_want *w, struct why *why, bool *ret_fresh)
{
    const struct lifeline_arena *held = w->held;
    *ret_fresh = !held;
    if (!held) return 0;
    if (held->first_layer != w->first_layer || held->n_layers != w->n_layers)
        return refuse_layers(w, held->first_layer, held->n_layers, why);
    if (held->bytes < a->head.bytes)
        return why_set(why, -EPROTO, "the arena of stage %u that was handed back is cut short",
                       w->stage);
    a->cuda.fd = fcntl(w->held_fd, F_DUPFD_CLOEXEC, 0);
    if (a->cuda.fd < 0) return why_set(why, -errno, "an arena's descriptor: %s", strerror(errno));
    a->cuda.bytes = held->bytes;
    (void)snprintf(a->text, sizeof(a->text), "arena of stage %u: %zu bytes of CUDA, handed back",
                   w->stage, a->cuda.bytes);
    return 0;
}

static int start(struct loop *l, struct arena *a, struct why *why)
{
    a->began_us = now_us();
    a->event = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    int r = a->event < 0 ? -errno : 0;
    if (r == 0) r = loop_add_fd(l, a->event, EPOLLIN, on_filled, a, &a->filled_event);
    bool there = a->cuda.fd >= 0;
    if (r == 0 && there) tell(a);
    if (r == 0 && !there) r = -pthread_create(&a->filler, NULL, fill, a);
    if (r < 0) return why_set(why, r, "cannot start filling the arena: %s", strerror(-r));
    a->running = !there;
    return 0;
}

static void arena_freep(struct arena **a) { arena_free(*a); }

int arena_new(struct loop *l, const struct arena_want *want,
              void (*done)(void *arg, int result, const char *text), void *arg, struct why *why,
              struct arena **ret, bool *ret_fresh)
{
    CLEANUP(arena_freep) struct arena *a = xnew(struct arena);
    a->file.fd = a->cuda.fd = a->event = -1;
    a->memory = want->h->memory;
    a->lock = want->lock;
    a->done = done;
    a->arg = arg;
    a->n_threads = min_u32(max_u32(want->n_threads, 1), FILL_THREADS_MAX);
    int r = lay_out(want, &a->head);
    if (r < 0) return why_set(why, r, "stage %u has an impossible layout", want->stage);
    bool fresh;
    r = a->memory == POOL_MEMORY_CUDA ? begin_cuda(a, want, why, &fresh)
                                      : begin_file(a, want, why, &fresh);
    if (r < 0) return r;
    r = start(l, a, why);
    if (r < 0) return r;
    *ret = TAKE(a);
    *ret_fresh = fresh;
    return 0;
}

void arena_free(struct arena *a)
{
    if (!a) return;
    if (a->running) {
        __atomic_store_n(&a->failed, -ECANCELED, __ATOMIC_RELAXED);
        (void)pthread_join(a->filler, NULL);
    }
    loop_remove(a->filled_event);
    closep(&a->event);
    mapped_file_fini(&a->file);
    cuda_host_fini(&a->cuda);
    free(a);
}

int arena_fd(const struct arena *a)
{
    return a->memory == POOL_MEMORY_CUDA ? a->cuda.fd : a->file.fd;
}
bool arena_ready(const struct arena *a) { return a->ready; }
uint64_t arena_bytes(const struct arena *a) { return a->head.bytes; }
uint64_t arena_cuda_bytes(const struct arena *a) { return a->cuda.bytes; }

uint32_t arena_percent(const struct arena *a)
{
    size_t filled = __atomic_load_n(&a->filled, __ATOMIC_RELAXED);
    return a->file.bytes ? (uint32_t)(filled * 100 / a->file.bytes) : 0;
}

void arena_layers(const struct arena *a, uint32_t *ret_first, uint32_t *ret_n)
{
    *ret_first = a->head.run[0].layer;
    *ret_n = a->head.n_runs;
}
