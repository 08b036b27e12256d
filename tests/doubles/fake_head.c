/* SPDX-License-Identifier: MIT */
/*
 * A worker without a model, for loads on the gateway that no model could make: it attaches to poold
 * as a pipeline of one stage, takes requests as a head does, and sends each one tokens at a fixed
 * rate, one a message, spread over time. It opens no conversation, so the pool stays empty. Not for
 * tests of answers.
 *
 * A token's id tells when it was sent: CLOCK_MONOTONIC in steps of STEP_US, modulo the number of
 * the vocabulary's words (tokens of ASCII letters alone, in the order of their ids).
 * tests/bench/streams reads it.
 */
#include <errno.h>
#include <signal.h>
#include <string.h>

#include "common/config.h"
#include "common/gguf.h"
#include "common/log.h"
#include "common/pool_client.h"
#include "proto/pool_shm.h"

enum {
    BEAT_US = 250000,
    LANES = 64,
    CONTEXT = 4096,
    REQUESTS_MAX = 65536,
    STEP_US = 32,
    PHASES = 32, /* ticks a token: not all requests get theirs in the same one */
    BLOCK_CELLS = 16,
    HEAD_DIM = 64,
};

struct fake_request {
    uint64_t gateway, id;
    uint32_t attempt, n_generated, max_tokens;
    bool started;
};

struct fake {
    struct loop *loop;
    struct pool_client *client;
    struct msg_server *server;
    struct loop_source *beat, *tick, *signals;
    char endpoint[128], fingerprint[65];
    uint32_t life;
    bool attached;
    struct fake_request *at; /* in order of arrival; the first n_running run */
    size_t n, n_running;
    uint32_t *words; /* ids; see above */
    uint32_t n_words, phase;
};

static void to_poold(struct fake *f, Cistern__Envelope *m)
{
    m->number = pool_client_number(f->client);
    (void)pool_client_send(f->client, m);
}

static void to_gateway(struct fake *f, uint64_t gateway, Cistern__Envelope *m)
{
    if (msg_server_send(f->server, gateway, m) < 0) log_warn("a gateway takes no message");
}

static void attach(void *arg)
{
    struct fake *f = arg;
    Cistern__Geometry g = CISTERN__GEOMETRY__INIT;
    Cistern__AttachWorker a = CISTERN__ATTACH_WORKER__INIT;
    Cistern__Envelope m = CISTERN__ENVELOPE__INIT;
    g.n_layers = g.n_kv_heads = 1;
    g.head_dim = HEAD_DIM;
    g.kv = POOL_KV_F16;
    g.block_cells = BLOCK_CELLS;
    g.context_tokens = CONTEXT;
    g.block_bytes = 2 * 2 * HEAD_DIM * BLOCK_CELLS;
    g.fingerprint = f->fingerprint;
    g.arithmetic = (char *)"fake";
    a.n_stages = a.n_layers = 1;
    a.geometry = &g;
    a.max_rows = a.max_lanes = LANES;
    a.n_embd = HEAD_DIM;
    a.endpoint = f->endpoint;
    m.body_case = CISTERN__ENVELOPE__BODY_ATTACH_WORKER;
    m.attach_worker = &a;
    to_poold(f, &m);
}

static void on_beat(void *arg)
{
    struct fake *f = arg;
    Cistern__Heartbeat beat = CISTERN__HEARTBEAT__INIT;
    Cistern__Envelope m = CISTERN__ENVELOPE__INIT;
    beat.phase = f->attached ? 2 : 1;
    beat.life = f->life;
    m.body_case = CISTERN__ENVELOPE__BODY_HEARTBEAT;
    m.heartbeat = &beat;
    to_poold(f, &m);
}

static void on_lost(void *arg) { ((struct fake *)arg)->attached = false; }

static void on_pool_message(void *arg, const Cistern__Envelope *m)
{
    struct fake *f = arg;
    if (m->body_case == CISTERN__ENVELOPE__BODY_REFUSED) log_error("%s", m->refused->text);
    if (m->body_case != CISTERN__ENVELOPE__BODY_ATTACHED) return;
    f->attached = true;
    on_beat(f);
}

static void on_files(void *arg, const struct lifeline_files *files, int *fds, uint32_t n_fds)
{
    struct fake *f = arg;
    if (files->kind == LIFELINE_LINK) f->life = files->life;
    for (uint32_t i = 0; i < n_fds; i++)
        (void)close(fds[i]);
    on_beat(f);
}

static void on_refused(void *arg, const char *text)
{
    log_error("%s", text);
    loop_stop(((struct fake *)arg)->loop, -ECONNREFUSED);
}

static void say_model(struct fake *f, uint64_t to, uint64_t number)
{
    Cistern__Model model = CISTERN__MODEL__INIT;
    Cistern__Envelope m = CISTERN__ENVELOPE__INIT;
    model.fingerprint = f->fingerprint;
    model.context_tokens = model.n_ctx_train = CONTEXT;
    model.n_lanes = LANES;
    m.number = number;
    m.body_case = CISTERN__ENVELOPE__BODY_MODEL;
    m.model = &model;
    to_gateway(f, to, &m);
}

static void finish(struct fake *f, size_t i, Cistern__Reason reason)
{
    Cistern__Finished end = CISTERN__FINISHED__INIT;
    Cistern__Envelope m = CISTERN__ENVELOPE__INIT;
    end.request = f->at[i].id;
    end.attempt = f->at[i].attempt;
    end.reason = reason;
    end.n_generated = f->at[i].n_generated;
    m.body_case = CISTERN__ENVELOPE__BODY_FINISHED;
    m.finished = &end;
    to_gateway(f, f->at[i].gateway, &m);
    memmove(&f->at[i], &f->at[i + 1], (--f->n - i) * sizeof(*f->at));
}

static void start(struct fake *f, struct fake_request *r)
{
    Cistern__Started started = CISTERN__STARTED__INIT;
    Cistern__Envelope m = CISTERN__ENVELOPE__INIT;
    r->started = true;
    started.request = r->id;
    started.attempt = r->attempt;
    m.body_case = CISTERN__ENVELOPE__BODY_STARTED;
    m.started = &started;
    to_gateway(f, r->gateway, &m);
}

static void send_token(struct fake *f, struct fake_request *r)
{
    uint32_t id = f->words[now_us() / STEP_US % f->n_words];
    Cistern__Tokens tokens = CISTERN__TOKENS__INIT;
    Cistern__Envelope m = CISTERN__ENVELOPE__INIT;
    tokens.request = r->id;
    tokens.attempt = r->attempt;
    tokens.index = r->n_generated++;
    tokens.n_ids = 1;
    tokens.ids = &id;
    m.body_case = CISTERN__ENVELOPE__BODY_TOKENS;
    m.tokens = &tokens;
    to_gateway(f, r->gateway, &m);
}

static void on_tick(void *arg)
{
    struct fake *f = arg;
    f->phase = (f->phase + 1) % PHASES;
    for (size_t i = 0; i < f->n && i < f->n_running;) {
        struct fake_request *r = &f->at[i];
        if (r->id % PHASES != f->phase) {
            i++;
            continue;
        }
        if (!r->started) start(f, r);
        send_token(f, r);
        if (r->n_generated >= r->max_tokens)
            finish(f, i, CISTERN__REASON__LENGTH);
        else
            i++;
    }
}

static void on_generate(struct fake *f, uint64_t from, const Cistern__Generate *m)
{
    if (f->n == REQUESTS_MAX) return;
    f->at[f->n++] = (struct fake_request){
        .gateway = from,
        .id = m->request,
        .attempt = m->attempt,
        .n_generated = (uint32_t)(m->generated.len / sizeof(uint32_t)),
        .max_tokens = m->max_tokens,
    };
}

static void on_cancel(struct fake *f, uint64_t from, const Cistern__Cancel *m)
{
    for (size_t i = 0; i < f->n; i++) {
        if (f->at[i].gateway != from || f->at[i].id != m->request) continue;
        finish(f, i, CISTERN__REASON__CANCELLED);
        return;
    }
}

static void on_gateway(void *arg, uint64_t from, const Cistern__Envelope *m)
{
    struct fake *f = arg;
    if (m->body_case == CISTERN__ENVELOPE__BODY_HELLO) say_model(f, from, m->number);
    if (m->body_case == CISTERN__ENVELOPE__BODY_GENERATE) on_generate(f, from, m->generate);
    if (m->body_case == CISTERN__ENVELOPE__BODY_CANCEL) on_cancel(f, from, m->cancel);
}

static void on_signal(void *arg, int signal)
{
    (void)signal;
    loop_stop(((struct fake *)arg)->loop, 0);
}

static bool is_word(struct gguf_str s)
{
    for (size_t i = 0; i < s.bytes; i++)
        if (!(s.at[i] >= 'a' && s.at[i] <= 'z') && !(s.at[i] >= 'A' && s.at[i] <= 'Z'))
            return false;
    return s.bytes > 0;
}

static int read_words(struct fake *f, const struct gguf *g, struct why *why)
{
    struct gguf_array tokens;
    int r = gguf_array(g, "tokenizer.ggml.tokens", GGUF_STRING, &tokens);
    if (r < 0) return why_set(why, r, "%s has no vocabulary", gguf_path(g));
    f->words = xcalloc(tokens.n, sizeof(*f->words));
    for (uint32_t i = 0; i < tokens.n; i++)
        if (is_word(gguf_array_str(&tokens, i))) f->words[f->n_words++] = i;
    if (f->n_words > 0) return 0;
    return why_set(why, -EINVAL, "%s has no words", gguf_path(g));
}

static int set_up(struct fake *f, const struct config *c, uint32_t rate, struct why *why)
{
    static const int signals[] = {SIGTERM, SIGINT};
    uint64_t self = incarnation_new();
    CLEANUP(gguf_freep) struct gguf *g = NULL;
    int r = gguf_open(c->model.path, why, &g);
    if (r == 0) r = gguf_fingerprint(g, f->fingerprint);
    if (r == 0) r = read_words(f, g, why);
    if (r < 0) return r;
    (void)snprintf(f->endpoint, sizeof(f->endpoint), "ipc://%s/head-fake", c->run.dir);
    f->at = xcalloc(REQUESTS_MAX, sizeof(*f->at));
    r = loop_new(&f->loop);
    if (r == 0) r = loop_add_signals(f->loop, signals, 2, on_signal, f, &f->signals);
    if (r == 0) r = loop_add_timer(f->loop, on_beat, f, &f->beat);
    if (r == 0) r = loop_add_timer(f->loop, on_tick, f, &f->tick);
    if (r == 0) r = msg_server_new(f->loop, f->endpoint, self, on_gateway, f, why, &f->server);
    if (r < 0) return r;
    (void)loop_set_timer(f->beat, BEAT_US, BEAT_US);
    uint64_t tick_us = max_u64(1000000 / ((uint64_t)rate * PHASES), 1);
    (void)loop_set_timer(f->tick, tick_us, tick_us);
    struct pool_client_events events = {.connected = attach,
                                        .lost = on_lost,
                                        .message = on_pool_message,
                                        .files = on_files,
                                        .refused = on_refused,
                                        .arg = f};
    return pool_client_new(f->loop, c->run.dir, self, POOL_ROLE_WORKER, &events, why, &f->client);
}

int main(int argc, char **argv)
{
    uint32_t rate = 100, running = LANES;
    struct fake f = {.life = 0};
    struct why why = {.text = ""};
    CLEANUP(config_freep) struct config *config = NULL;
    const struct config_option options[] = {
        {"rate",    &rate,    100000,       "tokens a second of each request that runs (100)"},
        {"running", &running, REQUESTS_MAX, "requests that run at a time (64)"               },
    };
    int r = config_from_args(argc, argv, "fake_head", "a worker without a model", options, 2, &why,
                             &config);
    if (r == 1) return 0;
    f.n_running = running;
    if (r == 0) r = set_up(&f, config, max_u32(rate, 1), &why);
    if (r == 0) r = loop_run(f.loop);
    if (r < 0) log_error("%s", why.text);
    pool_client_free(f.client);
    msg_server_free(f.server);
    loop_free(f.loop);
    free(f.at);
    free(f.words);
    return r < 0;
}
