/* SPDX-License-Identifier: MIT */
/*
 * A lane's states: every pair of state and event against the life that workerd/lanes.h tells in
 * words, and the edges of when it asks for more cells.
 */
#include <check.h>
#include <errno.h>
#include <stdlib.h>

#include "common/base.h"
#include "tests/suite.h"
#include "workerd/lanes.h"

/* Where each event leads; -1: no lane may get it there. A free lane takes a request. An opening one
 * waits for poold; ended meanwhile, it still does. A granted one reads, then makes tokens. */
static const int leads[LANE_STATES][LANE_EVENTS] = {
    [LANE_FREE] = {[LANE_OPEN] = LANE_OPENING,
                   [LANE_GRANTED] = -1,
                   [LANE_REFUSED] = -1,
                   [LANE_READ] = -1,
                   [LANE_END] = -1            },
    [LANE_OPENING] = {[LANE_OPEN] = -1,
                   [LANE_GRANTED] = LANE_PROMPT,
                   [LANE_REFUSED] = LANE_FREE,
                   [LANE_READ] = -1,
                   [LANE_END] = LANE_ABANDONED},
    [LANE_ABANDONED] = {[LANE_OPEN] = -1,
                   [LANE_GRANTED] = LANE_FREE,
                   [LANE_REFUSED] = LANE_FREE,
                   [LANE_READ] = -1,
                   [LANE_END] = -1            },
    [LANE_PROMPT] = {[LANE_OPEN] = -1,
                   [LANE_GRANTED] = -1,
                   [LANE_REFUSED] = -1,
                   [LANE_READ] = LANE_DECODE,
                   [LANE_END] = LANE_FREE     },
    [LANE_DECODE] = {[LANE_OPEN] = -1,
                   [LANE_GRANTED] = -1,
                   [LANE_REFUSED] = -1,
                   [LANE_READ] = -1,
                   [LANE_END] = LANE_FREE     },
};

START_TEST(every_event_in_every_state)
{
    enum lane_state from = (enum lane_state)(_i / LANE_EVENTS);
    enum lane_event on = (enum lane_event)(_i % LANE_EVENTS);
    struct lane l = {.state = from};
    int to = leads[from][on];
    ck_assert_int_eq(lane_move(&l, on), to < 0 ? -EINVAL : 0);
    ck_assert_int_eq(l.state, to < 0 ? from : (enum lane_state)to);
}
END_TEST

/* ahead 64, unit 256, the request can use 1000 cells. */
static const struct {
    enum lane_state state;
    uint32_t reserved, posted, known;
    bool growing, refused;
    uint32_t to;
} growths[] = {
    {LANE_DECODE,  256,  100, 101, false, false, 0   }, /* enough left */
    {LANE_DECODE,  256,  192, 193, false, false, 0   }, /* just enough: 64 */
    {LANE_DECODE,  256,  193, 194, false, false, 512 },
    {LANE_PROMPT,  256,  256, 300, false, false, 512 },
    {LANE_DECODE,  256,  193, 194, true,  false, 0   }, /* asked already */
    {LANE_DECODE,  256,  193, 194, false, true,  0   }, /* refused: not again before it is dry */
    {LANE_DECODE,  256,  256, 256, false, true,  0   }, /* nothing to put there yet */
    {LANE_DECODE,  256,  256, 257, false, true,  512 }, /* dry: once more */
    {LANE_DECODE,  1000, 999, 999, false, false, 0   }, /* never more than it can use */
    {LANE_DECODE,  768,  760, 761, false, false, 1024},
    {LANE_OPENING, 0,    0,   0,   false, false, 0   },
    {LANE_FREE,    0,    0,   0,   false, false, 0   },
};

START_TEST(asks_ahead_of_need)
{
    struct lane l = {
        .state = growths[_i].state,
        .reserved = growths[_i].reserved,
        .posted = growths[_i].posted,
        .known = growths[_i].known,
        .growing = growths[_i].growing,
        .refused = growths[_i].refused,
    };
    ck_assert_uint_eq(lane_growth(&l, 64, 256, 1000), growths[_i].to);
}
END_TEST

int main(void)
{
    TCase *tc = tcase_create("lanes");
    tcase_add_loop_test(tc, every_event_in_every_state, 0, LANE_STATES * LANE_EVENTS);
    tcase_add_loop_test(tc, asks_ahead_of_need, 0, ARRAY_LEN(growths));
    return suite_run("lanes", tc);
}
