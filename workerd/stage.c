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
    SPIN_US = 20,    /* at a bell, and only with cores of our own (ARCHITECTURE.md, Decisions) */
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
    struct hand hand[2];    /* of window n: hand[n % 2] */
    uint64_t busy_since;    /* when the device last went on to another window, or began */
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

/* Waits until window `from` has its results, or an order is given: a stage that died never has any.
 * Who waits for another's work goes on, as far as poold is concerned. */
static bool results_wait(struct stage *s, uint32_t from)
{
    const struct link *l = s->serving->link;
    struct link_bell *bell = link_bell(l, l->h.n_stages);
    for (uint32_t seen; (int32_t)((seen = bell_count(bell)) - from) < 0;) {
        if (__atomic_load_n(&s->order, __ATOMIC_RELAXED)) return false;
        (void)bell_wait(bell, seen, spin_us(s), LOOK_US);
        (void)__atomic_add_fetch(&s->steps, 1, __ATOMIC_RELAXED);
    }
    return true;
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

/* Stage 0 fills in the tokens that earlier windows sampled; what the device still computes stays
 * there. False: it was interrupted, the window is as good as not taken. */
static bool tokens_feed(struct stage *s, struct hand *h)
{
    uint32_t *token = h->copy.tokens;
    for (uint32_t i = 0; s->setup.stage == 0 && i < h->copy.window.n_lanes; i++) {
        const struct link_lane *lane = &h->copy.lanes[i];
        uint32_t from = h->count - lane->fed_back;
        bool computed = from == s->started && s->started != s->done;
        if (lane->fed_back && !computed) {
            if (!results_wait(s, from)) return false;
            *token = result_of(s, from, lane->fed_lane);
        }
        token += lane->n_rows;
    }
    return true;
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
    s->busy_since = now;
    /* Looked at while this window is still in hand, so that the count depends on what was in flight
     * and not on how fast threads wake. */
    if (!next_is_there(s, h->count)) shm_store_u64(&page->bubbles, page->bubbles + 1);
    if (s->trace) trace_window(s->trace, &h->window, h->copy.lanes);
    window_publish(s, h);
    s->done = h->count;
}

/* Gives the next window to the device, behind one that is there or alone. It may be done then. */
static void window_start(struct stage *s)
{
    bool alone = s->started == s->done;
    struct hand *h = &s->hand[(s->started + 1) % 2];
    window_take(s, h);
    if (!alone && hand_has_copies(h))
        return; /* by the host, which may not touch what is being read */
    if (!tokens_feed(s, h)) return;
    hand_build(h, s->serving->link, s->serving->pool);
    h->window.on_logits = s->trace ? trace_logits : NULL;
    h->window.on_logits_arg = s->trace;
    h->window.steps = &s->steps;
    struct why why = {0};
    if (peer_ways(&s->peer, s->serving->link, h->count, &h->window, &why) < 0)
        window_fail(s, h->count, "is malformed", why.text);
    DEATH_POINT("window-taken");
    if (alone) s->busy_since = now_us();
    window_copy(s, h);
    int r = model_start(s->model, &h->window);
    if (r == -EAGAIN && !alone) return;
    if (r < 0) window_fail(s, h->count, "failed on the device", strerror(-r));
    s->started = h->count;
    if (r == 0) window_done(s, h);
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

/* The device is given the next window while it has one, if that is posted by then: so it goes on
 * from one to the other by itself. Its end is seen by no futex, so both are looked for in turn; a
 * driver's own wait spins no less. */
static void serve(struct stage *s)
{
    way_look(s);
    struct link_bell *bell = link_bell(s->serving->link, s->setup.stage);
    if (s->started == s->done) {
        if (bell_wait(bell, s->started, spin_us(s), LOOK_US)) window_start(s);
        return;
    }
    while (bell_count(bell) == s->started && !model_is_done(s->model))
        (void)sched_yield();
    if (bell_count(bell) != s->started) window_start(s);
    window_finish(s);
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
