/* SPDX-License-Identifier: MIT */
/*
 * See news.h.
 */
#include "gateway/news.h"

#include <errno.h>
#include <math.h>

int probs_from(const Cistern__Probs *m, size_t n, uint32_t n_top, uint32_t n_vocab,
               struct probs *ret)
{
    if (!m || m->n_logprobs != n || m->n_top != n_top || m->n_top_ids != n * n_top ||
        m->n_top_logprobs != n * n_top)
        return -EPROTO;
    for (size_t i = 0; i < n; i++)
        if (isnan(m->logprobs[i])) return -EPROTO;
    for (size_t i = 0; i < n * n_top; i++)
        if (m->top_ids[i] >= n_vocab || isnan(m->top_logprobs[i])) return -EPROTO;
    *ret = (struct probs){(uint32_t)n, n_top, m->logprobs, m->top_ids, m->top_logprobs};
    return 0;
}

struct probs probs_after(struct probs p, uint32_t skip)
{
    size_t top = (size_t)skip * p.n_top;
    if (skip == 0) return p;
    p.n -= skip;
    p.logprobs += skip;
    if (top) p.top_ids += top; /* without alternatives there is no array */
    if (top) p.top_logprobs += top;
    return p;
}

int news_check(uint32_t have, uint32_t first, size_t n, size_t *ret_skip)
{
    if (first > have) return -EBADMSG;
    size_t known = have - first;
    if (known >= n) return -EALREADY;
    *ret_skip = known;
    return 0;
}

int tokens_check(uint32_t attempt, uint32_t have, const Cistern__Tokens *m, size_t *ret_skip)
{
    if (m->attempt != attempt) return -ESTALE;
    return news_check(have, m->index, m->n_ids, ret_skip);
}
