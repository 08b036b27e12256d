/* SPDX-License-Identifier: MIT */
/*
 * Making, opening and committing to the control segment. Called by pool.c (rows), pipelines.c and
 * processes.c (their records). Every store here may be the last one before a kill -9: each function
 * says what a reader or the next poold then finds.
 */
#include "poold/segment.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/stat.h>

#include "common/death.h"
#include "common/system.h"

static void segment_point(struct segment *s)
{
    char *base = (char *)s->h;
    s->processes = (struct pool_process *)(base + s->h->processes_off);
    s->pipelines = (struct pool_pipeline *)(base + s->h->pipelines_off);
    s->rows = (struct pool_row *)(base + s->h->rows_off);
    s->tables = (uint64_t *)(base + s->h->tables_off);
    s->chunks = (struct pool_chunk *)(base + s->h->chunks_off);
}

/* Sizes and offsets of everything, from the numbers that are already in the header. */
static void lay_out(struct pool_header *ret)
{
    ret->version = POOL_SHM_VERSION;
    ret->header_bytes = sizeof(*ret);
    ret->processes_off = round_up_u64(sizeof(*ret), PAGE_BYTES);
    ret->pipelines_off = ret->processes_off +
                         round_up_u64(POOL_PROCESSES_MAX * sizeof(struct pool_process), PAGE_BYTES);
    ret->rows_off = ret->pipelines_off +
                    round_up_u64(POOL_PIPELINES_MAX * sizeof(struct pool_pipeline), PAGE_BYTES);
    ret->tables_off =
        ret->rows_off + round_up_u64((uint64_t)ret->n_rows * sizeof(struct pool_row), PAGE_BYTES);
    ret->chunks_off =
        ret->tables_off +
        round_up_u64((uint64_t)ret->n_rows * ret->table_entries * sizeof(uint64_t), PAGE_BYTES);
    ret->bytes =
        ret->chunks_off +
        round_up_u64(((uint64_t)ret->n_chunks + 1) * sizeof(struct pool_chunk), PAGE_BYTES);
}

static struct pool_header header_of(const struct segment_want *want)
{
    struct pool_header h = {
        .n_rows = want->n_rows,
        .n_chunks = want->n_chunks,
        .chunk_cells = want->chunk_cells,
        .table_entries =
            (want->geometry.context_tokens + want->chunk_cells - 1) / want->chunk_cells + 1,
        .grow_chunks = want->grow_chunks,
        .n_stages = want->n_stages,
        .memory = want->memory,
        .lane_chunks = want->lane_chunks,
        .pipeline_lanes = want->pipeline_lanes,
        .geometry = want->geometry,
    };
    while (h.pool_id == 0)
        if (getrandom(&h.pool_id, sizeof(h.pool_id), 0) != sizeof(h.pool_id)) abort();
    lay_out(&h);
    return h;
}

static int map(struct segment *s, const char *path, struct why *why)
{
    s->h = mmap(NULL, s->bytes, PROT_READ | PROT_WRITE, MAP_SHARED, s->fd, 0);
    if (s->h != MAP_FAILED) return 0;
    s->h = NULL;
    return why_set(why, -errno, "%s: cannot map %zu bytes: %s", path, s->bytes, strerror(errno));
}

/* The magic is stored last: a death before it leaves a file that segment_open removes. */
int segment_make(const char *dir, const struct segment_want *want, struct why *why,
                 struct segment **ret)
{
    CLEANUP(segment_freep) struct segment *s = xnew(struct segment);
    struct pool_header h = header_of(want);
    s->bytes = h.bytes;
    CLEANUP(freep) char *path = NULL;
    if (asprintf(&path, "%s/control", dir) < 0) abort();
    (void)unlink(path);
    s->fd = open(path, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600);
    if (s->fd < 0)
        return why_set(why, -errno, "%s: cannot be made: %s; see pool.dir", path, strerror(errno));
    DEATH_POINT("control-empty");
    int r = -posix_fallocate(s->fd, 0, (off_t)h.bytes);
    if (r < 0)
        return why_set(why, r, "%s: no room for %zu bytes of tables: %s; see pool.dir", path,
                       s->bytes, strerror(-r));
    r = map(s, path, why);
    if (r < 0) return r;
    DEATH_POINT("control-header");
    *s->h = h;
    segment_point(s);
    DEATH_POINT("control-magic");
    shm_store_u64(&s->h->magic, POOL_CONTROL_MAGIC);
    DEATH_POINT("control-made");
    *ret = TAKE(s);
    return 0;
}

/* An earlier poold wrote it, but the file may have been damaged since: its sizes must be what its
 * numbers give, before anything is reached through them. */
static int check(const struct segment *s, const char *path, struct why *why)
{
    const struct pool_header *h = s->h;
    if (h->version != POOL_SHM_VERSION)
        return why_set(
            why, -EPROTO,
            "%s: written by version %u of the memory contract, this is version %u; run the "
            "release that wrote it, or remove the file (conversations are lost)",
            path, h->version, POOL_SHM_VERSION);
    struct pool_header again = *h;
    if (h->n_rows == 0 || h->n_rows > 1 << 20 || h->table_entries == 0 ||
        h->table_entries > 1 << 21 || h->chunk_cells == 0 || h->n_stages == 0 ||
        h->n_stages > POOL_STAGES_MAX ||
        (uint64_t)h->lane_chunks * h->pipeline_lanes > h->n_chunks ||
        (h->lane_chunks && !h->pipeline_lanes))
        return why_set(why, -EPROTO, "%s: damaged; remove it (conversations are lost)", path);
    lay_out(&again);
    if (again.bytes != h->bytes || again.chunks_off != h->chunks_off || h->bytes != s->bytes)
        return why_set(why, -EPROTO, "%s: damaged sizes; remove it (conversations are lost)", path);
    return 0;
}

static void trim_used(struct segment *s)
{
    while (s->n_used && segment_body(s, s->n_used - 1)->state == POOL_FREE)
        s->n_used--;
}

int segment_open(const char *dir, struct why *why, struct segment **ret)
{
    CLEANUP(segment_freep) struct segment *s = xnew(struct segment);
    CLEANUP(freep) char *path = NULL;
    if (asprintf(&path, "%s/control", dir) < 0) abort();
    s->fd = open(path, O_RDWR | O_CLOEXEC | O_NOFOLLOW);
    struct stat st;
    if (s->fd < 0 || fstat(s->fd, &st) < 0)
        return errno == ENOENT ? -ENOENT : why_set(why, -errno, "%s: %s", path, strerror(errno));
    s->bytes = (size_t)st.st_size;
    if (s->bytes < sizeof(struct pool_header)) return unlink(path), -ENOENT;
    int r = map(s, path, why);
    if (r < 0) return r;
    if (s->h->magic != POOL_CONTROL_MAGIC) return unlink(path), -ENOENT;
    r = check(s, path, why);
    if (r < 0) return r;
    segment_point(s);
    for (uint32_t row = 0; row < s->h->n_rows; row++)
        segment_trim_table(s, row);
    s->n_used = s->h->n_rows;
    trim_used(s);
    *ret = TAKE(s);
    return 0;
}

void segment_free(struct segment *s)
{
    if (!s) return;
    if (s->h) (void)munmap(s->h, s->bytes);
    closep(&s->fd);
    free(s);
}

const struct pool_body *segment_body(const struct segment *s, uint32_t row)
{
    return &s->rows[row].body[s->rows[row].version & 1];
}

/* Death before the store of version: the old body holds, and readers never look at the other one.
 * The fence keeps this body's bytes behind the store that last made the other one hold. */
void segment_commit(struct segment *s, uint32_t row, const struct pool_body *body)
{
    struct pool_row *r = &s->rows[row];
    uint64_t next = r->version + 1;
    __atomic_thread_fence(__ATOMIC_SEQ_CST);
    DEATH_POINT("row-body");
    r->body[next & 1] = *body;
    DEATH_POINT("row-version");
    shm_store_u64(&r->version, next);
    DEATH_POINT("row-committed");
    s->commits++;
    s->n_used = max_u32(s->n_used, row + 1);
    trim_used(s);
}

/* Death before it: one event was not counted. */
void segment_count(uint64_t *counter, uint64_t n)
{
    DEATH_POINT("counter");
    shm_store_u64(counter, *counter + n);
}

uint64_t *segment_table(const struct segment *s, uint32_t row)
{
    return s->tables + (uint64_t)row * s->h->table_entries;
}

/* Entries past the length are no row's: a death in the middle is made good at the next start. */
void segment_trim_table(struct segment *s, uint32_t row)
{
    const struct pool_body *b = segment_body(s, row);
    uint64_t *table = segment_table(s, row);
    uint32_t n = b->state == POOL_FREE ? 0 : b->n_entries;
    for (uint32_t i = n; i < s->h->table_entries; i++)
        if (table[i]) {
            DEATH_POINT("table-trim");
            shm_store_u64(&table[i], 0);
        }
}
