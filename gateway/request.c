/* SPDX-License-Identifier: MIT */
/*
 * See request.h. Owns the prompts and the tokens so far. Everything that a head sends is checked
 * here: request, attempt, index and id.
 */
#include "gateway/request.h"

#include <assert.h>
#include <errno.h>
#include <string.h>

#include "common/log.h"

enum {
    BUCKETS = 1024,
    TICK_US = 1000000,
    RETRY_US = 50000,      /* between attempts: a head is back within a second or so */
    LATE_US = 10000000,    /* then headers go out at last: clients give up on silence */
    LEAVING_US = 60000000, /* a head that never confirms a cancel must not hold a place for ever */
};

enum request_state {
    REQUEST_WAITING, /* no pipeline has it */
    REQUEST_SENT,
    REQUEST_LEAVING, /* cancelled; its head still has to say that it is finished */
};

struct request {
    struct requests *of;
    struct request *next, *prev; /* in a bucket */
    uint64_t id, number;         /* number: of the message that submitted it */
    uint32_t attempt;
    enum request_state state;
    struct pipeline *pipeline; /* unless WAITING */
    struct request_ask ask;    /* its prompt is ours */
    uint32_t *prompt, *generated;
    uint32_t n_generated, generated_room;
    bool started, told_late, cancel_unsent;
    uint32_t keep; /* LEAVING: what the cancel says; UINT32_MAX: all */
    uint32_t cached_tokens, resume_row;
    uint32_t to, from; /* moved: the pipeline wanted, and the one left; number + 1, or 0 */
    uint64_t resume_generation, arrival;
    uint64_t since_us, retry_us;
    uint64_t left_us;     /* that it may still spend without a pipeline before it gets on */
    uint64_t deadline_us; /* WAITING: fail then; LEAVING: forget then */
    struct request_events events;
};

struct requests {
    struct requests_options o;
    struct request *bucket[BUCKETS];
    struct request *walk_next; /* where each_request goes on */
    struct loop_source *tick;
    uint64_t last_id, last_number;
    uint64_t n_moved, n_ended; /* attempts; moved ones are among the ended */
    uint32_t n;
};

/* ---- the table --------------------------------------------------------------------------- */

static struct request **bucket_of(struct requests *rs, uint64_t id)
{
    return &rs->bucket[id % BUCKETS];
}

static void request_free(struct request *r)
{
    if (r->prev)
        r->prev->next = r->next;
    else
        *bucket_of(r->of, r->id) = r->next;
    if (r->next) r->next->prev = r->prev;
    if (r->of->walk_next == r) r->of->walk_next = r->next;
    if (r->pipeline) r->pipeline->load--;
    r->of->n--;
    free(r->prompt);
    free(r->generated);
    free(r);
}

static struct request *request_find(struct requests *rs, uint64_t id, const struct pipeline *p)
{
    struct request *r = *bucket_of(rs, id);
    while (r && r->id != id)
        r = r->next;
    return r && r->pipeline == p ? r : NULL;
}

/* The head of a refusal names only the message's number. */
static struct request *request_numbered(struct requests *rs, uint64_t number,
                                        const struct pipeline *p)
{
    for (size_t i = 0; i < BUCKETS; i++)
        for (struct request *r = rs->bucket[i]; r; r = r->next)
            if (r->number == number && r->pipeline == p) return r;
    return NULL;
}

static void finish(struct request *r, const struct request_end *end)
{
    struct request_events events = r->events;
    request_free(r);
    events.finished(events.arg, end);
}

static void fail(struct request *r, enum fault_kind fault, const char *text)
{
    finish(r, &(struct request_end){.fault = fault, .text = text});
}

/* ---- to the head ------------------------------------------------------------------------- */

static ProtobufCBinaryData words(uint32_t *at, uint32_t n)
{
    static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "tokens travel as little-endian");
    return (ProtobufCBinaryData){.len = (size_t)n * sizeof(*at), .data = (uint8_t *)at};
}

static int send_generate(struct request *r, struct pipeline *p)
{
    Cistern__Generate g = CISTERN__GENERATE__INIT;
    g.request = r->id;
    g.attempt = r->attempt;
    g.prompt = words(r->prompt, r->ask.n_prompt);
    g.generated = words(r->generated, r->n_generated);
    g.max_tokens = r->ask.max_tokens;
    g.temperature = r->ask.temperature;
    g.top_p = r->ask.top_p;
    g.min_p = r->ask.min_p;
    g.top_k = r->ask.top_k;
    g.seed = r->ask.seed;
    g.stop_tokens = (uint32_t *)r->ask.stop_tokens;
    g.n_stop_tokens = r->ask.n_stop_tokens;
    g.salt = r->ask.salt;
    g.arrival = r->arrival;
    g.resume_row = r->resume_row;
    g.resume_generation = r->resume_generation;
    Cistern__Envelope m = CISTERN__ENVELOPE__INIT;
    m.number = r->number;
    m.body_case = CISTERN__ENVELOPE__BODY_GENERATE;
    m.generate = &g;
    return msg_client_send(p->client, &m);
}

static void send_cancel(struct request *r)
{
    Cistern__Cancel c = CISTERN__CANCEL__INIT;
    c.request = r->id;
    c.attempt = r->attempt;
    c.keep_set = r->keep != UINT32_MAX;
    c.keep = c.keep_set ? r->keep : 0;
    Cistern__Envelope m = CISTERN__ENVELOPE__INIT;
    m.number = ++r->of->last_number;
    m.body_case = CISTERN__ENVELOPE__BODY_CANCEL;
    m.cancel = &c;
    r->cancel_unsent = msg_client_send(r->pipeline->client, &m) < 0;
}

static void tick_soon(struct requests *rs) { (void)loop_set_timer(rs->tick, RETRY_US, 0); }

/* From here on a loss has its whole time again. */
static void gets_on(struct request *r) { r->left_us = (uint64_t)r->of->o.resume_ms * 1000; }

/* A new attempt with whoever is ready; else it stays WAITING and the tick tries again. */
static void submit(struct request *r)
{
    struct pipeline *p = pipelines_pick(r->of->o.pipelines, r->to, r->from);
    r->retry_us = now_us() + RETRY_US;
    if (!p) return;
    r->attempt++;
    r->number = ++r->of->last_number;
    int e = send_generate(r, p);
    if (e < 0) {
        log_warn("pipeline %u takes no request now, trying again: %s", p->id, strerror(-e));
        return;
    }
    uint64_t now = now_us();
    r->left_us = r->deadline_us > now ? r->deadline_us - now : 0;
    r->pipeline = p;
    r->state = REQUEST_SENT;
    r->to = r->from = 0;
    p->load++;
}

/* The attempt is over without a result; the next one follows as soon as a pipeline is ready. */
static void end_attempt(struct request *r)
{
    uint64_t now = now_us();
    r->of->n_ended++;
    r->pipeline->load--;
    r->pipeline = NULL;
    r->state = REQUEST_WAITING;
    r->retry_us = now + RETRY_US;
    r->deadline_us = now + r->left_us;
    tick_soon(r->of);
}

static void give_up_attempt(struct request *r, const char *what)
{
    log_warn("request %llu, attempt %u: %s; it is submitted again", (unsigned long long)r->id,
             r->attempt, what);
    r->keep = UINT32_MAX;
    send_cancel(r);
    end_attempt(r);
}

/* ---- from the head ----------------------------------------------------------------------- */

int tokens_check(uint32_t attempt, uint32_t have, const Cistern__Tokens *m, size_t *ret_skip)
{
    if (m->attempt != attempt) return -ESTALE;
    if (m->index > have) return -EBADMSG;
    size_t known = have - m->index;
    if (known >= m->n_ids) return -EALREADY;
    *ret_skip = known;
    return 0;
}

static void keep_tokens(struct request *r, const uint32_t *ids, size_t n)
{
    size_t need = r->n_generated + n;
    if (need > r->generated_room) {
        uint32_t room = r->generated_room ? r->generated_room : 64;
        while (room < need)
            room *= 2; /* need is at most max_tokens, which has a bound */
        r->generated = reallocarray(r->generated, room, sizeof(*r->generated));
        if (!r->generated) abort();
        r->generated_room = room;
    }
    memcpy(r->generated + r->n_generated, ids, n * sizeof(*ids));
    r->n_generated += (uint32_t)n;
}

static bool ids_are_sane(const struct request *r, const uint32_t *ids, size_t n)
{
    if (n > r->ask.max_tokens - r->n_generated) return false;
    for (size_t i = 0; i < n; i++)
        if (ids[i] >= r->of->o.n_vocab) return false;
    return true;
}

static void on_tokens(struct request *r, const Cistern__Tokens *m)
{
    size_t skip = 0;
    if (r->state == REQUEST_LEAVING) {
        if (r->cancel_unsent) send_cancel(r);
        return;
    }
    int e = tokens_check(r->attempt, r->n_generated, m, &skip);
    if (e == -EBADMSG) give_up_attempt(r, "tokens are missing");
    if (e < 0) return;
    size_t n = m->n_ids - skip;
    if (!ids_are_sane(r, m->ids + skip, n)) {
        log_error("pipeline %u sent tokens that the request or the model doesn't have",
                  r->pipeline->id);
        request_leave(r);
        r->events.finished(r->events.arg, &(struct request_end){
                                              .fault = FAULT_INTERNAL,
                                              .text = "A worker sent tokens that can't be right.",
                                          });
        return;
    }
    keep_tokens(r, m->ids + skip, n);
    gets_on(r);
    r->events.tokens(r->events.arg, m->ids + skip, n);
}

static void on_started(struct request *r, const Cistern__Started *m)
{
    if (m->attempt != r->attempt || r->state != REQUEST_SENT) return;
    r->resume_row = m->row + 1;
    r->resume_generation = m->generation;
    r->arrival = m->arrival;
    gets_on(r);
    if (r->started) return;
    r->started = true;
    r->cached_tokens = min_u32(m->cached_tokens, r->ask.n_prompt);
    r->events.started(r->events.arg);
}

/* Whether a later attempt may succeed where this one failed. What was admitted once is never
 * refused for room or for who is full. */
static bool worth_another(const struct request *r, Cistern__Code code)
{
    switch (code) {
    case CISTERN__CODE__STAGE_LOST:
    case CISTERN__CODE__NOT_READY:
    case CISTERN__CODE__STALE:
    case CISTERN__CODE__UNKNOWN:
        return true;
    case CISTERN__CODE__POOL_FULL:
    case CISTERN__CODE__QUEUE_FULL:
    case CISTERN__CODE__DRAINING:
        return r->started;
    default:
        return false;
    }
}

/* Not a failure: it goes on in another pipeline, at once when there is one. */
static void go_elsewhere(struct request *r, uint32_t to)
{
    uint32_t from = r->pipeline->id + 1;
    end_attempt(r);
    r->of->n_moved++;
    r->to = to;
    r->from = from;
    submit(r);
}

static void on_error(struct request *r, Cistern__Code code, const char *text, uint32_t to)
{
    if (code == CISTERN__CODE__MOVED) {
        go_elsewhere(r, to);
        return;
    }
    if (worth_another(r, code)) {
        end_attempt(r);
        return;
    }
    char sentence[256]; /* the message's text goes with the message */
    (void)snprintf(sentence, sizeof(sentence), "%s", text);
    if (fault_from_code(code) == FAULT_INTERNAL)
        log_error("pipeline %u refused a request: %s", r->pipeline->id, sentence);
    fail(r, fault_from_code(code), sentence);
}

static void on_finished(struct request *r, const Cistern__Finished *m)
{
    if (r->state == REQUEST_LEAVING) {
        if (m->attempt == r->attempt) request_free(r);
        return;
    }
    if (m->attempt != r->attempt) return;
    switch (m->reason) {
    case CISTERN__REASON__STOP:
    case CISTERN__REASON__LENGTH:
        if (m->n_generated != r->n_generated) {
            give_up_attempt(r, "the last tokens are missing");
            return;
        }
        finish(r, &(struct request_end){.reason = m->reason, .truncated = m->truncated});
        return;
    case CISTERN__REASON__ERROR:
        on_error(r, m->code, m->text, m->to_pipeline);
        return;
    default:
        on_error(r, CISTERN__CODE__NOT_READY, "cancelled by the worker", 0);
        return;
    }
}

void requests_message(struct requests *rs, struct pipeline *p, const Cistern__Envelope *m)
{
    struct request *r = NULL;
    switch (m->body_case) {
    case CISTERN__ENVELOPE__BODY_STARTED:
        r = request_find(rs, m->started->request, p);
        if (r) on_started(r, m->started);
        break;
    case CISTERN__ENVELOPE__BODY_TOKENS:
        r = request_find(rs, m->tokens->request, p);
        if (r) on_tokens(r, m->tokens);
        break;
    case CISTERN__ENVELOPE__BODY_FINISHED:
        r = request_find(rs, m->finished->request, p);
        if (r) on_finished(r, m->finished);
        break;
    case CISTERN__ENVELOPE__BODY_REFUSED:
        r = request_numbered(rs, m->number, p);
        if (r && r->state == REQUEST_LEAVING)
            request_free(r);
        else if (r)
            on_error(r, m->refused->code, m->refused->text, 0);
        break;
    default:
        break;
    }
}

/* Calls fn for every request; fn may free any of them. */
static void each_request(struct requests *rs, void (*fn)(struct request *r, void *arg), void *arg)
{
    for (size_t i = 0; i < BUCKETS; i++) {
        for (struct request *r = rs->bucket[i]; r; r = rs->walk_next) {
            rs->walk_next = r->next;
            fn(r, arg);
        }
    }
    rs->walk_next = NULL;
}

static void lose(struct request *r, void *pipeline)
{
    if (r->pipeline != pipeline) return;
    if (r->state == REQUEST_LEAVING)
        request_free(r);
    else
        end_attempt(r);
}

void requests_lost(struct requests *rs, struct pipeline *p) { each_request(rs, lose, p); }

/* ---- time -------------------------------------------------------------------------------- */

static void tick_one(struct request *r, void *arg)
{
    uint64_t now = *(const uint64_t *)arg;
    if (r->state == REQUEST_LEAVING) {
        if (r->cancel_unsent) send_cancel(r);
        if (now < r->deadline_us) return;
        log_warn("pipeline %u did not confirm a cancel", r->pipeline->id);
        request_free(r);
        return;
    }
    if (r->state == REQUEST_WAITING && now >= r->deadline_us) {
        fail(r, FAULT_STAGE_LOST, "A worker died and none took its place in time.");
        return;
    }
    if (!r->started && !r->told_late && now - r->since_us >= LATE_US) {
        r->told_late = true;
        r->events.late(r->events.arg);
        return; /* the call may have freed it */
    }
    if (r->state == REQUEST_WAITING && now >= r->retry_us) submit(r);
}

static void count_waiting(struct request *r, void *n)
{
    *(uint32_t *)n += r->state == REQUEST_WAITING;
}

static void on_tick(void *arg)
{
    struct requests *rs = arg;
    uint64_t now = now_us();
    uint32_t waiting = 0;
    each_request(rs, tick_one, &now);
    each_request(rs, count_waiting, &waiting);
    if (rs->n > 0) (void)loop_set_timer(rs->tick, waiting ? RETRY_US : TICK_US, 0);
}

/* ---- for who asks ------------------------------------------------------------------------ */

struct request *request_new(struct requests *rs, const struct request_ask *ask,
                            const struct request_events *events)
{
    struct request *r = xnew(struct request);
    r->of = rs;
    r->id = ++rs->last_id;
    r->ask = *ask;
    r->prompt = reallocarray(NULL, ask->n_prompt + 1, sizeof(*r->prompt));
    if (!r->prompt) abort();
    memcpy(r->prompt, ask->prompt, ask->n_prompt * sizeof(*r->prompt));
    r->ask.prompt = r->prompt;
    r->events = *events;
    r->since_us = now_us();
    gets_on(r);
    r->deadline_us = r->since_us + r->left_us;
    r->next = *bucket_of(rs, r->id);
    if (r->next) r->next->prev = r;
    *bucket_of(rs, r->id) = r;
    if (rs->n++ == 0) tick_soon(rs);
    submit(r);
    return r;
}

static void leave(struct request *r, uint32_t keep)
{
    if (r->state == REQUEST_WAITING) {
        request_free(r);
        return;
    }
    r->state = REQUEST_LEAVING;
    r->keep = keep;
    r->deadline_us = now_us() + LEAVING_US;
    send_cancel(r);
}

void request_leave(struct request *r) { leave(r, UINT32_MAX); }
void request_stop(struct request *r, uint32_t keep) { leave(r, keep); }
uint32_t request_cached_tokens(const struct request *r) { return r->cached_tokens; }

bool requests_on_row(const struct requests *rs, uint32_t row, uint64_t generation,
                     struct request_view *ret)
{
    for (size_t i = 0; i < BUCKETS; i++)
        for (const struct request *r = rs->bucket[i]; r; r = r->next) {
            if (r->resume_row != row + 1 || r->resume_generation != generation) continue;
            *ret = (struct request_view){.id = r->id,
                                         .n_prompt = r->ask.n_prompt,
                                         .n_cached = r->cached_tokens,
                                         .n_generated = r->n_generated,
                                         .max_tokens = r->ask.max_tokens};
            return true;
        }
    return false;
}

static void end_one(struct request *r, void *arg)
{
    const struct request_end *end = arg;
    if (r->state == REQUEST_LEAVING) return;
    struct request_events events = r->events;
    request_leave(r);
    events.finished(events.arg, end);
}

void requests_end_all(struct requests *rs, enum fault_kind fault, const char *text)
{
    each_request(rs, end_one, &(struct request_end){.fault = fault, .text = text});
}

uint32_t requests_in_flight(const struct requests *rs) { return rs->n; }

void requests_ended(const struct requests *rs, uint64_t *ret_moved, uint64_t *ret_lost)
{
    *ret_moved = rs->n_moved;
    *ret_lost = rs->n_ended - rs->n_moved;
}

uint32_t requests_unstarted(const struct requests *rs)
{
    uint32_t n = 0;
    for (size_t i = 0; i < BUCKETS; i++)
        for (const struct request *r = rs->bucket[i]; r; r = r->next)
            n += !r->started && r->state != REQUEST_LEAVING;
    return n;
}

int requests_new(const struct requests_options *o, struct why *why, struct requests **ret)
{
    CLEANUP(requests_freep) struct requests *rs = xnew(struct requests);
    rs->o = *o;
    int r = loop_add_timer(o->loop, on_tick, rs, &rs->tick);
    if (r < 0) return why_set(why, r, "cannot make a timer: %s", strerror(-r));
    *ret = TAKE(rs);
    return 0;
}

static void free_one(struct request *r, void *arg)
{
    (void)arg;
    request_free(r);
}

void requests_free(struct requests *rs)
{
    if (!rs) return;
    each_request(rs, free_one, NULL);
    loop_remove(rs->tick);
    free(rs);
}
