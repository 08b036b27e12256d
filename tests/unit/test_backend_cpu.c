/* SPDX-License-Identifier: MIT */
/*
 * Parts of workerd/cpu/ by themselves: half precision against its definition, row kernels in every
 * variant against double arithmetic, the barrier, and what opening a backend refuses. The products
 * and attention are held to references in tests/numerics.
 */
#include <check.h>
#include <errno.h>
#include <math.h>
#include <string.h>

#include "tests/suite.h"
#include "tests/unit/cpu_variants.h"
#include "workerd/cpu/cpu.h"
#include "workerd/cpu/f16.h"
#include "workerd/cpu/repack.h"

/* IEEE 754-2008 binary16, from its definition. */
static double half_value(uint32_t h)
{
    int exponent = (int)(h >> 10 & 31), fraction = (int)(h & 1023);
    double v = exponent == 0    ? ldexp(fraction, -24)
               : exponent == 31 ? (fraction ? NAN : INFINITY)
                                : ldexp(1024 + fraction, exponent - 25);
    return h & 0x8000 ? -v : v;
}

START_TEST(every_half_is_read_and_written)
{
    for (uint32_t h = 0; h < 65536; h++) {
        double v = half_value(h);
        float f = f16_to_f32((uint16_t)h);
        if (isnan(v)) {
            ck_assert(isnan(f) && isnan(f16_to_f32(f32_to_f16(f))));
            continue;
        }
        if ((double)f != v || !signbit(f) != !signbit(v) || f32_to_f16(f) != h)
            ck_abort_msg("%04x reads as %g, expected %g", h, f, v);
    }
}
END_TEST

/* A float on, just under and just over the middle of two halves: nearest, and to even on the
 * middle. */
START_TEST(floats_round_to_the_nearest_half)
{
    for (uint32_t h = 0; h < 0x7bff; h++) {
        double middle = (half_value(h) + half_value(h + 1)) / 2; /* exact in a float */
        float m = (float)middle;
        uint32_t even = h & 1 ? h + 1 : h;
        if (f32_to_f16(m) != even || f32_to_f16(nextafterf(m, 0)) != h ||
            f32_to_f16(nextafterf(m, INFINITY)) != h + 1 || f32_to_f16(-m) != (even | 0x8000))
            ck_abort_msg("the floats about %g don't round rightly", middle);
    }
    ck_assert_uint_eq(f32_to_f16(65519.99F), 0x7bff);
    ck_assert_uint_eq(f32_to_f16(65520), 0x7c00);
    ck_assert_uint_eq(f32_to_f16(-INFINITY), 0xfc00);
    ck_assert_uint_eq(f32_to_f16(1e-10F), 0);
}
END_TEST

static const double no_turn[8];
static const struct backend_want small = {
    .n_embd = 32,
    .n_heads = 2,
    .n_kv_heads = 1,
    .head_dim = 16,
    .n_layers = 1,
    .rope_dims = 16,
    .rope_freq = no_turn,
    .eps = 1e-5F,
    .kv = POOL_KV_F16,
    .block_cells = 32,
    .block_bytes = 2048,
    .max_rows = 4,
    .max_lanes = 2,
    .context_tokens = 64,
    .n_threads = 1,
    .variant = "auto",
};

static bool runs_here(const struct cpu_kernels *k)
{
    struct backend_want want = small;
    struct backend *b;
    want.variant = k->name;
    if (cpu_backend.open(&want, NULL, &b) < 0) return false;
    cpu_backend.close(b);
    return true;
}

START_TEST(rows_are_normed)
{
    enum { WIDTH = 96 };
    float x[WIDTH], w[WIDTH], y[WIDTH];
    double sum = 0;
    if (!runs_here(variants[_i])) return;
    for (int i = 0; i < WIDTH; i++) {
        x[i] = (float)sin(i * 0.7) * 3;
        w[i] = 1 + (float)i / WIDTH;
        sum += (double)x[i] * x[i];
    }
    variants[_i]->norm(y, x, w, WIDTH, 1e-5F);
    for (int i = 0; i < WIDTH; i++) {
        double expected = x[i] / sqrt(sum / WIDTH + 1e-5) * w[i];
        ck_assert_double_eq_tol(y[i], expected, 1e-6 * (1 + fabs(expected)));
    }
}
END_TEST

/* Blocks: the largest of each is 127; zeros, tiny and huge values. */
START_TEST(rows_are_quantised)
{
    enum { WIDTH = 128 };
    float f[WIDTH], d[WIDTH / QBLOCK], s[WIDTH / QBLOCK];
    int8_t q[WIDTH];
    int32_t sum[WIDTH / QBLOCK];
    struct backend_buffer x = {
        .max_rows = 1, .width = WIDTH, .f = f, .q = q, .d = d, .s = s, .sum = sum};
    if (!runs_here(variants[_i])) return;
    for (int i = 0; i < 32; i++) {
        f[i] = (float)(i - 19); /* the largest is 19; no code lies in the middle of two */
        f[32 + i] = 0;
        f[64 + i] = i == 3 ? -1e-35F : 0;
        f[96 + i] = i == 0 ? -3e38F : 1e38F;
    }
    variants[_i]->quantise(&x, 0);
    int32_t expected_sum = 0;
    for (int i = 0; i < 32; i++) {
        int expected = (int)rint(f[i] / 19.0 * 127);
        ck_assert_int_eq(q[i], expected);
        expected_sum += expected;
        ck_assert_int_eq(q[32 + i], 0);
        ck_assert_int_eq(q[64 + i], 0);
        ck_assert_int_eq(q[96 + i], i == 0 ? -127 : 42);
    }
    ck_assert_float_eq(d[0], 19.0F / 127);
    ck_assert_int_eq(sum[0], expected_sum);
    ck_assert_float_eq(s[0], d[0] * (float)expected_sum);
    ck_assert_float_eq(d[1], 0);
    ck_assert_float_eq(d[2], 0);
    ck_assert_float_eq(d[3], 3e38F / 127);
}
END_TEST

enum { MEMBERS = 4, ROUNDS = 2000 };

struct relay {
    struct team *team;
    uint32_t value[MEMBERS]; /* each written by its member, read by the others after the barrier */
    uint32_t wrong;
};

static void relay_run(void *arg, uint32_t member)
{
    struct relay *r = arg;
    for (uint32_t i = 1; i <= ROUNDS; i++) {
        r->value[member] = i;
        team_barrier(r->team);
        for (uint32_t j = 0; j < MEMBERS; j++)
            if (r->value[j] != i) (void)__atomic_add_fetch(&r->wrong, 1, __ATOMIC_RELAXED);
        team_barrier(r->team);
    }
}

START_TEST(nobody_passes_a_barrier_early)
{
    struct relay r = {0};
    ck_assert_int_eq(team_new(MEMBERS, NULL, _i == 1, NULL, &r.team), 0);
    for (int i = 0; i < 3; i++)
        team_run(r.team, relay_run, &r);
    ck_assert_uint_eq(r.wrong, 0);
    team_free(r.team);
}
END_TEST

static const struct {
    const char *list;
    int result;
} lists[] = {
    {"0",       0      },
    {"0,0-0",   0      },
    {"",        -EINVAL},
    {"a",       -EINVAL},
    {"0-",      -EINVAL},
    {"1-0",     -EINVAL},
    {"-1",      -EINVAL},
    {"0;1",     -EINVAL},
    {"0 1",     -EINVAL},
    {"9999999", -EINVAL},
};

START_TEST(lists_of_processors_are_read)
{
    struct team *t = NULL;
    struct why why = {""};
    int r = team_new(1, lists[_i].list, false, &why, &t);
    ck_assert_msg(r == lists[_i].result, "'%s' gave %d: %s", lists[_i].list, r, why.text);
    if (r < 0) ck_assert_ptr_null(t);
    team_free(t);
}
END_TEST

static void no_such_variant(struct backend_want *w) { w->variant = "mmx"; }
static void no_such_kv(struct backend_want *w) { w->kv = 9; }
static void heads_of_24(struct backend_want *w) { w->head_dim = 24; }
static void heads_of_0(struct backend_want *w) { w->head_dim = 0; }
static void rope_of_8(struct backend_want *w) { w->rope_dims = 8; }
static void rope_past_the_head(struct backend_want *w) { w->rope_dims = 32; }
static void uneven_groups(struct backend_want *w) { w->n_kv_heads = 3; }
static void no_kv_heads(struct backend_want *w) { w->n_kv_heads = 0; }
static void blocks_of_other_bytes(struct backend_want *w) { w->block_bytes = 1024; }
static void small_blocks(struct backend_want *w) { w->block_cells = 8; }
static void too_many_threads(struct backend_want *w) { w->n_threads = 100000; }

static void (*const refused[])(struct backend_want *w) = {
    no_such_variant, no_such_kv,         heads_of_24,           heads_of_0,
    rope_of_8,       rope_past_the_head, uneven_groups,         no_kv_heads,
    small_blocks,    too_many_threads,   blocks_of_other_bytes,
};

START_TEST(what_the_cpu_cannot_do_is_refused)
{
    struct backend_want want = small;
    struct backend *b = NULL;
    struct why why = {""};
    refused[_i](&want);
    ck_assert_int_lt(cpu_backend.open(&want, &why, &b), 0);
    ck_assert_ptr_null(b);
    ck_assert_uint_gt(strlen(why.text), 0);
}
END_TEST

START_TEST(arenas_that_do_not_fit_are_refused)
{
    static struct pool_arena a;
    struct backend *b;
    struct why why = {""};
    a = (struct pool_arena){
        .bytes = sizeof(a), .n_runs = 1, .chunk_cells = 64, .block_cells = 32, .n_chunks = 3};
    /* Room for exactly the four chunks, trash included. */
    a.run[0] = (struct pool_run){.kind = POOL_RUN_KV, .off = sizeof(a), .block_bytes = 2048};
    a.bytes = sizeof(a) + (uint64_t)4 * 2 * 2048;
    ck_assert_int_eq(cpu_backend.open(&small, &why, &b), 0);
    ck_assert_int_eq(cpu_backend.use_arena(b, &a, 0, &why), 0);
    ck_assert_int_lt(cpu_backend.use_arena(b, &a, 1, &why), 0); /* another layer */
    a.bytes--;
    ck_assert_int_lt(cpu_backend.use_arena(b, &a, 0, &why), 0);
    a.bytes++;
    a.run[0].block_bytes = 1024;
    ck_assert_int_lt(cpu_backend.use_arena(b, &a, 0, &why), 0);
    a.run[0].block_bytes = 2048;
    a.block_cells = 16;
    ck_assert_int_lt(cpu_backend.use_arena(b, &a, 0, &why), 0);
    cpu_backend.close(b);
}
END_TEST

int main(void)
{
    TCase *t = tcase_create("cpu");
    tcase_set_timeout(t, 60);
    tcase_add_test(t, every_half_is_read_and_written);
    tcase_add_test(t, floats_round_to_the_nearest_half);
    tcase_add_loop_test(t, rows_are_normed, 0, (int)ARRAY_LEN(variants));
    tcase_add_loop_test(t, rows_are_quantised, 0, (int)ARRAY_LEN(variants));
    tcase_add_loop_test(t, nobody_passes_a_barrier_early, 0, 2);
    tcase_add_loop_test(t, lists_of_processors_are_read, 0, (int)ARRAY_LEN(lists));
    tcase_add_loop_test(t, what_the_cpu_cannot_do_is_refused, 0, (int)ARRAY_LEN(refused));
    tcase_add_test(t, arenas_that_do_not_fit_are_refused);
    return suite_run("backend_cpu", t);
}
