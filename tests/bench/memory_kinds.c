/* SPDX-License-Identifier: MIT */
/*
 * The two kinds of memory that an arena can be (pool.memory), made by one process and used on a
 * card by another as poold and a worker do: how long each takes, how fast the card reads it, and
 * what is left of it when one of them, or both, are killed. Prints CSV. Usage: memory_kinds DEVICE
 * [shm|cuda] GIB...     without a kind: both
 */
#include <cuda_runtime_api.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdbool.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>

#include "common/cuda_host.h"
#include "common/lifeline.h"

cudaError_t bench_read(cudaStream_t stream, const void *from, size_t bytes,
                       unsigned long long *sum);

#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23
#endif

enum {
    THREADS = 16,      /* that fill a file, as pool.threads */
    BACK_S = 10,       /* for memory to be given back */
    FIRST = 0x1234567, /* what is written at both ends */
    LAST = 0x7654321,
};
static const size_t register_bytes = (size_t)4 << 30; /* as CUDA_REGISTER_BYTES */
static const size_t fill_bytes = (size_t)64 << 20;

static double seconds(void)
{
    struct timespec t;
    (void)clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static const char *kind;
static uint64_t gib;

static void say(const char *what, double value, const char *unit)
{
    printf("%s,%llu,\"%s\",%.3f,%s\n", kind, (unsigned long long)gib, what, value, unit);
    (void)fflush(stdout);
}

static void fail(const char *what, const char *why)
{
    fprintf(stderr, "%s: %s\n", what, why);
    exit(1);
}

static void check(cudaError_t e, const char *what)
{
    if (e != cudaSuccess) fail(what, cudaGetErrorString(e));
}

static bool is_cuda(void) { return strcmp(kind, "cuda") == 0; }

/* ---- messages between these processes ---- */

struct note {
    uint64_t bytes;
};

static void note_send(int sock, uint64_t bytes, int fd)
{
    struct note n = {bytes};
    if (lifeline_send(sock, &n, sizeof(n), &fd, fd >= 0) < 0) fail("send", strerror(errno));
}

/* -1 when the other has ended. */
static int note_wait(int sock, uint64_t *ret_bytes, int *ret_fd)
{
    struct note n;
    int fds[LIFELINE_FDS_MAX];
    uint32_t n_fds = 0;
    int r;
    while ((r = lifeline_receive(sock, &n, sizeof(n), fds, &n_fds)) == -EAGAIN)
        (void)usleep(200);
    if (r < 0) return -1;
    if (ret_bytes) *ret_bytes = n.bytes;
    if (ret_fd) *ret_fd = n_fds ? fds[0] : -1;
    return 0;
}

/* ---- the owner ---- */

struct fill {
    char *at;
    size_t bytes, next;
};

static void *fill_some(void *arg)
{
    struct fill *f = arg;
    for (size_t off; (off = __atomic_fetch_add(&f->next, fill_bytes, __ATOMIC_RELAXED)) < f->bytes;)
        if (madvise(f->at + off, min_u64(fill_bytes, f->bytes - off), MADV_POPULATE_WRITE) < 0)
            fail("filling", strerror(errno));
    return NULL;
}

static int make_file(uint64_t bytes)
{
    pthread_t t[THREADS];
    int fd = memfd_create("memory_kinds", MFD_CLOEXEC);
    if (fd < 0 || ftruncate(fd, (off_t)bytes) < 0) fail("file", strerror(errno));
    struct fill f = {.bytes = bytes};
    f.at = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (f.at == MAP_FAILED) fail("map", strerror(errno));
    for (int i = 0; i < THREADS; i++)
        (void)pthread_create(&t[i], NULL, fill_some, &f);
    for (int i = 0; i < THREADS; i++)
        (void)pthread_join(t[i], NULL);
    double began = seconds();
    if (mlock(f.at, bytes) < 0) fprintf(stderr, "not locked: %s\n", strerror(errno));
    say("lock", seconds() - began, "s");
    return fd;
}

static void own(int sock)
{
    uint64_t bytes = gib << 30;
    double t = seconds();
    int fd;
    if (is_cuda()) {
        struct cuda_host m;
        struct why why = {0};
        if (cuda_host_make(bytes, &why, &m) < 0) fail("make", why.text);
        fd = m.fd;
        bytes = m.bytes;
    } else {
        fd = make_file(bytes);
    }
    say("make", seconds() - t, "s");
    note_send(sock, bytes, fd);
    (void)note_wait(sock, NULL, NULL); /* killed here */
}

/* ---- the user ---- */

/* known: made known to the card, as a worker does; else only mapped, where that is something else.
 */
static void *map(int fd, uint64_t bytes, int device, bool known)
{
    if (is_cuda()) {
        static struct cuda_host m;
        struct cuda_host_want want = {.fd = fd, .bytes = bytes, .device = device};
        struct why why = {0};
        if (cuda_host_map(&want, &why, &m) < 0) fail("map", why.text);
        return m.at;
    }
    char *at = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (at == MAP_FAILED) fail("map", strerror(errno));
    for (uint64_t off = 0; known && off < bytes; off += register_bytes)
        check(cudaHostRegister(at + off, min_u64(register_bytes, bytes - off),
                               cudaHostRegisterMapped | cudaHostRegisterPortable),
              "register");
    return at;
}

static double elapsed(cudaEvent_t a, cudaEvent_t b)
{
    float ms = 0;
    check(cudaEventSynchronize(b), "wait");
    check(cudaEventElapsedTime(&ms, a, b), "time");
    return ms / 1e3;
}

static void measure(char *at, uint64_t bytes)
{
    unsigned long long *sum;
    char *on_card;
    cudaEvent_t a, b;
    size_t piece = (size_t)1 << 30;
    check(cudaMalloc((void **)&sum, sizeof(*sum)), "memory");
    check(cudaMalloc((void **)&on_card, piece), "memory");
    check(cudaEventCreate(&a), "event");
    check(cudaEventCreate(&b), "event");
    for (int i = 0; i < 2; i++) {
        check(cudaEventRecord(a, 0), "record");
        check(bench_read(0, at, bytes, sum), "read");
        check(cudaEventRecord(b, 0), "record");
        say(i ? "kernel reads" : "kernel reads, first time", (double)bytes / elapsed(a, b) / 1e9,
            "GB/s");
    }
    uint64_t middle = bytes / 2;
    for (int i = 0; i < 3; i++) {
        check(cudaEventRecord(a, 0), "record");
        check(cudaMemcpyAsync(on_card, at + middle, piece, cudaMemcpyHostToDevice, 0), "up");
        check(cudaEventRecord(b, 0), "record");
        double up = (double)piece / elapsed(a, b) / 1e9;
        check(cudaEventRecord(a, 0), "record");
        check(cudaMemcpyAsync(at + middle, on_card, piece, cudaMemcpyDeviceToHost, 0), "down");
        check(cudaEventRecord(b, 0), "record");
        double down = (double)piece / elapsed(a, b) / 1e9;
        if (i < 2) continue;
        say("DMA to the card", up, "GB/s");
        say("DMA from the card", down, "GB/s");
    }
    double t = seconds();
    memset(at, 0, piece);
    say("the CPU writes, one thread", (double)piece / (seconds() - t) / 1e9, "GB/s");
}

static void use(int sock, int device, bool first)
{
    uint64_t bytes = 0;
    int fd = -1;
    if (note_wait(sock, &bytes, &fd) < 0) exit(1);
    double t = seconds();
    check(cudaSetDevice(device), "device");
    check(cudaFree(0), "context");
    if (first) say("context of the user", seconds() - t, "s");
    t = seconds();
    char *at = map(fd, bytes, device, first);
    if (first) say("map for the card", seconds() - t, "s");
    uint32_t *words[2] = {(uint32_t *)at, (uint32_t *)(at + bytes) - 1}, seen[2];
    if (first) {
        measure(at, bytes);
        *words[0] = FIRST;
        *words[1] = LAST;
    }
    uint32_t *on_card;
    check(cudaMalloc((void **)&on_card, sizeof(seen)), "memory");
    note_send(sock, 0, -1);
    /* Each note asks: is what was written still there, for the CPU and for the card? */
    while (note_wait(sock, NULL, NULL) == 0) {
        bool good = *words[0] == FIRST && *words[1] == LAST;
        for (int i = 0; i < 2; i++)
            check(cudaMemcpy(on_card + i, words[i], sizeof(seen[i]), cudaMemcpyHostToDevice),
                  "look");
        check(cudaMemcpy(seen, on_card, sizeof(seen), cudaMemcpyDeviceToHost), "look");
        note_send(sock, good && seen[0] == FIRST && seen[1] == LAST, -1);
    }
}

/* ---- who starts and kills them ---- */

static double available_gib(void)
{
    char line[128];
    double kib = 0;
    CLEANUP(fclosep) FILE *f = fopen("/proc/meminfo", "re");
    while (f && fgets(line, sizeof(line), f))
        if (sscanf(line, "MemAvailable: %lf", &kib) == 1) break;
    return kib / (1 << 20);
}

struct child {
    pid_t pid;
    int sock;
};

static struct child start(const char *role, const char *device)
{
    int pair[2];
    char number[24], size[24];
    if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) < 0)
        fail("socket", strerror(errno));
    (void)snprintf(size, sizeof(size), "%llu", (unsigned long long)gib);
    struct child c = {fork(), pair[0]};
    if (c.pid == 0) {
        (void)snprintf(number, sizeof(number), "%d", dup(pair[1]));
        (void)execl("/proc/self/exe", "memory_kinds", role, number, kind, size, device, (char *)0);
        _exit(9);
    }
    (void)close(pair[1]);
    return c;
}

static void end(struct child *c, const char *who)
{
    double t = seconds();
    (void)kill(c->pid, SIGKILL);
    (void)waitpid(c->pid, NULL, 0);
    (void)close(c->sock);
    if (who) say(who, seconds() - t, "s to its death");
}

static bool asks(const struct child *c)
{
    uint64_t good = 0;
    note_send(c->sock, 0, -1);
    return note_wait(c->sock, &good, NULL) == 0 && good;
}

static void row(const char *device)
{
    uint64_t bytes;
    int fd = -1;
    double before = available_gib();
    struct child owner = start("own", device);
    if (note_wait(owner.sock, &bytes, &fd) < 0) return say("make: refused", 0, "");
    say("taken from the machine", before - available_gib(), "GiB");
    struct child user = start("use", device);
    note_send(user.sock, bytes, fd);
    if (note_wait(user.sock, NULL, NULL) < 0) return say("use: failed", 0, "");
    end(&owner, "owner killed");
    say("its bytes are there for the user", asks(&user), "yes=1");
    end(&user, "user killed");
    struct child again = start("again", device);
    note_send(again.sock, bytes, fd);
    bool there = note_wait(again.sock, NULL, NULL) == 0 && asks(&again);
    say("with a descriptor alone: they are there for another user", there, "yes=1");
    end(&again, NULL);
    double t = seconds();
    (void)close(fd);
    while (before - available_gib() > 0.1 && seconds() - t < BACK_S)
        (void)usleep(5000);
    say("descriptor closed: given back", seconds() - t, "s");
    say("still missing", before - available_gib(), "GiB");
}

int main(int argc, char **argv)
{
    bool child = argc == 6 && argv[1][0] >= 'a';
    if (child) {
        int sock = atoi(argv[2]);
        kind = argv[3];
        gib = strtoull(argv[4], NULL, 10);
        if (strcmp(argv[1], "own") == 0)
            own(sock);
        else
            use(sock, atoi(argv[5]), strcmp(argv[1], "use") == 0);
        return 0;
    }
    if (argc < 3) {
        fprintf(stderr, "usage: memory_kinds DEVICE [shm|cuda] GIB...\n");
        return 2;
    }
    printf("kind,gib,what,value,unit\n");
    (void)fflush(stdout); /* before there are children */
    static const char *const kinds[] = {"shm", "cuda"};
    const char *only = argv[2][0] < '0' || argv[2][0] > '9' ? argv[2] : NULL;
    for (int i = only ? 3 : 2; i < argc; i++)
        for (size_t k = 0; k < ARRAY_LEN(kinds); k++) {
            kind = kinds[k];
            gib = strtoull(argv[i], NULL, 10);
            if (!only || strcmp(only, kind) == 0) row(argv[1]);
        }
    return 0;
}
