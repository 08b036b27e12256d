/* SPDX-License-Identifier: MIT */
#ifndef WORKERD_CPU_CPU_H
#define WORKERD_CPU_CPU_H
/*
 * What the files of the CPU backend share: how it keeps weights and activations, what a window is
 * to the kernels, and the table of kernels that each variant fills.
 *
 * An operation is an entry of a list; sync runs the list on all threads. Its tasks are disjoint
 * parts of its output, taken in any order by any thread; no element's arithmetic knows of the
 * split.
 */
#include "proto/kv_block.h"
#include "workerd/backend.h"
#include "workerd/cpu/team.h"

enum {
    TILE = 16,           /* outputs of a weight tile: the lanes of simd.h */
    QBLOCK = 32,         /* values that share a scale, of weights and of activations */
    ROW_BLOCK = 64,      /* token rows of a matrix task: 64 x 576 codes stay in 48 KiB of L1 */
    EACH_ROWS = 4,       /* up to this many rows every thread norms and quantises all of them for
                            itself: cheaper than the barrier that sharing them needs */
    STEP_CELLS = 64,     /* cells of one softmax step, aligned on positions */
    SEGMENT_CELLS = 256, /* cells whose sums are made by themselves and then added in order, so that
                            threads can share one row's attention without changing its bits */
    QUERY_ROWS_MAX = 48, /* queries (rows x heads) that share one reading of K and V */
    ALIGNMENT = 64,
};

/* How a weight's tiles are laid out. A tile holds TILE outputs for all k, outputs past n_out as 0.
 * Of each block of 32 k:
 *   PACK_Q4_0  d[16] f16; 256 bytes of codes: 4 x 64, byte 4 o + j of vector g is output o, low
 *              nibble k = 4 g + j, high nibble k = 16 + 4 g + j; value d (code - 8)
 *   PACK_Q4_1  d[16] f16, m[16] f16; the same codes; value d code + m
 *   PACK_Q8_0  d[16] f16; 512 bytes: 8 x 64, byte 4 o + j of vector g is output o, k = 4 g + j
 * and for each k:
 *   PACK_F16, PACK_F32   16 values
 * A PACK_NONE is used as it is in the file (a looked-up table) or is a vector of float32. */
enum cpu_pack { PACK_NONE, PACK_Q4_0, PACK_Q4_1, PACK_Q8_0, PACK_F16, PACK_F32 };

struct backend_weight {
    enum cpu_pack pack;
    uint32_t type; /* enum ggml_type of data when it is looked up */
    uint32_t n_out, n_in, n_tiles;
    size_t tile_bytes;
    const uint8_t *data;
};

/* Rows of float32 and, when a quantised matrix has asked for them, the same rows as int8. Behind
 * the shared rows each thread has EACH_ROWS of its own. */
struct backend_buffer {
    uint32_t max_rows, width;
    uint32_t n_rows;      /* as of the operations enqueued so far */
    bool each, quantised; /* likewise: the threads' own rows hold; the codes hold */
    float *f;             /* [row][width] */
    int8_t *q;            /* [row][width] */
    float *d, *s;         /* [row][width / 32]: scale; scale x sum of the codes */
    int32_t *sum;         /* [row][width / 32]: sum of the codes */
};

/* Where the rows of a window are in the arena, made once a window. */
struct cpu_lane {
    uint32_t pos, n_rows, first_row;
    const uint32_t *chunk; /* [n_chunks]: checked, 0 where the table has no entry */
    uint32_t n_chunks;
};

struct cpu_cell {
    uint64_t block; /* byte offset of the row's block in a run */
    uint32_t at;    /* its cell in the block */
};

/* A share of attention: consecutive rows of one lane, over one segment of the cells or all. */
struct cpu_query {
    uint32_t lane, row, n_rows; /* row: within the window */
    int32_t segment;            /* -1: all of them, one after the other */
    uint32_t slot;              /* of a split row: its place in the partial results */
};

struct cpu_window {
    uint32_t n_rows, n_lanes, n_queries;
    const uint32_t *tokens;
    struct cpu_lane *lane;
    struct cpu_cell *cell; /* [row] */
    float *rope;           /* [row][rope_dims]: cos, sin of each pair */
    struct cpu_query *query;
};

struct cpu_geometry {
    uint32_t n_heads, n_kv_heads, head_dim, rope_dims;
    uint32_t kv, block_cells, chunk_cells;
    struct kv_block block; /* K by dimension */
    float scale;           /* of scores */
    uint32_t tile_rows;    /* rows of a lane in one attention task */
};

/* Where K and V have scales: those of the window's rows as float32, until all tiles of a group have
 * been computed and whoever finishes the last one brings the group into the arena. */
struct cpu_fresh {
    float *f; /* [row][K, then V: K/V head x head_dim] */
    uint32_t
        *left; /* [block of ROW_BLOCK rows][K, then V: K/V head x group]: tiles not yet there */
};

struct cpu_group { /* values that share a scale */
    bool is_v;
    uint32_t head, group; /* group: of the head */
};

/* Of one attention task: for each query the largest score, the sum and the weighted V, so far. */
struct cpu_partial {
    float *max, *sum; /* [query] */
    float *o;         /* [query][head_dim] */
};

struct cpu_scratch { /* one a thread */
    float *score;    /* [query][STEP_CELLS] */
    float *kv;       /* [STEP_CELLS * head_dim]: K or V of a step as float32 */
    float *weight;   /* [query][group][STEP_CELLS]: scores times V's scales, where it has them */
    struct cpu_partial part, total;
};

struct cpu_kernels;

enum cpu_epilogue { EPILOGUE_STORE, EPILOGUE_ADD, EPILOGUE_Q, EPILOGUE_K, EPILOGUE_V };

/* One entry of the list. */
struct cpu_op {
    void (*run)(const struct cpu_op *op, uint32_t thread, uint32_t task);
    const struct backend *b;
    uint32_t n_tasks, per_take;
    bool each; /* every thread runs all tasks, on rows of its own; no barrier follows */
    bool gate; /* of a product: silu(w[0] x) * (w[1] x) */
    uint32_t layer, n_rows, n_tiles; /* n_tiles: of all w together */
    const struct backend_weight *w[3];
    enum cpu_epilogue epilogue[3];
    struct backend_buffer *in, *out;
    bool in_each; /* in's rows are the thread's own */
    const float *host_in;
    float *host_out;
    const uint32_t *rows;                              /* to pick */
    struct sampler_row *sampled;                       /* of sample */
    uint32_t next __attribute__((aligned(ALIGNMENT))); /* task to be taken */
} __attribute__((aligned(ALIGNMENT)));

struct cpu_kernels {
    const char *name;
    void (*norm)(float *y, const float *x, const float *w, uint32_t n, float eps);
    void (*quantise)(const struct backend_buffer *x, uint32_t row);
    /* Outputs of one tile for rows [row, row + n_rows). */
    void (*product)(const struct cpu_op *op, uint32_t thread, uint32_t tile, uint32_t row,
                    uint32_t n_rows);
    /* Rounds a group's values into a cell of a block. */
    void (*keep)(const struct cpu_geometry *g, uint8_t *block, uint32_t cell,
                 const struct cpu_group *which, const float *x);
    /* The query q of K/V head kv_head. */
    void (*attend)(const struct cpu_op *op, uint32_t thread, const struct cpu_query *q,
                   uint32_t kv_head);
};

extern const struct cpu_kernels cpu_kernels_plain;
#if defined(__x86_64__)
extern const struct cpu_kernels cpu_kernels_avx2, cpu_kernels_avx512;
#endif

struct backend {
    struct cpu_geometry geo;
    struct backend_want want;
    const struct cpu_kernels *kernels;
    struct team *team;
    char device[64];

    struct cpu_store *store; /* weights and buffers */
    uint64_t weight_bytes;
    double *rope_freq;

    struct cpu_window win;
    struct cpu_fresh fresh;
    struct cpu_scratch *scratch; /* [thread] */
    struct cpu_partial *split;   /* [slot x K/V head]: [segment][head of the group] */
    uint32_t *split_left;        /* [slot x K/V head]: segments not yet done */
    uint32_t n_slots, n_segments;
    struct sampler **sampler; /* [thread]; NULL without a vocabulary */

    struct pool_arena *arena;
    uint8_t **run;         /* [layer] */
    uint32_t *chunk_words; /* [lane][chunks of the context] */

    struct cpu_op *op;
    uint64_t *steps; /* as in struct window */
    uint32_t n_ops, max_ops;
    int failed;
};

/* Byte offset in a run of the block that holds a lane's cell; the trash chunk's past its table. */
static inline uint64_t cpu_block_off(const struct cpu_geometry *g, const struct cpu_lane *l,
                                     uint32_t pos)
{
    uint32_t i = pos / g->chunk_cells;
    uint64_t chunk = i < l->n_chunks ? l->chunk[i] : 0;
    uint64_t block =
        (uint64_t)chunk * (g->chunk_cells / g->block_cells) + pos % g->chunk_cells / g->block_cells;
    return block * g->block.bytes;
}

/* Values of a head's group: KV_GROUP, or of the last one as many as are left. */
static inline uint32_t cpu_group_values(const struct cpu_geometry *g, uint32_t group)
{
    return min_u32(KV_GROUP, g->head_dim - group * KV_GROUP);
}

static inline uint32_t cpu_groups(const struct cpu_geometry *g) /* of K and V of a row */
{
    return 2 * g->n_kv_heads * g->block.n_groups;
}

/* First of the rows that a thread reads of a buffer. */
static inline uint32_t cpu_first_row(const struct backend_buffer *x, bool each, uint32_t thread)
{
    return each ? x->max_rows + thread * EACH_ROWS : 0;
}

#endif
