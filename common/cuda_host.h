/* SPDX-License-Identifier: MIT */
#ifndef COMMON_CUDA_HOST_H
#define COMMON_CUDA_HOST_H
/*
 * Host memory that CUDA's driver allocates and pins (cuMemCreate, HOST_NUMA): pool.memory = cuda.
 * poold makes it, everyone else maps it by its descriptor; it lives as long as any process has the
 * descriptor or a mapping. The driver's library is opened when the first of these functions is
 * called, and no context is made: who never calls one has nothing of CUDA in it.
 *
 * Any thread.
 */
#include <stdbool.h>

#include "common/base.h"

struct cuda_host {
    void *at;     /* the same address for the CPU and for every device that it was mapped for */
    size_t bytes; /* whole granules of the driver: no less than was asked for */
    int fd;       /* what others map it by; the holder's own */
};

enum { CUDA_HOST_NO_DEVICE = -1 };

struct cuda_host_want {
    int fd; /* as another process got it; stays the caller's */
    uint64_t bytes;
    int device;     /* that reads and writes it, or CUDA_HOST_NO_DEVICE: the CPU alone */
    bool read_only; /* for the CPU */
};

/* -ENOTSUP with the reason when this machine can't: no driver, no device, or too old a driver. */
int cuda_host_check(struct why *why);
/* On the NUMA node of the calling thread, all bytes 0. -ENOMEM: there is not so much. */
int cuda_host_make(uint64_t bytes, struct why *why, struct cuda_host *ret);
int cuda_host_map(const struct cuda_host_want *want, struct why *why, struct cuda_host *ret);
void cuda_host_fini(struct cuda_host *m);

#endif
