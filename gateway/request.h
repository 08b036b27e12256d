/* SPDX-License-Identifier: MIT */
#ifndef GATEWAY_REQUEST_H
#define GATEWAY_REQUEST_H
/*
 * A generation's life: prompt tokens in, tokens out, whichever heads it takes. What was sent is
 * known here alone, so it is here alone that a request is submitted again after a death: a new
 * attempt with the prompt and the tokens so far apart. Knows neither HTTP nor text.
 *
 * Loop thread only. A request belongs to requests; who made it may use it until `finished` was
 * called or it called request_leave.
 */
#include <stdbool.h>

#include "gateway/api/errors.h"
#include "gateway/news.h"
#include "gateway/pipelines.h"

struct requests;
struct request;

struct requests_options {
    struct loop *loop;
    struct pipelines *pipelines;
    uint32_t resume_ms; /* how long a request without a pipeline waits for one */
    uint32_t late_ms;   /* without a lane for so long is late: the client should hear something */
    uint32_t n_vocab;   /* ids at or past it are refused */
};

struct request_end {
    enum fault_kind fault;  /* FAULT_NONE: reason holds */
    Cistern__Reason reason; /* STOP or LENGTH */
    bool truncated;         /* LENGTH because the pool had no room */
    const char *text;       /* of a fault: a sentence */
};

struct request_events {
    /* The prompt has a lane; it is told once, however many attempts there are. */
    void (*started)(void *arg);
    /* No lane for some seconds; told once, if at all. */
    void (*late)(void *arg);
    /* More of the prompt is read; only to who asked for that or for its probabilities. probs: of
     * the tokens at positions first..; each is told once. */
    void (*read)(void *arg, uint32_t n_read, uint32_t first, const struct probs *probs);
    /* probs: of the n tokens; NULL: not asked for. */
    void (*tokens)(void *arg, const uint32_t *ids, size_t n, const struct probs *probs);
    void (*finished)(void *arg, const struct request_end *end);
    void *arg;
};

struct request_ask {
    const uint32_t *prompt; /* copied */
    uint32_t n_prompt;
    uint32_t max_tokens; /* at least 1 */
    bool open_end;       /* nobody asked for so many: it is what the context leaves */
    uint32_t top_k;
    float temperature, top_p, min_p;
    uint64_t seed;
    uint64_t salt;               /* whose conversations it may go on from; 0: everybody's */
    const uint32_t *stop_tokens; /* must live as long as the request */
    uint32_t n_stop_tokens;
    uint32_t min_tokens;      /* no stop token before so many */
    const uint32_t *bias_ids; /* copied */
    const float *biases;      /* copied; -INFINITY: never */
    uint32_t n_biases;
    float repeat, presence, frequency; /* workerd/sampler.h */
    uint32_t repeat_last;
    bool probs;        /* of the tokens */
    bool prompt_probs; /* of the prompt's tokens but the first; nothing of it is then taken from the
                          cache */
    uint32_t n_top;    /* alternatives, in either */
    bool progress;
};

int requests_new(const struct requests_options *o, struct why *why, struct requests **ret);
void requests_free(struct requests *rs); /* tells nobody */
static inline void requests_freep(struct requests **rs) { requests_free(*rs); }

struct request *request_new(struct requests *rs, const struct request_ask *ask,
                            const struct request_events *events);
/* The client is gone. */
void request_leave(struct request *r);
/* A stop string: only the first keep tokens are worth keeping. */
void request_stop(struct request *r, uint32_t keep);
uint32_t request_cached_tokens(const struct request *r);
/* What is going on in a row of the pool, if it is a request of this gateway. */
struct request_view {
    uint64_t id;
    uint32_t n_prompt, n_cached, n_generated, max_tokens;
};
bool requests_on_row(const struct requests *rs, uint32_t row, uint64_t generation,
                     struct request_view *ret);
/* Every request ends with this fault; for the end of the process. */
void requests_end_all(struct requests *rs, enum fault_kind fault, const char *text);

uint32_t requests_in_flight(const struct requests *rs); /* those being cancelled included */
/* Attempts that ended, and were or will be submitted again: moved, or lost. */
void requests_ended(const struct requests *rs, uint64_t *ret_moved, uint64_t *ret_lost);
uint32_t requests_unstarted(const struct requests *rs); /* without a lane */

/* For pipelines' events. */
void requests_message(struct requests *rs, struct pipeline *p, const Cistern__Envelope *m);
void requests_lost(struct requests *rs, struct pipeline *p);

#endif
