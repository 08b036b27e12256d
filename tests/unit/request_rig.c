/* SPDX-License-Identifier: MIT */
/*
 * See request_rig.h. pipelines_pick and msg_client_send are defined here in place of the gateway's
 * and the messages' own.
 */
#include "tests/unit/request_rig.h"

#include <check.h>
#include <errno.h>
#include <string.h>

struct rig_head head;

struct pipeline *pipelines_pick(struct pipelines *ps, uint32_t to, uint32_t from)
{
    (void)ps;
    head.to = to;
    head.from = from;
    return head.none_ready ? NULL : &head.pipeline;
}

int msg_client_send(struct msg_client *c, Cistern__Envelope *m)
{
    (void)c;
    if (head.send_result < 0) return head.send_result;
    if (m->body_case == CISTERN__ENVELOPE__BODY_GENERATE) {
        head.n_generate++;
        head.number = m->number;
        head.generate = *m->generate;
        memcpy(head.prompt, m->generate->prompt.data, m->generate->prompt.len);
        if (m->generate->generated.len)
            memcpy(head.generated, m->generate->generated.data, m->generate->generated.len);
    } else {
        ck_assert_int_eq(m->body_case, CISTERN__ENVELOPE__BODY_CANCEL);
        head.n_cancel++;
        head.cancel = *m->cancel;
    }
    return 0;
}

struct rig_got got;

struct loop *loop;
struct requests *requests;
struct request *request;

static void on_started(void *arg)
{
    (void)arg;
    got.started++;
}

static void on_late(void *arg) { (void)arg; }

static void on_tokens(void *arg, const uint32_t *ids, size_t n, const struct probs *probs)
{
    (void)arg;
    ck_assert_uint_le(got.n + n, SENT_MAX);
    ck_assert_int_eq(probs != NULL, head.generate.probs);
    if (probs) {
        ck_assert_uint_eq(probs->n, n);
        memcpy(got.logprobs + got.n, probs->logprobs, n * sizeof(float));
        ck_assert_uint_eq(probs->top_ids[0], ids[0] + 1);
    }
    memcpy(got.ids + got.n, ids, n * sizeof(*ids));
    got.n += n;
}

static void on_read(void *arg, uint32_t n_read, uint32_t first, const struct probs *probs)
{
    (void)arg;
    ck_assert_uint_eq(first, got.n_read_probs + 1);
    ck_assert_uint_le(got.n_read_probs + probs->n, SENT_MAX);
    for (uint32_t i = 0; i < probs->n; i++)
        got.read_logprobs[got.n_read_probs++] = probs->logprobs[i];
    ck_assert_uint_ge(n_read, got.n_read);
    got.n_read = n_read;
}

static void on_finished(void *arg, const struct request_end *end)
{
    (void)arg;
    got.finished++;
    got.end = *end;
    loop_stop(loop, 0);
}

struct request_ask more;

void begin(uint32_t resume_ms)
{
    static const uint32_t prompt[] = {11, 12, 13}, stop[] = {2};
    struct requests_options o = {.resume_ms = resume_ms, .late_ms = 10000, .n_vocab = N_VOCAB};
    memset(&head, 0, sizeof(head));
    memset(&got, 0, sizeof(got));
    ck_assert_int_eq(loop_new(&loop), 0);
    o.loop = loop;
    ck_assert_int_eq(requests_new(&o, NULL, &requests), 0);
    struct request_ask ask = {.prompt = prompt,
                              .n_prompt = 3,
                              .max_tokens = 8,
                              .seed = 99,
                              .stop_tokens = stop,
                              .n_stop_tokens = 1,
                              .probs = more.probs,
                              .prompt_probs = more.prompt_probs,
                              .n_top = more.n_top,
                              .bias_ids = more.bias_ids,
                              .biases = more.biases,
                              .n_biases = more.n_biases};
    struct request_events events = {.started = on_started,
                                    .late = on_late,
                                    .read = on_read,
                                    .tokens = on_tokens,
                                    .finished = on_finished};
    memset(&more, 0, sizeof(more));
    request = request_new(requests, &ask, &events);
}

void end(void)
{
    requests_free(requests);
    loop_free(loop);
    ck_assert_uint_eq(head.pipeline.load, 0);
}

void deliver(Cistern__Envelope *m) { requests_message(requests, &head.pipeline, m); }

void send_tokens(uint32_t attempt, uint32_t index, size_t n, const uint32_t *ids)
{
    Cistern__Tokens t = CISTERN__TOKENS__INIT;
    t.request = head.generate.request;
    t.attempt = attempt;
    t.index = index;
    t.n_ids = n;
    t.ids = (uint32_t *)ids;
    Cistern__Envelope m = CISTERN__ENVELOPE__INIT;
    m.body_case = CISTERN__ENVELOPE__BODY_TOKENS;
    m.tokens = &t;
    deliver(&m);
}

void send_started(uint32_t attempt)
{
    Cistern__Started s = CISTERN__STARTED__INIT;
    s.request = head.generate.request;
    s.attempt = attempt;
    s.cached_tokens = 2;
    s.row = 7;
    s.generation = 5;
    s.arrival = 42;
    Cistern__Envelope m = CISTERN__ENVELOPE__INIT;
    m.body_case = CISTERN__ENVELOPE__BODY_STARTED;
    m.started = &s;
    deliver(&m);
}

void send_finished(uint32_t attempt, Cistern__Reason reason, Cistern__Code code, uint32_t n)
{
    Cistern__Finished f = CISTERN__FINISHED__INIT;
    f.request = head.generate.request;
    f.attempt = attempt;
    f.reason = reason;
    f.code = code;
    f.n_generated = n;
    Cistern__Envelope m = CISTERN__ENVELOPE__INIT;
    m.body_case = CISTERN__ENVELOPE__BODY_FINISHED;
    m.finished = &f;
    deliver(&m);
}

static void on_patience(void *arg)
{
    (void)arg;
    loop_stop(loop, -ETIMEDOUT);
}

/* Runs the loop until the request is submitted again or finished. */
static bool look(void *n_generate)
{
    if (head.n_generate >= *(unsigned *)n_generate) loop_stop(loop, 0);
    return false;
}

void run_until_submitted(unsigned n_generate)
{
    struct loop_source *after = NULL, *patience = NULL;
    ck_assert_int_eq(loop_add_after(loop, look, &n_generate, &after), 0);
    ck_assert_int_eq(loop_add_timer(loop, on_patience, NULL, &patience), 0);
    ck_assert_int_eq(loop_set_timer(patience, 20000000, 0), 0);
    ck_assert_int_eq(loop_run(loop), 0);
    loop_remove(after);
    loop_remove(patience);
}
