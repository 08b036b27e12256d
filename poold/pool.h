/* SPDX-License-Identifier: MIT */
#ifndef POOLD_POOL_H
#define POOLD_POOL_H
/*
 * The conversations and their chunks. The control segment is the truth; what is here besides it
 * (who refers to a chunk, what is free, the next arrival number) is derived from it when poold
 * starts, so a death between any two instructions costs at most the operation in hand.
 *
 * Operations answer 0, or:
 *   -EAGAIN  it has to wait until closing rows are drained; ask again when one is
 *   -ENOSPC  no room, and nobody who gives back; nothing was taken
 *   -E2BIG   it can never fit
 *   -ESTALE  another generation or version than the row's
 *   -ENOENT  no such row
 * Loop thread only.
 */
#include <stdbool.h>

#include "poold/segment.h"

struct pool {
    struct segment *seg;
    const uint32_t *cells;                                       /* the tokens file's words */
    struct pool_page *page[POOL_PIPELINES_MAX][POOL_STAGES_MAX]; /* NULL: never attached */
    bool manned[POOL_PIPELINES_MAX]
               [POOL_STAGES_MAX]; /* a worker lives there (or may still write) */
    uint32_t *refs;    /* [n_chunks + 1] rows that name the chunk in their table or copy */
    uint32_t *scratch; /* [n_chunks + 1] the plan's own copy of refs */
    uint32_t *free;    /* stack of free chunks */
    uint32_t n_free, n_closing;
    uint64_t next_arrival;
    uint64_t evictions[3]; /* chunks taken back, by rank */
};

struct op_id {
    uint64_t incarnation, number;
};

/* A row that the asker saw: its generation and version. */
struct row_seen {
    uint32_t row;
    uint64_t generation, version;
};

struct pool_open {
    struct op_id op;
    uint32_t pipeline, lane;
    const uint32_t *tokens; /* words as the tokens file has them */
    uint32_t n_tokens;
    bool exact;         /* cells are the same only when their kinds are, too */
    uint32_t max_cells; /* cells to reserve, when more than the prompt and a growth unit; 0: no */
    uint64_t arrival;   /* its age: pool_next_arrival, or what it had in an earlier attempt */
    uint64_t salt, gateway;
    bool fresh;  /* all of the prompt is to be computed: nothing is shared or kept */
    bool resume; /* take row resume_row of resume_generation over, if it still waits */
    uint32_t resume_row;
    uint64_t resume_generation;
    bool may_wait; /* false: its deadline has passed; do without what is still closing */
};

struct pool_close {
    struct op_id op;
    struct row_seen seen;
    uint64_t last_window;
    uint32_t keep;
    bool resume;
};

/* cells: the tokens file's words, mapped by the caller, who keeps it mapped. Takes seg. */
struct pool *pool_new(struct segment *seg, const uint32_t *cells);
void pool_free(struct pool *p);

uint64_t pool_next_arrival(struct pool *p);
/* The youngest active row that is younger than arrival; UINT32_MAX: there is none. */
uint32_t pool_youngest(const struct pool *p, uint64_t arrival);
int pool_open_row(struct pool *p, const struct pool_open *ask, uint32_t *ret_row);
int pool_grow(struct pool *p, struct op_id op, struct row_seen seen, uint32_t to_cells);
/* -EAGAIN also until every stage has drained past last_window. */
int pool_truncate(struct pool *p, struct op_id op, struct row_seen seen, uint32_t to_cells,
                  uint64_t last_window);
int pool_close_row(struct pool *p, const struct pool_close *ask);
/* Frees an idle or waiting row. */
int pool_drop(struct pool *p, uint32_t row, uint64_t generation);

/* Closes what a dead or forgetful head left active. keep_rows: rows to spare; pending: operations
 * of incarnation whose retry will find their row. */
struct pool_orphans {
    uint32_t pipeline;
    uint64_t last_window;
    const uint32_t *keep_rows;
    size_t n_keep_rows;
    uint64_t incarnation;
    const uint64_t *pending;
    size_t n_pending;
    bool resume;
};
void pool_close_orphans(struct pool *p, const struct pool_orphans *o);

/* Looks at the pages: finishes the closing rows whose windows have drained. Returns how many. */
uint32_t pool_drain(struct pool *p);
/* Waiting rows of a gateway that is gone, or that waited too long, become idle. gateway 0: all that
 * were last used before before_us. */
void pool_give_up_waiting(struct pool *p, uint64_t gateway, uint64_t before_us);

/* Cells of the row that are complete in the pool now, by its stages' and its head's words. */
uint32_t pool_valid_cells(const struct pool *p, uint32_t row);
bool pool_drained(const struct pool *p, uint32_t pipeline, uint64_t window);
uint64_t pool_clock_us(void); /* CLOCK_BOOTTIME: what last_use is in */

struct pool_counts { /* chunks by what holds them; they sum to n_chunks */
    uint32_t free, active, waiting, closing, idle, shared;
    uint32_t rows[5]; /* by enum pool_state */
};
void pool_count(const struct pool *p, struct pool_counts *ret);

/* ---- for plan.c, match.c and conversations.c ---- */

/* Shortens a row to n_cells: commits, gives chunks back, frees the row at 0. to: the state that it
 * gets. op may be NULL. A cut inside a chunk that others hold too gives that chunk up and names it
 * as the one to copy the beginning from. */
void pool_cut(struct pool *p, uint32_t row, uint32_t n_cells, uint32_t to, const struct op_id *op);
/* Cells that a row that is not active can offer: its base, and what is still to be copied. */
uint32_t pool_cached_cells(const struct pool_body *b);
/* The entry of a free chunk, its generation raised: of this one, or (0) of any. There must be one.
 */
uint64_t pool_chunk_take(struct pool *p, uint32_t chunk);
/* One reference less; the last one frees it. */
void pool_chunk_put(struct pool *p, uint32_t chunk);
uint32_t pool_entries_for(const struct pool *p, uint64_t cells);

#endif
