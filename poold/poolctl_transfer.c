/* SPDX-License-Identifier: MIT */
/*
 * poolctl save and restore. poold hands over a row and the arenas; the bytes are copied here by
 * threads (poolctl_crew.h), so that poold's going away is noticed. A save is written aside, synced
 * and renamed; a restore checks every chunk before it says that the conversation is complete. Dying
 * at any point leaves the pool and the target as they were.
 */
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include "common/cuda_host.h"
#include "poold/poolctl.h"
#include "poold/poolctl_crew.h"
#include "poold/poolctl_output.h"

enum { NICE = 10 /* what the lanes compute comes first where cores are few */ };

struct mapping {
    void *at;
    size_t bytes;
    struct cuda_host cuda; /* what is mapped, when it is CUDA memory */
};

struct transfer {
    bool save, answered;
    const char *path;
    struct output out; /* of a save */
    struct copy copy;
    struct crew crew;
    int ring; /* by which the crew says that it is done */
    uint32_t row;
    uint64_t generation;
    struct mapping arena[POOL_STAGES_MAX], tokens;
    uint32_t n_arenas;
    uint64_t since_us;
    struct loop_source *ringing;
};

static struct transfer t = {.copy.fd = -1, .out.fd = -1, .ring = -1};

/* However the program ends: nobody stores any more, and what is not published is gone. */
static void give_up(void)
{
    __atomic_store_n(&t.copy.stop, true, __ATOMIC_RELAXED);
    (void)crew_join(&t.crew);
    output_fini(&t.out);
}

static void unmap_all(void)
{
    for (uint32_t s = 0; s < POOL_STAGES_MAX; s++)
        if (t.arena[s].cuda.at)
            cuda_host_fini(&t.arena[s].cuda);
        else if (t.arena[s].at)
            (void)munmap(t.arena[s].at, t.arena[s].bytes);
    if (t.tokens.at) (void)munmap(t.tokens.at, t.tokens.bytes);
    memset(t.arena, 0, sizeof(t.arena));
    t.tokens = (struct mapping){0};
}

/* ---- what poold hands over ---- */

static int map_fd(int fd, size_t least, struct mapping *ret)
{
    struct stat st;
    int prot = t.save ? PROT_READ : PROT_READ | PROT_WRITE;
    if (fstat(fd, &st) < 0) return -errno;
    if (st.st_size < (off_t)least) return -EPROTO;
    void *at = mmap(NULL, (size_t)st.st_size, prot, MAP_SHARED, fd, 0);
    if (at == MAP_FAILED) return -errno;
    *ret = (struct mapping){.at = at, .bytes = (size_t)st.st_size};
    return 0;
}

static int map_cuda(int fd, uint64_t bytes, struct mapping *ret)
{
    struct cuda_host_want want = {
        .fd = fd, .bytes = bytes, .device = CUDA_HOST_NO_DEVICE, .read_only = t.save};
    if (bytes < sizeof(struct pool_arena)) return -EPROTO;
    int r = cuda_host_map(&want, NULL, &ret->cuda);
    if (r < 0) return r;
    ret->at = ret->cuda.at;
    ret->bytes = ret->cuda.bytes;
    return 0;
}

/* Every run must lie in the file with all its chunks: after this nobody checks again. */
static int use_arena(const struct pool_header *h, const struct mapping *m)
{
    const struct pool_arena *a = m->at;
    const struct pool_geometry *g = &h->geometry;
    if (shm_load_u64(&a->magic) != POOL_ARENA_MAGIC || a->pool_id != h->pool_id ||
        a->chunk_cells != h->chunk_cells || a->block_cells != g->block_cells ||
        a->n_chunks != h->n_chunks || a->n_runs > POOL_RUNS_MAX || g->block_cells == 0)
        return -EPROTO;
    uint64_t blocks = ((uint64_t)h->n_chunks + 1) * (h->chunk_cells / g->block_cells);
    for (uint32_t i = 0; i < a->n_runs; i++) {
        const struct pool_run *run = &a->run[i];
        uint64_t bytes;
        if (run->layer >= min_u32(g->n_layers, POOL_RUNS_MAX) || run->kind != POOL_RUN_KV ||
            run->block_bytes != g->block_bytes ||
            __builtin_mul_overflow(blocks, run->block_bytes, &bytes) || run->off > m->bytes ||
            bytes > m->bytes - run->off)
            return -EPROTO;
        t.copy.layer[run->layer] = (char *)m->at + run->off;
    }
    return 0;
}

static int use_tokens(const struct pool_header *h)
{
    const struct pool_tokens *file = t.tokens.at;
    uint64_t cells = ((uint64_t)h->n_chunks + 1) * h->chunk_cells;
    bool ok = file->magic == POOL_TOKENS_MAGIC && file->pool_id == h->pool_id &&
              (t.tokens.bytes - sizeof(*file)) / sizeof(uint32_t) >= cells;
    t.copy.cell = ((struct pool_tokens *)t.tokens.at)->cell;
    return ok ? 0 : -EPROTO;
}

/* ---- the course of it ---- */

static void file_fails(struct ctl *c, int r, const char *what)
{
    ctl_fail(c, EXIT_FILE, "%s: %s: %s", t.path, what, strerror(-r));
}

/* A file that can't be restored: each kind by a code of its own. */
static void restore_fails(struct ctl *c, int r, const struct why *why)
{
    static const struct {
        int r, code;
    } codes[] = {
        {-EBADMSG,         EXIT_DAMAGED  },
        {-ENODATA,         EXIT_TRUNCATED},
        {-EPROTONOSUPPORT, EXIT_FOREIGN  },
        {-EXDEV,           EXIT_FOREIGN  },
        {-ENOENT,          EXIT_MISSING  },
        {-ENOTDIR,         EXIT_MISSING  },
    };
    int code = EXIT_FILE;
    for (size_t i = 0; i < ARRAY_LEN(codes); i++)
        if (codes[i].r == r) code = codes[i].code;
    ctl_fail(c, code, "%s: %s", t.path, why->text);
}

static void finish(struct ctl *c)
{
    copy_end_out(&t.copy);
    int r = t.save ? output_publish(&t.out) : 0;
    if (r < 0) return file_fails(c, r, "cannot be put in place");
    unmap_all(); /* from here on nothing of the pool can be written */
    static Cistern__TransferEnd end = CISTERN__TRANSFER_END__INIT;
    end.row = t.row;
    end.generation = t.generation;
    end.complete = !t.save;
    Cistern__Envelope m = CISTERN__ENVELOPE__INIT;
    m.body_case = CISTERN__ENVELOPE__BODY_TRANSFER_END;
    m.transfer_end = &end;
    (void)ctl_send(c, &m);
}

static void on_ring(void *arg, uint32_t events)
{
    (void)events;
    struct ctl *c = arg;
    loop_remove(TAKE(t.ringing));
    int r = crew_join(&t.crew);
    if (r == 0)
        finish(c);
    else if (t.save)
        file_fails(c, r, "cannot be written");
    else
        restore_fails(c, r, &t.crew.why);
}

/* The row's chunks as its table names them. -ESTALE: it is not ours any more. */
static int read_table(const struct ctl *c)
{
    const struct pool_header *h = c->view.h;
    struct pool_body b;
    if (t.row >= h->n_rows) return -EPROTO;
    (void)pool_row_read(&pool_rows(h)[t.row], &b);
    if (b.generation != t.generation || b.state != POOL_CLOSING) return -ESTALE;
    if (t.save) {
        t.copy.h.n_cells = b.base + b.copy_cells;
        t.copy.h.salt = b.salt;
    }
    if (t.copy.h.n_cells == 0 || t.copy.h.chunk_cells == 0) return -EPROTO;
    uint32_t n = saved_n_chunks(&t.copy.h);
    if (n > h->table_entries + 1) return -EPROTO;
    t.copy.chunks = xcalloc(n, sizeof(*t.copy.chunks));
    for (uint32_t i = 0; i < n; i++) {
        bool in_table = i < min_u32(b.n_entries, h->table_entries);
        uint64_t entry = in_table ? shm_load_u64(&pool_table(h, t.row)[i]) : b.copy_entry;
        t.copy.chunks[i] = pool_entry_chunk(entry);
        if (t.copy.chunks[i] == 0 || t.copy.chunks[i] > h->n_chunks) return -EPROTO;
    }
    return 0;
}

/* The answer and all arenas are there. */
static void start(struct ctl *c)
{
    if (!t.answered || t.n_arenas < c->view.h->n_stages || t.copy.chunks) return;
    int r = read_table(c);
    for (uint32_t l = 0; r == 0 && l < t.copy.h.geometry.n_layers; l++)
        if (!t.copy.layer[l]) r = -EPROTO;
    if (r < 0) return ctl_fail(c, EXIT_REFUSED, "poold handed over a row that makes no sense");
    r = t.save ? copy_begin_out(&t.copy, crew_size(&t.copy.h) >= CREW_MANY) : 0;
    if (r < 0) return file_fails(c, r, "cannot be written");
    t.ring = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    r = t.ring < 0 ? -errno : loop_add_fd(c->loop, t.ring, EPOLLIN, on_ring, c, &t.ringing);
    if (r == 0) r = crew_start(&t.crew, &t.copy, t.save, t.ring);
    if (r < 0) ctl_fail(c, EXIT_REFUSED, "%s", strerror(-r));
}

void transfer_files(struct ctl *c, const struct lifeline_files *f, const int *fds, uint32_t n_fds)
{
    if (f->kind != LIFELINE_ARENA || t.n_arenas > c->view.h->n_stages) return;
    int r = n_fds == 2 && f->life < POOL_STAGES_MAX && !t.arena[f->life].at ? 0 : -EPROTO;
    if (r == 0)
        r = f->arena_bytes ? map_cuda(fds[0], f->arena_bytes, &t.arena[f->life])
                           : map_fd(fds[0], sizeof(struct pool_arena), &t.arena[f->life]);
    if (r == 0) r = use_arena(c->view.h, &t.arena[f->life]);
    if (r == 0 && !t.tokens.at) r = map_fd(fds[1], sizeof(struct pool_tokens), &t.tokens);
    if (r == 0) r = use_tokens(c->view.h);
    if (r < 0) return ctl_fail(c, EXIT_REFUSED, "poold's arena can't be used: %s", strerror(-r));
    t.n_arenas++;
    start(c);
}

void transfer_message(struct ctl *c, const Cistern__Envelope *m)
{
    if (m->body_case == CISTERN__ENVELOPE__BODY_ROW) {
        t.row = m->row->row;
        t.generation = m->row->generation;
        t.answered = true;
        start(c);
        return;
    }
    if (m->body_case != CISTERN__ENVELOPE__BODY_DONE) return;
    double seconds = (double)(now_us() - t.since_us) / 1e6;
    json_t *o = json_pack("{ss ss sI sI sf}", "command", t.save ? "save" : "restore", "file",
                          t.path, "tokens", (json_int_t)t.copy.h.n_cells, "bytes",
                          (json_int_t)t.copy.h.bytes, "seconds", seconds);
    if (!t.save) {
        json_object_set_new(o, "row", json_integer(t.row));
        json_object_set_new(o, "generation", json_integer((json_int_t)t.generation));
    }
    ctl_print(c, o);
    ctl_end(c, EXIT_DONE);
}

void text_transfer(const json_t *o)
{
    printf("%lld tokens, %lld bytes in %.3f s", json_number(o, "tokens"), json_number(o, "bytes"),
           json_real_value(json_object_get(o, "seconds")));
    if (json_object_get(o, "row"))
        printf(": conversation %lld:%lld", json_number(o, "row"), json_number(o, "generation"));
    printf("\n");
}

/* ---- the beginnings ---- */

int check_save(struct ctl *c) { return c->n_args == 2 && *c->arg[1] ? check_row(c) : -EINVAL; }

int check_restore(struct ctl *c) { return c->n_args == 1 && *c->arg[0] ? 0 : -EINVAL; }

static void begin(void)
{
    t.since_us = now_us();
    (void)nice(NICE); /* the threads inherit it */
    (void)atexit(give_up);
}

void begin_save(struct ctl *c)
{
    t.save = true;
    t.path = c->arg[1];
    begin();
    t.copy.h.geometry = c->view.h->geometry;
    t.copy.h.chunk_cells = c->view.h->chunk_cells;
    int r = output_begin(t.path, &t.out);
    if (r < 0) return file_fails(c, r, "cannot be made");
    t.copy.fd = t.out.fd;
    static Cistern__Save save = CISTERN__SAVE__INIT;
    save.row = c->row;
    save.generation = c->generation;
    Cistern__Envelope m = CISTERN__ENVELOPE__INIT;
    m.body_case = CISTERN__ENVELOPE__BODY_SAVE;
    m.save = &save;
    (void)ctl_send(c, &m);
}

static int open_saved(struct why *why)
{
    uint8_t page[SAVED_HEADER_BYTES];
    struct stat st;
    t.copy.fd = open(t.path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (t.copy.fd < 0 || fstat(t.copy.fd, &st) < 0)
        return why_set(why, -errno, "%s", strerror(errno));
    if (!S_ISREG(st.st_mode)) return why_set(why, -EINVAL, "it is no regular file");
    ssize_t n = read(t.copy.fd, page, sizeof(page));
    if (n < 0) return why_set(why, -errno, "%s", strerror(errno));
    return saved_from(page, (size_t)n, (uint64_t)st.st_size, why, &t.copy.h);
}

/* Whatever can be known before poold is asked is checked here. */
void begin_restore(struct ctl *c)
{
    struct why why = {0};
    t.path = c->arg[0];
    begin();
    int r = open_saved(&why);
    if (r == 0) r = saved_fits(&t.copy.h, c->view.h, &why);
    if (r < 0) return restore_fails(c, r, &why);
    static Cistern__Restore restore = CISTERN__RESTORE__INIT;
    restore.cells = t.copy.h.n_cells;
    restore.salt = t.copy.h.salt;
    restore.has_lane = c->has_lane;
    restore.pipeline = c->pipeline;
    restore.lane = c->lane;
    Cistern__Envelope m = CISTERN__ENVELOPE__INIT;
    m.body_case = CISTERN__ENVELOPE__BODY_RESTORE;
    m.restore = &restore;
    (void)ctl_send(c, &m);
}
