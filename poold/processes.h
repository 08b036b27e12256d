/* SPDX-License-Identifier: MIT */
#ifndef POOLD_PROCESSES_H
#define POOLD_PROCESSES_H
/*
 * Lifelines and deaths. Every worker, gateway and tool holds one connection to RUN_DIR/lifeline;
 * with it comes a pidfd of the process. Only a confirmed death counts: a worker whose lifeline
 * closes, or that is stuck, gets SIGKILL through its pidfd and is dead when the pidfd says so.
 * Until then it may still write, and its place stays its own. Gateways write no memory of the pool,
 * and tools only while they save or restore: else they are not killed, and a closed lifeline is
 * enough.
 *
 * Loop thread only.
 */
#include <stdbool.h>
#include <sys/types.h>

#include "common/lifeline.h"
#include "common/loop.h"
#include "poold/segment.h"

struct processes;

enum { PROCESS_STARTING = 1, PROCESS_SERVING = 2 }; /* Heartbeat.phase; 0: none came yet */

/* A worker's heartbeat (proto/cistern.proto). */
struct process_beat {
    uint32_t phase, life, percent; /* percent: of its weights, loaded */
    uint64_t last_window, due_window, steps;
};

struct process {
    struct process *next;
    struct processes *all;
    uint64_t incarnation, start_time;
    uint32_t pid, role; /* enum pool_role */
    uid_t uid;
    int sock; /* its lifeline; -1: closed, or not back yet after a restart of poold */
    struct lifeline_arena arena; /* CUDA memory that it handed back; 0 bytes: none */
    int arena_fd;                /* its descriptor, or -1 */
    int pidfd;                   /* -1: none (a tool or gateway whose lifeline closed) */
    struct loop_source *readable, *exited;
    bool dying;  /* killed, not yet confirmed */
    bool placed; /* a worker that has its place */
    uint32_t pipeline, stage;
    int record;               /* index in the segment's process records, or -1 */
    struct process_beat beat; /* its last one */
    uint64_t beat_us;         /* when it came */
    uint64_t moved_us; /* when a beat last told that its device goes on, or has nothing to do */
    void *owner;       /* what attach.c keeps about it */
};

struct processes_events {
    /* Confirmed. The process is freed when this returns. */
    void (*dead)(void *arg, struct process *who);
    void *arg;
};

int processes_new(struct loop *l, const char *run_dir, uint64_t self,
                  const struct processes_events *events, struct why *why, struct processes **ret);
void processes_free(struct processes *p);
struct process *processes_first(const struct processes *p);
struct process *process_find(const struct processes *p, uint64_t incarnation);
/* The worker that has, or had and may still write, this place; NULL: nobody. */
struct process *process_at(const struct processes *p, uint32_t pipeline, uint32_t stage);

/* Ends it; dead() follows when that is confirmed. Logs who and why. */
void process_kill(struct process *who, const char *reason);
/* A heartbeat came. */
void process_take_beat(struct process *who, const struct process_beat *beat, uint64_t now_us);
/* Starts its deadlines anew. */
void process_excuse(struct process *who, uint64_t now_us);
/* Why a worker is to be made a dead one: it is silent, or serves, has windows in flight and its
 * device does not go on. NULL: it is well. */
const char *process_stuck(const struct process *who, uint64_t now_us, uint64_t stuck_us,
                          uint64_t start_us);
int process_send(struct process *who, struct lifeline_files *packet, const int *fds,
                 uint32_t n_fds);

/* Writes its record into the segment, before it gets memory. -EMFILE: all records are taken. */
int process_record(struct process *who, struct segment *s);
/* A tool gets memory of the pool: from now on it is dead only when that is confirmed, like a
 * worker, until process_disarm. */
int process_arm(struct process *who, struct segment *s);
void process_disarm(struct process *who);
/* The segment is about to go; nobody has a record any more. */
void processes_leave_segment(struct processes *p);
/* After a restart: the processes that the segment tells of. Each is alive (then it has until
 * deadline_us of the loop's clock to come back) or dead (dead() is called). */
void processes_adopt(struct processes *p, struct segment *s);
/* Kills those adopted that have not come back. */
void processes_end_absent(struct processes *p);

const char *process_name(const struct process *who); /* "worker 0.1 (pid 42)"; one static buffer */
uint64_t process_start_time(uint32_t pid);           /* 0: no such process */
void process_boot_id(char ret[40]);

#endif
