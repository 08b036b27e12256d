/* SPDX-License-Identifier: MIT */
#ifndef WORKERD_REQUESTS_H
#define WORKERD_REQUESTS_H
/*
 * A request as the head knows it, checked at the door (request_from), and the queue of those that
 * wait for a lane. A request has one owner: the queue or a lane. Loop thread of a head only.
 */
#include <stdbool.h>

#include "cistern.pb-c.h"
#include "common/base.h"
#include "workerd/sampler.h"

enum {
    REQUEST_STOPS_MAX = 64,    /* end-of-generation tokens; models have a handful */
    REQUEST_BIASES_MAX = 1024, /* what an API takes */
    REQUEST_TEXT_BYTES = 160,
};

struct request {
    struct request *next; /* in the queue */
    uint64_t gateway, id; /* the gateway's incarnation and its number */
    uint32_t attempt;
    /* [max]: given prompt, given generated, then what is sampled. As the tokens file has them: the
     * kind, above the id, is what the token's row was or is to be computed as. A prompt's tokens
     * are of the kind prompt, but where its cells were reused and had been generated. */
    uint32_t *words;
    uint32_t n_prompt, n_tokens;
    uint32_t max; /* tokens in all, prompt included: never past the context */
    struct sampling sampling;
    struct link_bias *biases; /* [sampling.n_biases] */
    uint32_t min_tokens;      /* stop tokens are not sampled before so many */
    uint32_t n_top;           /* with either of: */
    bool probs, prompt_probs; /* what it wants of the generated tokens, and of the prompt's */
    bool progress;
    uint32_t stops[REQUEST_STOPS_MAX], n_stops;
    uint64_t salt, arrival, resume_generation;
    uint32_t resume_row; /* row + 1 of the last attempt; 0 none */
    uint32_t reserve;    /* cells that it may use, for pool.admission = full */
    uint32_t n_yields;   /* times that its prompt has let a shorter one pass */
    bool admitted;       /* an earlier attempt was: it waits rather than be refused, and what it has
                            not computed again must be of the kinds that it had */
};

/* Why a request is refused at the door. */
struct refusal {
    Cistern__Code code;
    char text[REQUEST_TEXT_BYTES];
};

struct request_limits {
    uint32_t context_tokens, n_vocab;
    uint32_t default_tokens; /* reserved for an answer whose length is open */
};

/* -EPROTO or -ENOMEM with the refusal to be sent. */
int request_from(const Cistern__Generate *g, uint64_t gateway, const struct request_limits *limits,
                 struct refusal *refusal, struct request **ret);
void request_free(struct request *r); /* takes NULL */
static inline void request_freep(struct request **r) { request_free(*r); }

static inline uint32_t request_generated(const struct request *r)
{
    return r->n_tokens - r->n_prompt;
}
/* Its prompt's probabilities are still owed, so it is computed from its beginning. */
static inline bool request_is_fresh(const struct request *r)
{
    return r->prompt_probs && request_generated(r) == 0;
}
bool request_stops_at(const struct request *r, uint32_t token);

static inline uint32_t request_token(const struct request *r, uint32_t pos)
{
    return r->words[pos] & ~POOL_TOKEN_GENERATED;
}
static inline enum link_kind request_kind(const struct request *r, uint32_t pos)
{
    return r->words[pos] & POOL_TOKEN_GENERATED ? LINK_GENERATED : LINK_PROMPT;
}
/* How far the tokens from pos on are of one kind: a position, n_tokens at most. */
uint32_t request_alike(const struct request *r, uint32_t pos);
/* Where its prompt's cells are of the kind generated: pairs of first position and count, in order.
 * Returns how many numbers; *ret is the caller's to free. */
size_t request_spans(const struct request *r, uint32_t **ret);

struct request_queue {
    struct request *first;
    uint32_t n;
};

/* First come, first served; one that was admitted before goes before all that were not, by age. */
void queue_put(struct request_queue *q, struct request *r);
void queue_put_first(struct request_queue *q, struct request *r);
/* The first that may go, in order; NULL when there is none. */
struct request *queue_take(struct request_queue *q,
                           bool (*may_go)(const void *arg, const struct request *r),
                           const void *arg);
/* Takes out the first of this gateway, with this id unless any; NULL when there is none. */
struct request *queue_take_of(struct request_queue *q, uint64_t gateway, bool any, uint64_t id);

#endif
