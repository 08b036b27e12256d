/* SPDX-License-Identifier: MIT */
/*
 * What a list's sample asks of the device (sampler.h), at the fixed addresses that sample.cu reads,
 * and its answers: only ids, biases and choices go there, only tokens and probabilities come back.
 */
#include <errno.h>
#include <string.h>

#include "workerd/cuda/cuda.h"

int cuda_choices_new(struct backend *b)
{
    const struct backend_want *w = &b->want;
    struct cuda_sample *c = &b->choices;
    uint64_t rows = min_u32(w->max_rows, CUDA_PICKS), n = rows * CUDA_TASKS;
    uint64_t parts = (w->n_vocab + CUDA_PART - 1) / CUDA_PART;
    if (w->n_vocab == 0) return 0;
    b->max_words = (uint32_t)rows * LINK_BIASES_MAX * 2 + w->max_past;
    uint64_t bytes = CUDA_PICKS * sizeof(*c->choices) + b->max_words * sizeof(*c->words);
    c->choices = cuda_get(b, bytes);
    c->words = (const uint32_t *)(c->choices + CUDA_PICKS);
    c->adjusted = cuda_get(b, rows * w->n_vocab * sizeof(*c->adjusted));
    c->extremes = cuda_get(b, n * parts * sizeof(*c->extremes));
    c->sums = cuda_get(b, n * parts * sizeof(*c->sums));
    c->bins = cuda_get(b, n * CUDA_BINS * sizeof(*c->bins));
    c->listed = cuda_get(b, n * sizeof(*c->listed));
    c->list = cuda_get(b, n * CUDA_LIST * sizeof(*c->list));
    c->token = cuda_get(b, CUDA_PICKS * sizeof(*c->token));
    c->n_vocab = w->n_vocab;
    c->overlaps = b->products.overlaps;
    for (int i = 0; i < 2; i++) {
        struct cuda_flight *f = &b->flight[i];
        f->choices = cuda_get_pinned(b, bytes);
        f->tokens = cuda_get_pinned(b, CUDA_PICKS * sizeof(*f->tokens));
        f->probs = cuda_get_pinned(b, CUDA_PICKS * sizeof(*f->probs));
        if (!f->choices || !f->tokens || !f->probs) return -ENOMEM;
    }
    return c->choices && c->adjusted && c->extremes && c->sums && c->bins && c->listed && c->list &&
                   c->token
               ? 0
               : -ENOMEM;
}

static struct cuda_choice choice_of(const struct sampler_row *r)
{
    struct cuda_choice c = {
        .pos = r->pos,
        .chooses = r->sampling != NULL,
        .probs = r->probs != NULL,
        .of = r->of,
        .n_top = min_u32(r->n_top, LINK_TOP_MAX),
    };
    const struct sampling *s = r->sampling;
    if (!s) return c;
    bool repeats = s->repeat != 0 && s->repeat != 1;
    c.temperature = s->temperature;
    c.top_p = s->top_p;
    c.min_p = s->min_p;
    c.repeat = s->repeat;
    c.presence = s->presence;
    c.frequency = s->frequency;
    c.seed = s->seed;
    c.top_k = s->top_k;
    c.n_biases = s->n_biases;
    c.n_past = r->past.n;
    c.n_repeat = repeats ? min_u32(s->repeat_last, r->past.n) : 0;
    c.n_counted = s->presence != 0 || s->frequency != 0 ? r->past.n_generated : 0;
    return c;
}

/* Puts a row's choice and words behind the first n_words; how many there are then. */
static uint32_t choice_add(struct backend *b, const struct sampler_row *r, uint32_t i,
                           uint32_t n_words)
{
    uint32_t *words = (uint32_t *)(b->now->choices + CUDA_PICKS);
    struct cuda_choice *c = &b->now->choices[i];
    *c = choice_of(r);
    if ((uint64_t)n_words + 2 * (uint64_t)c->n_biases + c->n_past > b->max_words) {
        cuda_refuse(b, -E2BIG);
        return n_words;
    }
    c->first_bias = n_words;
    c->first_past = n_words + 2 * c->n_biases;
    static_assert(sizeof(*r->sampling->biases) == 2 * sizeof(*words), "an id and what is added");
    if (c->n_biases)
        memcpy(words + c->first_bias, r->sampling->biases, c->n_biases * 2 * sizeof(*words));
    if (c->n_past) memcpy(words + c->first_past, r->past.ids, c->n_past * sizeof(*words));
    return c->first_past + c->n_past;
}

bool cuda_choices_up(struct backend *b, struct sampler_row *rows, uint32_t n)
{
    bool greedy = true;
    uint32_t n_words = 0;
    b->now->sampled = rows;
    b->now->n_sampled = n;
    if (n > CUDA_PICKS) cuda_refuse(b, -EINVAL);
    for (uint32_t i = 0; i < n && greedy; i++)
        greedy = sampler_is_greedy(&rows[i]);
    if (greedy || b->now->refused) return greedy;
    for (uint32_t i = 0; i < n; i++)
        n_words = choice_add(b, &rows[i], i, n_words);
    (void)cuda_ok(
        b, cudaMemcpyAsync((void *)b->choices.choices, b->now->choices,
                           CUDA_PICKS * sizeof(*b->now->choices) + n_words * sizeof(uint32_t),
                           cudaMemcpyHostToDevice, b->stream));
    return false;
}

void cuda_choices_read(const struct cuda_flight *f)
{
    for (uint32_t i = 0; i < f->n_sampled; i++) {
        struct sampler_row *r = &f->sampled[i];
        if (r->sampling) r->token = f->tokens[i];
        if (r->probs) *r->probs = f->probs[i];
    }
}
