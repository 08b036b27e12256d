/* SPDX-License-Identifier: MIT */
#ifndef WORKERD_SPLIT_H
#define WORKERD_SPLIT_H
/*
 * worker.layers = free: each stage gets layers in proportion to the memory that is free on its
 * device. All workers of a pipeline must come to the same split, also one that comes back when the
 * others have filled theirs: who starts first measures all devices and writes
 * RUN_DIR/split-PIPELINE, the others read it. It holds as long as model, devices and limit are the
 * same; without the file the next start measures anew. Called by the worker before anything is
 * loaded; loop thread.
 */
#include "common/config.h"
#include "common/gguf.h"

struct split_want {
    const char *run_dir;
    uint32_t pipeline, stage, n_stages, n_layers;
    const struct gguf *gguf;
    const char *fingerprint;
    uint64_t memory_limit; /* bytes of a GPU that are used at most; 0: no limit; of all stages */
    const char *devices;   /* of all stages: "cuda:0,cuda:1"; or one, of all of them */
};

/* -ECANCELED: SIGTERM or SIGINT, which the caller has blocked, came while another measures. */
int split_layers(const struct split_want *want, struct why *why, uint32_t *ret_first,
                 uint32_t *ret_n);

/* bytes: [n_layers], free_bytes: [n_stages] with n_stages <= n_layers. ret_n: layers of each stage,
 * at least 1, so that the fullest device is as little full as can be; the earlier stages have the
 * fewer where that leaves a choice. */
void split_by_memory(const uint64_t *bytes, uint32_t n_layers, const uint64_t *free_bytes,
                     uint32_t n_stages, uint32_t *ret_n);

#endif
