/* SPDX-License-Identifier: MIT */
#ifndef POOLD_POOLCTL_H
#define POOLD_POOLCTL_H
/*
 * poolctl: one command a run. A command is a row of the table in poolctl.c; what it needs of poold
 * says which of its functions is set. Everything is one thread's, the loop's.
 */
#include <jansson.h>
#include <stdbool.h>

#include "common/config.h"
#include "common/loop.h"
#include "common/pool_client.h"
#include "common/pool_view.h"
#include "common/poolctl_exit.h"

enum { CTL_ARGS_MAX = 4 };

struct ctl {
    const struct command *command;
    struct config *config;
    struct why *why;
    bool json, all, once;
    uint64_t cells;
    bool has_cells;
    uint32_t pipeline, stage, lane;
    bool has_pipeline, has_stage, has_lane;
    const char *arg[CTL_ARGS_MAX];
    uint32_t n_args;
    /* arg[0] as ROW:GENERATION, where the command takes one */
    uint32_t row;
    uint64_t generation;

    struct loop *loop;
    struct pool_client *client;
    struct pool_view view;
    bool attached;
    uint64_t pool_id; /* that poold answered the attach with; 0: there is none */
    void *own;        /* a longer command's (top, save, restore) */
};

struct command {
    const char *name, *args, *help;
    int (*check)(struct ctl *c);                      /* the arguments; NULL: there are none */
    int (*alone)(struct ctl *c);                      /* without poold; the exit code */
    void (*ask)(struct ctl *c, Cistern__Envelope *m); /* a message, whose answer ends it */
    json_t *(*look)(struct ctl *c);                   /* shared memory, once */
    void (*begin)(struct ctl *c);                     /* takes longer; calls ctl_end */
    void (*message)(struct ctl *c, const Cistern__Envelope *m); /* begin's */
    void (*files)(struct ctl *c, const struct lifeline_files *f, const int *fds, uint32_t n_fds);
    void (*text)(const json_t *o); /* prints what look, or the answer, gave */
};

void ctl_end(struct ctl *c, int code);
/* A sentence on stderr, or {"error": ...} with --json; then the end. */
void ctl_fail(struct ctl *c, int code, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
int ctl_send(struct ctl *c, Cistern__Envelope *m); /* numbers it */
/* Prints o, which it takes, by --json or by the command's own text. */
void ctl_print(struct ctl *c, json_t *o);

/* Members of an object, for the printers: 0 and "-" where there are none. */
long long json_number(const json_t *o, const char *key);
const char *json_text(const json_t *o, const char *key);

int check_row(struct ctl *c);  /* ROW:GENERATION */
int check_none(struct ctl *c); /* no argument */

/* poolctl_show.c */
void ask_status(struct ctl *c, Cistern__Envelope *m);
void text_status(const json_t *o);
json_t *look_lanes(struct ctl *c);
void text_lanes(const json_t *o);
json_t *look_conversations(struct ctl *c);
void text_conversations(const json_t *o);
json_t *look_chunks(struct ctl *c);
void text_chunks(const json_t *o);
json_t *look_metrics(struct ctl *c);
void text_metrics(const json_t *o);
json_t *cells_json(const struct pool_header *h);

/* poolctl_top.c */
void begin_top(struct ctl *c);

/* poolctl_change.c */
int check_drop(struct ctl *c);
void ask_drop(struct ctl *c, Cistern__Envelope *m);
int check_evict(struct ctl *c);
void ask_evict(struct ctl *c, Cistern__Envelope *m);
int check_move(struct ctl *c);
void ask_move(struct ctl *c, Cistern__Envelope *m);
int check_place(struct ctl *c); /* PIPELINE or PIPELINE.STAGE */
void ask_drain(struct ctl *c, Cistern__Envelope *m);
void ask_undrain(struct ctl *c, Cistern__Envelope *m);
void text_change(const json_t *o);

/* poolctl_transfer.c */
int check_save(struct ctl *c);
int check_restore(struct ctl *c);
void begin_save(struct ctl *c);
void begin_restore(struct ctl *c);
void transfer_message(struct ctl *c, const Cistern__Envelope *m);
void transfer_files(struct ctl *c, const struct lifeline_files *f, const int *fds, uint32_t n_fds);
void text_transfer(const json_t *o);

/* poolctl_doctor.c */
int doctor(struct ctl *c);
void text_doctor(const json_t *o);

#endif
