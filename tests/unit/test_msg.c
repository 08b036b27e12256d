/* SPDX-License-Identifier: MIT */
/* Messages between two ends in this process, and a raw ZeroMQ peer that sends what no end of ours
 * would. The rules are those of msg.h: another version or incarnation is answered
 * and changes nothing, what is no envelope is dropped, nothing ends the loop. */
#include <check.h>
#include <errno.h>
#include <string.h>
#include <zmq.h>

#include "common/msg.h"
#include "tests/suite.h"

enum { SERVER = 0x1111, CLIENT = 0x2222, PATIENCE_US = 60000000 };

static struct loop *loop;
static struct msg_server *server;
static struct msg_client *client;
static char endpoint[64];
static int got_server, got_client;
static Cistern__Code refused_with;
static bool connected;

static void on_server(void *arg, uint64_t from, const Cistern__Envelope *m)
{
    (void)arg;
    ck_assert_uint_eq(from, CLIENT);
    ck_assert_int_eq(m->body_case, CISTERN__ENVELOPE__BODY_HELLO);
    got_server++;
    msg_server_refuse(server, from, m->number, CISTERN__CODE__NOT_READY, "later");
}

static void on_client(void *arg, uint64_t from, const Cistern__Envelope *m)
{
    (void)arg;
    (void)from;
    ck_assert_int_eq(m->body_case, CISTERN__ENVELOPE__BODY_REFUSED);
    refused_with = m->refused->code;
    got_client++;
    loop_stop(loop, 0);
}

static void on_connected(void *arg)
{
    (void)arg;
    connected = true;
    loop_stop(loop, 0);
}

static void on_timeout(void *arg)
{
    (void)arg;
    loop_stop(loop, -ETIMEDOUT);
}

static void run(int expect)
{
    struct loop_source *timeout;
    ck_assert_int_eq(loop_add_timer(loop, on_timeout, NULL, &timeout), 0);
    ck_assert_int_eq(loop_set_timer(timeout, expect < 0 ? 200000 : PATIENCE_US, 0), 0);
    ck_assert_int_eq(loop_run(loop), expect);
    loop_remove(timeout);
}

static void setup(void)
{
    struct why why = {0};
    (void)snprintf(endpoint, sizeof(endpoint), "ipc:///tmp/test_msg_%d", getpid());
    ck_assert_int_eq(loop_new(&loop), 0);
    ck_assert_int_eq(msg_server_new(loop, endpoint, SERVER, on_server, NULL, &why, &server), 0);
}

static void teardown(void)
{
    msg_client_free(client);
    msg_server_free(server);
    loop_free(loop);
    (void)unlink(endpoint + strlen("ipc://"));
}

static void connect_client(uint64_t peer)
{
    struct why why = {0};
    ck_assert_int_eq(
        msg_client_new(loop, endpoint, CLIENT, peer, on_client, on_connected, NULL, &why, &client),
        0);
    run(0);
    ck_assert(connected);
}

static int send_hello(void)
{
    Cistern__Hello hello = CISTERN__HELLO__INIT;
    Cistern__Envelope m = CISTERN__ENVELOPE__INIT;
    m.number = 5;
    m.body_case = CISTERN__ENVELOPE__BODY_HELLO;
    m.hello = &hello;
    return msg_client_send(client, &m);
}

START_TEST(a_message_and_its_answer)
{
    connect_client(SERVER);
    ck_assert_int_eq(send_hello(), 0);
    run(0);
    ck_assert_int_eq(got_server, 1);
    ck_assert_int_eq(refused_with, CISTERN__CODE__NOT_READY);
}
END_TEST

START_TEST(before_it_is_connected_nothing_is_kept)
{
    struct why why = {0};
    ck_assert_int_eq(msg_client_new(loop, "ipc:///tmp/test_msg_nobody", CLIENT, SERVER, on_client,
                                    NULL, NULL, &why, &client),
                     0);
    ck_assert_int_eq(send_hello(), -EAGAIN);
}
END_TEST

START_TEST(a_server_knows_whom_it_cannot_reach)
{
    Cistern__Envelope m = CISTERN__ENVELOPE__INIT;
    ck_assert_int_eq(msg_server_send(server, 0x9999, &m), -EHOSTUNREACH);
}
END_TEST

START_TEST(another_incarnation_is_stale_and_changes_nothing)
{
    connect_client(SERVER + 1); /* it means a predecessor of the server */
    ck_assert_int_eq(send_hello(), 0);
    run(-ETIMEDOUT); /* the answer names another sender than the one it means: dropped as well */
    ck_assert_int_eq(got_server, 0);
    ck_assert_int_eq(got_client, 0);
}
END_TEST

/* A client's first connection is not yet gone (of one that found the server before it heard that
 * its predecessor had died) when its second one comes: that one is heard and answered. */
START_TEST(who_connects_again_is_heard)
{
    connect_client(SERVER);
    ck_assert_int_eq(send_hello(), 0);
    run(0);
    struct msg_client *first = client;
    client = NULL;
    connected = false;
    connect_client(SERVER);
    ck_assert_int_eq(send_hello(), 0);
    run(0);
    ck_assert_int_eq(got_server, 2);
    ck_assert_int_eq(got_client, 2);
    msg_client_free(first);
}
END_TEST

/* A worker's old connection came back to a restarted server, behind its new one, whose attach was
 * dropped with it: a client does not come back by itself. */
START_TEST(who_lost_its_server_stays_away)
{
    struct why why = {0};
    connect_client(SERVER);
    msg_server_free(server);
    ck_assert_int_eq(msg_server_new(loop, endpoint, SERVER, on_server, NULL, &why, &server), 0);
    run(-ETIMEDOUT);
    ck_assert_int_eq(send_hello(), -EAGAIN);
    struct msg_client *first = client;
    connect_client(SERVER);
    ck_assert_int_eq(send_hello(), 0);
    run(0);
    ck_assert_int_eq(got_client, 1);
    msg_client_free(first);
}
END_TEST

/* ---- a peer that is not ours ---- */

static size_t pack(uint32_t version, uint64_t from, uint64_t to, unsigned char *ret)
{
    Cistern__Hello hello = CISTERN__HELLO__INIT;
    Cistern__Envelope m = CISTERN__ENVELOPE__INIT;
    m.version = version;
    m.from = from;
    m.to = to;
    m.number = 8;
    m.body_case = CISTERN__ENVELOPE__BODY_HELLO;
    m.hello = &hello;
    return cistern__envelope__pack(&m, ret);
}

static const struct {
    uint32_t version;
    uint64_t from, to;
    int garbage; /* bytes that are no envelope, instead */
    int parts;   /* frames of the message */
    int code;    /* of the refusal, or -1: silence */
} strange[] = {
    {MSG_VERSION + 1, CLIENT,     SERVER,     0,   1, CISTERN__CODE__VERSION},
    {0,               CLIENT,     SERVER,     0,   1, CISTERN__CODE__VERSION},
    {MSG_VERSION,     CLIENT,     SERVER + 1, 0,   1, CISTERN__CODE__STALE  },
    {MSG_VERSION,     CLIENT + 1, SERVER,     0,   1, -1                    },
    {MSG_VERSION,     CLIENT,     SERVER,     100, 1, -1                    },
    {MSG_VERSION,     CLIENT,     SERVER,     0,   2, -1                    },
};

static void *raw;

static bool look_raw(void *arg)
{
    (void)arg;
    unsigned char room[512];
    int n = zmq_recv(raw, room, sizeof(room), ZMQ_DONTWAIT);
    if (n < 0) return true;
    Cistern__Envelope *m = cistern__envelope__unpack(NULL, (size_t)n, room);
    ck_assert_ptr_nonnull(m);
    ck_assert_uint_eq(m->number, 8);
    ck_assert_int_eq(m->body_case, CISTERN__ENVELOPE__BODY_REFUSED);
    refused_with = m->refused->code;
    cistern__envelope__free_unpacked(m, NULL);
    got_client++;
    loop_stop(loop, 0);
    return false;
}

START_TEST(strange_messages_end_nothing)
{
    void *context = zmq_ctx_new();
    raw = zmq_socket(context, ZMQ_DEALER);
    unsigned char id[9] = {'i'}, frame[512];
    uint64_t incarnation = CLIENT;
    memcpy(id + 1, &incarnation, sizeof(incarnation));
    int linger = 0;
    (void)zmq_setsockopt(raw, ZMQ_ROUTING_ID, id, sizeof(id));
    (void)zmq_setsockopt(raw, ZMQ_LINGER, &linger, sizeof(linger));
    ck_assert_int_eq(zmq_connect(raw, endpoint), 0);
    memset(frame, 0xa5, sizeof(frame));
    size_t n = strange[_i].garbage
                   ? (size_t)strange[_i].garbage
                   : pack(strange[_i].version, strange[_i].from, strange[_i].to, frame);
    for (int i = 1; i < strange[_i].parts; i++)
        ck_assert_int_ge(zmq_send(raw, frame, n, ZMQ_SNDMORE), 0);
    ck_assert_int_ge(zmq_send(raw, frame, n, 0), 0);
    struct loop_source *look;
    ck_assert_int_eq(loop_add_after(loop, look_raw, NULL, &look), 0);
    run(strange[_i].code < 0 ? -ETIMEDOUT : 0);
    ck_assert_int_eq(got_server, 0);
    if (strange[_i].code >= 0) ck_assert_int_eq((int)refused_with, strange[_i].code);
    loop_remove(look);
    (void)zmq_close(raw);
    (void)zmq_ctx_term(context);
}
END_TEST

int main(void)
{
    TCase *t = tcase_create("msg");
    tcase_add_checked_fixture(t, setup, teardown);
    tcase_set_timeout(t, 100);
    tcase_add_test(t, a_message_and_its_answer);
    tcase_add_test(t, before_it_is_connected_nothing_is_kept);
    tcase_add_test(t, who_connects_again_is_heard);
    tcase_add_test(t, who_lost_its_server_stays_away);
    tcase_add_test(t, a_server_knows_whom_it_cannot_reach);
    tcase_add_test(t, another_incarnation_is_stale_and_changes_nothing);
    tcase_add_loop_test(t, strange_messages_end_nothing, 0, ARRAY_LEN(strange));
    return suite_run("msg", t);
}
