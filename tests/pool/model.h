/* SPDX-License-Identifier: MIT */
#ifndef TESTS_POOL_MODEL_H
#define TESTS_POOL_MODEL_H
/*
 * A simple model of the pool: what the heads were granted and what they wrote. model_check holds
 * the real pool against it, from its shared memory and poold's own counts:
 *   - an active row is one that a head was granted, as it was granted; no other is active;
 *   - every cell below a row's length holds the token and the K/V that its conversation has there,
 *     so nothing is lost, foreign, or beyond what stages wrote;
 *   - what a head will write next lies in chunks that no other table names;
 *   - poold's counts of cells are those that the tables give, and they sum to the pool;
 *   - a row changes only as some operation may change it: versions and leases never go back, what
 *     is cached gets shorter and never longer, what is closing keeps its chunks.
 */
#include "head.h"

enum { HEADS_MAX = 2, ROWS_LIMIT = 64, CHUNKS_LIMIT = 256 };

struct row {
    struct head *head; /* it is active here; NULL: it is not active */
    uint64_t generation, version, salt, gateway;
    uint32_t lease, n_entries, lane;
    uint32_t computed;   /* cells whose window was composed */
    uint32_t copy_chunk; /* the next window copies cells [copy_from, computed) from it */
    uint32_t copy_from;
    uint32_t n_tokens, tokens[CONTEXT]; /* words, of the conversation, also when it is closed */
    bool closing;
    uint32_t expected; /* cells that it must have when it is closed */
    bool busy;         /* an operation on it has no answer */
    bool give_back;    /* poold asked for it */
};

struct seen {
    uint64_t version;
    struct pool_body body;
    uint64_t table[CONTEXT / CHUNK + 1];
};

struct copier;

struct model {
    struct world *world;
    struct copier *copier; /* NULL: no tool copies */
    struct head head[HEADS_MAX];
    uint32_t n_heads;
    struct tool tool;
    struct row row[ROWS_LIMIT];
    struct seen seen[ROWS_LIMIT];
    bool has_seen;
    uint32_t n_rows, n_chunks;
    bool heeds_kinds;       /* some prompts go on from cells of their own kinds alone */
    bool gives_way;         /* what waits for long is given up, or given room */
    uint32_t forget_one_in; /* rows, when poold is back; 0: none */
    uint64_t random;
    uint64_t n_answers[OP_CLOSE + 1], n_refused, n_forgotten, n_given_back, n_cached_cells;
    struct answer last; /* of model_settle */
};

void model_init(struct model *m, struct world *w, uint32_t n_heads, const uint32_t *n_stages);
void model_fini(struct model *m);
uint32_t model_random(struct model *m, uint32_t below);
uint32_t model_active(const struct model *m, const struct head *h, uint32_t ret[LANES_MAX]);

/* Operations: sent, answered in model_settle. NULL: the head can't ask that now. */
struct op *model_open(struct model *m, struct head *h, const uint32_t *tokens, uint32_t n);
struct op *model_open_salted(struct model *m, struct head *h, const uint32_t *tokens, uint32_t n,
                             uint64_t salt);
/* Goes on with a waiting row: its tokens so far, and n more. */
struct op *model_resume(struct model *m, struct head *h, uint32_t row, const uint32_t *tokens,
                        uint32_t n, bool keep_age);
struct op *model_grow(struct model *m, uint32_t row, uint32_t to);
struct op *model_truncate(struct model *m, uint32_t row, uint32_t to);
struct op *model_close(struct model *m, uint32_t row, uint32_t keep, bool resume);
/* A window that computes the row's next tokens, up to n cells in all and what it has reserved. */
void model_compute(struct model *m, uint32_t row, uint32_t to);

/* Until every operation is answered; windows go on meanwhile. Then the model takes the answers. */
void model_settle(struct model *m);
void model_check(struct model *m);
/* Prints what has no answer. */
void model_explain(void *arg);

#endif
