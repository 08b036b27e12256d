/* SPDX-License-Identifier: MIT */
/*
 * Biases and penalties, greedy choice, sampling after top-k, top-p, min-p and temperature, and
 * log-probabilities. Called by the CPU backend for each row that wants them; keeps nothing.
 */
#include "workerd/sampler.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "common/base.h"
#include "workerd/mass.h"

enum {
    LANES = 16,       /* of a pass over a row: independent, so that compilers use vectors */
    BLOCK = 64,       /* logits that a draw steps over at once; a multiple of LANES */
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

/* Vectors as compilers have them everywhere: each lane is computed like a number alone, by mass.h's
 * steps. */
typedef double pair __attribute__((vector_size(16)));
typedef int64_t pair_bits __attribute__((vector_size(16)));
enum { PAIR = 2 };

static inline pair both(double v) { return (pair){v, v}; }
static inline pair only_where(pair_bits wanted, pair v) { return (pair)((pair_bits)v & wanted); }

static inline pair exp_below(pair x)
{
    static const double term[] = MASS_EXP_TERMS;
    const pair integer = both(MASS_INTEGER);
    pair_bits normal = x >= both(MASS_EXP_LEAST);
    pair y = only_where(normal, x), sum = y * both(MASS_LOG2_E) + integer, k = sum - integer;
    pair r = y - k * both(MASS_LN2_HIGH);
    r -= k * both(MASS_LN2_LOW);
    pair p = both(term[0]);
    for (size_t i = 1; i < ARRAY_LEN(term); i++)
        p = p * r + both(term[i]);
    pair_bits power = ((pair_bits)sum + 1023) << 52;
    return only_where(normal, p * (pair)power);
}

static inline pair_bits masses(pair logits, double most, double per)
{
    pair weight = exp_below(only_where(logits != both(most), (logits - both(most)) * both(per)));
    return (pair_bits)(weight + both(MASS_ROUND)) - MASS_ROUND_BITS;
}

static uint64_t row_sum(const float *logits, uint32_t n, float most, double per)
{
    pair_bits lane[LANES / PAIR] = {0};
    uint64_t sum = 0;
    uint32_t i = 0;
    for (; i + LANES <= n; i += LANES)
        for (uint32_t j = 0; j < LANES / PAIR; j++) {
            const float *at = logits + i + j * PAIR;
            lane[j] += masses((pair){(double)at[0], (double)at[1]}, (double)most, per);
        }
    for (; i < n; i++)
        sum += mass_of(logits[i], most, per);
    for (uint32_t j = 0; j < LANES / PAIR; j++)
        sum += (uint64_t)lane[j][0] + (uint64_t)lane[j][1];
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

/* How many of n ordered candidates hold so much mass: the fewest that reach it; n + 1 when they
 * don't. */
static uint32_t reach(const struct sampler_candidate *c, uint32_t n, uint64_t mass)
{
    uint64_t sum = 0;
    for (uint32_t i = 0; i < n; i++) {
        sum += mass_of(c[i].logit, c[0].logit, 1);
        if (sum >= mass) return i + 1;
    }
    return n + 1;
}

static uint64_t candidates_sum(const struct sampler_candidate *c, uint32_t n, double per)
{
    uint64_t sum = 0;
    for (uint32_t i = 0; i < n; i++)
        sum += mass_of(c[i].logit, c[0].logit, per);
    return sum;
}

/* How many are at least min_p times as likely as the first. */
static uint32_t keep_min_p(const struct sampler_candidate *c, uint32_t n, double min_p)
{
    uint32_t kept = 1;
    while (kept < n && mass_weight(c[kept].logit, c[0].logit, 1) >= min_p)
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
    uint64_t sum = all && s->top_p < 1 ? row_sum(logits, n_vocab, most, 1) : 0;
    for (;; n = (uint32_t)min_u64((uint64_t)n * 8, n_vocab)) {
        take_first(logits, n_vocab, n, c);
        if (s->top_p < 1)
            kept = reach(c, n, mass_share(s->top_p, all ? sum : candidates_sum(c, n, 1)));
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

static uint32_t draw(const struct sampler_candidate *c, uint32_t n, const struct sampling *s,
                     uint32_t pos)
{
    double per = 1 / (double)s->temperature;
    uint64_t want = mass_drawn(s->seed, pos, candidates_sum(c, n, per)), sum = 0;
    for (uint32_t i = 0; i + 1 < n; i++) {
        sum += mass_of(c[i].logit, c[0].logit, per);
        if (want < sum) return c[i].id;
    }
    return c[n - 1].id;
}

/* The same of a whole row in the order of the ids, which needs no sorting. */
static uint32_t draw_row(const float *logits, uint32_t n, float most, const struct sampling *s,
                         uint32_t pos)
{
    double per = 1 / (double)s->temperature;
    uint64_t want = mass_drawn(s->seed, pos, row_sum(logits, n, most, per)), sum = 0;
    uint32_t i = 0;
    for (uint64_t block; i + BLOCK < n; i += BLOCK, sum += block) {
        block = row_sum(logits + i, BLOCK, most, per);
        if (want < sum + block) break;
    }
    for (; i + 1 < n; i++) {
        sum += mass_of(logits[i], most, per);
        if (want < sum) break;
    }
    return i;
}

uint32_t sample(const float *logits, uint32_t n_vocab, const struct sampling *s, uint32_t pos,
                struct sampler_candidate *scratch)
{
    float most = largest(logits, n_vocab);
    if (isnan(most)) return lowest_number(logits, n_vocab);
    if (!(s->temperature > 0)) return find(logits, n_vocab, most);
    if (s->top_k == 0 && !(s->top_p < 1) && !(s->min_p > 0))
        return draw_row(logits, n_vocab, most, s, pos);
    uint32_t n = candidates(logits, n_vocab, most, s, scratch);
    return draw(scratch, n, s, pos);
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

void sampler_probs(const float *logits, uint32_t n_vocab, uint32_t token, uint32_t n_top,
                   struct sampler_candidate *scratch, struct link_probs *ret)
{
    float most = largest(logits, n_vocab);
    *ret = (struct link_probs){.logprob = -INFINITY};
    if (isnan(most)) return;
    double norm = mass_log(row_sum(logits, n_vocab, most, 1));
    ret->logprob = mass_logprob(logits[token], most, norm);
    ret->n_top = min_u32(min_u32(n_top, LINK_TOP_MAX), n_vocab);
    if (ret->n_top == 0) return;
    take_first(logits, n_vocab, ret->n_top, scratch);
    for (uint32_t i = 0; i < ret->n_top; i++)
        ret->top[i] = (struct link_prob){scratch[i].id, mass_logprob(scratch[i].logit, most, norm)};
}

/* ---- a row ---- */

struct sampler {
    uint32_t n_vocab;
    struct sampler_candidate *candidates; /* [n_vocab] */
    float *adjusted;                      /* [n_vocab] */
    uint32_t *counts;                     /* [n_vocab], all 0 */
};

struct sampler *sampler_new(uint32_t n_vocab)
{
    struct sampler *s = xnew(struct sampler);
    s->n_vocab = n_vocab;
    s->candidates = xcalloc(n_vocab, sizeof(*s->candidates));
    s->adjusted = xcalloc(n_vocab, sizeof(*s->adjusted));
    s->counts = xcalloc(n_vocab, sizeof(*s->counts));
    return s;
}

void sampler_free(struct sampler *s)
{
    if (!s) return;
    free(s->candidates);
    free(s->adjusted);
    free(s->counts);
    free(s);
}

void sampler_do(struct sampler *s, const float *logits, struct sampler_row *row)
{
    const float *changed = logits;
    if (row->sampling && sampling_adjusts(row->sampling)) {
        sampler_adjust(logits, s->n_vocab, row->sampling, &row->past, s->adjusted, s->counts);
        changed = s->adjusted;
    }
    if (row->sampling)
        row->token = sample(changed, s->n_vocab, row->sampling, row->pos, s->candidates);
    if (row->probs)
        sampler_probs(logits, s->n_vocab, row->of == LINK_NEXT_SAMPLED ? row->token : row->of,
                      row->n_top, s->candidates, row->probs);
}
