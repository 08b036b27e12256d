/* SPDX-License-Identifier: MIT */
/*
 * Processes that come: workers (checked against the pool, given their arena) and gateways and
 * tools. A worker waits here while its arena is filled, or while its predecessor is not yet surely
 * dead.
 */
#include <errno.h>
#include <string.h>

#include "common/death.h"
#include "common/log.h"
#include "poold/daemon.h"
#include "proto/kv_block.h"

enum {
    LAYERS_MAX = 1024,  /* runs of an arena */
    ROWS_MAX = 1 << 16, /* token rows of a window: far above any use, and bounded */
    LANES_MAX = 4096,
};

void worker_facts_free(struct worker_facts *f)
{
    if (!f) return;
    free(f->rows);
    free(f->pending);
    free(f);
}

/* ---- the message, checked ---- */

static int text_from(const char *text, char *ret, size_t room)
{
    if (!text || strlen(text) >= room) return -EPROTO;
    (void)snprintf(ret, room, "%s", text);
    return 0;
}

static int geometry_from(const Cistern__Geometry *g, struct pool_geometry *ret)
{
    if (!g || g->n_layers == 0 || g->n_layers > LAYERS_MAX || g->context_tokens == 0 ||
        g->context_tokens > 1 << 24 || g->block_cells == 0 || g->block_cells > 1 << 16 ||
        g->block_bytes == 0 || g->block_bytes > 1 << 30 || g->kv < POOL_KV_F32 ||
        g->kv > POOL_KV_Q4)
        return -EPROTO;
    *ret = (struct pool_geometry){
        .n_layers = g->n_layers,
        .n_kv_heads = g->n_kv_heads,
        .head_dim = g->head_dim,
        .kv = g->kv,
        .block_cells = g->block_cells,
        .context_tokens = g->context_tokens,
        .block_bytes = g->block_bytes,
    };
    int r = text_from(g->fingerprint, ret->fingerprint, sizeof(ret->fingerprint));
    return r < 0 ? r : text_from(g->arithmetic, ret->arithmetic, sizeof(ret->arithmetic));
}

static int attach_from(const Cistern__AttachWorker *a, struct worker_facts *ret)
{
    if (a->pipeline >= POOL_PIPELINES_MAX || a->n_stages == 0 || a->n_stages > POOL_STAGES_MAX ||
        a->stage >= a->n_stages || a->n_layers == 0 || a->n_layers > LAYERS_MAX ||
        a->first_layer > LAYERS_MAX || a->max_rows == 0 || a->max_rows > ROWS_MAX ||
        a->max_lanes == 0 || a->max_lanes > LANES_MAX || a->n_embd == 0 || a->n_embd > 1 << 20)
        return -EPROTO;
    int r = geometry_from(a->geometry, &ret->geometry);
    if (r == 0) r = text_from(a->endpoint ? a->endpoint : "", ret->endpoint, sizeof(ret->endpoint));
    if (r < 0 || a->first_layer + a->n_layers > ret->geometry.n_layers) return -EPROTO;
    ret->pipeline = a->pipeline;
    ret->stage = a->stage;
    ret->n_stages = a->n_stages;
    ret->first_layer = a->first_layer;
    ret->n_layers = a->n_layers;
    ret->max_rows = a->max_rows;
    ret->max_lanes = a->max_lanes;
    ret->n_embd = a->n_embd;
    ret->n_rows = a->n_rows;
    ret->rows = xcalloc(a->n_rows, sizeof(*ret->rows));
    if (a->n_rows) memcpy(ret->rows, a->rows, a->n_rows * sizeof(*ret->rows));
    ret->n_pending = a->n_pending;
    ret->pending = xcalloc(a->n_pending, sizeof(*ret->pending));
    if (a->n_pending) memcpy(ret->pending, a->pending, a->n_pending * sizeof(*ret->pending));
    return 0;
}

/* ---- against the pool ---- */

/* What differs between two statements of the same pool, in words with both values. */
static bool same_geometry(const struct pool_geometry *a, const struct pool_geometry *b,
                          struct why *why, Cistern__Code *ret_code)
{
    static const struct {
        const char *what;
        size_t off;
    } numbers[] = {
        {"layers",            offsetof(struct pool_geometry, n_layers)      },
        {"K/V heads",         offsetof(struct pool_geometry, n_kv_heads)    },
        {"values of a head",  offsetof(struct pool_geometry, head_dim)      },
        {"cells of a block",  offsetof(struct pool_geometry, block_cells)   },
        {"tokens of context", offsetof(struct pool_geometry, context_tokens)},
    };
    *ret_code = CISTERN__CODE__LAYOUT;
    if (a->kv != b->kv) {
        (void)why_set(why, 0, "pool.kv: the pool has %s, the worker %s", kv_name(a->kv),
                      kv_name(b->kv));
        return false;
    }
    for (size_t i = 0; i < ARRAY_LEN(numbers); i++) {
        uint32_t x, y;
        memcpy(&x, (const char *)a + numbers[i].off, sizeof(x));
        memcpy(&y, (const char *)b + numbers[i].off, sizeof(y));
        if (x == y) continue;
        (void)why_set(why, 0, "%s: the pool has %u, the worker %u", numbers[i].what, x, y);
        return false;
    }
    if (a->block_bytes != b->block_bytes) {
        (void)why_set(why, 0, "bytes of a block: the pool has %llu, the worker %llu",
                      (unsigned long long)a->block_bytes, (unsigned long long)b->block_bytes);
        return false;
    }
    *ret_code = CISTERN__CODE__MODEL;
    bool model = strcmp(a->fingerprint, b->fingerprint) == 0;
    if (model && strcmp(a->arithmetic, b->arithmetic) == 0) return true;
    (void)why_set(why, 0, "%s: the pool has %.100s, the worker %.100s",
                  model ? "arithmetic" : "model", model ? a->arithmetic : a->fingerprint,
                  model ? b->arithmetic : b->fingerprint);
    return false;
}

static uint32_t n_conversations(const struct daemon *d)
{
    struct pool_counts counts;
    pool_count(d->pool, &counts);
    return d->pool->seg->h->n_rows - counts.rows[POOL_FREE];
}

static bool other_workers(const struct daemon *d, const struct process *who)
{
    for (struct process *w = processes_first(d->processes); w; w = w->next)
        if (w != who && w->placed) return true;
    return false;
}

/* The identity layout has ranges for so many lanes of so many pipelines. */
static bool has_ranges(const struct pool_header *h, const struct worker_facts *f, struct why *why)
{
    uint32_t lanes = h->pipeline_lanes;
    if (!h->lane_chunks || f->max_lanes <= lanes) return true;
    (void)why_set(why, 0, "pool.cells = 0: the pool has %u lanes a pipeline, the worker %u", lanes,
                  f->max_lanes);
    return false;
}

/* The pool is another than this worker wants, which `what` says: one that nobody uses and that
 * holds nothing begins anew. */
static int pool_anew(struct daemon *d, const struct process *who, const char *what, struct why *why,
                     Cistern__Code *ret_code)
{
    if (other_workers(d, who))
        return why_set(why, -EINVAL, "%s; other workers use this pool: stop them first", what);
    if (n_conversations(d) > 0)
        return why_set(why, -EINVAL,
                       "%s; %u conversations are cached: empty the pool with "
                       "`poolctl drop --all` and start again",
                       what, n_conversations(d));
    log_info("%s; nothing is cached: the pool begins anew", what);
    poolfiles_drop(d);
    return poolfiles_make(d, who->owner, why, ret_code);
}

/* There is a pool that this worker fits, or there is none and one is made for it. */
static int fit_pool(struct daemon *d, struct process *who, struct why *why, Cistern__Code *ret_code)
{
    const struct worker_facts *f = who->owner;
    *ret_code = CISTERN__CODE__LAYOUT;
    if (d->config->pool.cells == 0 && f->pipeline >= d->config->pool.pipelines)
        return why_set(
            why, -EINVAL,
            "pool.cells = 0: there are ranges for %u pipelines, this is number %u; raise "
            "pool.pipelines",
            d->config->pool.pipelines, f->pipeline);
    if (!d->pool) return poolfiles_make(d, f, why, ret_code);
    const struct pool_header *h = d->pool->seg->h;
    struct why what = {0};
    bool same = same_geometry(&h->geometry, &f->geometry, &what, ret_code);
    if (same && h->n_stages != f->n_stages) {
        (void)why_set(&what, 0, "stages: the pool has %u, the worker %u", h->n_stages, f->n_stages);
        *ret_code = CISTERN__CODE__LAYOUT;
        same = false;
    }
    if (same && !has_ranges(h, f, &what)) {
        *ret_code = CISTERN__CODE__LAYOUT;
        same = false;
    }
    return same ? 0 : pool_anew(d, who, what.text, why, ret_code);
}

/* Whom nothing was answered yet: each waits for memory or for a place. */
static struct process *next_waiting(struct process *w)
{
    for (; w; w = w->next) {
        const struct worker_facts *f = w->role == POOL_ROLE_WORKER ? w->owner : NULL;
        if (f && !f->answered && !w->dying) return w;
    }
    return NULL;
}

static void on_arena(void *arg, int result, const char *text)
{
    struct daemon *d = arg;
    if (result == 0) {
        log_info("%s", text);
        attach_retry(d);
        return;
    }
    log_error("%s", text);
    struct process *w = next_waiting(processes_first(d->processes));
    for (; w; w = next_waiting(w->next)) {
        struct worker_facts *f = w->owner;
        f->answered = true;
        daemon_refuse(d, w->incarnation, f->number, CISTERN__CODE__FAILED, "%s", text);
    }
    daemon_end(d, result);
}

/* Who handed back the CUDA memory of a stage of this pool; NULL: nobody. */
static const struct process *arena_holder(const struct daemon *d, uint32_t stage)
{
    for (const struct process *w = processes_first(d->processes); w; w = w->next)
        if (w->arena.bytes && w->arena.stage == stage &&
            w->arena.pool_id == d->pool->seg->h->pool_id)
            return w;
    return NULL;
}

/* Whether a worker of this stage that lived under poold's predecessor may still come back and hand
 * back its memory. */
static bool holder_may_come(const struct daemon *d, uint32_t stage)
{
    for (const struct process *w = processes_first(d->processes); w; w = w->next)
        if (w->sock < 0 && w->placed && w->stage == stage && w->role == POOL_ROLE_WORKER)
            return true;
    return false;
}

/* Then the arena of its stage, if there is one, has its layers: a pool of another split begins
 * anew. */
static int fit_layers(struct daemon *d, const struct process *who, struct why *why,
                      Cistern__Code *ret_code)
{
    const struct worker_facts *f = who->owner;
    struct why what = {0};
    uint32_t first, n;
    if (!d->arena[f->stage]) return 0;
    arena_layers(d->arena[f->stage], &first, &n);
    if (first == f->first_layer && n == f->n_layers) return 0;
    (void)why_set(&what, 0, "stage %u: the pool has layers %u to %u, the worker %u to %u", f->stage,
                  first, first + n - 1, f->first_layer, f->first_layer + f->n_layers - 1);
    return pool_anew(d, who, what.text, why, ret_code);
}

static int arena_begin(struct daemon *d, const struct worker_facts *f, const struct process *holder,
                       struct why *why, bool *ret_fresh)
{
    struct arena_want want = {
        .dir = d->config->pool.dir,
        .h = d->pool->seg->h,
        .stage = f->stage,
        .first_layer = f->first_layer,
        .n_layers = f->n_layers,
        .n_threads = d->config->pool.threads ? d->config->pool.threads
                                             : (uint32_t)sysconf(_SC_NPROCESSORS_ONLN),
        .lock = d->config->pool.lock,
        .held = holder ? &holder->arena : NULL,
        .held_fd = holder ? holder->arena_fd : -1,
    };
    return arena_new(d->loop, &want, on_arena, d, why, &d->arena[f->stage], ret_fresh);
}

static int fit_arena(struct daemon *d, struct process *who, struct why *why,
                     Cistern__Code *ret_code)
{
    const struct worker_facts *f = who->owner;
    *ret_code = CISTERN__CODE__LAYOUT;
    int r = fit_layers(d, who, why, ret_code);
    if (r < 0 || d->arena[f->stage]) return r;
    bool cuda = d->pool->seg->h->memory == POOL_MEMORY_CUDA, fresh = false;
    const struct process *holder = cuda ? arena_holder(d, f->stage) : NULL;
    if (cuda && !holder && holder_may_come(d, f->stage)) return -EAGAIN;
    struct why other = {0};
    r = arena_begin(d, f, holder, &other, &fresh);
    /* What an earlier poold left, or a worker handed back, is of another split. */
    if (r == -EINVAL) {
        r = pool_anew(d, who, other.text, why, ret_code);
        if (r == 0) r = arena_begin(d, f, NULL, why, &fresh);
    } else if (r < 0) {
        *why = other;
    }
    if (r == 0 && fresh)
        poolfiles_empty_rows(d, cuda
                                    ? "pool.memory = cuda, and no program had their memory any more"
                                    : "an arena was missing or another pool's");
    return r;
}

/* ---- the place ---- */

/* Its predecessor is confirmed dead and it has no memory yet, so poold is the page's one writer:
 * what the predecessor did not drain never will be written. */
static void take_over_page(struct daemon *d, const struct process *who)
{
    struct pool_page *page = d->page[who->pipeline][who->stage].at;
    uint32_t life = d->pool->seg->pipelines[who->pipeline].life;
    DEATH_POINT("page-drained");
    shm_store_u64(&page->drained, pool_window(life, POOL_WINDOW_ALL));
}

static void answer(struct daemon *d, struct process *who)
{
    struct worker_facts *f = who->owner;
    const struct pool_header *h = d->pool->seg->h;
    CLEANUP(freep) uint32_t *rows = xcalloc(h->n_rows, sizeof(*rows));
    Cistern__Attached attached = CISTERN__ATTACHED__INIT;
    attached.pool_id = h->pool_id;
    attached.rows = rows;
    for (uint32_t row = 0; f->stage == 0 && row < h->n_rows; row++) {
        const struct pool_body *b = segment_body(d->pool->seg, row);
        if (b->state == POOL_ACTIVE && b->pipeline == f->pipeline) rows[attached.n_rows++] = row;
    }
    Cistern__Envelope m = CISTERN__ENVELOPE__INIT;
    m.body_case = CISTERN__ENVELOPE__BODY_ATTACHED;
    m.attached = &attached;
    daemon_send(d, who->incarnation, f->number, &m);
    f->answered = true;
}

/* What only the head has it gives up when it reads the answer; what only poold has is closed here.
 */
static void reconcile(struct daemon *d, struct process *who)
{
    const struct worker_facts *f = who->owner;
    if (f->stage != 0) return;
    struct pool_orphans o = {
        .pipeline = f->pipeline,
        .keep_rows = f->rows,
        .n_keep_rows = f->n_rows,
        .incarnation = who->incarnation,
        .pending = f->pending,
        .n_pending = f->n_pending,
    };
    pool_close_orphans(d->pool, &o);
}

static int take_place(struct daemon *d, struct process *who, struct why *why)
{
    const struct worker_facts *f = who->owner;
    bool back = who->placed; /* it had this place before poold's restart */
    who->pipeline = f->pipeline;
    who->stage = f->stage;
    int r = poolfiles_page(d, f->pipeline, f->stage, why);
    if (r < 0) return r;
    if (!back) take_over_page(d, who);
    /* Who is back without ever having lived: poold died before its pipeline's first life. */
    if (!back || d->pool->seg->pipelines[f->pipeline].life == 0)
        d->pipeline[f->pipeline].needs_life = true;
    who->placed = true;
    r = process_record(who, d->pool->seg);
    if (r < 0) return why_set(why, r, "more than %d processes are attached", POOL_PROCESSES_MAX);
    d->pool->manned[f->pipeline][f->stage] = true;
    struct pool_pipeline *p = &d->pool->seg->pipelines[f->pipeline];
    DEATH_POINT("pipeline-layers");
    p->layers[f->stage] = f->n_layers;
    DEATH_POINT("pipeline-stages");
    shm_store_u32(&p->n_stages, f->n_stages);
    DEATH_POINT("pipeline-recorded");
    poolfiles_send_page(d, NULL, f->pipeline, f->stage);
    r = poolfiles_send(d, who);
    return r < 0 ? why_set(why, r, "its files cannot be sent: %s", strerror(-r)) : 0;
}

/* 0: attached. -EAGAIN: it waits. Else why and *ret_code say what to refuse it with. */
static int try(struct daemon *d, struct process *who, struct why *why, Cistern__Code *ret_code)
{
    const struct worker_facts *f = who->owner;
    struct process *before = process_at(d->processes, f->pipeline, f->stage);
    *ret_code = CISTERN__CODE__TAKEN;
    if (before && before != who) {
        if (before->dying || before->sock < 0) return -EAGAIN;
        return why_set(why, -EBUSY,
                       "stage %u of pipeline %u is taken by pid %u; stop it, or choose "
                       "another --stage or --pipeline",
                       f->stage, f->pipeline, before->pid);
    }
    int r = fit_pool(d, who, why, ret_code);
    if (r == 0) r = fit_arena(d, who, why, ret_code);
    if (r < 0) return r;
    if (!arena_ready(d->arena[f->stage])) return -EAGAIN;
    *ret_code = CISTERN__CODE__FAILED;
    return take_place(d, who, why);
}

static void attach(struct daemon *d, struct process *who)
{
    struct worker_facts *f = who->owner;
    struct why why = {0};
    Cistern__Code code = CISTERN__CODE__FAILED;
    int r = try(d, who, &why, &code);
    if (r == -EAGAIN) return;
    if (r < 0) {
        daemon_refuse(d, who->incarnation, f->number, code, "%s", why.text);
        log_warn("%s is refused: %s", process_name(who), why.text);
        f->answered = true;
        /* Nothing that could serve will ever fit: no use in staying. */
        if (code == CISTERN__CODE__NEVER_FITS || (r == -ENOSPC && code == CISTERN__CODE__LAYOUT))
            daemon_end(d, r);
        return;
    }
    log_info("%s attached: layers %u to %u", process_name(who), f->first_layer,
             f->first_layer + f->n_layers - 1);
    reconcile(d, who);
    answer(d, who);
    pipeline_tell(d, who);
    pipeline_update(d, f->pipeline);
    operations_retry(d);
}

void attach_worker(struct daemon *d, struct process *who, const Cistern__Envelope *m)
{
    CLEANUP(freep) struct worker_facts *f = xnew(struct worker_facts);
    if (who->role != POOL_ROLE_WORKER || attach_from(m->attach_worker, f) < 0) {
        daemon_refuse(d, who->incarnation, m->number, CISTERN__CODE__MALFORMED,
                      "the attach has a field out of its range");
        return;
    }
    f->number = m->number;
    worker_facts_free(who->owner);
    who->owner = TAKE(f);
    attach(d, who);
}

void attach_retry(struct daemon *d)
{
    struct process *next, *w = next_waiting(processes_first(d->processes));
    for (; w; w = next_waiting(next)) {
        next = w->next;
        attach(d, w);
    }
}

void attach_other(struct daemon *d, struct process *who, const Cistern__Envelope *m)
{
    if (who->role == POOL_ROLE_WORKER) {
        daemon_refuse(d, who->incarnation, m->number, CISTERN__CODE__MALFORMED,
                      "a worker attaches as one");
        return;
    }
    if (!who->owner) who->owner = xnew(struct worker_facts); /* marks it as attached */
    /* Pages first: who has the control segment has all there is. */
    for (uint32_t p = 0; d->pool && p < POOL_PIPELINES_MAX; p++)
        for (uint32_t s = 0; s < POOL_STAGES_MAX; s++)
            if (d->page[p][s].at) poolfiles_send_page(d, who, p, s);
    if (d->pool) (void)poolfiles_send(d, who);
    Cistern__Attached attached = CISTERN__ATTACHED__INIT;
    attached.pool_id = d->pool ? d->pool->seg->h->pool_id : 0;
    Cistern__Envelope reply = CISTERN__ENVELOPE__INIT;
    reply.body_case = CISTERN__ENVELOPE__BODY_ATTACHED;
    reply.attached = &attached;
    daemon_send(d, who->incarnation, m->number, &reply);
    pipeline_tell(d, who);
}
