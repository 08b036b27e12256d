/* SPDX-License-Identifier: MIT */
/*
 * Maps what poold hands over and begins and ends lives (lives.h). Called by worker.c; gives orders
 * to the device thread and tells the head.
 */
#include "workerd/lives.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>

#include "common/log.h"

enum {
    LOOKS = 2, /* poold rewrites a process's record when it comes back: one look may miss it */
};

static void order_give(struct lives *l, struct link *link, int ring)
{
    struct stage_order *o = xnew(struct stage_order);
    *o = (struct stage_order){
        .life = l->life,
        .link = link ? link_ref(link) : NULL,
        .pool = pool_map_ref(l->pool),
        .ring = ring,
    };
    stage_give(l->device, o);
}

static void life_over(struct lives *l)
{
    if (!l->live) return;
    l->live = false;
    link_unref(TAKE(l->link));
    order_give(l, NULL, -1);
    if (l->head) head_life_over(l->head);
}

/* ---- peers ---- */

static bool has_record(const struct lives *l, uint64_t incarnation)
{
    const struct pool_process *p = pool_processes(l->pool->control);
    for (uint32_t i = 0; i < POOL_PROCESSES_MAX; i++)
        if (shm_load_u64(&p[i].incarnation) == incarnation) return true;
    return false;
}

/* poold hands out a link when all stages have their records. */
static void peers_read(struct lives *l)
{
    const struct pool_process *p = pool_processes(l->pool->control);
    memset(l->peers, 0, sizeof(l->peers));
    for (uint32_t i = 0; i < POOL_PROCESSES_MAX; i++) {
        uint64_t incarnation = shm_load_u64(&p[i].incarnation);
        if (incarnation && p[i].role == POOL_ROLE_WORKER && p[i].pipeline == l->pipeline &&
            p[i].stage < l->n_stages && !p[i].dying)
            l->peers[p[i].stage] = incarnation;
    }
    l->missing = 0;
}

void lives_died(struct lives *l, uint64_t incarnation)
{
    for (uint32_t s = 0; l->live && s < l->n_stages; s++)
        if (l->peers[s] == incarnation) {
            log_warn("stage %u died", s);
            life_over(l);
        }
}

void lives_look(struct lives *l)
{
    bool all = true;
    for (uint32_t s = 0; l->live && s < l->n_stages; s++)
        all = all && has_record(l, l->peers[s]);
    l->missing = all ? 0 : l->missing + 1;
    if (l->missing >= LOOKS) life_over(l);
}

/* ---- files ---- */

static int pool_take(struct lives *l, const struct lifeline_files *f, const int *fds,
                     uint32_t n_fds, struct why *why)
{
    if (l->pool && l->pool->pool_id == f->pool_id) return 0; /* poold is back, the memory is ours */
    const struct model_facts *facts = stage_facts(l->device);
    if (!facts || n_fds != POOL_MAP_FDS)
        return why_set(why, -EPROTO, "poold handed over %u files unasked", n_fds);
    struct pool_map_want want = {
        .pool_id = f->pool_id,
        .pipeline = l->pipeline,
        .stage = l->stage,
        .first_layer = l->first_layer,
        .n_layers = l->n_layers,
        .context_tokens = l->context,
        .block_cells = facts->block_cells,
        .block_bytes = facts->block_bytes,
        .arena_bytes = f->arena_bytes,
        .device = l->cuda_device,
    };
    struct pool_map *pool = NULL;
    int r = pool_map_new(fds, &want, why, &pool);
    if (r < 0) return r;
    life_over(l);
    l->life = 0;
    pool_map_unref(l->pool);
    l->pool = pool;
    if (l->head) head_use_pool(l->head, pool);
    return 0;
}

static int link_take(struct lives *l, const struct lifeline_files *f, const int *fds,
                     uint32_t n_fds, struct why *why, struct link **ret)
{
    if (!l->pool || f->pool_id != l->pool->pool_id || f->pipeline != l->pipeline || n_fds != 2)
        return why_set(why, -EPROTO, "poold handed over a link of another pool or pipeline");
    struct link_want want = {
        .pool_id = f->pool_id,
        .pipeline = f->pipeline,
        .life = f->life,
        .n_stages = l->n_stages,
        .max_rows = l->max_rows,
        .max_lanes = l->max_lanes,
        .n_embd = stage_facts(l->device)->n_embd,
    };
    return link_map(fds[0], &want, why, ret);
}

static int life_begin(struct lives *l, const struct lifeline_files *f, int *fds, uint32_t n_fds,
                      struct why *why)
{
    CLEANUP(link_unrefp) struct link *link = NULL;
    int r = link_take(l, f, fds, n_fds, why, &link);
    if (r < 0) return r;
    CLEANUP(closep) int ring = -1;
    if (l->stage + 1 == l->n_stages) {
        ring = fcntl(fds[1], F_DUPFD_CLOEXEC, 0);
        if (ring < 0) return why_set(why, -errno, "the link's eventfd: %s", strerror(errno));
    }
    life_over(l);
    l->life = f->life;
    l->live = true;
    l->link = link_ref(link);
    peers_read(l);
    log_info("life %u begins", l->life);
    order_give(l, link, TAKE_FD(ring));
    if (l->head) head_serve(l->head, l->life, link, TAKE_FD(fds[1]));
    return 0;
}

int lives_files(struct lives *l, const struct lifeline_files *f, int *fds, uint32_t n_fds,
                struct why *why)
{
    if (f->kind == LIFELINE_POOL) return pool_take(l, f, fds, n_fds, why);
    if (f->kind == LIFELINE_LINK && f->life > l->life) return life_begin(l, f, fds, n_fds, why);
    return 0;
}

bool lives_arena(const struct lives *l, struct lifeline_arena *ret, int *ret_fd)
{
    if (!l->pool || !l->pool->cuda.at) return false;
    *ret = (struct lifeline_arena){
        .pool_id = l->pool->pool_id,
        .bytes = l->pool->arena_bytes,
        .stage = l->stage,
        .first_layer = l->first_layer,
        .n_layers = l->n_layers,
    };
    *ret_fd = l->pool->cuda.fd;
    return true;
}

/* A life that is over is to be let go of, which the device thread says as its last window. Between
 * that and the next life it may take its time: memory is made known to a device. */
void lives_beat(const struct lives *l, Cistern__Heartbeat *ret)
{
    if (l->life == 0) return;
    uint64_t done = shm_load_u64(&l->pool->page->drained);
    uint64_t due = l->live ? bell_count(link_bell(l->link, l->stage)) : POOL_WINDOW_ALL;
    bool let_go = (done & POOL_WINDOW_ALL) == POOL_WINDOW_ALL;
    ret->last_window = done;
    ret->due_window = let_go ? done : pool_window(l->life, due);
    ret->steps = stage_steps(l->device);
    /* Until the device thread has taken up this life its page is still at an older one. */
    if (l->live && pool_window_life(done) == l->life) ret->life = l->life;
}

void lives_fini(struct lives *l)
{
    link_unref(TAKE(l->link));
    pool_map_unref(TAKE(l->pool));
}
