/* SPDX-License-Identifier: MIT */
#ifndef GATEWAY_API_ANTHROPIC_H
#define GATEWAY_API_ANTHROPIC_H
/*
 * Anthropic's API: messages, whole and streamed, and the count of a prompt's tokens. Loop thread.
 */
#include "gateway/gateway.h"

void anthropic_messages(struct gateway *g, struct exchange *x);
void anthropic_count_tokens(struct gateway *g, struct exchange *x);

#endif
