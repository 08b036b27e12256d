/* SPDX-License-Identifier: MIT */
/*
 * The llama family (arXiv:2307.09288): RMS norm before attention and before the gated feed-forward
 * network, rope over interleaved pairs, query heads in groups that share K/V, no biases. Files of
 * SmolLM2, Llama 2 and 3, and others that say "llama".
 */
#include <errno.h>
#include <math.h>

#include "workerd/arch/arch.h"
#include "workerd/mass.h"

enum {
    LAYERS_MAX = 1024,
    WIDTH_MAX = 1 << 20, /* of a matrix side; keeps every size computed from it inside 64 bits */
    VOCAB_MAX = MASS_VOCAB_MAX,
    CONTEXT_MAX = 1 << 30,
};

struct layer {
    struct backend_weight *attn_norm, *qkv[3], *attn_output;
    struct backend_weight *ffn_norm, *gate, *up, *down;
};

struct head {
    struct backend_weight *token_embd, *output_norm, *output;
};

/* The output matrix of a file whose output is tied to the embedding. */
#define EMBD "token_embd.weight"

static const struct arch_weight weights[] = {
    {"attn_norm.weight",   OF_LAYER, offsetof(struct layer, attn_norm),   DIM_ONE,   DIM_EMBD, NULL},
    {"attn_q.weight",      OF_LAYER, offsetof(struct layer, qkv[0]),      DIM_Q,     DIM_EMBD, NULL},
    {"attn_k.weight",      OF_LAYER, offsetof(struct layer, qkv[1]),      DIM_KV,    DIM_EMBD, NULL},
    {"attn_v.weight",      OF_LAYER, offsetof(struct layer, qkv[2]),      DIM_KV,    DIM_EMBD, NULL},
    {"attn_output.weight", OF_LAYER, offsetof(struct layer, attn_output), DIM_EMBD,  DIM_Q,    NULL},
    {"ffn_norm.weight",    OF_LAYER, offsetof(struct layer, ffn_norm),    DIM_ONE,   DIM_EMBD, NULL},
    {"ffn_gate.weight",    OF_LAYER, offsetof(struct layer, gate),        DIM_FF,    DIM_EMBD, NULL},
    {"ffn_up.weight",      OF_LAYER, offsetof(struct layer, up),          DIM_FF,    DIM_EMBD, NULL},
    {"ffn_down.weight",    OF_LAYER, offsetof(struct layer, down),        DIM_EMBD,  DIM_FF,   NULL},
    {"token_embd.weight",  OF_FIRST, offsetof(struct head,  token_embd),  DIM_VOCAB, DIM_EMBD, NULL},
    {"output_norm.weight", OF_LAST,  offsetof(struct head,  output_norm), DIM_ONE,   DIM_EMBD, NULL},
    {"output.weight",      OF_LAST,  offsetof(struct head,  output),      DIM_VOCAB, DIM_EMBD, EMBD},
};

static int heads(const struct gguf *g, struct why *why, struct arch_params *p)
{
    const struct arch *a = &arch_llama;
    uint32_t v_dim, embd = p->dim[DIM_EMBD];
    int r = arch_u32(g, a, "attention.head_count", ARCH_HEADS_MAX, why, &p->n_heads);
    if (r == 0)
        r = arch_u32_or(g, a, "attention.head_count_kv", ARCH_HEADS_MAX, p->n_heads, why,
                        &p->n_kv_heads);
    if (r < 0) return r;
    uint32_t each = max_u32(1, embd / p->n_heads);
    r = arch_u32_or(g, a, "attention.key_length", ARCH_ROPE_DIMS_MAX, each, why, &p->head_dim);
    if (r == 0) r = arch_u32_or(g, a, "attention.value_length", WIDTH_MAX, each, why, &v_dim);
    if (r == 0)
        r = arch_u32_or(g, a, "rope.dimension_count", p->head_dim, p->head_dim, why, &p->rope_dims);
    if (r < 0) return r;
    if (v_dim != p->head_dim)
        return why_set(why, -ENOTSUP, "%s: K heads of %u values and V heads of %u: must be equal",
                       gguf_path(g), p->head_dim, v_dim);
    if (p->head_dim > ARCH_ROPE_DIMS_MAX)
        return why_set(why, -ENOTSUP, "%s: heads of %u values: at most %d", gguf_path(g),
                       p->head_dim, ARCH_ROPE_DIMS_MAX);
    p->dim[DIM_Q] = p->n_heads * p->head_dim;
    p->dim[DIM_KV] = p->n_kv_heads * p->head_dim;
    return arch_rope(g, a, why, p);
}

static int params(const struct gguf *g, struct why *why, struct arch_params *ret)
{
    const struct arch *a = &arch_llama;
    struct arch_params p = {0};
    uint32_t experts;
    p.dim[DIM_ONE] = 1;
    int r = arch_u32(g, a, "block_count", LAYERS_MAX, why, &p.n_layers);
    if (r == 0) r = arch_u32(g, a, "embedding_length", WIDTH_MAX, why, &p.dim[DIM_EMBD]);
    if (r == 0) r = arch_u32(g, a, "feed_forward_length", WIDTH_MAX, why, &p.dim[DIM_FF]);
    if (r == 0) r = arch_u32(g, a, "context_length", CONTEXT_MAX, why, &p.n_ctx_train);
    if (r == 0) r = arch_f64_or(g, a, "attention.layer_norm_rms_epsilon", 1e-5, why, &p.eps);
    if (r == 0) r = arch_u32_or(g, a, "expert_count", UINT32_MAX, 1, why, &experts);
    if (r == 0) r = heads(g, why, &p);
    if (r < 0) return r;
    if (experts > 1)
        return why_set(why, -ENOTSUP, "%s: a mixture of %u experts isn't supported", gguf_path(g),
                       experts);
    const struct gguf_tensor *t = gguf_tensor(g, "token_embd.weight");
    if (!t || t->n_dims != 2 || t->ne[1] > VOCAB_MAX)
        return why_set(why, -EPROTO, "%s: no token_embd.weight of two dimensions", gguf_path(g));
    p.dim[DIM_VOCAB] = (uint32_t)t->ne[1];
    *ret = p;
    return 0;
}

static void embed(const struct arch_pass *p)
{
    const struct head *h = p->head;
    p->ops->embed(p->backend, p->buf->x, h->token_embd);
}

static void layers_forward(const struct arch_pass *p)
{
    const struct backend_ops *ops = p->ops;
    const struct arch_buffers *buf = p->buf;
    struct backend *b = p->backend;
    for (uint32_t i = 0; i < p->n_layers; i++) {
        const struct layer *l = (const struct layer *)p->layers + i;
        ops->rms_norm(b, buf->norm, buf->x, l->attn_norm);
        ops->qkv(b, buf->q, buf->norm, l->qkv, i);
        ops->attend(b, buf->attn, buf->q, i);
        ops->project(b, buf->x, buf->attn, l->attn_output);
        ops->rms_norm(b, buf->norm, buf->x, l->ffn_norm);
        ops->gate_up(b, buf->ff, buf->norm, l->gate, l->up);
        ops->project(b, buf->x, buf->ff, l->down);
    }
}

static void head_forward(const struct arch_pass *p)
{
    const struct head *h = p->head;
    p->ops->rms_norm(p->backend, p->buf->norm, p->buf->head, h->output_norm);
    p->ops->matmul(p->backend, p->buf->logits, p->buf->norm, h->output);
}

const struct arch arch_llama = {
    .name = "llama",
    .weights = weights,
    .n_weights = ARRAY_LEN(weights),
    .layer_bytes = sizeof(struct layer),
    .head_bytes = sizeof(struct head),
    .params = params,
    .embed = embed,
    .layers_forward = layers_forward,
    .head_forward = head_forward,
};
