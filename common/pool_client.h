/* SPDX-License-Identifier: MIT */
#ifndef COMMON_POOL_CLIENT_H
#define COMMON_POOL_CLIENT_H
/*
 * A process's side of its tie to poold: the lifeline (an AF_UNIX connection that the kernel closes
 * when either dies; descriptors travel over it) and the message socket. When poold goes away it
 * tries again every 20 ms until it is back; the memory stays mapped meanwhile. Used by workers,
 * gateways and tools. Loop thread only.
 */
#include "common/lifeline.h"
#include "common/msg.h"

struct pool_client;

struct pool_client_events {
    /* The lifeline is up and messages can be sent: say what you are (attach_worker or
     * attach_other). Called again after each return of poold, which has another incarnation then.
     */
    void (*connected)(void *arg);
    /* poold is gone. Operations without an answer must be sent again, under their old numbers,
     * after the next attach. */
    void (*lost)(void *arg);
    /* An envelope from poold. */
    void (*message)(void *arg, const Cistern__Envelope *m);
    /* Files came over the lifeline; fds[] become the handler's. */
    void (*files)(void *arg, const struct lifeline_files *f, int *fds, uint32_t n_fds);
    /* poold refused the lifeline itself: a sentence; nothing more will come. */
    void (*refused)(void *arg, const char *text);
    void *arg;
};

/* run_dir: where poold's sockets are. self: this process's incarnation. role: enum pool_role. */
int pool_client_new(struct loop *l, const char *run_dir, uint64_t self, uint32_t role,
                    const struct pool_client_events *events, struct why *why,
                    struct pool_client **ret);
void pool_client_free(struct pool_client *c);
static inline void pool_client_freep(struct pool_client **c) { pool_client_free(*c); }
/* -ENOTCONN while poold is away. m->number is the caller's: see pool_client_number. */
int pool_client_send(struct pool_client *c, Cistern__Envelope *m);
/* The arena to be handed back to each poold that comes; fd, a copy of which is kept, and facts as
 * in lifeline.h. NULL: none. */
void pool_client_hold(struct pool_client *c, const struct lifeline_arena *arena, int fd);
uint64_t pool_client_number(struct pool_client *c); /* the next unused number, from 1 */

#endif
