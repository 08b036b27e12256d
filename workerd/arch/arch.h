/* SPDX-License-Identifier: MIT */
#ifndef WORKERD_ARCH_ARCH_H
#define WORKERD_ARCH_ARCH_H
/*
 * A model family: which weights a layer has, which files of the family are refused, and the forward
 * pass. A family is one file here, one line in the list (list.c), one in meson.build. Nothing
 * outside this folder asks which family a model is of.
 */
#include "common/gguf.h"
#include "workerd/backend.h"

enum { ARCH_HEADS_MAX = 1024, ARCH_ROPE_DIMS_MAX = 1024 };

/* Lengths that a weight's two dimensions can have. */
enum arch_dim { DIM_ONE, DIM_EMBD, DIM_Q, DIM_KV, DIM_FF, DIM_VOCAB, DIM_COUNT };

struct arch_params {
    uint32_t n_layers, n_heads, n_kv_heads, head_dim, n_ctx_train;
    uint32_t dim[DIM_COUNT];
    uint32_t rope_dims;
    double rope_freq[ARCH_ROPE_DIMS_MAX / 2]; /* radians a position, of each pair */
    double eps;
};

enum arch_where {
    OF_LAYER, /* "blk.N." goes before the name */
    OF_FIRST, /* of the stage with the first layer: the embedding, looked up */
    OF_LAST,  /* of the stage with the last layer */
};

/* A weight: name, place, where its pointer goes in the family's struct, shape [out][in]. A vector
 * has out DIM_ONE. other: the tensor that serves when there is none of this name. */
struct arch_weight {
    const char *name;
    enum arch_where where;
    size_t at;
    enum arch_dim out, in;
    const char *other;
};

/* Buffers of a window, one set a stage. By matrices norm, attn and ff alone can be multiplied. */
struct arch_buffers {
    struct backend_buffer *x;      /* the residual stream, n_embd wide */
    struct backend_buffer *norm;   /* n_embd */
    struct backend_buffer *q;      /* DIM_Q */
    struct backend_buffer *attn;   /* DIM_Q */
    struct backend_buffer *ff;     /* DIM_FF */
    struct backend_buffer *head;   /* n_embd: the rows whose logits are wanted */
    struct backend_buffer *logits; /* DIM_VOCAB */
};

/* What a forward pass works on. */
struct arch_pass {
    const struct backend_ops *ops;
    struct backend *backend;
    const struct arch_buffers *buf;
    const void *layers; /* the family's struct a layer, n_layers of them */
    const void *head;   /* the family's struct for the weights outside the layers */
    uint32_t n_layers;
};

struct arch {
    const char *name; /* as in general.architecture */
    const struct arch_weight *weights;
    size_t n_weights, layer_bytes, head_bytes;
    /* Reads the metadata; the dimensions of tensors are checked against it afterwards. */
    int (*params)(const struct gguf *g, struct why *why, struct arch_params *ret);
    void (*embed)(const struct arch_pass *p);
    void (*layers_forward)(const struct arch_pass *p);
    /* head rows -> logits */
    void (*head_forward)(const struct arch_pass *p);
};

/* The family of a file, or a sentence that names the known ones. */
int arch_find(const struct gguf *g, struct why *why, const struct arch **ret);

/* What families share in reading metadata: KEY below is "<arch>.KEY". Each failure names the key.
 */
int arch_u32(const struct gguf *g, const struct arch *a, const char *key, uint32_t max,
             struct why *why, uint32_t *ret);
/* The fallback when the key is missing. */
int arch_u32_or(const struct gguf *g, const struct arch *a, const char *key, uint32_t max,
                uint32_t fallback, struct why *why, uint32_t *ret);
int arch_f64_or(const struct gguf *g, const struct arch *a, const char *key, double fallback,
                struct why *why, double *ret);
/* rope.freq_base, rope.scaling.* and rope_freqs.weight, into rope_freq (rope_dims is set). */
int arch_rope(const struct gguf *g, const struct arch *a, struct why *why, struct arch_params *ret);

extern const struct arch arch_llama;

#endif
