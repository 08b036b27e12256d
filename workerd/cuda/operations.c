/* SPDX-License-Identifier: MIT */
/*
 * The operations of backend.h: each adds its launches to the window's list (list.c), with the
 * arguments that their kernels take, and notes what the buffers hold then.
 */
#include <assert.h>
#include <errno.h>
#include <string.h>

#include "workerd/cuda/list.h"

/* Whether the launch added last may begin while the one before it ends. */
static bool dependent(const struct backend *b)
{
    const struct cuda_op *before = cuda_op_back(b, 1);
    return b->products.overlaps && before && before->kind != CUDA_OP_PASS;
}

void cuda_written(struct backend_buffer *x, uint32_t n_rows, uint32_t n_plain)
{
    x->n_rows = n_rows;
    x->n_plain = n_plain;
    x->quantised = false;
    x->halved = false;
    x->scaled = false;
    x->floats = true;
}

void cuda_turn_add(struct backend *b)
{
    struct cuda_turn *t = &cuda_op_add(b, CUDA_OP_TURN)->turn;
    t->rows = b->rows;
    t->freq = b->rope_freq;
    t->rope = b->rope;
    t->n_pairs = b->want.rope_dims / 2;
    t->n_rows = b->shape.n_rows;
}

void cuda_embed(struct backend *b, struct backend_buffer *x, const struct backend_weight *table)
{
    cuda_turn_add(b);
    struct cuda_lookup *a = &cuda_op_add(b, CUDA_OP_LOOKUP)->lookup;
    a->rows = b->rows;
    a->chosen = b->choices.token;
    a->late = b->now->late;
    a->table = table->m.codes;
    a->type = table->type;
    a->n_out = table->m.n_out;
    a->n_rows = b->shape.n_rows;
    a->y = x->rows;
    cuda_written(x, b->shape.n_rows, b->shape.n_plain);
}

void cuda_carry_add(struct backend *b, const struct cuda_rows *x, bool out)
{
    struct cuda_carry *a = &cuda_op_add(b, CUDA_OP_CARRY)->carry;
    a->ways = b->ways;
    a->x = x->f;
    a->n_quads = b->shape.n_rows * x->width / 4;
    a->out = out;
    a->dependent = dependent(b);
}

static struct cuda_rows_copy *copy_add(struct backend *b, enum cuda_op_kind kind,
                                       const struct cuda_rows *x, uint32_t n_rows)
{
    struct cuda_rows_copy *c = &cuda_op_add(b, kind)->copy;
    c->host = b->now->activations;
    c->device = x->f;
    c->bytes = (uint64_t)n_rows * x->width * sizeof(float);
    return c;
}

void cuda_load(struct backend *b, struct backend_buffer *x, const float *host)
{
    cuda_turn_add(b);
    b->now->load_bytes = copy_add(b, CUDA_OP_LOAD, &x->rows, b->shape.n_rows)->bytes;
    b->now->load_from = host;
    cuda_written(x, b->shape.n_rows, b->shape.n_plain);
}

void cuda_store(struct backend *b, float *host, const struct backend_buffer *x)
{
    b->now->store_bytes = copy_add(b, CUDA_OP_STORE, &x->rows, x->n_rows)->bytes;
    b->now->store_to = host;
}

static struct cuda_norm *norm_add(struct backend *b, const struct backend_buffer *y,
                                  uint32_t first_row, uint32_t n_rows)
{
    struct cuda_norm *a = &cuda_op_add(b, CUDA_OP_NORM)->norm;
    a->x = y->norm_of;
    a->y = y->rows;
    a->w = y->norm_w;
    a->eps = b->want.eps;
    a->first_row = first_row;
    a->n_rows = n_rows;
    a->dependent = dependent(b);
    return a;
}

/* The product that made x, as the last thing so far, makes the codes of plain rows as well; float32
 * values only when a matrix needs them (need). */
void cuda_rms_norm(struct backend *b, struct backend_buffer *y, const struct backend_buffer *x,
                   const struct backend_weight *w)
{
    struct cuda_op *last = cuda_op_back(b, 0);
    struct cuda_product *p = last && last->kind == CUDA_OP_PRODUCT ? &last->product : NULL;
    const bool fused =
        !b->want.float32 && p && !p->halves && p->epilogue == CUDA_ADD && p->y.f == x->rows.f;
    cuda_written(y, x->n_rows, x->n_plain);
    y->floats = !fused && x->n_plain == x->n_rows && b->float_matrices;
    y->norm_of = x->rows;
    y->norm_w = w->m.codes;
    if (fused) {
        p->norm = w->m.codes;
        p->z = y->rows;
    } else if (x->n_plain > 0) {
        norm_add(b, y, 0, x->n_plain)->floats = y->floats;
    }
    if (x->n_plain < x->n_rows) norm_add(b, y, x->n_plain, x->n_rows - x->n_plain)->halves = true;
    y->quantised = true;
    y->scaled = true;
    y->halved = true;
}

/* What a matrix needs of x's rows and whoever wrote them didn't make: codes of plain rows and
 * halves of the others, or float32 values. */
static void need(struct backend *b, struct backend_buffer *x, const struct backend_weight *w)
{
    if (cuda_is_float(w->pack)) {
        if (x->floats) return;
        norm_add(b, x, 0, x->n_rows)->floats = true; /* the same codes */
        x->floats = true;
        return;
    }
    assert(x->rows.q); /* it was made to be multiplied */
    if (!x->quantised && x->n_plain > 0) {
        struct cuda_quantise *a = &cuda_op_add(b, CUDA_OP_QUANTISE)->quantise;
        a->x = x->rows;
        a->n_rows = x->n_plain;
    }
    if (!x->halved && x->n_plain < x->n_rows) {
        struct cuda_halve *a = &cuda_op_add(b, CUDA_OP_HALVE)->halve;
        a->x = x->rows;
        a->first_row = x->n_plain;
        a->n_rows = x->n_rows - x->n_plain;
        a->dependent = dependent(b);
    }
    x->quantised = x->halved = true;
}

/* A product of x with w and what is added to it of matrices of the same type. */
static struct cuda_product product_of(struct backend *b, enum cuda_epilogue epilogue,
                                      const struct backend_weight *w)
{
    return (struct cuda_product){
        .pack = w->pack,
        .epilogue = epilogue,
        .n_matrices = 1,
        .m[0] = w->m,
        .many = b->products.many,
        .multiprocessors = b->multiprocessors,
        .deep_tiles = b->products.deep ? b->multiprocessors : 0,
        .eps = b->want.eps,
    };
}

static struct cuda_product *part_add(struct backend *b, const struct cuda_product *p,
                                     uint32_t n_rows)
{
    struct cuda_product *a = &cuda_op_add(b, CUDA_OP_PRODUCT)->product;
    memcpy(a, p, sizeof(*a)); /* with what lies between the fields: zeros, as everywhere */
    a->n_rows = n_rows;
    a->dependent = dependent(b);
    return a;
}

/* Prompts' rows first: a norm that follows goes with the other rows' product. */
static void product_add(struct backend *b, struct cuda_product *p, struct backend_buffer *y,
                        struct backend_buffer *x, const struct backend_weight *w)
{
    need(b, x, w);
    const uint32_t plain = cuda_is_float(w->pack) ? x->n_rows : x->n_plain;
    p->x = x->rows;
    p->y = y->rows;
    if (plain < x->n_rows) {
        struct cuda_product *a = part_add(b, p, x->n_rows - plain);
        a->halves = true;
        a->first_row = plain;
        a->floats = b->float_matrices;
    }
    p->scaled = x->scaled && !cuda_is_float(w->pack);
    if (plain > 0) (void)part_add(b, p, plain);
    cuda_written(y, x->n_rows, x->n_plain);
}

/* K and V are rounded by the attention that follows: of a lane's several rows each needs those
 * before it. */
static bool keeps_late(const struct backend *b)
{
    return b->flash && b->block.k_bits == 8 && b->block.v_bits == 8 && b->shape.lone_rows;
}

void cuda_qkv(struct backend *b, struct backend_buffer *q, struct backend_buffer *x,
              struct backend_weight *const w[3], uint32_t layer)
{
    if (b->passing.n > 0) cuda_op_add(b, CUDA_OP_PASS)->layer = layer;
    for (uint32_t i = 0; i < 3;) {
        const struct backend_weight *first = w[i];
        struct cuda_product p = product_of(b, CUDA_QKV, first);
        for (p.n_matrices = 0; i < 3 && w[i]->pack == first->pack; i++) {
            p.m[p.n_matrices] = w[i]->m;
            p.part[p.n_matrices++] = i;
        }
        if (b->arena) p.kv = cuda_kv_of(b, layer);
        product_add(b, &p, q, x, first);
    }
    if (!b->fresh || !b->arena || keeps_late(b)) return;
    struct cuda_keep *k = &cuda_op_add(b, CUDA_OP_KEEP)->keep;
    k->kv = cuda_kv_of(b, layer);
    k->n_rows = x->n_rows;
    k->dependent = dependent(b);
}

static struct cuda_attend *attend_add(struct backend *b, enum cuda_op_kind kind,
                                      struct backend_buffer *y, const struct backend_buffer *q,
                                      uint32_t layer)
{
    struct cuda_attend *a = &cuda_op_add(b, kind)->attend;
    if (b->arena) a->kv = cuda_kv_of(b, layer);
    a->q = q->rows;
    a->y = y->rows;
    a->scale = b->scale;
    a->ml = b->part_ml;
    a->o = b->part_o;
    a->dependent = dependent(b);
    return a;
}

/* All of a span's cells in one block of threads, or divided (window.c). */
static void spans_attend(struct backend *b, struct backend_buffer *y,
                         const struct backend_buffer *q, uint32_t layer)
{
    for (uint32_t i = 0; i < b->shape.n_spans; i += b->shape.span_turn) {
        struct cuda_attend *a = attend_add(b, CUDA_OP_FLASH_TILES, y, q, layer);
        a->spans = b->spans;
        a->first_row = i;
        a->n_rows = min_u32(b->shape.span_turn, b->shape.n_spans - i);
        a->stretches = b->shape.span_stretches;
        a->each = b->shape.span_each;
        a->tiles = b->tiles;
    }
}

/* Rows in turns, as many as the partial sums have room for. */
void cuda_attend(struct backend *b, struct backend_buffer *y, const struct backend_buffer *q,
                 uint32_t layer)
{
    uint32_t splits = 1, cells = cuda_part_cells(b), need = (b->shape.longest + cells - 1) / cells;
    while (splits < need)
        splits *= 2;
    uint32_t rows = (uint32_t)min_u64(b->part_rows_splits / splits, UINT16_MAX);
    cuda_written(y, q->n_rows, q->n_plain);
    y->quantised = b->shape.n_spans == 0 && b->want.head_dim % CUDA_BLOCK == 0;
    for (uint32_t i = 0; i < b->shape.n_listed; i += rows) {
        struct cuda_attend *a =
            attend_add(b, b->flash ? CUDA_OP_FLASH : CUDA_OP_ATTEND, y, q, layer);
        a->listed = b->shape.n_spans ? b->listed : NULL;
        a->first_row = i;
        a->n_rows = min_u32(rows, b->shape.n_listed - i);
        a->n_splits = splits;
        a->together = cuda_together(b, a->n_rows, splits);
        a->keep = keeps_late(b);
        a->alone = b->shape.lone_rows;
        a->quantise = y->quantised;
    }
    if (b->shape.n_spans > 0) spans_attend(b, y, q, layer);
}

static void alone_add(struct backend *b, enum cuda_epilogue epilogue, struct backend_buffer *y,
                      struct backend_buffer *x, const struct backend_weight *w)
{
    struct cuda_product p = product_of(b, epilogue, w);
    product_add(b, &p, y, x, w);
}

void cuda_project(struct backend *b, struct backend_buffer *x, struct backend_buffer *y,
                  const struct backend_weight *w)
{
    alone_add(b, CUDA_ADD, x, y, w);
}

void cuda_gate_up(struct backend *b, struct backend_buffer *h, struct backend_buffer *x,
                  const struct backend_weight *gate, const struct backend_weight *up)
{
    if (gate->pack == up->pack) {
        struct cuda_product p = product_of(b, CUDA_GATE, gate);
        p.m[1] = up->m;
        p.n_matrices = 2;
        product_add(b, &p, h, x, gate);
    } else {
        alone_add(b, CUDA_STORE, h, x, gate);
        alone_add(b, CUDA_GATED, h, x, up);
    }
    h->quantised = true;
    h->halved = !cuda_is_float(up->pack);
    h->floats = h->n_plain == h->n_rows || b->float_matrices;
}

void cuda_matmul(struct backend *b, struct backend_buffer *y, struct backend_buffer *x,
                 const struct backend_weight *w)
{
    alone_add(b, CUDA_STORE, y, x, w);
}

void cuda_pick(struct backend *b, struct backend_buffer *y, const struct backend_buffer *x,
               const uint32_t *rows, uint32_t n)
{
    if (n > CUDA_PICKS) cuda_refuse(b, -EINVAL);
    if (b->now->refused) return;
    memcpy(b->now->picks, rows, n * sizeof(*rows));
    (void)cuda_ok(b, cudaMemcpyAsync(b->picks, b->now->picks, n * sizeof(*rows),
                                     cudaMemcpyHostToDevice, b->stream));
    struct cuda_pick *a = &cuda_op_add(b, CUDA_OP_PICK)->pick;
    a->x = x->rows;
    a->y = y->rows;
    a->rows = b->picks;
    a->n_rows = n;
    a->dependent = dependent(b);
    cuda_written(y, n, n);
}

void cuda_sample(struct backend *b, const struct backend_buffer *x, struct sampler_row *rows)
{
    if (cuda_choices_up(b, rows, x->n_rows)) {
        struct cuda_argmax *a = &cuda_op_add(b, CUDA_OP_ARGMAX)->argmax;
        a->x = x->rows;
        a->n_rows = x->n_rows;
        a->n_vocab = b->want.n_vocab;
        a->token = b->choices.token;
        a->host_token = b->choices.host_token;
        a->dependent = dependent(b);
        return;
    }
    struct cuda_sample *a = &cuda_op_add(b, CUDA_OP_SAMPLE)->sample;
    *a = b->choices;
    a->x = x->rows;
    a->n_rows = x->n_rows;
    a->dependent = dependent(b);
}
