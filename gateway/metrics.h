/* SPDX-License-Identifier: MIT */
#ifndef GATEWAY_METRICS_H
#define GATEWAY_METRICS_H
/*
 * What the gateway counts, and its text for Prometheus. Counters only rise; what can be read off
 * elsewhere (the pool, what is in flight) is read when the text is made. Loop thread.
 */
#include <jansson.h>

#include "common/pool_view.h"
#include "gateway/bytebuf.h"

enum {
    METRICS_ROUTES_MAX = 32,
    METRICS_STATUSES = 15, /* see metrics.c */
    METRICS_BUCKETS = 14,
};

struct histogram {
    uint64_t count[METRICS_BUCKETS + 1]; /* the last one: beyond all bounds */
    uint64_t sum_us;
};

struct metrics {
    uint64_t requests[METRICS_ROUTES_MAX][METRICS_STATUSES];
    uint64_t prompt_tokens, cached_tokens, generated_tokens;
    uint64_t prompts_read; /* bodies whose prompt was made and tokenised, whatever came of it */
    struct histogram first_token, between_tokens;
};

/* What the text shows beside the counters. */
struct metrics_now {
    const char *const *routes; /* names */
    size_t n_routes;
    const struct pool_view *pool; /* or NULL */
    uint32_t pipelines_ready, in_flight, unstarted;
    uint64_t moved, lost; /* attempts that ended so and were submitted again */
};

void metrics_request(struct metrics *m, unsigned route, unsigned status);
void metrics_first_token(struct metrics *m, uint64_t us);
/* n tokens came together, us after the one before them. */
void metrics_between_tokens(struct metrics *m, uint64_t us, size_t n);
void metrics_text(const struct metrics *m, const struct metrics_now *now, struct bytebuf *out);

/* The pool's part of the text; nothing when there is no pool. */
void metrics_pool_text(const struct pool_view *v, struct bytebuf *out);
/* {"live": {"kv_pool": {...}}}: cells of the pool, free ones, those of lane 0 (main) and of the
 * other lanes (slots, in the order of pipelines), and by state. The caller owns it. */
json_t *metrics_pool_json(const struct pool_view *v, const uint32_t n_lanes[POOL_PIPELINES_MAX]);

#endif
