/* SPDX-License-Identifier: MIT */
/*
 * See poolctl_crew.h. Chunks are taken in order and what is taken is ended, so the failure that is
 * told is the same at any number of threads: that of the first damaged chunk.
 */
#include "poold/poolctl_crew.h"

#include <errno.h>
#include <sys/eventfd.h>

#include "common/system.h"

static void fail(struct crew *w, uint32_t chunk, int r, const struct why *why)
{
    (void)pthread_mutex_lock(&w->lock);
    if (w->r == 0 || chunk < w->chunk) {
        w->chunk = chunk;
        w->r = r;
        w->why = *why;
    }
    (void)pthread_mutex_unlock(&w->lock);
    /* Nothing new is begun. */
    __atomic_store_n(&w->next, saved_n_chunks(&w->copy->h), __ATOMIC_RELAXED);
}

static void *work(void *arg)
{
    struct crew *w = arg;
    uint32_t n = saved_n_chunks(&w->copy->h);
    for (;;) {
        uint32_t i = __atomic_fetch_add(&w->next, 1, __ATOMIC_RELAXED);
        struct why why = {0};
        if (i >= n) break;
        int r = w->save ? copy_out(w->copy, i) : copy_in(w->copy, i, &why);
        if (r < 0) fail(w, i, r, &why);
    }
    if (__atomic_sub_fetch(&w->n_out, 1, __ATOMIC_ACQ_REL) == 0) (void)eventfd_write(w->ring, 1);
    return NULL;
}

uint32_t crew_size(const struct saved_header *h)
{
    return min_u32(min_u32(usable_cores(), CREW_MAX), saved_n_chunks(h));
}

int crew_start(struct crew *w, struct copy *copy, bool save, int ring)
{
    uint32_t n = crew_size(&copy->h);
    *w = (struct crew){.copy = copy, .save = save, .ring = ring, .n_out = 1};
    (void)pthread_mutex_init(&w->lock, NULL);
    int r = 0;
    for (w->n = 0; w->n < n && r == 0; w->n += r == 0) {
        (void)__atomic_add_fetch(&w->n_out, 1, __ATOMIC_RELAXED);
        r = -pthread_create(&w->thread[w->n], NULL, work, w);
        if (r < 0) (void)__atomic_sub_fetch(&w->n_out, 1, __ATOMIC_RELAXED);
    }
    /* The one that was counted for this thread, so that nobody was the last too early. */
    if (__atomic_sub_fetch(&w->n_out, 1, __ATOMIC_ACQ_REL) == 0 && w->n > 0)
        (void)eventfd_write(ring, 1);
    return w->n > 0 ? 0 : r;
}

int crew_join(struct crew *w)
{
    for (; w->n > 0; w->n--)
        (void)pthread_join(w->thread[w->n - 1], NULL);
    return w->r;
}
