/* SPDX-License-Identifier: MIT */
/*
 * See routes.h. Decides which handler answers, or that none does: wrong host, path or method. Owns
 * the small routes that have no API of their own.
 */
#include "gateway/routes.h"

#include <assert.h>
#include <string.h>
#include <strings.h>

#include "gateway/api/anthropic.h"
#include "gateway/api/llamacpp.h"
#include "gateway/api/openai.h"
#include "gateway/api/openapi.h"
#include "gateway/api/reply.h"
#include "gateway/cors.h"

struct route {
    const char *method; /* GET also serves HEAD */
    const char *path;   /* ends with / : and whatever follows */
    void (*serve)(struct gateway *g, struct exchange *x);
};

static void serve_health(struct gateway *g, struct exchange *x);
static void serve_metrics(struct gateway *g, struct exchange *x);

static const struct route routes[] = {
    {"POST", "/v1/chat/completions",      openai_chat            },
    {"POST", "/v1/completions",           openai_completions     },
    {"POST", "/v1/responses",             openai_responses       },
    {"POST", "/v1/messages",              anthropic_messages     },
    {"POST", "/v1/messages/count_tokens", anthropic_count_tokens },
    {"POST", "/v1/embeddings",            openai_embeddings      },
    {"GET",  "/v1/models",                openai_models          },
    {"GET",  "/v1/models/",               openai_model           },
    {"POST", "/completion",               llamacpp_completion    },
    {"POST", "/tokenize",                 llamacpp_tokenize      },
    {"POST", "/detokenize",               llamacpp_detokenize    },
    {"POST", "/apply-template",           llamacpp_apply_template},
    {"GET",  "/props",                    llamacpp_props         },
    {"GET",  "/slots",                    llamacpp_slots         },
    {"POST", "/slots/",                   llamacpp_slot          },
    {"GET",  "/version",                  llamacpp_version       },
    {"GET",  "/openapi.json",             openapi_serve          },
    {"GET",  "/health",                   serve_health           },
    {"GET",  "/v1/health",                serve_health           },
    {"GET",  "/metrics",                  serve_metrics          },
};

enum { ROUTE_OTHER = ARRAY_LEN(routes) /* in the metrics: whatever none of them serves */ };
static_assert(ARRAY_LEN(routes) < METRICS_ROUTES_MAX, "the metrics have room for each route");

static void serve_health(struct gateway *g, struct exchange *x)
{
    struct fault fault;
    if (gateway_can_serve(g, &fault) < 0)
        reply_fault(x, &fault);
    else
        reply_json(x, 200, json_pack("{s:s}", "status", "ok"));
}

static void serve_metrics(struct gateway *g, struct exchange *x)
{
    struct bytebuf text = {0};
    const char *names[ARRAY_LEN(routes) + 1];
    for (size_t i = 0; i < ARRAY_LEN(routes); i++)
        names[i] = routes[i].path;
    names[ROUTE_OTHER] = "other";
    struct metrics_now now = {
        .routes = names,
        .n_routes = ARRAY_LEN(names),
        .pool = pipelines_pool(g->pipelines),
        .pipelines_ready = pipelines_ready(g->pipelines),
        .in_flight = requests_in_flight(g->requests),
        .unstarted = requests_unstarted(g->requests),
    };
    const char *accept = exchange_header(x, "Accept");
    if (accept && strstr(accept, "application/json")) {
        uint32_t n_lanes[POOL_PIPELINES_MAX];
        pipelines_each_lanes(g->pipelines, n_lanes);
        reply_json(x, 200, metrics_pool_json(now.pool, n_lanes));
        return;
    }
    requests_ended(g->requests, &now.moved, &now.lost);
    metrics_text(&g->metrics, &now, &text);
    reply_text(x, "text/plain; version=0.0.4; charset=utf-8", &text);
}

/* A page in a browser may send requests here under a name of its own that it made resolve to this
 * address. A name that is not ours is refused; a client that sends none is no browser. */
static bool host_is_ours(const struct gateway *g, const char *host)
{
    static const char *const always[] = {"localhost", "127.0.0.1", "[::1]"};
    size_t n = strlen(host);
    const char *colon = strrchr(host, ':');
    if (colon && !strchr(colon, ']')) n = (size_t)(colon - host);
    for (size_t i = 0; i < ARRAY_LEN(always); i++)
        if (strlen(always[i]) == n && strncasecmp(host, always[i], n) == 0) return true;
    size_t brackets = n >= 2 && host[0] == '[' ? 1 : 0;
    const char *listen = g->config->gateway.listen;
    if (strlen(listen) == n - 2 * brackets &&
        strncasecmp(host + brackets, listen, n - 2 * brackets) == 0)
        return true;
    for (const char *at = g->config->gateway.hosts; *at;) {
        at += strspn(at, ", ");
        size_t each = strcspn(at, ", ");
        if (each == 1 && *at == '*') return true;
        if (each > 0 && each == n && strncasecmp(host, at, n) == 0) return true;
        at += each;
    }
    return false;
}

static bool path_matches(const struct route *r, const char *path)
{
    size_t n = strlen(r->path);
    if (r->path[n - 1] == '/') return strncmp(path, r->path, n) == 0 && path[n];
    return strcmp(path, r->path) == 0;
}

static const char *allowed(const struct route *r)
{
    return strcmp(r->method, "GET") == 0 ? "GET, HEAD, OPTIONS" : "POST, OPTIONS";
}

static bool method_matches(const struct route *r, const char *method)
{
    return strcmp(r->method, method) == 0 ||
           (strcmp(r->method, "GET") == 0 && strcmp(method, "HEAD") == 0);
}

static void serve_route(struct gateway *g, struct exchange *x, const struct route *r)
{
    struct fault fault;
    const char *method = exchange_method(x);
    if (method_matches(r, method)) {
        r->serve(g, x);
    } else if (strcmp(method, "OPTIONS") == 0) {
        exchange_answer(x, &(struct answer){.status = 204, .allow = allowed(r)});
    } else {
        (void)fault_set(&fault, FAULT_METHOD, NULL, "This path takes %s.", allowed(r));
        reply_fault_allow(x, &fault, allowed(r));
    }
}

/* Whether it may be asked at all; a supervisor asks for health without a key. */
static int check_client(const struct gateway *g, const struct exchange *x, struct fault *fault)
{
    const char *host = exchange_header(x, "Host"), *path = exchange_path(x);
    if (host && !host_is_ours(g, host))
        return fault_set(fault, FAULT_HOST, NULL,
                         "The Host header names no host of this server; gateway.hosts lists more.");
    if (strcmp(path, "/health") == 0 || strcmp(path, "/v1/health") == 0) return 0;
    return keys_check(g->keys, x, fault);
}

static void serve_path(struct gateway *g, struct exchange *x)
{
    struct fault fault;
    for (unsigned i = 0; i < ARRAY_LEN(routes); i++) {
        if (!path_matches(&routes[i], exchange_path(x))) continue;
        exchange_set_route(x, i);
        serve_route(g, x, &routes[i]);
        return;
    }
    (void)fault_set(&fault, FAULT_ROUTE, NULL,
                    "There is nothing at this path; see GET /v1/models "
                    "and POST /v1/chat/completions.");
    reply_fault(x, &fault);
}

void routes_serve(void *arg, struct exchange *x)
{
    struct gateway *g = arg;
    struct fault fault;
    exchange_set_route(x, ROUTE_OTHER);
    bool preflight = cors_allow(g->config->gateway.cors_origins, x);
    if (preflight)
        exchange_answer(x, &(struct answer){.status = 204});
    else if (check_client(g, x, &fault) < 0)
        reply_fault(x, &fault);
    else if (strcmp(exchange_path(x), "*") == 0 && strcmp(exchange_method(x), "OPTIONS") == 0)
        exchange_answer(x, &(struct answer){.status = 204, .allow = "GET, HEAD, POST, OPTIONS"});
    else
        serve_path(g, x);
}

void routes_too_large(void *arg, struct exchange *x)
{
    struct gateway *g = arg;
    struct fault fault;
    exchange_set_route(x, ROUTE_OTHER);
    (void)fault_set(&fault, FAULT_TOO_LARGE, NULL, "The body is over the limit of %llu bytes.",
                    (unsigned long long)g->config->gateway.body_bytes);
    reply_fault(x, &fault);
}

void routes_over(void *arg, const struct exchange *x)
{
    struct gateway *g = arg;
    metrics_request(&g->metrics, exchange_route(x), exchange_status(x));
}
