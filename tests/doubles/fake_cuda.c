/* SPDX-License-Identifier: MIT */
/*
 * A libcuda.so.1 for machines without a driver: the calls that common/cuda_host.c makes, over
 * memfds, so that the story of pool.memory = cuda can be told by CPU workers. As with the driver's,
 * the memory lives as long as a descriptor or a mapping of it. CISTERN_FAKE_CUDA=none: no device;
 * =small: an allocation fails.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

enum { GRANULE = 2 << 20, HANDLES = 1000, OK = 0, INVALID = 1, NO_MEMORY = 2, NO_DEVICE = 100 };

static int says(const char *what)
{
    const char *is = getenv("CISTERN_FAKE_CUDA");
    return is && strcmp(is, what) == 0;
}

int cuInit(unsigned flags) { return flags ? INVALID : says("none") ? NO_DEVICE : OK; }

int cuGetErrorString(int result, const char **ret)
{
    *ret = result == NO_DEVICE   ? "no CUDA-capable device is detected"
           : result == NO_MEMORY ? "out of memory"
                                 : "invalid argument";
    return OK;
}

int cuMemGetAllocationGranularity(size_t *ret, const void *properties, int option)
{
    (void)properties;
    (void)option;
    *ret = GRANULE;
    return OK;
}

/* A handle is a descriptor, and never 0. */
int cuMemCreate(uint64_t *ret, size_t bytes, const void *properties, uint64_t flags)
{
    (void)properties;
    if (flags || bytes % GRANULE) return INVALID;
    if (says("small")) return NO_MEMORY;
    int fd = memfd_create("fake-cuda", MFD_CLOEXEC);
    if (fd < 0 || posix_fallocate(fd, 0, (off_t)bytes) != 0) return NO_MEMORY;
    *ret = (uint64_t)fd + 1;
    return OK;
}

int cuMemRelease(uint64_t handle) { return close((int)handle - 1) < 0 ? INVALID : OK; }

int cuMemExportToShareableHandle(void *ret_fd, uint64_t handle, int type, uint64_t flags)
{
    int fd = type == 1 && !flags ? fcntl((int)handle - 1, F_DUPFD, 0) : -1;
    if (fd < 0) return INVALID;
    memcpy(ret_fd, &fd, sizeof(fd));
    return OK;
}

int cuMemImportFromShareableHandle(uint64_t *ret, void *from, int type)
{
    int fd = type == 1 ? fcntl((int)(intptr_t)from, F_DUPFD_CLOEXEC, 0) : -1;
    if (fd < 0) return INVALID;
    *ret = (uint64_t)fd + 1;
    return OK;
}

int cuMemAddressReserve(uint64_t *ret, size_t bytes, size_t alignment, uint64_t at, uint64_t flags)
{
    (void)alignment;
    if (at || flags || bytes % GRANULE) return INVALID;
    void *p = mmap(NULL, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (p == MAP_FAILED) return NO_MEMORY;
    *ret = (uintptr_t)p;
    return OK;
}

int cuMemAddressFree(uint64_t at, size_t bytes)
{
    return munmap((void *)(uintptr_t)at, bytes) < 0 ? INVALID : OK;
}

int cuMemMap(uint64_t at, size_t bytes, size_t off, uint64_t handle, uint64_t flags)
{
    struct stat st;
    int fd = (int)handle - 1;
    if (off || flags || fstat(fd, &st) < 0 || (size_t)st.st_size != bytes) return INVALID;
    void *p = mmap((void *)(uintptr_t)at, bytes, PROT_NONE, MAP_SHARED | MAP_FIXED, fd, 0);
    return p == MAP_FAILED ? INVALID : OK;
}

int cuMemUnmap(uint64_t at, size_t bytes)
{
    int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED;
    void *p = mmap((void *)(uintptr_t)at, bytes, PROT_NONE, flags, -1, 0);
    return p == MAP_FAILED ? INVALID : OK;
}

struct access {
    int type, id, flags;
};

/* Only the CPU's access is what a CPU worker needs; a device's is taken as said. */
int cuMemSetAccess(uint64_t at, size_t bytes, const struct access *access, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        if (access[i].type != 2) continue;
        int prot = access[i].flags == 3 ? PROT_READ | PROT_WRITE : PROT_READ;
        if (mprotect((void *)(uintptr_t)at, bytes, prot) < 0) return INVALID;
    }
    return OK;
}
