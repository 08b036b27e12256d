/* SPDX-License-Identifier: MIT */
/*
 * The input is what a head tells a gateway of one request: a byte that says what the request wants,
 * then envelopes, each behind its length in two bytes. Who asked must be told nothing that cannot
 * be of the request: tokens of the vocabulary, no more than were wanted, each once.
 */
#include <assert.h>
#include <string.h>

#include "gateway/request.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

enum { PROMPT = 12, MAX_TOKENS = 20, VOCAB = 300, TOP = 2 };

static struct pipeline pipeline;
static struct {
    bool probs, prompt_probs;
    bool started, finished;
    uint32_t n_tokens, n_read, n_probed;
} told;

/* In place of the gateway's and the messages' own: the one pipeline takes everything. */
struct pipeline *pipelines_pick(struct pipelines *ps, uint32_t to, uint32_t from)
{
    (void)ps, (void)to, (void)from;
    return &pipeline;
}

int msg_client_send(struct msg_client *c, Cistern__Envelope *m)
{
    (void)c;
    if (m->body_case != CISTERN__ENVELOPE__BODY_GENERATE) return 0;
    assert(m->generate->n_generated_spans <= PROMPT + 1);
    assert(m->generate->generated.len == told.n_tokens * sizeof(uint32_t));
    return 0;
}

static void on_started(void *arg)
{
    (void)arg;
    assert(!told.started && !told.finished);
    told.started = true;
}

static void on_late(void *arg) { (void)arg; }

static void probs_check(const struct probs *p, uint32_t n)
{
    assert(p->n == n && p->n_top == TOP);
    for (uint32_t i = 0; i < n; i++)
        assert(p->logprobs[i] == p->logprobs[i]);
    for (uint32_t i = 0; i < n * TOP; i++)
        assert(p->top_ids[i] < VOCAB);
}

static void on_tokens(void *arg, const uint32_t *ids, size_t n, const struct probs *probs)
{
    (void)arg;
    assert(n > 0 && !told.finished && n <= MAX_TOKENS - told.n_tokens);
    for (size_t i = 0; i < n; i++)
        assert(ids[i] < VOCAB);
    assert(!probs == !told.probs);
    if (probs) probs_check(probs, (uint32_t)n);
    told.n_tokens += (uint32_t)n;
}

static void on_read(void *arg, uint32_t n_read, uint32_t first, const struct probs *probs)
{
    (void)arg;
    assert(n_read >= told.n_read && n_read <= PROMPT && first == told.n_probed + 1);
    if (probs->n) probs_check(probs, probs->n);
    told.n_read = n_read;
    told.n_probed += probs->n;
    assert(told.n_probed < PROMPT);
}

static void on_finished(void *arg, const struct request_end *end)
{
    (void)arg, (void)end;
    assert(!told.finished);
    told.finished = true;
}

static void ask(struct requests *rs)
{
    static const uint32_t prompt[PROMPT] = {5, 6, 7};
    struct request_ask a = {
        .prompt = prompt,
        .n_prompt = PROMPT,
        .max_tokens = MAX_TOKENS,
        .probs = told.probs,
        .prompt_probs = told.prompt_probs,
        .n_top = TOP,
    };
    struct request_events events = {.started = on_started,
                                    .late = on_late,
                                    .read = on_read,
                                    .tokens = on_tokens,
                                    .finished = on_finished};
    (void)request_new(rs, &a, &events);
}

static void hear(struct requests *rs, const uint8_t *data, size_t bytes)
{
    while (bytes >= 2) {
        size_t n = min_u64((size_t)data[0] | (size_t)data[1] << 8, bytes - 2);
        Cistern__Envelope *m = cistern__envelope__unpack(NULL, n, data + 2);
        if (m) requests_message(rs, &pipeline, m);
        if (m) cistern__envelope__free_unpacked(m, NULL);
        data += 2 + n;
        bytes -= 2 + n;
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    struct loop *loop = NULL;
    struct requests *rs = NULL;
    if (bytes == 0) return 0;
    memset(&told, 0, sizeof(told));
    told.probs = data[0] & 1;
    told.prompt_probs = data[0] & 2;
    int r = loop_new(&loop);
    assert(r == 0);
    struct requests_options o = {
        .loop = loop, .resume_ms = 1000, .late_ms = 10000, .n_vocab = VOCAB};
    r = requests_new(&o, NULL, &rs);
    assert(r == 0);
    ask(rs);
    hear(rs, data + 1, bytes - 1);
    requests_free(rs);
    loop_free(loop);
    assert(pipeline.load == 0);
    return 0;
}
