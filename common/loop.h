/* SPDX-License-Identifier: MIT */
#ifndef COMMON_LOOP_H
#define COMMON_LOOP_H
/*
 * The event loop of a daemon: epoll over file descriptors, timers and signals. One thread owns it
 * and everything that its handlers touch; handlers never block. A handler may remove any source,
 * also itself, also one whose event is waiting in the same round: it will not be called.
 */
#include <stdbool.h>
#include <stdint.h>

struct loop;
struct loop_source;

/* events: the EPOLL* bits that happened. */
typedef void (*loop_fd_fn)(void *arg, uint32_t events);
typedef void (*loop_timer_fn)(void *arg);
typedef void (*loop_signal_fn)(void *arg, int signal);
typedef bool (*loop_after_fn)(void *arg);

int loop_new(struct loop **ret);
void loop_free(struct loop *l); /* frees the sources that are left */
static inline void loop_freep(struct loop **l) { loop_free(*l); }

/* The fd stays the caller's; it must be removed before it is closed. */
int loop_add_fd(struct loop *l, int fd, uint32_t events, loop_fd_fn fn, void *arg,
                struct loop_source **ret);
/* A timer, not running until loop_set_timer. */
int loop_add_timer(struct loop *l, loop_timer_fn fn, void *arg, struct loop_source **ret);
/* after_us 0 stops it; every_us 0: once. */
int loop_set_timer(struct loop_source *s, uint64_t after_us, uint64_t every_us);
/* Blocks the signals for the process (call before threads are made) and delivers them here. */
int loop_add_signals(struct loop *l, const int *signals, int n, loop_signal_fn fn, void *arg,
                     struct loop_source **ret);
/* Called before the loop sleeps, after each round of handlers: for sockets whose state only a look
 * tells. True: something was done, or is left to do; all of them are called again before the loop
 * sleeps, since what one does may be news to another that looked before it. */
int loop_add_after(struct loop *l, loop_after_fn fn, void *arg, struct loop_source **ret);
void loop_remove(struct loop_source *s); /* takes NULL */

/* Runs until loop_stop; returns its argument, or a negative errno. */
int loop_run(struct loop *l);
void loop_stop(struct loop *l, int result);

uint64_t now_us(void); /* CLOCK_MONOTONIC */

#endif
