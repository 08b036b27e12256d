/* SPDX-License-Identifier: MIT */
/*
 * The device thread of a worker (stage.h). The order of its stores is the heart of it:
 *
 *     K/V in the arena -> the rows' words in the page -> page.drained -> results, the next bell
 *
 * each with release. Dead after the K/V: the words say less than there is, it is computed again.
 * Dead after the words: they are true, what they say is whole. Dead after drained: the window's
 * effects are all in the pool, and no later stage has seen it; the life ends with this process.
 */
#include "workerd/stage.h"

#include <errno.h>
#include <inttypes.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <time.h>

#include "common/death.h"
#include "common/log.h"
#include "workerd/hand.h"
#include "workerd/peer.h"
#include "workerd/trace.h"

enum {
    /* ARCHITECTURE.md, Decisions. */
    SPIN_US = 20, /* at a bell, and only with cores of our own */
    COMING_US =
        10000, /* a device's window that is on its way; one that takes longer is late anyway */
    LOOK_US = 20000, /* an order is noticed within this time while no bell rings */
};

struct stage {
    /* Set before the thread starts. */
    struct stage_setup setup;
    pthread_t thread;
    int order_fd, news_fd; /* eventfds: to the device thread, to the loop */
    struct loop_source *news;

    /* Between the threads, atomic. */
    struct stage_order *order; /* given, not yet taken */
    char *way;                 /* told, not yet taken */
    int progress;
    uint64_t steps;
    struct model *model; /* stored when loaded; what it points to is the device thread's */

    /* The device thread's. */
    struct stage_order *serving; /* NULL: no life */
    struct trace *trace;
    struct peer peer;
    uint32_t done, started; /* windows of this life: published, and given to the device */
    bool prepared;          /* the one after started is, and waits for what it begins with */
    struct hand hand[2];    /* of window n: hand[n % 2] */
    uint64_t busy_since;    /* when the device last went on to another window, or began */
    uint64_t ready_us;      /* when the last window was prepared, or done */
};

/* The device thread's faults are the process's end. */
__attribute__((noreturn)) static void stage_fail(const struct why *why)
{
    log_error("%s; this worker ends", why->text);
    _exit(1);
}

static uint32_t spin_us(const struct stage *s) { return s->setup.want.may_spin ? SPIN_US : 0; }

static void order_free(struct stage_order *o)
{
    if (!o) return;
    link_unref(o->link);
    pool_map_unref(o->pool);
    closep(&o->ring);
    free(o);
}

/* ---- one window ---- */

/* What the window did is complete: says so, in the order that the head of this file gives. */
static void window_publish(struct stage *s, const struct hand *h)
{
    const struct link *l = s->serving->link;
    struct pool_page *page = s->serving->pool->page;
    for (uint32_t i = 0; i < h->window.n_lanes; i++) {
        const struct link_lane *from = &h->copy.lanes[i];
        shm_store_u64(&page->word[from->row], pool_word(from->lease, from->pos + from->n_rows));
    }
    shm_store_u64(&page->drained, pool_window(l->h.life, h->count));
    peer_say(&s->peer, l, h->count, &h->window);
    bool last = s->setup.stage + 1 == l->h.n_stages;
    for (uint32_t i = 0; last && i < h->window.n_lanes; i++)
        link_results(l, h->count)[i] = h->lanes[i].token;
    bell_ring(link_bell(l, s->setup.stage + 1), h->count);
    /* A full counter wakes the head as well as one more would. */
    if (last && s->serving->ring >= 0) (void)!eventfd_write(s->serving->ring, 1);
}

/* Forks in this window: the beginning of the partly common chunk, before anything reads it. */
static void window_copy(struct stage *s, const struct hand *h)
{
    for (uint32_t i = 0; i < h->window.n_lanes; i++) {
        const struct link_lane *from = &h->copy.lanes[i];
        if (!from->copy_cells) continue;
        uint32_t at = (from->pos - from->copy_cells) / s->serving->pool->chunk_cells;
        model_copy_cells(s->model, from->copy_chunk, pool_entry_chunk(h->lanes[i].table[at]),
                         from->copy_cells);
    }
}

static uint32_t result_of(const struct stage *s, uint32_t count, uint32_t lane)
{
    uint32_t token = link_results(s->serving->link, count)[lane];
    if (token < model_facts(s->model)->n_vocab) return token;
    struct why why = {0};
    (void)why_set(&why, 0, "window %u of life %u sampled token %u, which the vocabulary lacks",
                  count, s->serving->life, token);
    stage_fail(&why);
}

/* Where stage 0 finds the tokens that earlier windows sample: on its device, when it is alone and
 * has that window, else in the results, by the time this one is launched. */
static void tokens_mark(const struct stage *s, struct hand *h)
{
    bool alone = s->setup.n_stages == 1;
    for (uint32_t i = 0; s->setup.stage == 0 && i < h->window.n_lanes; i++) {
        const struct link_lane *from = &h->copy.lanes[i];
        bool computed = h->count - from->fed_back == s->started && s->started != s->done;
        if (!from->fed_back) continue;
        if (alone && computed)
            h->lanes[i].fed_from = from->fed_lane + 1;
        else
            h->lanes[i].late = true;
    }
}

static void tokens_fill(const struct stage *s, struct hand *h)
{
    for (uint32_t i = 0; i < h->window.n_lanes; i++) {
        const struct link_lane *from = &h->copy.lanes[i];
        if (!h->lanes[i].late) continue;
        h->copy.tokens[h->lanes[i].first_row] =
            result_of(s, h->count - from->fed_back, from->fed_lane);
    }
}

/* Whether there is one to run when the window in hand is done: posted, and its tokens known by
 * then. */
static bool next_is_there(const struct stage *s, uint32_t count)
{
    const struct link *l = s->serving->link;
    if (bell_count(link_bell(l, s->setup.stage)) == count) return false;
    if (s->setup.stage > 0 || l->h.n_stages == 1) return true;
    uint32_t back = bell_count(link_bell(l, l->h.n_stages));
    uint32_t n = min_u32(link_slot(l, count + 1)->n_lanes, l->h.max_lanes);
    for (uint32_t i = 0; i < n; i++) {
        uint32_t fed_back = link_lanes(l, count + 1)[i].fed_back;
        if (fed_back && (int32_t)(back - (count + 1 - fed_back)) < 0) return false;
    }
    return true;
}

__attribute__((noreturn)) static void window_fail(const struct stage *s, uint32_t count,
                                                  const char *what, const char *text)
{
    struct why why = {0};
    (void)why_set(&why, 0, "window %u of life %u %s: %s", count, s->serving->life, what, text);
    stage_fail(&why);
}

static void window_take(struct stage *s, struct hand *h)
{
    const struct pool_map *pool = s->serving->pool;
    struct link_limits limits = {pool->n_rows, s->setup.want.context_tokens,
                                 model_facts(s->model)->n_vocab, pool->n_chunks, pool->chunk_cells};
    struct why why = {0};
    h->count = s->started + 1;
    if (link_read(s->serving->link, h->count, &limits, &h->copy, &why) < 0)
        window_fail(s, h->count, "is malformed", why.text);
}

static void window_done(struct stage *s, struct hand *h)
{
    struct pool_page *page = s->serving->pool->page;
    uint64_t now = now_us();
    shm_store_u64(&page->busy_us, page->busy_us + (now - s->busy_since));
    shm_store_u64(&page->windows, page->windows + 1);
    s->busy_since = s->ready_us = now;
    /* Looked at while this window is still in hand, so that the count depends on what was in flight
     * and not on how fast threads wake. */
    if (!next_is_there(s, h->count)) shm_store_u64(&page->bubbles, page->bubbles + 1);
    if (s->trace) trace_window(s->trace, &h->window, h->copy.lanes);
    window_publish(s, h);
    s->done = h->count;
}

static struct hand *next_hand(struct stage *s) { return &s->hand[(s->started + 1) % 2]; }

/* Whether the head has posted the next window: then its slot holds it, for every stage. */
static bool window_is_posted(const struct stage *s)
{
    return (int32_t)(bell_count(link_bell(s->serving->link, 0)) - s->started) > 0;
}

/* Does of the next window what can be done before the stage before, or the last one, is done with
 * what it begins with. False: the window in hand, or its activations, must come first. */
static bool window_prepare(struct stage *s)
{
    bool alone = s->started == s->done;
    struct hand *h = next_hand(s);
    struct why why = {0};
    window_take(s, h);
    if (!peer_knows(&s->peer, s->serving->link, h->count)) return false;
    if (!alone && hand_has_copies(h))
        return false; /* by the host, which may not touch what is being read */
    hand_build(h, s->serving->link, s->serving->pool);
    tokens_mark(s, h);
    h->window.on_logits = s->trace ? trace_logits : NULL;
    h->window.on_logits_arg = s->trace;
    h->window.steps = &s->steps;
    if (peer_ways(&s->peer, s->serving->link, h->count, &h->window, &why) < 0)
        window_fail(s, h->count, "is malformed", why.text);
    window_copy(s, h);
    int r = model_prepare(s->model, &h->window);
    if (r == -EAGAIN && !alone) return false;
    if (r < 0) window_fail(s, h->count, "failed on the device", strerror(-r));
    s->ready_us = now_us();
    DEATH_POINT("window-prepared");
    return true;
}

/* Whether what the prepared window begins with is there. */
static bool window_has_come(struct stage *s)
{
    const struct link *l = s->serving->link;
    const struct hand *h = next_hand(s);
    if ((int32_t)(bell_count(link_bell(l, s->setup.stage)) - h->count) < 0) return false;
    uint32_t back = bell_count(link_bell(l, l->h.n_stages));
    for (uint32_t i = 0; i < h->window.n_lanes; i++)
        if (h->lanes[i].late && (int32_t)(back - (h->count - h->copy.lanes[i].fed_back)) < 0)
            return false;
    return true;
}

/* The stage behind may prepare the window while this one's device computes it. Who is awake has
 * seen it posted; it rings this bell itself, so that the look costs it nothing. */
static void next_wake(const struct stage *s)
{
    const struct link *l = s->serving->link;
    if (s->setup.stage + 1 < l->h.n_stages) bell_wake(link_bell(l, s->setup.stage + 1));
}

/* Gives the prepared window to the device, behind one that is there or alone. It may be done then.
 */
static void window_launch(struct stage *s)
{
    struct hand *h = next_hand(s);
    struct why why = {0};
    if (peer_came(&s->peer, s->serving->link, h->count, &h->window, &why) < 0)
        window_fail(s, h->count, "is malformed", why.text);
    tokens_fill(s, h);
    DEATH_POINT("window-taken");
    if (s->started == s->done) s->busy_since = now_us();
    int r = model_launch(s->model);
    if (r < 0) window_fail(s, h->count, "failed on the device", strerror(-r));
    s->prepared = false;
    s->started = h->count;
    if (r == 0)
        window_done(s, h);
    else
        next_wake(s);
}

/* Waits for the window that the device has had for longest. */
static void window_finish(struct stage *s)
{
    struct hand *h = &s->hand[(s->done + 1) % 2];
    int r = model_finish(s->model);
    if (r < 0) window_fail(s, h->count, "failed on the device", strerror(-r));
    window_done(s, h);
}

/* ---- lives ---- */

static void drained_raise(struct pool_page *page, uint64_t window)
{
    if (page->drained < window) shm_store_u64(&page->drained, window);
}

/* To the loop thread, which looks at it when there is news. */
static void way_tell(struct stage *s, const char *text)
{
    char *way = xcalloc(1, strlen(text) + 1);
    memcpy(way, text, strlen(text));
    free(__atomic_exchange_n(&s->way, way, __ATOMIC_ACQ_REL));
    (void)eventfd_write(s->news_fd, 1);
}

static void way_look(struct stage *s)
{
    struct why why = {0};
    int r = peer_look(&s->peer, s->model, s->serving->link, &why);
    if (r < 0) stage_fail(&why);
    if (r == 0) return;
    log_info("activations to stage %u: %s", s->setup.stage + 1, s->peer.text);
    way_tell(s, s->peer.text);
}

/* Lets go of the life that was served and takes up the order's. False: the thread is to end. */
static bool order_adopt(struct stage *s, struct stage_order *o)
{
    while (s->started != s->done)
        window_finish(s);
    if (s->prepared) model_drop(s->model);
    s->prepared = false;
    struct stage_order *old = TAKE(s->serving);
    if (old) {
        peer_end(&s->peer, s->model);
        way_tell(s, "");
        log_info("life %u is over after %u windows", old->life, s->done);
        drained_raise(old->pool->page, pool_window(old->life, POOL_WINDOW_ALL));
    }
    order_free(old);
    bool stop = o->stop;
    if (o->link) {
        struct why why = {0};
        if (model_use_arena(s->model, o->pool->arena, &why) < 0) stage_fail(&why);
        for (size_t i = 0; i < ARRAY_LEN(s->hand); i++)
            hand_size(&s->hand[i], &s->setup.want, o->pool->table_entries);
        s->done = s->started = 0;
        peer_begin(&s->peer, s->model, o->link);
        /* Nothing of an older life is in hand any more: that is what this number says. */
        drained_raise(o->pool->page, pool_window(o->life, 0));
        s->serving = TAKE(o);
        (void)eventfd_write(s->news_fd, 1);
    } else if (o->pool) {
        drained_raise(o->pool->page, pool_window(o->life, POOL_WINDOW_ALL));
    }
    order_free(o);
    return !stop;
}

static struct stage_order *order_take(struct stage *s)
{
    if (!__atomic_load_n(&s->order, __ATOMIC_RELAXED)) return NULL;
    return __atomic_exchange_n(&s->order, NULL, __ATOMIC_ACQ_REL);
}

static void order_wait(struct stage *s)
{
    struct pollfd p = {.fd = s->order_fd, .events = POLLIN};
    (void)poll(&p, 1, -1);
    eventfd_t n;
    (void)eventfd_read(s->order_fd, &n);
}

/* The device has nothing: sleeps until the next window, or the tokens that it begins with, may have
 * come. A device's window that is prepared is on its way: with little left to do when it comes, the
 * futex's wake would be a good part of that. */
static void window_wait(struct stage *s)
{
    const struct link *l = s->serving->link;
    struct link_bell *own = link_bell(l, s->setup.stage);
    bool fed = s->prepared && (int32_t)(bell_count(own) - next_hand(s)->count) >= 0;
    struct link_bell *bell = fed ? link_bell(l, l->h.n_stages) : own;
    uint32_t seen = bell_count(bell);
    if (s->prepared ? window_has_come(s) : seen != s->started) return;
    if (s->prepared && model_on_device(s->model) && now_us() - s->ready_us < COMING_US) {
        (void)sched_yield();
        return;
    }
    (void)bell_wait(bell, seen, spin_us(s), LOOK_US);
    /* Who waits for another's work goes on, as far as poold is concerned. */
    if (fed) (void)__atomic_add_fetch(&s->steps, 1, __ATOMIC_RELAXED);
}

/* The device is given the next window while it has one, if that has come by then: so it goes on
 * from one to the other by itself. Its end is seen by no futex, so both are looked for in turn; a
 * driver's own wait spins no less. */
static void serve(struct stage *s)
{
    way_look(s);
    bool room = !s->prepared && s->started - s->done < ARRAY_LEN(s->hand);
    bool stays = room && window_is_posted(s) && !(s->prepared = window_prepare(s));
    if (s->prepared && window_has_come(s))
        window_launch(s);
    else if (s->started == s->done)
        window_wait(s);
    else if (stays || model_is_done(s->model))
        window_finish(s);
    else
        (void)sched_yield();
}

/* ---- the thread ---- */

static void on_progress(void *arg, int percent)
{
    struct stage *s = arg;
    __atomic_store_n(&s->progress, percent, __ATOMIC_RELAXED);
}

static void stage_load(struct stage *s)
{
    struct why why = {0};
    struct model *model = NULL;
    if (model_load(s->setup.gguf, &s->setup.want, on_progress, s, &why, &model) < 0)
        stage_fail(&why);
    if (s->setup.trace && trace_new(s->setup.trace, s->setup.want.max_rows, &why, &s->trace) < 0)
        stage_fail(&why);
    __atomic_store_n(&s->model, model, __ATOMIC_RELEASE);
    (void)eventfd_write(s->news_fd, 1);
}

static void *device_thread(void *arg)
{
    struct stage *s = arg;
    (void)pthread_setname_np(pthread_self(), "device");
    stage_load(s);
    for (bool on = true; on;) {
        struct stage_order *o = order_take(s);
        if (o)
            on = order_adopt(s, o);
        else if (s->serving)
            serve(s);
        else
            order_wait(s);
    }
    return NULL;
}

/* ---- the loop thread's side ---- */

static void on_news(void *arg, uint32_t events)
{
    (void)events;
    struct stage *s = arg;
    eventfd_t n;
    (void)eventfd_read(s->news_fd, &n);
    s->setup.news(s->setup.arg);
}

int stage_new(struct loop *l, const struct stage_setup *setup, struct why *why, struct stage **ret)
{
    struct stage *s = xnew(struct stage);
    s->setup = *setup;
    s->peer = (struct peer){
        .stage = setup->stage,
        .n_stages = setup->n_stages,
        .mode = setup->peer,
        .device = setup->want.device,
    };
    s->order_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    s->news_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    int r = s->order_fd < 0 || s->news_fd < 0 ? -errno : 0;
    if (r == 0) r = loop_add_fd(l, s->news_fd, EPOLLIN, on_news, s, &s->news);
    if (r == 0) r = -pthread_create(&s->thread, NULL, device_thread, s);
    if (r == 0) {
        *ret = s;
        return 0;
    }
    stage_free(s);
    return why_set(why, r, "cannot start the device thread: %s", strerror(-r));
}

void stage_give(struct stage *s, struct stage_order *order)
{
    order_free(__atomic_exchange_n(&s->order, order, __ATOMIC_ACQ_REL));
    (void)eventfd_write(s->order_fd, 1);
}

const struct model_facts *stage_facts(const struct stage *s)
{
    const struct model *m = __atomic_load_n(&s->model, __ATOMIC_ACQUIRE);
    return m ? model_facts(m) : NULL;
}

char *stage_take_way(struct stage *s)
{
    return __atomic_exchange_n(&s->way, NULL, __ATOMIC_ACQ_REL);
}

int stage_progress(const struct stage *s)
{
    return __atomic_load_n(&s->progress, __ATOMIC_RELAXED);
}

uint64_t stage_steps(const struct stage *s) { return __atomic_load_n(&s->steps, __ATOMIC_RELAXED); }

bool stage_stop(struct stage *s, uint32_t timeout_ms)
{
    struct stage_order *o = xnew(struct stage_order);
    *o = (struct stage_order){.ring = -1, .stop = true};
    stage_give(s, o);
    struct timespec t;
    (void)clock_gettime(CLOCK_REALTIME, &t);
    t.tv_sec += timeout_ms / 1000;
    t.tv_nsec += (long)(timeout_ms % 1000) * 1000000;
    if (t.tv_nsec >= 1000000000) t.tv_sec++, t.tv_nsec -= 1000000000;
    return pthread_timedjoin_np(s->thread, NULL, &t) == 0;
}

void stage_free(struct stage *s)
{
    if (!s) return;
    loop_remove(s->news);
    closep(&s->order_fd);
    closep(&s->news_fd);
    order_free(s->order);
    order_free(s->serving);
    model_free(s->model);
    trace_free(s->trace);
    free(s->way);
    for (size_t i = 0; i < ARRAY_LEN(s->hand); i++)
        hand_fini(&s->hand[i]);
    free(s);
}
