/* SPDX-License-Identifier: MIT */
/*
 * The list of operations. Each is split into tasks that any thread takes, then a barrier; with few
 * rows the operations on single rows are done by every thread on rows of its own, without one.
 */
#include "workerd/cpu/ops.h"

#include <assert.h>
#include <errno.h>
#include <string.h>

#include "workerd/cpu/repack.h"

enum {
    TAKES_A_THREAD = 8, /* of an operation's tasks: few enough to make taking them cheap, enough for
                           a thread that was interrupted to be helped */
};

/* This thread's share of an operation: what it takes before the others do. */
static void op_share(struct cpu_op *op, uint32_t thread)
{
    for (;;) {
        uint32_t t = __atomic_fetch_add(&op->next, op->per_take, __ATOMIC_RELAXED);
        if (t >= op->n_tasks) return;
        for (uint32_t end = min_u32(t + op->per_take, op->n_tasks); t < end; t++)
            op->run(op, thread, t);
    }
}

static void list_run(void *arg, uint32_t thread)
{
    struct backend *b = arg;
    for (uint32_t i = 0; i < b->n_ops; i++) {
        struct cpu_op *op = &b->op[i];
        if (op->each) {
            for (uint32_t t = 0; t < op->n_tasks; t++)
                op->run(op, thread, t);
            continue;
        }
        op_share(op, thread);
        if (thread == 0 && b->steps) __atomic_store_n(b->steps, *b->steps + 1, __ATOMIC_RELAXED);
        if (i + 1 < b->n_ops) team_barrier(b->team); /* team_run has one after the last */
    }
}

int cpu_sync(struct backend *b)
{
    if (b->failed == 0 && b->n_ops > 0) team_run(b->team, list_run, b);
    int r = b->failed;
    b->failed = 0;
    b->n_ops = 0;
    return r;
}

/* Appends a copy, or makes the list fail: the caller sized it for its forward pass. */
static void enqueue(struct backend *b, struct cpu_op op)
{
    if (b->n_ops == b->max_ops) {
        b->failed = -ENOBUFS;
        return;
    }
    op.b = b;
    op.next = 0;
    op.per_take = max_u32(1, op.n_tasks / (TAKES_A_THREAD * team_size(b->team)));
    if (op.n_tasks > 0) b->op[b->n_ops++] = op;
}

static void written(struct backend_buffer *x, uint32_t n_rows)
{
    x->n_rows = n_rows;
    x->each = x->quantised = false;
}

/* ---- rows ---- */

static void run_embed(const struct cpu_op *op, uint32_t thread, uint32_t row)
{
    (void)thread;
    const struct backend_weight *w = op->w[0];
    size_t row_bytes = (size_t)w->n_in / ggml_block_values(w->type) * ggml_block_bytes(w->type);
    uint32_t token = min_u32(op->b->win.tokens[row], w->n_out - 1);
    cpu_dequantise(w->type, w->data + token * row_bytes, w->n_in,
                   op->out->f + (size_t)row * op->out->width);
}

void cpu_embed(struct backend *b, struct backend_buffer *x, const struct backend_weight *table)
{
    written(x, b->win.n_rows);
    enqueue(b, (struct cpu_op){.run = run_embed, .n_tasks = b->win.n_rows, .w = {table}, .out = x});
}

static void run_load(const struct cpu_op *op, uint32_t thread, uint32_t row)
{
    (void)thread;
    size_t n = op->out->width;
    memcpy(op->out->f + row * n, op->host_in + row * n, n * sizeof(float));
}

void cpu_load(struct backend *b, struct backend_buffer *x, const float *host)
{
    written(x, b->win.n_rows);
    enqueue(b,
            (struct cpu_op){.run = run_load, .n_tasks = b->win.n_rows, .host_in = host, .out = x});
}

static void run_store(const struct cpu_op *op, uint32_t thread, uint32_t row)
{
    (void)thread;
    size_t n = op->in->width;
    memcpy(op->host_out + row * n, op->in->f + row * n, n * sizeof(float));
}

void cpu_store_rows(struct backend *b, float *host, const struct backend_buffer *x)
{
    enqueue(b, (struct cpu_op){.run = run_store,
                               .n_tasks = x->n_rows,
                               .host_out = host,
                               .in = (struct backend_buffer *)x});
}

static void run_pick(const struct cpu_op *op, uint32_t thread, uint32_t row)
{
    (void)thread;
    size_t n = op->out->width;
    memcpy(op->out->f + row * n, op->in->f + op->rows[row] * n, n * sizeof(float));
}

void cpu_pick(struct backend *b, struct backend_buffer *y, const struct backend_buffer *x,
              const uint32_t *rows, uint32_t n)
{
    written(y, n);
    enqueue(b, (struct cpu_op){.run = run_pick,
                               .n_tasks = n,
                               .rows = rows,
                               .in = (struct backend_buffer *)x,
                               .out = y});
}

static void run_sample(const struct cpu_op *op, uint32_t thread, uint32_t row)
{
    sampler_do(op->b->sampler[thread], op->in->f + (size_t)row * op->in->width, &op->sampled[row]);
}

void cpu_sample(struct backend *b, const struct backend_buffer *x, struct sampler_row *rows)
{
    enqueue(b, (struct cpu_op){.run = run_sample,
                               .n_tasks = x->n_rows,
                               .sampled = rows,
                               .in = (struct backend_buffer *)x});
}

static void run_norm(const struct cpu_op *op, uint32_t thread, uint32_t row)
{
    size_t n = op->in->width, to = cpu_first_row(op->out, op->each, thread) + row;
    op->b->kernels->norm(op->out->f + to * n, op->in->f + row * n, (const float *)op->w[0]->data,
                         op->in->width, op->b->want.eps);
}

void cpu_rms_norm(struct backend *b, struct backend_buffer *y, const struct backend_buffer *x,
                  const struct backend_weight *w)
{
    written(y, x->n_rows);
    y->each = x->n_rows <= EACH_ROWS && team_size(b->team) > 1;
    enqueue(b, (struct cpu_op){.run = run_norm,
                               .n_tasks = x->n_rows,
                               .each = y->each,
                               .w = {w},
                               .in = (struct backend_buffer *)x,
                               .out = y});
}

/* ---- products ---- */

static void run_quantise(const struct cpu_op *op, uint32_t thread, uint32_t row)
{
    const struct backend *b = op->b;
    uint32_t own = cpu_first_row(op->out, op->each, thread) + row;
    size_t n = op->out->width;
    if (op->each && !op->in_each)
        memcpy(op->out->f + own * n, op->out->f + row * n, n * sizeof(float));
    b->kernels->quantise(op->out, own);
}

/* Before a product: codes of x's rows, if the matrix needs them and they aren't there. */
static void quantise(struct backend *b, struct backend_buffer *x, const struct backend_weight *w)
{
    if (w->pack == PACK_F32 || w->pack == PACK_F16 || x->quantised) return;
    assert(x->q); /* it was made to be multiplied */
    bool was_each = x->each;
    x->each = was_each || (x->n_rows <= EACH_ROWS && team_size(b->team) > 1);
    x->quantised = true;
    enqueue(b, (struct cpu_op){.run = run_quantise,
                               .n_tasks = x->n_rows,
                               .each = x->each,
                               .in_each = was_each,
                               .out = x});
}

static void run_product(const struct cpu_op *op, uint32_t thread, uint32_t task)
{
    uint32_t tile = task % op->n_tiles, row = task / op->n_tiles * ROW_BLOCK;
    op->b->kernels->product(op, thread, tile, row, min_u32(ROW_BLOCK, op->n_rows - row));
}

static void product(struct backend *b, struct cpu_op op)
{
    for (uint32_t i = 0; i < ARRAY_LEN(op.w) && op.w[i]; i++)
        quantise(b, op.in, op.w[i]);
    op.run = run_product;
    op.in_each = op.in->each;
    op.n_rows = op.in->n_rows;
    op.n_tasks = op.n_tiles * ((op.n_rows + ROW_BLOCK - 1) / ROW_BLOCK);
    written(op.out, op.n_rows);
    enqueue(b, op);
}

void cpu_qkv(struct backend *b, struct backend_buffer *q, struct backend_buffer *x,
             struct backend_weight *const w[3], uint32_t layer)
{
    product(b, (struct cpu_op){
                   .w = {w[0],       w[1],       w[2]      },
                   .epilogue = {EPILOGUE_Q, EPILOGUE_K, EPILOGUE_V},
                   .n_tiles = w[0]->n_tiles + w[1]->n_tiles + w[2]->n_tiles,
                   .layer = layer,
                   .in = x,
                   .out = q,
    });
}

void cpu_project(struct backend *b, struct backend_buffer *x, struct backend_buffer *y,
                 const struct backend_weight *w)
{
    product(b, (struct cpu_op){
                   .w = {w}, .epilogue = {EPILOGUE_ADD}, .n_tiles = w->n_tiles, .in = y, .out = x});
}

void cpu_gate_up(struct backend *b, struct backend_buffer *h, struct backend_buffer *x,
                 const struct backend_weight *gate, const struct backend_weight *up)
{
    product(b, (struct cpu_op){
                   .w = {gate, up},
                     .gate = true, .n_tiles = gate->n_tiles, .in = x, .out = h
    });
}

void cpu_matmul(struct backend *b, struct backend_buffer *y, struct backend_buffer *x,
                const struct backend_weight *w)
{
    product(b,
            (struct cpu_op){
                .w = {w}, .epilogue = {EPILOGUE_STORE}, .n_tiles = w->n_tiles, .in = x, .out = y});
}

/* ---- attention ---- */

static void run_attend(const struct cpu_op *op, uint32_t thread, uint32_t task)
{
    uint32_t heads = op->b->geo.n_kv_heads;
    op->b->kernels->attend(op, thread, &op->b->win.query[task / heads], task % heads);
}

void cpu_attend(struct backend *b, struct backend_buffer *y, const struct backend_buffer *q,
                uint32_t layer)
{
    written(y, q->n_rows);
    enqueue(b, (struct cpu_op){.run = run_attend,
                               .n_tasks = b->win.n_queries * b->geo.n_kv_heads,
                               .layer = layer,
                               .in = (struct backend_buffer *)q,
                               .out = y});
}
