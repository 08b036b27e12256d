/* SPDX-License-Identifier: MIT */
/*
 * See cors.h. Called for each request before anything else. A request of another origin is not
 * refused here: without the headers its page can't read the answer, and the Host check keeps out
 * pages that pass for ours.
 */
#include "gateway/cors.h"

#include <string.h>

static bool is_listed(const char *list, const char *origin)
{
    size_t length = strlen(origin);
    for (const char *at = list; *at;) {
        at += strspn(at, ", ");
        size_t n = strcspn(at, ", ");
        if (n == 1 && *at == '*') return true;
        if (n > 0 && n == length && strncmp(at, origin, n) == 0) return true;
        at += n;
    }
    return false;
}

bool cors_allow(const char *origins, struct exchange *x)
{
    const char *origin = exchange_header(x, "Origin");
    if (!origin || !is_listed(origins, origin)) return false;
    exchange_add_header(x, "Access-Control-Allow-Origin", origin);
    exchange_add_header(x, "Vary", "Origin");
    exchange_add_header(x, "Access-Control-Expose-Headers",
                        "X-Request-Id, request-id, Retry-After");
    bool asks = strcmp(exchange_method(x), "OPTIONS") == 0 &&
                exchange_header(x, "Access-Control-Request-Method");
    if (!asks) return false;
    exchange_add_header(x, "Access-Control-Allow-Methods", "GET, HEAD, POST, OPTIONS");
    exchange_add_header(
        x, "Access-Control-Allow-Headers",
        "Authorization, x-api-key, anthropic-version, anthropic-beta, content-type, "
        "anthropic-dangerous-direct-browser-access, X-Request-Id");
    exchange_add_header(x, "Access-Control-Max-Age", "600");
    return true;
}
