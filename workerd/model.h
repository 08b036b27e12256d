/* SPDX-License-Identifier: MIT */
#ifndef WORKERD_MODEL_H
#define WORKERD_MODEL_H
/*
 * One stage of a model: the weights of its layers, its family's forward pass (workerd/arch/), and
 * the backend that computes it. stage.c owns it and calls it from the device thread, one window at
 * a time. It knows nothing of lanes, requests, messages or processes.
 */
#include <stdbool.h>

#include "common/gguf.h"
#include "workerd/window.h"

struct model;

enum model_precision {
    MODEL_INT8,    /* quantised weights multiply int8 activations */
    MODEL_FLOAT32, /* the reference: dequantised weights, float32 activations */
};

struct model_want {
    uint32_t first_layer, n_layers; /* this stage's; it has the embedding when first_layer is 0 and
                                       the head when it reaches the last layer */
    enum model_precision precision;
    uint32_t kv;        /* enum pool_kv */
    uint32_t max_rows;  /* token rows of the largest window */
    uint32_t max_lanes; /* lanes of the largest window */
    uint32_t context_tokens;
    uint32_t n_threads; /* compute threads, this one included */
    const char *cpus;   /* worker.cpus: a list like "0-3,8", or NULL for no pinning */
    bool
        may_spin; /* barriers may spin up to 20 us before they sleep (ARCHITECTURE.md, Decisions) */
    const char *variant;   /* "auto", "avx512", "avx2", "plain": refused when the CPU lacks it */
    const char *device;    /* "cpu" or "cuda:N"; NULL counts as "cpu" */
    uint64_t memory_limit; /* of a GPU: bytes of its memory that are used at most; 0: all */
    uint64_t kv_resident;  /* of a GPU: cells whose K/V is kept in its memory too, at most */
};

/* What a stage states of itself at attach. */
struct model_facts {
    char arch[32], name[64];
    uint32_t n_layers; /* of the whole model */
    uint32_t n_embd, n_vocab, n_kv_heads, head_dim, n_ctx_train;
    uint32_t block_cells;
    uint64_t block_bytes; /* K and V of block_cells cells of one layer */
    char
        arithmetic[128]; /* what makes two workers' bits equal: the device's + precision + kv ... */
    char device[64];     /* for people: "cpu avx512, 2 threads" */
    uint64_t weight_bytes; /* resident for this stage */
};

/* Reads only the metadata: what the file holds, without weights. For the head's messages and to
 * size an even split before a stage is chosen. */
int model_probe(const struct gguf *g, struct why *why, struct model_facts *ret);

/* Loads the weights and makes every buffer that model_run will need; nothing is allocated later.
 * progress (may be NULL) is called now and then with 0..100. */
int model_load(const struct gguf *g, const struct model_want *want, void (*progress)(void *, int),
               void *progress_arg, struct why *why, struct model **ret);
void model_free(struct model *m);
const struct model_facts *model_facts(const struct model *m);
/* Whether it computes on a device of its own, while the calling thread goes on. */
bool model_on_device(const struct model *m);

/* The arena of this stage, mapped read-write by the caller, its header already checked against the
 * facts. May be called again after a new arena was mapped. */
int model_use_arena(struct model *m, struct pool_arena *arena, struct why *why);

/* The ways of activations between stages, as backend.h has them. */
void model_inbox(struct model *m, uint32_t n_slots, struct link_inbox *ret);
int model_peer_open(struct model *m, const struct link_inbox *peer, struct why *why);
void model_peer_close(struct model *m);

/* Copies cells [0, n_cells) of every layer of this stage from one chunk to another. */
void model_copy_cells(struct model *m, uint32_t from_chunk, uint32_t to_chunk, uint32_t n_cells);

/* Runs one window: K/V of its rows is in the arena, out or the lanes' tokens are filled when it
 * returns 0. */
int model_run(struct model *m, struct window *w);
/* The same in two steps. 0: it is done. 1: the device computes it, it and what it points to must
 * stay, and model_finish waits for it; meanwhile one more may be started, whose lanes may take
 * tokens of this one that nobody has seen yet (window_lane.fed_from). -EAGAIN: this one can't be
 * started before the other is finished; nothing was done. */
int model_start(struct model *m, struct window *w);
/* model_start in two steps: all that can be done before the activations, or the tokens of lanes
 * that are late, are there (0; -EAGAIN and errors as above), and what is left. One window at a time
 * is prepared; model_drop takes it back, when nothing is started that is not finished. */
int model_prepare(struct model *m, struct window *w);
int model_launch(struct model *m);
void model_drop(struct model *m);
/* Whether the window that was started first can be finished without waiting. */
bool model_is_done(const struct model *m);
/* Waits for it. */
int model_finish(struct model *m);

/* For tests: the vectors behind row i of the last logits that a window made, [n_embd] each, valid
 * until the next call: what the output norm read, and what it made of it. Only float32 precision
 * keeps the latter as floats; else it is NULL. */
const float *model_residual(struct model *m, uint32_t i);
const float *model_hidden(struct model *m, uint32_t i);

#endif
