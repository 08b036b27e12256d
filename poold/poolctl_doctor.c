/* SPDX-License-Identifier: MIT */
/*
 * poolctl doctor: what this configuration would start, in bytes, and whether this machine has room
 * for it. Reads the model file's metadata and the machine; starts and changes nothing. Each line is
 * one need, what there is, and the key that changes it. GPUs: poolctl_gpus.c.
 */
#include <ctype.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/statfs.h>
#include <sys/statvfs.h>
#include <sys/un.h>

#include "common/cuda_host.h"
#include "common/gguf.h"
#include "poold/poolctl.h"
#include "poold/poolctl_gpus.h"
#include "proto/kv_block.h"

enum {
    TMPFS_FS = 0x01021994, /* statfs(2): TMPFS_MAGIC */
    SPARE_FILES = 64,      /* descriptors of a gateway beside its connections' */
};

struct plan {
    json_t *checks;
    bool fits;
    uint32_t n_layers, context;
    uint64_t cell_bytes; /* of one layer */
    uint32_t block_cells;
    uint64_t n_chunks;
    uint64_t arenas, control, tokens;
    uint64_t weights, host_weights;        /* the file; what CPU stages map of it */
    uint64_t layer_weights[POOL_RUNS_MAX]; /* with what the first and the last layer bring */
    uint64_t stage_weights[POOL_STAGES_MAX];
};

static void say(struct plan *p, const char *what, bool ok, const char *knob, const char *format,
                ...) __attribute__((format(printf, 5, 6)));

static void say(struct plan *p, const char *what, bool ok, const char *knob, const char *format,
                ...)
{
    char text[512];
    va_list ap;
    va_start(ap, format);
    (void)vsnprintf(text, sizeof(text), format, ap);
    va_end(ap);
    p->fits = p->fits && ok;
    json_array_append_new(
        p->checks, json_pack("{ss sb ss ss}", "what", what, "ok", ok, "text", text, "knob", knob));
}

static bool is_gpu(const char *device) { return strncmp(device, "cuda:", 5) == 0; }

static bool has_gpu(const struct config *c)
{
    char device[32];
    for (uint32_t s = 0; s < c->worker.stages; s++)
        if (config_device(c->worker.device, s, device, sizeof(device)) == 0 && is_gpu(device))
            return true;
    return false;
}

/* ---- the model ---- */

static int arch_u64(const struct gguf *g, const struct gguf_str *arch, const char *name,
                    uint64_t *ret)
{
    char key[160];
    (void)snprintf(key, sizeof(key), "%.*s.%s", (int)min_u64(arch->bytes, 64), arch->at, name);
    return gguf_u64(g, key, ret);
}

static int read_model(struct plan *p, const struct config *c, struct why *why)
{
    CLEANUP(gguf_freep) struct gguf *g = NULL;
    struct gguf_str arch;
    uint64_t layers, embd, heads, kv_heads, dim, context = 0;
    if (!*c->model.path) return why_set(why, -EINVAL, "model.path is not set");
    int r = gguf_open(c->model.path, why, &g);
    if (r < 0) return r;
    r = gguf_str(g, "general.architecture", &arch);
    if (r == 0) r = arch_u64(g, &arch, "block_count", &layers);
    if (r == 0) r = arch_u64(g, &arch, "embedding_length", &embd);
    if (r == 0) r = arch_u64(g, &arch, "attention.head_count", &heads);
    if (r < 0 || layers == 0 || layers > POOL_RUNS_MAX || heads == 0 || embd > 1 << 20)
        return why_set(why, -EPROTO, "%s says neither layers nor heads", c->model.path);
    if (arch_u64(g, &arch, "attention.head_count_kv", &kv_heads) < 0) kv_heads = heads;
    if (arch_u64(g, &arch, "attention.key_length", &dim) < 0) dim = embd / heads;
    (void)arch_u64(g, &arch, "context_length", &context);
    if (kv_heads > 1 << 16 || dim > 1 << 16)
        return why_set(why, -EPROTO, "%s states heads that can't be", c->model.path);
    p->n_layers = (uint32_t)layers;
    p->context = c->model.context ? c->model.context : (uint32_t)min_u64(context, 1 << 24);
    p->cell_bytes = kv_block_of(c->pool.kv, (uint32_t)kv_heads, (uint32_t)dim, 1, KV_BY_CELL).bytes;
    p->block_cells = kv_block_cells(c->pool.kv, (uint32_t)kv_heads, (uint32_t)dim);
    struct stat st;
    p->weights = stat(c->model.path, &st) == 0 ? (uint64_t)st.st_size : 0;
    gguf_layer_bytes(g, p->n_layers, p->layer_weights);
    return 0;
}

/* ---- the pool ---- */

static uint64_t stage_bytes(const struct plan *p, const struct config *c, uint32_t n_layers)
{
    return (p->n_chunks + 1) * c->pool.chunk * p->cell_bytes * n_layers + sizeof(struct pool_arena);
}

static void size_pool(struct plan *p, const struct config *c)
{
    uint64_t context = (p->context + c->pool.chunk - 1) / c->pool.chunk;
    uint64_t least = context + c->pool.grow + 1;
    p->n_chunks = c->pool.cells ? (c->pool.cells + c->pool.chunk - 1) / c->pool.chunk
                                : context * c->worker.lanes * c->pool.pipelines;
    bool ok = c->pool.cells == 0 || p->n_chunks >= least;
    say(p, "pool", ok, "pool.cells, model.context",
        "%llu cells in %llu chunks of %u; one context of %u tokens, a growth unit and a chunk to "
        "copy into want %llu cells",
        (unsigned long long)p->n_chunks * c->pool.chunk, (unsigned long long)p->n_chunks,
        c->pool.chunk, p->context, (unsigned long long)least * c->pool.chunk);
    p->control = (uint64_t)c->pool.conversations * (sizeof(struct pool_row) + (context + 1) * 8) +
                 p->n_chunks * sizeof(struct pool_chunk);
    p->tokens = (p->n_chunks + 1) * c->pool.chunk * 4;
}

static void size_blocks(struct plan *p, const struct config *c)
{
    say(p, "chunk", c->pool.chunk % p->block_cells == 0, "pool.chunk",
        "%u cells; this model's blocks of K and V in %s have %u", c->pool.chunk,
        kv_name(c->pool.kv), p->block_cells);
}

/* A GPU's stage reads its weights and keeps none of them in host memory. */
static void stage_add(struct plan *p, const struct config *c, uint32_t stage, uint32_t first,
                      uint32_t n)
{
    char device[32];
    p->arenas += stage_bytes(p, c, n);
    for (uint32_t i = first; i < first + n; i++)
        p->stage_weights[stage] += p->layer_weights[i];
    bool cpu = config_device(c->worker.device, stage, device, sizeof(device)) < 0 ||
               strcmp(device, "cpu") == 0;
    if (cpu) p->host_weights = min_u64(p->host_weights + p->stage_weights[stage], p->weights);
}

static void size_stages(struct plan *p, const struct config *c)
{
    for (uint32_t s = 0; s < c->worker.stages; s++) {
        uint32_t first = 0, n = 0;
        struct why why = {0};
        char what[32];
        (void)snprintf(what, sizeof(what), "arena of stage %u", s);
        if (config_layers(c, s, p->n_layers, &why, &first, &n) < 0) {
            say(p, what, false, "worker.layers, worker.stages", "%s", why.text);
            continue;
        }
        stage_add(p, c, s, first, n);
        say(p, what, true, "pool.cells, pool.kv", "%llu bytes: layers %u to %u, %llu bytes a cell",
            (unsigned long long)stage_bytes(p, c, n), first, first + n - 1,
            (unsigned long long)p->cell_bytes * n);
    }
}

/* ---- the machine ---- */

/* The directory, or the nearest one above it that is there. */
static void nearest(const char *dir, char *ret, size_t room)
{
    (void)snprintf(ret, room, "%s", dir);
    while (access(ret, F_OK) < 0 && strrchr(ret, '/') && strrchr(ret, '/') != ret)
        *strrchr(ret, '/') = 0;
}

/* What an earlier pool's files hold there is used again. */
static uint64_t held_bytes(const struct config *c)
{
    uint64_t n = 0;
    for (uint32_t s = 0; s < POOL_STAGES_MAX; s++) {
        struct stat st;
        CLEANUP(freep) char *path = NULL;
        if (asprintf(&path, "%s/arena-%u", c->pool.dir, s) < 0) abort();
        if (stat(path, &st) == 0) n += (uint64_t)st.st_blocks * 512;
    }
    return n;
}

static void look_at_room(struct plan *p, const struct config *c)
{
    char dir[4096];
    struct statvfs v;
    struct statfs f;
    nearest(c->pool.dir, dir, sizeof(dir));
    if (statvfs(dir, &v) < 0 || statfs(dir, &f) < 0)
        return say(p, "pool.dir", false, "pool.dir", "%s: %s", dir, strerror(errno));
    uint64_t room = (uint64_t)v.f_bavail * v.f_frsize + held_bytes(c);
    bool files = c->pool.memory == POOL_MEMORY_SHM;
    uint64_t need = (files ? p->arenas : 0) + p->control + p->tokens;
    bool tmpfs = (unsigned long)f.f_type == TMPFS_FS;
    say(p, "pool.dir", room >= need,
        "pool.cells, or a larger tmpfs (mount -o remount,size=..., a container's --shm-size)",
        "%s: %llu bytes wanted, %llu free%s", dir, (unsigned long long)need,
        (unsigned long long)room, tmpfs ? "" : "; it is no tmpfs: pages will be written to a disk");
    if (files && !tmpfs && has_gpu(c))
        say(p, "pinned arenas", false, "pool.dir, on tmpfs",
            "%s: a GPU's driver pins the arenas, which Linux 6.5 and later refuse for files on "
            "a disk",
            dir);
}

static uint64_t number_in(const char *path, const char *key)
{
    CLEANUP(fclosep) FILE *f = fopen(path, "re");
    char line[256];
    while (f && fgets(line, sizeof(line), f)) {
        if (!key) return line[0] >= '0' && line[0] <= '9' ? strtoull(line, NULL, 10) : 0;
        if (strncmp(line, key, strlen(key)) == 0)
            return strtoull(line + strlen(key), NULL, 10) * 1024;
    }
    return 0;
}

static void look_at_memory(struct plan *p, const struct config *c)
{
    uint64_t there = number_in("/proc/meminfo", "MemAvailable:") + held_bytes(c);
    uint64_t group = number_in("/sys/fs/cgroup/memory.max", NULL);
    uint64_t need = p->arenas + p->control + p->tokens + p->host_weights;
    if (group) there = min_u64(there, group);
    say(p, "memory", there >= need, "pool.cells, pool.kv, a smaller model",
        "%llu bytes wanted (%llu of them weights), %llu available", (unsigned long long)need,
        (unsigned long long)p->host_weights, (unsigned long long)there);
}

static void look_at_lock(struct plan *p, const struct config *c)
{
    struct rlimit l = {0};
    struct why no = {0};
    if (c->pool.memory == POOL_MEMORY_CUDA) {
        bool can = cuda_host_check(&no) == 0;
        return say(
            p, "pool.memory", can, "pool.memory = shm", "%s",
            can ? "cuda: the driver pins the arenas; they end with the last program that has "
                  "them"
                : no.text);
    }
    (void)getrlimit(RLIMIT_MEMLOCK, &l);
    bool room = l.rlim_cur == RLIM_INFINITY || l.rlim_cur >= p->arenas || geteuid() == 0;
    static const char *const then[] = {"then it is not locked", "then poold ends", "not wanted"};
    say(p, "memlock", room || c->pool.lock != POOL_LOCK_YES, "pool.lock, LimitMEMLOCK (ulimit -l)",
        "%llu bytes to lock, limit %llu%s%s%s", (unsigned long long)p->arenas,
        (unsigned long long)l.rlim_cur, room ? "" : ": ",
        room ? "" : then[min_u32(c->pool.lock, 2)],
        room || !has_gpu(c) ? "" : "; what a GPU's driver pins, it doesn't count");
}

static void say_driver(struct plan *p, const struct gpus *g, const char *visible)
{
    static const char *const knob = "NVIDIA's driver, and its container toolkit in a container";
    if (g->fault.text[0]) return say(p, "GPU driver", false, knob, "%s", g->fault.text);
    void *library = dlopen("libcuda.so.1", RTLD_LAZY | RTLD_LOCAL);
    if (!library)
        return say(p, "GPU driver", false, knob,
                   "%s; in a container: NVIDIA_DRIVER_CAPABILITIES must have compute", dlerror());
    (void)dlclose(library);
    say(p, "GPU driver", true, knob, "version %s, %u cards%s%s",
        g->driver[0] ? g->driver : "unknown", g->n_cards,
        visible ? " by CUDA_VISIBLE_DEVICES=" : "", visible ? visible : "");
}

static void say_stage(struct plan *p, const struct config *c, uint32_t stage, const char *device,
                      const struct gpus *g)
{
    char what[32], *end;
    uint64_t weights = p->stage_weights[stage], limit = c->worker.memory_limit;
    unsigned long card = strtoul(device + 5, &end, 10);
    bool is_one = isdigit((unsigned char)device[5]) && !*end;
    (void)snprintf(what, sizeof(what), "GPU of stage %u", stage);
    if (!is_one || (card >= g->n_cards && !g->fault.text[0]))
        say(p, what, false, "worker.device, worker.stages", "%s: there are %u cards", device,
            g->n_cards);
    else if (limit && weights >= limit)
        say(p, what, false, "worker.memory_limit, worker.stages, worker.layers",
            "%s: %llu bytes of weights, worker.memory_limit is %llu", device,
            (unsigned long long)weights, (unsigned long long)limit);
    else
        say(p, what, !g->fault.text[0], "worker.device",
            "%s: %llu bytes of weights%s; K/V has what they and a window's buffers leave%s", device,
            (unsigned long long)weights,
            strcmp(c->worker.layers, "free") == 0 ? " in an even split" : "",
            limit ? " of worker.memory_limit" : "");
}

static void look_at_gpus(struct plan *p, const struct config *c)
{
    const char *visible = getenv("CUDA_VISIBLE_DEVICES");
    struct gpus g = {0};
    if (has_gpu(c)) {
        gpus_find("", visible, &g);
        say_driver(p, &g, visible);
    }
    for (uint32_t s = 0; s < c->worker.stages; s++) {
        char device[32], what[32];
        int r = config_device(c->worker.device, s, device, sizeof(device));
        (void)snprintf(what, sizeof(what), "device of stage %u", s);
        if (r == 0 && is_gpu(device))
            say_stage(p, c, s, device, &g);
        else if (r < 0 || strcmp(device, "cpu") != 0)
            say(p, what, false, "worker.device", "%s: each is to be cpu or cuda:N",
                c->worker.device);
    }
}

/* poold must see the workers' pids: its own namespace, or one above theirs. */
static void look_at_namespace(struct plan *p, const struct config *c)
{
    char own[64] = "", path[80], theirs[64] = "";
    CLEANUP(freep) char *control = NULL;
    struct pool_header h = {0};
    if (asprintf(&control, "%s/control", c->pool.dir) < 0) abort();
    CLEANUP(closep) int fd = open(control, O_RDONLY | O_CLOEXEC);
    if (readlink("/proc/self/ns/pid", own, sizeof(own) - 1) < 0) own[0] = 0;
    if (fd < 0 || pread(fd, &h, sizeof(h), 0) != sizeof(h) || kill((pid_t)h.poold_pid, 0) < 0)
        return say(p, "pid namespace", true, "one container for all, or --pid=host",
                   "workers and gateways must run in %s, poold's, or one below", own);
    (void)snprintf(path, sizeof(path), "/proc/%u/ns/pid", h.poold_pid);
    if (readlink(path, theirs, sizeof(theirs) - 1) < 0) theirs[0] = 0;
    say(p, "pid namespace", !theirs[0] || strcmp(own, theirs) == 0,
        "one container for all, or --pid=host", "here %s, poold's (pid %u) %s", own, h.poold_pid,
        theirs[0] ? theirs : "can't be read");
}

static void look_at_rest(struct plan *p, const struct config *c)
{
    struct sockaddr_un a;
    struct rlimit files = {0};
    size_t path = strlen(c->run.dir) + strlen("/lifeline") + 1;
    say(p, "run.dir", path <= sizeof(a.sun_path), "run.dir",
        "a socket's path of %zu bytes; there is room for %zu", path, sizeof(a.sun_path));
    (void)getrlimit(RLIMIT_NOFILE, &files);
    uint64_t want = (uint64_t)c->gateway.connections + SPARE_FILES;
    say(p, "open files", files.rlim_max >= want, "gateway.connections, LimitNOFILE",
        "%llu wanted by the gateway, limit %llu", (unsigned long long)want,
        (unsigned long long)files.rlim_max);
}

int doctor(struct ctl *c)
{
    struct plan p = {.checks = json_array(), .fits = true};
    struct why why = {0};
    if (read_model(&p, c->config, &why) < 0) {
        say(&p, "model", false, "model.path", "%s", why.text);
    } else {
        say(&p, "model", true, "model.path", "%u layers, context %u, %llu bytes of weights",
            p.n_layers, p.context, (unsigned long long)p.weights);
        size_pool(&p, c->config);
        size_blocks(&p, c->config);
        size_stages(&p, c->config);
        look_at_room(&p, c->config);
        look_at_memory(&p, c->config);
        look_at_lock(&p, c->config);
        look_at_gpus(&p, c->config);
    }
    look_at_namespace(&p, c->config);
    look_at_rest(&p, c->config);
    ctl_print(c, json_pack("{sb so}", "fits", p.fits, "checks", p.checks));
    return p.fits ? EXIT_DONE : EXIT_REFUSED;
}

void text_doctor(const json_t *o)
{
    size_t i;
    const json_t *x;
    json_array_foreach(json_object_get(o, "checks"), i, x)
    {
        bool ok = json_is_true(json_object_get(x, "ok"));
        printf("%-8s %-17s %s\n", ok ? "ok" : "NO", json_text(x, "what"), json_text(x, "text"));
        if (!ok) printf("%-8s %-17s change: %s\n", "", "", json_text(x, "knob"));
    }
    printf("%s\n", json_is_true(json_object_get(o, "fits")) ? "it fits" : "it does not fit");
}
