/* SPDX-License-Identifier: MIT */
/*
 * Maps control, tokens, page and arena and checks each header against its file's size, the pool's
 * id and what this worker stated. Called by worker.c when poold hands the files over.
 */
#include "workerd/pool_map.h"

#include <errno.h>
#include <stdbool.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>

static int map_file(int fd, const char *name, int prot, size_t least, struct why *why, void **ret,
                    size_t *ret_bytes)
{
    struct stat st;
    if (fstat(fd, &st) < 0)
        return why_set(why, -errno, "the pool's %s file: %s", name, strerror(errno));
    if (st.st_size < 0 || (size_t)st.st_size < least)
        return why_set(why, -EPROTO, "the pool's %s file is cut short", name);
    void *at = mmap(NULL, (size_t)st.st_size, prot, MAP_SHARED, fd, 0);
    if (at == MAP_FAILED)
        return why_set(why, -errno, "cannot map the pool's %s file: %s", name, strerror(errno));
    *ret = at;
    *ret_bytes = (size_t)st.st_size;
    return 0;
}

static bool array_fits(uint64_t off, uint64_t n, uint64_t bytes, uint64_t end)
{
    uint64_t size, last;
    if (off % 8 || __builtin_mul_overflow(n, bytes, &size)) return false;
    return !__builtin_add_overflow(off, size, &last) && last <= end;
}

static int control_check(const struct pool_map *m, const struct pool_map_want *w, struct why *why)
{
    const struct pool_header *h = m->control;
    if (h->magic != POOL_CONTROL_MAGIC || h->version != POOL_SHM_VERSION)
        return why_set(why, -EPROTO, "the pool's control file is of version %u, here is version %u",
                       h->version, POOL_SHM_VERSION);
    uint64_t end = min_u64(h->bytes, m->control_bytes);
    uint64_t entries;
    bool ok = h->pool_id == w->pool_id && h->bytes <= m->control_bytes &&
              !__builtin_mul_overflow((uint64_t)h->n_rows, h->table_entries, &entries) &&
              array_fits(h->processes_off, POOL_PROCESSES_MAX, sizeof(struct pool_process), end) &&
              array_fits(h->pipelines_off, POOL_PIPELINES_MAX, sizeof(struct pool_pipeline), end) &&
              array_fits(h->rows_off, h->n_rows, sizeof(struct pool_row), end) &&
              array_fits(h->tables_off, entries, sizeof(uint64_t), end) &&
              array_fits(h->chunks_off, (uint64_t)h->n_chunks + 1, sizeof(struct pool_chunk), end);
    ok = ok && h->n_rows && h->n_chunks && h->chunk_cells && h->grow_chunks &&
         h->chunk_cells % w->block_cells == 0 &&
         (uint64_t)h->table_entries * h->chunk_cells >= w->context_tokens;
    return ok ? 0 : why_set(why, -EPROTO, "the pool's control file has a number out of its range");
}

static int tokens_check(const struct pool_map *m, struct why *why)
{
    const struct pool_tokens *t = m->tokens;
    uint64_t cells = ((uint64_t)m->control->n_chunks + 1) * m->control->chunk_cells;
    bool ok = t->magic == POOL_TOKENS_MAGIC && t->pool_id == m->control->pool_id &&
              t->n_cells >= cells &&
              (m->tokens_bytes - sizeof(*t)) / sizeof(t->cell[0]) >= t->n_cells;
    return ok ? 0 : why_set(why, -EPROTO, "the pool's tokens file is not of this pool");
}

static int page_check(const struct pool_map *m, const struct pool_map_want *w, struct why *why)
{
    const struct pool_page *p = m->page;
    uint64_t words = (uint64_t)m->control->n_rows * (w->stage == 0 ? 2 : 1);
    bool ok = p->magic == POOL_PAGE_MAGIC && p->pool_id == m->control->pool_id &&
              p->pipeline == w->pipeline && p->stage == w->stage &&
              p->n_rows == m->control->n_rows &&
              (m->page_bytes - sizeof(*p)) / sizeof(p->word[0]) >= words;
    return ok ? 0 : why_set(why, -EPROTO, "the page is not of this pipeline and stage");
}

static int arena_check(const struct pool_map *m, const struct pool_map_want *w, struct why *why)
{
    const struct pool_arena *a = m->arena;
    const struct pool_header *h = m->control;
    bool ok = a->magic == POOL_ARENA_MAGIC && a->pool_id == h->pool_id && a->stage == w->stage &&
              a->bytes <= m->arena_bytes && a->chunk_cells == h->chunk_cells &&
              a->block_cells == w->block_cells && a->n_chunks == h->n_chunks &&
              a->n_runs >= w->n_layers && a->n_runs <= POOL_RUNS_MAX;
    uint64_t blocks = ((uint64_t)h->n_chunks + 1) * (h->chunk_cells / w->block_cells);
    for (uint32_t i = 0; ok && i < w->n_layers; i++) {
        const struct pool_run *run = &a->run[i];
        ok = run->layer == w->first_layer + i && run->kind == POOL_RUN_KV && run->off % 4096 == 0 &&
             run->block_bytes == w->block_bytes &&
             array_fits(run->off, blocks, run->block_bytes, m->arena_bytes);
    }
    return ok ? 0
              : why_set(why, -EPROTO, "the arena is not of layers %u-%u", w->first_layer,
                        w->first_layer + w->n_layers - 1);
}

static int arena_map_cuda(struct pool_map *m, int fd, const struct pool_map_want *w,
                          struct why *why)
{
    struct cuda_host_want want = {.fd = fd, .bytes = w->arena_bytes, .device = w->device};
    struct why no = {0};
    if (w->arena_bytes < sizeof(*m->arena))
        return why_set(why, -EPROTO, "the pool's arena is cut short");
    int r = cuda_host_map(&want, &no, &m->cuda);
    if (r < 0) return why_set(why, r, "pool.memory = cuda: the arena: %s", no.text);
    m->arena_bytes = m->cuda.bytes;
    return 0;
}

static int map_all(struct pool_map *m, const int fds[POOL_MAP_FDS], const struct pool_map_want *w,
                   struct why *why)
{
    void *at = NULL;
    int r =
        map_file(fds[0], "control", PROT_READ, sizeof(*m->control), why, &at, &m->control_bytes);
    if (r < 0) return r;
    m->control = at;
    r = control_check(m, w, why);
    if (r < 0) return r;
    r = map_file(fds[1], "tokens", w->stage == 0 ? PROT_READ | PROT_WRITE : PROT_READ,
                 sizeof(*m->tokens), why, &at, &m->tokens_bytes);
    if (r < 0) return r;
    m->tokens = at;
    r = tokens_check(m, why);
    if (r < 0) return r;
    r = map_file(fds[2], "page", PROT_READ | PROT_WRITE, sizeof(*m->page), why, &at,
                 &m->page_bytes);
    if (r < 0) return r;
    m->page = at;
    r = page_check(m, w, why);
    if (r < 0) return r;
    r = w->arena_bytes ? arena_map_cuda(m, fds[3], w, why)
                       : map_file(fds[3], "arena", PROT_READ | PROT_WRITE, sizeof(*m->arena), why,
                                  &at, &m->arena_bytes);
    if (r < 0) return r;
    m->arena = w->arena_bytes ? m->cuda.at : at;
    return arena_check(m, w, why);
}

int pool_map_new(const int fds[POOL_MAP_FDS], const struct pool_map_want *want, struct why *why,
                 struct pool_map **ret)
{
    CLEANUP(pool_map_unrefp) struct pool_map *m = xnew(struct pool_map);
    m->refs = 1;
    m->cuda.fd = -1;
    int r = map_all(m, fds, want, why);
    if (r < 0) return r;
    m->pool_id = m->control->pool_id;
    m->n_cells = m->tokens->n_cells;
    m->n_rows = m->control->n_rows;
    m->n_chunks = m->control->n_chunks;
    m->chunk_cells = m->control->chunk_cells;
    m->table_entries = m->control->table_entries;
    m->grow_chunks = m->control->grow_chunks;
    m->lane_chunks = m->control->lane_chunks;
    /* A core file is for the code's state, not for gigabytes of conversations. */
    (void)madvise(m->arena, m->arena_bytes, MADV_DONTDUMP);
    *ret = TAKE(m);
    return 0;
}

struct pool_map *pool_map_ref(struct pool_map *m)
{
    (void)__atomic_add_fetch(&m->refs, 1, __ATOMIC_RELAXED);
    return m;
}

static void unmap(const void *at, size_t bytes)
{
    if (at) (void)munmap((void *)at, bytes);
}

void pool_map_unref(struct pool_map *m)
{
    if (!m || __atomic_sub_fetch(&m->refs, 1, __ATOMIC_ACQ_REL)) return;
    unmap(m->control, m->control_bytes);
    unmap(m->tokens, m->tokens_bytes);
    unmap(m->page, m->page_bytes);
    if (m->cuda.at)
        cuda_host_fini(&m->cuda);
    else
        unmap(m->arena, m->arena_bytes);
    free(m);
}

uint64_t pool_map_entry(const struct pool_map *m, uint32_t row, uint32_t i)
{
    if (row >= m->n_rows || i >= m->table_entries) return 0;
    uint64_t entry = shm_load_u64(pool_table(m->control, row) + i);
    return pool_entry_chunk(entry) <= m->n_chunks ? entry : 0;
}
