/* SPDX-License-Identifier: MIT */
/*
 * What heads say of requests. Everything is checked here: request, attempt, index and id; what is
 * news goes to who asked. Called by pipelines.c, by requests_message.
 */
#include <errno.h>
#include <string.h>

#include "common/log.h"
#include "gateway/request_state.h"

static struct request *request_find(struct requests *rs, uint64_t id, const struct pipeline *p)
{
    struct request *r = *request_bucket(rs, id);
    while (r && r->id != id)
        r = r->next;
    return r && r->pipeline == p ? r : NULL;
}

/* The head of a refusal names only the message's number. */
static struct request *request_numbered(struct requests *rs, uint64_t number,
                                        const struct pipeline *p)
{
    for (size_t i = 0; i < REQUEST_BUCKETS; i++)
        for (struct request *r = rs->bucket[i]; r; r = r->next)
            if (r->number == number && r->pipeline == p) return r;
    return NULL;
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

/* What the head says can't be: it is of no use to ask again. */
static void distrust(struct request *r)
{
    log_error("pipeline %u sent tokens that the request or the model doesn't have",
              r->pipeline->id);
    request_leave(r);
    r->events.finished(r->events.arg, &(struct request_end){
                                          .fault = FAULT_INTERNAL,
                                          .text = "A worker sent tokens that can't be right.",
                                      });
}

static void on_tokens(struct request *r, const Cistern__Tokens *m)
{
    size_t skip = 0;
    struct probs probs = {0};
    if (r->state == REQUEST_LEAVING) {
        if (r->cancel_unsent) request_send_cancel(r);
        return;
    }
    int e = tokens_check(r->attempt, r->n_generated, m, &skip);
    if (e == -EBADMSG || (e == 0 && request_wants_prompt_probs(r))) {
        request_give_up_attempt(r, "tokens are missing");
        return;
    }
    if (e < 0) return;
    size_t n = m->n_ids - skip;
    bool sane = ids_are_sane(r, m->ids + skip, n);
    if (r->ask.probs)
        sane &= probs_from(m->probs, m->n_ids, r->ask.n_top, r->of->o.n_vocab, &probs) == 0;
    if (!sane) {
        distrust(r);
        return;
    }
    keep_tokens(r, m->ids + skip, n);
    request_gets_on(r);
    probs = probs_after(probs, r->ask.probs ? (uint32_t)skip : 0);
    r->events.tokens(r->events.arg, m->ids + skip, n, r->ask.probs ? &probs : NULL);
}

/* The prompt is read from its beginning by every attempt that owes probabilities, so what an
 * earlier one has told comes again. */
static void on_read(struct request *r, const Cistern__Read *m)
{
    size_t skip = 0, n = m->probs ? m->probs->n_logprobs : 0;
    struct probs probs = {0};
    if (r->state == REQUEST_LEAVING || m->attempt != r->attempt) return;
    if (m->n_read > r->ask.n_prompt ||
        (n && (m->first == 0 || m->first > r->ask.n_prompt || n > r->ask.n_prompt - m->first))) {
        distrust(r);
        return;
    }
    int e = n ? news_check(r->n_probed, m->first - 1, n, &skip) : 0;
    if (e == -EBADMSG) {
        request_give_up_attempt(r, "probabilities of the prompt are missing");
        return;
    }
    if (e == 0 && n && probs_from(m->probs, n, r->ask.n_top, r->of->o.n_vocab, &probs) < 0) {
        distrust(r);
        return;
    }
    request_gets_on(r);
    if (probs.n) probs = probs_after(probs, (uint32_t)skip);
    if (m->n_read <= r->n_read && probs.n == 0) return;
    uint32_t first = r->n_probed + 1;
    r->n_probed += probs.n;
    r->n_read = max_u32(r->n_read, m->n_read);
    r->events.read(r->events.arg, r->n_read, first, &probs);
}

/* What was reused for it, and how that had been computed: whoever computes it again must know. */
static void keep_spans(struct request *r, const Cistern__Started *m)
{
    size_t n = m->n_generated_spans;
    free(TAKE(r->spans));
    r->n_spans = n;
    if (n == 0) return;
    r->spans = reallocarray(NULL, n, sizeof(*r->spans));
    if (!r->spans) abort();
    memcpy(r->spans, m->generated_spans, n * sizeof(*r->spans));
}

static void on_started(struct request *r, const Cistern__Started *m)
{
    if (m->attempt != r->attempt || r->state != REQUEST_SENT) return;
    if (m->n_generated_spans > (size_t)r->ask.n_prompt + 1) {
        distrust(r);
        return;
    }
    keep_spans(r, m);
    r->resume_row = m->row + 1;
    r->resume_generation = m->generation;
    r->arrival = m->arrival;
    request_gets_on(r);
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
    request_end_attempt(r);
    r->of->n_moved++;
    r->to = to;
    r->from = from;
    request_submit(r);
}

static void on_error(struct request *r, Cistern__Code code, const char *text, uint32_t to)
{
    if (code == CISTERN__CODE__MOVED) {
        go_elsewhere(r, to);
        return;
    }
    if (worth_another(r, code)) {
        uint32_t from = r->pipeline->id + 1;
        request_end_attempt(r);
        r->from = from; /* which may not be known to lack a stage yet */
        return;
    }
    char sentence[256]; /* the message's text goes with the message */
    (void)snprintf(sentence, sizeof(sentence), "%s", text);
    if (fault_from_code(code) == FAULT_INTERNAL)
        log_error("pipeline %u refused a request: %s", r->pipeline->id, sentence);
    request_fail(r, fault_from_code(code), sentence);
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
            request_give_up_attempt(r, "the last tokens are missing");
            return;
        }
        request_finish(r, &(struct request_end){.reason = m->reason, .truncated = m->truncated});
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
    case CISTERN__ENVELOPE__BODY_READ:
        r = request_find(rs, m->read->request, p);
        if (r) on_read(r, m->read);
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
