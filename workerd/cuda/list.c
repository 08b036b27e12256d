/* SPDX-License-Identifier: MIT */
/*
 * The list of operations and the graphs made of it. An entry holds a launch's arguments and nothing
 * of the window but its shape: the number of rows, and how many parts of attention the longest of
 * them can have, as a power of two. So a list whose entries are those of an earlier one is that
 * list's graph.
 */
#include "workerd/cuda/list.h"

#include <assert.h>
#include <errno.h>
#include <string.h>

#include "common/log.h"

enum {
    GRAPHS_MAX = 96,   /* that are kept: row counts in use, a few lengths of each, two flights */
    CAPTURE_AFTER = 2, /* launches of a list before it is worth a graph */
};

struct graph {
    struct cuda_op *op; /* the list that it is of; NULL: free */
    uint32_t n_ops, seen;
    uint64_t used;
    cudaGraphExec_t exec; /* NULL: not captured yet */
};

struct cuda_list {
    struct cuda_op *op;
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

struct cuda_op *cuda_op_add(struct backend *b, enum cuda_op_kind kind)
{
    static struct cuda_op nowhere;
    struct cuda_list *l = b->list;
    struct cuda_op *op = &nowhere;
    if (l->n_ops < l->max_ops)
        op = &l->op[l->n_ops++];
    else
        cuda_refuse(b, -ENOBUFS);
    memset(op, 0, sizeof(*op));
    op->kind = kind;
    return op;
}

struct cuda_op *cuda_op_back(const struct backend *b, uint32_t n)
{
    return n < b->list->n_ops ? &b->list->op[b->list->n_ops - 1 - n] : NULL;
}

/* ---- launching ---- */

static cudaError_t copy_rows(cudaStream_t s, const struct cuda_rows_copy *c, bool up)
{
    return up ? cudaMemcpyAsync(c->device, c->host, c->bytes, cudaMemcpyHostToDevice, s)
              : cudaMemcpyAsync(c->host, c->device, c->bytes, cudaMemcpyDeviceToHost, s);
}

static cudaError_t op_launch(cudaStream_t s, const struct cuda_op *op)
{
    switch (op->kind) {
    case CUDA_OP_TURN:
        return cuda_launch_turn(s, &op->turn);
    case CUDA_OP_LOOKUP:
        return cuda_launch_lookup(s, &op->lookup);
    case CUDA_OP_LOAD:
        return copy_rows(s, &op->copy, true);
    case CUDA_OP_STORE:
        return copy_rows(s, &op->copy, false);
    case CUDA_OP_NORM:
        return cuda_launch_norm(s, &op->norm);
    case CUDA_OP_QUANTISE:
        return cuda_launch_quantise(s, &op->quantise);
    case CUDA_OP_HALVE:
        return cuda_launch_halve(s, &op->halve);
    case CUDA_OP_PRODUCT:
        return cuda_launch_product(s, &op->product);
    case CUDA_OP_KEEP:
        return cuda_launch_keep(s, &op->keep);
    case CUDA_OP_CARRY:
        return cuda_launch_carry(s, &op->carry);
    case CUDA_OP_ATTEND:
        return cuda_launch_attend(s, &op->attend);
    case CUDA_OP_FLASH:
        return cuda_launch_flash(s, &op->attend);
    case CUDA_OP_FLASH_TILES:
        return cuda_launch_flash_tiles(s, &op->attend);
    case CUDA_OP_PICK:
        return cuda_launch_pick(s, &op->pick);
    case CUDA_OP_ARGMAX:
        return cuda_launch_argmax(s, &op->argmax);
    default:
        return cuda_launch_sample(s, &op->sample);
    }
}

static void ops_launch(struct backend *b)
{
    for (uint32_t i = 0; i < b->list->n_ops && cuda_is_well(b); i++) {
        const struct cuda_op *op = &b->list->op[i];
        if (op->kind == CUDA_OP_PASS)
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
    if (b->shape.n_rows > CUDA_ROWS_GRAPH || b->passing.n > 0 || l->n_ops == 0) return NULL;
    struct graph *g = graph_find(l);
    g->used = ++l->clock;
    if (g->seen < CAPTURE_AFTER && ++g->seen < CAPTURE_AFTER) return NULL;
    if (!g->exec) graph_capture(b, g);
    return g;
}

static int outcome(const struct backend *b, const struct cuda_flight *f)
{
    if (f->failed != cudaSuccess) log_error("%s: %s", b->name, cudaGetErrorString(f->failed));
    return f->refused ? f->refused : f->failed != cudaSuccess ? -EIO : 0;
}

void cuda_prepare(struct backend *b)
{
    b->prepared = true;
    b->list->prepared = NULL;
    if (!cuda_is_well(b)) return;
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

static struct cuda_flight *other_flight(struct backend *b)
{
    return &b->flight[b->now == &b->flight[0]];
}

/* The one before the last begun, when that is on its way. */
static struct cuda_flight *first_flying(struct backend *b)
{
    return b->n_flying + b->prepared == 2 ? other_flight(b) : b->now;
}

/* One that isn't computed: that before it, if there is one, is the last begun again. */
static int window_leave(struct backend *b, int error)
{
    cuda_window_undo(b);
    b->now->n_sampled = 0;
    if (b->n_flying > 0) b->now = other_flight(b);
    return error;
}

int cuda_launch(struct backend *b)
{
    if (!b->prepared) cuda_prepare(b);
    b->prepared = false;
    const struct graph *g = b->list->prepared;
    if (!b->now->refused) cuda_window_late(b);
    cuda_copy_launch(b, &b->take_late);
    if (cuda_is_well(b) && g)
        (void)cuda_ok(b, cudaGraphLaunch(g->exec, b->stream));
    else
        ops_launch(b);
    b->list->n_ops = 0;
    cuda_copy_launch(b, &b->give_late);
    (void)cuda_ok(b, cudaEventRecord(b->now->done, b->stream));
    int r = outcome(b, b->now);
    if (r < 0) return window_leave(b, r);
    b->n_flying++;
    return 1;
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
    (void)cuda_flight_ok(f, cudaEventSynchronize(f->done));
    b->n_flying--;
    r = outcome(b, f);
    if (r == 0 && f->store_to) memcpy(f->store_to, f->activations, f->store_bytes);
    if (r == 0) cuda_choices_read(f);
    f->n_sampled = 0;
    return r;
}
