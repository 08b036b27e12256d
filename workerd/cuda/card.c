/* SPDX-License-Identifier: MIT */
/* See card.h. Called by cuda.c, memory.c and resident.c. */
#include "workerd/cuda/card.h"

#include <errno.h>

enum {
    CAPABILITY_MIN = 80, /* below it: no int8 mma.m16n8k32, no cp.async */
    RESERVE_SHARE = 16,  /* of a limit; of a small one a part */
    PASSING_LAYERS = 2,  /* of a chunk that passes: the one that is read and the next */
    PASSING_SHARE = 4,   /* of the room for K and V, at most */
};
/* For the driver's own: context, code, graphs, page tables of the pool (8 bytes for 4 KiB). */
static const uint64_t reserve_bytes = UINT64_C(1) << 30;

int cuda_card_check(const struct cuda_card *c, struct why *why)
{
    if (c->capability < CAPABILITY_MIN)
        return why_set(why, -ENOTSUP,
                       "%s is a %s of compute capability %u.%u; %d.%d or above is needed",
                       c->device, c->name, c->capability / 10, c->capability % 10,
                       CAPABILITY_MIN / 10, CAPABILITY_MIN % 10);
    if (!c->host_pointers)
        return why_set(why, -ENOTSUP, "%s (%s) can't address registered host memory", c->device,
                       c->name);
    return 0;
}

int cuda_driver_refuse(uint32_t driver, uint32_t runtime, struct why *why)
{
    if (driver == 0)
        return why_set(
            why, -ENODEV,
            "no CUDA device can be used: there is no NVIDIA driver here; `poolctl doctor` "
            "says what is missing");
    return why_set(
        why, -ENODEV,
        "no CUDA device can be used: the NVIDIA driver is one for CUDA %u.%u, this build "
        "wants one for %u.%u; install a newer driver",
        driver / 1000, driver % 1000 / 10, runtime / 1000, runtime % 1000 / 10);
}

static uint64_t minus(uint64_t a, uint64_t b) { return a > b ? a - b : 0; }

uint64_t cuda_budget_room(const struct cuda_budget *b, uint64_t free_bytes)
{
    if (b->limit == 0) return free_bytes;
    uint64_t usable = b->limit - min_u64(reserve_bytes, b->limit / RESERVE_SHARE);
    return min_u64(free_bytes, minus(usable, b->weights + b->buffers + b->resident));
}

uint64_t cuda_budget_resident(const struct cuda_budget *b, uint64_t free_bytes)
{
    return cuda_budget_room(b, minus(free_bytes, reserve_bytes));
}

struct cuda_places cuda_places_of(uint64_t room, uint32_t n_layers, uint64_t all, uint64_t most,
                                  uint64_t context)
{
    uint64_t slots = min_u64(room / n_layers, min_u64(most, all)), missing = all - slots;
    /* What passing takes, slots lose, and so more must pass. */
    if (n_layers > PASSING_LAYERS && slots < min_u64(most, all))
        missing = missing * n_layers / (n_layers - PASSING_LAYERS) + 1;
    uint64_t passing = min_u64(min_u64(missing, all), context);
    passing = min_u64(passing, room / PASSING_SHARE / PASSING_LAYERS);
    return (struct cuda_places){
        .slots = min_u64((room - passing * PASSING_LAYERS) / n_layers, slots), .passing = passing};
}

int cuda_budget_refuse(const struct cuda_budget *b, const char *what, uint64_t bytes,
                       uint64_t free_bytes, uint64_t all_bytes, struct why *why)
{
    char limit[96] = "";
    if (b->limit)
        (void)snprintf(limit, sizeof(limit), "; worker.memory_limit = %llu leaves %llu",
                       (unsigned long long)b->limit,
                       (unsigned long long)cuda_budget_room(b, free_bytes));
    return why_set(
        why, -ENOMEM,
        "%s: no GPU memory for its %llu bytes: %llu of weights, %llu of buffers and %llu "
        "of K/V are there, %llu of %llu bytes are free%s",
        what, (unsigned long long)bytes, (unsigned long long)b->weights,
        (unsigned long long)b->buffers, (unsigned long long)b->resident,
        (unsigned long long)free_bytes, (unsigned long long)all_bytes, limit);
}
