/* SPDX-License-Identifier: MIT */
/*
 * See readers.h. pread and not a copy from a mapping: that takes a page fault for every few pages.
 */
#include "workerd/cuda/readers.h"

#include <errno.h>
#include <pthread.h>
#include <stdbool.h>

#include "common/system.h"

enum {
    READERS_MAX = 64,
    STEP_BYTES = 512 << 10, /* that a thread takes at once: small against a piece, large against a
                               system call */
};

struct readers {
    pthread_t thread[READERS_MAX];
    uint32_t n;
    pthread_mutex_t lock;
    pthread_cond_t begun, ended;
    /* Under the lock. */
    uint64_t job;   /* number of the present one */
    uint32_t at_it; /* threads that have not ended it */
    bool over;
    /* Of the job: set under the lock before it begins. */
    int fd;
    uint64_t off, bytes;
    uint8_t *to;
    uint64_t next; /* atomic: bytes given out */
    int failed;    /* atomic: the first errno */
};

static void take_part(struct readers *r)
{
    for (;;) {
        uint64_t at = __atomic_fetch_add(&r->next, STEP_BYTES, __ATOMIC_RELAXED);
        if (at >= r->bytes || __atomic_load_n(&r->failed, __ATOMIC_RELAXED)) return;
        int e = read_at(r->fd, r->to + at, min_u64(STEP_BYTES, r->bytes - at), r->off + at);
        if (e == -ENODATA) e = -EIO; /* weights that a header promises */
        if (e < 0) __atomic_store_n(&r->failed, e, __ATOMIC_RELAXED);
    }
}

static void *reader(void *arg)
{
    struct readers *r = arg;
    (void)pthread_mutex_lock(&r->lock);
    for (uint64_t done = 0; !r->over;) {
        if (r->job == done) {
            (void)pthread_cond_wait(&r->begun, &r->lock);
            continue;
        }
        done = r->job;
        (void)pthread_mutex_unlock(&r->lock);
        take_part(r);
        (void)pthread_mutex_lock(&r->lock);
        if (--r->at_it == 0) (void)pthread_cond_signal(&r->ended);
    }
    (void)pthread_mutex_unlock(&r->lock);
    return NULL;
}

struct readers *readers_new(uint32_t n)
{
    struct readers *r = xnew(struct readers);
    (void)pthread_mutex_init(&r->lock, NULL);
    (void)pthread_cond_init(&r->begun, NULL);
    (void)pthread_cond_init(&r->ended, NULL);
    while (r->n + 1 < min_u32(n, READERS_MAX) &&
           pthread_create(&r->thread[r->n], NULL, reader, r) == 0)
        r->n++;
    return r;
}

void readers_free(struct readers *r)
{
    if (!r) return;
    (void)pthread_mutex_lock(&r->lock);
    r->over = true;
    (void)pthread_cond_broadcast(&r->begun);
    (void)pthread_mutex_unlock(&r->lock);
    for (uint32_t i = 0; i < r->n; i++)
        (void)pthread_join(r->thread[i], NULL);
    (void)pthread_cond_destroy(&r->ended);
    (void)pthread_cond_destroy(&r->begun);
    (void)pthread_mutex_destroy(&r->lock);
    free(r);
}

int readers_read(struct readers *r, int fd, uint64_t off, void *to, uint64_t bytes)
{
    (void)pthread_mutex_lock(&r->lock);
    r->fd = fd;
    r->off = off;
    r->to = to;
    r->bytes = bytes;
    r->next = 0;
    r->failed = 0;
    r->at_it = r->n;
    r->job++;
    (void)pthread_cond_broadcast(&r->begun);
    (void)pthread_mutex_unlock(&r->lock);
    take_part(r);
    (void)pthread_mutex_lock(&r->lock);
    while (r->at_it > 0)
        (void)pthread_cond_wait(&r->ended, &r->lock);
    (void)pthread_mutex_unlock(&r->lock);
    return r->failed;
}
