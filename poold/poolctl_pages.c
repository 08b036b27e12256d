/* SPDX-License-Identifier: MIT */
/*
 * See poolctl_pages.h. Called by poolctl_copy.c.
 */
#include "poold/poolctl_pages.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/magic.h>
#include <linux/userfaultfd.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/vfs.h>
#include <unistd.h>

#include "common/system.h"

/* The kernel's own faults (a read into the mapping) are not for us: so no privilege is needed. */
#ifndef UFFD_USER_MODE_ONLY
#define UFFD_USER_MODE_ONLY 1
#endif

static int fault_open(const struct pages *p)
{
    struct uffdio_api api = {.api = UFFD_API, .features = UFFD_FEATURE_MISSING_SHMEM};
    struct uffdio_register reg = {
        .range = {.start = (uintptr_t)p->map, .len = p->bytes},
        .mode = UFFDIO_REGISTER_MODE_MISSING
    };
    int fd = (int)syscall(SYS_userfaultfd, O_CLOEXEC | UFFD_USER_MODE_ONLY);
    if (fd < 0) return -1;
    if (ioctl(fd, UFFDIO_API, &api) == 0 && ioctl(fd, UFFDIO_REGISTER, &reg) == 0) return fd;
    (void)close(fd);
    return -1;
}

bool pages_open(struct pages *p, int fd, uint64_t bytes)
{
    struct statfs fs;
    *p = (struct pages){.fd = fd, .fault = -1};
    if (fstatfs(fd, &fs) < 0 || fs.f_type != TMPFS_MAGIC) return false;
    if (ftruncate(fd, (off_t)bytes) < 0) return false;
    p->bytes = round_up_u64(bytes, PAGE_BYTES);
    void *at = mmap(NULL, p->bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (at == MAP_FAILED) return false;
    p->map = at;
    p->fault = fault_open(p);
    /* Linux before 5.14 can't say that there is no room; no byte is asked for to hear of it. */
    bool can = p->fault >= 0 || madvise(at, 0, MADV_POPULATE_WRITE) == 0;
    if (!can) pages_close(p);
    return can;
}

void pages_close(struct pages *p)
{
    if (p->map) (void)munmap(p->map, p->bytes);
    if (p->map && p->fault >= 0) (void)close(p->fault);
    p->map = NULL;
}

int pages_reserve(struct pages *p, uint64_t off, uint64_t n)
{
    if (p->fault >= 0) return 0;
    while (fallocate(p->fd, 0, (off_t)off, (off_t)n) < 0)
        if (errno != EINTR) return -errno;
    return 0;
}

static int copy_in_fault(struct pages *p, const char *from, size_t n, uint64_t off)
{
    for (size_t at = 0; at < n;) {
        struct uffdio_copy c = {.dst = (uintptr_t)p->map + off + at,
                                .src = (uintptr_t)from + at,
                                .len = n - at,
                                .mode = UFFDIO_COPY_MODE_DONTWAKE};
        int r = ioctl(p->fault, UFFDIO_COPY, &c) == 0 ? 0 : -errno;
        if (r == 0) return 0;
        if (c.copy > 0) at += (size_t)c.copy;
        /* It says so of a full file system, too. */
        if (r == -ENOMEM) return -ENOSPC;
        /* There already: a huge page came with its neighbour. */
        if (r == -EEXIST && c.copy <= 0) {
            r = write_at(p->fd, from + at, PAGE_BYTES, off + at);
            if (r < 0) return r;
            at += PAGE_BYTES;
            continue;
        }
        if (r != -EAGAIN && r != -EINTR && r != -EEXIST) return r;
    }
    return 0;
}

/* A full file system is heard of before the bytes are stored: a store would end the process. */
int pages_put(struct pages *p, const char *from, size_t n, uint64_t off)
{
    if (p->fault >= 0) return copy_in_fault(p, from, n, off);
    if (madvise(p->map + off, n, MADV_POPULATE_WRITE) < 0)
        return errno == EFAULT ? -ENOSPC : -errno;
    memcpy(p->map + off, from, n);
    return 0;
}
