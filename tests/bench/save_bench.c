/* SPDX-License-Identifier: MIT */
/*
 * How fast poolctl restores and saves a long conversation, as CSV: a real poold on tmpfs, a pool in
 * the shape of an 8B model (32 layers, 8 K/V heads of 128, f16), a file of about the size asked for
 * in the folder asked for. The file is made here, by the format's description; what is saved must
 * be the same bytes. Beside it, in the same rounds, the same bytes by plain reads and writes of 1
 * MiB, the written ones synced: what the file system does without us. Seconds are of the whole
 * command, from its start to its end.
 *
 * usage: save_bench POOLD POOLCTL FOLDER MIB ROUNDS
 */
#include <errno.h>
#include <fcntl.h>
#include <jansson.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>

#include "poold/poolctl_file.h"
#include "tests/pool/head.h"

enum {
    LAYERS = 32,
    BLOCK_CELLS = 16,
    CELL_BYTES = 8 * 128 * 2 * 2, /* of one layer */
    CHUNK_CELLS = 256,
    PIECE = 1 << 20,
};

struct bench {
    struct world world;
    struct head head;
    const char *poolctl;
    char file[512], saved[512];
    uint32_t n_cells;
    uint64_t bytes;
    char *piece;
};

/* ---- the pool ---- */

static bool is_up(void *arg)
{
    const struct bench *b = arg;
    return head_is_up(&b->head) && b->head.life != 0;
}

static void begin(struct bench *b, const char *poold)
{
    struct world_want want = {.program = poold,
                              .n_cells = 2 * b->n_cells + 2 * CHUNK_CELLS,
                              .chunk_cells = CHUNK_CELLS,
                              .n_rows = 16};
    world_init(&b->world, &want);
    b->head = (struct head){.context = b->n_cells + 1,
                            .n_layers = LAYERS,
                            .block_cells = BLOCK_CELLS,
                            .block_bytes = BLOCK_CELLS * CELL_BYTES,
                            .arg = b};
    head_init(&b->head, &b->world, 0, 1);
    world_run(&b->world, is_up, b);
}

/* ---- the file ---- */

static void write_whole(int fd, const void *at, size_t n)
{
    require(write(fd, at, n) == (ssize_t)n, "cannot write: %s", strerror(errno));
}

static uint64_t next_random(uint64_t *state)
{
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    return *state;
}

static void write_chunk(const struct saved_header *h, uint32_t i, int fd, uint64_t *state)
{
    uint64_t n = saved_chunk_bytes(h, i);
    CLEANUP(freep) char *bytes = xcalloc(1, n);
    struct saved_chunk head = {.index = i, .n_cells = saved_chunk_cells(h, i)};
    struct xxh64 x;
    for (uint64_t at = sizeof(head); at + 8 <= n; at += 8) {
        uint64_t v =
            next_random(state) & ~((uint64_t)POOL_TOKEN_GENERATED << 32 | POOL_TOKEN_GENERATED);
        memcpy(bytes + at, &v, sizeof(v));
    }
    memcpy(bytes, &head, sizeof(head));
    xxh64_init(&x);
    xxh64_add(&x, bytes + sizeof(uint64_t), n - sizeof(uint64_t));
    head.checksum = xxh64_end(&x);
    memcpy(bytes, &head, sizeof(head));
    write_whole(fd, bytes, n);
}

static void make_file(struct bench *b)
{
    uint8_t page[SAVED_HEADER_BYTES];
    uint64_t state = 88172645463325252;
    struct saved_header h = {
        .n_cells = b->n_cells, .chunk_cells = CHUNK_CELLS, .geometry = b->head.control->geometry};
    int fd = open(b->file, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    require(fd >= 0, "%s: %s", b->file, strerror(errno));
    saved_seal(&h, page);
    write_whole(fd, page, sizeof(page));
    for (uint32_t i = 0; i < saved_n_chunks(&h); i++)
        write_chunk(&h, i, fd, &state);
    require(fsync(fd) == 0, "fsync: %s", strerror(errno));
    (void)close(fd);
    b->bytes = h.bytes;
}

static void require_same(const struct bench *b)
{
    char command[1200];
    (void)snprintf(command, sizeof(command), "cmp '%s' '%s'", b->file, b->saved);
    require(system(command) == 0, "what was saved is not what was restored");
}

/* ---- what is measured ---- */

struct watch {
    uint64_t since_us, cpu_us;
};

/* Of this process and of all its children that have ended. */
static uint64_t cpu_us(void)
{
    uint64_t us = 0;
    static const int whose[] = {RUSAGE_SELF, RUSAGE_CHILDREN};
    for (size_t i = 0; i < ARRAY_LEN(whose); i++) {
        struct rusage u;
        require(getrusage(whose[i], &u) == 0, "getrusage");
        us += (uint64_t)(u.ru_utime.tv_sec + u.ru_stime.tv_sec) * 1000000;
        us += (uint64_t)(u.ru_utime.tv_usec + u.ru_stime.tv_usec);
    }
    return us;
}

static struct watch watch_start(void) { return (struct watch){now_us(), cpu_us()}; }

static void print(const struct bench *b, uint32_t round, const char *what, struct watch w)
{
    uint64_t us = now_us() - w.since_us, cpu = cpu_us() - w.cpu_us;
    (void)printf("%u,%s,%llu,%.3f,%.2f,%.3f\n", round, what, (unsigned long long)b->bytes,
                 (double)us / 1e6, (double)b->bytes / 1e3 / (double)us, (double)cpu / 1e6);
    (void)fflush(stdout);
}

/* Runs poolctl and gives what it printed. */
static json_t *poolctl(const struct bench *b, const char *what, const char *file)
{
    char command[1400];
    (void)snprintf(command, sizeof(command), "exec '%s' --json --set run.dir=%s/run %s '%s'",
                   b->poolctl, b->world.dir, what, file);
    FILE *out = popen(command, "r");
    require(out, "popen");
    json_t *o = json_loadf(out, 0, NULL);
    int status = pclose(out);
    require(o && WIFEXITED(status) && WEXITSTATUS(status) == 0, "%s ended with status %#x", what,
            status);
    return o;
}

static void plain_read(const struct bench *b)
{
    int fd = open(b->file, O_RDONLY | O_CLOEXEC);
    while (read(fd, b->piece, PIECE) > 0)
        ;
    (void)close(fd);
}

static void plain_write(const struct bench *b)
{
    int fd = open(b->saved, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    for (uint64_t at = 0; at < b->bytes; at += PIECE)
        write_whole(fd, b->piece, min_u64(PIECE, b->bytes - at));
    require(fsync(fd) == 0, "fsync: %s", strerror(errno));
    (void)close(fd);
}

static void measure(struct bench *b, uint32_t i)
{
    char what[64];
    struct watch w = watch_start();
    plain_read(b);
    print(b, i, "plain read", w);
    w = watch_start();
    plain_write(b);
    print(b, i, "plain write", w);
    (void)unlink(b->saved);
    w = watch_start();
    json_t *o = poolctl(b, "restore", b->file);
    print(b, i, "restore", w);
    (void)snprintf(what, sizeof(what), "save %lld:%lld",
                   (long long)json_integer_value(json_object_get(o, "row")),
                   (long long)json_integer_value(json_object_get(o, "generation")));
    json_decref(o);
    w = watch_start();
    json_decref(poolctl(b, what, b->saved));
    print(b, i, "save", w);
    if (i == 0) require_same(b);
    (void)unlink(b->saved);
    json_decref(poolctl(b, "drop", "--all"));
}

int main(int argc, char **argv)
{
    static struct bench b;
    if (argc != 6) return 2;
    b.poolctl = argv[2];
    b.n_cells = (uint32_t)(strtoull(argv[4], NULL, 10) * (PIECE / (LAYERS * CELL_BYTES))) - 100;
    b.piece = xcalloc(1, PIECE);
    memset(b.piece, 1, PIECE);
    (void)snprintf(b.file, sizeof(b.file), "%s/bench-%u", argv[3], (unsigned)getpid());
    (void)snprintf(b.saved, sizeof(b.saved), "%s/bench-%u.saved", argv[3], (unsigned)getpid());
    begin(&b, argv[1]);
    make_file(&b);
    (void)printf("round,what,bytes,seconds,GB_per_s,cpu_s\n");
    for (uint32_t i = 0; i < strtoul(argv[5], NULL, 10); i++)
        measure(&b, i);
    (void)unlink(b.file);
    head_fini(&b.head);
    world_fini(&b.world);
    free(b.piece);
    return 0;
}
