/* SPDX-License-Identifier: MIT */
/*
 * Who measures, the file that all agree by, and the split itself (split.h). Called by worker.c.
 */
#include "workerd/split.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <signal.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>

#include "common/log.h"
#include "proto/pool_shm.h"
#ifdef CISTERN_CUDA
#include "workerd/cuda/backend_cuda.h"
#endif

enum {
    LAYERS_MAX = 1024,
    FILE_BYTES = 2048, /* key and split: a hundred bytes and 16 devices and numbers */
    LOCK_TRIES = 600,  /* of a tenth of a second: measuring takes a second a card */
    LOCK_WAIT_NS = 100000000,
};

/* ---- the split ---- */

void split_by_memory(const uint64_t *bytes, uint32_t n_layers, const uint64_t *free_bytes,
                     uint32_t n_stages, uint32_t *ret_n)
{
    /* least[s][l]: how full the fullest is when stages 0..s have the first l layers; from[s][l]:
     * how many of these the stages before s have. */
    uint32_t width = n_layers + 1;
    CLEANUP(freep) double *least = xcalloc((size_t)n_stages * width, sizeof(*least));
    CLEANUP(freep) uint32_t *from = xcalloc((size_t)n_stages * width, sizeof(*from));
    for (uint32_t s = 0; s < n_stages; s++)
        for (uint32_t l = s + 1; l <= n_layers - (n_stages - 1 - s); l++) {
            double sum = 0, best = -1;
            for (uint32_t k = l; k-- > s;) { /* stage s has layers k..l-1 */
                sum += (double)bytes[k];
                if (s == 0 && k > 0) continue;
                double full = sum / (double)max_u64(free_bytes[s], 1);
                double all = s ? least[(s - 1) * width + k] : 0;
                if (all < full) all = full;
                if (best >= 0 && all > best) continue;
                best = all;
                from[s * width + l] = k;
            }
            least[s * width + l] = best;
        }
    for (uint32_t s = n_stages, l = n_layers; s-- > 0; l = from[s * width + l])
        ret_n[s] = l - from[s * width + l];
}

/* ---- what is measured ---- */

static int free_of(const char *device, struct why *why, uint64_t *ret)
{
    if (strcmp(device, "cpu") == 0) {
        *ret = UINT64_C(1) << 30; /* all stages share the machine's: by the weights alone */
        return 0;
    }
#ifdef CISTERN_CUDA
    return cuda_free_bytes(device, why, ret);
#else
    return why_set(why, -EINVAL,
                   "'%s': this build knows the device cpu alone (meson's -Dcuda=enabled)", device);
#endif
}

static int measure(const struct split_want *w, struct why *why, uint32_t *ret_n)
{
    uint64_t free_bytes[POOL_STAGES_MAX];
    for (uint32_t s = 0; s < w->n_stages; s++) {
        char device[32];
        if (config_device(w->devices, s, device, sizeof(device)) < 0)
            return why_set(why, -EINVAL, "worker.device = %s: %u devices are wanted, one a stage",
                           w->devices, w->n_stages);
        int r = free_of(device, why, &free_bytes[s]);
        if (r < 0) return r;
        if (w->memory_limit) free_bytes[s] = min_u64(free_bytes[s], w->memory_limit);
        log_info("stage %u: %" PRIu64 " bytes are free on %s", s, free_bytes[s], device);
    }
    CLEANUP(freep) uint64_t *bytes = xcalloc(w->n_layers, sizeof(*bytes));
    gguf_layer_bytes(w->gguf, w->n_layers, bytes);
    split_by_memory(bytes, w->n_layers, free_bytes, w->n_stages, ret_n);
    return 0;
}

/* ---- the file: "FINGERPRINT DEVICES STAGES LIMIT: N N ...\n" ---- */

static int key_of(const struct split_want *w, char *ret, size_t room)
{
    return snprintf(ret, room, "%s %s %u %" PRIu64 ":", w->fingerprint, w->devices, w->n_stages,
                    w->memory_limit);
}

/* Whether the text is a whole split of what is wanted; one that a death cut short is not. */
static bool split_from(const struct split_want *w, const char *text, uint32_t *ret_n)
{
    char key[FILE_BYTES];
    size_t n = (size_t)key_of(w, key, sizeof(key));
    if (strncmp(text, key, n) != 0) return false;
    uint32_t sum = 0;
    const char *at = text + n;
    for (uint32_t s = 0; s < w->n_stages; s++) {
        char *end;
        unsigned long v = strtoul(at, &end, 10);
        if (end == at || v == 0 || v > LAYERS_MAX) return false;
        ret_n[s] = (uint32_t)v;
        sum += ret_n[s];
        at = end;
    }
    return sum == w->n_layers && strcmp(at, "\n") == 0;
}

static int file_write(int fd, const struct split_want *w, const uint32_t *n)
{
    char text[FILE_BYTES];
    int at = key_of(w, text, sizeof(text));
    for (uint32_t s = 0; s < w->n_stages && at < FILE_BYTES; s++)
        at += snprintf(text + at, FILE_BYTES - (size_t)at, " %u", n[s]);
    if (at < FILE_BYTES) at += snprintf(text + at, FILE_BYTES - (size_t)at, "\n");
    if (at >= FILE_BYTES) return -ENAMETOOLONG;
    if (ftruncate(fd, 0) < 0 || pwrite(fd, text, (size_t)at, 0) != at) return -EIO;
    return 0;
}

/* Who measures holds the lock; a death lets go of it. The signals that end a worker are blocked,
 * and its loop, which reads them, does not run yet. */
static int file_lock(int fd)
{
    static const struct timespec pause = {.tv_nsec = LOCK_WAIT_NS};
    sigset_t ends;
    (void)sigemptyset(&ends);
    (void)sigaddset(&ends, SIGTERM);
    (void)sigaddset(&ends, SIGINT);
    for (int i = 0; i < LOCK_TRIES; i++) {
        if (flock(fd, LOCK_EX | LOCK_NB) == 0) return 0;
        if (errno != EWOULDBLOCK && errno != EINTR) return -errno;
        if (sigtimedwait(&ends, NULL, &pause) > 0) return -ECANCELED;
    }
    return -ETIMEDOUT;
}

static int agree(int fd, const struct split_want *w, struct why *why, uint32_t *ret_n)
{
    char text[FILE_BYTES] = "";
    int r = file_lock(fd);
    ssize_t n = r == 0 ? pread(fd, text, sizeof(text) - 1, 0) : 0;
    if (n < 0) r = -errno;
    if (r < 0) return why_set(why, r, "the split of the layers: %s", strerror(-r));
    if (split_from(w, text, ret_n)) return 0;
    r = measure(w, why, ret_n);
    if (r < 0) return r;
    r = file_write(fd, w, ret_n);
    return r < 0 ? why_set(why, r, "the split can't be written: %s", strerror(-r)) : 0;
}

int split_layers(const struct split_want *w, struct why *why, uint32_t *ret_first, uint32_t *ret_n)
{
    char path[256];
    uint32_t n[POOL_STAGES_MAX], first = 0;
    if (w->n_stages > POOL_STAGES_MAX || w->stage >= w->n_stages || w->n_stages > w->n_layers ||
        w->n_layers > LAYERS_MAX)
        return why_set(why, -EINVAL, "stage %u of %u stages, for a model of %u layers", w->stage,
                       w->n_stages, w->n_layers);
    int r = snprintf(path, sizeof(path), "%s/split-%u", w->run_dir, w->pipeline);
    if (r < 0 || (size_t)r >= sizeof(path))
        return why_set(why, -ENAMETOOLONG, "run.dir = %s is too long", w->run_dir);
    if (mkdir(w->run_dir, 0700) < 0 && errno != EEXIST)
        return why_set(why, -errno, "run.dir = %s: cannot be made: %s", w->run_dir,
                       strerror(errno));
    CLEANUP(closep) int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    if (fd < 0) return why_set(why, -errno, "%s: %s", path, strerror(errno));
    r = agree(fd, w, why, n);
    if (r < 0) return r;
    for (uint32_t s = 0; s < w->stage; s++)
        first += n[s];
    *ret_first = first;
    *ret_n = n[w->stage];
    log_info("layers %u-%u, as %s says", first, first + n[w->stage] - 1, path);
    return 0;
}
