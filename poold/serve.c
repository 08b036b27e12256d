/* SPDX-License-Identifier: MIT */
/*
 * The daemon: constructors in order, READY, the loop, STOPPING. Messages are handed to their parts
 * by one table; nothing here knows what they do.
 */
#include <errno.h>
#include <signal.h>
#include <stdarg.h>
#include <string.h>
#include <systemd/sd-daemon.h>

#include "common/cuda_host.h"
#include "common/log.h"
#include "poold/daemon.h"

enum {
    TICK_US = 250000,
    LAST_WORDS_US = 100000, /* for messages to leave before a failed daemon ends */
};

void daemon_send(struct daemon *d, uint64_t to, uint64_t number, Cistern__Envelope *m)
{
    m->number = number;
    int r = msg_server_send(d->server, to, m);
    if (r < 0 && r != -EHOSTUNREACH)
        log_warn("a message could not be sent: %s", strerror(-r)); /* its lifeline tells the rest */
}

void daemon_refuse(struct daemon *d, uint64_t to, uint64_t number, Cistern__Code code,
                   const char *format, ...)
{
    char text[512];
    va_list ap;
    va_start(ap, format);
    (void)vsnprintf(text, sizeof(text), format, ap);
    va_end(ap);
    if (d->pool && (unsigned)code < POOL_CODES)
        segment_count(&d->pool->seg->h->counters.refusals[code], 1);
    msg_server_refuse(d->server, to, number, code, text);
}

void daemon_broadcast(struct daemon *d, Cistern__Envelope *m)
{
    for (struct process *w = processes_first(d->processes); w; w = w->next)
        if (w->sock >= 0 && w->owner) daemon_send(d, w->incarnation, 0, m);
}

static void on_end(void *arg)
{
    struct daemon *d = arg;
    loop_stop(d->loop, d->end_result);
}

void daemon_end(struct daemon *d, int result)
{
    if (d->end_timer) return;
    d->end_result = result;
    int r = loop_add_timer(d->loop, on_end, d, &d->end_timer);
    if (r == 0) r = loop_set_timer(d->end_timer, LAST_WORDS_US, 0);
    if (r < 0) loop_stop(d->loop, result);
}

/* ---- messages ---- */

static void on_status(struct daemon *d, struct process *who, const Cistern__Envelope *m)
{
    CLEANUP(freep) char *text = status_json(d);
    Cistern__Status status = CISTERN__STATUS__INIT;
    status.text = text;
    Cistern__Envelope reply = CISTERN__ENVELOPE__INIT;
    reply.body_case = CISTERN__ENVELOPE__BODY_STATUS;
    reply.status = &status;
    daemon_send(d, who->incarnation, m->number, &reply);
}

static const struct {
    Cistern__Envelope__BodyCase body;
    void (*take)(struct daemon *d, struct process *who, const Cistern__Envelope *m);
} handlers[] = {
    {CISTERN__ENVELOPE__BODY_ATTACH_WORKER, attach_worker     },
    {CISTERN__ENVELOPE__BODY_ATTACH_OTHER,  attach_other      },
    {CISTERN__ENVELOPE__BODY_HEARTBEAT,     pipeline_heartbeat},
    {CISTERN__ENVELOPE__BODY_OPEN,          operation         },
    {CISTERN__ENVELOPE__BODY_GROW,          operation         },
    {CISTERN__ENVELOPE__BODY_TRUNCATE,      operation         },
    {CISTERN__ENVELOPE__BODY_CLOSE,         operation         },
    {CISTERN__ENVELOPE__BODY_ABANDON,       operation_abandon },
    {CISTERN__ENVELOPE__BODY_DROP,          tools_change      },
    {CISTERN__ENVELOPE__BODY_EVICT,         tools_change      },
    {CISTERN__ENVELOPE__BODY_MOVE,          tools_change      },
    {CISTERN__ENVELOPE__BODY_DRAIN,         tools_change      },
    {CISTERN__ENVELOPE__BODY_SAVE,          tools_change      },
    {CISTERN__ENVELOPE__BODY_RESTORE,       tools_change      },
    {CISTERN__ENVELOPE__BODY_TRANSFER_END,  tools_change      },
    {CISTERN__ENVELOPE__BODY_RESET,         pipeline_reset    },
    {CISTERN__ENVELOPE__BODY_STATUS_ASK,    on_status         },
};

static void on_message(void *arg, uint64_t from, const Cistern__Envelope *m)
{
    struct daemon *d = arg;
    struct process *who = process_find(d->processes, from);
    if (!who || who->dying || who->sock < 0) {
        daemon_refuse(d, from, m->number, CISTERN__CODE__STALE, "connect the lifeline first");
        return;
    }
    for (size_t i = 0; i < ARRAY_LEN(handlers); i++) {
        if (handlers[i].body != m->body_case) continue;
        handlers[i].take(d, who, m);
        return;
    }
    daemon_refuse(d, from, m->number, CISTERN__CODE__MALFORMED, "poold takes no such message");
}

static void on_dead(void *arg, struct process *who)
{
    struct daemon *d = arg;
    if (who->role == POOL_ROLE_WORKER) log_info("%s is dead", process_name(who));
    operations_forget(d, who->incarnation);
    tools_forget(d, who->incarnation);
    pipeline_death(d, who);
    worker_facts_free(TAKE(*(struct worker_facts **)&who->owner));
    operations_retry(d);
}

/* ---- time ---- */

static void describe(const struct daemon *d, char *ret, size_t room)
{
    for (uint32_t s = 0; s < POOL_STAGES_MAX; s++) {
        if (!d->arena[s] || arena_ready(d->arena[s])) continue;
        (void)snprintf(ret, room, "STATUS=Filling the arena of stage %u: %u %% of %llu bytes", s,
                       arena_percent(d->arena[s]), (unsigned long long)arena_bytes(d->arena[s]));
        return;
    }
    (void)snprintf(ret, room, "STATUS=%s", d->pool ? "Serving" : "Waiting for the first worker");
}

/* Only what has changed: a supervisor that does not read must not stop the loop. */
static void tell_progress(struct daemon *d)
{
    char status[sizeof(d->status)];
    describe(d, status, sizeof(status));
    if (strcmp(status, d->status) == 0) return;
    memcpy(d->status, status, sizeof(status));
    (void)sd_notify(0, status);
}

static void on_tick(void *arg)
{
    struct daemon *d = arg;
    pipeline_judge(d);
    uint64_t waited = now_us() - d->awaits_us;
    if (!d->adopted_judged && waited > d->config->pool.attach_ms * UINT64_C(1000)) {
        d->adopted_judged = true;
        processes_end_absent(d->processes);
    }
    /* A death frees a place only after it was confirmed: those that wait for it try again. */
    attach_retry(d);
    tell_progress(d);
}

static void on_watchdog(void *arg)
{
    (void)arg;
    (void)sd_notify(0, "WATCHDOG=1");
}

static void on_signal(void *arg, int signal)
{
    struct daemon *d = arg;
    log_info("%s: ending", signal == SIGTERM ? "SIGTERM" : "SIGINT");
    loop_stop(d->loop, 0);
}

/* ---- life ---- */

static int timers(struct daemon *d, struct why *why)
{
    static const int stop[] = {SIGTERM, SIGINT};
    int r = loop_add_signals(d->loop, stop, ARRAY_LEN(stop), on_signal, d, &d->signals);
    if (r == 0) r = loop_add_timer(d->loop, on_tick, d, &d->tick_timer);
    if (r == 0) r = loop_set_timer(d->tick_timer, TICK_US, TICK_US);
    uint64_t watchdog_us = 0;
    if (r == 0 && sd_watchdog_enabled(0, &watchdog_us) > 0) {
        r = loop_add_timer(d->loop, on_watchdog, d, &d->watchdog_timer);
        if (r == 0) r = loop_set_timer(d->watchdog_timer, watchdog_us / 2, watchdog_us / 2);
    }
    return r < 0 ? why_set(why, r, "cannot make timers: %s", strerror(-r)) : 0;
}

/* Before anything is made of it: who asks for memory that this machine has not hears so at once. */
static int check_memory(const struct config *c, struct why *why)
{
    struct why no = {0};
    if (c->pool.memory != POOL_MEMORY_CUDA || cuda_host_check(&no) == 0) return 0;
    return why_set(why, -ENOTSUP, "pool.memory = cuda: %s; set pool.memory = shm", no.text);
}

static int begin(struct daemon *d, struct why *why)
{
    int r = timers(d, why);
    if (r == 0) r = check_memory(d->config, why);
    if (r == 0) r = poolfiles_open(d, why);
    if (r < 0) return r;
    struct processes_events events = {.dead = on_dead, .arg = d};
    r = processes_new(d->loop, d->config->run.dir, d->self, &events, why, &d->processes);
    if (r < 0) return r;
    CLEANUP(freep) char *endpoint = NULL;
    if (asprintf(&endpoint, "ipc://%s/poold", d->config->run.dir) < 0) abort();
    r = msg_server_new(d->loop, endpoint, d->self, on_message, d, why, &d->server);
    if (r < 0 || !d->pool) return r;
    struct segment *s = d->pool->seg;
    for (int i = 0; i < POOL_PROCESSES_MAX;
         i++) { /* until they are confirmed dead they may write */
        const struct pool_process *p = &s->processes[i];
        if (p->incarnation && p->role == POOL_ROLE_WORKER && p->pipeline < POOL_PIPELINES_MAX &&
            p->stage < POOL_STAGES_MAX)
            d->pool->manned[p->pipeline][p->stage] = true;
    }
    processes_adopt(d->processes, s);
    poolfiles_sign(d, s);
    return 0;
}

static void end(struct daemon *d)
{
    msg_server_free(d->server);
    for (struct process *w = d->processes ? processes_first(d->processes) : NULL; w; w = w->next)
        worker_facts_free(TAKE(*(struct worker_facts **)&w->owner));
    processes_free(d->processes);
    operations_free(d);
    poolfiles_close(d);
    loop_free(d->loop);
}

int daemon_run(const struct config *config, struct why *why)
{
    CLEANUP(closep) int run_lock = -1;
    CLEANUP(closep) int pool_lock = -1;
    int r = store_lock_dir(config->run.dir, "run.dir", why, &run_lock);
    if (r == 0 && strcmp(config->run.dir, config->pool.dir) != 0)
        r = store_lock_dir(config->pool.dir, "pool.dir", why, &pool_lock);
    uint64_t began = now_us();
    struct daemon d = {.config = config, .self = incarnation_new(), .tick_us = began};
    if (r == 0) r = loop_new(&d.loop);
    if (r < 0) return r;
    r = begin(&d, why);
    if (r == 0 && d.pool) {
        segment_count(&d.pool->seg->h->counters.restarts, 1);
        segment_count(&d.pool->seg->h->counters.restart_us, now_us() - began);
    }
    if (r == 0) {
        log_info("ready in %s", config->run.dir);
        (void)sd_notify(0, "READY=1");
        d.awaits_us = now_us();
        operations_retry(&d);
        r = loop_run(d.loop);
        (void)sd_notify(0, "STOPPING=1");
    }
    end(&d);
    return r;
}
