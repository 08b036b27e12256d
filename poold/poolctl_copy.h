/* SPDX-License-Identifier: MIT */
#ifndef POOLD_POOLCTL_COPY_H
#define POOLD_POOLCTL_COPY_H
/*
 * The bytes of a save or restore, a chunk at a time, between a saved conversation's file and the
 * mapped pool. In pieces that are summed while the processor still has them. The caller has bounded
 * every chunk and every layer's run; whose the chunks are is poold's word. Several threads may move
 * different chunks at once.
 */
#include <stdbool.h>

#include "poold/poolctl_file.h"
#include "poold/poolctl_pages.h"

struct copy {
    int fd;
    bool stop;          /* atomically: what is on its way ends with -ECANCELED */
    struct pages pages; /* of a save; not open: bytes are written */
    struct saved_header h;
    char *layer[POOL_RUNS_MAX]; /* where its run begins, in a shared mapping */
    uint32_t *cell;             /* the tokens file's words */
    uint32_t *chunks;           /* of the conversation, in order */
};

/* The file's first bytes. many: more threads will store than writes can serve, which wait for each
 * other in one file (about 3.4 GB/s on tmpfs); there its pages are made in a mapping. */
int copy_begin_out(struct copy *c, bool many);
/* Nobody stores any more. */
void copy_end_out(struct copy *c);
/* Chunk i into the file. */
int copy_out(struct copy *c, uint32_t i);
/* Chunk i out of it. -EBADMSG: damaged; -ENODATA: the file ends; with the sentence. */
int copy_in(struct copy *c, uint32_t i, struct why *why);

#endif
