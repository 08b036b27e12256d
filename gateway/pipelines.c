/* SPDX-License-Identifier: MIT */
/*
 * See pipelines.h. Owns the tie to poold and one message socket a head. Decides nothing about
 * requests: who gave a head something is told when it is lost.
 */
#include "gateway/pipelines.h"

#include <errno.h>
#include <string.h>

#include "common/log.h"
#include "common/pool_client.h"

enum {
    HELLO_US = 1000000, /* a head that did not answer is asked again after this time */
    /* Beyond pool.attach_ms: by then a poold that came back has killed who did not attach. */
    SETTLE_MORE_US = 1000000,
    /* Prompt and generated tokens go in one message, with room for its other fields. */
    CONTEXT_MAX = MSG_MAX_BYTES / 4 - 1024,
    LANES_MAX = 4096,
};

struct pipelines {
    struct loop *loop;
    struct pool_client *pool;
    uint64_t self;
    const char *fingerprint;
    struct pipelines_events events;
    struct loop_source *hello_timer, *settle_timer;
    uint64_t settle_us;        /* how long a poold that came back may not know everybody */
    uint64_t lost_us, wait_us; /* when poold was lost, and how long its return is waited for */
    bool settling, lost_ready; /* lost_ready: one was ready when poold was lost */
    struct pipeline at[POOL_PIPELINES_MAX];
    bool tied, were_ready;
    uint32_t context_tokens;
    struct pool_view view;
    uint64_t number;
};

/* ---- heads ------------------------------------------------------------------------------- */

static void say_hello(struct pipeline *p)
{
    Cistern__Hello hello = CISTERN__HELLO__INIT;
    Cistern__Envelope m = CISTERN__ENVELOPE__INIT;
    m.number = ++p->of->number;
    m.body_case = CISTERN__ENVELOPE__BODY_HELLO;
    m.hello = &hello;
    (void)msg_client_send(p->client, &m); /* asked again by the timer */
    (void)loop_set_timer(p->of->hello_timer, HELLO_US, 0);
}

static void on_hello_timer(void *arg)
{
    struct pipelines *ps = arg;
    for (size_t i = 0; i < ARRAY_LEN(ps->at); i++)
        if (ps->at[i].client && !ps->at[i].known) say_hello(&ps->at[i]);
}

static void on_head_connected(void *arg) { say_hello(arg); }

static bool model_is_sane(const Cistern__Model *m)
{
    return m->n_lanes > 0 && m->n_lanes <= LANES_MAX && m->context_tokens > 1 &&
           m->context_tokens <= CONTEXT_MAX;
}

static void on_model(struct pipeline *p, const Cistern__Model *m)
{
    struct pipelines *ps = p->of;
    if (p->known) return;
    if (!model_is_sane(m)) {
        log_error("pipeline %u: its head states %u lanes and a context of %u; it is not used",
                  p->id, m->n_lanes, m->context_tokens);
        return;
    }
    if (strcmp(m->fingerprint, ps->fingerprint) != 0) {
        log_error("pipeline %u serves another model than this gateway's model.path; it is not used",
                  p->id);
        return;
    }
    p->known = true;
    p->n_lanes = m->n_lanes;
    p->context_tokens = m->context_tokens;
    ps->context_tokens = m->context_tokens;
    ps->were_ready |= p->alive;
    log_info("pipeline %u: %u lanes, a context of %u tokens", p->id, p->n_lanes, p->context_tokens);
    ps->events.changed(ps->events.arg);
}

static void on_head_message(void *arg, uint64_t from, const Cistern__Envelope *m)
{
    (void)from;
    struct pipeline *p = arg;
    switch (m->body_case) {
    case CISTERN__ENVELOPE__BODY_MODEL:
        on_model(p, m->model);
        break;
    case CISTERN__ENVELOPE__BODY_STARTED:
    case CISTERN__ENVELOPE__BODY_TOKENS:
    case CISTERN__ENVELOPE__BODY_READ:
    case CISTERN__ENVELOPE__BODY_FINISHED:
    case CISTERN__ENVELOPE__BODY_REFUSED:
        p->of->events.message(p->of->events.arg, p, m);
        break;
    default:
        log_warn("pipeline %u: its head sent a message that gateways don't take", p->id);
    }
}

static void drop_head(struct pipeline *p)
{
    if (!p->head) return;
    log_info("pipeline %u: its head is gone", p->id);
    p->head = 0;
    p->known = false;
    p->alive = false;
    msg_client_free(TAKE(p->client));
    p->of->events.lost(p->of->events.arg, p);
}

static void take_head(struct pipeline *p, uint64_t head, const char *endpoint)
{
    struct why why;
    if (msg_client_new(p->of->loop, endpoint, p->of->self, head, on_head_message, on_head_connected,
                       p, &why, &p->client) < 0) {
        log_error("pipeline %u is not used: %s", p->id, why.text);
        return;
    }
    p->head = head;
    (void)loop_set_timer(p->of->hello_timer, HELLO_US, 0);
}

/* ---- poold ------------------------------------------------------------------------------- */

/* What poold says of a pipeline holds from now on. */
static void apply(struct pipeline *p, uint64_t head, const char *endpoint, bool ready)
{
    struct pipelines *ps = p->of;
    p->doubted = false;
    if (p->head != head) {
        drop_head(p);
        if (head && endpoint[0]) take_head(p, head, endpoint);
    }
    bool alive = ready && p->head;
    if (alive != p->alive)
        log_info("pipeline %u: %s", p->id, alive ? "all stages are there" : "a stage is missing");
    p->alive = alive;
    ps->were_ready |= pipeline_is_ready(p);
    ps->events.changed(ps->events.arg);
}

static void on_pipeline(struct pipelines *ps, const Cistern__Pipeline *m)
{
    if (m->pipeline >= POOL_PIPELINES_MAX) {
        log_warn("poold tells of pipeline %u, over the limit of %d", m->pipeline,
                 POOL_PIPELINES_MAX);
        return;
    }
    struct pipeline *p = &ps->at[m->pipeline];
    p->draining = m->draining != 0;
    bool other = m->head && m->head != p->head;
    if (!ps->settling || !p->head || m->ready || other) {
        apply(p, m->head, m->endpoint, m->ready);
        return;
    }
    p->doubted = true;
    p->doubt_head = m->head;
}

/* Workers that are well have attached to the new poold by now. */
static void on_settled(void *arg)
{
    struct pipelines *ps = arg;
    ps->settling = ps->lost_ready = false;
    for (size_t i = 0; i < ARRAY_LEN(ps->at); i++)
        if (ps->at[i].doubted) apply(&ps->at[i], ps->at[i].doubt_head, "", false);
}

static void on_died(struct pipelines *ps, const Cistern__Died *m)
{
    for (size_t i = 0; i < ARRAY_LEN(ps->at); i++) {
        struct pipeline *p = &ps->at[i];
        if (!p->head || p->head != m->incarnation) continue;
        drop_head(p);
        ps->events.changed(ps->events.arg);
    }
}

static void on_pool_message(void *arg, const Cistern__Envelope *m)
{
    struct pipelines *ps = arg;
    switch (m->body_case) {
    case CISTERN__ENVELOPE__BODY_PIPELINE:
        on_pipeline(ps, m->pipeline);
        break;
    case CISTERN__ENVELOPE__BODY_DIED:
        on_died(ps, m->died);
        break;
    case CISTERN__ENVELOPE__BODY_ATTACHED:
        break;
    case CISTERN__ENVELOPE__BODY_REFUSED:
        /* Stale: meant for a poold that is gone; its successor is told when the tie is back. */
        if (m->refused->code != CISTERN__CODE__STALE)
            ps->events.refused(ps->events.arg, m->refused->text);
        break;
    default:
        log_debug("poold sent a message that gateways don't take");
    }
}

static void on_pool_connected(void *arg)
{
    struct pipelines *ps = arg;
    Cistern__AttachOther attach = CISTERN__ATTACH_OTHER__INIT;
    attach.role = POOL_ROLE_GATEWAY;
    Cistern__Envelope m = CISTERN__ENVELOPE__INIT;
    m.number = pool_client_number(ps->pool);
    m.body_case = CISTERN__ENVELOPE__BODY_ATTACH_OTHER;
    m.attach_other = &attach;
    int r = pool_client_send(ps->pool, &m);
    if (r < 0) log_error("cannot attach to poold: %s", strerror(-r));
    ps->tied = r == 0;
    (void)loop_set_timer(ps->settle_timer, ps->settling ? ps->settle_us : 0, 0);
    ps->events.changed(ps->events.arg);
}

/* Heads and streams go on without poold; only the news of deaths is missing meanwhile. */
static void on_pool_lost(void *arg)
{
    struct pipelines *ps = arg;
    ps->tied = false;
    ps->settling = true;
    if (pipelines_ready(ps) > 0) {
        ps->lost_ready = true;
        ps->lost_us = now_us();
    }
    (void)loop_set_timer(ps->settle_timer, 0, 0);
    log_warn("poold is gone; what runs goes on");
    ps->events.changed(ps->events.arg);
}

static void on_pool_refused(void *arg, const char *text)
{
    struct pipelines *ps = arg;
    ps->events.refused(ps->events.arg, text);
}

static void on_pool_files(void *arg, const struct lifeline_files *f, int *fds, uint32_t n_fds)
{
    struct pipelines *ps = arg;
    int r = pool_view_take(&ps->view, f, fds, n_fds);
    if (r < 0) log_error("cannot use the pool's files: %s", strerror(-r));
    for (uint32_t i = 0; i < n_fds; i++)
        (void)close(fds[i]);
}

/* ---- life and questions ------------------------------------------------------------------ */

int pipelines_new(struct loop *l, const struct config *c, const char *fingerprint,
                  const struct pipelines_events *events, struct why *why, struct pipelines **ret)
{
    CLEANUP(pipelines_freep) struct pipelines *ps = xnew(struct pipelines);
    ps->loop = l;
    ps->self = incarnation_new();
    ps->fingerprint = fingerprint;
    ps->events = *events;
    for (uint32_t i = 0; i < ARRAY_LEN(ps->at); i++)
        ps->at[i] = (struct pipeline){.id = i, .of = ps};
    ps->settle_us = (uint64_t)c->pool.attach_ms * 1000 + SETTLE_MORE_US;
    ps->wait_us = (uint64_t)c->gateway.resume_ms * 1000;
    int r = loop_add_timer(l, on_hello_timer, ps, &ps->hello_timer);
    if (r == 0) r = loop_add_timer(l, on_settled, ps, &ps->settle_timer);
    if (r < 0) return why_set(why, r, "cannot make a timer: %s", strerror(-r));
    struct pool_client_events pool_events = {
        .connected = on_pool_connected,
        .lost = on_pool_lost,
        .message = on_pool_message,
        .files = on_pool_files,
        .refused = on_pool_refused,
        .arg = ps,
    };
    r = pool_client_new(l, c->run.dir, ps->self, POOL_ROLE_GATEWAY, &pool_events, why, &ps->pool);
    if (r < 0) return r;
    *ret = TAKE(ps);
    return 0;
}

void pipelines_free(struct pipelines *ps)
{
    if (!ps) return;
    for (size_t i = 0; i < ARRAY_LEN(ps->at); i++)
        msg_client_free(ps->at[i].client);
    pool_client_free(ps->pool);
    loop_remove(ps->hello_timer);
    loop_remove(ps->settle_timer);
    pool_view_fini(&ps->view);
    free(ps);
}

struct pipeline *pipelines_pick(struct pipelines *ps, uint32_t to, uint32_t from)
{
    struct pipeline *best = NULL;
    for (size_t i = 0; i < ARRAY_LEN(ps->at); i++) {
        struct pipeline *p = &ps->at[i];
        if (!pipeline_is_ready(p)) continue;
        if (p->id + 1 == to) return p;
        if (best && p->id + 1 == from) continue;
        if (!best || best->id + 1 == from ||
            (uint64_t)p->load * best->n_lanes < (uint64_t)best->load * p->n_lanes)
            best = p;
    }
    return best;
}

bool pipelines_drained(const struct pipelines *ps)
{
    bool any = false;
    for (size_t i = 0; i < ARRAY_LEN(ps->at); i++)
        any = any || (ps->at[i].alive && ps->at[i].known && ps->at[i].draining);
    return any && pipelines_ready(ps) == 0;
}

const struct pipeline *pipelines_at(const struct pipelines *ps, uint32_t i)
{
    return i < ARRAY_LEN(ps->at) ? &ps->at[i] : NULL;
}

uint32_t pipelines_ready(const struct pipelines *ps)
{
    uint32_t n = 0;
    for (size_t i = 0; i < ARRAY_LEN(ps->at); i++)
        n += pipeline_is_ready(&ps->at[i]);
    return n;
}

bool pipelines_are_coming_back(const struct pipelines *ps)
{
    return ps->settling && ps->lost_ready && now_us() - ps->lost_us < ps->wait_us;
}

uint32_t pipelines_lanes(const struct pipelines *ps)
{
    uint32_t n = 0;
    for (size_t i = 0; i < ARRAY_LEN(ps->at); i++)
        if (pipeline_is_ready(&ps->at[i])) n += ps->at[i].n_lanes;
    return n;
}

uint32_t pipelines_context(const struct pipelines *ps) { return ps->context_tokens; }
bool pipelines_were_ready(const struct pipelines *ps) { return ps->were_ready; }
bool pipelines_tied(const struct pipelines *ps) { return ps->tied; }
const struct pool_view *pipelines_pool(const struct pipelines *ps) { return &ps->view; }

uint32_t pipelines_slot(const struct pipelines *ps, uint32_t pipeline, uint32_t lane)
{
    for (size_t i = 0; i < ARRAY_LEN(ps->at) && i < pipeline; i++)
        lane += ps->at[i].n_lanes;
    return lane;
}

int pipelines_slot_at(const struct pipelines *ps, uint64_t slot, uint32_t *ret_pipeline,
                      uint32_t *ret_lane)
{
    for (uint32_t i = 0; i < ARRAY_LEN(ps->at); slot -= ps->at[i].n_lanes, i++) {
        if (slot >= ps->at[i].n_lanes) continue;
        *ret_pipeline = i;
        *ret_lane = (uint32_t)slot;
        return 0;
    }
    return -ENOENT;
}

void pipelines_each_lanes(const struct pipelines *ps, uint32_t ret[POOL_PIPELINES_MAX])
{
    for (size_t i = 0; i < ARRAY_LEN(ps->at); i++)
        ret[i] = ps->at[i].known ? ps->at[i].n_lanes : 0;
}
