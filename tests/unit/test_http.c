/* SPDX-License-Identifier: MIT */
/* The HTTP server inside our loop: what its handlers do must be seen by whoever looks before the
 * loop sleeps (loop.h). A message that a handler sends may take in the signal of one that has come;
 * when nobody looked after it, answers stood still until the next second's timer. */
#include <arpa/inet.h>
#include <errno.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include "gateway/http.h"
#include "tests/suite.h"

enum { TICK_US = 20000, PATIENCE_US = 10000000 };

static struct loop *loop;
static struct http *http;
static struct exchange *waiting;
static int first, second; /* connections */
static int n_served, n_unseen;

static void serve(void *arg, struct exchange *x)
{
    (void)arg;
    n_served++;
    n_unseen++;
    if (n_served == 1) waiting = x;
    exchange_wait(x, NULL, NULL);
}

static void never(void *arg, struct exchange *x)
{
    (void)arg;
    (void)x;
    ck_abort();
}

static void over(void *arg, const struct exchange *x)
{
    (void)arg;
    (void)x;
}

/* Who looks. Added after the server, so called before it in each round. */
static bool look(void *arg)
{
    (void)arg;
    n_unseen = 0;
    return false;
}

static void send_request(int fd)
{
    static const char request[] = "GET / HTTP/1.1\r\nHost: localhost\r\n\r\n";
    ck_assert_int_eq(send(fd, request, sizeof(request) - 1, 0), (int)sizeof(request) - 1);
}

/* In the C library's place: the loop is about to sleep, or only looks. */
int epoll_wait(int fd, struct epoll_event *events, int n, int timeout)
{
    if (timeout != 0) ck_assert_int_eq(n_unseen, 0);
    return epoll_pwait(fd, events, n, timeout, NULL);
}

/* The first tick that finds the first request served answers it, by
 * which the library is to be run, just when the second one has come. */
static void on_tick(void *arg)
{
    (void)arg;
    if (n_served == 1 && waiting) {
        struct answer a = {.status = 204};
        send_request(second);
        exchange_answer(TAKE(waiting), &a);
    } else if (n_served == 2) {
        loop_stop(loop, 0);
    }
}

static void on_late(void *arg)
{
    (void)arg;
    loop_stop(loop, -ETIMEDOUT);
}

static int connected(void)
{
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_port = htons(http_port(http))};
    at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    ck_assert_int_ge(fd, 0);
    ck_assert_int_eq(connect(fd, (struct sockaddr *)&at, sizeof(at)), 0);
    return fd;
}

START_TEST(what_a_handler_does_is_seen_before_the_loop_sleeps)
{
    struct loop_source *tick, *late, *after;
    struct why why = {0};
    struct http_options o = {.listen = "127.0.0.1",
                             .connections = 4,
                             .slow_ms = 60000,
                             .ping_ms = 60000,
                             .body_bytes = 1024,
                             .out_bytes = 1024,
                             .serve = serve,
                             .too_large = never,
                             .over = over};
    ck_assert_int_eq(loop_new(&loop), 0);
    ck_assert_int_eq(http_new(loop, &o, &why, &http), 0);
    ck_assert_int_eq(loop_add_after(loop, look, NULL, &after), 0);
    ck_assert_int_eq(loop_add_timer(loop, on_tick, NULL, &tick), 0);
    ck_assert_int_eq(loop_set_timer(tick, TICK_US, TICK_US), 0);
    ck_assert_int_eq(loop_add_timer(loop, on_late, NULL, &late), 0);
    ck_assert_int_eq(loop_set_timer(late, PATIENCE_US, 0), 0);
    first = connected();
    second = connected();
    send_request(first);
    ck_assert_int_eq(loop_run(loop), 0);
    (void)close(first);
    (void)close(second);
    http_free(http);
    loop_free(loop);
}
END_TEST

int main(void)
{
    TCase *t = tcase_create("http");
    tcase_set_timeout(t, 30);
    tcase_add_test(t, what_a_handler_does_is_seen_before_the_loop_sleeps);
    return suite_run("http", t);
}
