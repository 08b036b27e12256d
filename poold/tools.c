/* SPDX-License-Identifier: MIT */
/*
 * What tools ask poold to change: drop, evict, move, drain, save, restore. Checked here (who may,
 * what exists), done by the pool's functions. An active conversation is its head's: its head is
 * asked, and nothing is taken from it here.
 */
#include <errno.h>
#include <fcntl.h>
#include <string.h>

#include "common/death.h"
#include "common/log.h"
#include "poold/daemon.h"
#include "poold/plan.h"
#include "poold/transfers.h"

static void answer_done(struct daemon *d, struct process *who, uint64_t number, uint32_t n)
{
    Cistern__Done done = CISTERN__DONE__INIT;
    done.n = n;
    Cistern__Envelope reply = CISTERN__ENVELOPE__INIT;
    reply.body_case = CISTERN__ENVELOPE__BODY_DONE;
    reply.done = &done;
    daemon_send(d, who->incarnation, number, &reply);
}

static void answer_error(struct daemon *d, struct process *who, uint64_t number, int r)
{
    static const struct {
        int r;
        Cistern__Code code;
        const char *text;
    } table[] = {
        {-ENOENT,  CISTERN__CODE__UNKNOWN,    "there is no such conversation"                     },
        {-EBUSY,   CISTERN__CODE__BUSY,       "the conversation is in use now"                    },
        {-ENODATA, CISTERN__CODE__NOT_READY,  "nothing of it is computed yet"                     },
        {-ENOSPC,  CISTERN__CODE__POOL_FULL,  "the pool has no room for it now"                   },
        {-E2BIG,   CISTERN__CODE__NEVER_FITS, "it is longer than the context"                     },
        {-EPERM,   CISTERN__CODE__DENIED,     "only root and poold's own user change the pool"    },
        {-EAGAIN,  CISTERN__CODE__NOT_READY,  "there is no pool yet, or one of its stages is gone"},
        {-ESRCH,   CISTERN__CODE__UNKNOWN,    "there is no such pipeline, or no worker there"     },
        {-EXDEV,   CISTERN__CODE__NOT_READY,  "that pipeline is not ready to take it"             },
    };
    for (size_t i = 0; i < ARRAY_LEN(table); i++)
        if (table[i].r == r)
            return daemon_refuse(d, who->incarnation, number, table[i].code, "%s", table[i].text);
    daemon_refuse(d, who->incarnation, number, CISTERN__CODE__FAILED, "%s", strerror(-r));
}

/* ---- drop and evict ---- */

static int drop(struct daemon *d, struct process *who, const Cistern__Envelope *m, uint32_t *ret_n)
{
    (void)who;
    const Cistern__Drop *ask = m->drop;
    if (!ask->all) {
        *ret_n = 1;
        return pool_drop(d->pool, ask->row, ask->generation);
    }
    for (uint32_t row = 0; row < d->pool->seg->h->n_rows; row++)
        *ret_n += pool_drop(d->pool, row, segment_body(d->pool->seg, row)->generation) == 0;
    return 0;
}

/* Asks the head that runs a row; NULL body: there is none. */
static int ask_head(struct daemon *d, uint32_t row, Cistern__Envelope *m)
{
    const struct pool_body *b = segment_body(d->pool->seg, row);
    struct process *head = process_at(d->processes, b->pipeline, 0);
    if (!head) return -EBUSY; /* its death is being confirmed */
    daemon_send(d, head->incarnation, 0, m);
    return 0;
}

static bool row_is(const struct daemon *d, uint32_t row, uint64_t generation)
{
    if (row >= d->pool->seg->h->n_rows) return false;
    const struct pool_body *b = segment_body(d->pool->seg, row);
    return b->state != POOL_FREE && b->generation == generation;
}

static int evict_row(struct daemon *d, const Cistern__Evict *ask)
{
    if (!row_is(d, ask->row, ask->generation)) return -ENOENT;
    if (segment_body(d->pool->seg, ask->row)->state != POOL_ACTIVE)
        return pool_drop(d->pool, ask->row, ask->generation);
    Cistern__GiveBack give = CISTERN__GIVE_BACK__INIT;
    give.row = ask->row;
    give.generation = ask->generation;
    Cistern__Envelope m = CISTERN__ENVELOPE__INIT;
    m.body_case = CISTERN__ENVELOPE__BODY_GIVE_BACK;
    m.give_back = &give;
    return ask_head(d, ask->row, &m);
}

static int evict(struct daemon *d, struct process *who, const Cistern__Envelope *m, uint32_t *ret_n)
{
    (void)who;
    const Cistern__Evict *ask = m->evict;
    *ret_n = 1;
    if (ask->has_row) return evict_row(d, ask);
    const struct pool_header *h = d->pool->seg->h;
    uint32_t before = d->pool->n_free;
    uint64_t chunks = ask->cells / h->chunk_cells + (ask->cells % h->chunk_cells != 0);
    if (chunks > h->n_chunks) return -ENOSPC;
    struct plan_ask room = {(uint32_t)chunks, PLAN_NOBODY, UINT64_MAX, false};
    int r = plan_room(d->pool, &room);
    *ret_n = d->pool->n_free - before;
    return r;
}

/* ---- move and drain ---- */

static int move(struct daemon *d, struct process *who, const Cistern__Envelope *m, uint32_t *ret_n)
{
    (void)who;
    const Cistern__Move *ask = m->move;
    if (!row_is(d, ask->row, ask->generation)) return -ENOENT;
    const struct pool_body *b = segment_body(d->pool->seg, ask->row);
    if (ask->pipeline >= POOL_PIPELINES_MAX || !d->pipeline[ask->pipeline].ready) return -EXDEV;
    if (d->pool->seg->pipelines[ask->pipeline].draining) return -EXDEV;
    if (b->state != POOL_ACTIVE) return -EBUSY; /* nothing to move: it is bound when it goes on */
    *ret_n = b->pipeline != ask->pipeline;
    if (*ret_n == 0) return 0;
    Cistern__Envelope to_head = CISTERN__ENVELOPE__INIT;
    to_head.body_case = CISTERN__ENVELOPE__BODY_MOVE;
    to_head.move = m->move;
    return ask_head(d, ask->row, &to_head);
}

/* A pipeline, or one worker: nothing passes through a pipeline without all of its workers, so both
 * take nothing new; what differs is when that ends. */
static int drain(struct daemon *d, struct process *who, const Cistern__Envelope *m, uint32_t *ret_n)
{
    (void)who;
    const Cistern__Drain *ask = m->drain;
    if (ask->pipeline >= POOL_PIPELINES_MAX) return -ESRCH;
    struct pool_pipeline *p = &d->pool->seg->pipelines[ask->pipeline];
    if (p->n_stages == 0 || (ask->has_stage && ask->stage >= p->n_stages)) return -ESRCH;
    if (ask->has_stage && ask->on && !process_at(d->processes, ask->pipeline, ask->stage))
        return -ESRCH;
    uint32_t on = ask->has_stage ? pool_drain_worker(ask->stage) : POOL_DRAIN_PIPELINE;
    uint32_t off = ask->has_stage ? on : UINT32_MAX;
    uint32_t draining = ask->on ? p->draining | on : p->draining & ~off;
    *ret_n = p->draining != draining;
    DEATH_POINT("pipeline-draining");
    shm_store_u32(&p->draining, draining);
    log_info("pipeline %u: %s", ask->pipeline, draining ? "drained by a tool" : "takes requests");
    pipeline_update(d, ask->pipeline);
    return 0;
}

/* ---- save and restore ---- */

/* All arenas must be there: one that no stage has attached to since poold's start is not. */
static int send_arenas(struct daemon *d, struct process *who, bool writable)
{
    uint32_t n = d->pool->seg->h->n_stages;
    for (uint32_t s = 0; s < n; s++)
        if (!d->arena[s] || !arena_ready(d->arena[s])) return -EAGAIN;
    for (uint32_t s = 0; s < n; s++) {
        struct lifeline_files packet = {
            .kind = LIFELINE_ARENA,
            .pool_id = d->pool->seg->h->pool_id,
            .life = s,
            .arena_bytes = arena_cuda_bytes(d->arena[s]),
        };
        char name[24];
        (void)snprintf(name, sizeof(name), "arena-%u", s);
        CLEANUP(closep)
        int arena = writable || packet.arena_bytes
                        ? fcntl(arena_fd(d->arena[s]), F_DUPFD_CLOEXEC, 0)
                        : poolfiles_read_only(d, name);
        CLEANUP(closep)
        int tokens =
            writable ? fcntl(d->tokens.fd, F_DUPFD_CLOEXEC, 0) : poolfiles_read_only(d, "tokens");
        if (arena < 0 || tokens < 0) return -errno;
        int r = process_send(who, &packet, (int[]){arena, tokens}, 2);
        if (r < 0) return r;
    }
    return 0;
}

static void answer_row(struct daemon *d, struct process *who, uint64_t number, uint32_t row)
{
    const struct pool_body *b = segment_body(d->pool->seg, row);
    Cistern__Row answer = CISTERN__ROW__INIT;
    answer.row = row;
    answer.generation = b->generation;
    answer.state = b->state;
    answer.base_cells = b->base;
    answer.n_entries = b->n_entries;
    answer.copy_cells = b->copy_cells;
    answer.copy_chunk = pool_entry_chunk(b->copy_entry);
    Cistern__Envelope m = CISTERN__ENVELOPE__INIT;
    m.body_case = CISTERN__ENVELOPE__BODY_ROW;
    m.row = &answer;
    daemon_send(d, who->incarnation, number, &m);
}

static int restore(struct daemon *d, const struct process *who, const Cistern__Restore *m,
                   uint32_t *ret_row)
{
    struct transfer_restore ask = {
        .cells = m->cells,
        .pipeline = m->has_lane ? m->pipeline : 0,
        .lane = m->has_lane ? m->lane : POOL_NO_LANE,
        .salt = m->salt,
        .holder = who->incarnation,
    };
    if (ask.pipeline >= POOL_PIPELINES_MAX) return -EXDEV;
    return transfer_restore(d->pool, &ask, ret_row);
}

/* The tool is armed before it gets memory, and has memory only of a row that is its own. */
static int transfer(struct daemon *d, struct process *who, const Cistern__Envelope *m)
{
    uint32_t row = 0;
    bool save = m->body_case == CISTERN__ENVELOPE__BODY_SAVE;
    if (who->record >= 0) return -EBUSY; /* one at a time */
    int r = process_arm(who, d->pool->seg);
    if (r < 0) return r;
    if (save)
        r = transfer_save(d->pool, m->save->row, m->save->generation, who->incarnation, &row);
    else if (operations_blocked(d))
        r = -ENOSPC; /* an older conversation waits for room */
    else
        r = restore(d, who, m->restore, &row);
    if (r < 0) return process_disarm(who), r;
    r = send_arenas(d, who, !save);
    if (r == 0) return answer_row(d, who, m->number, row), 0;
    uint64_t generation = segment_body(d->pool->seg, row)->generation;
    (void)transfer_end(d->pool, row, generation, who->incarnation, false);
    if (r == -EAGAIN) process_disarm(who); /* it got no memory */
    return r;
}

static int end_transfer(struct daemon *d, struct process *who, const Cistern__Envelope *m,
                        uint32_t *ret_n)
{
    const Cistern__TransferEnd *end = m->transfer_end;
    int r = transfer_end(d->pool, end->row, end->generation, who->incarnation, end->complete);
    if (r == 0) process_disarm(who);
    *ret_n = 1;
    return r;
}

void tools_forget(struct daemon *d, uint64_t incarnation)
{
    if (d->pool) transfers_forget(d->pool, incarnation);
}

/* ---- the door ---- */

static const struct {
    Cistern__Envelope__BodyCase body;
    int (*change)(struct daemon *d, struct process *who, const Cistern__Envelope *m,
                  uint32_t *ret_n);
} changes[] = {
    {CISTERN__ENVELOPE__BODY_DROP,         drop        },
    {CISTERN__ENVELOPE__BODY_EVICT,        evict       },
    {CISTERN__ENVELOPE__BODY_MOVE,         move        },
    {CISTERN__ENVELOPE__BODY_DRAIN,        drain       },
    {CISTERN__ENVELOPE__BODY_TRANSFER_END, end_transfer},
};

void tools_change(struct daemon *d, struct process *who, const Cistern__Envelope *m)
{
    int r = 0;
    uint32_t n = 0;
    if (who->role != POOL_ROLE_TOOL || (who->uid != geteuid() && who->uid != 0))
        return answer_error(d, who, m->number, -EPERM);
    bool save = m->body_case == CISTERN__ENVELOPE__BODY_SAVE;
    if (!d->pool) {
        /* Dropping everything that there is not is done. */
        bool all = m->body_case == CISTERN__ENVELOPE__BODY_DROP && m->drop->all;
        return all ? answer_done(d, who, m->number, 0) : answer_error(d, who, m->number, -EAGAIN);
    }
    if (save || m->body_case == CISTERN__ENVELOPE__BODY_RESTORE) {
        r = transfer(d, who, m);
        if (r < 0) answer_error(d, who, m->number, r);
        return;
    }
    for (size_t i = 0; i < ARRAY_LEN(changes); i++)
        if (changes[i].body == m->body_case) r = changes[i].change(d, who, m, &n);
    if (r < 0)
        answer_error(d, who, m->number, r);
    else
        answer_done(d, who, m->number, n);
    operations_retry(d); /* room may have come */
}
