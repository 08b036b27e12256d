/* SPDX-License-Identifier: MIT */
/*
 * What a prompt's piece may take, held against a device whose times are known: windows take what a
 * formula says, and the pieces must come to the share that was asked for.
 */
#include <math.h>

#include "common/base.h"
#include "tests/suite.h"
#include "workerd/share.h"

enum { PIECE = 512 };

static void measured(struct share *s, uint32_t n_generated, uint32_t n_prompt, uint64_t us)
{
    share_measured(s, &(struct share_windows){1, n_generated, n_prompt, us});
}

/* A window takes 2,000 us for others, a piece so much however short it is, and so much a row. Reads
 * n tokens; returns the share of the time that pieces had, once it has settled, in percent. */
static double read_prompt(struct share *s, uint32_t n, double piece_us, double row_us)
{
    double pieces_us = 0, all_us = 0;
    for (uint32_t left = n, i = 0; left; i++) {
        uint32_t rows = min_u32(share_piece(s, true, PIECE), left);
        double extra_us = rows ? piece_us + rows * row_us : 0;
        measured(s, 1, rows, (uint64_t)(2000 + extra_us));
        left -= rows;
        if (i < 40) continue;
        pieces_us += extra_us;
        all_us += 2000 + extra_us;
    }
    return 100 * pieces_us / all_us;
}

START_TEST(no_limit)
{
    struct share s = {.percent = 100};
    measured(&s, 1, 0, 2000);
    ck_assert_uint_eq(share_piece(&s, true, PIECE), PIECE);
    s.percent = 50;
    ck_assert_uint_eq(share_piece(&s, false, PIECE), PIECE);
}
END_TEST

START_TEST(first_a_window_without_a_piece_is_measured)
{
    struct share s = {.percent = 50};
    ck_assert_uint_eq(share_piece(&s, true, PIECE), 0);
    measured(&s, 4, 500, 9000); /* of a piece that was posted before others were answered */
    ck_assert_uint_eq(share_piece(&s, true, PIECE), 0);
    measured(&s, 4, 0, 2000);
    ck_assert_uint_eq(share_piece(&s, true, PIECE), 32);
    ck_assert_uint_eq(share_piece(&s, true, 8), 8);
    for (int i = 0; i < 32; i++)
        measured(&s, 4, 32, 3000);
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
    double share = read_prompt(&s, 20000, 300, cases[_i].row_us);
    /* Pieces are multiples of 16 rows, so they stay below by at most one. */
    double unit = 16 * cases[_i].row_us, allowed = 2000.0 * s.percent / (100 - s.percent);
    ck_assert_double_le(share, s.percent + 2);
    ck_assert_double_ge(share, 100 * (allowed - unit) / (2000 + allowed - unit) - 4);
}
END_TEST

START_TEST(rows_that_cost_more_make_smaller_pieces)
{
    struct share s = {.percent = 66};
    (void)read_prompt(&s, 20000, 300, 10);
    uint32_t before = share_piece(&s, true, PIECE);
    measured(&s, 1, 0, 2000);
    (void)read_prompt(&s, 20000, 300, 40);
    measured(&s, 1, 0, 2000);
    uint32_t after = share_piece(&s, true, PIECE);
    ck_assert_uint_lt(after, before / 2);
    ck_assert_uint_ge(after, 16);
}
END_TEST

/* On a device where a piece of few rows takes as long as one of many, windows without one keep the
 * share: not ever smaller pieces, which would read nothing. */
START_TEST(what_a_piece_takes_at_least_is_made_up_for)
{
    static const uint32_t percents[] = {20, 50, 66, 80};
    for (size_t i = 0; i < ARRAY_LEN(percents); i++) {
        struct share s = {.percent = percents[i], .least = 128};
        double share = read_prompt(&s, 60000, 9000, 20);
        ck_assert_double_le(fabs(share - percents[i]), 3);
        ck_assert_double_ge(s.rows, 128);
    }
}
END_TEST

/* A head that is late finds its windows back two by two, always: what each took it never learns,
 * and a prompt was not read before the others ended. With a piece in one of the two, or in both. */
START_TEST(windows_that_came_together_were_not_measured)
{
    struct share s = {.percent = 50};
    double pieces_us = 0, all_us = 0;
    uint32_t n_read = 0;
    for (uint32_t i = 0; i < 2000; i++) {
        struct share_windows w = {.n = 2, .n_generated = 2};
        for (uint32_t k = 0; k < 2; k++)
            if (k == 0 || _i == 1) w.n_prompt += share_piece(&s, true, PIECE);
        double extra_us = w.n_prompt * 20;
        w.us = (uint64_t)(4000 + extra_us);
        share_measured(&s, &w);
        n_read += w.n_prompt;
        if (i < 40) continue;
        pieces_us += extra_us;
        all_us += (double)w.us;
    }
    ck_assert_uint_gt(n_read, 0);
    ck_assert_double_le(100 * pieces_us / all_us, 52);
    /* Where one of two may have a piece, what the other could have had is gone. */
    ck_assert_double_ge(100 * pieces_us / all_us, _i == 1 ? 40 : 28);
}
END_TEST

/* However slow it is, a prompt is read: 16 rows at a time, in one of 33 windows. */
START_TEST(a_piece_has_its_least)
{
    struct share s = {.percent = 1};
    uint32_t pieces = 0;
    measured(&s, 1, 0, 10);
    for (int i = 0; i < 3300; i++) {
        uint32_t rows = share_piece(&s, true, PIECE);
        if (i > 100 && rows) ck_assert_uint_eq(rows, 16);
        measured(&s, 1, rows, rows ? 1000000 : 10);
        pieces += rows > 0;
    }
    ck_assert_uint_ge(pieces, 100);
    ck_assert_uint_le(pieces, 110);
}
END_TEST

int main(void)
{
    TCase *tests = tcase_create("share");
    tcase_add_test(tests, no_limit);
    tcase_add_test(tests, first_a_window_without_a_piece_is_measured);
    tcase_add_loop_test(tests, pieces_come_to_their_share, 0, ARRAY_LEN(cases));
    tcase_add_test(tests, rows_that_cost_more_make_smaller_pieces);
    tcase_add_test(tests, what_a_piece_takes_at_least_is_made_up_for);
    tcase_add_loop_test(tests, windows_that_came_together_were_not_measured, 0, 2);
    tcase_add_test(tests, a_piece_has_its_least);
    return suite_run("share", tests);
}
