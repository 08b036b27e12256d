/* SPDX-License-Identifier: MIT */
#ifndef POOLD_POOLCTL_OUTPUT_H
#define POOLD_POOLCTL_OUTPUT_H
/*
 * A file that appears whole or not at all: written without a name where the file system can do
 * that, else aside, then synced and given its name, over what had it before. Who is killed in the
 * middle leaves the old file as it was. Mode 0600.
 */
#include "common/base.h"

struct output {
    int fd;           /* -1: none */
    const char *path; /* the caller's; lives as long */
    char *aside;      /* the name of what has one before its time; NULL: it has none yet */
};

int output_begin(const char *path, struct output *ret);
/* The name is on the disk when this returns 0. */
int output_publish(struct output *o);
/* Removes what is not published. */
void output_fini(struct output *o);

#endif
