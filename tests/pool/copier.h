/* SPDX-License-Identifier: MIT */
#ifndef TESTS_POOL_COPIER_H
#define TESTS_POOL_COPIER_H
/*
 * The real poolctl saves any conversation, also while it runs, and restores what it saved, as a
 * process of its own that may be killed at any moment. What it does to the pool is held against
 * what the model knows of the saved conversation, and against the file:
 *   - a save's row is the beginning of what its conversation was at some moment since, K/V and all,
 *     and does not change as long as it is there;
 *   - the file is that, or what it was before;
 *   - a restore's row counts for nothing, and has its chunks alone, until it is the whole file's;
 *   - when the tool is gone, so are its rows.
 * One at a time. It stands still while the model looks.
 */
#include "model.h"

enum { SOURCES_MAX = 64 };

struct words {
    uint64_t salt;
    uint32_t n, token[CONTEXT];
};

struct copier {
    struct model *m;
    const char *program;
    char file[96];
    pid_t pid; /* 0: nothing is under way */
    bool saves, killed;
    bool is_new;  /* the model has not looked at the pool since it was under way */
    uint32_t row; /* that it saves */
    uint64_t generation;
    struct words source[SOURCES_MAX]; /* what that row has held since, the last ones */
    uint32_t n_sources;
    uint64_t held_generation; /* of the save's own row; 0: not yet seen */
    struct words held;
    struct words saved; /* what the file holds; n 0: there is none */
    bool restored;      /* the last restore's row is known */
    uint64_t n_saves, n_restores, n_killed, n_restored;
};

void copier_init(struct copier *c, struct model *m, const char *program);
/* Ends what is under way. */
void copier_fini(struct copier *c);
/* Begins, or does nothing where one is or was just under way, or nothing was saved. */
void copier_save(struct copier *c, uint32_t row, uint64_t generation);
void copier_restore(struct copier *c);
void copier_kill(struct copier *c);
/* Whenever the model's rows have changed: what it saves is another past; and it may have ended. */
void copier_look(struct copier *c);
void copier_pause(struct copier *c, bool on);

/* A row that is a tool's, and one of an unknown generation, which only a restore makes: the model
 * knows it from then on. */
void copier_check_held(struct copier *c, uint32_t row, const struct seen *s);
void copier_learn(struct copier *c, uint32_t row, const struct seen *s);

#endif
