/* SPDX-License-Identifier: MIT */
/*
 * What poold knows, as JSON for poolctl. Reads, changes nothing.
 */
#include <jansson.h>
#include <string.h>

#include "poold/daemon.h"

static const char *const states[] = {"free", "active", "waiting", "closing", "idle"};

static json_t *cells_of(const struct daemon *d)
{
    const struct pool_header *h = d->pool->seg->h;
    struct pool_counts n;
    pool_count(d->pool, &n);
    json_int_t c = h->chunk_cells;
    return json_pack("{sI sI sI sI sI sI sI}", "total", c * h->n_chunks, "free", c * n.free,
                     "active", c * n.active, "waiting", c * n.waiting, "closing", c * n.closing,
                     "cached", c * n.idle, "shared", c * n.shared);
}

static json_t *pool_of(const struct daemon *d)
{
    const struct pool_header *h = d->pool->seg->h;
    char id[24];
    (void)snprintf(id, sizeof(id), "%016llx", (unsigned long long)h->pool_id);
    return json_pack("{ss ss sI sI sI sI ss ss so}", "id", id, "memory",
                     h->memory == POOL_MEMORY_CUDA ? "cuda" : "shm", "chunk_cells",
                     (json_int_t)h->chunk_cells, "lane_cells",
                     (json_int_t)h->lane_chunks * h->chunk_cells, "conversations_max",
                     (json_int_t)h->n_rows, "context_tokens",
                     (json_int_t)h->geometry.context_tokens, "fingerprint", h->geometry.fingerprint,
                     "arithmetic", h->geometry.arithmetic, "cells", cells_of(d));
}

static json_t *conversations_of(const struct daemon *d)
{
    json_t *list = json_array();
    uint64_t now = pool_clock_us();
    for (uint32_t row = 0; row < d->pool->seg->h->n_rows; row++) {
        const struct pool_body *b = segment_body(d->pool->seg, row);
        if (b->state == POOL_FREE) continue;
        json_array_append_new(
            list, json_pack("{sI sI ss sI sI sI sI sI}", "row", (json_int_t)row, "generation",
                            (json_int_t)b->generation, "state", states[b->state], "tokens",
                            (json_int_t)pool_valid_cells(d->pool, row), "chunks",
                            (json_int_t)b->n_entries, "pipeline", (json_int_t)b->pipeline, "lane",
                            (json_int_t)(int32_t)b->lane, "idle_ms",
                            (json_int_t)((now - d->pool->seg->rows[row].last_use) / 1000)));
    }
    return list;
}

static json_t *pipelines_of(const struct daemon *d)
{
    json_t *list = json_array();
    for (uint32_t i = 0; i < POOL_PIPELINES_MAX; i++) {
        const struct pool_pipeline *p = &d->pool->seg->pipelines[i];
        if (p->n_stages == 0) continue;
        json_t *layers = json_array();
        for (uint32_t s = 0; s < p->n_stages; s++)
            json_array_append_new(layers, json_integer(p->layers[s]));
        json_array_append_new(list, json_pack("{sI sI sb sb so}", "pipeline", (json_int_t)i, "life",
                                              (json_int_t)p->life, "ready", d->pipeline[i].ready,
                                              "draining", p->draining != 0, "layers", layers));
    }
    return list;
}

/* By itself; that its pipeline is, is said there. */
static bool is_drained(const struct daemon *d, const struct process *w)
{
    return d->pool && d->pool->seg->pipelines[w->pipeline].draining & pool_drain_worker(w->stage);
}

static json_t *processes_of(const struct daemon *d)
{
    static const char *const roles[] = {"none", "worker", "gateway", "tool"};
    static const char *const phases[] = {"silent", "starting", "serving"};
    json_t *list = json_array();
    for (const struct process *w = processes_first(d->processes); w; w = w->next) {
        json_t *o = json_pack("{ss sI sb}", "role", roles[w->role], "pid", (json_int_t)w->pid,
                              "dying", w->dying);
        if (w->role == POOL_ROLE_WORKER && w->beat.phase == PROCESS_STARTING)
            json_object_set_new(o, "loaded_percent", json_integer(w->beat.percent));
        if (w->placed) {
            json_object_set_new(o, "pipeline", json_integer(w->pipeline));
            json_object_set_new(o, "stage", json_integer(w->stage));
            json_object_set_new(o, "phase", json_string(phases[min_u32(w->beat.phase, 2)]));
            json_object_set_new(o, "draining", json_boolean(is_drained(d, w)));
            const struct worker_facts *f = w->owner;
            if (f && f->activations[0])
                json_object_set_new(o, "activations", json_string(f->activations));
        }
        json_array_append_new(list, o);
    }
    return list;
}

char *status_json(const struct daemon *d)
{
    json_t *all = json_pack("{ss sI so}", "version", CISTERN_VERSION, "pid", (json_int_t)getpid(),
                            "processes", processes_of(d));
    if (d->pool) {
        json_object_set_new(all, "pool", pool_of(d));
        json_object_set_new(all, "pipelines", pipelines_of(d));
        json_object_set_new(all, "conversations", conversations_of(d));
    }
    char *text = json_dumps(all, JSON_COMPACT);
    json_decref(all);
    return text;
}
