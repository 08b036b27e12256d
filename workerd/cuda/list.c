/* SPDX-License-Identifier: MIT */
/*
 * The list of operations and the graphs made of it. An entry holds a launch's arguments and nothing
 * of the window but its shape: the number of rows, and how many parts of attention the longest of
 * them can have, as a power of two. So a list whose entries are those of an earlier one is that
 * list's graph.
 */
#include <assert.h>
#include <errno.h>
#include <string.h>

#include "common/log.h"
#include "workerd/cuda/cuda.h"

enum {
    GRAPHS_MAX =
        96, /* shapes that are kept: row counts in use times a few lengths, times two flights */
    CAPTURE_AFTER = 2, /* launches of a shape before it is worth a graph */
};

enum op_kind {
    OP_TURN,
    OP_LOOKUP,
    OP_LOAD,
    OP_STORE,
    OP_NORM,
    OP_QUANTISE,
    OP_PRODUCT,
    OP_KEEP,
    OP_CARRY,
    OP_PASS,
    OP_ATTEND,
    OP_FLASH,
    OP_FLASH_TILES,
    OP_PICK,
    OP_ARGMAX,
    OP_SAMPLE,
};

struct copy {
    float *host, *device;
    uint64_t bytes;
};

struct quantise {
    struct cuda_rows x;
    uint32_t n_rows;
};

struct op { /* zeroed before it is filled: lists are compared by their bytes */
    uint32_t kind, pad_;
    union {
        struct cuda_turn turn;
        struct cuda_lookup lookup;
        struct copy copy;
        struct cuda_norm norm;
        struct quantise quantise;
        struct cuda_product product;
        struct cuda_keep keep;
        struct cuda_carry carry;
        uint32_t layer; /* of OP_PASS */
        struct cuda_attend attend;
        struct cuda_pick pick;
        struct cuda_argmax argmax;
        struct cuda_sample sample;
    };
};

struct graph {
    struct op *op; /* the list that it is of; NULL: free */
    uint32_t n_ops, seen;
    uint64_t used;
    cudaGraphExec_t exec; /* NULL: not captured yet */
};

struct cuda_list {
    struct op *op;
    uint32_t n_ops, max_ops;
    uint64_t clock;
    struct graph graph[GRAPHS_MAX], *prepared; /* prepared: NULL if the list is launched as it is */
};

struct cuda_list *cuda_list_new(uint32_t max_ops)
{
    struct cuda_list *l = xnew(struct cuda_list);
    l->op = xcalloc(max_ops, sizeof(*l->op));
    l->max_ops = max_ops;
    return l;
}

static void graph_fini(struct graph *g)
{
    if (g->exec) (void)cudaGraphExecDestroy(g->exec);
    free(g->op);
    *g = (struct graph){0};
}

void cuda_list_clear(struct cuda_list *l)
{
    for (size_t i = 0; i < GRAPHS_MAX; i++)
        graph_fini(&l->graph[i]);
}

void cuda_list_free(struct cuda_list *l)
{
    if (!l) return;
    cuda_list_clear(l);
    free(l->op);
    free(l);
}

/* ---- launching ---- */

static cudaError_t copy_rows(cudaStream_t s, const struct copy *c, bool up)
{
    return up ? cudaMemcpyAsync(c->device, c->host, c->bytes, cudaMemcpyHostToDevice, s)
              : cudaMemcpyAsync(c->host, c->device, c->bytes, cudaMemcpyDeviceToHost, s);
}

static cudaError_t op_launch(cudaStream_t s, const struct op *op)
{
    switch (op->kind) {
    case OP_TURN:
        return cuda_launch_turn(s, &op->turn);
    case OP_LOOKUP:
        return cuda_launch_lookup(s, &op->lookup);
    case OP_LOAD:
        return copy_rows(s, &op->copy, true);
    case OP_STORE:
        return copy_rows(s, &op->copy, false);
    case OP_NORM:
        return cuda_launch_norm(s, &op->norm);
    case OP_QUANTISE:
        return cuda_launch_quantise(s, &op->quantise.x, op->quantise.n_rows);
    case OP_PRODUCT:
        return cuda_launch_product(s, &op->product);
    case OP_KEEP:
        return cuda_launch_keep(s, &op->keep);
    case OP_CARRY:
        return cuda_launch_carry(s, &op->carry);
    case OP_ATTEND:
        return cuda_launch_attend(s, &op->attend);
    case OP_FLASH:
        return cuda_launch_flash(s, &op->attend);
    case OP_FLASH_TILES:
        return cuda_launch_flash_tiles(s, &op->attend);
    case OP_PICK:
        return cuda_launch_pick(s, &op->pick);
    case OP_ARGMAX:
        return cuda_launch_argmax(s, &op->argmax);
    default:
        return cuda_launch_sample(s, &op->sample);
    }
}

static void ops_launch(struct backend *b)
{
    for (uint32_t i = 0; i < b->list->n_ops && b->failed == cudaSuccess; i++) {
        const struct op *op = &b->list->op[i];
        if (op->kind == OP_PASS)
            cuda_passing_layer(b, op->layer);
        else
            (void)cuda_ok(b, op_launch(b->stream, op));
    }
}

static bool graph_is(const struct graph *g, const struct cuda_list *l)
{
    return g->op && g->n_ops == l->n_ops && memcmp(g->op, l->op, l->n_ops * sizeof(*l->op)) == 0;
}

/* The list's graph, made when there is none; the one that wasn't used for longest gives way. */
static struct graph *graph_find(struct cuda_list *l)
{
    struct graph *oldest = &l->graph[0];
    for (size_t i = 0; i < GRAPHS_MAX; i++) {
        struct graph *g = &l->graph[i];
        if (graph_is(g, l)) return g;
        if (g->used < oldest->used) oldest = g;
    }
    graph_fini(oldest);
    oldest->op = xcalloc(l->n_ops, sizeof(*l->op));
    oldest->n_ops = l->n_ops;
    memcpy(oldest->op, l->op, l->n_ops * sizeof(*l->op));
    return oldest;
}

static void graph_capture(struct backend *b, struct graph *g)
{
    cudaGraph_t made = NULL;
    if (!cuda_ok(b, cudaStreamBeginCapture(b->stream, cudaStreamCaptureModeThreadLocal))) return;
    ops_launch(b);
    if (!cuda_ok(b, cudaStreamEndCapture(b->stream, &made))) return;
    (void)cuda_ok(b, cudaGraphInstantiate(&g->exec, made, 0));
    (void)cudaGraphDestroy(made);
}

/* The graph to launch, or NULL. */
static struct graph *list_graph(struct backend *b)
{
    struct cuda_list *l = b->list;
    if (b->n_rows > CUDA_ROWS_GRAPH || b->passing.n > 0 || l->n_ops == 0) return NULL;
    struct graph *g = graph_find(l);
    g->used = ++l->clock;
    if (g->seen < CAPTURE_AFTER && ++g->seen < CAPTURE_AFTER) return NULL;
    if (!g->exec) graph_capture(b, g);
    return g;
}

static int outcome(const struct backend *b)
{
    if (b->failed != cudaSuccess) log_error("%s: %s", b->name, cudaGetErrorString(b->failed));
    return b->refused ? b->refused : b->failed != cudaSuccess ? -EIO : 0;
}

void cuda_prepare(struct backend *b)
{
    b->prepared = true;
    b->list->prepared = NULL;
    if (b->refused || b->failed != cudaSuccess) return;
    const struct cuda_ways *ways = b->now->ways;
    if (ways->in || ways->out)
        (void)cuda_ok(
            b, cudaMemcpyAsync(b->ways, ways, sizeof(*ways), cudaMemcpyHostToDevice, b->stream));
    b->list->prepared = list_graph(b);
}

void cuda_drop(struct backend *b)
{
    assert(b->n_flying == 0);
    b->prepared = false;
    b->list->n_ops = 0;
    b->now->n_sampled = 0;
    cuda_window_undo(b);
    (void)cuda_ok(b, cudaStreamSynchronize(b->stream)); /* its copies to the device */
}

int cuda_launch(struct backend *b)
{
    if (!b->prepared) cuda_prepare(b);
    b->prepared = false;
    const struct graph *g = b->list->prepared;
    if (!b->refused) cuda_window_late(b);
    cuda_copy_launch(b, &b->take_late);
    if (!b->refused && b->failed == cudaSuccess && g)
        (void)cuda_ok(b, cudaGraphLaunch(g->exec, b->stream));
    else if (!b->refused)
        ops_launch(b);
    b->list->n_ops = 0;
    cuda_copy_launch(b, &b->give_late);
    (void)cuda_ok(b, cudaEventRecord(b->now->done, b->stream));
    int r = outcome(b);
    if (r < 0) return r;
    b->n_flying++;
    return 1;
}

/* The one before the last begun, when that is on its way. */
static struct cuda_flight *first_flying(struct backend *b)
{
    return b->n_flying + b->prepared == 2 ? &b->flight[b->now == &b->flight[0]] : b->now;
}

bool cuda_done(struct backend *b)
{
    return b->n_flying == 0 || cudaEventQuery(first_flying(b)->done) != cudaErrorNotReady;
}

int cuda_sync(struct backend *b)
{
    assert(b->n_flying > 0 || !b->prepared);
    int r = b->n_flying == 0 ? cuda_launch(b) : 0;
    if (r < 0) return r;
    struct cuda_flight *f = first_flying(b);
    (void)cuda_ok(b, cudaEventSynchronize(f->done));
    b->n_flying--;
    r = outcome(b);
    if (r == 0 && f->store_to) memcpy(f->store_to, f->activations, f->store_bytes);
    if (r == 0) cuda_choices_read(f);
    f->n_sampled = 0;
    return r;
}

/* ---- operations ---- */

static struct op *op_add(struct backend *b, enum op_kind kind)
{
    static struct op nowhere;
    struct cuda_list *l = b->list;
    struct op *op = &nowhere;
    if (l->n_ops < l->max_ops)
        op = &l->op[l->n_ops++];
    else
        b->refused = -ENOBUFS;
    memset(op, 0, sizeof(*op));
    op->kind = kind;
    return op;
}

/* Whether the launch added last may begin while the one before it ends. */
static bool dependent(const struct backend *b)
{
    uint32_t n = b->list->n_ops;
    return b->products.overlaps && n > 1 && b->list->op[n - 2].kind != OP_PASS;
}

void cuda_written(struct backend_buffer *x, uint32_t n_rows)
{
    x->n_rows = n_rows;
    x->quantised = false;
    x->scaled = false;
    x->floats = true;
}

void cuda_turn_add(struct backend *b)
{
    struct cuda_turn *t = &op_add(b, OP_TURN)->turn;
    t->rows = b->rows;
    t->freq = b->rope_freq;
    t->rope = b->rope;
    t->n_pairs = b->want.rope_dims / 2;
    t->n_rows = b->n_rows;
}

void cuda_embed(struct backend *b, struct backend_buffer *x, const struct backend_weight *table)
{
    cuda_turn_add(b);
    struct cuda_lookup *a = &op_add(b, OP_LOOKUP)->lookup;
    a->rows = b->rows;
    a->chosen = b->choices.token;
    a->late = b->now->late;
    a->table = table->m.codes;
    a->type = table->type;
    a->n_out = table->m.n_out;
    a->n_rows = b->n_rows;
    a->y = x->rows;
    cuda_written(x, b->n_rows);
}

void cuda_carry_add(struct backend *b, struct backend_buffer *x, bool out)
{
    struct cuda_carry *a = &op_add(b, OP_CARRY)->carry;
    a->ways = b->ways;
    a->x = x->rows.f;
    a->n_quads = b->n_rows * x->rows.width / 4;
    a->out = out;
    a->dependent = dependent(b);
}

static struct copy *copy_add(struct backend *b, enum op_kind kind, const struct cuda_rows *x,
                             uint32_t n_rows)
{
    struct copy *c = &op_add(b, kind)->copy;
    c->host = b->now->activations;
    c->device = x->f;
    c->bytes = (uint64_t)n_rows * x->width * sizeof(float);
    return c;
}

void cuda_load(struct backend *b, struct backend_buffer *x, const float *host)
{
    cuda_turn_add(b);
    b->now->load_bytes = copy_add(b, OP_LOAD, &x->rows, b->n_rows)->bytes;
    b->now->load_from = host;
    cuda_written(x, b->n_rows);
}

void cuda_store(struct backend *b, float *host, const struct backend_buffer *x)
{
    b->now->store_bytes = copy_add(b, OP_STORE, &x->rows, x->n_rows)->bytes;
    b->now->store_to = host;
}

static void norm_add(struct backend *b, struct backend_buffer *y, const struct cuda_rows *x,
                     const float *w, uint32_t n_rows)
{
    struct cuda_norm *a = &op_add(b, OP_NORM)->norm;
    a->x = *x;
    a->y = y->rows;
    a->w = w;
    a->eps = b->want.eps;
    a->scaled = true;
    a->n_rows = n_rows;
    a->dependent = dependent(b);
    cuda_written(y, n_rows);
}

/* The product that made x, as the last thing so far, makes the codes as well; float32 values only
 * when a matrix needs them (need). */
void cuda_rms_norm(struct backend *b, struct backend_buffer *y, const struct backend_buffer *x,
                   const struct backend_weight *w)
{
    struct op *last = b->list->n_ops ? &b->list->op[b->list->n_ops - 1] : NULL;
    struct cuda_product *p = last && last->kind == OP_PRODUCT ? &last->product : NULL;
    if (!b->want.float32 && p && p->epilogue == CUDA_ADD && p->y.f == x->rows.f) {
        p->norm = w->m.codes;
        p->z = y->rows;
        cuda_written(y, x->n_rows);
        y->floats = false;
        y->norm_of = x->rows;
        y->norm_w = w->m.codes;
    } else {
        norm_add(b, y, &x->rows, w->m.codes, x->n_rows);
    }
    y->quantised = true;
    y->scaled = true;
}

static bool is_float(const struct backend_weight *w)
{
    return w->pack == CUDA_F16 || w->pack == CUDA_F32;
}

/* What a matrix needs of x's rows and whoever wrote them didn't make: codes, or float32 values. */
static void need(struct backend *b, struct backend_buffer *x, const struct backend_weight *w)
{
    if (is_float(w) && !x->floats) {
        norm_add(b, x, &x->norm_of, x->norm_w, x->n_rows); /* the same codes again */
        x->quantised = true;
        x->scaled = true;
    }
    if (is_float(w) || x->quantised) return;
    struct quantise *a = &op_add(b, OP_QUANTISE)->quantise;
    a->x = x->rows;
    a->n_rows = x->n_rows;
    x->quantised = true;
}

static struct cuda_product *product_add(struct backend *b, enum cuda_epilogue epilogue,
                                        struct backend_buffer *y, struct backend_buffer *x,
                                        const struct backend_weight *w)
{
    need(b, x, w);
    struct cuda_product *a = &op_add(b, OP_PRODUCT)->product;
    a->pack = w->pack;
    a->epilogue = epilogue;
    a->n_rows = x->n_rows;
    a->n_matrices = 1;
    a->m[0] = w->m;
    a->dependent = dependent(b);
    a->many = b->products.many;
    a->deep_tiles = b->products.deep ? b->multiprocessors : 0;
    a->scaled = x->scaled && !is_float(w);
    a->eps = b->want.eps;
    a->x = x->rows;
    a->y = y->rows;
    cuda_written(y, x->n_rows);
    return a;
}

/* K and V are rounded by the attention that follows: of a lane's several rows each needs those
 * before it. */
static bool keeps_late(const struct backend *b)
{
    return b->flash && b->block.k_bits == 8 && b->block.v_bits == 8 && b->lone_rows;
}

void cuda_qkv(struct backend *b, struct backend_buffer *q, struct backend_buffer *x,
              struct backend_weight *const w[3], uint32_t layer)
{
    struct cuda_product *a = NULL;
    if (b->passing.n > 0) op_add(b, OP_PASS)->layer = layer;
    for (uint32_t i = 0; i < 3; i++) {
        if (a && a->pack == w[i]->pack) {
            a->m[a->n_matrices] = w[i]->m;
            a->part[a->n_matrices++] = i;
            continue;
        }
        a = product_add(b, CUDA_QKV, q, x, w[i]);
        a->part[0] = i;
        if (b->arena) a->kv = cuda_kv_of(b, layer);
    }
    if (!b->fresh || !b->arena || keeps_late(b)) return;
    struct cuda_keep *k = &op_add(b, OP_KEEP)->keep;
    k->kv = cuda_kv_of(b, layer);
    k->n_rows = x->n_rows;
    k->dependent = dependent(b);
}

static struct cuda_attend *attend_add(struct backend *b, enum op_kind kind,
                                      struct backend_buffer *y, const struct backend_buffer *q,
                                      uint32_t layer)
{
    struct cuda_attend *a = &op_add(b, kind)->attend;
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
    for (uint32_t i = 0; i < b->n_spans; i += b->span_turn) {
        struct cuda_attend *a = attend_add(b, OP_FLASH_TILES, y, q, layer);
        a->spans = b->spans;
        a->first_row = i;
        a->n_rows = min_u32(b->span_turn, b->n_spans - i);
        a->stretches = b->span_stretches;
        a->each = b->span_each;
        a->tiles = b->tiles;
    }
}

/* Rows in turns, as many as the partial sums have room for. */
void cuda_attend(struct backend *b, struct backend_buffer *y, const struct backend_buffer *q,
                 uint32_t layer)
{
    uint32_t splits = 1, cells = cuda_part_cells(b), need = (b->longest + cells - 1) / cells;
    while (splits < need)
        splits *= 2;
    uint32_t rows = (uint32_t)min_u64(b->part_rows_splits / splits, UINT16_MAX);
    cuda_written(y, q->n_rows);
    y->quantised = b->n_spans == 0 && b->want.head_dim % CUDA_BLOCK == 0;
    for (uint32_t i = 0; i < b->n_listed; i += rows) {
        struct cuda_attend *a = attend_add(b, b->flash ? OP_FLASH : OP_ATTEND, y, q, layer);
        a->listed = b->n_spans ? b->listed : NULL;
        a->first_row = i;
        a->n_rows = min_u32(rows, b->n_listed - i);
        a->n_splits = splits;
        a->together = cuda_together(b, a->n_rows, splits);
        a->keep = keeps_late(b);
        a->alone = b->lone_rows;
        a->quantise = y->quantised;
    }
    if (b->n_spans > 0) spans_attend(b, y, q, layer);
}

void cuda_project(struct backend *b, struct backend_buffer *x, struct backend_buffer *y,
                  const struct backend_weight *w)
{
    (void)product_add(b, CUDA_ADD, x, y, w);
}

void cuda_gate_up(struct backend *b, struct backend_buffer *h, struct backend_buffer *x,
                  const struct backend_weight *gate, const struct backend_weight *up)
{
    if (gate->pack == up->pack) {
        struct cuda_product *a = product_add(b, CUDA_GATE, h, x, gate);
        a->m[1] = up->m;
        a->n_matrices = 2;
    } else {
        (void)product_add(b, CUDA_STORE, h, x, gate);
        (void)product_add(b, CUDA_GATED, h, x, up);
    }
    h->quantised = true;
}

void cuda_matmul(struct backend *b, struct backend_buffer *y, struct backend_buffer *x,
                 const struct backend_weight *w)
{
    (void)product_add(b, CUDA_STORE, y, x, w);
}

void cuda_pick(struct backend *b, struct backend_buffer *y, const struct backend_buffer *x,
               const uint32_t *rows, uint32_t n)
{
    if (n > CUDA_PICKS) b->refused = -EINVAL;
    if (b->refused) return;
    memcpy(b->now->picks, rows, n * sizeof(*rows));
    (void)cuda_ok(b, cudaMemcpyAsync(b->picks, b->now->picks, n * sizeof(*rows),
                                     cudaMemcpyHostToDevice, b->stream));
    struct cuda_pick *a = &op_add(b, OP_PICK)->pick;
    a->x = x->rows;
    a->y = y->rows;
    a->rows = b->picks;
    a->n_rows = n;
    cuda_written(y, n);
}

void cuda_sample(struct backend *b, const struct backend_buffer *x, struct sampler_row *rows)
{
    if (cuda_choices_up(b, rows, x->n_rows)) {
        struct cuda_argmax *a = &op_add(b, OP_ARGMAX)->argmax;
        a->x = x->rows;
        a->n_rows = x->n_rows;
        a->n_vocab = b->want.n_vocab;
        a->token = b->choices.token;
        a->host_token = b->choices.host_token;
        a->dependent = dependent(b);
        return;
    }
    struct cuda_sample *a = &op_add(b, OP_SAMPLE)->sample;
    *a = b->choices;
    a->x = x->rows;
    a->n_rows = x->n_rows;
    a->dependent = dependent(b);
}
