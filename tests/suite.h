/* SPDX-License-Identifier: MIT */
#ifndef TESTS_SUITE_H
#define TESTS_SUITE_H
/* The end of every main of a libcheck program. */
#include <check.h>
#include <stdlib.h>

/* Runs a suite of one case; what main returns. CK_VERBOSITY decides what is printed. */
static inline int suite_run(const char *name, TCase *tests)
{
    Suite *suite = suite_create(name);
    suite_add_tcase(suite, tests);
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_ENV);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}

#endif
