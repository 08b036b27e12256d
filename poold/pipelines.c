/* SPDX-License-Identifier: MIT */
/*
 * Pipelines and their lives. A life begins when every stage has a worker and one of them is another
 * process than before: poold makes a link, raises the count and hands both to all stages. What a
 * death means for a pipeline, and who is stuck, is decided here.
 */
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/mman.h>

#include "common/death.h"
#include "common/log.h"
#include "common/system.h"
#include "poold/daemon.h"

enum {
    WAITS_US = 60000000, /* that a waiting row is kept at least: its request may have given way */
    LATE_US = 500000,    /* between two looks at the deadlines, twice as long as meant */
    STRAY_BEATS = 4,     /* beats in another life before a new one is made: about a second */
};

static struct pool_pipeline *record(const struct daemon *d, uint32_t pipeline)
{
    return &d->pool->seg->pipelines[pipeline];
}

/* The stage's worker, if it is attached and well. */
static struct process *stage_of(const struct daemon *d, uint32_t pipeline, uint32_t stage)
{
    struct process *w = process_at(d->processes, pipeline, stage);
    if (!w || w->sock < 0 || w->dying || !w->owner) return NULL;
    return ((struct worker_facts *)w->owner)->answered ? w : NULL;
}

static uint32_t attached_mask(const struct daemon *d, uint32_t pipeline)
{
    uint32_t mask = 0;
    for (uint32_t s = 0; s < record(d, pipeline)->n_stages; s++)
        if (stage_of(d, pipeline, s)) mask |= 1u << s;
    return mask;
}

static bool all_attached(const struct daemon *d, uint32_t pipeline)
{
    uint32_t n = record(d, pipeline)->n_stages;
    return n > 0 && attached_mask(d, pipeline) == (1u << n) - 1;
}

/* ---- a new life ---- */

static struct link_header link_layout(const struct daemon *d, uint32_t pipeline, uint32_t life)
{
    uint32_t n = record(d, pipeline)->n_stages;
    struct link_header h = {
        .version = LINK_SHM_VERSION,
        .pipeline = pipeline,
        .life = life,
        .n_stages = n,
        .n_slots = n * LINK_SLOTS_PER_STAGE,
        .max_rows = UINT32_MAX,
        .max_lanes = UINT32_MAX,
        .pool_id = d->pool->seg->h->pool_id,
    };
    for (uint32_t s = 0; s < n; s++) {
        const struct worker_facts *f = stage_of(d, pipeline, s)->owner;
        h.max_rows = min_u32(h.max_rows, f->max_rows);
        h.max_lanes = min_u32(h.max_lanes, f->max_lanes);
        h.n_embd = f->n_embd; /* the same in all: it is in the fingerprint */
    }
    h.bells_off = round_up_u64(sizeof(h), 64);
    h.inboxes_off = round_up_u64(h.bells_off + (n + 1) * sizeof(struct link_bell), 64);
    h.slots_off = round_up_u64(h.inboxes_off + n * sizeof(struct link_inbox), PAGE_BYTES);
    h.lanes_off = sizeof(struct link_window);
    h.tokens_off = h.lanes_off + h.max_lanes * sizeof(struct link_lane);
    h.biases_off = round_up_u64(h.tokens_off + h.max_rows * sizeof(uint32_t), 64);
    uint64_t biases = (uint64_t)h.max_lanes * LINK_BIASES_MAX * sizeof(struct link_bias);
    h.results_off = round_up_u64(h.biases_off + biases, 64);
    h.probs_off = round_up_u64(h.results_off + h.max_lanes * sizeof(uint32_t), 64);
    h.ways_off = round_up_u64(h.probs_off + h.max_rows * sizeof(struct link_probs), 64);
    h.activations_off = round_up_u64(h.ways_off + n * sizeof(uint32_t), PAGE_BYTES);
    h.activations_bytes = round_up_u64((uint64_t)h.max_rows * h.n_embd * sizeof(float), PAGE_BYTES);
    h.slot_bytes = h.activations_off + (n - 1) * h.activations_bytes;
    h.bytes = h.slots_off + h.n_slots * h.slot_bytes;
    return h;
}

/* The header is written through the descriptor, then sizes are sealed: nobody can pull the memory
 * from under another. */
static int link_make(const struct link_header *layout, int *ret_fd)
{
    CLEANUP(closep) int fd = memfd_create("cistern-link", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (fd < 0) return -errno;
    struct link_header h = *layout;
    h.magic = LINK_MAGIC;
    int r = -posix_fallocate(fd, 0, (off_t)h.bytes);
    if (r < 0) return r;
    if (pwrite(fd, &h, sizeof(h), 0) != sizeof(h)) return -EIO;
    if (fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) < 0) return -errno;
    *ret_fd = TAKE_FD(fd);
    return 0;
}

static int send_link(struct daemon *d, uint32_t pipeline, uint32_t life, const int fds[2])
{
    for (uint32_t s = 0; s < record(d, pipeline)->n_stages; s++) {
        struct process *w = stage_of(d, pipeline, s);
        struct lifeline_files packet = {
            .kind = LIFELINE_LINK,
            .pool_id = d->pool->seg->h->pool_id,
            .pipeline = pipeline,
            .life = life,
        };
        int r = process_send(w, &packet, fds, 2);
        if (r < 0) return r;
        ((struct worker_facts *)w->owner)->sent_life = life;
    }
    return 0;
}

/* Death after the store of life and before all have the link: the workers then beat in a life that
 * is not the record's, which pipeline_heartbeat takes as a reason for another one. */
static void new_life(struct daemon *d, uint32_t pipeline)
{
    uint32_t life = record(d, pipeline)->life + 1;
    struct link_header layout = link_layout(d, pipeline, life);
    CLEANUP(closep) int link = -1;
    CLEANUP(closep) int event = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    int r = event < 0 ? -errno : link_make(&layout, &link);
    DEATH_POINT("pipeline-life");
    shm_store_u32(&record(d, pipeline)->life, life);
    DEATH_POINT("pipeline-alive");
    if (r == 0) r = send_link(d, pipeline, life, (int[]){link, event});
    if (r < 0) {
        log_error("pipeline %u: no link of %llu bytes: %s", pipeline,
                  (unsigned long long)layout.bytes, strerror(-r));
        return; /* needs_life stays: the next change tries again */
    }
    d->pipeline[pipeline].needs_life = false;
    log_info("pipeline %u: life %u, %u stages", pipeline, life, layout.n_stages);
}

/* ---- what everybody hears ---- */

static void fill(const struct daemon *d, uint32_t pipeline, Cistern__Pipeline *ret)
{
    struct process *head = stage_of(d, pipeline, 0);
    *ret = (Cistern__Pipeline)CISTERN__PIPELINE__INIT;
    ret->pipeline = pipeline;
    ret->n_stages = record(d, pipeline)->n_stages;
    ret->life = record(d, pipeline)->life;
    ret->ready = d->pipeline[pipeline].ready;
    ret->head = head ? head->incarnation : 0;
    ret->endpoint = head ? ((struct worker_facts *)head->owner)->endpoint : "";
    ret->attached = attached_mask(d, pipeline);
    if (!record(d, pipeline)->draining) return;
    ret->draining = 1;
    for (uint32_t i = 0; i < POOL_PIPELINES_MAX; i++)
        if (i != pipeline && d->pipeline[i].ready && !record(d, i)->draining) ret->draining = 2;
}

static uint64_t digest(const Cistern__Pipeline *p)
{
    uint64_t v = p->head ^ (uint64_t)p->life << 20 ^ (uint64_t)p->attached << 2 ^ p->ready ^
                 (uint64_t)p->draining << 60;
    return v + 1;
}

static bool is_ready(const struct daemon *d, uint32_t pipeline)
{
    if (!all_attached(d, pipeline) || d->pipeline[pipeline].needs_life) return false;
    for (uint32_t s = 0; s < record(d, pipeline)->n_stages; s++) {
        const struct process *w = stage_of(d, pipeline, s);
        if (w->beat.phase != PROCESS_SERVING || w->beat.life != record(d, pipeline)->life)
            return false;
    }
    return true;
}

static void announce(struct daemon *d, uint32_t pipeline)
{
    Cistern__Pipeline p;
    fill(d, pipeline, &p);
    if (digest(&p) == d->pipeline[pipeline].told) return;
    d->pipeline[pipeline].told = digest(&p);
    Cistern__Envelope m = CISTERN__ENVELOPE__INIT;
    m.body_case = CISTERN__ENVELOPE__BODY_PIPELINE;
    m.pipeline = &p;
    daemon_broadcast(d, &m);
}

static void count_recovery(struct daemon *d, uint32_t pipeline)
{
    struct pool_counters *c = &d->pool->seg->h->counters;
    struct pipeline_state *p = &d->pipeline[pipeline];
    if (!p->ready || p->lost_us == 0) return;
    segment_count(&c->recoveries, 1);
    segment_count(&c->recovery_us, now_us() - p->lost_us);
    p->lost_us = 0;
}

void pipeline_update(struct daemon *d, uint32_t pipeline)
{
    if (!d->pool || record(d, pipeline)->n_stages == 0) return;
    if (d->pipeline[pipeline].needs_life && all_attached(d, pipeline)) new_life(d, pipeline);
    d->pipeline[pipeline].ready = is_ready(d, pipeline);
    count_recovery(d, pipeline);
    announce(d, pipeline);
    for (uint32_t i = 0; i < POOL_PIPELINES_MAX; i++) /* they have a place to go to, or none */
        if (i != pipeline && record(d, i)->n_stages && record(d, i)->draining) announce(d, i);
}

void pipeline_tell(struct daemon *d, struct process *who)
{
    for (uint32_t i = 0; d->pool && i < POOL_PIPELINES_MAX; i++) {
        if (record(d, i)->n_stages == 0) continue;
        Cistern__Pipeline p;
        fill(d, i, &p);
        Cistern__Envelope m = CISTERN__ENVELOPE__INIT;
        m.body_case = CISTERN__ENVELOPE__BODY_PIPELINE;
        m.pipeline = &p;
        daemon_send(d, who->incarnation, 0, &m);
    }
}

/* What is too long or unprintable isn't shown. */
static void take_activations(struct worker_facts *f, const char *text)
{
    bool fine = strlen(text) < sizeof(f->activations);
    for (const char *at = text; fine && *at; at++)
        fine = *at >= ' ' && *at <= '~';
    (void)snprintf(f->activations, sizeof(f->activations), "%s", fine ? text : "");
}

void pipeline_heartbeat(struct daemon *d, struct process *who, const Cistern__Envelope *m)
{
    struct worker_facts *f = who->owner;
    const struct process_beat beat = {
        .phase = m->heartbeat->phase,
        .life = m->heartbeat->life,
        .percent = min_u32(m->heartbeat->percent, 100),
        .last_window = m->heartbeat->last_window,
        .due_window = m->heartbeat->due_window,
        .steps = m->heartbeat->steps,
    };
    process_take_beat(who, &beat, now_us());
    if (f) take_activations(f, m->heartbeat->activations);
    if (!f || !f->answered || !who->placed || !d->pool) return;
    /* Back after poold's restart in the middle of handing out a life that it never got. One beat
     * proves nothing: it may have been on its way since before the attach. */
    uint32_t life = record(d, f->pipeline)->life;
    bool stray =
        who->beat.phase == PROCESS_SERVING && who->beat.life != life && f->sent_life != life;
    f->strays = stray ? f->strays + 1 : 0;
    if (f->strays >= STRAY_BEATS) d->pipeline[f->pipeline].needs_life = true;
    pipeline_update(d, f->pipeline);
}

void pipeline_reset(struct daemon *d, struct process *who, const Cistern__Envelope *m)
{
    struct worker_facts *f = who->owner;
    if (!f || who->role != POOL_ROLE_WORKER || f->stage != 0 || m->reset->pipeline != f->pipeline) {
        daemon_refuse(d, who->incarnation, m->number, CISTERN__CODE__DENIED,
                      "only a pipeline's head resets it");
        return;
    }
    d->pipeline[f->pipeline].needs_life = true;
    Cistern__Done done = CISTERN__DONE__INIT;
    Cistern__Envelope reply = CISTERN__ENVELOPE__INIT;
    reply.body_case = CISTERN__ENVELOPE__BODY_DONE;
    reply.done = &done;
    daemon_send(d, who->incarnation, m->number, &reply);
    pipeline_update(d, f->pipeline);
}

/* ---- deaths ---- */

static void tell_died(struct daemon *d, const struct process *who, bool was_placed)
{
    Cistern__Died died = CISTERN__DIED__INIT;
    died.incarnation = who->incarnation;
    died.role = who->role;
    died.pipeline = was_placed ? who->pipeline : UINT32_MAX;
    died.stage = was_placed ? who->stage : UINT32_MAX;
    Cistern__Envelope m = CISTERN__ENVELOPE__INIT;
    m.body_case = CISTERN__ENVELOPE__BODY_DIED;
    m.died = &died;
    daemon_broadcast(d, &m);
}

/* A drained worker's successor takes requests: it was to be replaced, and it is. */
static void end_drain(struct daemon *d, const struct process *who)
{
    struct pool_pipeline *p = record(d, who->pipeline);
    if (!(p->draining & pool_drain_worker(who->stage))) return;
    DEATH_POINT("pipeline-drain-over");
    shm_store_u32(&p->draining, p->draining & ~pool_drain_worker(who->stage));
}

/* The rows of a dead head are closed here; those of a head that lost a stage it closes itself. They
 * are folded when the stages that live have published {life, all}. */
void pipeline_death(struct daemon *d, struct process *who)
{
    if (who->role == POOL_ROLE_WORKER && who->placed && d->pool) {
        d->pool->manned[who->pipeline][who->stage] = false;
        end_drain(d, who);
        d->pipeline[who->pipeline].needs_life = true;
        if (!d->pipeline[who->pipeline].lost_us) d->pipeline[who->pipeline].lost_us = now_us();
        if (who->stage == 0) {
            struct pool_orphans o = {
                .pipeline = who->pipeline,
                .last_window = pool_window(record(d, who->pipeline)->life, POOL_WINDOW_ALL),
                .resume = true,
            };
            pool_close_orphans(d->pool, &o);
        }
        who->placed = false;
        tell_died(d, who, true);
        pipeline_update(d, who->pipeline);
    } else {
        if (who->role == POOL_ROLE_GATEWAY && d->pool)
            pool_give_up_waiting(d->pool, who->incarnation, 0);
        tell_died(d, who, false);
    }
}

/* A gateway that has not come back since poold's restart will not ask for what waits for it. */
static void give_up_absent(struct daemon *d)
{
    for (uint32_t row = 0; d->adopted_judged && row < d->pool->seg->h->n_rows; row++) {
        const struct pool_body *b = segment_body(d->pool->seg, row);
        if (b->state == POOL_WAITING && !process_find(d->processes, b->gateway))
            pool_give_up_waiting(d->pool, b->gateway, 0);
    }
}

/* A gateway submits again for gateway.resume_ms: what waits for it so long is no younger one's. */
static void give_up_late(struct daemon *d)
{
    uint64_t clock = pool_clock_us();
    uint64_t kept = max_u64(WAITS_US, d->config->gateway.resume_ms * UINT64_C(1000));
    if (clock > kept) pool_give_up_waiting(d->pool, 0, clock - kept);
}

/* A poold that was itself late first reads what has come, and all deadlines start anew: its silence
 * is not theirs. */
void pipeline_judge(struct daemon *d)
{
    uint64_t now = now_us();
    bool late = now - d->tick_us > LATE_US;
    d->tick_us = now;
    if (late) d->awaits_us = now;
    struct process *next;
    for (struct process *w = processes_first(d->processes); w; w = next) {
        next = w->next;
        if (late) process_excuse(w, now);
        if (w->role != POOL_ROLE_WORKER || w->sock < 0 || w->dying) continue;
        const char *reason = process_stuck(w, now, d->config->worker.stuck_ms * UINT64_C(1000),
                                           d->config->worker.start_ms * UINT64_C(1000));
        if (reason) process_kill(w, reason);
    }
    if (!d->pool) return;
    give_up_absent(d);
    give_up_late(d);
}
