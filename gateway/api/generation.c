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

/* It waits no longer, in the count of its key. */
static void key_starts(struct generation *g)
{
    if (g->key_waits) g->key->n_waiting--;
    g->key_waits = false;
}

static void generation_free(struct generation *g)
{
    for (uint32_t i = 0; i < g->n_choices; i++) {
        text_free(g->choice[i].text);
        bytebuf_fini(&g->choice[i].out);
        logprobs_fini(&g->choice[i].probs);
        logprobs_place_fini(&g->choice[i].place);
    }
    for (uint32_t i = 0; i < g->n_prompts; i++) {
        free(g->prompt[i].ids.ids);
        logprobs_fini(&g->prompt[i].probs);
    }
    key_starts(g);
    if (g->key) g->key->n_running--;
    bytebuf_fini(&g->shown);
    logit_bias_fini(&g->bias);
    ask_fini(&g->ask);
    free(g);
}

static void leave_all(struct generation *g)
{
    for (uint32_t i = 0; i < g->n_choices; i++)
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
    for (uint32_t i = 0; r == 0 && i < g->n_choices; i++) {
        if (!g->choice[i].ending) text_cut(g->choice[i].text, &g->choice[i].out);
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
    for (uint32_t i = 0; i < g->n_choices; i++)
        if (!g->choice[i].ending) return;
    complete(g);
}

/* ---- what happens to it ------------------------------------------------------------------ */

static void submit(struct choice *c);

/* The other choices of a prompt begin when it is read, so that they share it. */
static void submit_others(const struct choice *first)
{
    struct generation *g = first->of;
    if (first->nth > 0) return;
    for (uint32_t i = first->index + 1; i < first->index + g->ask.n; i++)
        if (!g->choice[i].request && !g->choice[i].ending) submit(&g->choice[i]);
}

static void on_gone(void *arg)
{
    struct generation *g = arg;
    leave_all(g);
    generation_free(g);
}

/* As llama.cpp's server tells it. */
static int send_progress(struct generation *g, uint32_t n_read)
{
    if (!g->ask.return_progress || !g->ask.stream || !g->shape->progress) return 0;
    uint64_t ms = (now_us() - g->started_us) / 1000;
    return g->shape->progress(g, json_pack("{s:I,s:I,s:I,s:I}", "total",
                                           (json_int_t)g->prompt[0].ids.n, "cache",
                                           (json_int_t)g->prompt[0].n_cached, "processed",
                                           (json_int_t)n_read, "time_ms", (json_int_t)ms));
}

static void on_read(void *arg, uint32_t n_read, uint32_t first, const struct probs *probs)
{
    struct choice *c = arg;
    struct generation *g = c->of;
    if (probs->n) {
        logprobs_add(&c->prompt->probs, c->prompt->ids.ids + first, probs);
    }
    if (c->index == 0 && send_progress(g, n_read) < 0) abandon(g);
}

static void on_started(void *arg)
{
    struct choice *c = arg;
    struct generation *g = c->of;
    uint32_t cached = request_cached_tokens(c->request);
    g->gateway->metrics.cached_tokens += cached;
    if (c->nth > 0) return;
    c->prompt->n_cached = cached;
    if (c->index > 0) return;
    key_starts(g);
    g->started_us = now_us();
    int r = begin_stream(g);
    if (r == 0) r = send_progress(g, cached);
    if (r < 0) abandon(g);
}

static void on_late(void *arg)
{
    struct generation *g = ((struct choice *)arg)->of;
    open_stream(g);
    if (g->shape->early && begin_stream(g) < 0) abandon(g);
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

static void on_tokens(void *arg, const uint32_t *ids, size_t n, const struct probs *probs)
{
    struct choice *c = arg;
    struct generation *g = c->of;
    if (g->ask.no_answer) return;
    count_tokens(c, n);
    submit_others(c);
    if (probs) logprobs_add(&c->probs, ids, probs);
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
        fault.n_prompt_tokens = (uint32_t)c->prompt->ids.n;
        fault.n_ctx = gateway_context(g->gateway);
        fail(g, &fault);
        return;
    }
    submit_others(c);
    bool by_model = end->reason == CISTERN__REASON__STOP && !c->of->ask.no_answer;
    if (!by_model) text_cut(c->text, &c->out);
    if (by_model && text_end(c->text, &c->out))
        end_choice(c, ENDED_BY_STRING, false);
    else if (by_model)
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

/* 0: as many as there is room for. */
static uint32_t wanted_tokens(const struct generation *g)
{
    if (g->ask.no_answer) return 1; /* which on_tokens drops */
    uint32_t preset = g->gateway->config->gateway.default_tokens;
    return g->ask.max_tokens ? g->ask.max_tokens : preset;
}

static uint32_t answer_tokens(const struct choice *c)
{
    uint32_t room = gateway_context(c->of->gateway) - (uint32_t)c->prompt->ids.n;
    uint32_t want = wanted_tokens(c->of);
    return want ? min_u32(want, room) : room;
}

static void submit(struct choice *c)
{
    struct generation *g = c->of;
    size_t n_stop;
    const uint32_t *stop = tokenizer_eog(g->gateway->model.tokenizer, &n_stop);
    struct request_ask ask = {
        .prompt = c->prompt->ids.ids,
        .n_prompt = (uint32_t)c->prompt->ids.n,
        .max_tokens = answer_tokens(c),
        .open_end = wanted_tokens(g) == 0, /* with admission = full it reserves what is usual */
        .top_k = g->ask.top_k,
        .temperature = g->ask.temperature,
        .top_p = g->ask.top_p,
        .min_p = g->ask.min_p,
        .seed = g->ask.seed + c->nth, /* a prompt's choices do not depend on the other prompts */
        .stop_tokens = stop,
        .n_stop_tokens = g->ask.ignore_eos ? 0 : (uint32_t)n_stop,
        .salt = g->key ? g->key->salt : 0,
        .min_tokens = g->ask.min_tokens,
        .bias_ids = g->bias.ids,
        .biases = g->bias.biases,
        .n_biases = g->bias.n,
        .repeat = g->ask.repeat_penalty,
        .repeat_last = g->ask.repeat_last_n,
        .presence = g->ask.presence_penalty,
        .frequency = g->ask.frequency_penalty,
        .probs = g->probs,
        .prompt_probs = g->prompt_probs && c->nth == 0,
        .n_top = g->n_top,
        .progress = g->ask.return_progress && g->ask.stream && c->index == 0,
    };
    if (g->ask.repetition_penalty != 0 && g->ask.repetition_penalty != 1) {
        ask.repeat = g->ask.repetition_penalty;
        ask.repeat_last = UINT32_MAX;
    }
    struct request_events events = {
        .started = on_started,
        .late = on_late,
        .read = on_read,
        .tokens = on_tokens,
        .finished = on_finished,
        .arg = c,
    };
    g->gateway->metrics.prompt_tokens += c->prompt->ids.n;
    c->request = request_new(g->gateway->requests, &ask, &events);
}

/* Whether one more is taken of this client, asked first: who must come back later should know
 * before anything is read. */
static int admits(const struct gateway *g, const struct exchange *x, struct fault *fault)
{
    int r = gateway_admits(g, fault);
    bool queues = requests_in_flight(g->requests) >= pipelines_lanes(g->pipelines);
    return r < 0 ? r : keys_admit(g->keys, x, queues, fault);
}

int generation_model(const struct gateway *g, const struct ask *ask, struct fault *fault)
{
    const char *name = json_string_value(ask->model);
    if (!g->config->gateway.strict_model || !name || strcmp(name, g->model.name) == 0) return 0;
    return fault_set(fault, FAULT_MODEL, "model",
                     "There is no model '%.64s' here; the one that is served is called '%.128s'.",
                     name, g->model.name);
}

/* Whether a response is to show probabilities. */
static bool includes_probs(const struct ask *ask)
{
    for (size_t i = 0; i < json_array_size(ask->include); i++) {
        const char *what = json_string_value(json_array_get(ask->include, i));
        if (what && strcmp(what, "message.output_text.logprobs") == 0) return true;
    }
    return false;
}

/* Each API has its own way to ask for probabilities. */
static void set_probs(struct generation *g)
{
    const struct ask *ask = &g->ask;
    enum api_id api = g->shape->api;
    g->n_top = ask->top_logprobs;
    g->probs = ask->logprobs || includes_probs(ask);
    if (api == API_COMPLETION) g->probs = ask->top_logprobs > 0;
    if (api == API_COMPLETIONS && ask->n_logprobs != FIELD_NO_LOGPROBS) {
        g->probs = true;
        g->n_top = ask->n_logprobs;
        g->prompt_probs = ask->echo;
    }
}

static void set_choices(struct generation *g)
{
    g->n_choices = g->n_prompts * g->ask.n;
    for (uint32_t i = 0; i < g->n_choices; i++) {
        struct choice *c = &g->choice[i];
        c->of = g;
        c->index = i;
        c->nth = i % g->ask.n;
        c->prompt = &g->prompt[i / g->ask.n];
        if (text_new(g->ask.stop.at, g->ask.stop.n, &c->text) < 0)
            abort(); /* fields.c bounded them */
    }
}

/* Takes what is asked. */
struct asked {
    struct ask ask;
    struct prompt_list prompts;
    struct logit_bias bias;
};

static void start(struct gateway *gateway, struct exchange *x, const struct shape *shape,
                  struct asked *asked)
{
    struct generation *g = xnew(struct generation);
    g->gateway = gateway;
    g->exchange = x;
    g->shape = shape;
    g->key = keys_of(gateway->keys, x);
    g->key_waits = g->key != NULL;
    if (g->key) g->key->n_running++, g->key->n_waiting++;
    g->ask = asked->ask;
    g->bias = asked->bias;
    g->n_prompts = asked->prompts.n;
    for (uint32_t i = 0; i < g->n_prompts; i++)
        g->prompt[i].ids = asked->prompts.at[i];
    *asked = (struct asked){0};
    g->created = time(NULL);
    if (!g->ask.seeded) g->ask.seed = random_u64();
    random_id(shape->id_prefix, g->id);
    set_probs(g);
    set_choices(g);
    for (uint32_t i = 0; g->prompt_probs && i < g->n_prompts; i++)
        logprobs_add_first(&g->prompt[i].probs, g->prompt[i].ids.ids[0], g->n_top);
    exchange_wait(x, on_gone, g);
    for (uint32_t i = 0; i < g->n_prompts; i++)
        submit(&g->choice[i * g->ask.n]);
}

static int read_prompts(const struct gateway *g, const struct shape *shape, struct asked *a,
                        struct fault *fault)
{
    uint32_t n_ctx = gateway_context(g);
    int r = logit_bias_from(g->model.tokenizer, a->ask.logit_bias, fault, &a->bias);
    if (a->ask.n == 0) a->ask.n = 1; /* of APIs that have no such field */
    if (r < 0) return r;
    if (shape->prompts) {
        r = shape->prompts(g, &a->ask, n_ctx, fault, &a->prompts);
    } else {
        r = shape->prompt(g, &a->ask, n_ctx, fault, &a->prompts.at[0]);
        a->prompts.n = r == 0;
    }
    if (r < 0 || a->prompts.n * a->ask.n <= GENERATION_CHOICES_MAX) return r;
    return fault_set(fault, FAULT_REQUEST, "n",
                     "%u prompts with %u choices each are asked for; %d choices are the most.",
                     a->prompts.n, a->ask.n, GENERATION_CHOICES_MAX);
}

static void asked_fini(struct asked *a)
{
    ask_fini(&a->ask);
    logit_bias_fini(&a->bias);
    prompt_list_fini(&a->prompts);
}

void generation_serve(struct gateway *g, struct exchange *x, const struct shape *shape)
{
    struct fault fault;
    CLEANUP(asked_fini) struct asked asked = {0};
    size_t bytes;
    const char *body = exchange_body(x, &bytes);
    int r = admits(g, x, &fault);
    if (r == 0) r = ask_parse(shape->api, body, bytes, &fault, &asked.ask);
    if (r == 0) r = generation_model(g, &asked.ask, &fault);
    if (r == 0) {
        g->metrics.prompts_read++;
        r = read_prompts(g, shape, &asked, &fault);
    }
    if (r < 0)
        reply_fault(x, &fault);
    else
        start(g, x, shape, &asked);
}

uint32_t generation_tokens(const struct generation *g)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < g->n_choices; i++)
        n += g->choice[i].n_generated;
    return n;
}

uint32_t generation_prompt_tokens(const struct generation *g)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < g->n_prompts; i++)
        n += (uint32_t)g->prompt[i].ids.n;
    return n;
}

uint32_t generation_cached_tokens(const struct generation *g)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < g->n_prompts; i++)
        n += g->prompt[i].n_cached;
    return n;
}

/* After a stop string only the tokens before it are the answer's. */
struct logprobs_part choice_probs(struct choice *c)
{
    struct generation *g = c->of;
    uint32_t from = c->n_probs_sent, to = from;
    if (c->probs.n > from) {
        to = c->ending == ENDED_BY_STRING ? text_tokens_before_stop(c->text)
                                          : text_tokens_shown(c->text, from);
        to = max_u32(from, min_u32(to, c->probs.n));
    }
    c->n_probs_sent = to;
    return (struct logprobs_part){&c->probs, g->gateway->model.tokenizer, from, to, false};
}

struct logprobs_part choice_shown_probs(const struct choice *c)
{
    return (struct logprobs_part){&c->probs, c->of->gateway->model.tokenizer, 0, c->n_probs_sent,
                                  false};
}

json_t *choice_text(const struct choice *c)
{
    return json_stringn(bytebuf_bytes(&c->out), bytebuf_size(&c->out));
}
