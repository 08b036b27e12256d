/* SPDX-License-Identifier: MIT */
#ifndef COMMON_LOG_H
#define COMMON_LOG_H
/*
 * One line an event to stderr, with journald's priority in front ("<4>...") when stderr is not a
 * terminal. Any thread; a line is one write. Whoever decides what a failure means logs it, once.
 */
enum log_level { LOG_LEVEL_ERROR = 3, LOG_LEVEL_WARN = 4, LOG_LEVEL_INFO = 6, LOG_LEVEL_DEBUG = 7 };

/* program: a string that lives as long as the process. Lines above level are dropped. */
void log_init(const char *program, int level);
__attribute__((format(printf, 2, 3))) void log_line(int level, const char *format, ...);

#define log_error(...) log_line(LOG_LEVEL_ERROR, __VA_ARGS__)
#define log_warn(...) log_line(LOG_LEVEL_WARN, __VA_ARGS__)
#define log_info(...) log_line(LOG_LEVEL_INFO, __VA_ARGS__)
#define log_debug(...) log_line(LOG_LEVEL_DEBUG, __VA_ARGS__)

#endif
