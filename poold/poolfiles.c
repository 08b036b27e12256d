/* SPDX-License-Identifier: MIT */
/*
 * The pool's files together: opened after a restart, made at the first attach, dropped when another
 * model comes and nothing is cached, handed to processes. Called by attach.c and serve.c.
 */
#include <errno.h>
#include <fcntl.h>
#include <string.h>

#include "common/death.h"
#include "common/log.h"
#include "poold/daemon.h"

#define CELLS_MAX (UINT32_MAX - (1u << 16)) /* as pool.cells, config_keys.c */

enum { COPY_CHUNKS = 1 }; /* room to copy a partly common chunk into, besides one whole context */

static uint32_t wanted_chunks(const struct config *c)
{
    return (uint32_t)((c->pool.cells + c->pool.chunk - 1) / c->pool.chunk);
}

void poolfiles_empty_rows(struct daemon *d, const char *reason)
{
    uint32_t n = 0;
    for (uint32_t row = 0; row < d->pool->seg->h->n_rows; row++) {
        const struct pool_body *b = segment_body(d->pool->seg, row);
        if (b->state == POOL_FREE || b->holder) continue; /* a tool's ends with the tool */
        if (b->state == POOL_CLOSING) d->pool->n_closing--;
        pool_cut(d->pool, row, 0, POOL_IDLE, NULL);
        n++;
    }
    if (n) log_warn("%u conversations are lost: %s", n, reason);
}

static int adopt_pool(struct daemon *d, struct segment *seg, struct why *why)
{
    bool fresh;
    int r = store_tokens(d->config->pool.dir, seg->h, why, &d->tokens, &fresh);
    if (r < 0) return segment_free(seg), r;
    const struct pool_tokens *tokens = d->tokens.at;
    d->pool = pool_new(seg, tokens->cell);
    if (fresh) poolfiles_empty_rows(d, "the tokens file was missing or another pool's");
    return 0;
}

static bool same_cells(const struct config *c, const struct pool_header *h)
{
    if (c->pool.cells) return !h->lane_chunks && h->n_chunks == wanted_chunks(c);
    uint64_t ranges = (uint64_t)h->pipeline_lanes * c->pool.pipelines;
    return h->lane_chunks && h->n_chunks == ranges * h->lane_chunks;
}

static const char *differs(const struct config *c, const struct pool_header *h)
{
    if (h->chunk_cells != c->pool.chunk) return "pool.chunk";
    if (!same_cells(c, h)) return c->pool.cells ? "pool.cells" : "pool.pipelines";
    if (h->n_rows != c->pool.conversations) return "pool.conversations";
    if (h->memory != c->pool.memory) return "pool.memory";
    return NULL;
}

int poolfiles_open(struct daemon *d, struct why *why)
{
    struct segment *seg = NULL;
    int r = segment_open(d->config->pool.dir, why, &seg);
    if (r == -ENOENT) return 0;
    if (r < 0) return r;
    const char *key = differs(d->config, seg->h);
    if (key) {
        log_warn("%s is not what it was: the pool begins anew, cached conversations are lost", key);
        segment_free(seg);
        poolfiles_drop(d);
        return 0;
    }
    DEATH_POINT("control-grow");
    seg->h->grow_chunks = d->config->pool.grow;
    r = adopt_pool(d, seg, why);
    for (uint32_t p = 0; r == 0 && p < POOL_PIPELINES_MAX; p++)
        for (uint32_t s = 0; r == 0 && s < seg->pipelines[p].n_stages && s < POOL_STAGES_MAX; s++)
            r = poolfiles_page(d, p, s, why);
    return r;
}

static int check_size(const struct daemon *d, const struct worker_facts *f, struct why *why,
                      Cistern__Code *ret_code)
{
    const struct config *c = d->config;
    uint32_t context = (f->geometry.context_tokens + c->pool.chunk - 1) / c->pool.chunk;
    uint64_t least = (uint64_t)context + c->pool.grow + COPY_CHUNKS;
    *ret_code = CISTERN__CODE__LAYOUT;
    if (f->geometry.block_cells == 0 || c->pool.chunk % f->geometry.block_cells)
        return why_set(why, -EINVAL,
                       "pool.chunk = %u is not a multiple of the worker's blocks of %u "
                       "cells; raise it",
                       c->pool.chunk, f->geometry.block_cells);
    if (wanted_chunks(c) >= least || c->pool.cells == 0) return 0;
    *ret_code = CISTERN__CODE__NEVER_FITS;
    return why_set(
        why, -ENOSPC,
        "pool.cells = %llu is less than one context of %u tokens, one growth unit and one "
        "chunk to copy into: %llu cells; raise pool.cells or lower model.context",
        (unsigned long long)c->pool.cells, f->geometry.context_tokens,
        (unsigned long long)least * c->pool.chunk);
}

/* What another pool left: not of use any more, and as large as what is to be made. */
static void remove_leftovers(const char *dir)
{
    CLEANUP(freep) char *tokens = NULL;
    if (asprintf(&tokens, "%s/tokens", dir) < 0) abort();
    (void)unlink(tokens);
    for (uint32_t s = 0; s < POOL_STAGES_MAX; s++) {
        CLEANUP(freep) char *arena = NULL;
        if (asprintf(&arena, "%s/arena-%u", dir, s) < 0) abort();
        (void)unlink(arena);
    }
}

/* Before anything is made: a pool that cannot fit must not take what room there is first. Each
 * arena looks again when it is made. */
static int check_room(const char *dir, const struct segment_want *w, struct why *why)
{
    const struct pool_geometry *g = &w->geometry;
    uint64_t cells = ((uint64_t)w->n_chunks + 1) * w->chunk_cells;
    bool files = w->memory == POOL_MEMORY_SHM;
    __uint128_t arenas = (__uint128_t)cells / g->block_cells * g->block_bytes * g->n_layers;
    __uint128_t need = (files ? arenas : 0) + cells * sizeof(uint32_t);
    char what[64];
    (void)snprintf(what, sizeof(what), "a pool of %llu cells", (unsigned long long)cells);
    return store_check_room(dir, need > UINT64_MAX ? UINT64_MAX : (uint64_t)need, what, why);
}

void poolfiles_sign(const struct daemon *d, struct segment *seg)
{
    DEATH_POINT("control-boot");
    process_boot_id(seg->h->boot_id);
    DEATH_POINT("control-pid");
    seg->h->poold_pid = (uint32_t)getpid();
    DEATH_POINT("control-incarnation");
    shm_store_u64(&seg->h->poold_incarnation, d->self);
    DEATH_POINT("control-signed");
}

/* The identity layout: one context a lane, for the lanes that the first worker states. */
static int want_ranges(const struct config *c, const struct worker_facts *f,
                       struct segment_want *want, struct why *why)
{
    if (c->pool.cells) return 0;
    want->lane_chunks = (f->geometry.context_tokens + want->chunk_cells - 1) / want->chunk_cells;
    want->pipeline_lanes = f->max_lanes;
    uint64_t ranges = (uint64_t)f->max_lanes * c->pool.pipelines;
    uint64_t cells = ranges * want->lane_chunks * want->chunk_cells;
    if (cells > CELLS_MAX)
        return why_set(
            why, -E2BIG,
            "pool.cells = 0: %llu lanes of %u tokens are %llu cells, more than %u; lower "
            "worker.lanes or model.context",
            (unsigned long long)ranges, f->geometry.context_tokens, (unsigned long long)cells,
            CELLS_MAX);
    want->n_chunks = (uint32_t)(ranges * want->lane_chunks);
    return 0;
}

int poolfiles_make(struct daemon *d, const struct worker_facts *f, struct why *why,
                   Cistern__Code *ret_code)
{
    int r = check_size(d, f, why, ret_code);
    if (r < 0) return r;
    *ret_code = CISTERN__CODE__NEVER_FITS;
    struct segment_want want = {
        .n_rows = d->config->pool.conversations,
        .n_chunks = wanted_chunks(d->config),
        .chunk_cells = d->config->pool.chunk,
        .grow_chunks = d->config->pool.grow,
        .n_stages = f->n_stages,
        .memory = d->config->pool.memory,
        .geometry = f->geometry,
    };
    r = want_ranges(d->config, f, &want, why);
    if (r < 0) return r;
    remove_leftovers(d->config->pool.dir);
    r = check_room(d->config->pool.dir, &want, why);
    if (r < 0) return r;
    *ret_code = CISTERN__CODE__FAILED;
    struct segment *seg = NULL;
    r = segment_make(d->config->pool.dir, &want, why, &seg);
    if (r < 0) return r;
    poolfiles_sign(d, seg);
    r = adopt_pool(d, seg, why);
    if (r < 0) return r;
    log_info("pool %016llx: %u chunks of %u cells, %u conversations, context %u, %s",
             (unsigned long long)seg->h->pool_id, want.n_chunks, want.chunk_cells, want.n_rows,
             f->geometry.context_tokens, f->geometry.arithmetic);
    for (struct process *w = processes_first(d->processes); w; w = w->next)
        if (w->role != POOL_ROLE_WORKER && w->owner) (void)poolfiles_send(d, w);
    return 0;
}

void poolfiles_close(struct daemon *d)
{
    for (uint32_t s = 0; s < POOL_STAGES_MAX; s++)
        arena_free(TAKE(d->arena[s]));
    for (uint32_t p = 0; p < POOL_PIPELINES_MAX; p++)
        for (uint32_t s = 0; s < POOL_STAGES_MAX; s++)
            if (d->page[p][s].at) mapped_file_fini(&d->page[p][s]);
    if (d->tokens.at) mapped_file_fini(&d->tokens);
    pool_free(TAKE(d->pool));
}

/* The files bear the old pool's id, so what is left of them would not be taken for the new one's.
 */
void poolfiles_drop(struct daemon *d)
{
    if (d->processes) processes_leave_segment(d->processes);
    poolfiles_close(d);
    CLEANUP(freep) char *path = NULL;
    if (asprintf(&path, "%s/control", d->config->pool.dir) < 0) abort();
    (void)unlink(path);
}

int poolfiles_page(struct daemon *d, uint32_t pipeline, uint32_t stage, struct why *why)
{
    bool fresh;
    struct mapped_file *page = &d->page[pipeline][stage];
    if (page->at) return 0;
    int r = store_page(d->config->pool.dir, d->pool->seg->h, pipeline, stage, why, page, &fresh);
    if (r == 0) d->pool->page[pipeline][stage] = page->at;
    return r;
}

/* Who must not write a file gets a descriptor that can't. */
int poolfiles_read_only(const struct daemon *d, const char *name)
{
    CLEANUP(freep) char *path = NULL;
    if (asprintf(&path, "%s/%s", d->config->pool.dir, name) < 0) abort();
    return open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
}

int poolfiles_send(struct daemon *d, struct process *who)
{
    bool worker = who->role == POOL_ROLE_WORKER;
    struct lifeline_files packet = {
        .kind = LIFELINE_POOL,
        .pool_id = d->pool->seg->h->pool_id,
        .arena_bytes = worker ? arena_cuda_bytes(d->arena[who->stage]) : 0,
    };
    CLEANUP(closep) int control = poolfiles_read_only(d, "control");
    CLEANUP(closep) int tokens = poolfiles_read_only(d, "tokens");
    if (control < 0 || tokens < 0) return -errno;
    int fds[LIFELINE_FDS_MAX] = {control};
    uint32_t n = 1;
    if (worker) {
        fds[n++] = who->stage == 0 ? d->tokens.fd : tokens;
        fds[n++] = d->page[who->pipeline][who->stage].fd;
        fds[n++] = arena_fd(d->arena[who->stage]);
    }
    return process_send(who, &packet, fds, n);
}

void poolfiles_send_page(struct daemon *d, struct process *to, uint32_t pipeline, uint32_t stage)
{
    struct lifeline_files packet = {
        .kind = LIFELINE_PAGE,
        .pool_id = d->pool->seg->h->pool_id,
        .pipeline = pipeline,
        .life = stage,
    };
    char name[32];
    (void)snprintf(name, sizeof(name), "page-%u-%u", pipeline, stage);
    CLEANUP(closep) int page = poolfiles_read_only(d, name);
    if (page < 0) return; /* it is for show only */
    for (struct process *w = processes_first(d->processes); w; w = w->next)
        if ((to ? w == to : w->role != POOL_ROLE_WORKER && w->owner) && w->sock >= 0)
            (void)process_send(w, &packet, &page, 1);
}
