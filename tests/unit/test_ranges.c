/* SPDX-License-Identifier: MIT */
/*
 * The identity layout: what is expected follows from poold/ranges.h, with three lanes of four
 * chunks each, so that lane L has chunks 4 L + 1 to 4 L + 4.
 */
#include <check.h>
#include <errno.h>

#include "poold/transfers.h"
#include "tests/suite.h"
#include "tests/unit/pool_rig.h"

enum { LANE_CHUNKS = CHUNKS / 3, LANE_CONTEXT = LANE_CHUNKS * C };

static int open_at(uint32_t lane, uint32_t first, uint32_t n, uint32_t *ret_row)
{
    return open_on_lane(lane, first, n, 0, ret_row);
}

static uint32_t cached_at(uint32_t lane, uint32_t first, uint32_t n)
{
    uint32_t row;
    ck_assert_int_eq(open_at(lane, first, n, &row), 0);
    compute(row, first, n);
    close_row(row, UINT32_MAX);
    return row;
}

/* Its table is the lane's range, in order. */
static void lies_on(uint32_t row, uint32_t lane)
{
    const uint64_t *table = segment_table(pool->seg, row);
    for (uint32_t i = 0; i < body(row)->n_entries; i++)
        ck_assert_uint_eq(pool_entry_chunk(table[i]), 1 + lane * LANE_CHUNKS + i);
    check_invariants();
}

START_TEST(a_lane_has_its_chunks_in_order)
{
    uint32_t a, b, c;
    ck_assert_int_eq(open_at(2, 100, 40, &a), 0);
    ck_assert_int_eq(open_at(0, 100, 10, &b), 0); /* the same tokens: nothing is shared */
    ck_assert_int_eq(open_at(1, 500, LANE_CONTEXT, &c), 0);
    ck_assert_uint_eq(body(a)->base + body(b)->base + body(c)->base, 0);
    lies_on(a, 2);
    lies_on(b, 0);
    lies_on(c, 1);
    ck_assert_int_eq(pool_grow(pool, next_op(), seen(b), LANE_CONTEXT), 0);
    ck_assert_int_eq(pool_grow(pool, next_op(), seen(a), LANE_CONTEXT), 0);
    ck_assert_uint_eq(pool->n_free, 0);
    lies_on(a, 2);
    lies_on(b, 0);
}
END_TEST

START_TEST(a_full_lane_goes_on_when_all_are_full)
{
    uint32_t row, again;
    for (uint32_t lane = 0; lane < 3; lane++)
        row = cached_at(lane, 100 * lane, LANE_CONTEXT);
    uint64_t generation = body(row)->generation;
    ck_assert_int_eq(open_at(2, 200, LANE_CONTEXT, &again), 0);
    ck_assert_uint_eq(again, row);
    ck_assert_uint_eq(body(row)->generation, generation);
    ck_assert_uint_eq(body(row)->base, LANE_CONTEXT - 1); /* the last token is always computed */
    lies_on(row, 2);
}
END_TEST

START_TEST(another_prompt_keeps_what_is_common_and_drops_the_rest)
{
    uint32_t row = cached_at(1, 100, 50), other, again;
    uint64_t generation = body(row)->generation;
    ck_assert_int_eq(open_at(0, 100, 50, &other), 0); /* on another lane it has nothing */
    ck_assert_uint_eq(body(other)->base, 0);
    ck_assert_int_eq(open_at(1, 100, 20, &again), 0);
    ck_assert_uint_eq(again, row);
    ck_assert_uint_eq(body(row)->base, 19);
    lies_on(row, 1);
    compute(row, 100, 20);
    close_row(row, UINT32_MAX);
    ck_assert_int_eq(open_at(1, 700, 20, &again), 0);
    ck_assert(again != row || body(row)->generation > generation);
    ck_assert_uint_eq(body(again)->base, 0);
    lies_on(again, 1);
    lies_on(other, 0);
}
END_TEST

START_TEST(who_still_has_the_lane_is_waited_for)
{
    uint32_t row, other;
    ck_assert_int_eq(open_at(1, 100, 20, &row), 0);
    ck_assert_int_eq(open_at(1, 500, 20, &other), -EAGAIN);
    compute(row, 100, 20);
    struct pool_close ask = {.op = next_op(), .seen = seen(row), .last_window = 7, .keep = 20};
    ck_assert_int_eq(pool_close_row(pool, &ask), 0);
    ck_assert_int_eq(open_at(1, 500, 20, &other), -EAGAIN);
    page->drained = 7;
    ck_assert_uint_eq(pool_drain(pool), 1);
    uint32_t copy;
    ck_assert_int_eq(transfer_save(pool, row, body(row)->generation, ME, &copy), 0);
    ck_assert_int_eq(open_at(1, 500, 20, &other), -EAGAIN); /* a tool reads it */
    check_invariants();
    transfers_forget(pool, ME);
    ck_assert_int_eq(open_at(1, 500, 20, &other), 0);
    lies_on(other, 1);
}
END_TEST

START_TEST(a_cut_waits_for_the_save_of_what_runs)
{
    uint32_t row, copy;
    ck_assert_int_eq(open_at(1, 100, 3 * C, &row), 0);
    compute(row, 100, 3 * C);
    ck_assert_int_eq(transfer_save(pool, row, body(row)->generation, ME, &copy), 0);
    struct op_id op = next_op();
    ck_assert_int_eq(pool_truncate(pool, op, seen(row), C + 1, 0), -EAGAIN);
    ck_assert_uint_eq(body(row)->n_entries, body(copy)->n_entries + 1);
    transfers_forget(pool, ME);
    ck_assert_int_eq(pool_truncate(pool, op, seen(row), C + 1, 0), 0);
    ck_assert_uint_eq(body(row)->base, C + 1);
    ck_assert_int_eq(pool_grow(pool, next_op(), seen(row), 3 * C), 0);
    lies_on(row, 1);
}
END_TEST

/* A restore chose its lane, and the next growth found the chunk taken: poold died of an assertion.
 */
START_TEST(who_is_cut_to_nothing_keeps_its_lane)
{
    uint32_t row, restored;
    ck_assert_int_eq(open_at(0, 100, 20, &row), 0);
    compute(row, 100, 20);
    ck_assert_int_eq(pool_truncate(pool, next_op(), seen(row), 0, 0), 0);
    ck_assert_uint_eq(body(row)->n_entries, 0);
    struct transfer_restore ask = {.cells = 20, .lane = POOL_NO_LANE, .holder = ME};
    ck_assert_int_eq(transfer_restore(pool, &ask, &restored), 0);
    lies_on(restored, 1);
    ck_assert_int_eq(pool_grow(pool, next_op(), seen(row), 20), 0);
    lies_on(row, 0);
}
END_TEST

START_TEST(who_waits_on_another_lane_is_cached_there)
{
    uint32_t row, moved;
    ck_assert_int_eq(open_at(0, 100, 30, &row), 0);
    struct pool_body b = *body(row);
    b.gateway = 5;
    segment_commit(pool->seg, row, &b);
    compute(row, 100, 30);
    struct pool_close close = {.op = next_op(), .seen = seen(row), .keep = 30, .resume = true};
    ck_assert_int_eq(pool_close_row(pool, &close), 0);
    ck_assert_uint_eq(pool_drain(pool), 1);
    ck_assert_uint_eq(body(row)->state, POOL_WAITING);
    uint32_t tokens[31];
    for (uint32_t i = 0; i < 31; i++)
        tokens[i] = 100 + i;
    struct pool_open ask = {.op = next_op(),
                            .lane = 2,
                            .tokens = tokens,
                            .n_tokens = 31,
                            .arrival = pool_next_arrival(pool),
                            .resume = true,
                            .resume_row = row,
                            .resume_generation = body(row)->generation,
                            .may_wait = true};
    ck_assert_int_eq(pool_open_row(pool, &ask, &moved), 0);
    ck_assert_uint_eq(body(moved)->base, 0);
    ck_assert_uint_eq(body(row)->state, POOL_IDLE);
    ck_assert_uint_eq(body(row)->base, 30);
    lies_on(row, 0);
    lies_on(moved, 2);
}
END_TEST

START_TEST(a_restart_finds_them_where_they_were)
{
    uint32_t row = cached_at(2, 100, 40), again;
    restart();
    lies_on(row, 2);
    ck_assert_int_eq(open_at(2, 100, 60, &again), 0);
    ck_assert_uint_eq(again, row);
    ck_assert_uint_eq(body(row)->base, 40);
    lies_on(row, 2);
}
END_TEST

START_TEST(a_restore_gets_a_lane)
{
    uint32_t row, old = cached_at(0, 100, 40), busy;
    ck_assert_int_eq(open_at(1, 500, 20, &busy), 0);
    struct transfer_restore ask = {.cells = 33, .lane = POOL_NO_LANE, .holder = ME};
    ck_assert_int_eq(transfer_restore(pool, &ask, &row), 0); /* lane 2: nobody lives there */
    lies_on(row, 2);
    ck_assert_int_eq(transfer_end(pool, row, body(row)->generation, ME, true), 0);
    ck_assert_int_eq(transfer_restore(pool, &ask, &row), 0); /* lane 0, used longest ago */
    ck_assert(row == old || body(old)->state == POOL_FREE);
    lies_on(row, 0);
    ask.lane = 1;
    ck_assert_int_eq(transfer_restore(pool, &ask, &row), -EBUSY);
    ask.lane = 3;
    ck_assert_int_eq(transfer_restore(pool, &ask, &row), -EXDEV);
    check_invariants();
}
END_TEST

int main(void)
{
    TCase *t = tcase_create("ranges");
    tcase_add_checked_fixture(t, pool_rig_setup_ranges, pool_rig_teardown);
    tcase_add_test(t, a_lane_has_its_chunks_in_order);
    tcase_add_test(t, a_full_lane_goes_on_when_all_are_full);
    tcase_add_test(t, another_prompt_keeps_what_is_common_and_drops_the_rest);
    tcase_add_test(t, who_still_has_the_lane_is_waited_for);
    tcase_add_test(t, a_cut_waits_for_the_save_of_what_runs);
    tcase_add_test(t, who_is_cut_to_nothing_keeps_its_lane);
    tcase_add_test(t, who_waits_on_another_lane_is_cached_there);
    tcase_add_test(t, a_restart_finds_them_where_they_were);
    tcase_add_test(t, a_restore_gets_a_lane);
    return suite_run("ranges", t);
}
