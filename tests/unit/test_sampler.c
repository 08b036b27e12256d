/* SPDX-License-Identifier: MIT */
/*
 * workerd/sampler.c: the filters on logits whose probabilities are known by construction (log of a
 * table), the frequencies of what is drawn, biases and penalties against numbers worked out by hand
 * from the formulas that sampler.h names, and rows that no sane model makes.
 */
#include <check.h>
#include <math.h>
#include <stdlib.h>

#include "common/base.h"
#include "tests/suite.h"
#include "workerd/sampler.h"

enum { N = 6, DRAWS = 20000 };

/* Probabilities; the ids are not in order of them. */
static const double p[N] = {0.05, 0.40, 0.10, 0.25, 0.15, 0.05};
static float logits[N];
static struct sampler_candidate scratch[N];

static void setup(void)
{
    for (int i = 0; i < N; i++)
        logits[i] = (float)log(p[i]) + 3; /* a constant changes nothing */
}

/* Which ids can come, and how often each is to be drawn. */
static const struct {
    struct sampling s;
    double share[N];
} filters[] = {
    {{.temperature = 1, .top_p = 1},                 {0.05, 0.40, 0.10, 0.25, 0.15, 0.05}   },
    {{.temperature = 1, .top_p = 1, .top_k = 1},     {0, 1, 0, 0, 0, 0}                     },
    {{.temperature = 1, .top_p = 1, .top_k = 2},     {0, 40 / 65., 0, 25 / 65., 0, 0}       },
 /* The tie of ids 0 and 5 goes to the lower. */
    {{.temperature = 1, .top_p = 1, .top_k = 5},
     {5 / 95., 40 / 95., 10 / 95., 25 / 95., 15 / 95., 0}                                   },
    {{.temperature = 1, .top_p = 1, .top_k = 99},    {0.05, 0.40, 0.10, 0.25, 0.15, 0.05}   },
    {{.temperature = 1, .top_p = 0.3F},              {0, 1, 0, 0, 0, 0}                     },
    {{.temperature = 1, .top_p = 0.5F},              {0, 40 / 65., 0, 25 / 65., 0, 0}       },
    {{.temperature = 1, .top_p = 0},                 {0, 1, 0, 0, 0, 0}                     },
    {{.temperature = 1, .top_p = 1, .min_p = 0.5F},  {0, 40 / 65., 0, 25 / 65., 0, 0}       },
    {{.temperature = 1, .top_p = 1, .min_p = 1},     {0, 1, 0, 0, 0, 0}                     },
 /* top_p is taken of what top_k left: 0.40 of 0.65 is less than 0.62, so both stay. */
    {{.temperature = 1, .top_k = 2, .top_p = 0.62F}, {0, 40 / 65., 0, 25 / 65., 0, 0}       },
    {{.temperature = 1, .top_k = 2, .top_p = 0.61F}, {0, 1, 0, 0, 0, 0}                     },
 /* The temperature comes last: it changes the shares, not who stays. 0.4^2 : 0.25^2. */
    {{.temperature = 0.5F, .top_p = 0.5F},           {0, 1600 / 2225., 0, 625 / 2225., 0, 0}},
    {{.temperature = 1e-6F, .top_p = 1},             {0, 1, 0, 0, 0, 0}                     },
};

START_TEST(filters_keep_the_right_shares)
{
    struct sampling s = filters[_i].s;
    uint32_t count[N] = {0};
    setup();
    s.seed = 42;
    for (uint32_t pos = 0; pos < DRAWS; pos++)
        count[sample(logits, N, &s, pos, scratch)]++;
    for (int i = 0; i < N; i++) {
        double share = filters[_i].share[i], got = (double)count[i] / DRAWS;
        /* Four standard deviations of the count; exactly none where none may come. */
        ck_assert_msg(fabs(got - share) <= 4 * sqrt(share * (1 - share) / DRAWS),
                      "id %d came in %g of the draws, expected %g", i, got, share);
    }
}
END_TEST

START_TEST(greedy_takes_the_lowest_of_equals)
{
    const float tie[] = {1, 5, 2, 5, -3};
    const struct sampling greedy = {.temperature = 0, .top_p = 1};
    ck_assert_uint_eq(sample(tie, 5, &greedy, 7, scratch), 1);
}
END_TEST

START_TEST(the_draw_is_a_function_of_seed_and_position)
{
    struct sampling s = {.temperature = 1, .top_p = 1, .seed = 7}, t = s;
    uint32_t by_pos = 0, by_seed = 0;
    t.seed = 8;
    setup();
    for (uint32_t pos = 0; pos < 1000; pos++) {
        uint32_t id = sample(logits, N, &s, pos, scratch);
        ck_assert_uint_eq(sample(logits, N, &s, pos, scratch), id);
        by_pos += id != sample(logits, N, &s, pos + 1, scratch);
        by_seed += id != sample(logits, N, &t, pos, scratch);
    }
    /* Two independent draws differ in 1 - sum p^2 = 0.74 of the cases. */
    ck_assert_uint_gt(by_pos, 650);
    ck_assert_uint_lt(by_pos, 820);
    ck_assert_uint_gt(by_seed, 650);
    ck_assert_uint_lt(by_seed, 820);
}
END_TEST

START_TEST(heads_of_a_large_vocabulary_are_found)
{
    enum { LARGE = 50000, K = 40 };
    CLEANUP(freep) float *l = xcalloc(LARGE, sizeof(*l));
    CLEANUP(freep) struct sampler_candidate *c = xcalloc(LARGE, sizeof(*c));
    /* 7919 is prime to 50000: every value once, in a scattered order. */
    for (uint32_t i = 0; i < LARGE; i++)
        l[i] = (float)((uint64_t)i * 7919 % LARGE) * 1e-3F;
    struct sampling s = {.temperature = 100, .top_p = 1, .top_k = K, .seed = 1};
    for (uint32_t pos = 0; pos < 500; pos++) {
        uint32_t id = sample(l, LARGE, &s, pos, c);
        ck_assert_uint_ge((uint64_t)id * 7919 % LARGE, LARGE - K);
    }
}
END_TEST

/* Thousands of equals: what is kept reaches far beyond the candidates that are looked at first, and
 * ends at an id that is known, since of equals the lower come first. */
static const struct {
    struct sampling s;
    uint32_t kept;
} flat[] = {
    {{.temperature = 1, .top_p = 1},                    5000},
    {{.temperature = 3, .top_p = 1},                    5000},
    {{.temperature = 1, .top_p = 0.5F},                 2500},
    {{.temperature = 1, .top_p = 0.125F},               625 },
    {{.temperature = 1, .top_p = 0.0625F},              313 }, /* 312.5 */
    {{.temperature = 1, .top_p = 1, .min_p = 1},        5000},
    {{.temperature = 1, .top_p = 0.75F, .min_p = 0.5F}, 3750},
    {{.temperature = 1, .top_k = 1000, .top_p = 0.5F},  500 },
};

START_TEST(many_equals_are_kept_and_drawn_alike)
{
    enum { LARGE = 5000, TENTHS = 10, FEW = 1000 };
    CLEANUP(freep) float *l = xcalloc(LARGE, sizeof(*l));
    CLEANUP(freep) struct sampler_candidate *c = xcalloc(LARGE, sizeof(*c));
    struct sampling s = flat[_i].s;
    uint32_t tenth[TENTHS] = {0}, kept = flat[_i].kept;
    for (uint32_t i = 0; i < LARGE; i++)
        l[i] = -7;
    s.seed = 5;
    for (uint32_t pos = 0; pos < FEW; pos++) {
        uint32_t id = sample(l, LARGE, &s, pos, c);
        ck_assert_uint_lt(id, kept);
        tenth[(uint64_t)id * TENTHS / kept]++;
    }
    for (int i = 0; i < TENTHS; i++) /* five standard deviations */
        ck_assert_double_eq_tol(tenth[i], FEW / 10., 5 * sqrt(FEW / 10. * 0.9));
}
END_TEST

/* A vocabulary that is no multiple of anything, most of it banned. */
START_TEST(the_banned_are_never_drawn)
{
    enum { LARGE = 4999 };
    CLEANUP(freep) float *l = xcalloc(LARGE, sizeof(*l));
    CLEANUP(freep) struct sampler_candidate *c = xcalloc(LARGE, sizeof(*c));
    uint32_t last = 0;
    for (uint32_t i = 0; i < LARGE; i++)
        l[i] = i % 7 == 1 ? (float)(i % 3) : -INFINITY;
    for (int way = 0; way < 4; way++) {
        struct sampling s = {.temperature = 1,
                             .top_p = way == 1 ? 0.999F : 1,
                             .min_p = way == 2 ? 1e-6F : 0,
                             .top_k = way == 3 ? 4000 : 0};
        for (uint32_t pos = 0; pos < 300; pos++) {
            uint32_t id = sample(l, LARGE, &s, pos, c);
            ck_assert_uint_eq(id % 7, 1);
            last = max_u32(last, id);
        }
    }
    ck_assert_uint_gt(last, LARGE - 50);
}
END_TEST

enum { DRAW_VOCAB = 1000, DRAW_SEEDS = 3, DRAW_POSITIONS = 4 };

/* Printed by tests/data/make_draws.py, which works them out by sorting and Python's own exp. */
static const struct {
    struct sampling s;
    uint32_t drawn[DRAW_SEEDS * DRAW_POSITIONS];
} draws[] = {
    {{.temperature = 1.0F, .top_p = 1.0F, .min_p = 0.0F, .top_k = 0},
     {861, 386, 231, 977, 483, 268, 830, 864, 407, 105, 252, 87} },
    {{.temperature = 0.5F, .top_p = 1.0F, .min_p = 0.0F, .top_k = 0},
     {840, 352, 208, 974, 441, 234, 798, 840, 365, 92, 226, 79}  },
    {{.temperature = 1.75F, .top_p = 1.0F, .min_p = 0.0F, .top_k = 0},
     {872, 407, 245, 982, 499, 281, 841, 875, 426, 113, 268, 92} },
    {{.temperature = 1.0F, .top_p = 0.875F, .min_p = 0.0F, .top_k = 0},
     {990, 281, 714, 271, 659, 840, 717, 11, 365, 315, 777, 252} },
    {{.temperature = 0.75F, .top_p = 0.5F, .min_p = 0.0F, .top_k = 0},
     {554, 630, 357, 827, 777, 420, 470, 554, 651, 168, 399, 126}},
    {{.temperature = 1.0F, .top_p = 1.0F, .min_p = 0.03125F, .top_k = 0},
     {208, 470, 798, 148, 911, 945, 767, 250, 554, 357, 882, 294}},
    {{.temperature = 1.0F, .top_p = 0.9375F, .min_p = 0.0625F, .top_k = 0},
     {746, 407, 777, 825, 827, 903, 368, 767, 491, 336, 840, 273}},
    {{.temperature = 1.25F, .top_p = 1.0F, .min_p = 0.0F, .top_k = 20},
     {378, 189, 126, 420, 231, 126, 357, 378, 189, 63, 126, 42}  },
    {{.temperature = 1.25F, .top_p = 0.75F, .min_p = 0.125F, .top_k = 100},
     {218, 546, 336, 386, 672, 378, 176, 218, 567, 147, 357, 126}},
};

START_TEST(draws_are_those_worked_out_elsewhere)
{
    static const uint64_t seeds[DRAW_SEEDS] = {0, 7, (UINT64_C(1) << 63) + 11};
    static const uint32_t positions[DRAW_POSITIONS] = {0, 1, 500, 70000};
    static float row[DRAW_VOCAB];
    static struct sampler_candidate c[DRAW_VOCAB];
    struct sampling s = draws[_i].s;
    for (uint32_t i = 0; i < DRAW_VOCAB; i++)
        row[i] = (float)(i * 619 % DRAW_VOCAB) / 128 - 4;
    for (uint32_t i = 0; i < ARRAY_LEN(draws[0].drawn); i++) {
        s.seed = seeds[i / DRAW_POSITIONS];
        uint32_t id = sample(row, DRAW_VOCAB, &s, positions[i % DRAW_POSITIONS], c);
        ck_assert_uint_eq(id, draws[_i].drawn[i]);
    }
}
END_TEST

static const struct {
    float row[4];
    uint32_t expected; /* greedy and sampled alike */
} hostile[] = {
    {{NAN, 1, 9, 2},                       1},
    {{3, NAN, 9, 2},                       0},
    {{NAN, NAN, NAN, NAN},                 0},
    {{NAN, NAN, NAN, 1},                   3},
    {{-INFINITY, -INFINITY, INFINITY, 5},  2},
    {{-INFINITY, 5, -INFINITY, -INFINITY}, 1},
};

START_TEST(hostile_rows_stay_in_range)
{
    struct sampling s = {.temperature = 0, .top_p = 1};
    ck_assert_uint_eq(sample(hostile[_i].row, 4, &s, 0, scratch), hostile[_i].expected);
    for (s.temperature = 0.5F; s.temperature < 1000; s.temperature *= 10)
        for (uint32_t pos = 0; pos < 50; pos++)
            ck_assert_uint_eq(sample(hostile[_i].row, 4, &s, pos, scratch), hostile[_i].expected);
}
END_TEST

START_TEST(hostile_numbers_stay_in_range)
{
    const float odd[] = {NAN, -1, INFINITY, -INFINITY, 1e-45F, 3e38F};
    setup();
    for (size_t i = 0; i < ARRAY_LEN(odd); i++)
        for (uint32_t pos = 0; pos < 50; pos++) {
            struct sampling a = {.temperature = odd[i], .top_p = 1};
            struct sampling b = {.temperature = 1, .top_p = odd[i]};
            struct sampling c = {.temperature = 1, .top_p = 1, .min_p = odd[i]};
            ck_assert_uint_lt(sample(logits, N, &a, pos, scratch), N);
            ck_assert_uint_lt(sample(logits, N, &b, pos, scratch), N);
            ck_assert_uint_lt(sample(logits, N, &c, pos, scratch), N);
        }
}
END_TEST

/* ---- biases and penalties ---- */

enum { PAST = 6 };
static const float plain[N] = {2, -2, 4, 1, 0, -8};
static const struct link_bias two[] = {
    {1, 10.5F},
    {3, -1   }
};
static const struct link_bias twice[] = {
    {0, 1},
    {0, 2}
};
static const struct link_bias ban[] = {
    {2, -INFINITY}
};

/* past: ids 5 2 2 0 2 1, of which the last n_generated were generated. */
static const uint32_t past_ids[PAST] = {5, 2, 2, 0, 2, 1};
static const struct {
    struct sampling s;
    uint32_t n_generated;
    float expected[N];
} changes[] = {
    {{.top_p = 1},                             3, {2, -2, 4, 1, 0, -8}         },
    {{.biases = two, .n_biases = 2},           3, {2, 8.5F, 4, 0, 0, -8}       },
    {{.biases = twice, .n_biases = 2},         3, {5, -2, 4, 1, 0, -8}         },
    {{.biases = ban, .n_biases = 1},           3, {2, -2, -INFINITY, 1, 0, -8} },
 /* Generated: 0 2 1. Each once. */
    {{.presence = 0.5F},                       3, {1.5F, -2.5F, 3.5F, 1, 0, -8}},
    {{.presence = -0.5F},                      3, {2.5F, -1.5F, 4.5F, 1, 0, -8}},
 /* Generated: 2 2 0 2 1. Three times 2. */
    {{.frequency = 0.5F},                      5, {1.5F, -2.5F, 2.5F, 1, 0, -8}},
    {{.frequency = 0.5F, .presence = 1},       5, {0.5F, -3.5F, 1.5F, 1, 0, -8}},
    {{.frequency = 2},                         0, {2, -2, 4, 1, 0, -8}         },
 /* The prompt counts for repeat: positive ones are divided, others multiplied, once each. */
    {{.repeat = 2, .repeat_last = PAST},       0, {1, -4, 2, 1, 0, -16}        },
    {{.repeat = 2, .repeat_last = UINT32_MAX}, 0, {1, -4, 2, 1, 0, -16}        },
    {{.repeat = 2, .repeat_last = 2},          0, {2, -4, 2, 1, 0, -8}         },
    {{.repeat = 2, .repeat_last = 0},          0, {2, -2, 4, 1, 0, -8}         },
    {{.repeat = 1, .repeat_last = PAST},       0, {2, -2, 4, 1, 0, -8}         },
    {{.repeat = 0.5F, .repeat_last = 1},       0, {2, -1, 4, 1, 0, -8}         },
 /* In order: -2 + 10.5 = 8.5, / 2, - 1 - 0.5 for id 1; 1 - 1 = 0 for id 3. */
    {{.biases = two,
      .n_biases = 2,
      .repeat = 2,
      .repeat_last = 1,
      .presence = 1,
      .frequency = 0.5F},
     1,                                           {2, 2.75F, 4, 0, 0, -8}      },
};

START_TEST(changes_are_as_worked_out)
{
    struct sampler_past past = {past_ids, PAST, changes[_i].n_generated};
    float adjusted[N];
    uint32_t counts[N] = {0};
    sampler_adjust(plain, N, &changes[_i].s, &past, adjusted, counts);
    for (int i = 0; i < N; i++) {
        ck_assert_msg(adjusted[i] == changes[_i].expected[i], "id %d has %g, expected %g", i,
                      (double)adjusted[i], (double)changes[_i].expected[i]);
        ck_assert_uint_eq(counts[i], 0);
    }
}
END_TEST

/* What past_read copies is enough: penalties of less than it looks back to are the same. */
START_TEST(looking_back_is_far_enough)
{
    uint32_t back = sampling_looks_back(&changes[_i].s, PAST, changes[_i].n_generated);
    struct sampler_past past = {past_ids + PAST - back, back,
                                min_u32(changes[_i].n_generated, back)};
    float adjusted[N];
    uint32_t counts[N] = {0};
    ck_assert_uint_le(back, PAST);
    sampler_adjust(plain, N, &changes[_i].s, &past, adjusted, counts);
    for (int i = 0; i < N; i++)
        ck_assert(adjusted[i] == changes[_i].expected[i]);
}
END_TEST

/* ---- probabilities ---- */

START_TEST(probabilities_are_those_of_the_logits)
{
    struct link_probs got;
    static const uint32_t order[N] = {1, 3, 4, 2, 0, 5}; /* of p; the tie goes to the lower id */
    setup();
    for (uint32_t id = 0; id < N; id++) {
        sampler_probs(logits, N, id, LINK_TOP_MAX, scratch, &got);
        ck_assert_double_eq_tol((double)got.logprob, log(p[id]), 1e-6);
        ck_assert_uint_eq(got.n_top, N);
        for (int i = 0; i < N; i++) {
            ck_assert_uint_eq(got.top[i].id, order[i]);
            ck_assert_double_eq_tol((double)got.top[i].logprob, log(p[order[i]]), 1e-6);
        }
    }
    sampler_probs(logits, N, 2, 2, scratch, &got);
    ck_assert_uint_eq(got.n_top, 2);
    ck_assert_uint_eq(got.top[1].id, 3);
    sampler_probs(logits, N, 2, 0, scratch, &got);
    ck_assert_uint_eq(got.n_top, 0);
}
END_TEST

/* A logit so far below that its probability is 0 in double has a logarithm all the same. */
START_TEST(improbable_is_not_impossible)
{
    const float row[3] = {0, -2000, -INFINITY};
    struct link_probs got;
    sampler_probs(row, 3, 1, 3, scratch, &got);
    ck_assert(got.logprob == -2000 && got.top[0].logprob == 0);
    ck_assert(isinf(got.top[2].logprob) && got.top[2].logprob < 0);
}
END_TEST

START_TEST(hostile_rows_have_no_wrong_probabilities)
{
    const float two_inf[4] = {INFINITY, 1, INFINITY, -INFINITY}, nan[4] = {1, NAN, 2, 3};
    struct link_probs got;
    sampler_probs(two_inf, 4, 2, 4, scratch, &got);
    ck_assert_double_eq_tol((double)got.logprob, log(0.5), 1e-6);
    ck_assert(isinf(got.top[2].logprob));
    sampler_probs(nan, 4, 2, 4, scratch, &got);
    ck_assert(isinf(got.logprob) && got.logprob < 0);
    ck_assert_uint_eq(got.n_top, 0);
}
END_TEST

int main(void)
{
    TCase *t = tcase_create("sampler");
    tcase_set_timeout(t, 60); /* sanitizers on a loaded machine */
    tcase_add_loop_test(t, filters_keep_the_right_shares, 0, (int)ARRAY_LEN(filters));
    tcase_add_test(t, greedy_takes_the_lowest_of_equals);
    tcase_add_test(t, the_draw_is_a_function_of_seed_and_position);
    tcase_add_test(t, heads_of_a_large_vocabulary_are_found);
    tcase_add_loop_test(t, many_equals_are_kept_and_drawn_alike, 0, (int)ARRAY_LEN(flat));
    tcase_add_test(t, the_banned_are_never_drawn);
    tcase_add_loop_test(t, draws_are_those_worked_out_elsewhere, 0, (int)ARRAY_LEN(draws));
    tcase_add_loop_test(t, hostile_rows_stay_in_range, 0, (int)ARRAY_LEN(hostile));
    tcase_add_test(t, hostile_numbers_stay_in_range);
    tcase_add_loop_test(t, changes_are_as_worked_out, 0, (int)ARRAY_LEN(changes));
    tcase_add_loop_test(t, looking_back_is_far_enough, 0, (int)ARRAY_LEN(changes));
    tcase_add_test(t, probabilities_are_those_of_the_logits);
    tcase_add_test(t, improbable_is_not_impossible);
    tcase_add_test(t, hostile_rows_have_no_wrong_probabilities);
    return suite_run("sampler", t);
}
