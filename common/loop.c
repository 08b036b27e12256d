/* SPDX-License-Identifier: MIT */
/*
 * The event loop: epoll, timerfd, signalfd. Owned by a daemon's main thread. A removed source stays
 * allocated until the round ends, since its event may be waiting in the same round.
 */
#include "common/loop.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdbool.h>
#include <sys/epoll.h>
#include <sys/signalfd.h>
#include <sys/timerfd.h>
#include <time.h>

#include "common/base.h"

enum { EVENTS_A_ROUND = 64 };

enum source_kind { SOURCE_FD, SOURCE_TIMER, SOURCE_SIGNALS, SOURCE_AFTER };

struct loop_source {
    struct loop *loop;
    struct loop_source *next, *prev; /* in loop->sources or loop->dead */
    enum source_kind kind;
    int fd; /* the caller's for SOURCE_FD, ours for timers and signals */
    bool dead;
    uint64_t round; /* of a SOURCE_AFTER: the last round that called it */
    union {
        loop_fd_fn on_fd;
        loop_after_fn on_after;
        loop_timer_fn on_timer;
        loop_signal_fn on_signal;
    };
    void *arg;
};

struct loop {
    int epoll;
    bool stop;
    int result;
    uint64_t round;
    struct loop_source *sources, *afters, *dead;
};

uint64_t now_us(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000 + (uint64_t)t.tv_nsec / 1000;
}

int loop_new(struct loop **ret)
{
    struct loop *l = xnew(struct loop);
    l->epoll = epoll_create1(EPOLL_CLOEXEC);
    if (l->epoll < 0) {
        int r = -errno;
        free(l);
        return r;
    }
    *ret = l;
    return 0;
}

static void source_unlink(struct loop_source **list, struct loop_source *s)
{
    if (s->prev)
        s->prev->next = s->next;
    else
        *list = s->next;
    if (s->next) s->next->prev = s->prev;
    s->next = s->prev = NULL;
}

static void source_link(struct loop_source **list, struct loop_source *s)
{
    s->prev = NULL;
    s->next = *list;
    if (*list) (*list)->prev = s;
    *list = s;
}

static void bury(struct loop *l)
{
    while (l->dead) {
        struct loop_source *s = l->dead;
        source_unlink(&l->dead, s);
        free(s);
    }
}

void loop_free(struct loop *l)
{
    if (!l) return;
    while (l->sources)
        loop_remove(l->sources);
    while (l->afters)
        loop_remove(l->afters);
    bury(l);
    (void)close(l->epoll);
    free(l);
}

static struct loop_source **list_of(struct loop *l, enum source_kind kind)
{
    return kind == SOURCE_AFTER ? &l->afters : &l->sources;
}

static struct loop_source *source_new(struct loop *l, enum source_kind kind, int fd, void *arg)
{
    struct loop_source *s = xnew(struct loop_source);
    *s = (struct loop_source){.loop = l, .kind = kind, .fd = fd, .arg = arg};
    source_link(list_of(l, kind), s);
    return s;
}

static int source_watch(struct loop_source *s, uint32_t events)
{
    struct epoll_event e = {.events = events, .data.ptr = s};
    if (epoll_ctl(s->loop->epoll, EPOLL_CTL_ADD, s->fd, &e) == 0) return 0;
    int r = -errno;
    source_unlink(&s->loop->sources, s);
    free(s);
    return r;
}

int loop_add_fd(struct loop *l, int fd, uint32_t events, loop_fd_fn fn, void *arg,
                struct loop_source **ret)
{
    struct loop_source *s = source_new(l, SOURCE_FD, fd, arg);
    s->on_fd = fn;
    int r = source_watch(s, events);
    if (r < 0) return r;
    *ret = s;
    return 0;
}

int loop_add_timer(struct loop *l, loop_timer_fn fn, void *arg, struct loop_source **ret)
{
    int fd = timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK);
    if (fd < 0) return -errno;
    struct loop_source *s = source_new(l, SOURCE_TIMER, fd, arg);
    s->on_timer = fn;
    int r = source_watch(s, EPOLLIN);
    if (r < 0) {
        (void)close(fd);
        return r;
    }
    *ret = s;
    return 0;
}

static struct timespec timespec_of(uint64_t us)
{
    return (struct timespec){.tv_sec = (time_t)(us / 1000000),
                             .tv_nsec = (long)(us % 1000000) * 1000};
}

int loop_set_timer(struct loop_source *s, uint64_t after_us, uint64_t every_us)
{
    struct itimerspec t = {.it_value = timespec_of(after_us), .it_interval = timespec_of(every_us)};
    return timerfd_settime(s->fd, 0, &t, NULL) < 0 ? -errno : 0;
}

int loop_add_signals(struct loop *l, const int *signals, int n, loop_signal_fn fn, void *arg,
                     struct loop_source **ret)
{
    sigset_t set;
    sigemptyset(&set);
    for (int i = 0; i < n; i++)
        sigaddset(&set, signals[i]);
    int r = -pthread_sigmask(SIG_BLOCK, &set, NULL);
    if (r < 0) return r;
    int fd = signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK);
    if (fd < 0) return -errno;
    struct loop_source *s = source_new(l, SOURCE_SIGNALS, fd, arg);
    s->on_signal = fn;
    r = source_watch(s, EPOLLIN);
    if (r < 0) {
        (void)close(fd);
        return r;
    }
    *ret = s;
    return 0;
}

int loop_add_after(struct loop *l, loop_after_fn fn, void *arg, struct loop_source **ret)
{
    struct loop_source *s = source_new(l, SOURCE_AFTER, -1, arg);
    s->on_after = fn;
    *ret = s;
    return 0;
}

void loop_remove(struct loop_source *s)
{
    if (!s || s->dead) return;
    if (s->fd >= 0) (void)epoll_ctl(s->loop->epoll, EPOLL_CTL_DEL, s->fd, NULL);
    if (s->kind != SOURCE_FD && s->fd >= 0) (void)close(s->fd);
    s->dead = true;
    source_unlink(list_of(s->loop, s->kind), s);
    source_link(&s->loop->dead, s);
}

static void source_call(struct loop_source *s, uint32_t events)
{
    uint64_t expired;
    struct signalfd_siginfo info;
    switch (s->kind) {
    case SOURCE_FD:
        s->on_fd(s->arg, events);
        break;
    case SOURCE_TIMER:
        if (read(s->fd, &expired, sizeof(expired)) == sizeof(expired)) s->on_timer(s->arg);
        break;
    case SOURCE_SIGNALS:
        while (!s->dead && read(s->fd, &info, sizeof(info)) == sizeof(info))
            s->on_signal(s->arg, (int)info.ssi_signo);
        break;
    case SOURCE_AFTER:
        break; /* call_after's */
    }
}

/* A handler may remove any source, so the walk begins anew after each call. */
static bool call_after(struct loop *l)
{
    bool again = false;
    l->round++;
    for (struct loop_source *s = l->afters; s;) {
        if (s->round == l->round) {
            s = s->next;
            continue;
        }
        s->round = l->round;
        again |= s->on_after(s->arg);
        s = l->afters;
    }
    return again;
}

int loop_run(struct loop *l)
{
    struct epoll_event events[EVENTS_A_ROUND];
    l->stop = false;
    while (!l->stop) {
        bool again = call_after(l);
        if (l->stop) break;
        int n = epoll_wait(l->epoll, events, EVENTS_A_ROUND, again ? 0 : -1);
        if (n < 0 && errno != EINTR) return -errno;
        for (int i = 0; i < n && !l->stop; i++) {
            struct loop_source *s = events[i].data.ptr;
            if (!s->dead) source_call(s, events[i].events);
        }
        bury(l);
    }
    return l->result;
}

void loop_stop(struct loop *l, int result)
{
    l->stop = true;
    l->result = result;
}
