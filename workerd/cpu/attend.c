/* SPDX-License-Identifier: MIT */
/*
 * Attention of some queries (consecutive token rows of a lane x the heads that share a K/V head)
 * over the arena's cells, by the online softmax (arXiv:1805.02867; tiled as in arXiv:2205.14135).
 * Run by the operations of cpu.c; compiled for each variant.
 *
 * A query's arithmetic, whatever shares its tile: segments of SEGMENT_CELLS aligned on positions,
 * each from a fresh state, in steps of STEP_CELLS; a score sums over the head's dimensions in
 * order, the weighted V over cells in order; the segments' states are added in order. Cells at or
 * past the row's length never enter a sum: their scores are replaced, their V isn't read into it.
 *
 * Where the format has scales (proto/kv_block.h), codes are summed as integers in float32 and a
 * cell's scale comes in once for each group of dimensions: a score is the sum of a group times K's
 * scale, then fma(next group, its scale, so far); a weight is multiplied by V's scale before it
 * multiplies codes.
 *
 * K in a block is by dimension, so that lanes are cells; V's lanes are dimensions.
 */
#include "workerd/cpu/variant.h"

#include <math.h>
#include <string.h>

enum {
    QUERY_GROUP = 4, /* queries that share a load of K or V in registers */
    VALUE_VECS = SCORE_VECS,
    STEP_VECS = STEP_CELLS / LANES,
    WIDEN_QUERIES = 12, /* from here on widening K and V of a step once costs less than each time */
};

struct task {
    const struct cpu_op *op;
    const struct cpu_geometry *g;
    const struct cpu_lane *lane;
    const struct cpu_query *q;
    struct cpu_scratch *scratch;
    uint32_t kv_head, group, n_queries;
    const float *query[QUERY_ROWS_MAX];
    float *score[QUERY_ROWS_MAX];
};

/* Where the K or V of a step's cells lie: a pointer for each 16 of them. */
struct step {
    const void *at[STEP_VECS];
    const uint16_t
        *scale[STEP_VECS]; /* of the head's first group; of the next, a block's cells on */
    uint32_t stride;       /* values from one dimension (K) or cell (V) to the next */
    uint32_t bits;         /* of a value: 32 and 16 are floats, 8 and 4 codes */
};

/* Cells that row r of the task reads. */
SIMD_FN uint32_t length_of(const struct task *t, uint32_t r)
{
    return t->lane->pos + (t->q->row - t->lane->first_row) + r + 1;
}

SIMD_FN struct step step_at(const struct task *t, uint32_t pos, bool v)
{
    const struct cpu_geometry *g = t->g;
    struct step s = {.stride = v ? g->head_dim : g->block_cells,
                     .bits = v ? g->block.v_bits : g->block.k_bits};
    const struct kv_section *section = v ? &g->block.v : &g->block.k;
    const struct kv_section *scales = v ? &g->block.v_scale : &g->block.k_scale;
    size_t line = (size_t)t->kv_head * (section->lines / g->n_kv_heads);
    for (uint32_t i = 0; i < STEP_VECS; i++) {
        uint32_t pos_i = pos + i * LANES, cell = pos_i % g->block_cells;
        const uint8_t *block = t->op->b->run[t->op->layer] + cpu_block_off(g, t->lane, pos_i);
        s.at[i] = block + section->off + (line * g->block_cells + cell) * section->unit_bytes;
        s.scale[i] = (const uint16_t *)(block + scales->off) +
                     (size_t)t->kv_head * g->block.n_groups * g->block_cells + cell;
    }
    return s;
}

/* K of a dimension, from its 16 cells on. */
SIMD_FN vf k_load(uint32_t bits, const void *at, size_t stride, size_t d)
{
    if (bits == 32) return vf_load((const float *)at + d * stride);
    if (bits == 16) return vf_load_f16((const uint16_t *)at + d * stride);
    if (bits == 8) return vf_load_i8((const int8_t *)at + d * stride);
    return vf_load_u4((const uint8_t *)at + d / 2 * stride, d % 2 ? 4 : 0);
}

/* V of 16 dimensions, from the i-th value on, a multiple of 16. */
SIMD_FN vf v_load(uint32_t bits, const void *at, size_t i)
{
    if (bits == 32) return vf_load((const float *)at + i);
    if (bits == 16) return vf_load_f16((const uint16_t *)at + i);
    if (bits == 8) return vf_load_i8((const int8_t *)at + i);
    return vf_load_u4_pairs((const uint8_t *)at + i / 2);
}

#define BY_BITS(bits, call, ...)                                                                   \
    switch (bits) {                                                                                \
    case 32:                                                                                       \
        call(32, __VA_ARGS__);                                                                     \
        break;                                                                                     \
    case 16:                                                                                       \
        call(16, __VA_ARGS__);                                                                     \
        break;                                                                                     \
    case 8:                                                                                        \
        call(8, __VA_ARGS__);                                                                      \
        break;                                                                                     \
    default:                                                                                       \
        call(4, __VA_ARGS__);                                                                      \
        break;                                                                                     \
    }

SIMD_FN void widen_k_bits(uint32_t bits, const struct task *t, const struct step *s)
{
    for (uint32_t i = 0; i < STEP_VECS; i++)
        for (size_t d = 0; d < t->g->head_dim; d++)
            vf_store(t->scratch->kv + d * STEP_CELLS + i * LANES,
                     k_load(bits, s->at[i], s->stride, d));
}

SIMD_FN void widen_v_bits(uint32_t bits, const struct task *t, const struct step *s)
{
    size_t n = (size_t)LANES * t->g->head_dim;
    for (uint32_t i = 0; i < STEP_VECS; i++)
        for (size_t j = 0; j < n; j += LANES)
            vf_store(t->scratch->kv + i * n + j, v_load(bits, s->at[i], j));
}

/* The same values as float32, in the scratch: K [dimension][STEP_CELLS]. Scales stay aside. */
static void widen_k(const struct task *t, struct step *s)
{
    BY_BITS(s->bits, widen_k_bits, t, s)
    for (uint32_t i = 0; i < STEP_VECS; i++)
        s->at[i] = t->scratch->kv + i * LANES;
    s->stride = STEP_CELLS;
    s->bits = 32;
}

static void widen_v(const struct task *t, struct step *s)
{
    BY_BITS(s->bits, widen_v_bits, t, s)
    for (uint32_t i = 0; i < STEP_VECS; i++)
        s->at[i] = t->scratch->kv + (size_t)i * LANES * t->g->head_dim;
    s->bits = 32;
}

/* Sums of 16 cells, the i-th of the step, over one group's dimensions or all. */
SIMD_FN void score_put(const struct task *t, const struct step *s, uint32_t query, uint32_t i,
                       uint32_t group, vf sum)
{
    float *to = t->score[query] + i * LANES;
    if (t->g->block.n_groups) {
        vf scale = vf_load_f16(s->scale[i] + (size_t)group * t->g->block_cells);
        sum = group == 0 ? vf_mul(sum, scale) : vf_fma(sum, scale, vf_load(to));
    }
    vf_store(to, sum);
}

/* Of a group's dimensions [from, to); of all where there are no scales. */
SIMD_FN void scores_span(uint32_t bits, int n, const struct task *t, const struct step *s,
                         uint32_t query, uint32_t group, size_t from, size_t to)
{
    const float *const *q = t->query + query;
    for (uint32_t i = 0; i < STEP_VECS; i += SCORE_VECS) {
        vf acc[QUERY_GROUP][SCORE_VECS];
        for (int j = 0; j < n; j++)
            for (int v = 0; v < SCORE_VECS; v++)
                acc[j][v] = vf_set1(0);
        for (size_t d = from; d < to; d += bits == 4 ? 2 : 1)
            for (size_t e = d; e < d + (bits == 4 ? 2 : 1); e++)
                for (int v = 0; v < SCORE_VECS; v++) {
                    vf k = k_load(bits, s->at[i + (uint32_t)v], s->stride, e);
                    for (int j = 0; j < n; j++)
                        acc[j][v] = vf_fma(k, vf_set1(q[j][e]), acc[j][v]);
                }
        for (int j = 0; j < n; j++)
            for (int v = 0; v < SCORE_VECS; v++)
                score_put(t, s, query + (uint32_t)j, i + (uint32_t)v, group, acc[j][v]);
    }
}

SIMD_FN void scores_n(uint32_t bits, int n, const struct task *t, const struct step *s,
                      uint32_t query)
{
    uint32_t span = t->g->block.n_groups ? KV_GROUP : t->g->head_dim;
    for (uint32_t d = 0, group = 0; d < t->g->head_dim; d += span, group++)
        scores_span(bits, n, t, s, query, group, d, min_u32(d + span, t->g->head_dim));
}

/* What multiplies V of a group of dimensions, for each cell of the step. */
SIMD_FN float *weights_of(const struct task *t, uint32_t query, uint32_t group)
{
    uint32_t n = t->g->block.n_groups;
    return n ? t->scratch->weight + ((size_t)query * n + group) * STEP_CELLS : t->score[query];
}

static void weights_scale(const struct task *t, const struct step *v, uint32_t query)
{
    for (uint32_t group = 0; group < t->g->block.n_groups; group++)
        for (uint32_t i = 0; i < STEP_VECS; i++) {
            vf scale = vf_load_f16(v->scale[i] + (size_t)group * t->g->block_cells);
            vf_store(weights_of(t, query, group) + i * LANES,
                     vf_mul(vf_load(t->score[query] + i * LANES), scale));
        }
}

/* o[query] += p * V over cells [from, to) of the step, for 16 vecs dimensions from d on. */
SIMD_FN void values_span(uint32_t bits, int n, int vecs, const struct task *t, const struct step *s,
                         uint32_t query, uint32_t from, uint32_t to, uint32_t d)
{
    vf acc[QUERY_GROUP][VALUE_VECS];
    const float *weight[QUERY_GROUP];
    float *o = t->scratch->part.o + (size_t)query * t->g->head_dim + d;
    for (int j = 0; j < n; j++) {
        weight[j] = weights_of(t, query + (uint32_t)j, d / KV_GROUP);
        for (int v = 0; v < vecs; v++)
            acc[j][v] = vf_load(o + (size_t)j * t->g->head_dim + v * LANES);
    }
    for (uint32_t c = from; c < to; c++)
        for (int v = 0; v < vecs; v++) {
            vf value = v_load(bits, s->at[c / LANES],
                              (size_t)(c % LANES) * s->stride + d + (uint32_t)(v * LANES));
            for (int j = 0; j < n; j++)
                acc[j][v] = vf_fma(vf_set1(weight[j][c]), value, acc[j][v]);
        }
    for (int j = 0; j < n; j++)
        for (int v = 0; v < vecs; v++)
            vf_store(o + (size_t)j * t->g->head_dim + v * LANES, acc[j][v]);
}

SIMD_FN void values_n(uint32_t bits, int n, const struct task *t, const struct step *s,
                      uint32_t query, uint32_t from, uint32_t to)
{
    uint32_t d = 0, dims = t->g->head_dim;
    for (; d + LANES * VALUE_VECS <= dims; d += LANES * VALUE_VECS)
        values_span(bits, n, VALUE_VECS, t, s, query, from, to, d);
    for (; d < dims; d += LANES)
        values_span(bits, n, 1, t, s, query, from, to, d);
}

/* n is a constant from here on: each in registers of its own. */
#define BY_COUNT(bits, n, call, ...)                                                               \
    switch (n) {                                                                                   \
    case 4:                                                                                        \
        call(bits, 4, __VA_ARGS__);                                                                \
        break;                                                                                     \
    case 3:                                                                                        \
        call(bits, 3, __VA_ARGS__);                                                                \
        break;                                                                                     \
    case 2:                                                                                        \
        call(bits, 2, __VA_ARGS__);                                                                \
        break;                                                                                     \
    default:                                                                                       \
        call(bits, 1, __VA_ARGS__);                                                                \
        break;                                                                                     \
    }

SIMD_FN void scores_bits(uint32_t bits, const struct task *t, const struct step *s, uint32_t query,
                         uint32_t n)
{
    BY_COUNT(bits, n, scores_n, t, s, query)
}

static void scores(const struct task *t, const struct step *s, uint32_t query,
                   uint32_t n){BY_BITS(s->bits, scores_bits, t, s, query, n)}

SIMD_FN void values_bits(uint32_t bits, const struct task *t, const struct step *s, uint32_t query,
                         uint32_t n, uint32_t from, uint32_t to)
{
    BY_COUNT(bits, n, values_n, t, s, query, from, to)
}

static void values(const struct task *t, const struct step *s, uint32_t query, uint32_t n,
                   uint32_t from, uint32_t to)
{
    BY_BITS(s->bits, values_bits, t, s, query, n, from, to)
}

/* Scores become weights; the query's state is brought to the new largest score. n: cells of the
 * step that count, at least 1. */
static void softmax_step(const struct task *t, uint32_t query, uint32_t n)
{
    struct cpu_partial *part = &t->scratch->part;
    float *score = t->score[query], *o = part->o + (size_t)query * t->g->head_dim;
    vf s[STEP_VECS], scale = vf_set1(t->g->scale), most = vf_set1(-INFINITY);
    for (int i = 0; i < STEP_VECS; i++) {
        s[i] = vf_keep(vf_mul(vf_load(score + i * LANES), scale), vf_set1(-INFINITY),
                       (int)n - i * LANES);
        most = vf_max(s[i], most);
    }
    float before = part->max[query], now = vf_hmax(most);
    now = now > before ? now : before;
    vf total = vf_set1(0), shift = vf_set1(now);
    for (int i = 0; i < STEP_VECS; i++) {
        s[i] = vf_keep(vf_exp(vf_sub(s[i], shift)), vf_set1(0), (int)n - i * LANES);
        vf_store(score + i * LANES, s[i]);
        total = vf_add(total, s[i]);
    }
    vf alpha = vf_exp(vf_set1(before - now));
    float a[LANES];
    vf_store(a, alpha);
    part->max[query] = now;
    part->sum[query] = part->sum[query] * a[0] + vf_hsum(total);
    for (uint32_t d = 0; d < t->g->head_dim; d += LANES)
        vf_store(o + d, vf_mul(vf_load(o + d), alpha));
}

/* Weighted V for the queries from `first` on; each row stops at its own length. */
static void values_step(const struct task *t, const struct step *s, uint32_t pos, uint32_t first)
{
    for (uint32_t i = first, n; i < t->n_queries; i += n) {
        n = min_u32(QUERY_GROUP, t->n_queries - i);
        uint32_t all = min_u32(STEP_CELLS, length_of(t, i / t->group) - pos);
        values(t, s, i, n, 0, all);
        for (uint32_t j = i; j < i + n; j++) {
            uint32_t own = min_u32(STEP_CELLS, length_of(t, j / t->group) - pos);
            if (own > all) values(t, s, j, 1, all, own);
        }
    }
}

/* Fills the scratch's part with the sums over one segment. */
static void segment(const struct task *t, uint32_t number)
{
    struct cpu_partial *part = &t->scratch->part;
    for (uint32_t i = 0; i < t->n_queries; i++) {
        part->max[i] = -INFINITY;
        part->sum[i] = 0;
    }
    memset(part->o, 0, (size_t)t->n_queries * t->g->head_dim * sizeof(float));
    uint32_t longest = length_of(t, t->q->n_rows - 1);
    uint32_t end = min_u32((number + 1) * SEGMENT_CELLS, longest);
    for (uint32_t pos = number * SEGMENT_CELLS; pos < end; pos += STEP_CELLS) {
        uint32_t row = 0;
        while (length_of(t, row) <= pos)
            row++;
        uint32_t first = row * t->group;
        bool widen = t->n_queries - first >= WIDEN_QUERIES && t->g->kv != POOL_KV_F32;
        struct step k = step_at(t, pos, false), v = step_at(t, pos, true);
        if (widen) widen_k(t, &k);
        for (uint32_t i = first; i < t->n_queries; i += QUERY_GROUP)
            scores(t, &k, i, min_u32(QUERY_GROUP, t->n_queries - i));
        for (uint32_t i = first; i < t->n_queries; i++) {
            softmax_step(t, i, min_u32(STEP_CELLS, length_of(t, i / t->group) - pos));
            weights_scale(t, &v, i);
        }
        if (widen) widen_v(t, &v);
        values_step(t, &v, pos, first);
    }
}

/* Adds query `from` of one part to query `to` of the total. */
static void add_part(const struct task *t, const struct cpu_partial *part, size_t from, uint32_t to,
                     bool is_first)
{
    struct cpu_partial *total = &t->scratch->total;
    uint32_t n = t->g->head_dim;
    const float *o = part->o + from * n;
    float *sum = total->o + (size_t)to * n;
    if (is_first) {
        total->max[to] = part->max[from];
        total->sum[to] = part->sum[from];
        memcpy(sum, o, n * sizeof(float));
        return;
    }
    float most = total->max[to] > part->max[from] ? total->max[to] : part->max[from];
    vf a = vf_exp(vf_set1(total->max[to] - most)), b = vf_exp(vf_set1(part->max[from] - most));
    float fa[LANES], fb[LANES];
    vf_store(fa, a);
    vf_store(fb, b);
    total->max[to] = most;
    total->sum[to] = total->sum[to] * fa[0] + part->sum[from] * fb[0];
    for (uint32_t d = 0; d < n; d += LANES)
        vf_store(sum + d, vf_fma(vf_load(o + d), b, vf_mul(vf_load(sum + d), a)));
}

static void write_out(const struct task *t)
{
    const struct backend_buffer *out = t->op->out;
    const struct cpu_partial *total = &t->scratch->total;
    for (uint32_t i = 0; i < t->n_queries; i++) {
        float *to = out->f + (size_t)(t->q->row + i / t->group) * out->width +
                    (size_t)(t->kv_head * t->group + i % t->group) * t->g->head_dim;
        vf sum = vf_set1(total->sum[i]);
        for (uint32_t d = 0; d < t->g->head_dim; d += LANES)
            vf_store(to + d, vf_div(vf_load(total->o + (size_t)i * t->g->head_dim + d), sum));
    }
}

static void whole(const struct task *t)
{
    uint32_t n = (length_of(t, t->q->n_rows - 1) + SEGMENT_CELLS - 1) / SEGMENT_CELLS;
    for (uint32_t s = 0; s < n; s++) {
        segment(t, s);
        for (uint32_t i = 0; i < t->n_queries; i++)
            if (length_of(t, i / t->group) > s * SEGMENT_CELLS)
                add_part(t, &t->scratch->part, i, i, s == 0);
    }
    write_out(t);
}

/* One segment of a row whose segments are shared out: whoever finishes the last adds them up. */
static void share(const struct task *t)
{
    const struct backend *b = t->op->b;
    size_t at = (size_t)t->q->slot * t->g->n_kv_heads + t->kv_head, n = t->g->head_dim;
    const struct cpu_partial *kept = &b->split[at], *part = &t->scratch->part;
    size_t own = (size_t)(uint32_t)t->q->segment * t->group;
    segment(t, (uint32_t)t->q->segment);
    memcpy(kept->max + own, part->max, t->group * sizeof(float));
    memcpy(kept->sum + own, part->sum, t->group * sizeof(float));
    memcpy(kept->o + own * n, part->o, t->group * n * sizeof(float));
    if (__atomic_sub_fetch(&b->split_left[at], 1, __ATOMIC_ACQ_REL) > 0) return;
    uint32_t segments = (length_of(t, 0) + SEGMENT_CELLS - 1) / SEGMENT_CELLS;
    for (uint32_t s = 0; s < segments; s++)
        for (uint32_t h = 0; h < t->group; h++)
            add_part(t, kept, (size_t)s * t->group + h, h, s == 0);
    write_out(t);
    __atomic_store_n(&b->split_left[at], segments, __ATOMIC_RELAXED); /* for the next layer */
}

void KERNEL(attend)(const struct cpu_op *op, uint32_t thread, const struct cpu_query *q,
                    uint32_t kv_head)
{
    const struct cpu_geometry *g = &op->b->geo;
    struct task t = {
        .op = op,
        .g = g,
        .lane = &op->b->win.lane[q->lane],
        .q = q,
        .scratch = &op->b->scratch[thread],
        .kv_head = kv_head,
        .group = g->n_heads / g->n_kv_heads,
    };
    t.n_queries = q->n_rows * t.group;
    for (uint32_t i = 0; i < t.n_queries; i++) {
        t.query[i] = op->in->f + (size_t)(q->row + i / t.group) * op->in->width +
                     (size_t)(kv_head * t.group + i % t.group) * g->head_dim;
        t.score[i] = t.scratch->score + (size_t)i * STEP_CELLS;
    }
    if (q->segment < 0)
        whole(&t);
    else
        share(&t);
}
