/* SPDX-License-Identifier: MIT */
/*
 * workerd/sampler.c: the filters on logits whose probabilities are known by construction (log of a
 * table), the frequencies of what is drawn, and rows that no sane model makes.
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

int main(void)
{
    TCase *t = tcase_create("sampler");
    tcase_add_loop_test(t, filters_keep_the_right_shares, 0, (int)ARRAY_LEN(filters));
    tcase_add_test(t, greedy_takes_the_lowest_of_equals);
    tcase_add_test(t, the_draw_is_a_function_of_seed_and_position);
    tcase_add_test(t, heads_of_a_large_vocabulary_are_found);
    tcase_add_loop_test(t, hostile_rows_stay_in_range, 0, (int)ARRAY_LEN(hostile));
    tcase_add_test(t, hostile_numbers_stay_in_range);
    return suite_run("sampler", t);
}
