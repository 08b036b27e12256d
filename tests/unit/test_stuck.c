/* SPDX-License-Identifier: MIT */
/*
 * Who is stuck, by what heartbeats tell. What is expected follows from ARCHITECTURE.md (what may
 * die): silence, or windows in flight and a device that does not go on, for as long as the
 * configuration allows; and nothing else, however long it lasts.
 */
#include <check.h>
#include <string.h>

#include "poold/processes.h"
#include "tests/suite.h"

enum { STUCK_US = 1000, START_US = 5000, BEAT_US = 100 };

/* Beats from a time on, each BEAT_US, until the end; then it is judged at the end. */
struct row {
    const char *what;
    uint32_t phase;
    uint64_t done, due;                       /* of all beats */
    uint64_t done_each, due_each, steps_each; /* what each beat adds */
    uint64_t silent_from, end;
    const char *word; /* of the reason; NULL: it is well */
};

static const struct row rows[] = {
    {"idle for long",            2, 7, 7, 0, 0, 0, 9000, 9000, NULL      },
    {"no window ever",           2, 0, 0, 0, 0, 0, 9000, 9000, NULL      },
    {"one window after another", 2, 7, 8, 1, 1, 0, 9000, 9000, NULL      },
    {"more and more to do",      2, 7, 8, 0, 1, 0, 9000, 9000, "device"  },
    {"one window, not done",     2, 7, 8, 0, 0, 0, 9000, 9000, "device"  },
    {"one that takes long",      2, 7, 8, 0, 0, 3, 9000, 9000, NULL      },
    {"not for long enough",      2, 7, 8, 0, 0, 0, 1000, 999,  NULL      },
    {"just long enough",         2, 7, 8, 0, 0, 0, 1001, 1000, "device"  },
    {"silent, and idle",         2, 7, 7, 0, 0, 0, 500,  2000, "stuck_ms"},
    {"silent while it starts",   1, 0, 0, 0, 0, 0, 500,  2000, NULL      },
    {"silent, starts too long",  1, 0, 0, 0, 0, 0, 500,  9000, "start_ms"},
    {"starts, and beats",        1, 0, 0, 0, 0, 0, 9000, 9000, NULL      },
};

START_TEST(stuck_is_who_is_silent_or_does_not_go_on)
{
    const struct row *r = &rows[_i];
    struct process w = {0};
    process_excuse(&w, 0);
    for (uint64_t t = 0, n = 0; t < r->silent_from; t += BEAT_US, n++) {
        const struct process_beat beat = {
            .phase = r->phase,
            .last_window = r->done + n * r->done_each,
            .due_window = r->due + n * r->due_each,
            .steps = n * r->steps_each,
        };
        process_take_beat(&w, &beat, t);
    }
    const char *reason = process_stuck(&w, r->end, STUCK_US, START_US);
    if (r->word)
        ck_assert_msg(reason && strstr(reason, r->word), "%s: %s", r->what, reason);
    else
        ck_assert_msg(!reason, "%s: %s", r->what, reason);
}
END_TEST

START_TEST(an_excuse_starts_all_deadlines_anew)
{
    struct process w = {0};
    const struct process_beat beat = {.phase = PROCESS_SERVING, .last_window = 1, .due_window = 2};
    process_take_beat(&w, &beat, 0);
    ck_assert_ptr_nonnull(process_stuck(&w, STUCK_US, STUCK_US, START_US));
    process_excuse(&w, STUCK_US);
    ck_assert_ptr_null(process_stuck(&w, 2 * STUCK_US - 1, STUCK_US, START_US));
    process_take_beat(&w, &beat, 2 * STUCK_US - 1);
    ck_assert_ptr_null(process_stuck(&w, 2 * STUCK_US, STUCK_US, START_US));
    process_take_beat(&w, &beat, 2 * STUCK_US); /* it beats, and has not gone on since */
    ck_assert_ptr_nonnull(process_stuck(&w, 2 * STUCK_US, STUCK_US, START_US));
}
END_TEST

int main(void)
{
    TCase *t = tcase_create("stuck");
    tcase_add_loop_test(t, stuck_is_who_is_silent_or_does_not_go_on, 0, ARRAY_LEN(rows));
    tcase_add_test(t, an_excuse_starts_all_deadlines_anew);
    return suite_run("stuck", t);
}
