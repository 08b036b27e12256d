/* SPDX-License-Identifier: MIT */
/*
 * Matrix products, one weight tile (16 outputs) with some token rows at a time, and what follows a
 * product element by element: storing, adding to the residual, rope, the arena, silu. Run by the
 * operations of cpu.c; compiled for each variant.
 *
 * An element's arithmetic, whatever the number of rows, the variant or the thread: for each block
 * of 32 k in order, isum = the exact integer sum of the codes' products, then
 *     acc = fma(isum, dw * dx, acc)    and, for a type with a minimum,    acc = fma(mw, sx, acc),
 * or for float weights, for each k in order, acc = fma(w, x, acc). Lanes are outputs, so there is
 * no sum across lanes. Rows only share the decoding of the weights.
 */
#include "workerd/cpu/variant.h"

/* A type's codes: at a block, the vectors and where the scales are. */
enum { SCALES_BYTES = 2 * TILE };

struct row_codes {
    const int8_t *q;
    const float *d, *s;
    const int32_t *sum;
};

SIMD_FN struct row_codes codes_of(const struct backend_buffer *x, uint32_t row)
{
    size_t blocks = (size_t)row * (x->width / QBLOCK);
    return (struct row_codes){x->q + (size_t)row * x->width, x->d + blocks, x->s + blocks,
                              x->sum + blocks};
}

SIMD_FN hi dot(enum cpu_pack pack, const hw w[8], const struct row_codes *x, uint32_t b)
{
    const int8_t *q = x->q + b * QBLOCK;
    if (pack == PACK_Q8_0) return hi_dot8(w, q, x->sum[b]);
    if (pack == PACK_Q4_0) return hi_add1(hi_dot4(w, q), -8 * x->sum[b]);
    return hi_dot4(w, q);
}

/* acc[r] of n rows; pack and n are constants where this is inlined. */
SIMD_FN void codes_tile(enum cpu_pack pack, int n, const struct backend_weight *w,
                        const uint8_t *at, const struct backend_buffer *x, uint32_t row, vf *ret)
{
    struct row_codes c[ROWS_MAX];
    vf acc[ROWS_MAX];
    for (int r = 0; r < n; r++) {
        c[r] = codes_of(x, row + (uint32_t)r);
        acc[r] = vf_set1(0);
    }
    for (uint32_t b = 0; b < w->n_in / QBLOCK; b++) {
        vf d = vf_load_f16((const uint16_t *)at), m = d;
        at += SCALES_BYTES;
        if (pack == PACK_Q4_1) {
            m = vf_load_f16((const uint16_t *)at);
            at += SCALES_BYTES;
        }
        hi sum[ROWS_MAX][HALVES];
        for (int h = 0; h < HALVES; h++) {
            hw codes[8];
            if (pack == PACK_Q8_0)
                hw_decode8((const int8_t *)at, h, codes);
            else
                hw_decode4(at, h, codes);
            for (int r = 0; r < n; r++)
                sum[r][h] = dot(pack, codes, &c[r], b);
        }
        at += pack == PACK_Q8_0 ? TILE * QBLOCK : TILE * QBLOCK / 2;
        for (int r = 0; r < n; r++) {
            acc[r] = vf_fma(vf_from_halves(sum[r]), vf_mul(d, vf_set1(c[r].d[b])), acc[r]);
            if (pack == PACK_Q4_1) acc[r] = vf_fma(m, vf_set1(c[r].s[b]), acc[r]);
        }
    }
    for (int r = 0; r < n; r++)
        ret[r] = acc[r];
}

SIMD_FN void floats_tile(enum cpu_pack pack, int n, const struct backend_weight *w,
                         const uint8_t *at, const struct backend_buffer *x, uint32_t row, vf *ret)
{
    const float *f[ROWS_MAX];
    vf acc[ROWS_MAX];
    for (int r = 0; r < n; r++) {
        f[r] = x->f + (size_t)(row + (uint32_t)r) * x->width;
        acc[r] = vf_set1(0);
    }
    for (uint32_t k = 0; k < w->n_in; k++) {
        vf v = pack == PACK_F16 ? vf_load_f16((const uint16_t *)at + (size_t)k * TILE)
                                : vf_load((const float *)at + (size_t)k * TILE);
        for (int r = 0; r < n; r++)
            acc[r] = vf_fma(v, vf_set1(f[r][k]), acc[r]);
    }
    for (int r = 0; r < n; r++)
        ret[r] = acc[r];
}

SIMD_FN void any_tile(int n, const struct backend_weight *w, uint32_t tile,
                      const struct backend_buffer *x, uint32_t row, vf *ret)
{
    const uint8_t *at = w->data + tile * w->tile_bytes;
    switch (w->pack) {
    case PACK_Q4_0:
        codes_tile(PACK_Q4_0, n, w, at, x, row, ret);
        break;
    case PACK_Q4_1:
        codes_tile(PACK_Q4_1, n, w, at, x, row, ret);
        break;
    case PACK_Q8_0:
        codes_tile(PACK_Q8_0, n, w, at, x, row, ret);
        break;
    case PACK_F16:
        floats_tile(PACK_F16, n, w, at, x, row, ret);
        break;
    default:
        floats_tile(PACK_F32, n, w, at, x, row, ret);
        break;
    }
}

/* Separate functions, so that each keeps its sums in registers. */
#define TILE_ROWS(n)                                                                               \
    static __attribute__((noinline)) void tile_rows_##n(                                           \
        const struct backend_weight *w, uint32_t tile, const struct backend_buffer *x,             \
        uint32_t row, vf *ret)                                                                     \
    {                                                                                              \
        any_tile(n, w, tile, x, row, ret);                                                         \
    }
TILE_ROWS(1)
TILE_ROWS(2)
TILE_ROWS(4)
static __attribute__((noinline)) void tile_rows_max(const struct backend_weight *w, uint32_t tile,
                                                    const struct backend_buffer *x, uint32_t row,
                                                    vf *ret)
{
    any_tile(ROWS_MAX, w, tile, x, row, ret);
}

/* Products of up to n rows; returns how many it made. */
static uint32_t tile_rows(const struct backend_weight *w, uint32_t tile,
                          const struct backend_buffer *x, uint32_t row, uint32_t n, vf *ret)
{
    if (n >= ROWS_MAX) {
        tile_rows_max(w, tile, x, row, ret);
        return ROWS_MAX;
    }
    if (n >= 4) {
        tile_rows_4(w, tile, x, row, ret);
        return 4;
    }
    if (n >= 2) {
        tile_rows_2(w, tile, x, row, ret);
        return 2;
    }
    tile_rows_1(w, tile, x, row, ret);
    return 1;
}

/* Turns the pairs of 16 outputs that begin at dimension d of a head. */
SIMD_FN vf turned(const struct backend *b, uint32_t row, uint32_t d, vf v)
{
    if (d >= b->geo.rope_dims) return v;
    vf cs = vf_load(b->win.rope + (size_t)row * b->geo.rope_dims + d);
    vf turn = vf_negate_firsts(vf_mul(vf_swap(v), vf_seconds(cs)));
    return vf_fma(v, vf_firsts(cs), turn);
}

/* K: lanes are dimensions, cells of one dimension lie side by side. */
SIMD_FN void store_k(const struct cpu_geometry *g, uint8_t *block, uint32_t cell, uint32_t head,
                     uint32_t d, vf v)
{
    size_t at = ((size_t)head * g->head_dim + d) * g->block_cells + cell;
    if (g->kv == POOL_KV_F32) {
        float t[LANES], *to = (float *)block + at;
        vf_store(t, v);
        for (uint32_t i = 0; i < LANES; i++)
            to[(size_t)i * g->block_cells] = t[i];
        return;
    }
    uint16_t t[LANES], *to = (uint16_t *)block + at;
    vf_store_f16(t, v);
    for (uint32_t i = 0; i < LANES; i++)
        to[(size_t)i * g->block_cells] = t[i];
}

SIMD_FN void store_v(const struct cpu_geometry *g, uint8_t *block, uint32_t cell, uint32_t head,
                     uint32_t d, vf v)
{
    size_t at = ((size_t)head * g->block_cells + cell) * g->head_dim + d;
    if (g->kv == POOL_KV_F32)
        vf_store((float *)(block + g->block.v.off) + at, v);
    else
        vf_store_f16((uint16_t *)(block + g->block.v.off) + at, v);
}

/* Where K and V have scales: this tile's rows wait for the rest of their group. */
SIMD_FN void keep_fresh(const struct backend *b, uint32_t row, bool is_v, uint32_t at, vf v)
{
    size_t n = (size_t)b->geo.n_kv_heads * b->geo.head_dim;
    vf_store(b->fresh.f + row * 2 * n + (is_v ? n : 0) + at, v);
}

/* A tile of some rows is there: the last of a group's brings the group into the rows' cells. */
static void fresh_done(const struct cpu_op *op, bool is_v, uint32_t tile, uint32_t row, uint32_t n)
{
    const struct backend *b = op->b;
    const struct cpu_geometry *g = &b->geo;
    uint32_t d = tile * TILE % g->head_dim;
    struct cpu_group which = {is_v, tile * TILE / g->head_dim, d / KV_GROUP};
    size_t head = is_v * g->n_kv_heads + which.head;
    uint32_t *left = &b->fresh.left[row / ROW_BLOCK * (size_t)cpu_groups(g) +
                                    head * g->block.n_groups + which.group];
    if (__atomic_sub_fetch(left, 1, __ATOMIC_ACQ_REL) > 0) return;
    __atomic_store_n(left, cpu_group_values(g, which.group) / TILE, /* for the next layer */
                     __ATOMIC_RELAXED);
    const float *x = b->fresh.f + head * g->head_dim + (size_t)which.group * KV_GROUP;
    for (uint32_t end = row + n; row < end; row++) {
        const struct cpu_cell *cell = &b->win.cell[row];
        KERNEL(keep)
        (g, b->run[op->layer] + cell->block, cell->at, &which,
         x + (size_t)row * 2 * g->n_kv_heads * g->head_dim);
    }
}

static void finish(const struct cpu_op *op, enum cpu_epilogue how, uint32_t tile, uint32_t row,
                   vf v)
{
    const struct backend *b = op->b;
    const struct cpu_geometry *g = &b->geo;
    uint32_t at = tile * TILE, head = at / g->head_dim, d = at % g->head_dim;
    float *out = op->out->f + (size_t)row * op->out->width + at;
    const struct cpu_cell *cell = &b->win.cell[row];
    switch (how) {
    case EPILOGUE_STORE:
        vf_store(out, v);
        break;
    case EPILOGUE_ADD:
        vf_store(out, vf_add(vf_load(out), v));
        break;
    case EPILOGUE_Q:
        vf_store(out, turned(b, row, d, v));
        break;
    case EPILOGUE_K:
        if (g->block.n_groups)
            keep_fresh(b, row, false, at, turned(b, row, d, v));
        else
            store_k(g, b->run[op->layer] + cell->block, cell->at, head, d, turned(b, row, d, v));
        break;
    case EPILOGUE_V:
        if (g->block.n_groups)
            keep_fresh(b, row, true, at, v);
        else
            store_v(g, b->run[op->layer] + cell->block, cell->at, head, d, v);
        break;
    }
}

/* silu(gate) * up; silu(v) = v / (1 + e^-v). */
static void finish_gate(const struct cpu_op *op, uint32_t tile, uint32_t row, vf gate, vf up)
{
    vf one = vf_set1(1), e = vf_exp(vf_sub(vf_set1(0), gate));
    float *out = op->out->f + (size_t)row * op->out->width + tile * TILE;
    vf_store(out, vf_mul(vf_div(gate, vf_add(one, e)), up));
}

void KERNEL(product)(const struct cpu_op *op, uint32_t thread, uint32_t tile, uint32_t row,
                     uint32_t n_rows)
{
    vf v[ROWS_MAX], up[ROWS_MAX];
    uint32_t i = 0, first = cpu_first_row(op->in, op->in_each, thread), begin = row;
    while (!op->gate && tile >= op->w[i]->n_tiles)
        tile -= op->w[i++]->n_tiles;
    for (uint32_t end = row + n_rows, n; row < end; row += n) {
        n = tile_rows(op->w[i], tile, op->in, first + row, end - row, v);
        if (op->gate) (void)tile_rows(op->w[1], tile, op->in, first + row, n, up);
        for (uint32_t r = 0; r < n; r++) {
            if (op->gate)
                finish_gate(op, tile, row + r, v[r], up[r]);
            else
                finish(op, op->epilogue[i], tile, row + r, v[r]);
        }
    }
    bool is_k = op->epilogue[i] == EPILOGUE_K, is_v = op->epilogue[i] == EPILOGUE_V;
    if ((is_k || is_v) && op->b->geo.block.n_groups) fresh_done(op, is_v, tile, begin, n_rows);
}
