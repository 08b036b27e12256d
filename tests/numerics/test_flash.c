/* SPDX-License-Identifier: MIT */
/*
 * Attention by tensor cores, kernel by kernel: rows by themselves, a part or a stretch of parts at
 * a time, and as a span's tile give the same bits, at the borders of parts and stretches, whatever
 * K and V are kept as; and a row whose K and V are rounded on the way leaves the same cells. What
 * the values are is compared with the CPU by test_tiny and test_reference.
 */
#include <check.h>
#include <stdlib.h>
#include <string.h>

#include "common/base.h"
#include "proto/kv_block.h"
#include "tests/numerics/device_memory.h"
#include "tests/suite.h"
#include "workerd/cuda/kernels.h"

enum {
    CELLS = 2200, /* over two stretches */
    CHUNK = 64,
    SPLITS = 32, /* parts: at least what CELLS need */
    SPAN = 12,   /* rows */
    SPANS = 4,
    ROWS = SPAN * SPANS,
    DIM_MAX = 256,
};

static const uint32_t span_at[SPANS] = {0, 122, 1019, CELLS - SPAN};

struct subject {
    uint32_t kv, n_heads, n_kv_heads, head_dim;
};
static const struct subject subjects[] = {
    {POOL_KV_INT8, 8,  2, 128},
    {POOL_KV_F16,  8,  2, 128},
    {POOL_KV_INT8, 20, 1, 80 },
    {POOL_KV_K8V4, 6,  2, 80 },
    {POOL_KV_Q4,   6,  2, 64 },
    {POOL_KV_INT8, 3,  3, 48 },
    {POOL_KV_INT8, 2,  1, 256}, /* no tiles */
    {POOL_KV_F16,  2,  1, 256},
};

struct bench {
    struct subject s;
    struct kv_block block;
    struct cuda_kv kv;
    struct cuda_row row[CELLS];
    uint64_t arena_bytes;
    uint8_t *arena; /* the device's */
    float *q, *y, *ml, *o;
    struct cuda_span *spans; /* of what fits a tile */
    uint32_t *listed, n_spans;
};

static enum cuda_tiles tiles_best;

/* The device's bytes, for free(). */
static void *read_back(const void *from, uint64_t bytes)
{
    void *to = xcalloc(1, bytes);
    ok(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToHost, NULL));
    ok(cudaStreamSynchronize(NULL));
    return to;
}

static float *random_floats(uint64_t n, float scale)
{
    float *f = xcalloc(n, sizeof(*f));
    for (uint64_t i = 0; i < n; i++)
        f[i] = ((float)rand() / (float)RAND_MAX - 0.5f) * scale;
    return f;
}

static float *get_random(uint64_t n, float scale)
{
    float *f = random_floats(n, scale);
    float *to = get(n * sizeof(*f), f);
    free(f);
    return to;
}

/* Chunk i of the lane is chunk n - i of the arena; of three one is resident and one passes, which
 * is the same memory here. */
static const struct cuda_entry *get_table(uint32_t n)
{
    struct cuda_entry *e = xcalloc(n, sizeof(*e));
    for (uint32_t i = 0; i < n; i++)
        e[i] = (struct cuda_entry){.chunk = n - i,
                                   .slot = i % 3 ? (int32_t)(n - i + (i % 3 - 1) * (n + 1)) : -1};
    const struct cuda_entry *to = get(n * sizeof(*e), e);
    free(e);
    return to;
}

/* Halves that are numbers: exponents below that of 2. */
static void fill_halves(struct bench *b)
{
    uint16_t *h = xcalloc(1, b->arena_bytes);
    for (uint64_t i = 0; i < b->arena_bytes / 2; i++)
        h[i] = (uint16_t)(rand() & 0xbfff);
    ok(cudaMemcpyAsync(b->arena, h, b->arena_bytes, cudaMemcpyHostToDevice, NULL));
    ok(cudaStreamSynchronize(NULL));
    free(h);
}

static void rows_choose(struct bench *b)
{
    const uint32_t most = min_u32(SPAN, CUDA_FLASH_ROWS * b->s.n_kv_heads / b->s.n_heads);
    uint32_t listed[ROWS];
    struct cuda_span spans[ROWS];
    for (uint32_t i = 0; i < ROWS; i++)
        listed[i] = span_at[i / SPAN] + i % SPAN;
    for (uint32_t i = 0; i < SPANS; i++)
        for (uint32_t at = 0; at < SPAN; at += most)
            spans[b->n_spans++] = (struct cuda_span){.first_row = span_at[i] + at,
                                                     .n_rows = min_u32(most, SPAN - at)};
    b->listed = get(sizeof(listed), listed);
    b->spans = get(b->n_spans * sizeof(*spans), spans);
}

static void bench_init(struct bench *b, const struct subject *s)
{
    const uint32_t n = CELLS / CHUNK + 1;
    *b = (struct bench){.s = *s};
    srand(1);
    b->block = kv_block_of(s->kv, s->n_kv_heads, s->head_dim, 16, KV_BY_CELL);
    b->arena_bytes = (n + 1) * (CHUNK / 16) * b->block.bytes;
    b->arena = get(b->arena_bytes, NULL);
    for (uint32_t i = 0; i < CELLS; i++)
        b->row[i].pos = i;
    b->kv = (struct cuda_kv){
        .rows = get(sizeof(b->row), b->row),
        .tables = get_table(n),
        .host = b->arena,
        .resident = b->arena,
        .passing = b->arena,
        .n_slots = n + 1,
        .chunk_bytes = CHUNK / 16 * b->block.bytes,
        .block_bytes = b->block.bytes,
        .v_off = b->block.v.off,
        .k_scale_off = b->block.k_scale.off,
        .v_scale_off = b->block.v_scale.off,
        .table_room = n,
        .chunk_shift = 6,
        .block_shift = 4,
        .n_heads = s->n_heads,
        .n_kv_heads = s->n_kv_heads,
        .head_dim = s->head_dim,
        .k_bits = b->block.k_bits,
        .v_bits = b->block.v_bits,
        .n_groups = b->block.n_groups,
    };
    if (s->kv == POOL_KV_F16) {
        fill_halves(b);
    } else {
        b->kv.fresh = get_random((uint64_t)CELLS * 2 * s->n_kv_heads * s->head_dim, 3);
        ok(cuda_launch_keep(NULL, &(struct cuda_keep){.kv = b->kv, .n_rows = CELLS}));
    }
    const uint64_t width = (uint64_t)s->n_heads * s->head_dim;
    b->q = get_random(CELLS * width, 2);
    b->y = get(CELLS * width * sizeof(float), NULL);
    b->ml = get((uint64_t)ROWS * s->n_heads * SPLITS * 2 * sizeof(float), NULL);
    b->o = get((uint64_t)ROWS * width * SPLITS * sizeof(float), NULL);
    rows_choose(b);
}

static struct cuda_attend attend_of(const struct bench *b, uint32_t together)
{
    const uint32_t width = b->s.n_heads * b->s.head_dim;
    return (struct cuda_attend){
        .kv = b->kv,
        .q = {.f = b->q, .width = width},
        .y = {.f = b->y, .width = width},
        .spans = b->spans,
        .listed = b->listed,
        .n_rows = ROWS,
        .n_splits = SPLITS,
        .scale = 0.1f,
        .ml = b->ml,
        .o = b->o,
        .together = together,
    };
}

static float *result(struct bench *b)
{
    const uint64_t bytes = (uint64_t)CELLS * b->s.n_heads * b->s.head_dim * sizeof(float);
    float *y = read_back(b->y, bytes);
    ok(cudaMemsetAsync(b->y, 0, bytes, NULL));
    return y;
}

static void check_same(const struct bench *b, const float *x, const float *y, const char *what)
{
    const uint32_t width = b->s.n_heads * b->s.head_dim;
    for (uint32_t i = 0; i < CELLS * width; i++)
        if (memcmp(&x[i], &y[i], sizeof(*x)) != 0)
            ck_abort_msg("%s: row %u, value %u: %a and %a", what, i / width, i % width, x[i], y[i]);
}

/* Spans with all of a head's cells, and divided into stretches and pairs of them, by all ways of a
 * card. */
static void check_tiles(struct bench *b, const float *parts)
{
    static const char *const what[] = {"tiles", "tiles of a stretch", "tiles of two stretches"};
    for (uint32_t i = 0; i < (tiles_best + 1) * ARRAY_LEN(what); i++) {
        struct cuda_attend a = attend_of(b, 1);
        a.n_rows = b->n_spans;
        a.each = i % ARRAY_LEN(what);
        a.stretches = CELLS / (CUDA_FLASH_CELLS * CUDA_FLASH_STRETCH) + 1;
        a.tiles = (enum cuda_tiles)(i / ARRAY_LEN(what));
        ok(cuda_launch_flash_tiles(NULL, &a));
        float *tiles = result(b);
        check_same(b, parts, tiles, what[a.each]);
        free(tiles);
    }
}

START_TEST(rows_by_themselves_and_in_tiles)
{
    struct bench b;
    bench_init(&b, &subjects[_i]);
    struct cuda_attend a = attend_of(&b, 1);
    ok(cuda_launch_flash(NULL, &a));
    float *parts = result(&b), some = 0;
    for (uint32_t i = 0; i < b.s.head_dim; i++)
        some += parts[(uint64_t)(CELLS - 1) * b.s.n_heads * b.s.head_dim + i] != 0;
    ck_assert(some > 0);
    a = attend_of(&b, CUDA_FLASH_STRETCH);
    ok(cuda_launch_flash(NULL, &a));
    float *stretches = result(&b);
    check_same(&b, parts, stretches, "stretches");
    free(stretches);
    for (uint32_t i = 0; i < ROWS; i++) { /* joined by more warps */
        a = attend_of(&b, i % 2 ? 1 : CUDA_FLASH_STRETCH);
        a.first_row = i;
        a.n_rows = 1;
        ok(cuda_launch_flash(NULL, &a));
    }
    float *alone = result(&b);
    check_same(&b, parts, alone, "each by itself");
    free(alone);
    if (b.s.head_dim <= CUDA_FLASH_DIM) check_tiles(&b, parts);
    free(parts);
    give_all();
}
END_TEST

/* What the row's K and V are rounded to in the pool is spoilt, for the first head, before it is
 * rounded on the way. */
static void cell_spoil(const struct bench *b, uint32_t pos)
{
    const uint32_t chunk = CELLS / CHUNK + 1 - pos / CHUNK;
    uint8_t *block = b->arena + chunk * b->kv.chunk_bytes + pos % CHUNK / 16 * b->kv.block_bytes;
    const uint64_t codes = (uint64_t)pos % 16 * b->s.head_dim, scale = pos % 16 * 2;
    ok(cudaMemsetAsync(block + codes, 0x55, b->s.head_dim, NULL));
    ok(cudaMemsetAsync(block + b->kv.v_off + codes, 0x55, b->s.head_dim, NULL));
    ok(cudaMemsetAsync(block + b->kv.k_scale_off + scale, 0xff, 2, NULL));
    ok(cudaMemsetAsync(block + b->kv.v_scale_off + scale, 0xff, 2, NULL));
}

static void check_rounded(struct bench *b, uint32_t pos, uint32_t together)
{
    struct cuda_attend a = attend_of(b, together);
    a.listed = NULL;
    a.first_row = pos;
    a.n_rows = 1;
    ok(cuda_launch_flash(NULL, &a));
    float *before = result(b);
    uint8_t *cells = read_back(b->arena, b->arena_bytes);
    cell_spoil(b, pos);
    a.keep = 1;
    ok(cuda_launch_flash(NULL, &a));
    float *after = result(b);
    check_same(b, before, after, "rounded on the way");
    uint8_t *now = read_back(b->arena, b->arena_bytes);
    ck_assert(memcmp(now, cells, b->arena_bytes) == 0);
    free(before);
    free(after);
    free(cells);
    free(now);
}

START_TEST(a_row_is_rounded_on_the_way)
{
    struct bench b;
    bench_init(&b, &subjects[_i]);
    bool eight = b.block.k_bits == 8 && b.block.v_bits == 8;
    for (uint32_t i = 0; i < ROWS && eight; i += 5) {
        check_rounded(&b, span_at[i / SPAN] + i % SPAN, 1);
        check_rounded(&b, span_at[i / SPAN] + i % SPAN, CUDA_FLASH_STRETCH);
    }
    give_all();
}
END_TEST

int main(void)
{
    int n = 0;
    if (cudaGetDeviceCount(&n) != cudaSuccess || n == 0) return 77;
    struct cuda_product_ways products;
    uint32_t dim_max;
    if (cuda_product_prepare(&products) || cuda_flash_prepare(&dim_max) ||
        cuda_tiles_prepare(&tiles_best))
        return 1;
    TCase *t = tcase_create("bits");
    tcase_set_timeout(t, 300);
    tcase_add_loop_test(t, rows_by_themselves_and_in_tiles, 0, ARRAY_LEN(subjects));
    tcase_add_loop_test(t, a_row_is_rounded_on_the_way, 0, ARRAY_LEN(subjects));
    return suite_run_cases("flash", &t, 1, true);
}
