/* SPDX-License-Identifier: MIT */
/*
 * Layers by free memory, held against every split there is: none fills its fullest device less.
 */
#include <check.h>

#include "tests/suite.h"
#include "workerd/split.h"

enum { LAYERS = 7, STAGES_MAX = 3 };

static const struct {
    uint32_t n_stages;
    uint64_t bytes[LAYERS], free_bytes[STAGES_MAX];
} cases[] = {
    {1, {5, 5, 5, 5, 5, 5, 5},        {10}         },
    {2, {5, 5, 5, 5, 5, 5, 5},        {100, 100}   },
    {2, {5, 5, 5, 5, 5, 5, 5},        {80, 20}     },
    {2, {5, 5, 5, 5, 5, 5, 5},        {0, 100}     },
    {2, {60, 10, 10, 10, 10, 10, 70}, {1000, 1000} },
    {3, {60, 10, 10, 10, 10, 10, 70}, {90, 200, 90}},
    {3, {1, 2, 3, 4, 5, 6, 7},        {7, 7, 7}    },
    {3, {0, 0, 0, 0, 0, 0, 0},        {7, 0, 7}    },
};

static double fullest(int c, const uint32_t *n)
{
    double most = 0;
    for (uint32_t s = 0, l = 0; s < cases[c].n_stages; s++) {
        double sum = 0;
        for (uint32_t i = 0; i < n[s]; i++)
            sum += (double)cases[c].bytes[l++];
        uint64_t room = cases[c].free_bytes[s] ? cases[c].free_bytes[s] : 1;
        if (sum / (double)room > most) most = sum / (double)room;
    }
    return most;
}

START_TEST(no_other_split_is_less_full)
{
    uint32_t n[STAGES_MAX] = {0}, stages = cases[_i].n_stages, sum = 0;
    split_by_memory(cases[_i].bytes, LAYERS, cases[_i].free_bytes, stages, n);
    for (uint32_t s = 0; s < stages; s++) {
        ck_assert_uint_ge(n[s], 1);
        sum += n[s];
    }
    ck_assert_uint_eq(sum, LAYERS);
    double ours = fullest(_i, n);
    for (uint32_t a = 1; a <= LAYERS; a++)
        for (uint32_t b = 0; a + b <= LAYERS; b++) {
            uint32_t other[STAGES_MAX] = {a, b, LAYERS - a - b};
            bool whole = stages == 1   ? a == LAYERS && b == 0
                         : stages == 2 ? b > 0 && a + b == LAYERS
                                       : b > 0 && a + b < LAYERS;
            if (whole) ck_assert(ours <= fullest(_i, other));
        }
}
END_TEST

int main(void)
{
    TCase *tc = tcase_create("split");
    tcase_add_loop_test(tc, no_other_split_is_less_full, 0, ARRAY_LEN(cases));
    return suite_run("split", tc);
}
