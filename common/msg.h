/* SPDX-License-Identifier: MIT */
#ifndef COMMON_MSG_H
#define COMMON_MSG_H
/*
 * Messages: one Envelope a frame over ZeroMQ. A server (ROUTER) knows its peers by their
 * incarnation; a client (DEALER) has one peer. Nothing here waits: a send that would block is a
 * failure of that peer. What arrives is bounded before it is unpacked, its version and its
 * receiver's incarnation are checked, and a mismatch is answered here (VERSION, STALE) and goes no
 * further.
 *
 * Loop thread only. The Envelope given to the handler is freed when the handler returns; a handler
 * may free the socket that called it.
 */
#include "cistern.pb-c.h"
#include "common/base.h"
#include "common/loop.h"

enum {
    MSG_VERSION = 3,
    MSG_MAX_BYTES = 16 << 20, /* a prompt of 2 M tokens and room */
    MSG_HIGH_WATER = 4096,    /* messages waiting for one peer before it counts as failed */
};

struct msg_server;
struct msg_client;

typedef void (*msg_fn)(void *arg, uint64_t from, const Cistern__Envelope *m);

/* endpoint: ipc://PATH in a private directory. self: this process's incarnation. */
int msg_server_new(struct loop *l, const char *endpoint, uint64_t self, msg_fn fn, void *arg,
                   struct why *why, struct msg_server **ret);
void msg_server_free(struct msg_server *s);
/* Fills version, from and to. -EHOSTUNREACH: no such peer; -EAGAIN: its queue is full. */
int msg_server_send(struct msg_server *s, uint64_t to, Cistern__Envelope *m);

/* peer: the incarnation that envelopes will name, and that answers must come from. connected (may
 * be NULL) is called once, when the first message can be sent: before that every send is -EAGAIN.
 */
int msg_client_new(struct loop *l, const char *endpoint, uint64_t self, uint64_t peer, msg_fn fn,
                   void (*connected)(void *arg), void *arg, struct why *why,
                   struct msg_client **ret);
void msg_client_free(struct msg_client *c);
int msg_client_send(struct msg_client *c, Cistern__Envelope *m);

/* An envelope whose body is a Refused; text is copied at send. */
void msg_server_refuse(struct msg_server *s, uint64_t to, uint64_t number, Cistern__Code code,
                       const char *text);

/* 64 random bits, never 0. */
uint64_t incarnation_new(void);

#endif
