/* SPDX-License-Identifier: MIT */
#ifndef WORKERD_CUDA_READERS_H
#define WORKERD_CUDA_READERS_H
/*
 * Threads that read a part of a file together: one alone copies from the page cache far slower than
 * a card takes it. They live as long as the loading does. Owned by who loads; one call at a time.
 */
#include "common/base.h"

struct readers;

/* n threads, the caller's included; fewer when the system gives no more. */
struct readers *readers_new(uint32_t n);
void readers_free(struct readers *r); /* takes NULL */
/* Fills to[bytes] from fd at off. -EIO when the file ends before, or what pread said. */
int readers_read(struct readers *r, int fd, uint64_t off, void *to, uint64_t bytes);

#endif
