/* SPDX-License-Identifier: MIT */
#ifndef TESTS_POOL_WORLD_H
#define TESTS_POOL_WORLD_H
/*
 * A real poold in a folder of its own, and the loop of the test that speaks to it. When poold is
 * killed, by the test or by its own death point, it is started again at once; any other end of it,
 * and a wait without end, end the test with poold's log. Used by the tests of this folder and by
 * the bench.
 */
#include <sys/types.h>

#include "common/base.h"
#include "common/loop.h"

struct world_want {
    const char *program; /* poold's path */
    uint32_t n_cells, chunk_cells, n_rows;
    uint32_t n_pipelines; /* with n_cells = 0, the identity layout */
    bool when_dry_waits;
    const char *die_at; /* CISTERN_DIE_AT of start die_start (0: the first), or NULL */
    uint32_t die_start;
    const char *die_next; /* the same of the start after that, or NULL */
    const char
        *death_log; /* CISTERN_DEATH_LOG of each start: this and the start's number, or NULL */
};

struct world {
    struct loop *loop;
    struct world_want want;
    char dir[64];
    pid_t pid;
    int pidfd, notify;
    /* Prints what is waited for, when nothing comes of it. May be NULL. */
    void (*explain)(void *arg);
    void *explain_arg;
    struct loop_source *exited, *notified, *patience;
    bool killed; /* the test has just killed it */
    bool fell;   /* it died at its death point */
    uint32_t n_falls;
    uint32_t n_deaths;
    uint64_t exec_us, ready_us; /* of the last start; ready_us 0: not yet */
};

void world_init(struct world *w, const struct world_want *want);
/* Another process's look at a world: a loop and the folder, nothing to start or to end. */
void world_visit(struct world *w, const char *dir);
/* Ends poold by SIGTERM, which must end with 0, and removes the folder. */
void world_fini(struct world *w);
void world_kill(struct world *w);
/* Runs the loop until done(arg); it is looked at whenever a handler calls world_stir. */
void world_run(struct world *w, bool (*done)(void *arg), void *arg);
void world_stir(struct world *w);
void world_start(struct world *w);

/* Prints the sentence and poold's log, and ends the test with 1. */
__attribute__((noreturn, format(printf, 1, 2))) void fail(const char *format, ...);
#define require(condition, ...)                                                                    \
    do {                                                                                           \
        if (!(condition)) fail(__VA_ARGS__);                                                       \
    } while (0)

#endif
