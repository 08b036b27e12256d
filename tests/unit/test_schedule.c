/* SPDX-License-Identifier: MIT */
/*
 * What a window holds. Single windows against tables worked out by hand from the rules in
 * workerd/schedule.h; then a small simulation of a pipeline that checks the rules themselves after
 * every step: how many windows are in flight, that no lane is in two of them while it decodes, that
 * positions follow each other, that everybody ends.
 */
#include <check.h>
#include <stdlib.h>
#include <string.h>

#include "common/base.h"
#include "tests/suite.h"
#include "workerd/schedule.h"

enum { LANES = 8 };

static struct lane decoding(uint32_t group)
{
    return (struct lane){
        .state = LANE_DECODE, .group = group, .reserved = 100, .known = 11, .posted = 10};
}

static struct lane reading(uint32_t group, uint32_t left, uint64_t arrival)
{
    return (struct lane){.state = LANE_PROMPT,
                         .group = group,
                         .reserved = left + 1,
                         .known = left,
                         .alike = left,
                         .arrival = arrival};
}

static struct lane in_flight(struct lane l)
{
    l.posted = l.known;
    l.in_flight = 1;
    return l;
}

/* One in flight whose next token may be fed: it ends at 40 tokens at the latest. */
static struct lane feeding(struct lane l)
{
    l = in_flight(l);
    l.feed_to = 40;
    return l;
}

struct want {
    uint32_t lane, n_rows;
    bool sampled, fed;
};

static void expect(const struct schedule *s, const struct lane *lanes, uint32_t group,
                   const struct want *want, uint32_t n_want)
{
    struct plan_lane rows[LANES];
    struct plan plan = {.lanes = rows};
    bool any = schedule_next(s, lanes, LANES, &plan);
    ck_assert_int_eq(any, n_want > 0);
    if (!any) return;
    ck_assert_uint_eq(plan.group, group);
    ck_assert_uint_eq(plan.n_lanes, n_want);
    uint32_t n_rows = 0;
    for (uint32_t i = 0; i < n_want; i++) {
        ck_assert_uint_eq(rows[i].lane, want[i].lane);
        ck_assert_uint_eq(rows[i].n_rows, want[i].n_rows);
        ck_assert_int_eq(rows[i].sampled, want[i].sampled);
        ck_assert_int_eq(rows[i].fed, want[i].fed);
        n_rows += want[i].n_rows;
    }
    ck_assert_uint_eq(plan.n_rows, n_rows);
}

static const struct schedule two = {.n_groups = 2, .max_rows = 40, .max_lanes = 8, .piece = 32};

START_TEST(nothing_to_do)
{
    struct lane lanes[LANES] = {in_flight(decoding(0)), {.state = LANE_OPENING}};
    lanes[2] = reading(0, 5, 1);
    lanes[2].reserved = 0; /* no cell yet */
    lanes[3] = decoding(1);
    lanes[3].reserved = 10; /* stalls alone */
    expect(&two, lanes, 0, NULL, 0);
}
END_TEST

START_TEST(all_ready_lanes_of_one_group)
{
    struct lane lanes[LANES] = {decoding(0), decoding(1), decoding(0), in_flight(decoding(0))};
    expect(&two, lanes, 0,
           (struct want[]){
               {0, 1, true},
               {2, 1, true}
    },
           2);
    struct schedule s = two;
    s.next_group = 1;
    expect(&s, lanes, 1,
           (struct want[]){
               {1, 1, true}
    },
           1);
    s.flying[1] = 1;
    expect(&s, lanes, 0,
           (struct want[]){
               {0, 1, true},
               {2, 1, true}
    },
           2);
    s.flying[0] = 1;
    expect(&s, lanes, 0, NULL, 0);
}
END_TEST

START_TEST(one_piece_of_the_oldest_prompt)
{
    struct lane lanes[LANES] = {decoding(0), reading(1, 50, 9), reading(1, 50, 7)};
    expect(&two, lanes, 0,
           (struct want[]){
               {0, 1,  true },
               {2, 32, false}
    },
           2);
    lanes[2].posted = 32;
    expect(&two, lanes, 0,
           (struct want[]){
               {0, 1,  true},
               {2, 18, true}
    },
           2);
    lanes[2] = in_flight(lanes[2]);
    expect(&two, lanes, 0,
           (struct want[]){
               {0, 1,  true },
               {1, 32, false}
    },
           2);
}
END_TEST

START_TEST(a_piece_rides_with_any_group)
{
    struct lane lanes[LANES] = {reading(0, 100, 1)};
    struct schedule s = two;
    s.flying[0] = 1;
    expect(&s, lanes, 1,
           (struct want[]){
               {0, 32, false}
    },
           1);
}
END_TEST

START_TEST(a_piece_is_bounded)
{
    struct lane lanes[LANES] = {decoding(0), decoding(0), reading(1, 50, 1)};
    struct schedule s = two;
    s.max_rows = 10;
    expect(&s, lanes, 0,
           (struct want[]){
               {0, 1, true },
               {1, 1, true },
               {2, 8, false}
    },
           3);
    lanes[2].reserved = 3; /* by its cells */
    expect(&s, lanes, 0,
           (struct want[]){
               {0, 1, true },
               {1, 1, true },
               {2, 3, false}
    },
           3);
    s.max_lanes = 2;
    expect(&s, lanes, 0,
           (struct want[]){
               {0, 1, true},
               {1, 1, true}
    },
           2);
    s.max_lanes = 8;
    s.max_rows = 2;
    expect(&s, lanes, 0,
           (struct want[]){
               {0, 1, true},
               {1, 1, true}
    },
           2);
}
END_TEST

START_TEST(a_piece_ends_where_the_kind_changes)
{
    struct lane lanes[LANES] = {reading(0, 50, 1), decoding(0)};
    lanes[0].alike = 12;
    expect(&two, lanes, 0,
           (struct want[]){
               {1, 1,  true },
               {0, 12, false}
    },
           2);
    lanes[0].posted = 12;
    lanes[0].alike = 49; /* the last one is of another kind again */
    expect(&two, lanes, 0,
           (struct want[]){
               {1, 1,  true },
               {0, 32, false}
    },
           2);
    lanes[0].posted = 44;
    expect(&two, lanes, 0,
           (struct want[]){
               {1, 1, true },
               {0, 5, false}
    },
           2);
    lanes[0].posted = 49;
    lanes[0].alike = 50;
    expect(&two, lanes, 0,
           (struct want[]){
               {1, 1, true},
               {0, 1, true}
    },
           2);
}
END_TEST

START_TEST(one_token_left_of_a_prompt_is_a_piece)
{
    struct lane lanes[LANES] = {reading(0, 1, 1)};
    expect(&two, lanes, 0,
           (struct want[]){
               {0, 1, true}
    },
           1);
}
END_TEST

START_TEST(lanes_in_flight_are_fed)
{
    struct lane lanes[LANES] = {feeding(decoding(0)), in_flight(decoding(0)), decoding(0),
                                feeding(decoding(1))};
    struct schedule s = two;
    s.flying[0] = s.flying[1] = 1;
    /* The one that needs the head is not waited for; one that is ready meets those that are fed. */
    expect(&s, lanes, 0,
           (struct want[]){
               {0, 1, true, true },
               {2, 1, true, false}
    },
           2);
    s.flying[0] = 2; /* no third one */
    expect(&s, lanes, 1,
           (struct want[]){
               {3, 1, true, true}
    },
           1);
    lanes[3].posted++; /* fed already */
    lanes[3].in_flight++;
    expect(&s, lanes, 1, NULL, 0);
}
END_TEST

START_TEST(nobody_is_fed_past_its_end_or_room)
{
    struct schedule s = two;
    s.flying[0] = 1;
    struct lane lanes[LANES] = {feeding(decoding(0))};
    lanes[0].feed_to = lanes[0].known + 2; /* the token after the next is its last */
    expect(&s, lanes, 0,
           (struct want[]){
               {0, 1, true, true}
    },
           1);
    lanes[0].feed_to = lanes[0].known + 1; /* the next is its last: no window needs that one */
    expect(&s, lanes, 0, NULL, 0);
    lanes[0] = feeding(decoding(0));
    lanes[0].reserved = lanes[0].posted;
    expect(&s, lanes, 0, NULL, 0);
    lanes[0].reserved++;
    lanes[0].hold = true;
    expect(&s, lanes, 0, NULL, 0);
}
END_TEST

START_TEST(nothing_gets_ahead_without_a_fed_row)
{
    struct schedule s = two;
    s.flying[0] = s.flying[1] = 1;
    struct lane lanes[LANES] = {in_flight(decoding(0)), decoding(0)};
    expect(&s, lanes, 0, NULL, 0);
}
END_TEST

START_TEST(nothing_gets_ahead_while_a_prompt_is_read)
{
    struct schedule s = two;
    struct lane lanes[LANES] = {feeding(decoding(0)), reading(1, 50, 1)};
    s.flying[0] = s.flying[1] = 1;
    expect(&s, lanes, 0, NULL, 0);
    s.flying[0] = 0; /* its window is one of another group: fed beside the piece */
    expect(&s, lanes, 0,
           (struct want[]){
               {0, 1,  true,  true },
               {1, 32, false, false}
    },
           2);
    s.flying[0] = 1;
    lanes[1] = feeding(lanes[1]); /* read to its end, in flight: its first token is fed */
    lanes[1].feed_to = lanes[1].reserved = 60;
    expect(&s, lanes, 0,
           (struct want[]){
               {0, 1, true, true}
    },
           1);
    s.next_group = 1;
    expect(&s, lanes, 1,
           (struct want[]){
               {1, 1, true, true}
    },
           1);
}
END_TEST

START_TEST(a_group_without_a_window_goes_first)
{
    struct lane lanes[LANES] = {feeding(decoding(0)), decoding(1)};
    struct schedule s = two;
    s.flying[0] = 1;
    expect(&s, lanes, 1,
           (struct want[]){
               {1, 1, true, false}
    },
           1);
}
END_TEST

START_TEST(groups_stay_even)
{
    struct lane lanes[LANES];
    for (uint32_t i = 0; i < LANES; i++)
        lanes[i] = decoding(0);
    lanes[7].state = LANE_FREE;
    ck_assert_uint_eq(schedule_group(lanes, LANES, 2), 1);
    schedule_balance(lanes, LANES, 2);
    uint32_t count[2] = {0, 0};
    for (uint32_t i = 0; i < 7; i++)
        count[lanes[i].group]++;
    ck_assert_uint_eq(max_u32(count[0], count[1]), 4);

    for (uint32_t i = 0; i < 7; i++)
        lanes[i] = in_flight(decoding(1)); /* what is in flight stays where it is */
    schedule_balance(lanes, LANES, 2);
    uint32_t n_held = 0;
    for (uint32_t i = 0; i < 7; i++) {
        ck_assert_uint_eq(lanes[i].group, 1);
        n_held += lanes[i].hold;
    }
    ck_assert_uint_eq(n_held,
                      3); /* but three are not fed, so that they can move: 3 and 4 are even */
    for (uint32_t i = 0; i < 7; i++)
        if (lanes[i].hold) lanes[i] = decoding(1);
    schedule_balance(lanes, LANES, 2);
    for (uint32_t i = 0; i < 7; i++) {
        ck_assert_uint_eq(lanes[i].group, lanes[i].in_flight ? 1 : 0);
        ck_assert(!lanes[i].hold);
    }
}
END_TEST

/* ---- the simulation ---- */

struct sim {
    struct lane lanes[LANES];
    uint32_t left[LANES]; /* tokens still to be made */
    struct schedule s;
    struct sim_window {
        struct plan plan;
        struct plan_lane rows[LANES];
        uint64_t serial[LANES];
    } flight[SCHEDULE_FLYING_MAX * POOL_STAGES_MAX];
    uint32_t n_flight, n_fed;
};

static void sim_post(struct sim *m)
{
    for (;;) {
        struct sim_window w = {0};
        w.plan.lanes = w.rows;
        if (!schedule_next(&m->s, m->lanes, LANES, &w.plan)) return;
        ck_assert_uint_lt(m->n_flight, SCHEDULE_FLYING_MAX * m->s.n_groups);
        uint32_t *flying = &m->s.flying[w.plan.group];
        ck_assert_uint_lt(*flying, SCHEDULE_FLYING_MAX);
        ck_assert_uint_le(w.plan.n_rows, m->s.max_rows);
        uint32_t pieces = 0, fed = 0;
        for (uint32_t i = 0; i < w.plan.n_lanes; i++) {
            struct lane *l = &m->lanes[w.rows[i].lane];
            ck_assert_uint_ge(w.rows[i].n_rows, 1);
            ck_assert_uint_le(l->posted + w.rows[i].n_rows, l->reserved);
            ck_assert_uint_le(l->posted + w.rows[i].n_rows, l->known + w.rows[i].fed);
            fed += w.rows[i].fed;
            if (l->state == LANE_DECODE) ck_assert_uint_eq(l->group, w.plan.group);
            if (l->state == LANE_DECODE) ck_assert_uint_eq(l->in_flight, w.rows[i].fed);
            if (w.rows[i].fed) ck_assert_uint_lt(l->known + 1, l->feed_to);
            bool piece = l->state == LANE_PROMPT && !w.rows[i].fed;
            if (piece) ck_assert_uint_le(l->posted + w.rows[i].n_rows, l->alike);
            pieces += piece;
            if (piece) ck_assert_uint_eq(i + 1, w.plan.n_lanes);
            w.serial[i] = l->serial;
            l->posted += w.rows[i].n_rows;
            if (l->posted >= l->alike) l->alike = min_u32(l->alike + 9, l->known);
            l->in_flight++;
        }
        ck_assert_uint_le(pieces, 1);
        if (*flying) ck_assert(fed && !pieces);
        m->n_fed += fed;
        ++*flying;
        m->s.next_group = w.plan.group + 1;
        m->flight[m->n_flight++] = w;
    }
}

/* The oldest window comes back. */
static void sim_return(struct sim *m)
{
    struct sim_window w = m->flight[0];
    m->n_flight--;
    memmove(m->flight, m->flight + 1, m->n_flight * sizeof(w));
    m->s.flying[w.plan.group]--;
    for (uint32_t i = 0; i < w.plan.n_lanes; i++) {
        struct lane *l = &m->lanes[w.rows[i].lane];
        if (l->serial != w.serial[i]) continue; /* it ended a window before */
        l->in_flight--;
        l->done += w.rows[i].n_rows;
        if (!w.rows[i].sampled) continue;
        if (l->state == LANE_PROMPT) ck_assert_int_eq(lane_move(l, LANE_READ), 0);
        l->known++;
        l->reserved = max_u32(l->reserved, l->known + 1);
        if (--m->left[w.rows[i].lane]) continue;
        ck_assert_int_eq(lane_move(l, LANE_END), 0);
        *l = (struct lane){.serial = l->serial + 1};
    }
}

/* _i: stages 1 to 4, without and with feeding. Seven lanes decode at different lengths while long
 * prompts are read. Every third needs the head for each of its tokens; of the others half end where
 * they said, half before, by a token that ends the answer. */
START_TEST(everybody_ends_and_the_rules_hold)
{
    struct sim m = {
        .s = {.n_groups = (uint32_t)(_i / 2), .max_rows = 20, .max_lanes = 8, .piece = 12}
    };
    for (uint32_t i = 0; i < LANES; i++) {
        m.lanes[i] = reading(0, i == 0 ? 200 : 3 + 5 * i, i == 0 ? 4 : i);
        m.lanes[i].alike = 3; /* then another kind, and again every 9 tokens */
        m.lanes[i].group = schedule_group(m.lanes, i, m.s.n_groups);
        m.left[i] = 10 + 7 * i;
        if (_i % 2 && i % 3) m.lanes[i].feed_to = m.lanes[i].known + m.left[i] + i % 2 * 10;
    }
    uint32_t steps = 0;
    for (bool busy = true; busy; steps++) {
        schedule_balance(m.lanes, LANES, m.s.n_groups);
        sim_post(&m);
        uint32_t active = 0;
        for (uint32_t i = 0; i < LANES; i++)
            active += lane_is_active(&m.lanes[i]);
        /* Never idle, and as many windows in flight as stages while there are lanes for them. */
        if (active) ck_assert_uint_ge(m.n_flight, 1);
        if (active >= m.s.n_groups) ck_assert_uint_ge(m.n_flight, m.s.n_groups);
        if (m.n_flight) sim_return(&m);
        busy = active > 0;
        ck_assert_uint_lt(steps, 2000);
    }
    for (uint32_t i = 0; i < LANES; i++)
        ck_assert_uint_eq(m.left[i], 0);
    ck_assert_int_eq(m.n_fed > 0, _i % 2);
}
END_TEST

int main(void)
{
    TCase *tc = tcase_create("schedule");
    tcase_add_test(tc, nothing_to_do);
    tcase_add_test(tc, all_ready_lanes_of_one_group);
    tcase_add_test(tc, one_piece_of_the_oldest_prompt);
    tcase_add_test(tc, a_piece_rides_with_any_group);
    tcase_add_test(tc, a_piece_is_bounded);
    tcase_add_test(tc, a_piece_ends_where_the_kind_changes);
    tcase_add_test(tc, one_token_left_of_a_prompt_is_a_piece);
    tcase_add_test(tc, lanes_in_flight_are_fed);
    tcase_add_test(tc, nobody_is_fed_past_its_end_or_room);
    tcase_add_test(tc, nothing_gets_ahead_without_a_fed_row);
    tcase_add_test(tc, nothing_gets_ahead_while_a_prompt_is_read);
    tcase_add_test(tc, a_group_without_a_window_goes_first);
    tcase_add_test(tc, groups_stay_even);
    tcase_add_loop_test(tc, everybody_ends_and_the_rules_hold, 2, 10);
    return suite_run("schedule", tc);
}
