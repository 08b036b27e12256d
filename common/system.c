/* SPDX-License-Identifier: MIT */
#include "common/system.h"

#include <errno.h>
#include <sched.h>
#include <unistd.h>

int read_at(int fd, void *to, uint64_t bytes, uint64_t off)
{
    for (char *at = to; bytes > 0;) {
        ssize_t n = pread(fd, at, bytes, (off_t)off);
        if (n < 0 && errno == EINTR) continue;
        if (n <= 0) return n < 0 ? -errno : -ENODATA;
        at += n, off += (uint64_t)n, bytes -= (uint64_t)n;
    }
    return 0;
}

int write_at(int fd, const void *from, uint64_t bytes, uint64_t off)
{
    for (const char *at = from; bytes > 0;) {
        ssize_t n = pwrite(fd, at, bytes, (off_t)off);
        if (n < 0 && errno == EINTR) continue;
        if (n < 0) return -errno;
        at += n, off += (uint64_t)n, bytes -= (uint64_t)n;
    }
    return 0;
}

uint32_t usable_cores(void)
{
    cpu_set_t set;
    CPU_ZERO(&set);
    if (sched_getaffinity(0, sizeof(set), &set) < 0) return 1;
    return max_u32((uint32_t)CPU_COUNT(&set), 1);
}
