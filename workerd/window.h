/* SPDX-License-Identifier: MIT */
#ifndef WORKERD_WINDOW_H
#define WORKERD_WINDOW_H
/*
 * A window as a stage computes it: the token rows of one forward pass. Built by stage.c from the
 * link (proto/link_shm.h) after every number in it has been bounded; read by the model and the
 * backend; valid until it is finished. A window may be prepared before what it begins with is
 * there: then tokens of lanes that are late, and what `in` or the inbox's slot holds, are read when
 * it is launched. Device thread only.
 */
#include <stdbool.h>
#include <stdint.h>

#include "workerd/sampler.h"

/* Which of a lane's rows give logits. */
enum window_want {
    WINDOW_NONE, /* a piece of a prompt that is not the last */
    WINDOW_LAST, /* the last row: a token is sampled from it */
    WINDOW_ALL,  /* every row (a debug setting: hashes, log-likelihoods); the last is sampled */
};

struct window_lane {
    const uint64_t *table; /* chunk table, pool_entry words; checked: chunk <= arena n_chunks */
    uint32_t n_table;   /* entries readable at table; positions past them go to the trash chunk */
    uint32_t pos;       /* position of the lane's first row = number of cells before it */
    uint32_t n_rows;    /* token rows, at least 1 */
    uint32_t first_row; /* index of its first row in the window */
    uint32_t want;      /* enum window_want */
    uint32_t token;     /* out, when want is not NONE: the sampled token */
    struct sampling sampling;
    uint32_t generated_from; /* position of the first generated token */
    uint32_t probs, n_top;   /* enum link_want_probs, and how many alternatives */
    uint32_t next; /* LINK_PROBS_ALL: the token after its last row, or LINK_NEXT_SAMPLED */
    /* Not 0: its one row's token is what lane fed_from - 1 of the window before sampled, which is
     * still being computed; fed_row, which the model fills in: as that row of its last sample. */
    uint32_t fed_from, fed_row;
    bool late; /* its one row's token is in tokens when the window is launched, not before */
};

struct window {
    uint32_t n_rows, n_lanes;
    uint32_t n_generated; /* rows before the first of the kind prompt: generated ones come first */
    const uint32_t *tokens; /* [n_rows], bounded by the vocabulary; read by the first stage */
    struct window_lane *lanes;
    const float *in; /* [n_rows][n_embd] from the stage before; NULL on the first */
    float *out;      /* [n_rows][n_embd] to the next; NULL on the last */
    /* Instead of in and out: this slot of the own inbox, and of the next stage's. */
    bool in_inbox, out_inbox;
    uint32_t slot;
    /* Last stage, optional: called for each row with logits, in row order, after the window is
     * computed and before model_run returns. */
    void (*on_logits)(void *arg, uint32_t lane, uint32_t row, const float *logits,
                      uint32_t n_vocab);
    void *on_logits_arg;
    /* Last stage: what penalties count, the words of all cells as the tokens file has them, read by
     * the lanes' tables. 0 cells: no lane has penalties. */
    const uint32_t *cells;
    uint64_t n_cells;
    uint32_t chunk_cells;
    struct link_probs *probs; /* out, last stage, [n_rows]: of the rows whose lanes want them */
    uint64_t *steps; /* optional: raised now and then while the window is computed, by a backend
                        that can tell; another thread reads it */
};

#endif
