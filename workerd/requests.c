/* SPDX-License-Identifier: MIT */
/*
 * The door for Generate: checks every field and makes a request of it; and the queue. Called by the
 * head. It sends nothing: who is refused is told by the head.
 */
#include "workerd/requests.h"

#include <errno.h>
#include <math.h>
#include <string.h>

static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "messages carry tokens as they lie here");

enum {
    TEMPERATURE_MAX = 1000, /* far past sense, far from overflow */
    PENALTY_MAX = 1000,     /* likewise, of penalties and biases */
};
static_assert(REQUEST_BIASES_MAX + REQUEST_STOPS_MAX <= LINK_BIASES_MAX, "both travel as biases");

__attribute__((format(printf, 3, 4))) static int refuse(struct refusal *ret, Cistern__Code code,
                                                        const char *format, ...)
{
    va_list ap;
    va_start(ap, format);
    ret->code = code;
    (void)vsnprintf(ret->text, sizeof(ret->text), format, ap);
    va_end(ap);
    return -EPROTO;
}

static int sizes_check(const Cistern__Generate *g, const struct request_limits *m,
                       struct refusal *refusal)
{
    size_t word = sizeof(uint32_t);
    if (g->prompt.len % word || g->generated.len % word || g->prompt.len == 0)
        return refuse(refusal, CISTERN__CODE__MALFORMED, "the tokens are not whole words");
    if (g->n_stop_tokens > REQUEST_STOPS_MAX)
        return refuse(refusal, CISTERN__CODE__MALFORMED, "%zu stop tokens, %u are the most",
                      g->n_stop_tokens, REQUEST_STOPS_MAX);
    if (g->prompt.len / word >= m->context_tokens)
        return refuse(refusal, CISTERN__CODE__NEVER_FITS,
                      "the prompt has %zu tokens, the context %u with room for an answer",
                      g->prompt.len / word, m->context_tokens);
    if (g->generated.len / word > m->context_tokens - g->prompt.len / word)
        return refuse(refusal, CISTERN__CODE__MALFORMED, "more tokens than the context holds");
    return 0;
}

static int sampling_check(const Cistern__Generate *g, struct refusal *refusal)
{
    bool ok = g->temperature >= 0 && g->temperature <= TEMPERATURE_MAX && g->top_p >= 0 &&
              g->top_p <= 1 && g->min_p >= 0 && g->min_p <= 1; /* false for a NaN */
    if (ok) return 0;
    return refuse(refusal, CISTERN__CODE__MALFORMED,
                  "a number of the sampling is out of its range");
}

static bool is_penalty(float v) { return v >= -PENALTY_MAX && v <= PENALTY_MAX; }

static int changes_check(const Cistern__Generate *g, uint32_t n_vocab, struct refusal *refusal)
{
    if (!is_penalty(g->presence) || !is_penalty(g->frequency) || !is_penalty(g->repeat) ||
        g->repeat < 0)
        return refuse(refusal, CISTERN__CODE__MALFORMED, "a penalty is out of its range");
    if (g->n_bias_ids != g->n_biases || g->n_biases > REQUEST_BIASES_MAX)
        return refuse(refusal, CISTERN__CODE__MALFORMED,
                      "%zu biases of %zu tokens, %u are the most", g->n_biases, g->n_bias_ids,
                      REQUEST_BIASES_MAX);
    for (size_t i = 0; i < g->n_biases; i++)
        if (g->bias_ids[i] >= n_vocab ||
            !(is_penalty(g->biases[i]) || (isinf(g->biases[i]) && g->biases[i] < 0)))
            return refuse(refusal, CISTERN__CODE__MALFORMED, "a bias of token %u", g->bias_ids[i]);
    if (g->n_top > LINK_TOP_MAX)
        return refuse(refusal, CISTERN__CODE__MALFORMED, "%u alternatives, %u are the most",
                      g->n_top, LINK_TOP_MAX);
    return 0;
}

static int tokens_check(const struct request *r, uint32_t n_vocab, struct refusal *refusal)
{
    for (uint32_t i = 0; i < r->n_tokens; i++)
        if (r->words[i] >= n_vocab)
            return refuse(refusal, CISTERN__CODE__MALFORMED, "token %u of a vocabulary of %u",
                          r->words[i], n_vocab);
    return 0;
}

static void mark_generated(struct request *r, uint32_t from, uint32_t to)
{
    for (uint32_t pos = from; pos < to; pos++)
        r->words[pos] |= POOL_TOKEN_GENERATED;
}

/* The kinds of ids that were checked. */
static int kinds_fill(struct request *r, const Cistern__Generate *g, struct refusal *refusal)
{
    uint32_t end = 0;
    size_t n = g->n_generated_spans;
    for (size_t i = 0; i + 1 < n; i += 2) {
        uint32_t first = g->generated_spans[i], count = g->generated_spans[i + 1];
        if (first < end || first > r->n_prompt || count == 0 || count > r->n_prompt - first)
            return refuse(refusal, CISTERN__CODE__MALFORMED,
                          "%u generated tokens at %u, behind %u of a prompt of %u", count, first,
                          end, r->n_prompt);
        end = first + count;
        mark_generated(r, first, end);
    }
    if (n % 2) return refuse(refusal, CISTERN__CODE__MALFORMED, "a span without its length");
    mark_generated(r, r->n_prompt, r->n_tokens);
    return 0;
}

static int tokens_fill(struct request *r, const Cistern__Generate *g,
                       const struct request_limits *m, struct refusal *refusal)
{
    r->n_prompt = (uint32_t)(g->prompt.len / sizeof(uint32_t));
    r->n_tokens = r->n_prompt + (uint32_t)(g->generated.len / sizeof(uint32_t));
    uint32_t room = m->context_tokens - r->n_prompt;
    uint32_t open_end = min_u32(m->default_tokens, room);
    r->reserve = r->n_prompt + (g->max_tokens ? min_u32(g->max_tokens, room) : open_end);
    r->max = r->n_prompt + (g->max_tokens ? min_u32(g->max_tokens, room) : room);
    size_t n = max_u32(r->max, r->n_tokens);
    r->words = calloc(n, sizeof(*r->words));
    if (!r->words) {
        (void)refuse(refusal, CISTERN__CODE__FAILED, "no memory for %zu tokens", n);
        return -ENOMEM;
    }
    memcpy(r->words, g->prompt.data, g->prompt.len);
    if (g->generated.len) memcpy(r->words + r->n_prompt, g->generated.data, g->generated.len);
    int e = tokens_check(r, m->n_vocab, refusal);
    return e < 0 ? e : kinds_fill(r, g, refusal);
}

int request_from(const Cistern__Generate *g, uint64_t gateway, const struct request_limits *limits,
                 struct refusal *refusal, struct request **ret)
{
    int r = sizes_check(g, limits, refusal);
    if (r == 0) r = sampling_check(g, refusal);
    if (r == 0) r = changes_check(g, limits->n_vocab, refusal);
    if (r < 0) return r;
    CLEANUP(request_freep) struct request *q = xnew(struct request);
    *q = (struct request){
        .gateway = gateway,
        .id = g->request,
        .attempt = g->attempt,
        .sampling = {.temperature = g->temperature,
                     .top_p = g->top_p,
                     .min_p = g->min_p,
                     .top_k = g->top_k,
                     .seed = g->seed,
                     .n_biases = (uint32_t)g->n_biases,
                     .repeat_last = g->repeat_last,
                     .repeat = g->repeat,
                     .presence = g->presence,
                     .frequency = g->frequency},
        .min_tokens = g->min_tokens,
        .n_top = g->n_top,
        .probs = g->probs,
        .prompt_probs = g->prompt_probs,
        .progress = g->progress,
        .n_stops = (uint32_t)g->n_stop_tokens,
        .salt = g->salt,
        .arrival = g->arrival,
        .resume_row = g->resume_row,
        .resume_generation = g->resume_generation,
        .admitted = g->arrival != 0,
    };
    for (uint32_t i = 0; i < q->n_stops; i++)
        q->stops[i] = g->stop_tokens[i];
    q->biases = xcalloc(g->n_biases, sizeof(*q->biases));
    for (uint32_t i = 0; i < q->sampling.n_biases; i++)
        q->biases[i] = (struct link_bias){g->bias_ids[i], g->biases[i]};
    q->sampling.biases = q->biases;
    r = tokens_fill(q, g, limits, refusal);
    if (r < 0) return r;
    *ret = TAKE(q);
    return 0;
}

void request_free(struct request *r)
{
    if (!r) return;
    free(r->words);
    free(r->biases);
    free(r);
}

bool request_stops_at(const struct request *r, uint32_t token)
{
    for (uint32_t i = 0; i < r->n_stops; i++)
        if (r->stops[i] == token) return true;
    return false;
}

uint32_t request_alike(const struct request *r, uint32_t pos)
{
    uint32_t end = pos;
    while (end < r->n_tokens && request_kind(r, end) == request_kind(r, pos))
        end++;
    return end;
}

size_t request_spans(const struct request *r, uint32_t **ret)
{
    size_t n = 0, room = 0;
    uint32_t *spans = NULL;
    for (uint32_t pos = 0, end; pos < r->n_prompt; pos = end) {
        end = min_u32(request_alike(r, pos), r->n_prompt);
        if (request_kind(r, pos) == LINK_PROMPT) continue;
        if (n == room) spans = reallocarray(spans, room = room ? 2 * room : 8, sizeof(*spans));
        if (!spans) abort();
        spans[n++] = pos;
        spans[n++] = end - pos;
    }
    *ret = spans;
    return n;
}

/* ---- queue ---- */

static bool goes_before(const struct request *a, const struct request *b)
{
    return a->admitted && (!b->admitted || a->arrival < b->arrival);
}

void queue_put(struct request_queue *q, struct request *r)
{
    struct request **at = &q->first;
    while (*at && !goes_before(r, *at))
        at = &(*at)->next;
    r->next = *at;
    *at = r;
    q->n++;
}

void queue_put_first(struct request_queue *q, struct request *r)
{
    r->next = q->first;
    q->first = r;
    q->n++;
}

struct request *queue_take(struct request_queue *q,
                           bool (*may_go)(const void *arg, const struct request *r),
                           const void *arg)
{
    struct request **at = &q->first;
    while (*at && may_go && !may_go(arg, *at))
        at = &(*at)->next;
    struct request *r = *at;
    if (!r) return NULL;
    *at = r->next;
    r->next = NULL;
    q->n--;
    return r;
}

struct request *queue_take_of(struct request_queue *q, uint64_t gateway, bool any, uint64_t id)
{
    struct request **at = &q->first;
    while (*at && ((*at)->gateway != gateway || (!any && (*at)->id != id)))
        at = &(*at)->next;
    struct request *r = *at;
    if (!r) return NULL;
    *at = r->next;
    r->next = NULL;
    q->n--;
    return r;
}
