/* SPDX-License-Identifier: MIT */
#ifndef POOLD_POOLCTL_COPY_H
#define POOLD_POOLCTL_COPY_H
/*
 * The bytes of a save or restore, a chunk at a time, between a saved conversation's file and the
 * mapped pool. In pieces that are summed while the processor still has them. The caller has bounded
 * every chunk and every layer's run; whose the chunks are is poold's word.
 */
#include "poold/poolctl_file.h"

struct copy {
    int fd;
    struct saved_header h;
    char *layer[POOL_RUNS_MAX]; /* where its run begins */
    uint32_t *cell;             /* the tokens file's words */
    uint32_t *chunks;           /* of the conversation, in order */
};

/* The file's first bytes. */
int copy_header(struct copy *c);
/* Chunk i into the file. */
int copy_out(struct copy *c, uint32_t i);
/* Chunk i out of it. -EBADMSG: damaged; -ENODATA: the file ends; with the sentence. */
int copy_in(struct copy *c, uint32_t i, struct why *why);

#endif
