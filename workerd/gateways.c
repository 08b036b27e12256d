/* SPDX-License-Identifier: MIT */
/*
 * Packs and sends the head's messages to gateways (gateways.h). Owns the socket at which gateways
 * reach the head; what they send goes to the head's handler as it comes.
 */
#include "workerd/gateways.h"

#include <math.h>
#include <string.h>

#include "common/log.h"

struct gateways {
    struct msg_server *server;
    uint64_t failed[POOL_PROCESSES_MAX]; /* as many as can be attached */
    uint32_t n_failed;
};

int gateways_new(struct loop *l, const char *endpoint, uint64_t self, msg_fn fn, void *arg,
                 struct why *why, struct gateways **ret)
{
    struct gateways *g = xnew(struct gateways);
    int r = msg_server_new(l, endpoint, self, fn, arg, why, &g->server);
    if (r < 0) return free(g), r;
    *ret = g;
    return 0;
}

void gateways_free(struct gateways *g)
{
    if (!g) return;
    msg_server_free(g->server);
    free(g);
}

static void fail(struct gateways *g, uint64_t gateway, int r)
{
    for (uint32_t i = 0; i < g->n_failed; i++)
        if (g->failed[i] == gateway) return;
    if (g->n_failed == ARRAY_LEN(g->failed)) return; /* the next send will fail as well */
    log_warn("gateway %016llx takes no message (%s); its requests are cancelled",
             (unsigned long long)gateway, strerror(-r));
    g->failed[g->n_failed++] = gateway;
}

static void send(struct gateways *g, uint64_t to, Cistern__Envelope *m)
{
    int r = msg_server_send(g->server, to, m);
    if (r < 0) fail(g, to, r);
}

void gateways_model(struct gateways *g, uint64_t to, uint64_t number, const struct model_card *c)
{
    Cistern__Model model = CISTERN__MODEL__INIT;
    model.name = (char *)c->name;
    model.arch = (char *)c->arch;
    model.fingerprint = (char *)c->fingerprint;
    model.context_tokens = c->context_tokens;
    model.n_ctx_train = c->n_ctx_train;
    model.n_vocab = c->n_vocab;
    model.n_lanes = c->n_lanes;
    Cistern__Envelope m = CISTERN__ENVELOPE__INIT;
    m.number = number;
    m.body_case = CISTERN__ENVELOPE__BODY_MODEL;
    m.model = &model;
    send(g, to, &m);
}

void gateways_started(struct gateways *g, const struct request *r, const struct lane *l,
                      uint32_t cached_tokens)
{
    Cistern__Started started = CISTERN__STARTED__INIT;
    started.request = r->id;
    started.attempt = r->attempt;
    started.cached_tokens = cached_tokens;
    started.row = l->row;
    started.generation = l->generation;
    started.arrival = l->arrival;
    CLEANUP(freep) uint32_t *spans = NULL;
    started.n_generated_spans = request_spans(r, &spans);
    started.generated_spans = spans;
    Cistern__Envelope m = CISTERN__ENVELOPE__INIT;
    m.body_case = CISTERN__ENVELOPE__BODY_STARTED;
    m.started = &started;
    send(g, r->gateway, &m);
}

/* Probabilities on their way into a message. */
struct packed {
    Cistern__Probs message;
    float *logprobs, *top_logprobs;
    uint32_t *top_ids;
};

static void packed_fini(struct packed *p)
{
    free(p->logprobs);
    free(p->top_logprobs);
    free(p->top_ids);
}

/* n_top at each place, as was asked; where the stage has given fewer the rest is -INFINITY. */
static void pack(const struct link_probs *probs, uint32_t n, uint32_t n_top, struct packed *p)
{
    cistern__probs__init(&p->message);
    p->logprobs = xcalloc(n, sizeof(*p->logprobs));
    p->top_logprobs = xcalloc((size_t)n * n_top, sizeof(*p->top_logprobs));
    p->top_ids = xcalloc((size_t)n * n_top, sizeof(*p->top_ids));
    for (uint32_t i = 0; i < n; i++) {
        p->logprobs[i] = probs[i].logprob;
        for (uint32_t k = 0; k < n_top; k++) {
            bool has = k < probs[i].n_top;
            p->top_ids[i * n_top + k] = has ? probs[i].top[k].id : 0;
            p->top_logprobs[i * n_top + k] = has ? probs[i].top[k].logprob : -INFINITY;
        }
    }
    p->message.logprobs = p->logprobs;
    p->message.n_logprobs = n;
    p->message.n_top = n_top;
    p->message.top_ids = p->top_ids;
    p->message.top_logprobs = p->top_logprobs;
    p->message.n_top_ids = p->message.n_top_logprobs = (size_t)n * n_top;
}

void gateways_read(struct gateways *g, const struct request *r, uint32_t n_read, uint32_t first,
                   const struct link_probs *probs, uint32_t n)
{
    CLEANUP(packed_fini) struct packed packed = {0};
    Cistern__Read read = CISTERN__READ__INIT;
    read.request = r->id;
    read.attempt = r->attempt;
    read.n_read = n_read;
    read.first = first;
    if (r->prompt_probs) {
        pack(probs, n, r->n_top, &packed);
        read.probs = &packed.message;
    }
    Cistern__Envelope m = CISTERN__ENVELOPE__INIT;
    m.body_case = CISTERN__ENVELOPE__BODY_READ;
    m.read = &read;
    send(g, r->gateway, &m);
}

void gateways_token(struct gateways *g, const struct request *r, const struct link_probs *probs)
{
    CLEANUP(packed_fini) struct packed packed = {0};
    Cistern__Tokens tokens = CISTERN__TOKENS__INIT;
    tokens.request = r->id;
    tokens.attempt = r->attempt;
    tokens.index = request_generated(r) - 1;
    uint32_t id = request_token(r, r->n_tokens - 1);
    tokens.n_ids = 1;
    tokens.ids = &id;
    if (r->probs) {
        pack(probs, 1, r->n_top, &packed);
        tokens.probs = &packed.message;
    }
    Cistern__Envelope m = CISTERN__ENVELOPE__INIT;
    m.body_case = CISTERN__ENVELOPE__BODY_TOKENS;
    m.tokens = &tokens;
    send(g, r->gateway, &m);
}

static void send_finished(struct gateways *g, uint64_t to, Cistern__Finished *finished)
{
    Cistern__Envelope m = CISTERN__ENVELOPE__INIT;
    m.body_case = CISTERN__ENVELOPE__BODY_FINISHED;
    m.finished = finished;
    send(g, to, &m);
}

void gateways_finished(struct gateways *g, const struct request *r, const struct ending *e)
{
    Cistern__Finished finished = CISTERN__FINISHED__INIT;
    finished.request = r->id;
    finished.attempt = r->attempt;
    finished.reason = e->reason;
    finished.truncated = e->truncated;
    finished.n_generated = request_generated(r);
    finished.code = e->code;
    if (e->text) finished.text = (char *)e->text;
    finished.stop_token = e->stop_token;
    finished.to_pipeline = e->to;
    send_finished(g, r->gateway, &finished);
}

void gateways_refused(struct gateways *g, uint64_t to, const Cistern__Generate *asked,
                      const struct refusal *refusal)
{
    Cistern__Finished finished = CISTERN__FINISHED__INIT;
    finished.request = asked->request;
    finished.attempt = asked->attempt;
    finished.reason = CISTERN__REASON__ERROR;
    finished.code = refusal->code;
    finished.text = (char *)refusal->text;
    send_finished(g, to, &finished);
}

uint64_t gateways_failed(struct gateways *g) { return g->n_failed ? g->failed[--g->n_failed] : 0; }
