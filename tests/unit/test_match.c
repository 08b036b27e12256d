/* SPDX-License-Identifier: MIT */
/*
 * What a prompt finds by its tokens alone and by their kinds too (poold/match.h). A conversation of
 * 64 cells is cached, of which cells 40 and on were generated; what it has in common with a prompt
 * of 70 tokens that goes on with it is worked out by hand.
 */
#include <check.h>
#include <string.h>

#include "poold/match.h"
#include "tests/suite.h"
#include "tests/unit/pool_rig.h"

enum { HAS = 64, GENERATED_FROM = 40, ASKED = 70 };

/* The conversation's tokens and six more, said to be generated from `from` on. */
static struct pool_open asked(uint32_t *words, uint32_t from, bool exact)
{
    for (uint32_t i = 0; i < ASKED; i++)
        words[i] = (1000 + i) | (i < from ? 0 : POOL_TOKEN_GENERATED);
    return (struct pool_open){.op = next_op(),
                              .tokens = words,
                              .n_tokens = ASKED,
                              .exact = exact,
                              .arrival = pool_next_arrival(pool),
                              .may_wait = true};
}

static uint32_t remembered(void)
{
    uint32_t row;
    ck_assert_int_eq(open_prompt(1000, HAS, 0, &row), 0);
    compute(row, 1000, HAS);
    mark_generated(row, GENERATED_FROM, HAS);
    close_row(row, UINT32_MAX);
    return row;
}

static const struct {
    bool exact;
    uint32_t from, cells;
    bool over; /* goes on in it: what is cut off is a chunk or a quarter at most */
} cases[] = {
    {false, ASKED,          HAS,            true },
    {false, 0,              HAS,            true },
    {true,  ASKED,          GENERATED_FROM, false}, /* 24 of 40 would be cut off */
    {true,  GENERATED_FROM, HAS,            true },
    {true,  55,             GENERATED_FROM, false},
    {true,  20,             20,             false},
    {true,  0,              0,              false}, /* a new one */
};

START_TEST(kinds_count_when_they_are_to)
{
    uint32_t words[ASKED], before = remembered(), row;
    struct pool_open ask = asked(words, cases[_i].from, cases[_i].exact);
    ck_assert_int_eq(pool_open_row(pool, &ask, &row), 0);
    ck_assert_uint_eq(pool_cached_cells(body(row)), cases[_i].cells);
    ck_assert_int_eq(row == before, cases[_i].over);
    check_invariants();
}
END_TEST

/* A lane has room for one conversation, which is cut where kinds begin to differ. */
START_TEST(kinds_count_on_a_range)
{
    pool_rig_teardown();
    pool_rig_setup_ranges();
    uint32_t words[ASKED], before = remembered(), row;
    struct pool_open ask = asked(words, cases[_i].from, cases[_i].exact);
    ask.n_tokens = HAS;
    ck_assert_int_eq(pool_open_row(pool, &ask, &row), 0);
    ck_assert_uint_eq(pool_cached_cells(body(row)), min_u32(cases[_i].cells, HAS - 1));
    if (cases[_i].cells) ck_assert_uint_eq(row, before);
    check_invariants();
}
END_TEST

/* A row that waits for its request is taken over as far as its kinds go. */
START_TEST(kinds_count_for_who_comes_back)
{
    uint32_t words[ASKED], row, again;
    struct pool_open ask = asked(words, GENERATED_FROM, false);
    ask.gateway = 5;
    ck_assert_int_eq(pool_open_row(pool, &ask, &row), 0);
    compute(row, 1000, HAS);
    mark_generated(row, GENERATED_FROM, HAS);
    uint64_t arrival = body(row)->arrival;
    struct pool_close close = {.op = next_op(), .seen = seen(row), .keep = HAS, .resume = true};
    ck_assert_int_eq(pool_close_row(pool, &close), 0);
    ck_assert_uint_eq(pool_drain(pool), 1);
    ck_assert_uint_eq(body(row)->state, POOL_WAITING);
    ask = asked(words, cases[_i].from, cases[_i].exact);
    ask.arrival = arrival;
    ask.resume = true;
    ask.resume_row = row;
    ask.resume_generation = body(row)->generation;
    ck_assert_int_eq(pool_open_row(pool, &ask, &again), 0);
    ck_assert_uint_eq(pool_cached_cells(body(again)), cases[_i].cells);
    if (cases[_i].cells) ck_assert_uint_eq(again, row);
    check_invariants();
}
END_TEST

/* Two conversations of the same tokens: one is the beginning of the other by its ids. Only by its
 * kinds too is it no loss, and gives back before one that was used longer ago. */
START_TEST(a_beginning_of_another_kind_is_a_loss)
{
    uint32_t words[ASKED], whole = remembered(), row;
    struct pool_open ask = asked(words, _i ? GENERATED_FROM : ASKED, true);
    ask.fresh = true; /* it has chunks of its own */
    ask.n_tokens = 50;
    ck_assert_int_eq(pool_open_row(pool, &ask, &row), 0);
    compute(row, 1000, 50);
    if (_i) mark_generated(row, GENERATED_FROM, 50);
    close_row(row, UINT32_MAX);
    pool->seg->rows[whole].last_use = 1;
    pool->seg->rows[row].last_use = 2;
    uint32_t other; /* 12 chunks: 4 and 4 are cached, 5 are wanted */
    ck_assert_int_eq(open_prompt(500, 60, 0, &other), 0);
    ck_assert_uint_eq(body(whole)->base, _i ? HAS : HAS - C);
    ck_assert_uint_eq(body(row)->base, _i ? 48 : 50);
    check_invariants();
}
END_TEST

int main(void)
{
    TCase *t = tcase_create("match");
    tcase_add_checked_fixture(t, pool_rig_setup, pool_rig_teardown);
    tcase_add_loop_test(t, kinds_count_when_they_are_to, 0, ARRAY_LEN(cases));
    tcase_add_loop_test(t, kinds_count_for_who_comes_back, 0, ARRAY_LEN(cases));
    tcase_add_loop_test(t, a_beginning_of_another_kind_is_a_loss, 0, 2);
    tcase_add_loop_test(t, kinds_count_on_a_range, 0, ARRAY_LEN(cases));
    return suite_run("match", t);
}
