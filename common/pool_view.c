/* SPDX-License-Identifier: MIT */
/*
 * Maps and counts (pool_view.h). A header is checked once, when it is mapped: poold writes it once.
 * Everything else is bounded each time.
 */
#include "common/pool_view.h"

#include <errno.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>

const char *const cells_names[CELLS_STATES] = {
    [CELLS_FREE] = "free",       [CELLS_CACHED] = "cached", [CELLS_CLOSING] = "closing",
    [CELLS_WAITING] = "waiting", [CELLS_ACTIVE] = "active", [CELLS_HELD] = "held",
    [CELLS_SHARED] = "shared",   [CELLS_TRASH] = "trash",
};

/* ---- mapping ---- */

static int map(int fd, size_t least, const void **ret, size_t *ret_bytes)
{
    struct stat st;
    if (fstat(fd, &st) < 0) return -errno;
    if (st.st_size < (off_t)least) return -EPROTO;
    void *at = mmap(NULL, (size_t)st.st_size, PROT_READ, MAP_SHARED, fd, 0);
    if (at == MAP_FAILED) return -errno;
    *ret = at;
    *ret_bytes = (size_t)st.st_size;
    return 0;
}

static bool table_fits(uint64_t off, uint64_t n, uint64_t each, uint64_t bytes)
{
    uint64_t need;
    return off % 8 == 0 && !__builtin_mul_overflow(n, each, &need) &&
           !__builtin_add_overflow(need, off, &need) && need <= bytes;
}

static bool control_is_sane(const struct pool_header *h, size_t bytes, uint64_t pool_id)
{
    return shm_load_u64(&h->magic) == POOL_CONTROL_MAGIC && h->version == POOL_SHM_VERSION &&
           h->pool_id == pool_id && h->bytes <= bytes && h->chunk_cells > 0 &&
           h->n_chunks < UINT32_MAX && h->n_stages > 0 && h->n_stages <= POOL_STAGES_MAX &&
           table_fits(h->processes_off, POOL_PROCESSES_MAX, sizeof(struct pool_process), bytes) &&
           table_fits(h->pipelines_off, POOL_PIPELINES_MAX, sizeof(struct pool_pipeline), bytes) &&
           table_fits(h->rows_off, h->n_rows, sizeof(struct pool_row), bytes) &&
           table_fits(h->tables_off, (uint64_t)h->n_rows * h->table_entries, 8, bytes);
}

static int take_control(struct pool_view *v, int fd, uint64_t pool_id)
{
    const void *at;
    size_t bytes;
    int r = map(fd, sizeof(struct pool_header), &at, &bytes);
    if (r < 0) return r;
    if (!control_is_sane(at, bytes, pool_id)) {
        (void)munmap((void *)at, bytes);
        return -EPROTO;
    }
    if (v->h) (void)munmap((void *)v->h, v->bytes);
    v->h = at;
    v->bytes = bytes;
    return 0;
}

static int take_page(struct pool_view *v, int fd, const struct lifeline_files *f)
{
    const void *at;
    size_t bytes;
    if (f->pipeline >= POOL_PIPELINES_MAX || f->life >= POOL_STAGES_MAX) return -EPROTO;
    int r = map(fd, sizeof(struct pool_page), &at, &bytes);
    if (r < 0) return r;
    const struct pool_page *page = at;
    uint64_t room = (bytes - sizeof(*page)) / (2 * sizeof(uint64_t));
    if (shm_load_u64(&page->magic) != POOL_PAGE_MAGIC || page->pool_id != f->pool_id ||
        page->n_rows > room) {
        (void)munmap((void *)at, bytes);
        return -EPROTO;
    }
    struct pool_view_page *p = &v->page[f->pipeline][f->life];
    if (p->at) (void)munmap((void *)p->at, p->bytes);
    *p = (struct pool_view_page){page, bytes};
    return 0;
}

int pool_view_take(struct pool_view *v, const struct lifeline_files *f, const int *fds,
                   uint32_t n_fds)
{
    if (n_fds == 0) return 0;
    if (f->kind == LIFELINE_POOL) return take_control(v, fds[0], f->pool_id);
    if (f->kind == LIFELINE_PAGE) return take_page(v, fds[0], f);
    return 0;
}

void pool_view_fini(struct pool_view *v)
{
    if (v->h) (void)munmap((void *)v->h, v->bytes);
    for (uint32_t p = 0; p < POOL_PIPELINES_MAX; p++)
        for (uint32_t s = 0; s < POOL_STAGES_MAX; s++)
            if (v->page[p][s].at) (void)munmap((void *)v->page[p][s].at, v->page[p][s].bytes);
    *v = (struct pool_view){0};
}

const struct pool_page *pool_view_page(const struct pool_view *v, uint32_t pipeline, uint32_t stage)
{
    if (!v->h || pipeline >= POOL_PIPELINES_MAX || stage >= POOL_STAGES_MAX) return NULL;
    const struct pool_page *p = v->page[pipeline][stage].at;
    return p && p->pool_id == v->h->pool_id && p->n_rows == v->h->n_rows ? p : NULL;
}

/* ---- counting ---- */

static uint32_t cells_by(uint64_t word, const struct pool_body *b)
{
    return pool_word_lease(word) == b->lease ? pool_word_cells(word) : b->base;
}

uint32_t pool_view_tokens(const struct pool_view *v, uint32_t row, const struct pool_body *b)
{
    if (b->state != POOL_ACTIVE && (b->state != POOL_CLOSING || b->holder))
        return b->base + b->copy_cells;
    uint64_t least = (uint64_t)b->n_entries * v->h->chunk_cells;
    for (uint32_t stage = 0; stage < v->h->n_stages; stage++) {
        const struct pool_page *page = pool_view_page(v, b->pipeline, stage);
        if (!page) return b->base;
        least = min_u64(least, cells_by(shm_load_u64(&page->word[row]), b));
        if (stage > 0) continue;
        least = min_u64(least, cells_by(shm_load_u64(&page->word[page->n_rows + row]), b));
    }
    return (uint32_t)least;
}

static bool is_held(const struct pool_header *h, uint32_t pipeline)
{
    const struct pool_process *p = pool_processes(h);
    for (uint32_t i = 0; i < POOL_PROCESSES_MAX; i++)
        if (shm_load_u64(&p[i].incarnation) && p[i].dying && p[i].role == POOL_ROLE_WORKER &&
            p[i].pipeline == pipeline)
            return true;
    return false;
}

enum cells pool_view_state(const struct pool_header *h, const struct pool_body *b)
{
    static const enum cells of_state[] = {
        [POOL_FREE] = CELLS_FREE,       [POOL_ACTIVE] = CELLS_ACTIVE,
        [POOL_WAITING] = CELLS_WAITING, [POOL_CLOSING] = CELLS_CLOSING,
        [POOL_IDLE] = CELLS_CACHED,
    };
    if (b->state >= ARRAY_LEN(of_state)) return CELLS_FREE;
    bool bound = b->state == POOL_ACTIVE || (b->state == POOL_CLOSING && !b->holder);
    return bound && is_held(h, b->pipeline) ? CELLS_HELD : of_state[b->state];
}

static void mark(const struct pool_header *h, uint8_t *chunks, uint64_t entry, enum cells state)
{
    uint32_t chunk = pool_entry_chunk(entry);
    if (chunk == 0 || chunk > h->n_chunks) return;
    chunks[chunk] = chunks[chunk] == CELLS_FREE ? (uint8_t)state : CELLS_SHARED;
}

void pool_view_chunks(const struct pool_header *h, uint8_t *ret)
{
    memset(ret, CELLS_FREE, (size_t)h->n_chunks + 1);
    ret[0] = CELLS_TRASH;
    for (uint32_t row = 0; row < h->n_rows; row++) {
        struct pool_body b;
        (void)pool_row_read(&pool_rows(h)[row], &b);
        enum cells state = pool_view_state(h, &b);
        if (state == CELLS_FREE) continue;
        for (uint32_t i = 0; i < min_u32(b.n_entries, h->table_entries); i++)
            mark(h, ret, shm_load_u64(&pool_table(h, row)[i]), state);
        mark(h, ret, b.copy_entry, state);
    }
}

void pool_view_cells(const struct pool_header *h, uint64_t ret[CELLS_STATES])
{
    CLEANUP(freep) uint8_t *chunks = xcalloc((size_t)h->n_chunks + 1, 1);
    pool_view_chunks(h, chunks);
    memset(ret, 0, CELLS_STATES * sizeof(*ret));
    for (uint32_t chunk = 0; chunk <= h->n_chunks; chunk++)
        ret[chunks[chunk]] += h->chunk_cells;
}
