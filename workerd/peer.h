/* SPDX-License-Identifier: MIT */
#ifndef WORKERD_PEER_H
#define WORKERD_PEER_H
/*
 * The way that activations take to the next stage: straight into its device's memory where that is
 * allowed and can be, else through the link's slots. One life at a time; decided once a life, as
 * soon as the next stage has said where its inbox is. Until then they take the slots: nobody waits
 * for anybody, and the bits do not depend on the way.
 *
 * Owned by the stage; device thread only.
 */
#include "workerd/link.h"
#include "workerd/model.h"

struct peer {
    /* Set before the first call. */
    uint32_t stage, n_stages;
    uint32_t mode;      /* enum worker_peer */
    const char *device; /* ours, as "cuda:0" */

    bool decided, open, has_inbox; /* of this life */
    uint32_t settled; /* enum link_way, as activations come for the rest of it; SLOT: not yet */
    char text[192];   /* the way, for people; empty: not decided, or the last stage */
};

/* A life begins: names the inbox, which the stage before may be waiting for. */
void peer_begin(struct peer *p, struct model *m, const struct link *l);
/* Decides when it can. 1: it did just now, text says how; 0: nothing new; -ENOTSUP with why when
 * worker.peer = on can't be had. */
int peer_look(struct peer *p, struct model *m, const struct link *l, struct why *why);
/* The life is over, no window is in hand: whoever is dead gets its memory back by this. */
void peer_end(struct peer *p, struct model *m);

/* Whether it is known how a window's activations come, though they may not have. */
bool peer_knows(const struct peer *p, const struct link *l, uint32_t count);
/* Fills a window's ways in and out, where they are known. -EPROTO with why when the one in is none.
 */
int peer_ways(const struct peer *p, const struct link *l, uint32_t count, struct window *w,
              struct why *why);
/* The window's activations have come. -EPROTO with why when they did not as was known. */
int peer_came(struct peer *p, const struct link *l, uint32_t count, const struct window *w,
              struct why *why);
/* Before the bell: says where the window's activations are. */
void peer_say(const struct peer *p, const struct link *l, uint32_t count, const struct window *w);

#endif
