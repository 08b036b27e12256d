/* SPDX-License-Identifier: MIT */
/*
 * The pool's rows and tables in this process: expected values follow from the rules in
 * ARCHITECTURE.md (the pool), worked out by hand in each table.
 */
#include <check.h>
#include <errno.h>
#include <string.h>

#include "tests/suite.h"
#include "tests/unit/pool_rig.h"

/* ---- reserving ---- */

static const struct {
    uint32_t tokens, entries;
} reserves[] = {
    {1,   2}, /* itself and a growth unit of 16: 17 cells */
    {16,  2},
    {17,  3},
    {112, 8}, /* 112 + 16 is the context */
    {120, 8}, /* never past the context */
    {128, 8},
};

START_TEST(open_reserves_the_prompt_and_one_growth_unit)
{
    uint32_t row;
    ck_assert_int_eq(open_prompt(1000, reserves[_i].tokens, 0, &row), 0);
    ck_assert_uint_eq(body(row)->n_entries, reserves[_i].entries);
    ck_assert_uint_eq(body(row)->base, 0);
    check_invariants();
}
END_TEST

START_TEST(grow_is_absolute_and_answers_its_retry)
{
    uint32_t row;
    ck_assert_int_eq(open_prompt(1, 10, 0, &row), 0);
    struct row_seen before = seen(row);
    struct op_id op = next_op();
    ck_assert_int_eq(pool_grow(pool, op, before, 33), 0);
    ck_assert_uint_eq(body(row)->n_entries, 3);
    ck_assert_int_eq(pool_grow(pool, op, before, 33), 0); /* the very same again: nothing happens */
    ck_assert_uint_eq(body(row)->n_entries, 3);
    ck_assert_int_eq(pool_grow(pool, next_op(), before, 49), -ESTALE); /* an older version */
    ck_assert_int_eq(pool_grow(pool, next_op(), seen(row), CONTEXT + 1), -E2BIG);
    check_invariants();
}
END_TEST

START_TEST(open_answers_its_retry_with_the_same_row)
{
    uint32_t tokens[4] = {1, 2, 3, 4}, first, again;
    struct pool_open ask = {.op = next_op(), .tokens = tokens, .n_tokens = 4, .may_wait = true};
    ck_assert_int_eq(pool_open_row(pool, &ask, &first), 0);
    restart(); /* also by the next poold */
    ck_assert_int_eq(pool_open_row(pool, &ask, &again), 0);
    ck_assert_uint_eq(first, again);
    ck_assert_uint_eq(pool->n_free, CHUNKS - 2);
}
END_TEST

/* ---- matching ---- */

static const struct {
    uint32_t cached, first, n; /* cells cached from token 100; then a prompt */
    uint32_t same_row, base;
} matches[] = {
    {40, 100, 60, 1, 40}, /* goes on */
    {40, 100, 40, 1, 39}, /* the last token is always computed */
    {40, 100, 30, 1, 29}, /* 11 cut off: at most one chunk */
    {80, 100, 30, 0, 16}, /* 51 cut off: it stays whole and lends its whole chunk */
    {80, 100, 65, 1, 64}, /* 16 cut off */
    {40, 500, 20, 0, 0 }, /* nothing in common */
};

START_TEST(a_prompt_finds_its_cached_beginning)
{
    uint32_t old = cached(100, matches[_i].cached), row;
    ck_assert_int_eq(open_prompt(matches[_i].first, matches[_i].n, 0, &row), 0);
    ck_assert_uint_eq(row == old, matches[_i].same_row);
    ck_assert_uint_eq(body(row)->base, matches[_i].base);
    if (!matches[_i].same_row) ck_assert_uint_eq(body(old)->base, matches[_i].cached);
    check_invariants();
}
END_TEST

START_TEST(another_salt_shares_nothing)
{
    uint32_t old = cached(100, 40), row;
    ck_assert_int_eq(open_prompt(100, 50, 5, &row), 0);
    ck_assert_uint_ne(row, old);
    ck_assert_uint_eq(body(row)->base, 0);
    check_invariants();
}
END_TEST

START_TEST(a_shared_chunk_outlives_its_first_holder)
{
    uint32_t old = cached(100, 80), row, third;
    ck_assert_int_eq(open_prompt(100, 30, 0, &row), 0); /* borrows chunk 0 */
    ck_assert_int_eq(pool_drop(pool, old, body(old)->generation), 0);
    compute(row, 100, 30);
    close_row(row, UINT32_MAX);
    ck_assert_int_eq(open_prompt(100, 20, 0, &third), 0);
    ck_assert_uint_eq(body(third)->base, 19);
    check_invariants();
}
END_TEST

START_TEST(a_cut_inside_a_shared_chunk_names_it_as_the_one_to_copy)
{
    uint32_t old = cached(100, 80), row, next;
    ck_assert_int_eq(open_prompt(100, 34, 0, &row), 0); /* shares chunks 0 and 1 */
    compute(row, 100, 34);
    close_row(row, UINT32_MAX);
    uint64_t entry = segment_table(pool->seg, row)[1];
    ck_assert_int_eq(pool_truncate(pool, next_op(), seen(row), 20, 0), 0);
    ck_assert_uint_eq(body(row)->base, 16);
    ck_assert_uint_eq(body(row)->copy_entry, entry);
    ck_assert_uint_eq(body(row)->copy_cells, 4);
    ck_assert_uint_eq(body(old)->base, 80);
    check_invariants();
    restart(); /* what is to be copied is in the row: the next poold knows it too */
    check_invariants();
    ck_assert_int_eq(pool_drop(pool, old, body(old)->generation), 0);
    ck_assert_int_eq(open_prompt(100, 25, 0, &next), 0);
    ck_assert_uint_eq(next, row);
    ck_assert_uint_eq(pool_cached_cells(body(row)), 20);
    check_invariants();
}
END_TEST

/* A device keeps cells by {chunk, generation}; another pipeline may write others behind a cut. */
START_TEST(a_cut_through_a_chunk_raises_its_generation)
{
    static const struct {
        uint32_t computed, keep;
        bool raised;
    } cuts[] = {
        {40, 40, false},
        {40, 39, true },
        {40, 33, true },
        {40, 32, false}, /* at its border: the chunk goes */
        {40, 16, false},
        {48, 47, true },
    };
    for (size_t i = 0; i < ARRAY_LEN(cuts); i++) {
        uint32_t row, k = (cuts[i].keep - 1) / C;
        ck_assert_int_eq(open_prompt(1000 * (uint32_t)i, cuts[i].computed, 0, &row), 0);
        compute(row, 1000 * (uint32_t)i, cuts[i].computed);
        uint64_t before = segment_table(pool->seg, row)[k];
        close_row(row, cuts[i].keep);
        uint64_t after = segment_table(pool->seg, row)[k];
        ck_assert_uint_eq(pool_entry_chunk(after), pool_entry_chunk(before));
        ck_assert_uint_eq(pool_entry_generation(after),
                          pool_entry_generation(before) + cuts[i].raised);
        check_invariants();
        ck_assert_int_eq(pool_drop(pool, row, body(row)->generation), 0);
    }
}
END_TEST

START_TEST(a_truncate_that_a_death_cut_short_is_finished_by_its_retry)
{
    uint32_t old = cached(100, 80), row;
    ck_assert_int_eq(open_prompt(100, 34, 0, &row), 0); /* shares chunks 0 and 1 */
    compute(row, 100, 34);
    struct row_seen before = seen(row);
    struct op_id op = next_op();
    pool_cut(pool, row, 20, POOL_ACTIVE, &op); /* the first of its two commits */
    restart();
    ck_assert_uint_eq(body(row)->n_entries, 1);
    ck_assert_int_eq(pool_truncate(pool, op, before, 20, 0), 0);
    ck_assert_uint_eq(body(row)->n_entries, 2); /* one to copy 4 cells into */
    ck_assert_uint_eq(pool_cached_cells(body(row)), 20);
    ck_assert_int_eq(pool_truncate(pool, op, before, 20, 0), 0);
    ck_assert_uint_eq(body(row)->n_entries, 2);
    ck_assert_uint_eq(body(old)->base, 80);
    check_invariants();
}
END_TEST

START_TEST(a_fork_of_a_living_conversation_shares_only_what_is_complete)
{
    uint32_t living, fork;
    ck_assert_int_eq(open_prompt(100, 60, 0, &living), 0);
    compute(living, 100, 40); /* its prompt is still being read */
    ck_assert_int_eq(open_prompt(100, 60, 0, &fork), 0);
    ck_assert_uint_ne(fork, living);
    ck_assert_uint_eq(body(fork)->base, 32);
    ck_assert_uint_eq(body(fork)->copy_cells, 8);
    ck_assert_uint_eq(body(fork)->copy_entry, segment_table(pool->seg, living)[2]);
    check_invariants();
}
END_TEST

START_TEST(what_was_copied_is_let_go_when_every_word_has_passed_it)
{
    uint32_t old = cached(100, 80), fork;
    ck_assert_int_eq(open_prompt(100, 25, 0, &fork), 0); /* 16 shared, 8 to copy */
    uint32_t source = pool_entry_chunk(body(fork)->copy_entry);
    ck_assert_int_eq(pool_grow(pool, next_op(), seen(fork), 50), 0);
    ck_assert_uint_eq(pool->refs[source], 2); /* no stage has copied yet */
    compute(fork, 100, 25);
    ck_assert_int_eq(pool_grow(pool, next_op(), seen(fork), 70), 0);
    ck_assert_uint_eq(pool->refs[source], 1);
    ck_assert_uint_eq(body(fork)->copy_entry, 0);
    close_row(fork, UINT32_MAX);
    ck_assert_uint_eq(body(fork)->base, 25);
    ck_assert_uint_eq(body(old)->base, 80);
    check_invariants();
}
END_TEST

START_TEST(a_copy_that_a_death_interrupted_stays_to_be_made)
{
    (void)cached(100, 80);
    uint32_t fork, again;
    ck_assert_int_eq(open_prompt(100, 25, 0, &fork), 0); /* 16 shared, 8 to copy */
    close_row(fork, UINT32_MAX);                         /* no word of its lease */
    ck_assert_uint_eq(body(fork)->base, 16);
    check_invariants();
    ck_assert_int_eq(open_prompt(100, 25, 0, &again), 0);
    ck_assert_uint_eq(pool_cached_cells(body(again)), 24);
    check_invariants();
}
END_TEST

/* ---- lengths ---- */

static const struct {
    uint32_t stage, head, keep, base;
    bool stage_lease, head_lease; /* whether the words bear the row's lease */
} lengths[] = {
    {20, 20, 99, 20, true,  true },
    {18, 20, 99, 18, true,  true },
    {20, 19, 99, 19, true,  true },
    {20, 20, 7,  7,  true,  true },
    {20, 20, 99, 0,  false, true }, /* a word of another lease counts as
  base, here 0 */
    {20, 20, 99, 0,  true,  false},
    {99, 99, 99, 32, true,  true }, /* no more than was reserved */
};

START_TEST(the_valid_length_is_the_least_of_the_words)
{
    uint32_t row;
    ck_assert_int_eq(open_prompt(1, 16, 0, &row), 0);
    uint32_t lease = body(row)->lease;
    page->word[row] = pool_word(lease + !lengths[_i].stage_lease, lengths[_i].stage);
    page->word[page->n_rows + row] = pool_word(lease + !lengths[_i].head_lease, lengths[_i].head);
    close_row(row, lengths[_i].keep);
    ck_assert_uint_eq(body(row)->base, lengths[_i].base);
    ck_assert_uint_eq(body(row)->state, lengths[_i].base ? POOL_IDLE : POOL_FREE);
    check_invariants();
}
END_TEST

START_TEST(a_closing_row_keeps_its_chunks_until_its_window_has_drained)
{
    uint32_t row;
    ck_assert_int_eq(open_prompt(1, 16, 0, &row), 0);
    compute(row, 1, 16);
    page->drained = pool_window(1, 4);
    struct pool_close ask = {
        .op = next_op(), .seen = seen(row), .last_window = pool_window(1, 5), .keep = UINT32_MAX};
    ck_assert_int_eq(pool_close_row(pool, &ask), 0);
    ck_assert_uint_eq(pool_drain(pool), 0);
    ck_assert_uint_eq(pool->n_free, CHUNKS - 2);
    restart(); /* also the next poold waits */
    ck_assert_uint_eq(pool_drain(pool), 0);
    page->drained = pool_window(1, POOL_WINDOW_ALL);
    ck_assert_uint_eq(pool_drain(pool), 1);
    ck_assert_uint_eq(body(row)->state, POOL_IDLE);
    ck_assert_uint_eq(pool->n_free, CHUNKS - 1);
    check_invariants();
}
END_TEST

START_TEST(a_dead_stage_is_not_waited_for)
{
    uint32_t row;
    ck_assert_int_eq(open_prompt(1, 16, 0, &row), 0);
    struct pool_close ask = {.op = next_op(), .seen = seen(row), .last_window = pool_window(9, 9)};
    ck_assert_int_eq(pool_close_row(pool, &ask), 0);
    ck_assert_uint_eq(pool_drain(pool), 0);
    pool->manned[0][0] = false;
    ck_assert_uint_eq(pool_drain(pool), 1);
    check_invariants();
}
END_TEST

START_TEST(a_match_that_is_closing_is_waited_for)
{
    uint32_t row, next, tokens[20];
    for (uint32_t i = 0; i < 20; i++)
        tokens[i] = 1 + i;
    ck_assert_int_eq(open_prompt(1, 16, 0, &row), 0);
    compute(row, 1, 16);
    struct pool_close close = {
        .op = next_op(), .seen = seen(row), .last_window = pool_window(1, 1), .keep = UINT32_MAX};
    ck_assert_int_eq(pool_close_row(pool, &close), 0);
    struct pool_open ask = {.op = next_op(), .tokens = tokens, .n_tokens = 20, .may_wait = true};
    ck_assert_int_eq(pool_open_row(pool, &ask, &next), -EAGAIN);
    page->drained = pool_window(1, 1);
    ck_assert_uint_eq(pool_drain(pool), 1);
    ck_assert_int_eq(pool_open_row(pool, &ask, &next), 0);
    ck_assert_uint_eq(next, row);
    ck_assert_uint_eq(body(row)->base, 16);
}
END_TEST

/* ---- deaths of heads ---- */

START_TEST(orphans_wait_for_their_gateway_and_resume)
{
    uint32_t tokens[30], row, again;
    for (uint32_t i = 0; i < 30; i++)
        tokens[i] = 1 + i;
    struct pool_open ask = {
        .op = next_op(), .tokens = tokens, .n_tokens = 20, .gateway = 5, .may_wait = true};
    ck_assert_int_eq(pool_open_row(pool, &ask, &row), 0);
    compute(row, 1, 20);
    uint64_t arrival = body(row)->arrival;
    ask = (struct pool_open){.op = next_op(),
                             .tokens = tokens,
                             .n_tokens = 25,
                             .gateway = 5,
                             .arrival = arrival,
                             .resume = true,
                             .resume_row = row,
                             .resume_generation = body(row)->generation,
                             .may_wait = true};
    /* By another head, before the close of the first attempt: it waits for that. */
    ck_assert_int_eq(pool_open_row(pool, &ask, &again), -EAGAIN);
    struct pool_orphans o = {
        .pipeline = 0, .last_window = pool_window(1, POOL_WINDOW_ALL), .resume = true};
    pool_close_orphans(pool, &o);
    pool->manned[0][0] = false;
    ck_assert_uint_eq(pool_drain(pool), 1);
    ck_assert_uint_eq(body(row)->state, POOL_WAITING);
    ck_assert_uint_eq(body(row)->base, 20);
    ck_assert_int_eq(pool_open_row(pool, &ask, &again), 0);
    ck_assert_uint_eq(again, row);
    ck_assert_uint_eq(body(row)->base, 20);
    ck_assert_uint_eq(body(row)->arrival, arrival);
    check_invariants();
}
END_TEST

/* A prompt whose probabilities are wanted is computed from its beginning, also after a death; what
 * was computed before is then cached, and nobody waits for it. */
START_TEST(a_fresh_open_takes_nothing_over)
{
    uint32_t tokens[40], row, again;
    for (uint32_t i = 0; i < 40; i++)
        tokens[i] = 1 + i;
    struct pool_open ask = {.op = next_op(), .tokens = tokens, .n_tokens = 40, .fresh = true};
    ck_assert_int_eq(pool_open_row(pool, &ask, &row), 0);
    ck_assert_uint_eq(body(row)->base, 0);
    compute(row, 1, 40);
    struct pool_orphans o = {.pipeline = 0, .resume = true};
    pool_close_orphans(pool, &o);
    ck_assert_uint_eq(pool_drain(pool), 1);
    ask = (struct pool_open){.op = next_op(),
                             .tokens = tokens,
                             .n_tokens = 40,
                             .fresh = true,
                             .resume = true,
                             .resume_row = row,
                             .resume_generation = body(row)->generation,
                             .may_wait = true};
    ck_assert_int_eq(pool_open_row(pool, &ask, &again), 0);
    ck_assert_uint_ne(again, row);
    ck_assert_uint_eq(pool_cached_cells(body(again)), 0);
    ck_assert_uint_eq(body(row)->state, POOL_IDLE);
    ck_assert_uint_eq(body(row)->base, 40);
    check_invariants();
}
END_TEST

START_TEST(waiting_rows_of_a_dead_gateway_are_cached)
{
    uint32_t tokens[4] = {1, 2, 3, 4}, row;
    struct pool_open ask = {.op = next_op(), .tokens = tokens, .n_tokens = 4, .gateway = 5};
    ck_assert_int_eq(pool_open_row(pool, &ask, &row), 0);
    compute(row, 1, 4);
    struct pool_orphans o = {.pipeline = 0, .resume = true};
    pool_close_orphans(pool, &o);
    ck_assert_uint_eq(pool_drain(pool), 1);
    pool_give_up_waiting(pool, 6, 0);
    ck_assert_uint_eq(body(row)->state, POOL_WAITING);
    pool_give_up_waiting(pool, 5, 0);
    ck_assert_uint_eq(body(row)->state, POOL_IDLE);
    ck_assert_uint_eq(body(row)->base, 4);
}
END_TEST

START_TEST(a_waiting_row_lends_and_stays)
{
    uint32_t tokens[40], row, fork;
    for (uint32_t i = 0; i < 40; i++)
        tokens[i] = 100 + i;
    struct pool_open ask = {.op = next_op(),
                            .tokens = tokens,
                            .n_tokens = 40,
                            .gateway = 5,
                            .arrival = pool_next_arrival(pool)};
    ck_assert_int_eq(pool_open_row(pool, &ask, &row), 0);
    compute(row, 100, 40);
    struct pool_orphans o = {.pipeline = 0, .resume = true};
    pool_close_orphans(pool, &o);
    ck_assert_uint_eq(pool_drain(pool), 1);
    ck_assert_int_eq(open_prompt(100, 40, 0, &fork),
                     0); /* somebody else's, with the same beginning */
    ck_assert_uint_ne(fork, row);
    ck_assert_uint_eq(pool_cached_cells(body(fork)), 39);
    ck_assert_uint_eq(body(row)->state, POOL_WAITING);
    ck_assert_uint_eq(body(row)->base, 40);
    check_invariants();
}
END_TEST

START_TEST(reconciling_spares_what_the_head_knows_or_will_ask_again)
{
    uint32_t known, pending, lost;
    ck_assert_int_eq(open_prompt(1, 4, 0, &known), 0);
    ck_assert_int_eq(open_prompt(100, 4, 0, &pending), 0);
    uint64_t number = op_number;
    ck_assert_int_eq(open_prompt(200, 4, 0, &lost), 0);
    struct pool_orphans o = {.keep_rows = &known,
                             .n_keep_rows = 1,
                             .incarnation = ME,
                             .pending = &number,
                             .n_pending = 1};
    pool_close_orphans(pool, &o);
    ck_assert_uint_eq(body(known)->state, POOL_ACTIVE);
    ck_assert_uint_eq(body(pending)->state, POOL_ACTIVE);
    ck_assert_uint_eq(body(lost)->state, POOL_CLOSING);
}
END_TEST

/* ---- damage ---- */

START_TEST(a_damaged_row_is_dropped_and_the_others_stay)
{
    uint32_t a = cached(100, 30), b = cached(300, 30);
    struct pool_row *row = &pool->seg->rows[a];
    row->body[row->version & 1].n_entries = 4000;
    restart();
    ck_assert_uint_eq(body(a)->state, POOL_FREE);
    ck_assert_uint_eq(body(b)->base, 30);
    check_invariants();
}
END_TEST

int main(void)
{
    TCase *t = tcase_create("pool");
    tcase_add_checked_fixture(t, pool_rig_setup, pool_rig_teardown);
    tcase_set_timeout(t, 60);
    tcase_add_loop_test(t, open_reserves_the_prompt_and_one_growth_unit, 0, ARRAY_LEN(reserves));
    tcase_add_test(t, grow_is_absolute_and_answers_its_retry);
    tcase_add_test(t, open_answers_its_retry_with_the_same_row);
    tcase_add_loop_test(t, a_prompt_finds_its_cached_beginning, 0, ARRAY_LEN(matches));
    tcase_add_test(t, another_salt_shares_nothing);
    tcase_add_test(t, a_shared_chunk_outlives_its_first_holder);
    tcase_add_test(t, a_cut_inside_a_shared_chunk_names_it_as_the_one_to_copy);
    tcase_add_test(t, a_cut_through_a_chunk_raises_its_generation);
    tcase_add_test(t, a_truncate_that_a_death_cut_short_is_finished_by_its_retry);
    tcase_add_test(t, a_fork_of_a_living_conversation_shares_only_what_is_complete);
    tcase_add_test(t, what_was_copied_is_let_go_when_every_word_has_passed_it);
    tcase_add_test(t, a_copy_that_a_death_interrupted_stays_to_be_made);
    tcase_add_loop_test(t, the_valid_length_is_the_least_of_the_words, 0, ARRAY_LEN(lengths));
    tcase_add_test(t, a_closing_row_keeps_its_chunks_until_its_window_has_drained);
    tcase_add_test(t, a_dead_stage_is_not_waited_for);
    tcase_add_test(t, a_match_that_is_closing_is_waited_for);
    tcase_add_test(t, orphans_wait_for_their_gateway_and_resume);
    tcase_add_test(t, a_fresh_open_takes_nothing_over);
    tcase_add_test(t, waiting_rows_of_a_dead_gateway_are_cached);
    tcase_add_test(t, a_waiting_row_lends_and_stays);
    tcase_add_test(t, reconciling_spares_what_the_head_knows_or_will_ask_again);
    tcase_add_test(t, a_damaged_row_is_dropped_and_the_others_stay);
    return suite_run("pool", t);
}
