/* SPDX-License-Identifier: MIT */
/*
 * See http.h. Owns the listening socket, the connections and the exchanges.
 *
 * libmicrohttpd runs on an epoll of its own, which is one descriptor in ours. While a request waits
 * for its answer its connection is suspended, and the library then looks at nothing: so each
 * connection with a request under way is also in our epoll, edge-triggered, for the client's end of
 * input alone. A client that has closed, or only shut its writing side, counts as gone.
 */
#include "gateway/http.h"

#include <assert.h>
#include <errno.h>
#include <microhttpd.h>
#include <netdb.h>
#include <netinet/tcp.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/random.h>
#include <sys/socket.h>

#include "common/log.h"
#include "gateway/bytebuf.h"

enum {
    TICK_US = 1000000,      /* at which time-outs are looked at */
    IDLE_S = 75,            /* a kept connection without a request; as nginx has it */
    HEADER_BYTES = 32768,   /* memory of a connection: bounds request line and headers */
    BLOCK_BYTES = 16384,    /* of a stream, given to the library at once */
    DRAIN_TIMES = 4,        /* of the body limit are read and dropped so that 413 can be told */
    REQUEST_ID_BYTES = 128, /* of a client's own; longer ones are replaced */
    BACKLOG = 1024,
    /* Unsent bytes that the kernel takes of a connection; without it megabytes lie there before a
     * reader that doesn't read is noticed. */
    UNSENT_BYTES = 16384,
};

enum exchange_state {
    EXCHANGE_READING,  /* the request comes in */
    EXCHANGE_SERVED,   /* somebody works on it */
    EXCHANGE_STREAMED, /* somebody writes to it */
    EXCHANGE_DONE,     /* the answer is complete, if not yet sent */
    EXCHANGE_DROPPED,  /* its connection is being closed */
};

struct http {
    struct loop *loop;
    struct http_options o;
    int listener;
    uint16_t port;
    struct MHD_Daemon *daemon;
    struct loop_source *readable, *after, *tick;
    bool dirty; /* the library has work that its epoll does not show */
    struct connection *connections;
    uint32_t n_connections;
};

struct connection {
    struct http *http;
    struct connection *next, *prev;
    int fd;
    uint64_t deadline_us; /* its next request must be in by then; 0: one is being served */
    struct exchange *exchange;
};

struct exchange {
    struct connection *connection;
    struct MHD_Connection *mhd;
    enum exchange_state state;
    bool suspended, too_large, queued;
    char *method, *path;
    char request_id[REQUEST_ID_BYTES + 1];
    struct bytebuf in, out;
    uint64_t dropped_bytes; /* of a body that is too large */
    uint64_t since_us, written_us;
    struct loop_source *watch;
    void (*gone)(void *arg);
    void (*silent)(void *arg);
    void *wait_arg; /* of both */
    unsigned status, route;
    struct {
        const char *name, *value;
    } header[EXCHANGE_HEADERS_MAX]; /* beside our own */
    unsigned n_headers;
    struct MHD_Response *response;
};

static void exchange_resume(struct exchange *x)
{
    if (!x->suspended) return;
    x->suspended = false;
    x->connection->http->dirty = true;
    MHD_resume_connection(x->mhd);
}

/* Makes the library see the end, whether it waits for us or for a reader that doesn't read. */
static void exchange_close(struct exchange *x)
{
    x->state = EXCHANGE_DROPPED;
    (void)shutdown(x->connection->fd, SHUT_RDWR);
    exchange_resume(x);
}

static void tell_gone(struct exchange *x)
{
    void (*gone)(void *) = x->gone;
    x->gone = NULL;
    if (gone && x->state < EXCHANGE_DONE) gone(x->wait_arg);
}

static void on_peer(void *arg, uint32_t events)
{
    struct exchange *x = arg;
    if (!(events & (EPOLLRDHUP | EPOLLHUP | EPOLLERR)) || x->state >= EXCHANGE_DONE) return;
    tell_gone(x);
    exchange_close(x);
}

/* ---- requests ---------------------------------------------------------------------------- */

/* A client's own id when it is harmless in a header and a log line, else one of ours. */
static void choose_request_id(struct exchange *x)
{
    static const char allowed[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789"
                                  "-_.";
    const char *theirs = exchange_header(x, "X-Request-Id");
    size_t n = theirs ? strlen(theirs) : 0;
    if (n > 0 && n <= REQUEST_ID_BYTES && strspn(theirs, allowed) == n) {
        memcpy(x->request_id, theirs, n + 1);
        return;
    }
    uint64_t random[2];
    if (getrandom(random, sizeof(random), 0) != sizeof(random)) abort();
    (void)snprintf(x->request_id, sizeof(x->request_id), "req_%016llx%016llx",
                   (unsigned long long)random[0], (unsigned long long)random[1]);
}

static struct exchange *exchange_new(struct connection *c, struct MHD_Connection *mhd,
                                     const char *url, const char *method)
{
    struct exchange *x = xnew(struct exchange);
    x->connection = c;
    x->mhd = mhd;
    x->method = strdup(method);
    x->path = strdup(url);
    if (!x->method || !x->path) abort();
    choose_request_id(x);
    c->exchange = x;
    return x;
}

static void exchange_free(struct exchange *x)
{
    loop_remove(x->watch);
    if (x->response) MHD_destroy_response(x->response);
    bytebuf_fini(&x->in);
    bytebuf_fini(&x->out);
    free(x->method);
    free(x->path);
    free(x);
}

/* A declared length over the limit is known before the body is sent. */
static bool declared_too_large(const struct exchange *x)
{
    const char *length = exchange_header(x, "Content-Length");
    return length && strtoull(length, NULL, 10) > x->connection->http->o.body_bytes;
}

static enum MHD_Result exchange_queue(struct exchange *x)
{
    x->queued = true;
    enum MHD_Result r = MHD_queue_response(x->mhd, x->status, x->response);
    MHD_destroy_response(TAKE(x->response));
    return r;
}

static enum MHD_Result take_body(struct exchange *x, const char *bytes, size_t n)
{
    const struct http *h = x->connection->http;
    x->too_large |= bytebuf_size(&x->in) + n > h->o.body_bytes;
    if (!x->too_large) {
        bytebuf_add(&x->in, bytes, n);
        return MHD_YES;
    }
    bytebuf_fini(&x->in);
    x->dropped_bytes += n;
    return x->dropped_bytes <= (uint64_t)DRAIN_TIMES * h->o.body_bytes ? MHD_YES : MHD_NO;
}

static void begin_serving(struct exchange *x)
{
    struct http *h = x->connection->http;
    x->connection->deadline_us = 0;
    x->since_us = now_us();
    x->state = EXCHANGE_SERVED;
    if (x->too_large)
        h->o.too_large(h->o.arg, x);
    else
        h->o.serve(h->o.arg, x);
    bytebuf_fini(&x->in);
    if (x->state >= EXCHANGE_DONE) return;
    int r = loop_add_fd(h->loop, x->connection->fd, EPOLLRDHUP | EPOLLET, on_peer, x, &x->watch);
    if (r == 0) return;
    log_error("a connection can't be watched, its request is ended: %s", strerror(-r));
    tell_gone(x);
    x->state = EXCHANGE_DROPPED;
}

/* The library's handler: called with the headers, with each piece of the body, at its end, and
 * again after each resume. */
static enum MHD_Result on_request(void *arg, struct MHD_Connection *mhd, const char *url,
                                  const char *method, const char *version, const char *upload,
                                  size_t *upload_bytes, void **state)
{
    (void)arg;
    (void)version;
    struct exchange *x = *state;
    if (!x) {
        const union MHD_ConnectionInfo *info =
            MHD_get_connection_info(mhd, MHD_CONNECTION_INFO_SOCKET_CONTEXT);
        if (!info || !info->socket_context) return MHD_NO;
        *state = x = exchange_new(info->socket_context, mhd, url, method);
        if (!declared_too_large(x)) return MHD_YES;
        x->too_large = true;
        begin_serving(x);
        return exchange_queue(x);
    }
    if (x->state == EXCHANGE_READING && *upload_bytes > 0) {
        size_t n = *upload_bytes;
        *upload_bytes = 0;
        return take_body(x, upload, n);
    }
    if (x->state == EXCHANGE_READING) begin_serving(x);
    if (x->state == EXCHANGE_DROPPED) return MHD_NO;
    if (x->response) return exchange_queue(x);
    if (x->queued || x->suspended) return MHD_YES;
    x->suspended = true;
    MHD_suspend_connection(mhd);
    return MHD_YES;
}

static void on_completed(void *arg, struct MHD_Connection *mhd, void **state,
                         enum MHD_RequestTerminationCode why)
{
    (void)mhd;
    (void)why;
    struct http *h = arg;
    struct exchange *x = *state;
    if (!x) return;
    *state = NULL;
    tell_gone(x);
    h->o.over(h->o.arg, x);
    x->connection->exchange = NULL;
    x->connection->deadline_us = now_us() + (IDLE_S * UINT64_C(1000) + h->o.slow_ms) * 1000;
    exchange_free(x);
}

/* ---- answers ----------------------------------------------------------------------------- */

static void add_header(struct exchange *x, const char *name, const char *value)
{
    (void)MHD_add_response_header(x->response, name, value);
}

/* Each API has its own name for the id of a request. */
static void add_headers(struct exchange *x)
{
    add_header(x, "X-Request-Id", x->request_id);
    add_header(x, "request-id", x->request_id);
    for (unsigned i = 0; i < x->n_headers; i++)
        add_header(x, x->header[i].name, x->header[i].value);
}

void exchange_answer(struct exchange *x, const struct answer *a)
{
    if (x->state >= EXCHANGE_DONE) {
        free(a->body);
        return;
    }
    assert(x->state == EXCHANGE_SERVED);
    x->response = MHD_create_response_from_buffer(a->bytes, a->body, MHD_RESPMEM_MUST_FREE);
    if (!x->response) abort();
    x->status = a->status;
    add_headers(x);
    if (a->challenge) add_header(x, "WWW-Authenticate", "Bearer");
    if (a->type) add_header(x, "Content-Type", a->type);
    if (a->allow) add_header(x, "Allow", a->allow);
    if (a->retry_after_s) {
        char seconds[16];
        (void)snprintf(seconds, sizeof(seconds), "%u", a->retry_after_s);
        add_header(x, "Retry-After", seconds);
    }
    x->state = EXCHANGE_DONE;
    exchange_resume(x);
}

void exchange_wait(struct exchange *x, void (*gone)(void *), void *arg)
{
    x->gone = gone;
    x->wait_arg = arg;
}

static ssize_t on_reader(void *arg, uint64_t off, char *to, size_t room)
{
    (void)off;
    struct exchange *x = arg;
    if (x->state == EXCHANGE_DROPPED) return MHD_CONTENT_READER_END_WITH_ERROR;
    size_t n = min_u64(room, bytebuf_size(&x->out));
    if (n > 0) {
        memcpy(to, bytebuf_bytes(&x->out), n);
        bytebuf_take(&x->out, n);
        return (ssize_t)n;
    }
    if (x->state == EXCHANGE_DONE) return MHD_CONTENT_READER_END_OF_STREAM;
    /* Returning 0 without this makes the library ask again at once, for ever. */
    x->suspended = true;
    MHD_suspend_connection(x->mhd);
    return 0;
}

void exchange_stream(struct exchange *x, void (*silent)(void *))
{
    if (x->state != EXCHANGE_SERVED) return;
    x->silent = silent;
    x->response =
        MHD_create_response_from_callback(MHD_SIZE_UNKNOWN, BLOCK_BYTES, on_reader, x, NULL);
    if (!x->response) abort();
    x->status = MHD_HTTP_OK;
    add_headers(x);
    add_header(x, "Content-Type", "text/event-stream; charset=utf-8");
    add_header(x, "Cache-Control", "no-cache");
    add_header(x, "X-Accel-Buffering", "no");
    x->state = EXCHANGE_STREAMED;
    x->written_us = now_us();
    exchange_resume(x);
}

int exchange_write(struct exchange *x, const void *bytes, size_t n)
{
    if (x->state != EXCHANGE_STREAMED) return 0;
    if (bytebuf_size(&x->out) + n > x->connection->http->o.out_bytes) return -ENOBUFS;
    bytebuf_add(&x->out, bytes, n);
    x->written_us = now_us();
    exchange_resume(x);
    return 0;
}

void exchange_end(struct exchange *x)
{
    if (x->state != EXCHANGE_STREAMED) return;
    x->state = EXCHANGE_DONE;
    exchange_resume(x);
}

void exchange_drop(struct exchange *x)
{
    if (x->state >= EXCHANGE_DONE) return;
    x->gone = NULL;
    exchange_close(x);
}

const char *exchange_method(const struct exchange *x) { return x->method; }
const char *exchange_path(const struct exchange *x) { return x->path; }
const char *exchange_request_id(const struct exchange *x) { return x->request_id; }
uint64_t exchange_since_us(const struct exchange *x) { return x->since_us; }
unsigned exchange_status(const struct exchange *x) { return x->status; }
void exchange_set_route(struct exchange *x, unsigned route) { x->route = route; }
unsigned exchange_route(const struct exchange *x) { return x->route; }

const char *exchange_header(const struct exchange *x, const char *name)
{
    return MHD_lookup_connection_value(x->mhd, MHD_HEADER_KIND, name);
}

const char *exchange_query(const struct exchange *x, const char *name)
{
    return MHD_lookup_connection_value(x->mhd, MHD_GET_ARGUMENT_KIND, name);
}

void exchange_add_header(struct exchange *x, const char *name, const char *value)
{
    assert(x->n_headers < EXCHANGE_HEADERS_MAX);
    x->header[x->n_headers].name = name;
    x->header[x->n_headers++].value = value;
}

const char *exchange_body(const struct exchange *x, size_t *ret_bytes)
{
    *ret_bytes = bytebuf_size(&x->in);
    return *ret_bytes ? bytebuf_bytes(&x->in) : "";
}

/* ---- connections ------------------------------------------------------------------------- */

static void connection_opened(struct http *h, struct MHD_Connection *mhd, void **context)
{
    const union MHD_ConnectionInfo *info =
        MHD_get_connection_info(mhd, MHD_CONNECTION_INFO_CONNECTION_FD);
    if (!info) return;
    struct connection *c = xnew(struct connection);
    c->http = h;
    c->fd = info->connect_fd;
    c->deadline_us = now_us() + (uint64_t)h->o.slow_ms * 1000;
    c->next = h->connections;
    if (c->next) c->next->prev = c;
    h->connections = c;
    if (h->n_connections++ == 0) (void)loop_set_timer(h->tick, TICK_US, TICK_US);
    *context = c;
}

static void connection_closed(struct http *h, struct connection *c)
{
    if (c->prev)
        c->prev->next = c->next;
    else
        h->connections = c->next;
    if (c->next) c->next->prev = c->prev;
    if (--h->n_connections == 0) (void)loop_set_timer(h->tick, 0, 0);
    free(c);
}

static void on_connection(void *arg, struct MHD_Connection *mhd, void **context,
                          enum MHD_ConnectionNotificationCode what)
{
    if (what == MHD_CONNECTION_NOTIFY_STARTED)
        connection_opened(arg, mhd, context);
    else if (*context)
        connection_closed(arg, TAKE(*(struct connection **)context));
}

static void keep_alive(struct exchange *x)
{
    if (x->silent)
        x->silent(x->wait_arg);
    else
        (void)exchange_write(x, ": wait\n\n", 8);
}

/* The library's own time-out is for idleness: one byte now and then passes it for ever. */
static void on_tick(void *arg)
{
    struct http *h = arg;
    uint64_t now = now_us(), silence_us = (uint64_t)h->o.ping_ms * 1000;
    for (struct connection *c = h->connections; c; c = c->next) {
        struct exchange *x = c->exchange;
        if (c->deadline_us && now >= c->deadline_us) (void)shutdown(c->fd, SHUT_RDWR);
        if (x && x->state == EXCHANGE_STREAMED && now - x->written_us >= silence_us) keep_alive(x);
    }
    h->dirty = true; /* lets the library look at its own time-outs */
}

static void run_library(struct http *h)
{
    h->dirty = false;
    (void)MHD_run(h->daemon);
}

static void on_readable(void *arg, uint32_t events)
{
    (void)events;
    run_library(arg);
}

static bool after_round(void *arg)
{
    struct http *h = arg;
    MHD_UNSIGNED_LONG_LONG wait_ms = 0;
    bool ran = h->dirty; /* and with it, perhaps, a handler that sent a message */
    if (ran) run_library(h);
    if (MHD_get_timeout(h->daemon, &wait_ms) == MHD_YES && wait_ms == 0) h->dirty = true;
    return ran || h->dirty;
}

/* ---- life -------------------------------------------------------------------------------- */

static int bind_to(struct http *h, const struct addrinfo *a, struct why *why)
{
    const char *listen_at = h->o.listen;
    int one = 1, unsent = UNSENT_BYTES;
    h->listener = socket(a->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (h->listener < 0) return why_set(why, -errno, "cannot make a socket: %m");
    (void)setsockopt(h->listener, SOL_SOCKET, SO_REUSEADDR, &one, sizeof(one));
    /* Connections inherit it. */
    (void)setsockopt(h->listener, IPPROTO_TCP, TCP_NOTSENT_LOWAT, &unsent, sizeof(unsent));
    if (bind(h->listener, a->ai_addr, a->ai_addrlen) < 0 || listen(h->listener, BACKLOG) < 0)
        return why_set(why, -errno, "cannot listen at %s port %u: %m; choose another gateway.port",
                       listen_at, h->o.port);
    struct sockaddr_storage at;
    socklen_t bytes = sizeof(at);
    char port[16];
    if (getsockname(h->listener, (struct sockaddr *)&at, &bytes) < 0) return -errno;
    if (getnameinfo((struct sockaddr *)&at, bytes, NULL, 0, port, sizeof(port), NI_NUMERICSERV))
        return why_set(why, -EIO, "cannot read the port that was bound");
    h->port = (uint16_t)strtoul(port, NULL, 10);
    return 0;
}

static int open_listener(struct http *h, struct why *why)
{
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM,
                             .ai_flags = AI_NUMERICHOST | AI_NUMERICSERV | AI_PASSIVE};
    struct addrinfo *a = NULL;
    char port[16];
    (void)snprintf(port, sizeof(port), "%u", h->o.port);
    int e = getaddrinfo(h->o.listen, port, &hints, &a);
    if (e != 0)
        return why_set(why, -EINVAL, "gateway.listen = %s is not an address: %s", h->o.listen,
                       gai_strerror(e));
    int r = bind_to(h, a, why);
    freeaddrinfo(a);
    return r;
}

static void on_library_log(void *arg, const char *format, va_list ap)
{
    (void)arg;
    char line[256];
    int n = vsnprintf(line, sizeof(line), format, ap);
    while (n > 0 && (size_t)n < sizeof(line) && line[n - 1] == '\n')
        line[--n] = 0;
    log_debug("http: %s", line);
}

static int start_library(struct http *h, struct why *why)
{
    h->daemon = MHD_start_daemon(
        MHD_USE_EPOLL | MHD_ALLOW_SUSPEND_RESUME | MHD_USE_ERROR_LOG, 0, NULL, NULL, on_request, h,
        MHD_OPTION_EXTERNAL_LOGGER, on_library_log, NULL, MHD_OPTION_LISTEN_SOCKET, h->listener,
        MHD_OPTION_CONNECTION_LIMIT, (unsigned)h->o.connections, MHD_OPTION_CONNECTION_TIMEOUT,
        (unsigned)IDLE_S, MHD_OPTION_CONNECTION_MEMORY_LIMIT, (size_t)HEADER_BYTES,
        MHD_OPTION_NOTIFY_COMPLETED, on_completed, h, MHD_OPTION_NOTIFY_CONNECTION, on_connection,
        h, MHD_OPTION_END);
    if (!h->daemon) return why_set(why, -EIO, "the HTTP library does not start");
    const union MHD_DaemonInfo *info =
        MHD_get_daemon_info(h->daemon, MHD_DAEMON_INFO_EPOLL_FD_LINUX_ONLY);
    if (!info) return why_set(why, -EIO, "the HTTP library has no epoll descriptor");
    int r = loop_add_timer(h->loop, on_tick, h, &h->tick);
    if (r == 0) r = loop_add_after(h->loop, after_round, h, &h->after);
    if (r == 0) r = loop_add_fd(h->loop, info->epoll_fd, EPOLLIN, on_readable, h, &h->readable);
    return r < 0 ? why_set(why, r, "cannot watch the HTTP sockets: %s", strerror(-r)) : 0;
}

int http_new(struct loop *l, const struct http_options *o, struct why *why, struct http **ret)
{
    CLEANUP(http_freep) struct http *h = xnew(struct http);
    h->loop = l;
    h->o = *o;
    h->listener = -1;
    int r = open_listener(h, why);
    if (r < 0) return r;
    r = start_library(h, why);
    if (r < 0) return r;
    *ret = TAKE(h);
    return 0;
}

void http_stop_listening(struct http *h)
{
    int fd = MHD_quiesce_daemon(h->daemon);
    if (fd >= 0) (void)close(fd);
    h->listener = -1;
}

void http_free(struct http *h)
{
    if (!h) return;
    loop_remove(h->readable);
    loop_remove(h->after);
    for (struct connection *c = h->connections; c; c = c->next)
        if (c->exchange) exchange_drop(c->exchange);
    /* The library wants nothing suspended when it stops; it closes the listener, too. */
    if (h->daemon) {
        (void)MHD_run(h->daemon);
        MHD_stop_daemon(h->daemon);
    } else if (h->listener >= 0) {
        (void)close(h->listener);
    }
    loop_remove(h->tick);
    free(h);
}

uint16_t http_port(const struct http *h) { return h->port; }

uint32_t http_exchanges(const struct http *h)
{
    uint32_t n = 0;
    for (const struct connection *c = h->connections; c; c = c->next)
        n += c->exchange != NULL;
    return n;
}
