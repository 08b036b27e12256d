/* SPDX-License-Identifier: MIT */
#ifndef TESTS_NUMERICS_RIG_H
#define TESTS_NUMERICS_RIG_H
/*
 * A model without the daemon around it, for tests and benchmarks: some stages in this process,
 * chained by their activations, each on an arena in anonymous memory, and conversations whose
 * chunks are handed out one after the other. What goes wrong here ends the program with a sentence.
 */
#include "workerd/model.h"

enum { RIG_STAGES_MAX = 4, RIG_LANES_MAX = 8 };

struct rig_want {
    const char *path;    /* NULL: the demo model, see rig_demo_model */
    const char *variant; /* NULL: auto */
    enum model_precision precision;
    uint32_t kv;                                                          /* 0: f16 */
    uint32_t n_stages;                                                    /* 0: 1 */
    uint32_t n_threads, max_rows, max_lanes, context_tokens, chunk_cells; /* 0: a default */
    uint32_t n_chunks; /* 0: a whole context for each lane */
    bool no_spin;
    uint64_t kv_resident; /* of a device: as in struct model_want; 0: all */
    bool no_resident;     /* none */
};

struct rig {
    struct gguf *g;
    uint32_t n_stages, n_chunks, next_chunk;
    struct model *stage[RIG_STAGES_MAX];
    struct pool_arena *arena[RIG_STAGES_MAX];
    size_t arena_bytes[RIG_STAGES_MAX];
    float *link[RIG_STAGES_MAX];
    /* Lanes of the next windows, the first ones, that have generated rows; at first none, or all
     * with $TEST_KIND = generated. */
    uint32_t n_generated;
    struct link_probs *probs; /* [max_rows]: of the last window */
    struct model_facts facts;
    struct rig_want want;
};

/* One conversation. */
struct rig_chat {
    uint64_t *table;
    uint32_t n_table, n_cells;
};

/* $CISTERN_MODEL, or the file in the user's cache; NULL when there is none. */
const char *rig_demo_model(void);

/* $TEST_DEVICE: rigs run on this device rather than the CPU, and the variant "cuda" is there alone.
 * NULL: on the CPU. */
const char *rig_device(void);
/* Whether $TEST_DEVICE names a device that can't be used here: the test is to be skipped. */
bool rig_device_missing(void);

/* Whether this processor can run a variant of the CPU backend; "auto" is always there. */
bool rig_has_variant(const char *name);

/* Whether the device keeps K and V in a format, enum pool_kv. */
bool rig_has_kv(uint32_t kv);

struct rig *rig_new(const struct rig_want *want);
void rig_free(struct rig *r);
/* The file mapped for a stage: all its blocks filled with a byte (0xff: every value is a NaN). */
void rig_fill(struct rig *r, int byte);

struct rig_chat *rig_chat_new(struct rig *r);
void rig_chat_free(struct rig_chat *c);
/* Makes the chat's table long enough for n cells. */
void rig_reserve(struct rig *r, struct rig_chat *c, uint32_t n_cells);
/* The lane of n rows at the chat's end; counts them in. */
struct window_lane rig_lane(struct rig *r, struct rig_chat *c, uint32_t n_rows, uint32_t want);
/* Runs a window through all stages. first_row of the lanes is filled in here. */
void rig_run(struct rig *r, struct window_lane *lanes, uint32_t n_lanes, const uint32_t *tokens,
             void (*on_logits)(void *, uint32_t, uint32_t, const float *, uint32_t), void *arg);
/* One stage: starts a window, which stays with its lanes and tokens until it is done: what
 * model_start returns. */
int rig_start(struct rig *r, struct window *w, struct window_lane *lanes, uint32_t n_lanes,
              const uint32_t *tokens);
/* Any stage: model_prepare of a window, which stays likewise. */
int rig_prepare(struct rig *r, uint32_t stage, struct window *w, struct window_lane *lanes,
                uint32_t n_lanes, const uint32_t *tokens);
/* Waits for the one that was started first. */
void rig_finish(struct rig *r);
/* Reads n tokens in pieces of at most `piece` rows; returns the greedy next one. want: of the rows.
 */
uint32_t rig_read(struct rig *r, struct rig_chat *c, const uint32_t *tokens, uint32_t n,
                  uint32_t piece, uint32_t want,
                  void (*on_logits)(void *, uint32_t, uint32_t, const float *, uint32_t),
                  void *arg);

/* Of n floats' bits. */
uint64_t rig_hash(const float *v, uint32_t n);

/* Seconds of the monotonic clock. */
double rig_seconds(void);

#endif
