/* SPDX-License-Identifier: MIT */
/*
 * Envelopes over ZeroMQ. Owns the process's one ZeroMQ context and the sockets; called from the
 * loop thread. A ZeroMQ descriptor is edge-triggered and its edge may pass inside a send, so each
 * socket is looked at before every sleep of the loop.
 */
#include "common/msg.h"

#include <assert.h>
#include <errno.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/random.h>
#include <zmq.h>

#include "common/log.h"

enum {
    IDENTITY_BYTES = 1 + sizeof(uint64_t), /* 'i' and the incarnation: ZeroMQ keeps 0 for itself */
    MESSAGES_A_ROUND = 256,                /* then other handlers get their turn */
};

struct msg_socket {
    void *zmq;
    uint64_t self;
    struct loop_source *readable, *after;
    bool busy; /* a handler is being called */
    bool dead; /* freed by a handler: it goes when the handler returns */
    msg_fn fn;
    void (*connected)(void *arg); /* not yet called, or NULL */
    void *arg;
    struct loop *loop;
    bool is_server;
    uint64_t peer; /* of a client */
};

struct msg_server {
    struct msg_socket s; /* first: see socket_free */
};
struct msg_client {
    struct msg_socket s;
};

static void *context;

static void *context_get(void)
{
    if (!context) {
        context = zmq_ctx_new();
        if (context) (void)zmq_ctx_set(context, ZMQ_MAX_SOCKETS, 1023);
        if (context) (void)zmq_ctx_set(context, ZMQ_BLOCKY, 0);
    }
    return context;
}

uint64_t incarnation_new(void)
{
    uint64_t v = 0;
    while (v == 0)
        if (getrandom(&v, sizeof(v), 0) != sizeof(v)) abort();
    return v;
}

static void identity_of(uint64_t incarnation, unsigned char ret[IDENTITY_BYTES])
{
    ret[0] = 'i';
    memcpy(ret + 1, &incarnation, sizeof(incarnation));
}

/* Packs m into one frame. NULL when it would be too large to be received. */
static unsigned char *pack(const Cistern__Envelope *m, size_t *ret_bytes)
{
    size_t bytes = cistern__envelope__get_packed_size(m);
    if (bytes > MSG_MAX_BYTES) return NULL;
    unsigned char *frame = xcalloc(1, bytes);
    (void)cistern__envelope__pack(m, frame);
    *ret_bytes = bytes;
    return frame;
}

static int send_frames(struct msg_socket *s, uint64_t to, Cistern__Envelope *m)
{
    m->version = MSG_VERSION;
    m->from = s->self;
    m->to = to;
    size_t bytes = 0;
    CLEANUP(freep) unsigned char *frame = pack(m, &bytes);
    if (!frame) return -EMSGSIZE;
    int r = 0;
    if (s->is_server) {
        unsigned char id[IDENTITY_BYTES];
        identity_of(to, id);
        if (zmq_send(s->zmq, id, sizeof(id), ZMQ_SNDMORE | ZMQ_DONTWAIT) < 0) r = -errno;
    }
    if (r == 0 && zmq_send(s->zmq, frame, bytes, ZMQ_DONTWAIT) < 0) r = -errno;
    return r;
}

static void refuse(struct msg_socket *s, uint64_t to, uint64_t number, Cistern__Code code,
                   const char *text)
{
    Cistern__Refused refused = CISTERN__REFUSED__INIT;
    refused.code = code;
    refused.text = (char *)text;
    Cistern__Envelope m = CISTERN__ENVELOPE__INIT;
    m.number = number;
    m.body_case = CISTERN__ENVELOPE__BODY_REFUSED;
    m.refused = &refused;
    (void)send_frames(s, to, &m); /* who can't be told is gone, or does not read */
}

/* The door: what passes is of our version, means us, and comes from who it says it is. */
static void admit(struct msg_socket *s, uint64_t sender, const void *bytes, size_t n)
{
    Cistern__Envelope *m = n <= MSG_MAX_BYTES ? cistern__envelope__unpack(NULL, n, bytes) : NULL;
    if (!m) {
        log_warn("a message of %zu bytes is not an envelope or over %u; dropped", n, MSG_MAX_BYTES);
        return;
    }
    char text[160];
    if (m->version != MSG_VERSION) {
        (void)snprintf(text, sizeof(text),
                       "message version %u was sent, version %u is spoken here: install the same "
                       "release everywhere",
                       m->version, MSG_VERSION);
        log_warn("refused a message: %s", text);
        if (s->is_server && sender) refuse(s, sender, m->number, CISTERN__CODE__VERSION, text);
    } else if (m->from != sender && (s->is_server || m->from != s->peer)) {
        log_warn("a message bears another sender than its connection; dropped");
    } else if (m->to != s->self) {
        /* Meant for a predecessor of ours: it changes nothing. Never answer a refusal. */
        if (s->is_server && m->body_case != CISTERN__ENVELOPE__BODY_REFUSED)
            refuse(s, sender, m->number, CISTERN__CODE__STALE, "meant for another incarnation");
    } else {
        s->busy = true;
        s->fn(s->arg, m->from, m);
        s->busy = false;
    }
    cistern__envelope__free_unpacked(m, NULL);
}

/* Receives one message. Returns 0 when there was none. */
static int receive(struct msg_socket *s)
{
    zmq_msg_t part;
    uint64_t sender = s->is_server ? 0 : s->peer;
    bool first = true, more = true, sane = true, got = false;
    zmq_msg_t body;
    (void)zmq_msg_init(&body);
    while (more) {
        (void)zmq_msg_init(&part);
        if (zmq_msg_recv(&part, s->zmq, ZMQ_DONTWAIT) < 0) {
            (void)zmq_msg_close(&part);
            break;
        }
        got = true;
        more = zmq_msg_more(&part);
        const unsigned char *at = zmq_msg_data(&part);
        if (s->is_server && first) {
            if (zmq_msg_size(&part) == IDENTITY_BYTES && at[0] == 'i')
                memcpy(&sender, at + 1, sizeof(sender));
            else
                sane = false;
        } else if (!more) {
            (void)zmq_msg_move(&body, &part);
        } else {
            sane = false;
        }
        first = false;
        (void)zmq_msg_close(&part);
    }
    if (got && sane) admit(s, sender, zmq_msg_data(&body), zmq_msg_size(&body));
    (void)zmq_msg_close(&body);
    return got;
}

static void socket_fini(struct msg_socket *s)
{
    loop_remove(s->readable);
    loop_remove(s->after);
    if (s->zmq) (void)zmq_close(s->zmq);
}

/* The owner's struct begins with its socket, so freeing one frees the other. */
static void socket_free(struct msg_socket *s)
{
    if (!s) return;
    s->dead = true;
    if (s->busy) return;
    socket_fini(s);
    free(s);
}

static void tell_connected(struct msg_socket *s)
{
    void (*connected)(void *) = s->connected;
    s->connected = NULL;
    s->busy = true;
    connected(s->arg);
    s->busy = false;
}

/* What can be done now of what is waited for. */
static int socket_events(const struct msg_socket *s)
{
    int events = 0;
    size_t bytes = sizeof(events);
    if (zmq_getsockopt(s->zmq, ZMQ_EVENTS, &events, &bytes) < 0) return 0;
    return events & (ZMQ_POLLIN | (s->connected ? ZMQ_POLLOUT : 0));
}

/* Before each sleep. Every call into ZeroMQ may take in news and with them the descriptor's signal,
 * so the last thing here is a look that finds nothing; and after a round that found something all
 * sockets are looked at again, since its handlers may have sent through any of them. */
static bool drain(void *arg)
{
    struct msg_socket *s = arg;
    int n = 0, events;
    while (!s->dead && n < MESSAGES_A_ROUND && (events = socket_events(s)) != 0) {
        if (events & ZMQ_POLLOUT) tell_connected(s);
        if (!s->dead && (events & ZMQ_POLLIN)) (void)receive(s);
        n++;
    }
    if (s->dead) socket_free(s);
    return n > 0;
}

/* The descriptor only ends the sleep; drain follows. */
static void on_readable(void *arg, uint32_t events)
{
    (void)arg;
    (void)events;
}

static int set_int(void *zmq, int option, int value)
{
    return zmq_setsockopt(zmq, option, &value, sizeof(value)) < 0 ? -errno : 0;
}

static int socket_options(struct msg_socket *s)
{
    /* No reconnecting: a client whose server died is over, and its owner, who hears of the death,
     * makes another one. One that came back by itself would find the server's successor, be it
     * after the owner's new client, whose connection the ROUTER would then drop with all that it
     * brought. */
    static const struct {
        int option, value;
    } both[] = {
        {ZMQ_LINGER,        0             },
        {ZMQ_IMMEDIATE,     1             },
        {ZMQ_SNDHWM,        MSG_HIGH_WATER},
        {ZMQ_RCVHWM,        MSG_HIGH_WATER},
        {ZMQ_RECONNECT_IVL, -1            },
        {ZMQ_BACKLOG,       1024          }, /* since nobody tries twice */
    };
    for (size_t i = 0; i < ARRAY_LEN(both); i++) {
        int r = set_int(s->zmq, both[i].option, both[i].value);
        if (r < 0) return r;
    }
    int64_t max = MSG_MAX_BYTES;
    if (zmq_setsockopt(s->zmq, ZMQ_MAXMSGSIZE, &max, sizeof(max)) < 0) return -errno;
    /* A client that was just connecting when its server died may be tied to the next one. Without a
     * handover the client's new connection would never be heard. */
    if (s->is_server) {
        int r = set_int(s->zmq, ZMQ_ROUTER_MANDATORY, 1);
        return r < 0 ? r : set_int(s->zmq, ZMQ_ROUTER_HANDOVER, 1);
    }
    unsigned char id[IDENTITY_BYTES];
    identity_of(s->self, id);
    return zmq_setsockopt(s->zmq, ZMQ_ROUTING_ID, id, sizeof(id)) < 0 ? -errno : 0;
}

static int socket_watch(struct msg_socket *s)
{
    int fd = -1;
    size_t bytes = sizeof(fd);
    if (zmq_getsockopt(s->zmq, ZMQ_FD, &fd, &bytes) < 0) return -errno;
    int r = loop_add_fd(s->loop, fd, EPOLLIN, on_readable, s, &s->readable);
    if (r < 0) return r;
    return loop_add_after(s->loop, drain, s, &s->after);
}

static int socket_init(struct msg_socket *s, const char *endpoint, struct why *why)
{
    s->zmq = context_get() ? zmq_socket(context, s->is_server ? ZMQ_ROUTER : ZMQ_DEALER) : NULL;
    int r = s->zmq ? socket_options(s) : -errno;
    if (r == 0) {
        int done = s->is_server ? zmq_bind(s->zmq, endpoint) : zmq_connect(s->zmq, endpoint);
        if (done < 0) r = -errno;
    }
    if (r == 0) r = socket_watch(s);
    if (r == 0) return 0;
    socket_fini(s);
    return why_set(why, r, "%s: cannot %s: %s", endpoint, s->is_server ? "bind" : "connect",
                   zmq_strerror(-r));
}

int msg_server_new(struct loop *l, const char *endpoint, uint64_t self, msg_fn fn, void *arg,
                   struct why *why, struct msg_server **ret)
{
    CLEANUP(freep) struct msg_server *s = xnew(struct msg_server);
    s->s = (struct msg_socket){.self = self, .fn = fn, .arg = arg, .loop = l, .is_server = true};
    int r = socket_init(&s->s, endpoint, why);
    if (r < 0) return r;
    *ret = TAKE(s);
    return 0;
}

void msg_server_free(struct msg_server *s) { socket_free((struct msg_socket *)s); }

int msg_server_send(struct msg_server *s, uint64_t to, Cistern__Envelope *m)
{
    return send_frames(&s->s, to, m);
}

void msg_server_refuse(struct msg_server *s, uint64_t to, uint64_t number, Cistern__Code code,
                       const char *text)
{
    refuse(&s->s, to, number, code, text);
}

int msg_client_new(struct loop *l, const char *endpoint, uint64_t self, uint64_t peer, msg_fn fn,
                   void (*connected)(void *arg), void *arg, struct why *why,
                   struct msg_client **ret)
{
    CLEANUP(freep) struct msg_client *c = xnew(struct msg_client);
    c->s = (struct msg_socket){
        .self = self, .peer = peer, .fn = fn, .connected = connected, .arg = arg, .loop = l};
    int r = socket_init(&c->s, endpoint, why);
    if (r < 0) return r;
    *ret = TAKE(c);
    return 0;
}

void msg_client_free(struct msg_client *c) { socket_free((struct msg_socket *)c); }

int msg_client_send(struct msg_client *c, Cistern__Envelope *m)
{
    return send_frames(&c->s, c->s.peer, m);
}
