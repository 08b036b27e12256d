/* SPDX-License-Identifier: MIT */
/*
 * Lines to stderr. Owns the process's log level and name; called by every module that decides what
 * a failure means. Must not allocate, so that it works when memory is out.
 */
#include "common/log.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

enum { LINE_BYTES = 1024 }; /* longer lines are cut: a line must stay one write */

static const char *log_program = "cistern";
static int log_level = LOG_LEVEL_INFO;
static int log_to_terminal;

void log_init(const char *program, int level)
{
    log_program = program;
    log_level = level;
    log_to_terminal = isatty(STDERR_FILENO);
}

void log_line(int level, const char *format, ...)
{
    if (level > log_level) return;
    char line[LINE_BYTES];
    int n = log_to_terminal ? snprintf(line, sizeof(line), "%s: ", log_program)
                            : snprintf(line, sizeof(line), "<%d>%s: ", level, log_program);
    va_list ap;
    va_start(ap, format);
    int more = vsnprintf(line + n, sizeof(line) - (size_t)n - 1, format, ap);
    va_end(ap);
    if (more < 0) return;
    size_t end = strnlen(line, sizeof(line) - 2);
    for (size_t i = (size_t)n; i < end; i++) /* text from outside must not forge a line */
        if ((unsigned char)line[i] < 0x20) line[i] = ' ';
    line[end] = '\n';
    ssize_t written = write(STDERR_FILENO, line, end + 1);
    (void)written; /* nowhere to report that there is nowhere to report */
}
