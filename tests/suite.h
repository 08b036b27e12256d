/* SPDX-License-Identifier: MIT */
#ifndef TESTS_SUITE_H
#define TESTS_SUITE_H
/* The end of every main of a libcheck program. */
#include <check.h>
#include <stdbool.h>
#include <stdlib.h>

/* Runs a suite of n cases; what main returns. CK_VERBOSITY decides what is printed. stays: all of
 * it in this process, since a device is lost by a fork. */
static inline int suite_run_cases(const char *name, TCase *const *cases, size_t n, bool stays)
{
    Suite *suite = suite_create(name);
    for (size_t i = 0; i < n; i++)
        suite_add_tcase(suite, cases[i]);
    SRunner *runner = srunner_create(suite);
    if (stays) srunner_set_fork_status(runner, CK_NOFORK);
    srunner_run_all(runner, CK_ENV);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}

/* Of one case, a process a test. */
static inline int suite_run(const char *name, TCase *tests)
{
    return suite_run_cases(name, &tests, 1, false);
}

#endif
