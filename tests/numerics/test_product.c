/* SPDX-License-Identifier: MIT */
/*
 * Products of quantised matrices, kernel by kernel: whatever the number of rows and the kernel,
 * an element has the bits that product.cuh's first comment says, computed here in C with whole
 * numbers and one rounding where the comment has one.
 */
#include <check.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "common/base.h"
#include "common/gguf.h"
#include "tests/numerics/device_memory.h"
#include "tests/suite.h"
#include "workerd/cuda/kernels.h"

enum { ROWS = 300, BLOCK = CUDA_BLOCK };

struct subject {
    uint32_t type, pack, n_in, n_out;
};
static const struct subject subjects[] = {
    {GGML_Q8_0, CUDA_Q8_0, 4096, 320 },
    {GGML_Q8_0, CUDA_Q8_0, 576,  1000}, /* nine pieces: of a range none or two */
    {GGML_Q8_0, CUDA_Q8_0, 96,   16  }, /* the last piece is half */
    {GGML_Q8_0, CUDA_Q8_0, 32,   130 },
    {GGML_Q4_0, CUDA_Q4_0, 576,  200 },
    {GGML_Q4_1, CUDA_Q4_1, 1120, 200 },
};
static const uint32_t row_counts[] = {1, 8, 9, 32, 33, 64, 65, 128, 129, ROWS};

/* One quantised block of a matrix or a row: value i is d code[i] + m. */
struct block {
    float d, m;
    int8_t code[BLOCK];
    int sum;
};

static struct cuda_product_ways ways;

/* A half of 2^-12 to 2^-6, and its value. */
static uint16_t random_half(float *value)
{
    uint32_t exponent = 3 + (uint32_t)rand() % 6, low = (uint32_t)rand() % 1024;
    *value = ldexpf(1.0f + (float)low / 1024, (int)exponent - 15);
    return (uint16_t)(exponent << 10 | low);
}

/* A block in ggml's layout at `to`; returns its length. */
static uint64_t random_block(uint32_t type, uint8_t *to, struct block *ret)
{
    uint8_t *at = to;
    uint16_t half = random_half(&ret->d);
    memcpy(at, &half, 2), at += 2;
    ret->m = 0;
    if (type == GGML_Q4_1) half = random_half(&ret->m), memcpy(at, &half, 2), at += 2;
    for (uint32_t i = 0; type == GGML_Q8_0 && i < BLOCK; i++)
        at[i] = (uint8_t)(ret->code[i] = (int8_t)(rand() % 255 - 127));
    if (type == GGML_Q8_0) return (uint64_t)(at + BLOCK - to);
    const int less = type == GGML_Q4_0 ? 8 : 0;
    for (uint32_t i = 0; i < BLOCK / 2; i++) {
        at[i] = (uint8_t)rand();
        ret->code[i] = (int8_t)((at[i] & 15) - less);
        ret->code[BLOCK / 2 + i] = (int8_t)((at[i] >> 4) - less);
    }
    return (uint64_t)(at + BLOCK / 2 - to);
}

/* device.cuh's quantise_block. */
static void block_of(const float *v, struct block *ret)
{
    float most = 0;
    for (uint32_t i = 0; i < BLOCK; i++)
        most = fmaxf(most, fabsf(v[i]));
    const float per = 127.0f / most;
    *ret = (struct block){.d = most / 127.0f};
    for (uint32_t i = 0; i < BLOCK; i++) {
        ret->code[i] = (int8_t)lrintf(v[i] * per);
        ret->sum += ret->code[i];
    }
}

static float expected(const struct block *w, const struct block *x, uint32_t n_blocks, bool offset)
{
    const uint32_t n_pieces = (n_blocks + 1) / 2;
    float sum = 0;
    for (uint32_t r = 0; r < CUDA_RANGES; r++) {
        float p = 0;
        const uint32_t end = 2 * (n_pieces * (r + 1) / CUDA_RANGES);
        for (uint32_t b = 2 * (n_pieces * r / CUDA_RANGES); b < end && b < n_blocks; b++) {
            int isum = 0;
            for (uint32_t i = 0; i < BLOCK; i++)
                isum += w[b].code[i] * x[b].code[i];
            p = fmaf((float)((double)isum * w[b].d), x[b].d, p);
            if (offset) p = fmaf(w[b].m, x[b].d * (float)x[b].sum, p);
        }
        sum = r == 0 ? p : sum + p;
    }
    return sum;
}

struct bench {
    struct subject s;
    uint32_t n_blocks;
    struct block *w, *x; /* [output][block], [row][block] */
    float *f;            /* what x is of */
    struct cuda_product a;
};

static void bench_init(struct bench *b, const struct subject *s)
{
    give_all(); /* of one that failed */
    srand(3);
    const uint32_t n = s->n_in / BLOCK, k_pad = (n + 1) / 2 * CUDA_PIECE;
    const uint64_t eights = round_up_u64(ROWS, CUDA_X_WHOLE) / CUDA_X_ROWS;
    const uint64_t tiles = (s->n_out + CUDA_TILE - 1) / CUDA_TILE * (CUDA_TILE / 16);
    *b = (struct bench){.s = *s, .n_blocks = n};
    b->w = xcalloc((uint64_t)s->n_out * n, sizeof(*b->w));
    b->x = xcalloc((uint64_t)ROWS * n, sizeof(*b->x));
    uint8_t *file = xcalloc((uint64_t)s->n_out * n, 34);
    uint64_t bytes = 0;
    for (uint64_t i = 0; i < (uint64_t)s->n_out * n; i++)
        bytes += random_block(s->type, file + bytes, &b->w[i]);
    float *f = b->f = xcalloc((uint64_t)ROWS * s->n_in, sizeof(*f));
    for (uint64_t i = 0; i < (uint64_t)ROWS * s->n_in; i++)
        f[i] = (float)rand() / (float)RAND_MAX - 0.5f;
    for (uint64_t i = 0; i < (uint64_t)ROWS * n; i++)
        block_of(f + i * BLOCK, &b->x[i]);
    void *codes = get(tiles * (k_pad / CUDA_PIECE) * CUDA_Q8_0_BYTES, NULL);
    struct cuda_repack repack = {
        .from = get(bytes, file),
        .type = s->type,
        .pack = s->pack,
        .n_out = s->n_out,
        .n_in = s->n_in,
        .codes = codes,
    };
    ok(cuda_launch_repack(NULL, &repack));
    b->a = (struct cuda_product){
        .pack = s->pack,
        .epilogue = CUDA_STORE,
        .n_matrices = 1,
        .m = {{codes, s->n_out, s->n_in}                           },
        .x = {      .f = get((uint64_t)ROWS * s->n_in * sizeof(*f), f),
              .q = get(eights * (k_pad / CUDA_PIECE) * CUDA_X_BYTES, NULL),
              .h = get((ROWS + CUDA_HALVES_ROWS - 1) / CUDA_HALVES_ROWS * CUDA_HALVES_ROWS * 2ul *
                           k_pad, NULL),
              .width = s->n_in,
              .k_pad = k_pad},
        .y = { .f = get((uint64_t)ROWS * s->n_out * sizeof(*f),                                                                                           NULL), .width = s->n_out},
    };
    ok(cuda_launch_quantise(NULL, &(struct cuda_quantise){.x = b->a.x, .n_rows = ROWS}));
    free(file);
}

static void check_rows(struct bench *b, const float *want, uint32_t n_rows, const char *what,
                       cudaError_t (*launch)(cudaStream_t, const struct cuda_product *))
{
    const uint64_t n = (uint64_t)n_rows * b->s.n_out;
    float *y = xcalloc(n, sizeof(*y));
    b->a.n_rows = n_rows;
    ok(cudaMemset(b->a.y.f, 0xff, n * sizeof(*y)));
    ok(launch(NULL, &b->a));
    ok(cudaMemcpy(y, b->a.y.f, n * sizeof(*y), cudaMemcpyDeviceToHost));
    for (uint64_t i = 0; i < n; i++)
        if (memcmp(&y[i], &want[i], sizeof(*y)) != 0)
            ck_abort_msg("%s, %u rows: row %u, output %u: %a, expected %a", what, n_rows,
                         (uint32_t)(i / b->s.n_out), (uint32_t)(i % b->s.n_out), y[i], want[i]);
    free(y);
}

START_TEST(an_element_has_the_same_bits_by_every_kernel)
{
    struct bench b;
    bench_init(&b, &subjects[_i]);
    float *want = xcalloc((uint64_t)ROWS * b.s.n_out, sizeof(*want));
    for (uint32_t row = 0; row < ROWS; row++)
        for (uint32_t out = 0; out < b.s.n_out; out++)
            want[row * b.s.n_out + out] =
                expected(b.w + (uint64_t)out * b.n_blocks, b.x + (uint64_t)row * b.n_blocks,
                         b.n_blocks, b.s.pack == CUDA_Q4_1);
    for (uint32_t i = 0; i < ARRAY_LEN(row_counts); i++) {
        check_rows(&b, want, row_counts[i], "few", cuda_launch_few);
        b.a.deep_tiles = ways.deep ? UINT32_MAX : 0;
        check_rows(&b, want, row_counts[i], "few, longer ring", cuda_launch_few);
        b.a.deep_tiles = 0;
        if (ways.many) check_rows(&b, want, row_counts[i], "many", cuda_launch_many);
    }
    free(want);
    free(b.w), free(b.x), free(b.f);
    give_all();
}
END_TEST

/* The half that is nearest, the even one of two. */
static double half_of(double v)
{
    int e;
    (void)frexp(v, &e);
    const double last = ldexp(1, (e - 1 > -14 ? e - 1 : -14) - 10);
    return rint(v / last) * last;
}

/* Sums of products of halves in double, and of their sizes: [row][output]. */
static void halves_expected(const struct bench *b, double *sum, double *size)
{
    const uint32_t n_in = b->s.n_in, n_out = b->s.n_out;
    double *x = xcalloc((uint64_t)ROWS * n_in, sizeof(*x));
    for (uint64_t i = 0; i < (uint64_t)ROWS * n_in; i++)
        x[i] = half_of(b->f[i]);
    double *w = xcalloc(n_in, sizeof(*w));
    for (uint32_t out = 0; out < n_out; out++) {
        for (uint32_t k = 0; k < n_in; k++) {
            const struct block *of = &b->w[(uint64_t)out * b->n_blocks + k / BLOCK];
            w[k] = half_of((double)of->d * of->code[k % BLOCK] + of->m);
        }
        for (uint32_t row = 0; row < ROWS; row++) {
            double *s = &sum[(uint64_t)row * n_out + out], *of = &size[(uint64_t)row * n_out + out];
            for (uint32_t k = 0; k < n_in; k++) {
                *s += x[(uint64_t)row * n_in + k] * w[k];
                *of += fabs(x[(uint64_t)row * n_in + k] * w[k]);
            }
        }
    }
    free(x);
    free(w);
}

/* y of rows [first, first + n_rows), with the halves of those alone. */
static void halves_run(struct bench *b, uint32_t first, uint32_t n_rows, float *y)
{
    const uint64_t bytes = (uint64_t)ROWS * b->s.n_out * sizeof(*y);
    struct cuda_halve halve = {.x = b->a.x, .first_row = first, .n_rows = n_rows};
    ok(cuda_launch_halve(NULL, &halve));
    b->a.first_row = first;
    b->a.n_rows = n_rows;
    ok(cudaMemset(b->a.y.f, 0xff, bytes));
    ok(cuda_launch_halves(NULL, &b->a));
    ok(cudaMemcpy(y, b->a.y.f, bytes, cudaMemcpyDeviceToHost));
}

/* By halves.cu: the right sums, with the same bits wherever a row is and however many there are. */
START_TEST(a_prompts_element_has_the_same_bits_wherever_its_row_is)
{
    static const uint32_t firsts[] = {0, 5, 131}, multiprocessors[] = {1, 1 << 20};
    struct bench b;
    bench_init(&b, &subjects[_i]);
    const uint64_t n = (uint64_t)ROWS * b.s.n_out;
    double *sum = xcalloc(n, sizeof(*sum)), *size = xcalloc(n, sizeof(*size));
    float *want = xcalloc(n, sizeof(*want)), *y = xcalloc(n, sizeof(*y));
    halves_expected(&b, sum, size);
    b.a.multiprocessors = 1;
    halves_run(&b, 0, ROWS, want);
    for (uint64_t i = 0; i < n; i++)
        if (!(fabs(want[i] - sum[i]) <= size[i] * 1e-5))
            ck_abort_msg("row %u, output %u: %.9g, expected %.9g", (uint32_t)(i / b.s.n_out),
                         (uint32_t)(i % b.s.n_out), want[i], sum[i]);
    for (uint32_t i = 0; i < ARRAY_LEN(firsts) * ARRAY_LEN(row_counts) * 2; i++) {
        const uint32_t first = firsts[i / 2 % ARRAY_LEN(firsts)];
        const uint32_t n_rows = min_u32(row_counts[i / 2 / ARRAY_LEN(firsts)], ROWS - first);
        b.a.multiprocessors = multiprocessors[i % 2]; /* tiles of either size */
        halves_run(&b, first, n_rows, y);
        for (uint64_t k = (uint64_t)first * b.s.n_out; k < (uint64_t)(first + n_rows) * b.s.n_out;
             k++)
            if (memcmp(&y[k], &want[k], sizeof(*y)) != 0)
                ck_abort_msg("%u rows from %u on: row %u, output %u: %a, expected %a", n_rows,
                             first, (uint32_t)(k / b.s.n_out), (uint32_t)(k % b.s.n_out), y[k],
                             want[k]);
    }
    free(sum), free(size), free(want), free(y);
    free(b.w), free(b.x), free(b.f);
    give_all();
}
END_TEST

int main(void)
{
    int n = 0;
    if (cudaGetDeviceCount(&n) != cudaSuccess || n == 0) return 77;
    if (cuda_product_prepare(&ways)) return 1;
    TCase *t = tcase_create("bits");
    tcase_set_timeout(t, 300);
    tcase_add_loop_test(t, an_element_has_the_same_bits_by_every_kernel, 0, ARRAY_LEN(subjects));
    if (ways.halves)
        tcase_add_loop_test(t, a_prompts_element_has_the_same_bits_wherever_its_row_is, 0,
                            ARRAY_LEN(subjects));
    return suite_run_cases("product", &t, 1, true);
}
