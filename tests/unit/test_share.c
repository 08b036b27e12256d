/* SPDX-License-Identifier: MIT */
/*
 * What a prompt's piece may take, held against a device whose times are known: windows take what a
 * formula says, and the pieces must come to the share that was asked for.
 */
#include "common/base.h"
#include "tests/suite.h"
#include "workerd/share.h"

enum { PIECE = 512 };

/* A window: 2,000 us for others, 300 for a piece, and so much a row. */
static uint64_t window_us(uint32_t others, uint32_t n_prompt, double row_us)
{
    double us = (others ? 2000 : 0) + (n_prompt ? 300 : 0) + n_prompt * row_us;
    return (uint64_t)us;
}

/* Reads n tokens; returns the median-like share of the windows' time that pieces had, once it has
 * settled, in percent. */
static double read_prompt(struct share *s, uint32_t n, double row_us)
{
    double piece_us = 0, all_us = 0;
    for (uint32_t left = n, i = 0; left; i++) {
        uint32_t rows = min_u32(share_piece(s, true, PIECE), left);
        uint64_t us = window_us(1, rows, row_us);
        share_measured(s, 1, rows, us);
        left -= rows;
        if (i < 40 || rows == 0) continue;
        piece_us += (double)us - 2000;
        all_us += (double)us;
    }
    return 100 * piece_us / all_us;
}

START_TEST(no_limit)
{
    struct share s = {.percent = 100};
    share_measured(&s, 1, 0, 2000);
    ck_assert_uint_eq(share_piece(&s, true, PIECE), PIECE);
    s.percent = 50;
    ck_assert_uint_eq(share_piece(&s, false, PIECE), PIECE);
}
END_TEST

START_TEST(first_a_window_without_a_piece_is_measured)
{
    struct share s = {.percent = 50};
    ck_assert_uint_eq(share_piece(&s, true, PIECE), 0);
    share_measured(&s, 4, 500, 9000); /* of a piece that was posted before others were answered */
    ck_assert_uint_eq(share_piece(&s, true, PIECE), 0);
    share_measured(&s, 4, 0, 2000);
    ck_assert_uint_eq(share_piece(&s, true, PIECE), 32);
    ck_assert_uint_eq(share_piece(&s, true, 8), 8);
    for (int i = 0; i < 32; i++)
        share_measured(&s, 4, 32, 3000);
    ck_assert_uint_eq(share_piece(&s, true, PIECE), 0);
}
END_TEST

static const struct {
    uint32_t percent;
    double row_us;
} cases[] = {
    {50, 10 },
    {66, 10 },
    {66, 80 },
    {80, 40 },
    {30, 1.5},
};

START_TEST(pieces_come_to_their_share)
{
    struct share s = {.percent = cases[_i].percent};
    double share = read_prompt(&s, 20000, cases[_i].row_us);
    /* Pieces are multiples of 16 rows, so they stay below by at most one. */
    double unit = 16 * cases[_i].row_us, allowed = 2000.0 * s.percent / (100 - s.percent);
    ck_assert_double_le(share, s.percent + 2);
    ck_assert_double_ge(share, 100 * (allowed - unit) / (2000 + allowed - unit) - 2);
}
END_TEST

START_TEST(rows_that_cost_more_make_smaller_pieces)
{
    struct share s = {.percent = 66};
    (void)read_prompt(&s, 20000, 10);
    uint32_t before = share_piece(&s, true, PIECE);
    share_measured(&s, 1, 0, 2000);
    (void)read_prompt(&s, 20000, 40);
    share_measured(&s, 1, 0, 2000);
    uint32_t after = share_piece(&s, true, PIECE);
    ck_assert_uint_lt(after, before / 2);
    ck_assert_uint_ge(after, 16);
}
END_TEST

/* However slow it is, a prompt is read: 16 rows at a time. */
START_TEST(a_piece_has_its_least)
{
    struct share s = {.percent = 1};
    share_measured(&s, 1, 0, 10);
    for (int i = 0; i < 30; i++)
        share_measured(&s, 1, share_piece(&s, true, PIECE), 1000000);
    ck_assert_uint_eq(share_piece(&s, true, PIECE), 16);
}
END_TEST

int main(void)
{
    TCase *tests = tcase_create("share");
    tcase_add_test(tests, no_limit);
    tcase_add_test(tests, first_a_window_without_a_piece_is_measured);
    tcase_add_loop_test(tests, pieces_come_to_their_share, 0, ARRAY_LEN(cases));
    tcase_add_test(tests, rows_that_cost_more_make_smaller_pieces);
    tcase_add_test(tests, a_piece_has_its_least);
    return suite_run("share", tests);
}
