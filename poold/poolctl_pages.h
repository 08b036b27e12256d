/* SPDX-License-Identifier: MIT */
#ifndef POOLD_POOLCTL_PAGES_H
#define POOLD_POOLCTL_PAGES_H
/*
 * A file on tmpfs that several threads fill: writes into one file wait for each other, so its pages
 * are made in a mapping. userfaultfd makes a page with its bytes: without zeroing it first, and
 * without the file's lock. Where it can't be had (Linux before 5.11, a sandbox), fallocate makes
 * pages ahead of the faults, by one thread at a time.
 *
 * Nobody but pages_put stores into the mapping.
 */
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct pages {
    int fd, fault; /* fault: a userfaultfd; -1: none */
    char *map;     /* NULL: not open */
    uint64_t bytes;
};

/* Gives the file its size. False: it isn't on tmpfs, or can't be mapped; pages_close needs not be
 * called. */
bool pages_open(struct pages *p, int fd, uint64_t bytes);
void pages_close(struct pages *p);
/* Before the pages of these bytes are put. -ENOSPC. */
int pages_reserve(struct pages *p, uint64_t off, uint64_t n);
/* Whole pages, of which few are there yet. -ENOSPC. */
int pages_put(struct pages *p, const char *from, size_t n, uint64_t off);

#endif
