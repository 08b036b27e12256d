/* SPDX-License-Identifier: MIT */
#ifndef GATEWAY_KEYS_H
#define GATEWAY_KEYS_H
/*
 * The keys that clients must show, and what each has under way. Without keys everybody is served.
 * A key is known by its hash alone; the text is dropped once it is read. Loop thread.
 */
#include "common/config.h"
#include "gateway/api/errors.h"
#include "gateway/http.h"

struct keys;

struct key {
    uint8_t hash[32];
    uint64_t salt;      /* of its conversations in the pool: 0 shares with everybody */
    uint32_t n_running; /* generations; whoever runs one counts */
    uint32_t n_waiting; /* of these, those that no lane has yet */
};

/* -EACCES: gateway.keys_file can be read by others than its owner. */
int keys_new(const struct config *c, struct why *why, struct keys **ret);
void keys_free(struct keys *k);
static inline void keys_freep(struct keys **k) { keys_free(*k); }

/* Whether the client may ask at all; else *fault. */
int keys_check(const struct keys *k, const struct exchange *x, struct fault *fault);
/* Whether one more generation fits in its limits; queues: all lanes are taken. */
int keys_admit(const struct keys *k, const struct exchange *x, bool queues, struct fault *fault);
/* The client's key; NULL when none is asked for. */
struct key *keys_of(struct keys *k, const struct exchange *x);

#endif
