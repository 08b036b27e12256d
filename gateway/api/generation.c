/* SPDX-License-Identifier: MIT */
/*
 * See generation.h. Streams and whole answers differ only in when text is handed over, so they are
 * the same bytes. Which heads compute, and how often it took another, is not known here.
 */
#include "gateway/api/generation.h"

#include <errno.h>
#include <string.h>
#include <sys/random.h>

#include "gateway/api/reply.h"

static void generation_free(struct generation *g)
{
    for (uint32_t i = 0; i < g->ask.n; i++) {
        text_free(g->choice[i].text);
        bytebuf_fini(&g->choice[i].out);
    }
    if (g->key) g->key->n_running--;
    bytebuf_fini(&g->shown);
    free(g->prompt.ids);
    ask_fini(&g->ask);
    free(g);
}

static void leave_all(struct generation *g)
{
    for (uint32_t i = 0; i < g->ask.n; i++)
        if (g->choice[i].request) request_leave(TAKE(g->choice[i].request));
}

/* ---- the stream -------------------------------------------------------------------------- */

int generation_send(struct generation *g, const char *event, json_t *data)
{
    char *line = json_dumps(data, JSON_COMPACT);
    json_decref(data);
    if (!line) return -ENOMEM;
    struct bytebuf b = {0};
    if (event) bytebuf_addf(&b, "event: %s\n", event);
    bytebuf_add(&b, "data: ", 6);
    bytebuf_add(&b, line, strlen(line));
    bytebuf_add(&b, "\n\n", 2);
    int r = exchange_write(g->exchange, bytebuf_bytes(&b), bytebuf_size(&b));
    bytebuf_fini(&b);
    free(line);
    g->n_events++;
    return r;
}

/* The reader doesn't read, or is gone. */
static void abandon(struct generation *g)
{
    leave_all(g);
    exchange_drop(g->exchange);
    generation_free(g);
}

static void on_silent(void *arg)
{
    struct generation *g = arg;
    if (g->shape->silent(g) < 0) abandon(g);
}

static void open_stream(struct generation *g)
{
    if (g->streaming || !g->ask.stream) return;
    g->streaming = true;
    exchange_stream(g->exchange, g->shape->silent ? on_silent : NULL);
}

static int begin_stream(struct generation *g)
{
    if (g->begun || !g->ask.stream) return 0;
    open_stream(g);
    g->begun = true;
    return g->shape->begin(g);
}

static int send_text(struct choice *c)
{
    struct generation *g = c->of;
    if (!g->begun || bytebuf_size(&c->out) == 0) return 0;
    json_t *text = choice_text(c);
    if (g->shape->keep_text) bytebuf_add(&g->shown, bytebuf_bytes(&c->out), bytebuf_size(&c->out));
    bytebuf_take(&c->out, bytebuf_size(&c->out));
    return g->shape->text(c, text);
}

/* ---- the end ----------------------------------------------------------------------------- */

static void close_stream(struct generation *g, int r)
{
    if (r < 0) {
        abandon(g);
        return;
    }
    leave_all(g);
    exchange_end(g->exchange);
    generation_free(g);
}

static void fail(struct generation *g, const struct fault *fault)
{
    if (!g->streaming) {
        leave_all(g);
        reply_fault(g->exchange, fault);
        generation_free(g);
        return;
    }
    int r = 0;
    for (uint32_t i = 0; r == 0 && i < g->ask.n; i++) {
        if (!g->choice[i].ending) (void)text_end(g->choice[i].text, &g->choice[i].out);
        r = send_text(&g->choice[i]);
    }
    close_stream(g, r < 0 ? r : g->shape->fail(g, fault));
}

static void complete(struct generation *g)
{
    if (g->ask.stream) {
        close_stream(g, g->shape->end(g));
        return;
    }
    reply_json(g->exchange, 200, g->shape->whole(g));
    generation_free(g);
}

static void end_choice(struct choice *c, enum ending ending, bool truncated)
{
    struct generation *g = c->of;
    c->request = NULL;
    c->ending = ending;
    c->truncated = truncated;
    c->stop_string = text_stop_string(c->text);
    int r = begin_stream(g);
    if (r == 0) r = send_text(c);
    if (r == 0 && g->ask.stream && g->shape->choice_end) r = g->shape->choice_end(c);
    if (r < 0) {
        abandon(g);
        return;
    }
    for (uint32_t i = 0; i < g->ask.n; i++)
        if (!g->choice[i].ending) return;
    complete(g);
}

/* ---- what happens to it ------------------------------------------------------------------ */

static void submit(struct choice *c);

/* The other choices begin when the prompt is read, so that they share it. */
static void submit_others(struct generation *g)
{
    for (uint32_t i = 1; i < g->ask.n; i++)
        if (!g->choice[i].request && !g->choice[i].ending) submit(&g->choice[i]);
}

static void on_gone(void *arg)
{
    struct generation *g = arg;
    leave_all(g);
    generation_free(g);
}

static void on_started(void *arg)
{
    struct choice *c = arg;
    struct generation *g = c->of;
    uint32_t cached = request_cached_tokens(c->request);
    g->gateway->metrics.cached_tokens += cached;
    if (c->index > 0) return;
    g->n_cached = cached;
    if (begin_stream(g) < 0) abandon(g);
}

static void on_late(void *arg)
{
    struct choice *c = arg;
    open_stream(c->of);
}

static void count_tokens(struct choice *c, size_t n)
{
    struct metrics *m = &c->of->gateway->metrics;
    uint64_t now = now_us();
    m->generated_tokens += n;
    if (c->last_token_us)
        metrics_between_tokens(m, now - c->last_token_us, n);
    else if (c->index == 0)
        metrics_first_token(m, now - exchange_since_us(c->of->exchange));
    c->last_token_us = now;
}

/* Adds the text of the tokens. True when a stop string is complete. */
static bool add_tokens(struct choice *c, const uint32_t *ids, size_t n)
{
    const struct tokenizer *t = c->of->gateway->model.tokenizer;
    for (size_t i = 0; i < n; i++) {
        struct tokenizer_piece piece = tokenizer_piece(t, ids[i]);
        if (tokenizer_is_control(t, ids[i])) piece.bytes = 0;
        c->n_generated++;
        if (text_push(c->text, piece.at, piece.bytes, &c->out)) return true;
    }
    return false;
}

static void on_tokens(void *arg, const uint32_t *ids, size_t n)
{
    struct choice *c = arg;
    struct generation *g = c->of;
    count_tokens(c, n);
    if (c->index == 0) submit_others(g);
    if (add_tokens(c, ids, n)) {
        request_stop(TAKE(c->request), text_tokens_before_stop(c->text));
        end_choice(c, ENDED_BY_STRING, false);
        return;
    }
    int r = begin_stream(g);
    if (r == 0) r = send_text(c);
    if (r < 0) abandon(g);
}

static void on_finished(void *arg, const struct request_end *end)
{
    struct choice *c = arg;
    struct generation *g = c->of;
    c->request = NULL;
    if (end->fault != FAULT_NONE) {
        struct fault fault;
        (void)fault_set(&fault, end->fault, NULL, "%s", end->text);
        fault.n_prompt_tokens = (uint32_t)g->prompt.n;
        fault.n_ctx = gateway_context(g->gateway);
        fail(g, &fault);
        return;
    }
    if (c->index == 0) submit_others(g);
    if (text_end(c->text, &c->out))
        end_choice(c, ENDED_BY_STRING, false);
    else if (end->reason == CISTERN__REASON__STOP)
        end_choice(c, ENDED_BY_MODEL, false);
    else
        end_choice(c, ENDED_BY_LENGTH, end->truncated);
}

/* ---- its beginning ----------------------------------------------------------------------- */

static uint64_t random_u64(void)
{
    uint64_t v;
    if (getrandom(&v, sizeof(v), 0) != sizeof(v)) abort();
    return v;
}

void random_id(const char *prefix, char ret[64])
{
    (void)snprintf(ret, 64, "%s%016llx%08llx", prefix, (unsigned long long)random_u64(),
                   (unsigned long long)random_u64() >> 32);
}

static uint32_t answer_tokens(const struct generation *g)
{
    uint32_t room = gateway_context(g->gateway) - (uint32_t)g->prompt.n;
    uint32_t preset = g->gateway->config->gateway.default_tokens;
    uint32_t want = g->ask.max_tokens ? g->ask.max_tokens : preset;
    return want ? min_u32(want, room) : room;
}

static void submit(struct choice *c)
{
    struct generation *g = c->of;
    size_t n_stop;
    const uint32_t *stop = tokenizer_eog(g->gateway->model.tokenizer, &n_stop);
    struct request_ask ask = {
        .prompt = g->prompt.ids,
        .n_prompt = (uint32_t)g->prompt.n,
        .max_tokens = answer_tokens(g),
        .top_k = g->ask.top_k,
        .temperature = g->ask.temperature,
        .top_p = g->ask.top_p,
        .min_p = g->ask.min_p,
        .seed = g->ask.seed + c->index,
        .stop_tokens = stop,
        .n_stop_tokens = g->ask.ignore_eos ? 0 : (uint32_t)n_stop,
        .salt = g->key ? g->key->salt : 0,
    };
    struct request_events events = {
        .started = on_started,
        .late = on_late,
        .tokens = on_tokens,
        .finished = on_finished,
        .arg = c,
    };
    g->gateway->metrics.prompt_tokens += g->prompt.n;
    c->request = request_new(g->gateway->requests, &ask, &events);
}

/* Whether one more is taken of this client, asked first: who must come back later should know
 * before anything is read. */
static int admits(const struct gateway *g, const struct exchange *x, struct fault *fault)
{
    int r = gateway_admits(g, fault);
    return r < 0 ? r : keys_admit(g->keys, x, fault);
}

int generation_model(const struct gateway *g, const struct ask *ask, struct fault *fault)
{
    const char *name = json_string_value(ask->model);
    if (!g->config->gateway.strict_model || !name || strcmp(name, g->model.name) == 0) return 0;
    return fault_set(fault, FAULT_MODEL, "model",
                     "There is no model '%.64s' here; the one that is served is called '%.128s'.",
                     name, g->model.name);
}

/* Takes ask and prompt. */
static void start(struct gateway *gateway, struct exchange *x, const struct shape *shape,
                  struct ask *ask, struct tokenizer_ids *prompt)
{
    struct generation *g = xnew(struct generation);
    g->gateway = gateway;
    g->exchange = x;
    g->shape = shape;
    g->key = keys_of(gateway->keys, x);
    if (g->key) g->key->n_running++;
    g->ask = *ask;
    g->prompt = *prompt;
    *ask = (struct ask){0};
    *prompt = (struct tokenizer_ids){0};
    g->created = time(NULL);
    if (!g->ask.seeded) g->ask.seed = random_u64();
    if (g->ask.n == 0) g->ask.n = 1; /* of APIs that have no such field */
    random_id(shape->id_prefix, g->id);
    for (uint32_t i = 0; i < g->ask.n; i++) {
        g->choice[i].of = g;
        g->choice[i].index = i;
        if (text_new(g->ask.stop.at, g->ask.stop.n, &g->choice[i].text) < 0)
            abort(); /* fields.c bounded them */
    }
    exchange_wait(x, on_gone, g);
    submit(&g->choice[0]);
}

void generation_serve(struct gateway *g, struct exchange *x, const struct shape *shape)
{
    struct fault fault;
    struct ask ask = {0};
    struct tokenizer_ids prompt = {0};
    size_t bytes;
    const char *body = exchange_body(x, &bytes);
    int r = admits(g, x, &fault);
    if (r == 0) r = ask_parse(shape->api, body, bytes, &fault, &ask);
    if (r == 0) r = generation_model(g, &ask, &fault);
    if (r == 0) r = shape->prompt(g, &ask, gateway_context(g), &fault, &prompt);
    if (r < 0)
        reply_fault(x, &fault);
    else
        start(g, x, shape, &ask, &prompt);
    ask_fini(&ask);
}

uint32_t generation_tokens(const struct generation *g)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < g->ask.n; i++)
        n += g->choice[i].n_generated;
    return n;
}

json_t *choice_text(const struct choice *c)
{
    return json_stringn(bytebuf_bytes(&c->out), bytebuf_size(&c->out));
}
