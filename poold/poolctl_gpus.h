/* SPDX-License-Identifier: MIT */
#ifndef POOLD_POOLCTL_GPUS_H
#define POOLD_POOLCTL_GPUS_H
/*
 * What a machine's files tell of its GPUs, before a worker says that no CUDA device can be used. No
 * driver is started, so what a card is and what its memory holds is not known.
 */
#include "common/base.h"

struct gpus {
    char driver[32];  /* the kernel module's version; empty: it doesn't say */
    uint32_t n_cards; /* cuda:0 to cuda:n_cards - 1, as far as files and the list tell */
    struct why fault; /* why none can be used; empty: nothing speaks against it */
};

/* root: before /dev, /proc and /usr; empty but in tests. visible: CUDA_VISIBLE_DEVICES, or NULL. */
void gpus_find(const char *root, const char *visible, struct gpus *ret);

#endif
