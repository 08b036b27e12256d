/* SPDX-License-Identifier: MIT */
#ifndef WORKERD_SAMPLER_H
#define WORKERD_SAMPLER_H
/*
 * Choice of a token from a row of logits. A function of the logits and the numbers below, of
 * nothing else: no state survives a call, so a request that is submitted again after a death
 * continues with the tokens it would have had.
 */
#include <stdint.h>

struct sampling {
    float temperature; /* 0: the largest logit, lower id on a tie */
    float top_p;       /* 1: off */
    float min_p;       /* 0: off */
    uint32_t top_k;    /* 0: off */
    uint64_t seed;
};

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

#endif
