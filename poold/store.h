/* SPDX-License-Identifier: MIT */
#ifndef POOLD_STORE_H
#define POOLD_STORE_H
/*
 * The pool's smaller memory files besides the control segment: tokens and pages. Each bears the
 * pool's id; one that is missing or bears another id is made anew, empty, and the caller is told.
 */
#include <stdbool.h>

#include "common/base.h"
#include "proto/pool_shm.h"

struct mapped_file {
    int fd;
    size_t bytes;
    void *at;
};
void mapped_file_fini(struct mapped_file *f); /* the file stays */

/* ret_new: 1 when the file was made now. */
int store_tokens(const char *dir, const struct pool_header *h, struct why *why,
                 struct mapped_file *ret, bool *ret_new);
int store_page(const char *dir, const struct pool_header *h, uint32_t pipeline, uint32_t stage,
               struct why *why, struct mapped_file *ret, bool *ret_new);
/* Opens DIR/name, which must be exactly bytes long, read-write. -ENOENT when it isn't there or has
 * another size. */
int store_open(const char *dir, const char *name, size_t bytes, struct mapped_file *ret);
/* Makes it: all pages are allocated, all bytes 0. */
int store_make(const char *dir, const char *name, size_t bytes, struct why *why,
               struct mapped_file *ret);

/* -ENOSPC when dir has no room for so many bytes; why names what they are of, both numbers and the
 * knob. */
int store_check_room(const char *dir, uint64_t bytes, const char *what, struct why *why);

/* Makes dir (0700) where it is missing, and takes its lock for this process's life. -EBUSY: another
 * poold has it. */
int store_lock_dir(const char *dir, const char *key, struct why *why, int *ret_lock);

#endif
