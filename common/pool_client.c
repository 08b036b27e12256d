/* SPDX-License-Identifier: MIT */
/*
 * The tie to poold: lifeline first (it tells poold's incarnation), then the message socket, then
 * `connected`. When the lifeline breaks, both go, and a timer tries again. Owned by workers,
 * gateways and tools; loop thread only.
 */
#include "common/pool_client.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/un.h>

#include "common/log.h"

enum { RETRY_US = 20000 };

struct pool_client {
    struct loop *loop;
    char *endpoint;
    struct sockaddr_un address;
    uint64_t self, number;
    uint32_t role;
    struct pool_client_events events;
    struct loop_source *retry;
    int sock; /* the lifeline, or -1 */
    struct loop_source *readable;
    struct msg_client *msg;      /* once WELCOME told poold's incarnation */
    bool up;                     /* messages can be sent */
    struct lifeline_arena arena; /* handed back with each hello */
    int arena_fd;
};

static void on_message(void *arg, uint64_t from, const Cistern__Envelope *m)
{
    (void)from;
    struct pool_client *c = arg;
    c->events.message(c->events.arg, m);
}

static void on_connected(void *arg)
{
    struct pool_client *c = arg;
    c->up = true;
    c->events.connected(c->events.arg);
}

static void tie_drop(struct pool_client *c)
{
    bool was_up = c->up;
    c->up = false;
    loop_remove(TAKE(c->readable));
    closep(&c->sock);
    c->sock = -1;
    msg_client_free(TAKE(c->msg));
    (void)loop_set_timer(c->retry, RETRY_US, 0);
    if (was_up) c->events.lost(c->events.arg);
}

static int on_packet(struct pool_client *c, struct lifeline_files *f, int *fds, uint32_t n_fds)
{
    struct why why;
    if (f->magic != LIFELINE_MAGIC) return -EPROTO;
    f->text[sizeof(f->text) - 1] = 0;
    switch (f->kind) {
    case LIFELINE_REFUSED:
        c->events.refused(c->events.arg, f->text);
        return -ECONNREFUSED;
    case LIFELINE_WELCOME:
        if (c->msg || f->incarnation == 0) return -EPROTO;
        if (msg_client_new(c->loop, c->endpoint, c->self, f->incarnation, on_message, on_connected,
                           c, &why, &c->msg) < 0)
            return log_error("%s", why.text), -EIO;
        return 0;
    case LIFELINE_POOL:
    case LIFELINE_LINK:
    case LIFELINE_PAGE:
    case LIFELINE_ARENA:
        c->events.files(c->events.arg, f, fds, n_fds);
        return 1;
    default:
        return -EPROTO;
    }
}

static void on_lifeline(void *arg, uint32_t events)
{
    (void)events;
    struct pool_client *c = arg;
    struct lifeline_files f;
    int fds[LIFELINE_FDS_MAX];
    uint32_t n_fds = 0;
    int r = lifeline_receive(c->sock, &f, sizeof(f), fds, &n_fds);
    if (r == -EAGAIN) return;
    if (r == 0) r = on_packet(c, &f, fds, n_fds);
    for (uint32_t i = 0; r != 1 && i < n_fds; i++)
        (void)close(fds[i]);
    if (r == -EPROTO) log_error("poold sent a packet that this release does not understand");
    if (r < 0) tie_drop(c);
}

static int say_hello(struct pool_client *c)
{
    CLEANUP(closep) int pidfd = (int)syscall(SYS_pidfd_open, getpid(), 0);
    if (pidfd < 0) return -errno;
    struct lifeline_hello hello = {
        .magic = LIFELINE_MAGIC,
        .version = LIFELINE_VERSION,
        .role = c->role,
        .incarnation = c->self,
        .arena = c->arena,
    };
    int fds[] = {pidfd, c->arena_fd};
    return lifeline_send(c->sock, &hello, sizeof(hello), fds, c->arena.bytes ? 2 : 1);
}

static void on_retry(void *arg)
{
    struct pool_client *c = arg;
    c->sock = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    int r = c->sock < 0 ? -errno : 0;
    if (r == 0 && connect(c->sock, (struct sockaddr *)&c->address, sizeof(c->address)) < 0)
        r = -errno;
    if (r == 0) r = say_hello(c);
    if (r == 0) r = loop_add_fd(c->loop, c->sock, EPOLLIN, on_lifeline, c, &c->readable);
    if (r == 0) return;
    closep(&c->sock);
    c->sock = -1;
    (void)loop_set_timer(c->retry, RETRY_US, 0);
}

int pool_client_new(struct loop *l, const char *run_dir, uint64_t self, uint32_t role,
                    const struct pool_client_events *events, struct why *why,
                    struct pool_client **ret)
{
    CLEANUP(pool_client_freep) struct pool_client *c = xnew(struct pool_client);
    *c = (struct pool_client){
        .loop = l, .self = self, .role = role, .events = *events, .sock = -1, .arena_fd = -1};
    c->address.sun_family = AF_UNIX;
    size_t room = sizeof(c->address.sun_path);
    int n = snprintf(c->address.sun_path, room, "%s/lifeline", run_dir);
    if (n < 0 || (size_t)n >= room)
        return why_set(why, -ENAMETOOLONG,
                       "run.dir = %s: a socket's path has room for %zu bytes; choose a shorter one",
                       run_dir, room - 1);
    if (asprintf(&c->endpoint, "ipc://%s/poold", run_dir) < 0) abort();
    int r = loop_add_timer(l, on_retry, c, &c->retry);
    if (r < 0) return why_set(why, r, "cannot make a timer: %s", strerror(-r));
    (void)loop_set_timer(c->retry, 1, 0);
    *ret = TAKE(c);
    return 0;
}

void pool_client_free(struct pool_client *c)
{
    if (!c) return;
    loop_remove(c->retry);
    loop_remove(c->readable);
    msg_client_free(c->msg);
    /* The lifeline is left to the kernel, which closes it when the process is gone: poold kills a
     * worker whose lifeline closes, and would kill one that is in the middle of an orderly end. */
    closep(&c->arena_fd);
    free(c->endpoint);
    free(c);
}

void pool_client_hold(struct pool_client *c, const struct lifeline_arena *arena, int fd)
{
    closep(&c->arena_fd);
    c->arena_fd = arena ? fcntl(fd, F_DUPFD_CLOEXEC, 0) : -1;
    c->arena = c->arena_fd >= 0 ? *arena : (struct lifeline_arena){0};
}

int pool_client_send(struct pool_client *c, Cistern__Envelope *m)
{
    return c->up ? msg_client_send(c->msg, m) : -ENOTCONN;
}

uint64_t pool_client_number(struct pool_client *c) { return ++c->number; }
