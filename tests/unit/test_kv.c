/* SPDX-License-Identifier: MIT */
/*
 * Blocks of K and V in each format: where sections lie, what a group of values becomes in every
 * variant of the CPU's kernels, and that nothing else in the block is touched by it or by a copy of
 * some cells. Offsets were worked out by hand from proto/kv_block.h's text; codes and scales are
 * tests/data/make_kv.py's, in exact fractions.
 */
#include <check.h>
#include <jansson.h>
#include <string.h>

#include "tests/suite.h"
#include "tests/unit/cpu_variants.h"
#include "workerd/arena.h"
#include "workerd/cpu/cpu.h"

enum { BLOCK_BYTES_MAX = 1 << 16 };

/* Heads, values of a head, cells; offsets of V, K's scales, V's scales, and the end; lines and
 * bytes of a unit of K by cell and by dimension. */
static const struct {
    uint32_t kv, heads, dim, cells;
    uint64_t v, k_scale, v_scale, bytes;
    uint32_t n_groups, by_cell, by_dim, unit_by_dim;
} layouts[] = {
    {POOL_KV_F32,  3, 64,  16, 12288, 24576, 24576, 24576, 0, 256, 192,  4},
    {POOL_KV_F16,  3, 64,  16, 6144,  12288, 12288, 12288, 0, 128, 192,  2},
    {POOL_KV_INT8, 3, 64,  16, 3072,  6144,  6240,  6336,  1, 64,  192,  1},
    {POOL_KV_K8V4, 3, 64,  16, 3072,  4608,  4704,  4800,  1, 64,  192,  1},
    {POOL_KV_Q4,   3, 64,  16, 1536,  3072,  3168,  3264,  1, 32,  96,   1},
    {POOL_KV_INT8, 8, 128, 16, 16384, 32768, 33280, 33792, 2, 128, 1024, 1}, /* 2,112 a cell */
    {POOL_KV_Q4,   1, 80,  32, 1280,  2560,  2688,  2816,  2, 40,  40,   1},
};

START_TEST(sections_lie_where_the_text_says)
{
    uint32_t kv = layouts[_i].kv, cells = layouts[_i].cells, heads = layouts[_i].heads;
    struct kv_block c = kv_block_of(kv, heads, layouts[_i].dim, cells, KV_BY_CELL);
    struct kv_block d = kv_block_of(kv, heads, layouts[_i].dim, cells, KV_BY_DIM);
    ck_assert_uint_eq(c.k.off, 0);
    ck_assert_uint_eq(c.v.off, layouts[_i].v);
    ck_assert_uint_eq(c.k_scale.off, layouts[_i].k_scale);
    ck_assert_uint_eq(c.v_scale.off, layouts[_i].v_scale);
    ck_assert_uint_eq(c.bytes, layouts[_i].bytes);
    ck_assert_uint_eq(c.n_groups, layouts[_i].n_groups);
    ck_assert_uint_eq(c.k.lines, heads);
    ck_assert_uint_eq(c.k.unit_bytes, layouts[_i].by_cell);
    ck_assert_uint_eq(d.k.lines, layouts[_i].by_dim);
    ck_assert_uint_eq(d.k.unit_bytes, layouts[_i].unit_by_dim);
    ck_assert_uint_eq(d.v.off, c.v.off);
    ck_assert_uint_eq(d.v.lines, heads);
    ck_assert_uint_eq(d.bytes, c.bytes);
    ck_assert_uint_eq(d.k_scale.lines, heads * c.n_groups);
}
END_TEST

START_TEST(blocks_have_two_kib_and_sixteen_cells)
{
    ck_assert_uint_eq(kv_block_cells(POOL_KV_F32, 8, 128), 16);
    ck_assert_uint_eq(kv_block_cells(POOL_KV_Q4, 3, 64), 16);   /* 204 bytes a cell */
    ck_assert_uint_eq(kv_block_cells(POOL_KV_F16, 1, 16), 32);  /* 64 */
    ck_assert_uint_eq(kv_block_cells(POOL_KV_INT8, 1, 16), 64); /* 36 */
    ck_assert_uint_eq(kv_block_cells(POOL_KV_Q4, 1, 16), 128);  /* 20 */
}
END_TEST

static const uint32_t formats[] = {POOL_KV_INT8, POOL_KV_K8V4, POOL_KV_Q4};

enum { HEADS = 2, CELLS = 32, HEAD_DIM = 96 }; /* groups of 64 and 32 */

static struct cpu_geometry geometry(uint32_t kv, uint32_t dim)
{
    return (struct cpu_geometry){
        .n_kv_heads = HEADS,
        .head_dim = dim,
        .kv = kv,
        .block_cells = CELLS,
        .block = kv_block_of(kv, HEADS, dim, CELLS, KV_BY_DIM),
    };
}

static bool runs_here(const struct cpu_kernels *k)
{
    static const double no_turn[8];
    struct backend_want want = {.n_heads = 1,
                                .n_kv_heads = 1,
                                .head_dim = 16,
                                .rope_dims = 16,
                                .rope_freq = no_turn,
                                .kv = POOL_KV_F32,
                                .block_cells = 16,
                                .block_bytes = 2048,
                                .max_rows = 1,
                                .max_lanes = 1,
                                .context_tokens = 1,
                                .variant = k->name};
    struct backend *b;
    if (cpu_backend.open(&want, NULL, &b) < 0) return false;
    cpu_backend.close(b);
    return true;
}

static json_t *cases_read(void)
{
    char path[4096];
    (void)snprintf(path, sizeof(path), "%s/kv_codes.json", getenv("TEST_DATA"));
    json_t *j = json_load_file(path, 0, NULL);
    if (!j) ck_abort_msg("%s can't be read", path);
    return j;
}

static uint32_t values_of(const json_t *c, float *ret)
{
    const json_t *a = json_object_get(c, "values");
    uint32_t n = (uint32_t)json_array_size(a);
    ck_assert_uint_le(n, KV_GROUP);
    for (uint32_t i = 0; i < n; i++) {
        uint32_t bits = (uint32_t)json_integer_value(json_array_get(a, i));
        memcpy(&ret[i], &bits, sizeof(bits));
    }
    return n;
}

/* Puts what is expected of a group into a block, byte by byte. */
static void expect(const struct cpu_geometry *g, uint8_t *block, uint32_t cell,
                   const struct cpu_group *which, const json_t *c)
{
    uint32_t bits = kv_bits(g->kv, which->is_v);
    const json_t *kept = json_object_get(c, bits == 8 ? "bits8" : "bits4");
    const json_t *codes = json_object_get(kept, "codes");
    uint16_t scale = (uint16_t)json_integer_value(json_object_get(kept, "scale"));
    size_t scales = which->is_v ? g->block.v_scale.off : g->block.k_scale.off;
    size_t line = which->head * g->block.n_groups + which->group;
    memcpy(block + scales + (line * CELLS + cell) * 2, &scale, 2);
    uint32_t pair = 8 / bits; /* values of a byte */
    for (uint32_t i = 0; i < json_array_size(codes); i += pair) {
        uint32_t byte = 0, d = which->group * 64 + i;
        for (uint32_t j = 0; j < pair; j++)
            byte |= (uint32_t)(json_integer_value(json_array_get(codes, i + j)) & 255) << bits * j;
        size_t bytes = g->head_dim / pair, at = which->is_v ? g->block.v.off : 0;
        at += which->is_v ? (which->head * CELLS + cell) * bytes + d / pair
                          : (which->head * bytes + d / pair) * CELLS + cell;
        block[at] = (uint8_t)byte;
    }
}

START_TEST(groups_are_rounded_and_nothing_else_is_touched)
{
    static uint8_t block[BLOCK_BYTES_MAX], expected[BLOCK_BYTES_MAX];
    const struct cpu_kernels *k = variants[(size_t)_i / ARRAY_LEN(formats)];
    uint32_t kv = formats[(size_t)_i % ARRAY_LEN(formats)];
    json_t *cases = cases_read(), *c;
    size_t i;
    if (!runs_here(k)) return;
    json_array_foreach(cases, i, c)
    {
        float x[KV_GROUP];
        uint32_t n = values_of(c, x), cell = (uint32_t)(i * 7 % CELLS);
        struct cpu_geometry g = geometry(kv, n < KV_GROUP ? 64 + n : HEAD_DIM);
        for (uint32_t is_v = 0; is_v < 2; is_v++) {
            struct cpu_group which = {is_v, (uint32_t)(i % HEADS), n < KV_GROUP};
            memset(block, 0xa5, g.block.bytes);
            memset(expected, 0xa5, g.block.bytes);
            expect(&g, expected, cell, &which, c);
            k->keep(&g, block, cell, &which, x);
            for (size_t at = 0; at < g.block.bytes; at++)
                if (block[at] != expected[at])
                    ck_abort_msg("%s, %s, %s of %s: byte %zu is %02x, expected %02x",
                                 json_string_value(json_object_get(c, "name")), kv_name(kv),
                                 is_v ? "V" : "K", k->name, at, block[at], expected[at]);
        }
    }
    ck_assert_uint_gt(i, 0);
    json_decref(cases);
}
END_TEST

/* Cells [0, n) of a chunk of blocks, filled with values that tell all of them apart. */
static void fill_cells(const struct cpu_geometry *g, uint8_t *chunk, uint32_t n)
{
    for (uint32_t cell = 0; cell < n; cell++)
        for (uint32_t i = 0; i < cpu_groups(g); i++) {
            float x[KV_GROUP];
            struct cpu_group which = {i >= cpu_groups(g) / 2, i / g->block.n_groups % HEADS,
                                      i % g->block.n_groups};
            for (uint32_t j = 0; j < KV_GROUP; j++)
                x[j] = (float)((j * 37 + cell * 11 + i * 5) % 101) - 50 + (float)cell;
            cpu_kernels_plain.keep(g, chunk + cell / CELLS * g->block.bytes, cell % CELLS, &which,
                                   x);
        }
}

START_TEST(copies_of_some_cells_are_those_cells)
{
    enum { BLOCKS = 3 };
    static uint8_t from[BLOCKS * BLOCK_BYTES_MAX], to[sizeof(from)], expected[sizeof(from)];
    struct cpu_geometry g = geometry(formats[_i], HEAD_DIM);
    size_t bytes = BLOCKS * g.block.bytes;
    memset(from, 0xff, bytes);
    fill_cells(&g, from, BLOCKS * CELLS);
    for (uint32_t n = 0; n <= BLOCKS * CELLS; n++) {
        memset(to, 0x5a, bytes);
        memset(expected, 0x5a, bytes);
        fill_cells(&g, expected, n);
        arena_copy_cells(&g.block, CELLS, to, from, n);
        ck_assert_msg(memcmp(to, expected, bytes) == 0, "%s: a copy of %u cells differs",
                      kv_name(g.kv), n);
    }
}
END_TEST

int main(void)
{
    TCase *t = tcase_create("kv");
    tcase_set_timeout(t, 60);
    tcase_add_loop_test(t, sections_lie_where_the_text_says, 0, (int)ARRAY_LEN(layouts));
    tcase_add_test(t, blocks_have_two_kib_and_sixteen_cells);
    tcase_add_loop_test(t, groups_are_rounded_and_nothing_else_is_touched, 0,
                        (int)(ARRAY_LEN(variants) * ARRAY_LEN(formats)));
    tcase_add_loop_test(t, copies_of_some_cells_are_those_cells, 0, (int)ARRAY_LEN(formats));
    return suite_run("kv", t);
}
