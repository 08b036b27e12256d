/* SPDX-License-Identifier: MIT */
#ifndef WORKERD_SAMPLER_H
#define WORKERD_SAMPLER_H
/*
 * Choice of a token from a row of logits, and the probabilities that a row gives. A function of the
 * logits, the tokens before and the numbers below, of nothing else: no state survives a call, so a
 * request that is submitted again after a death continues with the tokens it would have had.
 */
#include <stdbool.h>
#include <stdint.h>

#include "proto/link_shm.h"

struct sampling {
    float temperature; /* 0: the largest logit, lower id on a tie */
    float top_p;       /* 1: off */
    float min_p;       /* 0: off */
    uint32_t top_k;    /* 0: off */
    uint64_t seed;
    /* Changes to the logits before all that, see sampler_adjust. */
    const struct link_bias *biases; /* an id may be there twice: both are added */
    uint32_t n_biases;
    uint32_t repeat_last; /* tokens that repeat looks at, from the last one on */
    float repeat;         /* 0 and 1: off */
    float presence, frequency;
};

/* The tokens before the one that is chosen. */
struct sampler_past {
    const uint32_t *ids; /* [n], below n_vocab */
    uint32_t n;
    uint32_t n_generated; /* so many of the last were generated: presence and frequency see those */
};

static inline bool sampling_penalises(const struct sampling *s)
{
    return s->presence != 0 || s->frequency != 0 || (s->repeat != 0 && s->repeat != 1);
}
static inline bool sampling_adjusts(const struct sampling *s)
{
    return s->n_biases > 0 || sampling_penalises(s);
}
/* How many of n tokens, n_generated of them generated, the penalties look at: the last so many. */
uint32_t sampling_looks_back(const struct sampling *s, uint32_t n, uint32_t n_generated);

/* adjusted[n_vocab] = logits, changed in this order:
 *   + bias of the id
 *   / repeat when positive, * repeat when not, if the id is among the last repeat_last tokens
 *     (CTRL, arXiv:1909.05858, section 4.1, with llama.cpp's treatment of negative logits)
 *   - presence - frequency * count, if the id was generated count > 0 times (OpenAI's reference)
 * counts: [n_vocab], all 0 before and after. */
void sampler_adjust(const float *logits, uint32_t n_vocab, const struct sampling *s,
                    const struct sampler_past *past, float *adjusted, uint32_t *counts);

/* logits: [n_vocab], not changed. pos: the position that the chosen token will have; with the seed
 * it keys the counter-based generator. scratch: at least n_vocab words of {float, uint32_t}. Order
 * of the filters: top_k, top_p, min_p, temperature (llama.cpp's order). A row of logits with a NaN
 * gives the lowest id that is a number (0 if none): never out of range. */
struct sampler_candidate {
    float logit;
    uint32_t id;
};
uint32_t sample(const float *logits, uint32_t n_vocab, const struct sampling *s, uint32_t pos,
                struct sampler_candidate *scratch);

/* The logarithm of the softmax of the logits as they are, whose sum is that of mass.h: of token,
 * and of the n_top (at most LINK_TOP_MAX) most likely. A row with a NaN has none: logprob is then
 * -INFINITY and ret->n_top 0. scratch as above. */
void sampler_probs(const float *logits, uint32_t n_vocab, uint32_t token, uint32_t n_top,
                   struct sampler_candidate *scratch, struct link_probs *ret);

/* A row of logits and all that is asked of it; backends do it where the logits are
 * (backend.h: sample) and give the same bits. */
struct sampler_row {
    const struct sampling *sampling; /* NULL: no token is chosen */
    struct sampler_past past;        /* what the penalties look back to */
    uint32_t pos;                    /* that the chosen token will have */
    uint32_t token;                  /* out: the chosen one */
    struct link_probs *probs;        /* out, by the logits as they are; NULL: none are wanted */
    uint32_t of; /* the token that they are about; LINK_NEXT_SAMPLED: the chosen */
    uint32_t n_top;
};

/* Nothing is asked but the largest logit. */
static inline bool sampler_is_greedy(const struct sampler_row *r)
{
    return r->sampling && !r->probs && !(r->sampling->temperature > 0) &&
           !sampling_adjusts(r->sampling);
}

/* What a thread needs to do rows of a vocabulary on the host. */
struct sampler;
struct sampler *sampler_new(uint32_t n_vocab);
void sampler_free(struct sampler *s); /* takes NULL */
void sampler_do(struct sampler *s, const float *logits, struct sampler_row *row);

#endif
