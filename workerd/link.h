/* SPDX-License-Identifier: MIT */
#ifndef WORKERD_LINK_H
#define WORKERD_LINK_H
/*
 * A pipeline's link (proto/link_shm.h) as this process has it mapped: the checks before anybody
 * trusts it, where things lie in a slot, the bells, and the copy of a window out of a slot with
 * every number bounded.
 *
 * One mapping serves the head's loop thread and the device thread; each holds a reference. The
 * struct is immutable once made; who writes which part of the memory is said in link_shm.h.
 */
#include <stdbool.h>

#include "common/base.h"
#include "proto/link_shm.h"

struct link {
    struct link_header h; /* a copy, checked; the one in memory isn't read again */
    char *base;
    uint32_t refs; /* atomic */
};

/* What this process expects; max_rows and max_lanes are the most that its model was loaded for. */
struct link_want {
    uint64_t pool_id;
    uint32_t pipeline, life, n_stages, max_rows, max_lanes, n_embd;
};

/* fd stays the caller's. -EPROTO with the reason when it isn't the link that was wanted. */
int link_map(int fd, const struct link_want *want, struct why *why, struct link **ret);
struct link *link_ref(struct link *l);
void link_unref(struct link *l); /* takes NULL */
static inline void link_unrefp(struct link **l) { link_unref(*l); }

/* Windows are numbered from 1 within a life, so a bell's count is the number of the last window
 * that it stands for. */
struct link_bell *link_bell(const struct link *l, uint32_t i);
struct link_window *link_slot(const struct link *l, uint64_t count);
struct link_lane *link_lanes(const struct link *l, uint64_t count);
uint32_t *link_tokens(const struct link *l, uint64_t count);
struct link_bias *link_biases(const struct link *l, uint64_t count);
uint32_t *link_results(const struct link *l, uint64_t count);
struct link_probs *link_probs(const struct link *l, uint64_t count);
float *link_activations(const struct link *l, uint64_t count, uint32_t stage);
uint32_t *link_way(const struct link *l, uint64_t count, uint32_t stage);
struct link_inbox *link_inbox(const struct link *l, uint32_t stage);

uint32_t bell_count(const struct link_bell *b);
/* Stores count and wakes who sleeps at the bell. One ringer a bell. */
void bell_ring(struct link_bell *b, uint32_t count);
/* Wakes who sleeps at the bell without ringing it: it may do something before the ring. One that is
 * just going to sleep may miss it. */
void bell_wake(struct link_bell *b);
/* Waits until the count is no longer seen; false when it still is after timeout_us, or earlier, by
 * bell_wake or the late wake of a ring that was seen without it: callers look again. Spins spin_us
 * first. One waiter a bell. */
bool bell_wait(struct link_bell *b, uint32_t seen, uint32_t spin_us, uint32_t timeout_us);

struct link_limits {
    uint32_t n_rows;         /* rows of the pool */
    uint32_t context_tokens; /* a conversation never passes it */
    uint32_t n_vocab;
    uint32_t n_chunks, chunk_cells; /* of the pool */
};

struct link_copy {
    struct link_window window;
    struct link_lane *lanes;  /* [max_lanes] */
    uint32_t *tokens;         /* [max_rows] */
    struct link_bias *biases; /* [max_lanes * LINK_BIASES_MAX] */
};

/* Copies window {life, count} out of its slot and bounds every number in it. -EPROTO with the
 * reason when one is out of range: then the link is of no use any more. The copy's arrays are the
 * caller's. A token that an earlier window samples is LINK_TOKEN_FED, and that window's results are
 * still in their slot. */
int link_read(const struct link *l, uint64_t count, const struct link_limits *limits,
              struct link_copy *ret, struct why *why);

#endif
