/* SPDX-License-Identifier: MIT */
/*
 * Names this stage's inbox, opens the next one's, and says window by window which way its
 * activations took (peer.h). Called by stage.c.
 */
#include "workerd/peer.h"

#include <errno.h>
#include <string.h>

#include "common/config.h"
#include "common/log.h"

static bool sends(const struct peer *p) { return p->stage + 1 < p->n_stages; }

void peer_begin(struct peer *p, struct model *m, const struct link *l)
{
    p->decided = p->open = p->has_inbox = false;
    p->settled = LINK_WAY_SLOT;
    p->text[0] = 0;
    if (p->stage == 0) return;
    struct link_inbox *inbox = link_inbox(l, p->stage), own = {.state = LINK_INBOX_NONE};
    if (p->mode == WORKER_PEER_OFF)
        (void)snprintf(own.text, sizeof(own.text), "worker.peer = off");
    else
        model_inbox(m, l->h.n_slots, &own);
    p->has_inbox = own.state == LINK_INBOX_MEMORY;
    uint32_t state = own.state;
    own.state = LINK_INBOX_UNSAID;
    memcpy(inbox, &own, sizeof(own));
    shm_store_u32(&inbox->state, state);
}

/* Whether the next stage's inbox, as it names it, can be used. */
static int inbox_open(const struct peer *p, struct model *m, const struct link *l, uint32_t state,
                      struct link_inbox *ret, struct why *why)
{
    memcpy(ret, link_inbox(l, p->stage + 1), sizeof(*ret));
    ret->text[sizeof(ret->text) - 1] = 0;
    if (p->mode == WORKER_PEER_OFF) return why_set(why, -ENOTSUP, "worker.peer = off");
    if (state != LINK_INBOX_MEMORY)
        return why_set(why, -ENOTSUP, "stage %u: %s", p->stage + 1, ret->text);
    if (ret->slot_bytes < (uint64_t)l->h.max_rows * l->h.n_embd * sizeof(float))
        return why_set(why, -ENOTSUP, "stage %u: its inbox is too small", p->stage + 1);
    return model_peer_open(m, ret, why);
}

int peer_look(struct peer *p, struct model *m, const struct link *l, struct why *why)
{
    if (p->decided || !sends(p)) return 0;
    uint32_t state = shm_load_u32(&link_inbox(l, p->stage + 1)->state);
    if (state == LINK_INBOX_UNSAID) return 0;
    struct link_inbox inbox;
    struct why inner = {0};
    p->open = inbox_open(p, m, l, state, &inbox, &inner) == 0;
    p->decided = true;
    if (!p->open && p->mode == WORKER_PEER_ON)
        return why_set(why, -ENOTSUP, "worker.peer = on, but stage %u can't be reached: %s",
                       p->stage + 1, inner.text);
    if (p->open)
        (void)snprintf(p->text, sizeof(p->text), "peer %s -> %s", p->device, inbox.text);
    else
        (void)snprintf(p->text, sizeof(p->text), "through host memory: %.160s", inner.text);
    return 1;
}

void peer_end(struct peer *p, struct model *m)
{
    if (p->open) model_peer_close(m);
    p->decided = p->open = p->has_inbox = false;
    p->settled = LINK_WAY_SLOT;
    p->text[0] = 0;
}

static bool has_come(const struct peer *p, const struct link *l, uint32_t count)
{
    return (int32_t)(bell_count(link_bell(l, p->stage)) - count) >= 0;
}

bool peer_knows(const struct peer *p, const struct link *l, uint32_t count)
{
    return p->stage == 0 || !p->has_inbox || p->settled || has_come(p, l, count);
}

static uint32_t way_in(const struct peer *p, const struct link *l, uint32_t count)
{
    if (has_come(p, l, count)) return *link_way(l, count, p->stage - 1);
    return p->settled;
}

static int way_refuse(uint32_t way, struct why *why)
{
    return why_set(why, -EPROTO, "its activations came by way %u, which is none here", way);
}

int peer_ways(const struct peer *p, const struct link *l, uint32_t count, struct window *w,
              struct why *why)
{
    w->slot = count % l->h.n_slots;
    if (p->stage > 0) {
        uint32_t way = way_in(p, l, count);
        if (way > LINK_WAY_SLOTS || (way == LINK_WAY_INBOX && !p->has_inbox))
            return way_refuse(way, why);
        w->in_inbox = way == LINK_WAY_INBOX;
        w->in = w->in_inbox ? NULL : link_activations(l, count, p->stage - 1);
    }
    if (!sends(p)) return 0;
    w->out_inbox = p->open;
    w->out = w->out_inbox ? NULL : link_activations(l, count, p->stage);
    return 0;
}

int peer_came(struct peer *p, const struct link *l, uint32_t count, const struct window *w,
              struct why *why)
{
    if (p->stage == 0) return 0;
    uint32_t way = *link_way(l, count, p->stage - 1);
    if (way > LINK_WAY_SLOTS || (way == LINK_WAY_INBOX) != w->in_inbox) return way_refuse(way, why);
    p->settled = way;
    return 0;
}

void peer_say(const struct peer *p, const struct link *l, uint32_t count, const struct window *w)
{
    if (!sends(p)) return;
    *link_way(l, count, p->stage) = w->out_inbox             ? LINK_WAY_INBOX
                                    : p->decided && !p->open ? LINK_WAY_SLOTS
                                                             : LINK_WAY_SLOT;
}
