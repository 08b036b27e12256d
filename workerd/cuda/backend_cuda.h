/* SPDX-License-Identifier: MIT */
#ifndef WORKERD_CUDA_BACKEND_CUDA_H
#define WORKERD_CUDA_BACKEND_CUDA_H
/*
 * What model.c and tests see of the CUDA backend, in builds that have it.
 */
#include "workerd/backend.h"

extern const struct backend_ops cuda_backend;

/* The number of "cuda:N"; -EINVAL for anything else. */
int cuda_device_of(const char *name, int *ret);

/* Bytes that are free on "cuda:N", and none of this process's afterwards: before anything else of
 * CUDA in it. -ENODEV with why when the device can't be used. */
int cuda_free_bytes(const char *name, struct why *why, uint64_t *ret);

#endif
