/* SPDX-License-Identifier: MIT */
#ifndef WORKERD_WEIGHTS_H
#define WORKERD_WEIGHTS_H
/*
 * From a model file's tensors to a stage's weights on its backend. Each tensor of the stage is
 * mapped, checked, handed to the backend and unmapped again; those of other stages are never
 * touched. The embedding alone stays mapped, since its rows are looked up there.
 */
#include "workerd/arch/arch.h"

struct weights {
    uint8_t *layers;         /* the family's struct a layer */
    uint8_t *head;           /* the family's struct for the rest */
    struct gguf_view lookup; /* of the first stage */
};

struct weights_want {
    const struct gguf *gguf;
    const struct arch *arch;
    const struct arch_params *params;
    const struct backend_ops *ops;
    struct backend *backend;
    uint32_t first_layer, n_layers;
    void (*progress)(void *arg, int percent); /* may be NULL */
    void *progress_arg;
};

/* -ENOENT, -EPROTO or -ENOTSUP with the tensor's name: missing, of another shape, of a type that
 * isn't multiplied, or one that the family doesn't know (leaving it out would give wrong tokens).
 */
int weights_load(const struct weights_want *want, struct why *why, struct weights *ret);
void weights_fini(struct weights *w);

#endif
