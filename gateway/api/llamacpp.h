/* SPDX-License-Identifier: MIT */
#ifndef GATEWAY_API_LLAMACPP_H
#define GATEWAY_API_LLAMACPP_H
/*
 * The helpers of llama.cpp's server that front ends and tools ask for: tokens, templates, what is
 * going on, and its own completion. Loop thread.
 */
#include "gateway/gateway.h"

void llamacpp_tokenize(struct gateway *g, struct exchange *x);
void llamacpp_detokenize(struct gateway *g, struct exchange *x);
void llamacpp_apply_template(struct gateway *g, struct exchange *x);
void llamacpp_props(struct gateway *g, struct exchange *x);
void llamacpp_slots(struct gateway *g, struct exchange *x);
void llamacpp_slot(struct gateway *g, struct exchange *x);       /* llamacpp_slot.c */
void llamacpp_completion(struct gateway *g, struct exchange *x); /* llamacpp_completion.c */
void llamacpp_version(struct gateway *g, struct exchange *x);

#endif
