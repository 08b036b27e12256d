/* SPDX-License-Identifier: MIT */
/*
 * Rows that a tool copies out of or into: what a save holds while its conversation goes on, is cut,
 * evicted or taken over, and that both end without a trace. Expected values by hand from
 * poold/transfers.h's sentences; chunks have 16 cells.
 */
#include <check.h>
#include <errno.h>

#include "poold/plan.h"
#include "poold/transfers.h"
#include "tests/suite.h"
#include "tests/unit/pool_rig.h"

enum { TOOL = 5, OTHER = 6 };

static uint32_t save(uint32_t row)
{
    uint32_t own = UINT32_MAX;
    ck_assert_int_eq(transfer_save(pool, row, body(row)->generation, TOOL, &own), 0);
    ck_assert_uint_ne(own, row);
    ck_assert_uint_eq(body(own)->state, POOL_CLOSING);
    ck_assert_uint_eq(body(own)->holder, TOOL);
    check_invariants();
    return own;
}

static int restore(uint32_t n, uint32_t *ret_row)
{
    struct transfer_restore ask = {.cells = n, .lane = POOL_NO_LANE, .holder = TOOL};
    return transfer_restore(pool, &ask, ret_row);
}

static void end(uint32_t own, bool complete)
{
    ck_assert_int_eq(transfer_end(pool, own, body(own)->generation, TOOL, complete), 0);
    check_invariants();
}

/* The tokens that a save's tool finds: its table's chunks, then the one to copy. */
static void check_tokens(uint32_t own, uint32_t first, uint32_t n)
{
    const struct pool_body *b = body(own);
    ck_assert_uint_eq(b->base + b->copy_cells, n);
    ck_assert_uint_eq(b->base, n / C * C);
    for (uint32_t i = 0; i < n; i++) {
        uint64_t entry =
            i / C < b->n_entries ? segment_table(pool->seg, own)[i / C] : b->copy_entry;
        ck_assert_uint_eq(cells[pool_entry_chunk(entry) * C + i % C], first + i);
    }
}

/* ---- saves ---- */

START_TEST(a_save_shares_what_is_valid)
{
    static const uint32_t lengths[] = {1, 15, 16, 17, 32, 40};
    uint32_t n = lengths[_i], row = cached(100, n), free = pool->n_free;
    uint32_t own = save(row);
    check_tokens(own, 100, n);
    ck_assert_uint_eq(pool->n_free, free);
    end(own, false);
    ck_assert_uint_eq(body(own)->state, POOL_FREE);
    ck_assert_uint_eq(body(row)->base, n);
    ck_assert_uint_eq(pool->n_free, free);
}
END_TEST

START_TEST(a_running_conversation_is_saved_as_far_as_all_have_published_it)
{
    static const uint32_t lengths[] = {1, 15, 16, 17, 32, 40};
    uint32_t n = lengths[_i], row;
    ck_assert_int_eq(open_prompt(100, 60, 0, &row), 0);
    compute(row, 100, n);
    page->word[row] = pool_word(body(row)->lease, n + 3); /* the stage is ahead of the head */
    uint32_t own = save(row);
    check_tokens(own, 100, n);
    compute(row, 100, 60); /* it goes on, also in the chunk that was partly filled */
    check_tokens(own, 100, n);
    close_row(row, UINT32_MAX);
    ck_assert_uint_eq(pool_cached_cells(body(row)), 60);
    check_tokens(own, 100, n);
    check_invariants();
    end(own, false);
}
END_TEST

START_TEST(nothing_computed_is_nothing_to_save)
{
    uint32_t row, own;
    ck_assert_int_eq(open_prompt(100, 60, 0, &row), 0);
    ck_assert_int_eq(transfer_save(pool, row, body(row)->generation, TOOL, &own), -ENODATA);
    check_invariants();
}
END_TEST

START_TEST(a_fork_that_has_not_copied_yet_is_saved_from_its_source)
{
    uint32_t old = cached(100, 80), fork;
    ck_assert_int_eq(open_prompt(100, 25, 0, &fork), 0); /* 16 shared, 8 to copy */
    uint32_t own = save(fork);
    check_tokens(own, 100, 24);
    ck_assert_uint_eq(body(own)->copy_entry, segment_table(pool->seg, old)[1]);
    ck_assert_int_eq(pool_drop(pool, old, body(old)->generation), 0);
    check_tokens(own, 100, 24);
    check_invariants();
    end(own, false);
}
END_TEST

START_TEST(a_fork_that_has_copied_is_saved_from_its_own_chunk)
{
    (void)cached(100, 80);
    uint32_t fork;
    ck_assert_int_eq(open_prompt(100, 25, 0, &fork), 0);
    compute(fork, 100, 25);
    uint32_t own = save(fork);
    check_tokens(own, 100, 25);
    ck_assert_uint_eq(body(own)->copy_entry, segment_table(pool->seg, fork)[1]);
    end(own, false);
}
END_TEST

START_TEST(what_is_closing_is_saved_as_far_as_it_will_be_kept)
{
    uint32_t row;
    ck_assert_int_eq(open_prompt(100, 60, 0, &row), 0);
    compute(row, 100, 40);
    struct pool_close ask = {
        .op = next_op(), .seen = seen(row), .keep = 37, .last_window = pool_window(0, 9)};
    ck_assert_int_eq(pool_close_row(pool, &ask), 0);
    ck_assert_uint_eq(body(row)->state, POOL_CLOSING);
    uint32_t own = save(row);
    check_tokens(own, 100, 37);
    page->drained = pool_window(0, 9);
    ck_assert_uint_eq(pool_drain(pool), 1);
    ck_assert_uint_eq(pool_cached_cells(body(row)), 37);
    check_invariants();
    end(own, false);
}
END_TEST

/* Whatever happens to the conversation: an undo inside the partly filled chunk, its end, its loss.
 */
START_TEST(what_is_being_saved_outlives_its_conversation)
{
    uint32_t row;
    ck_assert_int_eq(open_prompt(100, 60, 0, &row), 0);
    compute(row, 100, 40);
    uint32_t own = save(row);
    ck_assert_int_eq(pool_truncate(pool, next_op(), seen(row), 35, 0), 0);
    ck_assert_uint_ne(segment_table(pool->seg, row)[2], body(own)->copy_entry);
    check_tokens(own, 100, 40);
    check_invariants();
    close_row(row, 0); /* as one that is evicted while it runs */
    ck_assert_uint_eq(body(row)->state, POOL_FREE);
    check_tokens(own, 100, 40);
    check_invariants();
    uint32_t free = pool->n_free;
    end(own, false);
    ck_assert_uint_eq(pool->n_free, free + 3);
}
END_TEST

START_TEST(a_cached_conversation_goes_on_while_it_is_saved)
{
    uint32_t row = cached(100, 40), again;
    uint32_t own = save(row);
    ck_assert_int_eq(open_prompt(100, 60, 0, &again), 0);
    ck_assert_uint_eq(again, row);
    compute(row, 100, 60);
    check_tokens(own, 100, 40);
    check_invariants();
    end(own, false);
}
END_TEST

START_TEST(nobody_finds_evicts_or_saves_a_tools_row)
{
    uint32_t row = cached(100, 40), own = save(row), other;
    ck_assert_int_eq(pool_drop(pool, row, body(row)->generation), 0);
    ck_assert_int_eq(pool_drop(pool, own, body(own)->generation), -EBUSY);
    ck_assert_int_eq(transfer_save(pool, own, body(own)->generation, OTHER, &other), -EBUSY);
    ck_assert_int_eq(open_prompt(100, 40, 0, &other), 0);
    ck_assert_uint_eq(body(other)->base, 0);
    struct plan_ask all = {CHUNKS, PLAN_NOBODY, UINT64_MAX, false};
    ck_assert_int_eq(plan_room(pool, &all), -ENOSPC);
    check_tokens(own, 100, 40);
    end(own, false);
}
END_TEST

START_TEST(another_generation_is_another_conversation)
{
    uint32_t row = cached(100, 40), own;
    ck_assert_int_eq(transfer_save(pool, row, body(row)->generation + 1, TOOL, &own), -ENOENT);
    ck_assert_int_eq(transfer_save(pool, ROWS, 1, TOOL, &own), -ENOENT);
    own = save(row);
    uint64_t generation = body(own)->generation;
    ck_assert_int_eq(transfer_end(pool, own, generation, OTHER, false), -ENOENT);
    ck_assert_int_eq(transfer_end(pool, own, generation + 1, TOOL, false), -ENOENT);
    ck_assert_int_eq(transfer_end(pool, row, body(row)->generation, TOOL, false), -ENOENT);
    ck_assert_int_eq(transfer_end(pool, ROWS, 1, TOOL, false), -ENOENT);
    end(own, false);
    ck_assert_int_eq(transfer_end(pool, own, generation, TOOL, false), -ENOENT);
}
END_TEST

START_TEST(without_a_row_nothing_is_taken)
{
    for (uint32_t i = 0; i < ROWS; i++) {
        uint32_t row;
        ck_assert_int_eq(open_prompt(100 * (i + 1), 4, 0, &row), 0);
        compute(row, 100 * (i + 1), 4);
    }
    uint32_t own;
    ck_assert_int_eq(transfer_save(pool, 0, body(0)->generation, TOOL, &own), -ENOSPC);
    ck_assert_int_eq(restore(4, &own), -ENOSPC);
    check_invariants();
}
END_TEST

/* ---- restores ---- */

START_TEST(a_restore_counts_when_it_is_complete)
{
    uint32_t own, row;
    ck_assert_int_eq(restore(40, &own), 0);
    check_invariants();
    for (uint32_t i = 0; i < 40; i++)
        cells[pool_entry_chunk(segment_table(pool->seg, own)[i / C]) * C + i % C] = 100 + i;
    ck_assert_int_eq(open_prompt(100, 41, 0, &row), 0);
    ck_assert_uint_eq(body(row)->base, 0); /* nothing is found before */
    close_row(row, 0);
    end(own, true);
    ck_assert_uint_eq(body(own)->lane, POOL_NO_LANE);
    ck_assert_int_eq(open_prompt(100, 41, 0, &row), 0);
    ck_assert_uint_eq(row, own);
    ck_assert_uint_eq(pool_cached_cells(body(row)), 40);
    check_invariants();
}
END_TEST

START_TEST(a_restore_that_is_void_leaves_nothing)
{
    uint32_t own, free = pool->n_free;
    ck_assert_int_eq(restore(40, &own), 0);
    ck_assert_uint_eq(pool->n_free, free - 3);
    end(own, false);
    ck_assert_uint_eq(body(own)->state, POOL_FREE);
    ck_assert_uint_eq(pool->n_free, free);
}
END_TEST

START_TEST(a_restore_takes_from_cached_ones_or_nothing)
{
    uint32_t own, row = cached(100, 112), running; /* 7 chunks; 5 are free */
    ck_assert_int_eq(restore(CONTEXT, &own), 0);   /* 8 */
    ck_assert_uint_eq(pool_cached_cells(body(row)), 64);
    check_invariants();
    end(own, false);
    ck_assert_int_eq(open_prompt(500, 112, 0, &running), 0);
    ck_assert_uint_eq(pool_cached_cells(body(row)), 64);
    compute(running, 500, 112);
    uint32_t second;
    ck_assert_int_eq(open_prompt(700, 40, 0, &second), 0);
    compute(second, 700, 40);
    uint64_t version = pool->seg->rows[row].version;
    ck_assert_int_eq(restore(40, &own), -ENOSPC);
    ck_assert_uint_eq(pool->seg->rows[row].version, version);
    ck_assert_int_eq(restore(CONTEXT + 1, &own), -E2BIG);
    ck_assert_int_eq(restore(0, &own), -E2BIG);
    check_invariants();
}
END_TEST

/* ---- deaths ---- */

START_TEST(both_are_over_when_their_tool_is_dead)
{
    uint32_t row = cached(100, 40), free = pool->n_free, saving = save(row), restoring, kept;
    ck_assert_int_eq(restore(20, &restoring), 0);
    struct transfer_restore ask = {.cells = 20, .holder = OTHER};
    ck_assert_int_eq(transfer_restore(pool, &ask, &kept), 0);
    restart(); /* poold knows whose they are from the rows */
    check_invariants();
    ck_assert_uint_eq(body(saving)->holder, TOOL);
    transfers_forget(pool, TOOL);
    ck_assert_uint_eq(body(saving)->state, POOL_FREE);
    ck_assert_uint_eq(body(restoring)->state, POOL_FREE);
    ck_assert_uint_eq(body(kept)->holder, OTHER);
    ck_assert_uint_eq(body(row)->base, 40);
    ck_assert_uint_eq(pool->n_free, free - 2);
    check_invariants();
}
END_TEST

int main(void)
{
    TCase *tc = tcase_create("transfers");
    tcase_add_checked_fixture(tc, pool_rig_setup, pool_rig_teardown);
    tcase_add_loop_test(tc, a_save_shares_what_is_valid, 0, 6);
    tcase_add_loop_test(tc, a_running_conversation_is_saved_as_far_as_all_have_published_it, 0, 6);
    tcase_add_test(tc, nothing_computed_is_nothing_to_save);
    tcase_add_test(tc, a_fork_that_has_not_copied_yet_is_saved_from_its_source);
    tcase_add_test(tc, a_fork_that_has_copied_is_saved_from_its_own_chunk);
    tcase_add_test(tc, what_is_closing_is_saved_as_far_as_it_will_be_kept);
    tcase_add_test(tc, what_is_being_saved_outlives_its_conversation);
    tcase_add_test(tc, a_cached_conversation_goes_on_while_it_is_saved);
    tcase_add_test(tc, nobody_finds_evicts_or_saves_a_tools_row);
    tcase_add_test(tc, another_generation_is_another_conversation);
    tcase_add_test(tc, without_a_row_nothing_is_taken);
    tcase_add_test(tc, a_restore_counts_when_it_is_complete);
    tcase_add_test(tc, a_restore_that_is_void_leaves_nothing);
    tcase_add_test(tc, a_restore_takes_from_cached_ones_or_nothing);
    tcase_add_test(tc, both_are_over_when_their_tool_is_dead);
    return suite_run("transfers", tc);
}
