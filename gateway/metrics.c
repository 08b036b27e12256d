/* SPDX-License-Identifier: MIT */
/*
 * See metrics.h. The gateway's own counters and their text; the pool's part is metrics_pool.c's.
 */
#include "gateway/metrics.h"

#include <string.h>

/* 499, as nginx has it: the client left before there was an answer. 0 takes all others. */
static const unsigned statuses[METRICS_STATUSES] = {200, 204, 400, 401, 403, 404, 405, 413,
                                                    429, 499, 500, 501, 503, 529, 0};

/* Upper bounds in microseconds. First token: from a cached chat turn to a long prompt on a CPU;
 * between tokens: from a GPU's small model to a swamped CPU. */
static const uint64_t first_bounds[METRICS_BUCKETS] = {
    10000,   25000,   50000,    100000,   250000,   500000,    1000000,
    2500000, 5000000, 10000000, 25000000, 60000000, 120000000, 300000000};
static const uint64_t between_bounds[METRICS_BUCKETS] = {1000,   2500,    5000,    7500,    10000,
                                                         15000,  25000,   50000,   100000,  250000,
                                                         500000, 1000000, 2500000, 10000000};

void metrics_request(struct metrics *m, unsigned route, unsigned status)
{
    size_t i = 0;
    if (status == 0) status = 499;
    while (i < METRICS_STATUSES - 1 && statuses[i] != status)
        i++;
    if (route < METRICS_ROUTES_MAX) m->requests[route][i]++;
}

static void histogram_add(struct histogram *h, const uint64_t *bounds, uint64_t us, size_t n)
{
    size_t i = 0;
    while (i < METRICS_BUCKETS && us > bounds[i])
        i++;
    h->count[i] += n;
    h->sum_us += us * n;
}

void metrics_first_token(struct metrics *m, uint64_t us)
{
    histogram_add(&m->first_token, first_bounds, us, 1);
}

void metrics_between_tokens(struct metrics *m, uint64_t us, size_t n)
{
    histogram_add(&m->between_tokens, between_bounds, us / n, n);
}

static void put_requests(const struct metrics *m, const struct metrics_now *now,
                         struct bytebuf *out)
{
    bytebuf_addf(out, "# HELP cistern_requests_total HTTP requests by route and status.\n"
                      "# TYPE cistern_requests_total counter\n");
    for (size_t r = 0; r < now->n_routes; r++) {
        for (size_t s = 0; s < METRICS_STATUSES; s++) {
            if (m->requests[r][s] == 0) continue;
            bytebuf_addf(out, "cistern_requests_total{route=\"%s\",status=\"%u\"} %llu\n",
                         now->routes[r], statuses[s], (unsigned long long)m->requests[r][s]);
        }
    }
}

static void put_tokens(const struct metrics *m, struct bytebuf *out)
{
    bytebuf_addf(out,
                 "# HELP cistern_tokens_total Tokens: of prompts, of these found in the pool, and "
                 "generated.\n"
                 "# TYPE cistern_tokens_total counter\n"
                 "cistern_tokens_total{kind=\"prompt\"} %llu\n"
                 "cistern_tokens_total{kind=\"cached\"} %llu\n"
                 "cistern_tokens_total{kind=\"generated\"} %llu\n",
                 (unsigned long long)m->prompt_tokens, (unsigned long long)m->cached_tokens,
                 (unsigned long long)m->generated_tokens);
    bytebuf_addf(out,
                 "# HELP cistern_prompts_tokenised_total Requests whose prompt was tokenised; one "
                 "that the queue has no place for never is.\n"
                 "# TYPE cistern_prompts_tokenised_total counter\n"
                 "cistern_prompts_tokenised_total %llu\n",
                 (unsigned long long)m->prompts_read);
}

static void put_histogram(const struct histogram *h, const uint64_t *bounds, const char *name,
                          const char *help, struct bytebuf *out)
{
    uint64_t n = 0;
    bytebuf_addf(out, "# HELP %s %s\n# TYPE %s histogram\n", name, help, name);
    for (size_t i = 0; i < METRICS_BUCKETS; i++) {
        n += h->count[i];
        bytebuf_addf(out, "%s_bucket{le=\"%g\"} %llu\n", name, (double)bounds[i] / 1e6,
                     (unsigned long long)n);
    }
    n += h->count[METRICS_BUCKETS];
    bytebuf_addf(out, "%s_bucket{le=\"+Inf\"} %llu\n%s_sum %.6f\n%s_count %llu\n", name,
                 (unsigned long long)n, name, (double)h->sum_us / 1e6, name, (unsigned long long)n);
}

static void put_gauge(const char *name, const char *help, uint32_t value, struct bytebuf *out)
{
    bytebuf_addf(out, "# HELP %s %s\n# TYPE %s gauge\n%s %u\n", name, help, name, name, value);
}

void metrics_text(const struct metrics *m, const struct metrics_now *now, struct bytebuf *out)
{
    put_requests(m, now, out);
    put_tokens(m, out);
    put_histogram(&m->first_token, first_bounds, "cistern_time_to_first_token_seconds",
                  "From a whole request to its first token.", out);
    put_histogram(&m->between_tokens, between_bounds, "cistern_time_between_tokens_seconds",
                  "From a token to the next one of its answer.", out);
    put_gauge("cistern_pipelines_ready", "Pipelines that take requests.", now->pipelines_ready,
              out);
    put_gauge("cistern_requests_in_flight", "Generations not finished.", now->in_flight, out);
    put_gauge("cistern_requests_waiting", "Generations without a lane yet.", now->unstarted, out);
    bytebuf_addf(out,
                 "# HELP cistern_resubmissions_total Attempts after the first, by what ended the "
                 "one before.\n"
                 "# TYPE cistern_resubmissions_total counter\n"
                 "cistern_resubmissions_total{cause=\"moved\"} %llu\n"
                 "cistern_resubmissions_total{cause=\"lost\"} %llu\n",
                 (unsigned long long)now->moved, (unsigned long long)now->lost);
    metrics_pool_text(now->pool, out);
}
