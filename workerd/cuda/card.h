/* SPDX-License-Identifier: MIT */
#ifndef WORKERD_CUDA_CARD_H
#define WORKERD_CUDA_CARD_H
/*
 * What is decided about a card from what it says of itself: whether it serves, and what may still
 * be put into its memory. Nothing of CUDA is in it, so that it is held by tests everywhere.
 */
#include <stdbool.h>

#include "common/base.h"

struct cuda_card {
    const char *device;  /* "cuda:0" */
    const char *name;    /* as its driver says it */
    uint32_t capability; /* 90 for 9.0 */
    bool host_pointers;  /* reads registered host memory at the host's addresses */
};

/* -ENOTSUP with the card's name when it can't compute what is needed. */
int cuda_card_check(const struct cuda_card *c, struct why *why);

/* -ENODEV: a driver is too old for the CUDA that is linked here, or there is none (0). Versions are
 * as CUDA says them: 13000 for 13.0. */
int cuda_driver_refuse(uint32_t driver, uint32_t runtime, struct why *why);

/* Bytes that a worker has on its card. */
struct cuda_budget {
    uint64_t limit; /* worker.memory_limit: as if the card had so much; 0: what it has */
    uint64_t weights, buffers, resident; /* resident: K/V that the pool has, too */
};

/* What may still be taken of free_bytes under the limit. A limit is of a whole card: what the
 * driver takes of one for its own is left free. */
uint64_t cuda_budget_room(const struct cuda_budget *b, uint64_t free_bytes);
/* The same for K/V, which comes last and can do with any amount: some is left for graphs. */
uint64_t cuda_budget_resident(const struct cuda_budget *b, uint64_t free_bytes);
/* Chunks whose K and V a card has room for: for good, with all layers, and while they pass, with
 * two (passing.c). */
struct cuda_places {
    uint64_t slots, passing;
};
/* room: layers of a chunk that there is memory for. Of all chunks at most `most` stay; those of a
 * conversation of the largest context can pass as far as not all of them could stay, as long as
 * that takes a quarter of the room at most. */
struct cuda_places cuda_places_of(uint64_t room, uint32_t n_layers, uint64_t all, uint64_t most,
                                  uint64_t context);
/* -ENOMEM; why says what is too large and how much all else has. */
int cuda_budget_refuse(const struct cuda_budget *b, const char *what, uint64_t bytes,
                       uint64_t free_bytes, uint64_t all_bytes, struct why *why);

#endif
