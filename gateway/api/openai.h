/* SPDX-License-Identifier: MIT */
#ifndef GATEWAY_API_OPENAI_H
#define GATEWAY_API_OPENAI_H
/*
 * OpenAI's API. Each handler answers the exchange, or keeps it until the answer is there. Loop
 * thread.
 */
#include "gateway/api/generation.h"

void openai_chat(struct gateway *g, struct exchange *x);
void openai_completions(struct gateway *g, struct exchange *x); /* completions.c */
void openai_responses(struct gateway *g, struct exchange *x);   /* responses.c */
void openai_models(struct gateway *g, struct exchange *x);
void openai_model(struct gateway *g, struct exchange *x);
void openai_embeddings(struct gateway *g, struct exchange *x);

/* What chat completions and completions have in common. */
json_t *openai_usage(const struct generation *g);
json_t *openai_envelope(const struct generation *g, const char *object, json_t *choices);
const char *openai_reason(const struct choice *c); /* NULL: not ended */
/* Sends the chunk, with usage (or null) in it if the client asked for usage. Takes both. */
int openai_send_usage(struct generation *g, json_t *chunk, json_t *usage);
int openai_done(struct generation *g);
int openai_fail(struct generation *g, const struct fault *fault);

/* chat_prompt, or the refusal of a model without a template. */
int chat_tokens(const struct gateway *g, const struct chat_input *in, struct fault *fault,
                struct tokenizer_ids *ret);

#endif
