/* SPDX-License-Identifier: MIT */
#ifndef POOLD_POOLCTL_CREW_H
#define POOLD_POOLCTL_CREW_H
/*
 * The threads that move a conversation's chunks for poolctl's save and restore, one a core, so that
 * the loop hears of poold meanwhile. They touch the file, the chunks that they take one by one, and
 * nothing else of the pool. Who started them joins them before the bytes count or are given up.
 */
#include <pthread.h>
#include <stdbool.h>

#include "poold/poolctl_copy.h"

enum {
    CREW_MAX = 8,  /* enough for the memory of one socket: each sums and copies 2 to 3 GB/s */
    CREW_MANY = 3, /* that is more than the writes into one file can serve */
};

struct crew {
    struct copy *copy;
    bool save;
    int ring;             /* an eventfd, written when the last one is done */
    uint32_t next, n_out; /* atomically: the chunk to be taken; threads at work */
    pthread_mutex_t lock; /* of the failure: */
    uint32_t chunk;       /* the first one that failed, in the file's order */
    int r;
    struct why why;
    pthread_t thread[CREW_MAX];
    uint32_t n;
};

/* How many there will be: one a core that this process may use. */
uint32_t crew_size(const struct saved_header *h);
/* The copy and the crew stay where they are until crew_join. ring stays the caller's. */
int crew_start(struct crew *w, struct copy *copy, bool save, int ring);
/* Waits for the threads, which end at the next piece once copy->stop is set. 0: all chunks are
 * moved; else what the first of them that failed came to, with its sentence in w->why. */
int crew_join(struct crew *w);

#endif
