/* SPDX-License-Identifier: MIT */
/*
 * The few calls of CUDA's driver that make, map and share host memory (cuda_host.h), found in
 * libcuda.so.1 at run time. Their types are those of cuda.h, whose binary form does not change
 * within a major release of the driver's interface; only what is used here is repeated.
 */
#include "common/cuda_host.h"

#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <string.h>

enum { /* cuda.h's */
       PINNED = 1,
       POSIX_DESCRIPTOR = 1,
       AT_DEVICE = 1,
       AT_HOST = 2,
       AT_HOST_NUMA = 3,
       MAY_READ = 1,
       MAY_WRITE = 3,
       RECOMMENDED = 1,
       SUCCESS = 0,
       OUT_OF_MEMORY = 2,
};

struct location {
    int type, id;
};

struct properties { /* CUmemAllocationProp */
    int type, handle_types;
    struct location location;
    void *windows_only;
    uint8_t flags[8];
};
_Static_assert(sizeof(struct properties) == 32, "as cuda.h has it");

struct access { /* CUmemAccessDesc */
    struct location location;
    int flags;
};

static struct {
    int (*init)(unsigned flags);
    int (*text)(int result, const char **ret);
    int (*granularity)(size_t *ret, const struct properties *p, int option);
    int (*create)(uint64_t *ret, size_t bytes, const struct properties *p, uint64_t flags);
    int (*release)(uint64_t handle);
    int (*export)(void *ret_fd, uint64_t handle, int type, uint64_t flags);
    int (*import)(uint64_t *ret, void *fd, int type);
    int (*reserve)(uint64_t *ret, size_t bytes, size_t alignment, uint64_t at, uint64_t flags);
    int (*unreserve)(uint64_t at, size_t bytes);
    int (*map)(uint64_t at, size_t bytes, size_t off, uint64_t handle, uint64_t flags);
    int (*unmap)(uint64_t at, size_t bytes);
    int (*allow)(uint64_t at, size_t bytes, const struct access *access, size_t n);
} cu;

static struct why no; /* why there is no driver; empty: there is one */

static const char *text_of(int result)
{
    const char *text = NULL;
    if (!cu.text || cu.text(result, &text) != SUCCESS || !text) return "an unknown error";
    return text;
}

static void load(void)
{
    static const struct {
        const char *name;
        void *at;
    } calls[] = {
        {"cuInit",                         &cu.init       },
        {"cuGetErrorString",               &cu.text       },
        {"cuMemGetAllocationGranularity",  &cu.granularity},
        {"cuMemCreate",                    &cu.create     },
        {"cuMemRelease",                   &cu.release    },
        {"cuMemExportToShareableHandle",   &cu.export     },
        {"cuMemImportFromShareableHandle", &cu.import     },
        {"cuMemAddressReserve",            &cu.reserve    },
        {"cuMemAddressFree",               &cu.unreserve  },
        {"cuMemMap",                       &cu.map        },
        {"cuMemUnmap",                     &cu.unmap      },
        {"cuMemSetAccess",                 &cu.allow      },
    };
    void *library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    if (!library) {
        (void)why_set(&no, 0, "there is no NVIDIA driver here (%s)", dlerror());
        return;
    }
    for (size_t i = 0; i < ARRAY_LEN(calls); i++) {
        void *at = dlsym(library, calls[i].name);
        if (!at) {
            (void)why_set(&no, 0, "the NVIDIA driver is too old: it has no %s", calls[i].name);
            return;
        }
        memcpy(calls[i].at, &at, sizeof(at));
    }
    int r = cu.init(0);
    if (r != SUCCESS) (void)why_set(&no, 0, "the NVIDIA driver says: %s", text_of(r));
}

static int begin(struct why *why)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    (void)pthread_once(&once, load);
    return no.text[0] ? why_set(why, -ENOTSUP, "%s", no.text) : 0;
}

/* The node of the memory is chosen when it is made, as with memory that is touched first. */
static struct properties properties_here(void)
{
    unsigned cpu, node = 0;
    if (getcpu(&cpu, &node) < 0) node = 0;
    return (struct properties){
        .type = PINNED,
        .handle_types = POSIX_DESCRIPTOR,
        .location = {AT_HOST_NUMA, (int)node},
    };
}

static int granule(size_t *ret, struct why *why)
{
    struct properties p = properties_here();
    int r = cu.granularity(ret, &p, RECOMMENDED);
    if (r == SUCCESS && *ret) return 0;
    return why_set(why, -ENOTSUP, "the NVIDIA driver can't allocate host memory: %s", text_of(r));
}

int cuda_host_check(struct why *why)
{
    size_t bytes = 0;
    int r = begin(why);
    return r < 0 ? r : granule(&bytes, why);
}

/* Maps a handle; the mapping keeps the memory, so the handle may go. */
static int map(uint64_t handle, const struct cuda_host_want *w, struct why *why, void **ret)
{
    uint64_t at = 0;
    struct access access[2] = {
        {{AT_HOST, 0},           w->read_only ? MAY_READ : MAY_WRITE},
        {{AT_DEVICE, w->device}, MAY_WRITE                          },
    };
    size_t bytes = w->bytes;
    int r = cu.reserve(&at, bytes, 0, 0, 0);
    if (r != SUCCESS)
        return why_set(why, -ENOMEM, "no addresses for %zu bytes: %s", bytes, text_of(r));
    r = cu.map(at, bytes, 0, handle, 0);
    if (r == SUCCESS) {
        r = cu.allow(at, bytes, access, w->device == CUDA_HOST_NO_DEVICE ? 1 : 2);
        if (r != SUCCESS) (void)cu.unmap(at, bytes);
    }
    if (r != SUCCESS) {
        (void)cu.unreserve(at, bytes);
        return why_set(why, -EIO, "%zu bytes of host memory can't be mapped: %s", bytes,
                       text_of(r));
    }
    *ret = (void *)(uintptr_t)at;
    return 0;
}

static int export(uint64_t handle, struct why *why, int *ret)
{
    int fd = -1, r = cu.export(&fd, handle, POSIX_DESCRIPTOR, 0);
    if (r != SUCCESS || fd < 0)
        return why_set(why, -EIO, "host memory can't be shared by descriptor: %s", text_of(r));
    (void)fcntl(fd, F_SETFD, FD_CLOEXEC);
    *ret = fd;
    return 0;
}

int cuda_host_make(uint64_t bytes, struct why *why, struct cuda_host *ret)
{
    CLEANUP(cuda_host_fini) struct cuda_host m = {.fd = -1};
    size_t step = 0;
    int r = begin(why);
    if (r == 0) r = granule(&step, why);
    if (r < 0) return r;
    struct cuda_host_want want = {.bytes = round_up_u64(bytes, step),
                                  .device = CUDA_HOST_NO_DEVICE};
    struct properties p = properties_here();
    uint64_t handle = 0;
    int e = cu.create(&handle, want.bytes, &p, 0);
    if (e != SUCCESS)
        return why_set(why, e == OUT_OF_MEMORY ? -ENOMEM : -EIO,
                       "%llu bytes of host memory of NUMA node %d can't be had: %s",
                       (unsigned long long)want.bytes, p.location.id, text_of(e));
    r = map(handle, &want, why, &m.at);
    if (r == 0) m.bytes = want.bytes;
    if (r == 0) r = export(handle, why, &m.fd);
    (void)cu.release(handle);
    if (r < 0) return r;
    *ret = m;
    m = (struct cuda_host){.fd = -1};
    return 0;
}

int cuda_host_map(const struct cuda_host_want *want, struct why *why, struct cuda_host *ret)
{
    CLEANUP(cuda_host_fini) struct cuda_host m = {.fd = -1};
    uint64_t handle = 0;
    int r = begin(why);
    if (r < 0) return r;
    m.fd = fcntl(want->fd, F_DUPFD_CLOEXEC, 0);
    if (m.fd < 0) return why_set(why, -errno, "its descriptor: %s", strerror(errno));
    int e = cu.import(&handle, (void *)(uintptr_t)m.fd, POSIX_DESCRIPTOR);
    if (e != SUCCESS)
        return why_set(why, -EPROTO, "its descriptor is not of host memory that CUDA made: %s",
                       text_of(e));
    r = map(handle, want, why, &m.at);
    if (r == 0) m.bytes = want->bytes;
    (void)cu.release(handle);
    if (r < 0) return r;
    *ret = m;
    m = (struct cuda_host){.fd = -1};
    return 0;
}

void cuda_host_fini(struct cuda_host *m)
{
    if (m->at) {
        (void)cu.unmap((uintptr_t)m->at, m->bytes);
        (void)cu.unreserve((uintptr_t)m->at, m->bytes);
    }
    closep(&m->fd);
    *m = (struct cuda_host){.fd = -1};
}
