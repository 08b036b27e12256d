/* SPDX-License-Identifier: MIT */
#ifndef GATEWAY_HTTP_H
#define GATEWAY_HTTP_H
/*
 * The HTTP server: libmicrohttpd inside our loop. It takes requests in whole, within bounds of size
 * and time, hands each to one function, and sends what that answers, at once or later. It knows
 * neither routes nor JSON, but for the errors that it decides itself.
 *
 * Loop thread only. Nothing here blocks.
 */
#include <stdbool.h>

#include "common/base.h"
#include "common/loop.h"

struct http;
/* A request and its answer. It belongs to http; whoever serves it may use it until he has called
 * exchange_answer, exchange_end or exchange_drop, or until he was told that it is gone. */
struct exchange;

struct http_options {
    const char *listen; /* an address in numbers */
    uint16_t port;      /* 0: the kernel chooses */
    uint32_t connections;
    uint32_t slow_ms; /* a request must be in by then */
    /* A stream that is silent for this long is kept alive: clients and proxies give up after 30 to
     * 300 s. */
    uint32_t ping_ms;
    size_t body_bytes, out_bytes;
    /* A whole request; must answer it or call exchange_wait. */
    void (*serve)(void *arg, struct exchange *x);
    /* The body is over the limit: must answer. */
    void (*too_large)(void *arg, struct exchange *x);
    /* It is over, answered or not; only the functions that read may be called. */
    void (*over)(void *arg, const struct exchange *x);
    void *arg;
};

int http_new(struct loop *l, const struct http_options *o, struct why *why, struct http **ret);
/* Closes what is open; tells no exchange that it is gone. */
void http_free(struct http *h);
static inline void http_freep(struct http **h) { http_free(*h); }
uint16_t http_port(const struct http *h);
void http_stop_listening(struct http *h);
/* Requests without their whole answer on its way. */
uint32_t http_exchanges(const struct http *h);

const char *exchange_method(const struct exchange *x);
const char *exchange_path(const struct exchange *x);                     /* without the query */
const char *exchange_header(const struct exchange *x, const char *name); /* NULL: none */
const char *exchange_query(const struct exchange *x, const char *name);  /* NULL: none */
const char *exchange_body(const struct exchange *x, size_t *ret_bytes);
const char *exchange_request_id(const struct exchange *x);
/* A header of whatever the answer will be; name and value must live as long as the exchange. At
 * most EXCHANGE_HEADERS_MAX. */
void exchange_add_header(struct exchange *x, const char *name, const char *value);
uint64_t exchange_since_us(const struct exchange *x); /* when the request was in */
unsigned exchange_status(const struct exchange *x);   /* of its answer; 0: none yet */
/* A number that the server keeps for whoever serves: which route it took. */
void exchange_set_route(struct exchange *x, unsigned route);
unsigned exchange_route(const struct exchange *x);

enum { EXCHANGE_HEADERS_MAX = 6 /* those of CORS and one to spare */ };

struct answer {
    unsigned status;
    const char *type; /* of the body; NULL: no body */
    char *body;       /* becomes http's; from malloc */
    size_t bytes;
    const char *allow;      /* of 405 and OPTIONS */
    unsigned retry_after_s; /* 0: none */
    bool challenge;         /* of 401: says that a bearer is wanted */
};
void exchange_answer(struct exchange *x, const struct answer *a);

/* The answer comes later. gone is called once if the client leaves before it is complete. */
void exchange_wait(struct exchange *x, void (*gone)(void *arg), void *arg);
/* 200 and an event stream: the headers go out now. While nothing is written for some seconds
 * silent is called with exchange_wait's arg, to write what keeps it alive; NULL: a comment does. */
void exchange_stream(struct exchange *x, void (*silent)(void *arg));
/* -ENOBUFS: the reader takes nothing; call exchange_drop. */
int exchange_write(struct exchange *x, const void *bytes, size_t n);
void exchange_end(struct exchange *x);  /* of a stream, after what was written is sent */
void exchange_drop(struct exchange *x); /* closes the connection */

#endif
