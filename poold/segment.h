/* SPDX-License-Identifier: MIT */
#ifndef POOLD_SEGMENT_H
#define POOLD_SEGMENT_H
/*
 * The control segment (proto/pool_shm.h) as its one writer sees it: made, opened again after a
 * restart, and changed by commits. It keeps no other state: what is derived from it lies in pool.c.
 * Loop thread only.
 */
#include "common/base.h"
#include "proto/pool_shm.h"

struct segment {
    int fd;
    size_t bytes;
    struct pool_header *h;
    struct pool_process *processes;
    struct pool_pipeline *pipelines;
    struct pool_row *rows;
    uint64_t *tables;
    struct pool_chunk *chunks;
    uint64_t commits; /* of this process: tells whether anything changed */
    uint32_t n_used;  /* rows at and past it are free: who looks for one that is not stops here */
};

struct segment_want {
    uint32_t n_rows, n_chunks, chunk_cells, grow_chunks, n_stages;
    uint32_t memory;                      /* enum pool_memory */
    uint32_t lane_chunks, pipeline_lanes; /* of the identity layout; 0: one pool for all */
    struct pool_geometry geometry;
};

/* Makes DIR/control; -ENOSPC when dir has no room. */
int segment_make(const char *dir, const struct segment_want *want, struct why *why,
                 struct segment **ret);
/* Opens what an earlier poold left. -ENOENT: there is none (or a half-made one, which is removed).
 */
int segment_open(const char *dir, struct why *why, struct segment **ret);
void segment_free(struct segment *s); /* the file stays */
static inline void segment_freep(struct segment **s) { segment_free(*s); }

/* The body in force. */
const struct pool_body *segment_body(const struct segment *s, uint32_t row);
/* Makes body the one in force: the commit. */
void segment_commit(struct segment *s, uint32_t row, const struct pool_body *body);
/* Adds to one of the header's counters. */
void segment_count(uint64_t *counter, uint64_t n);
uint64_t *segment_table(const struct segment *s, uint32_t row);
/* Puts the trash chunk back at and past the row's table length. */
void segment_trim_table(struct segment *s, uint32_t row);

#endif
