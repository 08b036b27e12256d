/* SPDX-License-Identifier: MIT */
/*
 * See request.h. Owns the prompts and the tokens so far, and submits. What heads say comes in by
 * request_messages.c.
 */
#include <assert.h>
#include <string.h>

#include "common/log.h"
#include "gateway/request_state.h"

enum {
    TICK_US = 1000000,
    RETRY_US = 50000,      /* between attempts: a head is back within a second or so */
    LEAVING_US = 60000000, /* a head that never confirms a cancel must not hold a place for ever */
};

/* ---- the table --------------------------------------------------------------------------- */

void request_free(struct request *r)
{
    if (r->prev)
        r->prev->next = r->next;
    else
        *request_bucket(r->of, r->id) = r->next;
    if (r->next) r->next->prev = r->prev;
    if (r->of->walk_next == r) r->of->walk_next = r->next;
    if (r->pipeline) r->pipeline->load--;
    r->of->n--;
    free(r->prompt);
    free(r->generated);
    free(r->spans);
    free(r->bias_ids);
    free(r->biases);
    free(r);
}

void request_finish(struct request *r, const struct request_end *end)
{
    struct request_events events = r->events;
    request_free(r);
    events.finished(events.arg, end);
}

void request_fail(struct request *r, enum fault_kind fault, const char *text)
{
    request_finish(r, &(struct request_end){.fault = fault, .text = text});
}

/* ---- to the head ------------------------------------------------------------------------- */

static ProtobufCBinaryData words(uint32_t *at, uint32_t n)
{
    static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "tokens travel as little-endian");
    return (ProtobufCBinaryData){.len = (size_t)n * sizeof(*at), .data = (uint8_t *)at};
}

bool request_wants_prompt_probs(const struct request *r)
{
    return r->ask.prompt_probs && r->n_probed + 1 < r->ask.n_prompt;
}

static void fill_changes(const struct request *r, Cistern__Generate *g)
{
    g->bias_ids = r->bias_ids;
    g->biases = r->biases;
    g->n_bias_ids = g->n_biases = r->ask.n_biases;
    g->repeat = r->ask.repeat;
    g->repeat_last = r->ask.repeat_last;
    g->presence = r->ask.presence;
    g->frequency = r->ask.frequency;
    g->min_tokens = r->ask.min_tokens;
    g->probs = r->ask.probs;
    g->n_top = r->ask.n_top;
    g->prompt_probs = request_wants_prompt_probs(r);
    g->progress = r->ask.progress;
}

static int send_generate(struct request *r, struct pipeline *p)
{
    Cistern__Generate g = CISTERN__GENERATE__INIT;
    fill_changes(r, &g);
    g.request = r->id;
    g.attempt = r->attempt;
    g.prompt = words(r->prompt, r->ask.n_prompt);
    g.generated = words(r->generated, r->n_generated);
    g.max_tokens = r->ask.open_end ? 0 : r->ask.max_tokens;
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
    g.generated_spans = r->spans;
    g.n_generated_spans = r->n_spans;
    Cistern__Envelope m = CISTERN__ENVELOPE__INIT;
    m.number = r->number;
    m.body_case = CISTERN__ENVELOPE__BODY_GENERATE;
    m.generate = &g;
    return msg_client_send(p->client, &m);
}

void request_send_cancel(struct request *r)
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

void request_gets_on(struct request *r) { r->left_us = (uint64_t)r->of->o.resume_ms * 1000; }

void request_submit(struct request *r)
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

void request_end_attempt(struct request *r)
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

void request_give_up_attempt(struct request *r, const char *what)
{
    log_warn("request %llu, attempt %u: %s; it is submitted again", (unsigned long long)r->id,
             r->attempt, what);
    r->keep = UINT32_MAX;
    request_send_cancel(r);
    request_end_attempt(r);
}

/* Calls fn for every request; fn may free any of them. */
static void each_request(struct requests *rs, void (*fn)(struct request *r, void *arg), void *arg)
{
    for (size_t i = 0; i < REQUEST_BUCKETS; i++) {
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
        request_end_attempt(r);
}

void requests_lost(struct requests *rs, struct pipeline *p) { each_request(rs, lose, p); }

/* ---- time -------------------------------------------------------------------------------- */

static void tick_one(struct request *r, void *arg)
{
    uint64_t now = *(const uint64_t *)arg;
    if (r->state == REQUEST_LEAVING) {
        if (r->cancel_unsent) request_send_cancel(r);
        if (now < r->deadline_us) return;
        log_warn("pipeline %u did not confirm a cancel", r->pipeline->id);
        request_free(r);
        return;
    }
    if (r->state == REQUEST_WAITING && now >= r->deadline_us) {
        request_fail(r, FAULT_STAGE_LOST, "A worker died and none took its place in time.");
        return;
    }
    if (!r->started && !r->told_late && now - r->since_us >= (uint64_t)r->of->o.late_ms * 1000) {
        r->told_late = true;
        r->events.late(r->events.arg);
        return; /* the call may have freed it */
    }
    if (r->state == REQUEST_WAITING && now >= r->retry_us) request_submit(r);
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

static void *copy_of(const void *from, size_t bytes)
{
    void *to = malloc(bytes + 1);
    if (!to) abort();
    if (bytes) memcpy(to, from, bytes);
    return to;
}

struct request *request_new(struct requests *rs, const struct request_ask *ask,
                            const struct request_events *events)
{
    struct request *r = xnew(struct request);
    r->of = rs;
    r->id = ++rs->last_id;
    r->ask = *ask;
    r->prompt = copy_of(ask->prompt, ask->n_prompt * sizeof(*r->prompt));
    r->bias_ids = copy_of(ask->bias_ids, ask->n_biases * sizeof(*r->bias_ids));
    r->biases = copy_of(ask->biases, ask->n_biases * sizeof(*r->biases));
    r->ask.prompt = r->prompt;
    r->ask.bias_ids = r->bias_ids;
    r->ask.biases = r->biases;
    r->events = *events;
    r->since_us = now_us();
    request_gets_on(r);
    r->deadline_us = r->since_us + r->left_us;
    r->next = *request_bucket(rs, r->id);
    if (r->next) r->next->prev = r;
    *request_bucket(rs, r->id) = r;
    if (rs->n++ == 0) tick_soon(rs);
    request_submit(r);
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
    request_send_cancel(r);
}

void request_leave(struct request *r) { leave(r, UINT32_MAX); }
void request_stop(struct request *r, uint32_t keep) { leave(r, keep); }
uint32_t request_cached_tokens(const struct request *r) { return r->cached_tokens; }

bool requests_on_row(const struct requests *rs, uint32_t row, uint64_t generation,
                     struct request_view *ret)
{
    for (size_t i = 0; i < REQUEST_BUCKETS; i++)
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
    for (size_t i = 0; i < REQUEST_BUCKETS; i++)
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
