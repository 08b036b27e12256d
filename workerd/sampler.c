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

enum {
    LANES = 16,       /* of a pass over a row: independent, so that compilers use vectors */
    BLOCK = 64,       /* logits that are summed at once; a multiple of LANES */
    FIRST_TAKEN = 256 /* candidates looked at first; most probability lies in fewer */
};

/* ---- passes over a row ---- */

/* The largest logit; NaN when there is one. */
static float largest(const float *logits, uint32_t n)
{
    float most[LANES];
    bool nan = false;
    uint32_t i = 0;
    for (uint32_t j = 0; j < LANES; j++)
        most[j] = -INFINITY;
    for (; i + LANES <= n; i += LANES)
        for (uint32_t j = 0; j < LANES; j++) {
            most[j] = logits[i + j] > most[j] ? logits[i + j] : most[j];
            nan |= logits[i + j] != logits[i + j];
        }
    for (; i < n; i++) {
        most[0] = logits[i] > most[0] ? logits[i] : most[0];
        nan |= logits[i] != logits[i];
    }
    for (uint32_t j = 1; j < LANES; j++)
        most[0] = most[j] > most[0] ? most[j] : most[0];
    return nan ? NAN : most[0];
}

/* Vectors as compilers have them everywhere: each lane is computed like a number alone. */
typedef double pair __attribute__((vector_size(16)));
typedef int64_t pair_bits __attribute__((vector_size(16)));
enum { PAIR = 2 };

static inline pair both(double v) { return (pair){v, v}; }
static inline pair only_where(pair_bits wanted, pair v) { return (pair)((pair_bits)v & wanted); }

/* e^x for x <= 0, within 1e-14 of it: 2^k e^r by a Taylor series to r^12, |r| <= log(2) / 2, which
 * leaves out less than 2e-16. 0 where e^x is no normal number, and for a NaN. Ours, since a C
 * library's bits differ between processors, and a token drawn must not. */
static inline pair exp_below(pair x)
{
    static const double term[] = {1.0 / 479001600,
                                  1.0 / 39916800,
                                  1.0 / 3628800,
                                  1.0 / 362880,
                                  1.0 / 40320,
                                  1.0 / 5040,
                                  1.0 / 720,
                                  1.0 / 120,
                                  1.0 / 24,
                                  1.0 / 6,
                                  0.5,
                                  1,
                                  1};
    const pair magic = both(0x1.8p52); /* added and subtracted: rounds to an integer */
    pair_bits normal = x >= both(-708);
    pair y = only_where(normal, x), sum = y * both(0x1.71547652b82fep+0) + magic, k = sum - magic;
    pair r =
        y - k * both(0x1.62e42fefa3800p-1); /* log(2) in two parts; k times this one is exact */
    r -= k * both(0x1.ef35793c76730p-45);
    pair p = both(term[0]);
    for (size_t i = 1; i < ARRAY_LEN(term); i++)
        p = p * r + both(term[i]);
    pair_bits power = ((pair_bits)sum + 1023) << 52; /* k lies in the lowest bits of the sum */
    return only_where(normal, p * (pair)power);
}

/* How likely logits are beside the largest, at 1 / per. Equal infinities are equally likely. */
static inline pair weights(pair logits, double most, double per)
{
    return exp_below(only_where(logits != both(most), (logits - both(most)) * both(per)));
}

static double weight(float logit, float most, double per)
{
    return weights(both((double)logit), (double)most, per)[0];
}

/* Of at most BLOCK logits; the order of the additions depends on n alone. */
static double block_sum(const float *logits, uint32_t n, float most, double per)
{
    pair lane[LANES / PAIR] = {0};
    uint32_t i = 0;
    for (; i + LANES <= n; i += LANES)
        for (uint32_t j = 0; j < LANES / PAIR; j++) {
            const float *at = logits + i + j * PAIR;
            lane[j] += weights((pair){(double)at[0], (double)at[1]}, (double)most, per);
        }
    for (; i < n; i++)
        lane[0] += (pair){weight(logits[i], most, per), 0};
    for (uint32_t j = 1; j < LANES / PAIR; j++)
        lane[0] += lane[j];
    return lane[0][0] + lane[0][1];
}

static double row_sum(const float *logits, uint32_t n, float most, double per)
{
    double sum = 0;
    for (uint32_t i = 0; i < n; i += BLOCK)
        sum += block_sum(logits + i, min_u32(BLOCK, n - i), most, per);
    return sum;
}

static uint32_t find(const float *logits, uint32_t n, float logit)
{
    for (uint32_t i = 0; i < n; i++)
        if (logits[i] == logit) return i;
    return 0;
}

static uint32_t lowest_number(const float *logits, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++)
        if (!isnan(logits[i])) return i;
    return 0;
}

/* ---- candidates ---- */

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

/* How many of n ordered candidates hold so much of the probability: the fewest that reach it; n + 1
 * when they don't. */
static uint32_t reach(const struct sampler_candidate *c, uint32_t n, double share)
{
    double sum = 0;
    for (uint32_t i = 0; i < n; i++) {
        sum += weight(c[i].logit, c[0].logit, 1);
        if (sum >= share) return i + 1;
    }
    return n + 1;
}

static double candidates_sum(const struct sampler_candidate *c, uint32_t n, double per)
{
    double sum = 0;
    for (uint32_t i = 0; i < n; i++)
        sum += weight(c[i].logit, c[0].logit, per);
    return sum;
}

/* How many are at least min_p times as likely as the first. */
static uint32_t keep_min_p(const struct sampler_candidate *c, uint32_t n, double min_p)
{
    uint32_t kept = 1;
    while (kept < n && weight(c[kept].logit, c[0].logit, 1) >= min_p)
        kept++;
    return kept;
}

/* The candidates that all filters keep, in order. Where top_k says no number, so many are taken
 * that the other two filters are decided within them. */
static uint32_t candidates(const float *logits, uint32_t n_vocab, float most,
                           const struct sampling *s, struct sampler_candidate *c)
{
    bool all = s->top_k == 0 || s->top_k >= n_vocab;
    uint32_t n = all ? min_u32(FIRST_TAKEN, n_vocab) : s->top_k, kept = n;
    double sum = all && s->top_p < 1 ? row_sum(logits, n_vocab, most, 1) : 0;
    for (;; n = (uint32_t)min_u64((uint64_t)n * 8, n_vocab)) {
        take_first(logits, n_vocab, n, c);
        if (s->top_p < 1)
            kept = reach(c, n, (double)s->top_p * (all ? sum : candidates_sum(c, n, 1)));
        else
            kept = all && n < n_vocab ? n + 1 : n;
        bool decided = kept <= n;
        kept = min_u32(kept, n);
        if (s->min_p > 0) {
            uint32_t likely = keep_min_p(c, n, (double)s->min_p);
            decided |= likely < n;
            kept = min_u32(kept, likely);
        }
        if (decided || n == n_vocab || !all) return kept;
    }
}

/* ---- drawing ---- */

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
    double want = u * candidates_sum(c, n, 1 / temperature), sum = 0;
    for (uint32_t i = 0; i < n; i++) {
        sum += weight(c[i].logit, c[0].logit, 1 / temperature);
        if (want < sum) return c[i].id;
    }
    return c[n - 1].id;
}

/* The same of a whole row in the order of the ids, which needs no sorting. */
static uint32_t draw_row(const float *logits, uint32_t n, float most, double temperature, double u)
{
    double per = 1 / temperature, want = u * row_sum(logits, n, most, per), sum = 0;
    uint32_t i = 0, last = 0;
    for (double block; i < n; i += BLOCK, sum += block) {
        block = block_sum(logits + i, min_u32(BLOCK, n - i), most, per);
        if (want < sum + block) break;
    }
    for (; i < n; i++) {
        double w = weight(logits[i], most, per);
        sum += w;
        if (want < sum) return i;
        if (w > 0) last = i; /* where rounding leaves nothing to draw from */
    }
    return last;
}

uint32_t sample(const float *logits, uint32_t n_vocab, const struct sampling *s, uint32_t pos,
                struct sampler_candidate *scratch)
{
    float most = largest(logits, n_vocab);
    if (isnan(most)) return lowest_number(logits, n_vocab);
    if (!(s->temperature > 0)) return find(logits, n_vocab, most);
    double u = uniform(s->seed, pos), temperature = (double)s->temperature;
    if (s->top_k == 0 && !(s->top_p < 1) && !(s->min_p > 0))
        return draw_row(logits, n_vocab, most, temperature, u);
    uint32_t n = candidates(logits, n_vocab, most, s, scratch);
    return draw(scratch, n, temperature, u);
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
    float most = largest(logits, n_vocab);
    *ret = (struct link_probs){.logprob = -INFINITY};
    if (isnan(most)) return;
    double norm = log(row_sum(logits, n_vocab, most, 1));
    ret->logprob = (float)(below(logits[token], most) - norm);
    ret->n_top = min_u32(min_u32(n_top, LINK_TOP_MAX), n_vocab);
    if (ret->n_top == 0) return;
    take_first(logits, n_vocab, ret->n_top, scratch);
    for (uint32_t i = 0; i < ret->n_top; i++)
        ret->top[i] =
            (struct link_prob){scratch[i].id, (float)(below(scratch[i].logit, most) - norm)};
}
