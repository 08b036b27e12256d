/* SPDX-License-Identifier: MIT */
#ifndef WORKERD_WORKER_H
#define WORKERD_WORKER_H
/*
 * The process: one stage of one pipeline, from start to end. Called by main with the configuration.
 */
#include "common/config.h"
#include "proto/pool_shm.h"

struct worker_place {
    uint32_t pipeline, stage;
};

/* Runs until a signal ends it (0) or something is wrong (a negative errno; why says what, or it was
 * logged and why is empty). */
int worker_run(const struct config *config, const struct worker_place *place, struct why *why);

#endif
