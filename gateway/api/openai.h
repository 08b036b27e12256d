/* SPDX-License-Identifier: MIT */
#ifndef GATEWAY_API_OPENAI_H
#define GATEWAY_API_OPENAI_H
/*
 * OpenAI's API: chat completions, whole and streamed, and the list of models. Each function answers
 * the exchange, or keeps it until the answer is there. Loop thread.
 */
#include "gateway/gateway.h"

void openai_chat(struct gateway *g, struct exchange *x);
void openai_models(struct gateway *g, struct exchange *x);
void openai_model(struct gateway *g, struct exchange *x);

#endif
