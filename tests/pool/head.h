/* SPDX-License-Identifier: MIT */
#ifndef TESTS_POOL_HEAD_H
#define TESTS_POOL_HEAD_H
/*
 * A pipeline as poold sees it: each stage has a lifeline and a message socket of its own, all of
 * them in this process. The head sends operations and sends those without an answer again, under
 * their old numbers, after each return of poold. Windows are made of plain stores: a cell's K/V is
 * one hash of all words up to it (tokens and their kinds), so that any cell that is not where it
 * should be, and any store that comes after the chunk was given to another conversation, is seen.
 */
#include "common/pool_client.h"
#include "world.h"

enum {
    CHUNK = 16,
    BLOCK = 4,
    CONTEXT = 128,
    STAGES_MAX = 2,
    LANES_MAX = 8,
    WINDOWS_MAX = 64, /* in flight */
    OPS_MAX = 16,
};

struct head;

struct stage {
    struct head *head;
    uint32_t number;
    uint64_t self, attach_number;
    struct pool_client *client;
    bool answered, has_files;         /* of its attach; the one may come before the other */
    bool attached;                    /* both */
    uint32_t rows[LANES_MAX], n_rows; /* that poold says are bound to it */
    uint32_t life;                    /* of the link that it was sent last */
    struct loop_source *beat;
    struct pool_page *page;
    struct pool_arena *arena;
    size_t page_bytes, arena_bytes;
};

/* One lane's part of a window: cells [from, to) of a row, executed when the window is. */
struct window {
    uint64_t number;
    uint32_t row, lease, from, to;
    uint32_t copy_chunk, copy_from; /* cells [copy_from, from) come from this chunk; 0: none */
    uint64_t table[CONTEXT / CHUNK + 1];
    uint32_t tokens[CONTEXT];
};

enum op_kind { OP_OPEN, OP_GROW, OP_TRUNCATE, OP_CLOSE };

struct answer {
    Cistern__Code code;
    uint32_t row, state, lease, base, n_entries, copy_cells, copy_chunk;
    uint64_t generation, version, arrival;
};

struct op {
    struct head *head;
    enum op_kind kind;
    uint64_t number;
    bool in_use, answered, abandoned;
    uint32_t row; /* all but open */
    uint64_t generation, version, last_window;
    uint32_t cells;                     /* grow, truncate: to; close: keep */
    bool resume;                        /* close */
    bool crosses;                       /* close: another operation on the row had no answer yet */
    uint32_t n_deaths;                  /* of poold, when it was sent first */
    uint32_t lane;                      /* open */
    uint32_t tokens[CONTEXT], n_tokens; /* words: ids and kinds */
    bool exact;
    uint64_t salt, gateway, arrival;
    uint32_t resume_row; /* row + 1 */
    uint64_t resume_generation;
    struct answer answer;
};

struct head {
    struct world *world;
    uint32_t pipeline, n_stages;
    uint32_t context; /* tokens; 0: CONTEXT */
    /* Of a bench, whose cells hold more than a hash; 0: N_LAYERS of BLOCK hashes. */
    uint32_t n_layers, block_cells;
    uint64_t block_bytes;
    struct stage stage[STAGES_MAX];
    const struct pool_header *control;
    size_t control_bytes, tokens_bytes;
    struct pool_tokens *tokens;
    uint32_t life;
    uint64_t count; /* windows composed in this life */
    struct window window[WINDOWS_MAX];
    uint32_t n_windows;
    struct op op[OPS_MAX];
    /* Each may be NULL: it holds nothing, and does not care. */
    /* What the head believes to hold, asked at each attach. */
    uint32_t (*rows)(void *arg, struct head *h, uint32_t ret[LANES_MAX]);
    /* It was attached again, these are bound to it. */
    void (*attached)(void *arg, struct head *h, const uint32_t *rows, size_t n);
    void (*give_back)(void *arg, struct head *h, uint32_t row, uint64_t generation);
    /* NULL, or an answer to none of op[]. */
    void (*row)(void *arg, struct head *h, const Cistern__Envelope *m);
    void *arg;
};

/* The callbacks and arg must be set already. */
void head_init(struct head *h, struct world *w, uint32_t pipeline, uint32_t n_stages);
void head_fini(struct head *h);
bool head_is_up(const struct head *h);
struct op *head_op(struct head *h, enum op_kind kind); /* NULL: all are in use */
void op_send(struct op *op);
void op_abandon(struct op *op);
bool head_has_answers(const struct head *h);
void head_reset(struct head *h);

/* The hash of a sequence's next token. */
uint64_t kv_hash(uint64_t before, uint32_t token);
uint64_t *head_cell(const struct head *h, uint32_t stage, uint32_t chunk, uint32_t offset);
/* Puts a window in flight; number, lease and so on are filled by the caller. */
struct window *head_compose(struct head *h);
/* Executes the n oldest windows: K/V, token ids, words, then the drained number. */
void head_execute(struct head *h, uint32_t n);

/* A gateway's or tool's tie: asks for status, drops. */
struct tool {
    struct world *world;
    uint64_t self, number;
    struct pool_client *client;
    bool attached, busy;
    bool drop; /* what is being asked: a drop, or the status */
    uint32_t drop_row;
    uint64_t drop_generation;
    char *status; /* the last one, owned */
};
void tool_init(struct tool *t, struct world *w);
void tool_fini(struct tool *t);
void tool_ask_status(struct tool *t);
void tool_drop(struct tool *t, uint32_t row, uint64_t generation);

#endif
