/* SPDX-License-Identifier: MIT */
/*
 * What the choice of one token costs, apart from the model: microseconds of this thread's CPU time
 * a row, best of five, as CSV. The row has the demo model's vocabulary; forty logits stand out of a
 * normal distribution as a model's do, so that 95 % of the probability lies in a few hundred ids.
 */
#include <math.h>
#include <stdio.h>
#include <time.h>

#include "common/base.h"
#include "workerd/sampler.h"

enum { VOCAB = 49152, PAST = 2000, RUNS = 40, BEST_OF = 5 };

static float row[VOCAB], adjusted[VOCAB];
static uint32_t counts[VOCAB], past_ids[PAST];
static struct sampler_candidate scratch[VOCAB];
static uint64_t state = 1;

/* xorshift64* (Vigna 2016), in [0, 1). */
static double uniform(void)
{
    state ^= state >> 12;
    state ^= state << 25;
    state ^= state >> 27;
    return (double)(state * UINT64_C(0x2545f4914f6cdd1d) >> 11) * 0x1p-53;
}

static void fill(void)
{
    for (uint32_t i = 0; i < VOCAB; i++) {
        double sum = 0;
        for (int k = 0; k < 12; k++)
            sum += uniform();
        row[i] = (float)((sum - 6) * 2);
    }
    for (uint32_t i = 0; i < 40; i++)
        row[i * 997] += 14 - 0.2F * (float)i;
    for (uint32_t i = 0; i < PAST; i++)
        past_ids[i] = (uint32_t)(uniform() * VOCAB);
}

static double cpu_us(void)
{
    struct timespec t;
    (void)clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (double)t.tv_sec * 1e6 + (double)t.tv_nsec / 1e3;
}

static const struct {
    const char *what;
    struct sampling s;
    bool probs;
    uint32_t n_top;
} rows[] = {
    {"greedy",                       {.top_p = 1},                                   false, 0           },
    {"temperature 1",                {.temperature = 1, .top_p = 1},                 false, 0           },
    {"temperature 1 and top_p 0.95", {.temperature = 1, .top_p = 0.95F},             false, 0           },
    {"temperature 1 and min_p 0.05", {.temperature = 1, .top_p = 1, .min_p = 0.05F}, false, 0           },
    {"temperature 1 and top_k 40",   {.temperature = 1, .top_p = 1, .top_k = 40},    false, 0           },
    {"greedy and logprobs",          {.top_p = 1},                                   true,  0           },
    {"greedy and 20 top_logprobs",   {.top_p = 1},                                   true,  LINK_TOP_MAX},
    {"greedy and penalties of 2000",
     {.top_p = 1, .presence = 1, .repeat = 1.1F, .repeat_last = PAST},
     false,                                                                                 0           },
};

static double one(size_t i)
{
    const struct sampler_past past = {past_ids, PAST, PAST / 2};
    struct link_probs probs;
    double begin = cpu_us();
    for (uint32_t pos = 0; pos < RUNS; pos++) {
        const float *logits = row;
        if (sampling_adjusts(&rows[i].s)) {
            sampler_adjust(row, VOCAB, &rows[i].s, &past, adjusted, counts);
            logits = adjusted;
        }
        uint32_t token = sample(logits, VOCAB, &rows[i].s, pos, scratch);
        if (rows[i].probs) sampler_probs(row, VOCAB, token, rows[i].n_top, scratch, &probs);
    }
    return (cpu_us() - begin) / RUNS;
}

int main(void)
{
    fill();
    printf("what,cpu_us\n");
    for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
        double best = INFINITY;
        for (int k = 0; k < BEST_OF; k++)
            best = fmin(best, one(i));
        printf("%s,%.0f\n", rows[i].what, best);
    }
    return 0;
}
