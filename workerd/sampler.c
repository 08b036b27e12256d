/* SPDX-License-Identifier: MIT */
/*
 * Biases and penalties, greedy choice, sampling after top-k, top-p, min-p and temperature, and
 * log-probabilities. Called by model.c for each lane that wants a token; keeps nothing.
 */
#include "workerd/sampler.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "common/base.h"

static uint32_t argmax(const float *logits, uint32_t n)
{
    uint32_t best = 0;
    bool found = false;
    for (uint32_t i = 0; i < n; i++) {
        if (isnan(logits[i]) || (found && !(logits[i] > logits[best]))) continue;
        best = i;
        found = true;
    }
    return best;
}

static bool has_nan(const float *logits, uint32_t n)
{
    bool nan = false;
    for (uint32_t i = 0; i < n; i++)
        nan |= logits[i] != logits[i];
    return nan;
}

static uint32_t lowest_number(const float *logits, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++)
        if (!isnan(logits[i])) return i;
    return 0;
}

/* Larger logit first, lower id on a tie: a strict order, so that the result of a sort is one. */
static bool before(struct sampler_candidate a, struct sampler_candidate b)
{
    return a.logit > b.logit || (a.logit == b.logit && a.id < b.id);
}

static int compare(const void *a, const void *b)
{
    const struct sampler_candidate *x = a, *y = b;
    return before(*x, *y) ? -1 : before(*y, *x) ? 1 : 0;
}

/* Brings c[i] down its heap, whose root is the one that comes last. */
static void sift(struct sampler_candidate *c, uint32_t i, uint32_t n)
{
    for (uint32_t child; (child = 2 * i + 1) < n; i = child) {
        if (child + 1 < n && before(c[child], c[child + 1])) child++;
        if (!before(c[i], c[child])) return;
        struct sampler_candidate t = c[i];
        c[i] = c[child];
        c[child] = t;
    }
}

/* The k first of n in order, in c[0..k): a heap of k, so that most of a vocabulary costs one
 * comparison each. */
static void take_first(const float *logits, uint32_t n, uint32_t k, struct sampler_candidate *c)
{
    for (uint32_t i = 0; i < k; i++)
        c[i] = (struct sampler_candidate){logits[i], i};
    for (uint32_t i = k / 2; i-- > 0;)
        sift(c, i, k);
    for (uint32_t i = k; i < n; i++) {
        if (!(logits[i] > c[0].logit)) continue;
        c[0] = (struct sampler_candidate){logits[i], i};
        sift(c, 0, k);
    }
    qsort(c, k, sizeof(*c), compare);
}

static double weight(const struct sampler_candidate *c, uint32_t i, double per)
{
    /* The largest logit may be infinite: it then has all the weight. */
    return c[i].logit == c[0].logit ? 1 : exp(((double)c[i].logit - (double)c[0].logit) * per);
}

/* How many of n ordered candidates hold top_p of the probability: the fewest that reach it. */
static uint32_t keep_top_p(const struct sampler_candidate *c, uint32_t n, double top_p)
{
    double all = 0, sum = 0;
    for (uint32_t i = 0; i < n; i++)
        all += weight(c, i, 1);
    for (uint32_t i = 0; i < n; i++) {
        sum += weight(c, i, 1);
        if (sum >= top_p * all) return i + 1;
    }
    return n;
}

/* How many are at least min_p times as likely as the first. */
static uint32_t keep_min_p(const struct sampler_candidate *c, uint32_t n, double min_p)
{
    uint32_t kept = 1;
    while (kept < n && weight(c, kept, 1) >= min_p)
        kept++;
    return kept;
}

/* splitmix64's finisher (Steele, Lea, Flood 2014) over a counter made of the position. */
static uint64_t mixed(uint64_t v)
{
    v = (v ^ v >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
    v = (v ^ v >> 27) * UINT64_C(0x94d049bb133111eb);
    return v ^ v >> 31;
}

/* In [0, 1), of (seed, position) and nothing else. */
static double uniform(uint64_t seed, uint32_t pos)
{
    uint64_t v = mixed(mixed(seed) + (pos + UINT64_C(1)) * UINT64_C(0x9e3779b97f4a7c15));
    return (double)(v >> 11) * 0x1p-53;
}

static uint32_t draw(const struct sampler_candidate *c, uint32_t n, double temperature, double u)
{
    double all = 0, sum = 0;
    for (uint32_t i = 0; i < n; i++)
        all += weight(c, i, 1 / temperature);
    for (uint32_t i = 0; i < n; i++) {
        sum += weight(c, i, 1 / temperature);
        if (u * all < sum) return c[i].id;
    }
    return c[n - 1].id;
}

uint32_t sample(const float *logits, uint32_t n_vocab, const struct sampling *s, uint32_t pos,
                struct sampler_candidate *scratch)
{
    if (has_nan(logits, n_vocab)) return lowest_number(logits, n_vocab);
    if (!(s->temperature > 0)) return argmax(logits, n_vocab);
    uint32_t n = s->top_k > 0 && s->top_k < n_vocab ? s->top_k : n_vocab;
    take_first(logits, n_vocab, n, scratch);
    if (s->top_p < 1) n = keep_top_p(scratch, n, s->top_p);
    if (s->min_p > 0) n = keep_min_p(scratch, n, s->min_p);
    return draw(scratch, n, s->temperature, uniform(s->seed, pos));
}

/* ---- biases and penalties ---- */

static bool repeats(const struct sampling *s) { return s->repeat != 0 && s->repeat != 1; }

uint32_t sampling_looks_back(const struct sampling *s, uint32_t n, uint32_t n_generated)
{
    uint32_t back = s->presence != 0 || s->frequency != 0 ? n_generated : 0;
    return max_u32(back, repeats(s) ? min_u32(s->repeat_last, n) : 0);
}

static void add_repeat(const uint32_t *ids, uint32_t n, float repeat, float *l, uint32_t *counts)
{
    for (uint32_t i = 0; i < n; i++) {
        if (counts[ids[i]]++) continue;
        l[ids[i]] = l[ids[i]] > 0 ? l[ids[i]] / repeat : l[ids[i]] * repeat;
    }
    for (uint32_t i = 0; i < n; i++)
        counts[ids[i]] = 0;
}

static void add_counted(const uint32_t *ids, uint32_t n, const struct sampling *s, float *l,
                        uint32_t *counts)
{
    for (uint32_t i = 0; i < n; i++)
        counts[ids[i]]++;
    for (uint32_t i = 0; i < n; i++) {
        uint32_t count = counts[ids[i]];
        if (count == 0) continue; /* done at its first place */
        l[ids[i]] -= s->presence + s->frequency * (float)count;
        counts[ids[i]] = 0;
    }
}

void sampler_adjust(const float *logits, uint32_t n_vocab, const struct sampling *s,
                    const struct sampler_past *past, float *adjusted, uint32_t *counts)
{
    memcpy(adjusted, logits, n_vocab * sizeof(*adjusted));
    for (uint32_t i = 0; i < s->n_biases; i++)
        adjusted[s->biases[i].id] += s->biases[i].add;
    uint32_t last = min_u32(s->repeat_last, past->n);
    if (repeats(s)) add_repeat(past->ids + past->n - last, last, s->repeat, adjusted, counts);
    if (s->presence != 0 || s->frequency != 0)
        add_counted(past->ids + past->n - past->n_generated, past->n_generated, s, adjusted,
                    counts);
}

/* ---- probabilities ---- */

/* Equal infinities are 0 apart. */
static double below(float logit, float most)
{
    return logit == most ? 0 : (double)logit - (double)most;
}

void sampler_probs(const float *logits, uint32_t n_vocab, uint32_t token, uint32_t n_top,
                   struct sampler_candidate *scratch, struct link_probs *ret)
{
    *ret = (struct link_probs){.logprob = -INFINITY};
    if (has_nan(logits, n_vocab)) return;
    float most = logits[argmax(logits, n_vocab)];
    double sum = 0;
    for (uint32_t i = 0; i < n_vocab; i++)
        sum += exp(below(logits[i], most));
    double norm = log(sum);
    ret->logprob = (float)(below(logits[token], most) - norm);
    ret->n_top = min_u32(min_u32(n_top, LINK_TOP_MAX), n_vocab);
    if (ret->n_top == 0) return;
    take_first(logits, n_vocab, ret->n_top, scratch);
    for (uint32_t i = 0; i < ret->n_top; i++)
        ret->top[i] =
            (struct link_prob){scratch[i].id, (float)(below(scratch[i].logit, most) - norm)};
}
