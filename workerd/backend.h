/* SPDX-License-Identifier: MIT */
#ifndef WORKERD_BACKEND_H
#define WORKERD_BACKEND_H
/*
 * A device as a model sees it: one table of operations, no optional entries. The operations of a
 * window are enqueued between begin and launch or sync and run in that order; they return nothing,
 * the window's first failure sticks and its launch or sync returns it. Buffers and weights belong
 * to the backend and go with it. Called from the device thread only.
 *
 * What every implementation must keep (ARCHITECTURE.md, Exactness): a token row's bits are a
 * function of the tokens before it, its position and, where the backend has an arithmetic for each,
 * its kind (struct window's n_generated), not of the rows beside it, of the number of rows or of
 * threads. Logits are made as those of generated rows.
 */
#include <stdbool.h>

#include "common/base.h"
#include "workerd/window.h"

struct backend;
struct backend_weight; /* a matrix or vector as the device keeps it */
struct backend_buffer; /* float32 [rows][width], on the device */

struct backend_want {
    uint32_t n_embd, n_heads, n_kv_heads, head_dim; /* head_dim is a multiple of 16 */
    uint32_t n_layers;                              /* of this stage */
    uint32_t n_vocab;                               /* of the rows of sample; 0: there are none */
    uint32_t rope_dims;       /* leading dimensions of a head that turn; a multiple of 16 */
    const double *rope_freq;  /* [rope_dims / 2], radians a position; copied */
    float eps;                /* of the RMS norms */
    bool float32;             /* float32 weights and activations throughout */
    uint32_t kv, block_cells; /* enum pool_kv */
    uint64_t block_bytes;
    uint32_t max_rows, max_lanes, context_tokens;
    uint32_t max_past;          /* ids of all rows of one sample together */
    uint32_t n_threads;         /* the calling one included; 0 counts as 1 */
    const char *cpus, *variant; /* as in struct model_want */
    bool may_spin;
    const char *device;    /* as in struct model_want; read during open only */
    uint64_t memory_limit; /* bytes that may be used of the device's memory; 0: all */
    uint64_t kv_resident;  /* cells whose K/V is also kept on the device, at most */
};

/* A tensor of the model file: n_out rows of n_in values, in ggml's block layouts. A vector has
 * n_out 1. */
struct backend_tensor {
    const char *name;
    uint32_t type; /* enum ggml_type */
    uint32_t n_out, n_in;
    const void *data;
    int fd; /* of the file, where the same bytes are at off */
    uint64_t off;
};

enum weight_use {
    WEIGHT_MATRIX, /* multiplied; the data may go when the call returns */
    WEIGHT_VECTOR, /* of a norm; the data may go when the call returns */
    WEIGHT_LOOKUP, /* rows are looked up in the data, which stays mapped */
};

struct backend_buffer_want {
    uint32_t max_rows, width;
    bool multiplied; /* by matrices: what they take besides float32 values is kept, too */
};

struct backend_ops {
    const char *name;
    /* "cpu-1": raised when a kernel's arithmetic or the layout of a block changes. */
    const char *(*arithmetic)(const struct backend *b);
    uint32_t head_rows; /* rows whose logits are made at a time */
    int (*open)(const struct backend_want *want, struct why *why, struct backend **ret);
    void (*close)(struct backend *b); /* takes NULL */
    /* For people: "cpu avx512, 2 threads". */
    const char *(*device)(const struct backend *b);

    bool (*multiplies)(uint32_t ggml_type); /* types that weight takes, for all uses */
    int (*weight)(struct backend *b, enum weight_use use, const struct backend_tensor *t,
                  struct why *why, struct backend_weight **ret);
    uint64_t (*weight_bytes)(const struct backend *b); /* resident, of all weights so far */
    /* -ENOMEM with the bytes of what there is. */
    int (*buffer)(struct backend *b, const struct backend_buffer_want *want, struct why *why,
                  struct backend_buffer **ret);
    /* Layers are numbered within the stage: layer i here is arena layer first_layer + i. */
    int (*use_arena)(struct backend *b, struct pool_arena *arena, uint32_t first_layer,
                     struct why *why);
    void (*copy_cells)(struct backend *b, uint32_t from_chunk, uint32_t to_chunk, uint32_t n_cells);

    /* A lane with fed_from has the token that row fed_row of the last sample chooses; what is late
     * (struct window) is read when it is launched. */
    void (*begin)(struct backend *b, const struct window *w);
    /* x[row] = the table's row of the window's token. */
    void (*embed)(struct backend *b, struct backend_buffer *x, const struct backend_weight *table);
    /* x = host [rows][width], read when it is launched; host = x, there once sync has returned. */
    void (*load)(struct backend *b, struct backend_buffer *x, const float *host);
    void (*store)(struct backend *b, float *host, const struct backend_buffer *x);
    /* Between stages on devices of their own (struct link_inbox): inbox names this device's memory
     * for n_slots windows, made when first asked for and there until close, or says why there is
     * none; peer_open opens the next stage's, one at a time, -ENOTSUP with why when it can't. With
     * them x = slot of the inbox, and slot of the peer's = x, complete there once sync has
     * returned. peer_close: no window is in hand; nothing may be open. */
    void (*inbox)(struct backend *b, uint32_t n_slots, struct link_inbox *ret);
    int (*peer_open)(struct backend *b, const struct link_inbox *peer, struct why *why);
    void (*peer_close)(struct backend *b);
    void (*take)(struct backend *b, struct backend_buffer *x, uint32_t slot);
    void (*give)(struct backend *b, uint32_t slot, const struct backend_buffer *x);
    /* y = x / sqrt(mean(x^2) + eps) * w */
    void (*rms_norm)(struct backend *b, struct backend_buffer *y, const struct backend_buffer *x,
                     const struct backend_weight *w);
    /* q = rope(Wq x); rope(Wk x) and Wv x go to the arena, into the rows' cells. Rope turns the
     * pairs (2i, 2i+1) of each head (RoFormer, arXiv:2104.09864). w: {Wq, Wk, Wv}. */
    void (*qkv)(struct backend *b, struct backend_buffer *q, struct backend_buffer *x,
                struct backend_weight *const w[3], uint32_t layer);
    /* y = softmax(q K^T / sqrt(head_dim)) V for each head, over the arena's cells up to and
     * including the row's own. Query head h reads K/V head h / (n_heads / n_kv_heads). */
    void (*attend)(struct backend *b, struct backend_buffer *y, const struct backend_buffer *q,
                   uint32_t layer);
    /* x += W y */
    void (*project)(struct backend *b, struct backend_buffer *x, struct backend_buffer *y,
                    const struct backend_weight *w);
    /* h = silu(Wgate x) * (Wup x), silu(v) = v / (1 + exp(-v)) (arXiv:2002.05202) */
    void (*gate_up)(struct backend *b, struct backend_buffer *h, struct backend_buffer *x,
                    const struct backend_weight *gate, const struct backend_weight *up);
    /* y = the n named rows of x. rows stays the caller's and must live until sync. */
    void (*pick)(struct backend *b, struct backend_buffer *y, const struct backend_buffer *x,
                 const uint32_t *rows, uint32_t n);
    /* y = W x */
    void (*matmul)(struct backend *b, struct backend_buffer *y, struct backend_buffer *x,
                   const struct backend_weight *w);
    /* What sampler.h says of each row of x, logits: the tokens and probabilities are there once
     * sync has returned, with the bits that sampler_do gives. rows: [x's rows]; they and what they
     * point to stay the caller's and must live until sync. Their ids and tokens are below n_vocab.
     */
    void (*sample)(struct backend *b, const struct backend_buffer *x, struct sampler_row *rows);
    /* All of a window is enqueued, and launch, not sync, comes next: maybe only when what it begins
     * with is there. Does what can be done until then. */
    void (*prepare)(struct backend *b);
    /* Takes back what is prepared, when nothing flies. */
    void (*drop)(struct backend *b);
    /* Starts what is enqueued without waiting for it, and returns 1: the next window may begin
     * before the sync of this one. Two are begun and not waited for at most. 0: this device
     * computes in sync, which comes next. Or a negative errno: then it isn't begun any more. */
    int (*launch)(struct backend *b);
    bool (*done)(
        struct backend *b); /* whether sync would return the window started first at once */
    /* Waits for the window started first; when none is, starts what is enqueued, and was not
     * prepared, and waits for it. */
    int (*sync)(struct backend *b);
    /* A row of a buffer, readable by the caller until the next operation. A failure to read it is
     * returned by the next sync. */
    const float *(*row)(struct backend *b, const struct backend_buffer *x, uint32_t row);
};

extern const struct backend_ops cpu_backend;

#endif
