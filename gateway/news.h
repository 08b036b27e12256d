/* SPDX-License-Identifier: MIT */
#ifndef GATEWAY_NEWS_H
#define GATEWAY_NEWS_H
/*
 * What of a head's message is news to a request: the checks at the door, and which part of it the
 * request already has of an earlier attempt. No state; request.c calls it.
 */
#include "cistern.pb-c.h"
#include "common/base.h"

/* Log-probabilities of n tokens, by the model's own logits. They lie in the message that brought
 * them. */
struct probs {
    uint32_t n, n_top;
    const float *logprobs;     /* [n]; -INFINITY: impossible, or no numbers */
    const uint32_t *top_ids;   /* [n][n_top], the most likely first */
    const float *top_logprobs; /* likewise */
};

/* m may be NULL: that is none. -EPROTO: not n of n_top each, an id past the vocabulary, a NaN. */
int probs_from(const Cistern__Probs *m, size_t n, uint32_t n_top, uint32_t n_vocab,
               struct probs *ret);
/* Without the first skip. */
struct probs probs_after(struct probs p, uint32_t skip);

/* Which of a message's tokens are news to who has `have` tokens and is at this attempt: those from
 * *ret_skip on. -ESTALE: another attempt's; -EALREADY: none; -EBADMSG: some before them are
 * missing. */
int tokens_check(uint32_t attempt, uint32_t have, const Cistern__Tokens *m, size_t *ret_skip);
/* The same of n things from number first on. */
int news_check(uint32_t have, uint32_t first, size_t n, size_t *ret_skip);

#endif
