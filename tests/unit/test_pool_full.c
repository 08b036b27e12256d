/* SPDX-License-Identifier: MIT */
/*
 * The pool when it is full, and under random operations: expected values follow from the rules in
 * ARCHITECTURE.md (the pool), worked out by hand in each table; the random test holds invariants
 * that are counted from the control segment alone.
 */
#include <check.h>
#include <errno.h>
#include <string.h>

#include "tests/suite.h"
#include "tests/unit/pool_rig.h"

/* ---- when it is full ---- */

START_TEST(the_least_recently_used_gives_back_from_its_end)
{
    uint32_t a = cached(100, 64), b = cached(300, 64), row; /* 4 chunks each, 4 are free */
    pool->seg->rows[a].last_use = 2;
    pool->seg->rows[b].last_use = 1;
    ck_assert_int_eq(open_prompt(500, 70, 0, &row), 0); /* wants 6: two more than are free */
    ck_assert_uint_eq(body(a)->base, 64);
    ck_assert_uint_eq(body(b)->base, 32);
    ck_assert_uint_eq(pool->evictions[1], 2);
    check_invariants();
}
END_TEST

START_TEST(those_shorter_than_a_block_give_back_first)
{
    uint32_t small = cached(700, B - 1), big = cached(100, 64), row; /* 1 + 4 chunks, 7 are free */
    pool->seg->rows[small].last_use = 9;
    pool->seg->rows[big].last_use = 1;
    ck_assert_int_eq(open_prompt(500, 100, 0, &row), 0); /* wants 8 */
    ck_assert_uint_eq(row, small);                       /* its record was free again */
    ck_assert_uint_eq(body(big)->base, 64);
    ck_assert_uint_eq(pool->evictions[0], 1);
    check_invariants();
}
END_TEST

START_TEST(a_refusal_takes_nothing)
{
    uint32_t a, b, idle, row;
    ck_assert_int_eq(open_prompt(100, 64, 0, &a), 0);         /* 5 chunks, active */
    idle = cached(300, 32);                                   /* 2 chunks */
    ck_assert_int_eq(open_prompt(500, 40, 0, &b), 0);         /* 4 chunks, active; 1 is free */
    ck_assert_int_eq(open_prompt(700, 60, 0, &row), -ENOSPC); /* wants 5 of 3 */
    ck_assert_uint_eq(body(idle)->base, 32);
    ck_assert_int_eq(pool_grow(pool, next_op(), seen(a), 128), 0); /* 3 more: all that is left */
    ck_assert_uint_eq(body(idle)->state, POOL_FREE);
    ck_assert_int_eq(pool_grow(pool, next_op(), seen(b), 65), -ENOSPC);
    check_invariants();
}
END_TEST

START_TEST(chunks_that_others_hold_are_no_gain)
{
    uint32_t old = cached(100, 80), row, big;           /* 5 chunks */
    ck_assert_int_eq(open_prompt(100, 33, 0, &row), 0); /* shares 2, has 2 of its own; 5 free */
    pool->seg->rows[old].last_use = 1;
    ck_assert_int_eq(open_prompt(500, 112, 0, &big), 0); /* wants 8: old gives its own 3 */
    ck_assert_uint_eq(body(old)->base, 32);
    ck_assert_int_eq(pool_grow(pool, next_op(), seen(row), 80),
                     -ENOSPC); /* its other 2 are row's */
    check_invariants();
}
END_TEST

START_TEST(rows_run_out_before_chunks)
{
    for (uint32_t i = 0; i < ROWS; i++)
        (void)cached(100 + 50 * i, 5);
    pool->seg->rows[3].last_use = 1;
    uint64_t generation = body(3)->generation;
    uint32_t lease = body(3)->lease, row;
    ck_assert_int_eq(open_prompt(900, 5, 0, &row), 0);
    ck_assert_uint_eq(row, 3);
    ck_assert_uint_eq(body(3)->generation, generation + 1);
    ck_assert_uint_gt(body(3)->lease, lease); /* never back, not even for another conversation */
    check_invariants();
}
END_TEST

START_TEST(a_chunk_changes_generation_when_it_is_given_out_again)
{
    uint32_t row, again;
    ck_assert_int_eq(open_prompt(1, 5, 0, &row), 0);
    uint64_t entry = segment_table(pool->seg, row)[0];
    close_row(row, 0);
    for (int i = 0; i < 4; i++) {
        ck_assert_int_eq(open_prompt(1, 100, 0, &again), 0); /* 8 of 12 chunks */
        for (uint32_t k = 0; k < 8; k++)
            ck_assert_uint_ne(segment_table(pool->seg, again)[k], entry);
        close_row(again, 0);
    }
}
END_TEST

/* ---- at random ---- */

static uint32_t random_below(uint64_t *state, uint32_t n)
{
    *state = *state * UINT64_C(6364136223846793005) + 1442695040888963407u;
    return (uint32_t)((*state >> 33) % n);
}

static void random_step(uint64_t *seed)
{
    uint32_t row = random_below(seed, ROWS), unused;
    const struct pool_body *b = body(row);
    switch (random_below(seed, 8)) {
    case 0:
    case 1:
    case 2:
        (void)open_prompt(100 * random_below(seed, 3), 2 + random_below(seed, 100), 0, &unused);
        break;
    case 3:
        if (b->state == POOL_ACTIVE)
            (void)pool_grow(pool, next_op(), seen(row), b->n_entries * C + random_below(seed, 40));
        break;
    case 4:
    case 5: {
        if (b->state != POOL_ACTIVE) break;
        uint32_t have = b->n_entries * C;
        compute(row, 100 * random_below(seed, 3), b->base + random_below(seed, have - b->base + 1));
        struct pool_close ask = {.op = next_op(),
                                 .seen = seen(row),
                                 .last_window = random_below(seed, 3),
                                 .keep = UINT32_MAX};
        ck_assert_int_eq(pool_close_row(pool, &ask), 0);
        break;
    }
    case 6:
        page->drained = random_below(seed, 3);
        break;
    case 7:
        if (random_below(seed, 20) == 0)
            restart();
        else
            (void)pool_truncate(pool, next_op(), seen(row), random_below(seed, CONTEXT), 0);
        break;
    }
    (void)pool_drain(pool);
}

START_TEST(invariants_hold_over_random_operations)
{
    uint64_t seed = (uint64_t)_i + 1;
    for (int i = 0; i < 3000; i++) {
        random_step(&seed);
        check_invariants();
    }
}
END_TEST

int main(void)
{
    TCase *t = tcase_create("pool_full");
    tcase_add_checked_fixture(t, pool_rig_setup, pool_rig_teardown);
    tcase_set_timeout(t, 60);
    tcase_add_test(t, the_least_recently_used_gives_back_from_its_end);
    tcase_add_test(t, those_shorter_than_a_block_give_back_first);
    tcase_add_test(t, a_refusal_takes_nothing);
    tcase_add_test(t, chunks_that_others_hold_are_no_gain);
    tcase_add_test(t, rows_run_out_before_chunks);
    tcase_add_test(t, a_chunk_changes_generation_when_it_is_given_out_again);
    tcase_add_loop_test(t, invariants_hold_over_random_operations, 0, 8);
    return suite_run("pool_full", t);
}
