/* SPDX-License-Identifier: MIT */
/*
 * Compute threads and the barrier between dependent operations. A wait spins for at most 20 us, and
 * only when the worker has cores of its own (ARCHITECTURE.md, Decisions); else it sleeps on the
 * futex at once, so two workers that share two cores don't burn each other's time.
 */
#include "workerd/cpu/team.h"

#include <assert.h>
#include <errno.h>
#include <limits.h>
#include <linux/futex.h>
#include <pthread.h>
#include <sched.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>

enum {
    MEMBERS_MAX = 256, /* more compute threads than any machine this is for has cores */
    SPIN_NS = 20000,   /* more would take a core from whoever it waits for */
    CACHE_LINE = 64,
};

/* A count that goes up, and how many sleep on it. */
struct step {
    uint32_t count __attribute__((aligned(CACHE_LINE)));
    uint32_t sleepers;
};

struct team {
    uint32_t n;
    bool may_spin, stop;
    uint32_t n_started;
    pthread_t thread[MEMBERS_MAX];
    void (*fn)(void *arg, uint32_t member);
    void *arg;
    struct step work, barrier; /* work: the number of team_run calls */
    uint32_t arrived __attribute__((aligned(CACHE_LINE)));
};

struct member {
    struct team *team;
    uint32_t number;
};

static uint64_t now_ns(void)
{
    struct timespec t;
    (void)clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static void relax(void)
{
#if defined(__x86_64__)
    __builtin_ia32_pause();
#else
    __asm__ volatile("" ::: "memory");
#endif
}

static bool spin_until_past(const struct step *s, uint32_t old)
{
    for (uint64_t end = now_ns() + SPIN_NS; now_ns() < end;)
        for (int i = 0; i < 32; i++) {
            if (__atomic_load_n(&s->count, __ATOMIC_ACQUIRE) != old) return true;
            relax();
        }
    return false;
}

static void step_wait(struct step *s, uint32_t old, bool may_spin)
{
    if (may_spin && spin_until_past(s, old)) return;
    /* The sleeper's count and re-check against the waker's store and look at the sleepers: all four
     * are sequentially consistent, so one of the two sees the other. */
    (void)__atomic_add_fetch(&s->sleepers, 1, __ATOMIC_SEQ_CST);
    while (__atomic_load_n(&s->count, __ATOMIC_SEQ_CST) == old)
        (void)syscall(SYS_futex, &s->count, FUTEX_WAIT_PRIVATE, old, NULL, NULL, 0);
    (void)__atomic_sub_fetch(&s->sleepers, 1, __ATOMIC_SEQ_CST);
}

static void step_raise(struct step *s)
{
    (void)__atomic_add_fetch(&s->count, 1, __ATOMIC_SEQ_CST);
    if (__atomic_load_n(&s->sleepers, __ATOMIC_SEQ_CST) > 0)
        (void)syscall(SYS_futex, &s->count, FUTEX_WAKE_PRIVATE, INT_MAX, NULL, NULL, 0);
}

void team_barrier(struct team *t)
{
    if (t->n == 1) return;
    uint32_t old = __atomic_load_n(&t->barrier.count, __ATOMIC_RELAXED);
    if (__atomic_add_fetch(&t->arrived, 1, __ATOMIC_ACQ_REL) < t->n) {
        step_wait(&t->barrier, old, t->may_spin);
        return;
    }
    __atomic_store_n(&t->arrived, 0, __ATOMIC_RELAXED);
    step_raise(&t->barrier);
}

void team_run(struct team *t, void (*fn)(void *arg, uint32_t member), void *arg)
{
    t->fn = fn;
    t->arg = arg;
    if (t->n > 1) step_raise(&t->work);
    fn(arg, 0);
    team_barrier(t);
}

static void *member_main(void *arg)
{
    CLEANUP(freep) struct member *me = arg;
    struct team *t = me->team;
    for (uint32_t seen = 0;; seen++) {
        step_wait(&t->work, seen, t->may_spin);
        if (t->stop) return NULL;
        t->fn(t->arg, me->number);
        team_barrier(t);
    }
}

/* Reads one "a" or "a-b" of a list. Returns what follows it, or NULL. */
static const char *range_from(const char *at, long *first, long *last)
{
    char *end;
    errno = 0;
    *first = *last = strtol(at, &end, 10);
    if (end == at || errno) return NULL;
    if (*end == '-') {
        at = end + 1;
        *last = strtol(at, &end, 10);
        if (end == at || errno) return NULL;
    }
    if (*first < 0 || *last < *first || *last >= CPU_SETSIZE) return NULL;
    if (*end == ',') return end + 1;
    return *end ? NULL : end;
}

/* The processors of the list, in its order; room for MEMBERS_MAX. */
static int cpus_from(const char *list, struct why *why, int *cpu, uint32_t *ret_n)
{
    uint32_t n = 0;
    for (const char *at = list; n == 0 || *at;) {
        long first, last;
        at = range_from(at, &first, &last);
        if (!at) return why_set(why, -EINVAL, "'%s' is not a list of processors like 0-3,8", list);
        for (long c = first; c <= last && n < MEMBERS_MAX; c++)
            cpu[n++] = (int)c;
    }
    *ret_n = n;
    return 0;
}

static int pin(pthread_t thread, int cpu, struct why *why)
{
    cpu_set_t set;
    CPU_ZERO(&set);
    CPU_SET((size_t)cpu, &set);
    int r = pthread_setaffinity_np(thread, sizeof(set), &set);
    if (r) return why_set(why, -r, "can't use processor %d: %s", cpu, strerror(r));
    return 0;
}

static int start_member(struct team *t, uint32_t number, struct why *why)
{
    CLEANUP(freep) struct member *me = xnew(struct member);
    *me = (struct member){t, number};
    int r = pthread_create(&t->thread[number], NULL, member_main, me);
    if (r) return why_set(why, -r, "can't start compute thread %u: %s", number, strerror(r));
    t->n_started++;
    (void)TAKE(me);
    return 0;
}

int team_new(uint32_t n, const char *cpus, bool may_spin, struct why *why, struct team **ret)
{
    int cpu[MEMBERS_MAX];
    uint32_t n_cpus = 0;
    if (n > MEMBERS_MAX)
        return why_set(why, -EINVAL, "%u compute threads: at most %d", n, MEMBERS_MAX);
    int r = cpus ? cpus_from(cpus, why, cpu, &n_cpus) : 0;
    if (r < 0) return r;
    CLEANUP(team_freep) struct team *t = aligned_alloc(CACHE_LINE, sizeof(struct team));
    if (!t) return why_set(why, -ENOMEM, "no memory for the compute threads");
    memset(t, 0, sizeof(*t));
    t->n = n;
    t->may_spin = may_spin;
    t->thread[0] = pthread_self();
    for (uint32_t i = 0; i < n && r == 0; i++) {
        if (i > 0) r = start_member(t, i, why);
        if (r == 0 && n_cpus) r = pin(t->thread[i], cpu[i % n_cpus], why);
    }
    if (r < 0) return r;
    *ret = TAKE(t);
    return 0;
}

void team_free(struct team *t)
{
    if (!t) return;
    t->stop = true;
    step_raise(&t->work);
    for (uint32_t i = 1; i <= t->n_started; i++)
        (void)pthread_join(t->thread[i], NULL);
    free(t);
}

uint32_t team_size(const struct team *t) { return t->n; }
