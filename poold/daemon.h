/* SPDX-License-Identifier: MIT */
#ifndef POOLD_DAEMON_H
#define POOLD_DAEMON_H
/*
 * poold as a whole: what its parts (attach.c, pipelines.c, operations.c, status.c, serve.c) share.
 * One loop thread owns all of it.
 */
#include "common/config.h"
#include "common/msg.h"
#include "poold/arena.h"
#include "poold/pool.h"
#include "poold/processes.h"
#include "poold/store.h"

/* What a worker stated when it attached, checked. Hangs at process.owner. */
struct worker_facts {
    uint64_t number; /* of its AttachWorker, while that has no answer */
    bool answered;
    uint32_t pipeline, stage, n_stages, first_layer, n_layers;
    uint32_t max_rows, max_lanes, n_embd;
    struct pool_geometry geometry;
    char endpoint[128];
    char activations[192]; /* the way they take, as its last beat said */
    uint32_t *rows;        /* that it believes to hold */
    size_t n_rows;
    uint64_t *pending; /* numbers of its operations without an answer */
    size_t n_pending;
    uint32_t sent_life; /* the last link that this poold sent it */
    uint32_t strays;    /* beats in a row that named another life than the pipeline's */
};

struct pipeline_state {
    bool needs_life; /* one of its workers is another process than in its present life */
    bool ready;
    /* The last one that its head was asked to give back; with this lease it was asked once. */
    uint32_t asked_row, asked_lease;
    uint64_t told;    /* digest of what was broadcast last */
    uint64_t lost_us; /* when a worker of it died and it was not yet ready again; 0: it is */
};

struct pending; /* an operation that waits (operations.c) */

struct daemon {
    struct loop *loop;
    const struct config *config;
    uint64_t self;
    struct msg_server *server;
    struct processes *processes;
    struct pool *pool; /* NULL until the first attach */
    struct mapped_file tokens;
    struct mapped_file page[POOL_PIPELINES_MAX][POOL_STAGES_MAX];
    struct arena *arena[POOL_STAGES_MAX];
    struct pipeline_state pipeline[POOL_PIPELINES_MAX];
    struct pending *pending;
    struct loop_source *drain_timer, *tick_timer, *watchdog_timer, *end_timer, *signals;
    int end_result;
    uint64_t retried; /* commits when the waiting operations were tried last */
    bool draining;    /* drain_timer runs */
    uint64_t tick_us;
    uint64_t awaits_us;  /* since when who was there before the restart may come back */
    char status[128];    /* what the supervisor was told last */
    bool adopted_judged; /* the deadline for coming back after a restart has passed */
};

/* serve.c */
int daemon_run(const struct config *config, struct why *why);
/* Ends the daemon because of a failure, once what was sent is out: who is refused must hear why. */
void daemon_end(struct daemon *d, int result);
void daemon_send(struct daemon *d, uint64_t to, uint64_t number, Cistern__Envelope *m);
void daemon_refuse(struct daemon *d, uint64_t to, uint64_t number, Cistern__Code code,
                   const char *format, ...) __attribute__((format(printf, 5, 6)));
void daemon_broadcast(struct daemon *d, Cistern__Envelope *m);

/* attach.c */
void attach_worker(struct daemon *d, struct process *who, const Cistern__Envelope *m);
void attach_other(struct daemon *d, struct process *who, const Cistern__Envelope *m);
/* Tries again those that wait for an arena or for a place. */
void attach_retry(struct daemon *d);
void worker_facts_free(struct worker_facts *f);

/* poolfiles.c */
/* Opens what an earlier poold left; the pool stays NULL when there is nothing. */
int poolfiles_open(struct daemon *d, struct why *why);
/* Writes whose poold and whose boot the segment is now. */
void poolfiles_sign(const struct daemon *d, struct segment *seg);
/* Makes the pool for this geometry. *ret_code: of the refusal. */
int poolfiles_make(struct daemon *d, const struct worker_facts *f, struct why *why,
                   Cistern__Code *ret_code);
void poolfiles_drop(struct daemon *d);
void poolfiles_close(struct daemon *d);
int poolfiles_page(struct daemon *d, uint32_t pipeline, uint32_t stage, struct why *why);
/* Sends LIFELINE_POOL. */
int poolfiles_send(struct daemon *d, struct process *who);
/* Sends LIFELINE_PAGE to gateways and tools; to one, or (NULL) to all. */
void poolfiles_send_page(struct daemon *d, struct process *to, uint32_t pipeline, uint32_t stage);
/* A descriptor that can't write, or -1 with errno. */
int poolfiles_read_only(const struct daemon *d, const char *name);
void poolfiles_empty_rows(struct daemon *d, const char *reason);

/* pipelines.c */
void pipeline_heartbeat(struct daemon *d, struct process *who, const Cistern__Envelope *m);
/* Looks whether a pipeline wants a new life, and tells everybody when it changed. */
void pipeline_update(struct daemon *d, uint32_t pipeline);
void pipeline_tell(struct daemon *d, struct process *who);
void pipeline_reset(struct daemon *d, struct process *who, const Cistern__Envelope *m);
void pipeline_death(struct daemon *d, struct process *who);
void pipeline_judge(struct daemon *d);

/* operations.c */
void operation(struct daemon *d, struct process *who, const Cistern__Envelope *m);
void operation_abandon(struct daemon *d, struct process *who, const Cistern__Envelope *m);
/* After pages moved, a death, or a row changed: what waits is tried again. */
void operations_retry(struct daemon *d);
void operations_forget(struct daemon *d, uint64_t incarnation);
void operations_free(struct daemon *d);

/* Whether an operation waits for room: nobody younger takes any then. */
bool operations_blocked(const struct daemon *d);

/* tools.c */
void tools_change(struct daemon *d, struct process *who, const Cistern__Envelope *m);
/* A tool is dead: what it copied is over. */
void tools_forget(struct daemon *d, uint64_t incarnation);

/* status.c */
char *status_json(const struct daemon *d); /* the caller frees it */

#endif
