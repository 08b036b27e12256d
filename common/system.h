/* SPDX-License-Identifier: MIT */
#ifndef COMMON_SYSTEM_H
#define COMMON_SYSTEM_H
/* What the system is asked in more than one place. Any thread. */
#include "common/base.h"

enum {
    PAGE_BYTES = 4096 /* of memory, as the kernel maps it; what is mapped is laid out by it */
};

/* Fills to[bytes] from fd at off. 0, -ENODATA when the file ends before, or what pread said. */
int read_at(int fd, void *to, uint64_t bytes, uint64_t off);
/* All of from[bytes] into fd at off. 0, or what pwrite said. */
int write_at(int fd, const void *from, uint64_t bytes, uint64_t off);
/* Cores that this process may use; 1 when that cannot be told. */
uint32_t usable_cores(void);

#endif
