/* SPDX-License-Identifier: MIT */
#ifndef GATEWAY_TOOL_H
#define GATEWAY_TOOL_H
/*
 * Runs of poolctl, each a process of its own: what copies gigabytes must not run on the gateway's
 * loop, and poold takes a save or a restore back when the process that copies dies, which must not
 * be the gateway. At most TOOLS_MAX at a time. Loop thread; nothing here waits for a process.
 */
#include <jansson.h>

#include "common/base.h"
#include "common/loop.h"

enum { TOOLS_MAX = 4 /* more would only share one disk's speed */ };

struct tools;
struct tool; /* one run; gone when its end was told or tool_leave was called */

struct tool_end {
    int code;          /* its exit code; -1: it was killed */
    const json_t *out; /* the object that it printed, or NULL */
};
typedef void (*tool_ended_fn)(void *arg, const struct tool_end *end);

/* program: an absolute path; empty: poolctl beside this program. -ENOENT, -EACCES: it can't be run.
 */
int tools_new(struct loop *l, const char *program, struct why *why, struct tools **ret);
void tools_free(struct tools *ts); /* kills what runs, tells nobody */
/* Kills what runs; each one's end is told when it is over. Takes NULL. */
void tools_end_all(struct tools *ts);

/* arguments: n of them, after the program's name; copied. -EBUSY: TOOLS_MAX run already. */
int tools_run(struct tools *ts, const char *const *arguments, size_t n, tool_ended_fn ended,
              void *arg, struct tool **ret);
/* Nobody waits for it any more: it is killed. */
void tool_leave(struct tool *t);

#endif
