/* SPDX-License-Identifier: MIT */
#ifndef GATEWAY_API_RAW_H
#define GATEWAY_API_RAW_H
/*
 * Prompts that are no chat: a text, or token ids. The text is the client's own prompt in whole, so
 * control tokens that are written out in it are control tokens.
 */
#include "gateway/api/fields.h"
#include "gateway/gateway.h"
#include "gateway/tokenizer/tokenizer.h"

/* Prompts of one body. */
struct prompt_list {
    struct tokenizer_ids at[GENERATION_CHOICES_MAX];
    uint32_t n;
};
void prompt_list_fini(struct prompt_list *l);

/* prompt: a string, an array of ids, or an array of one of these. */
int raw_prompt_from(const struct tokenizer *t, const json_t *prompt, uint32_t n_ctx,
                    struct fault *fault, struct tokenizer_ids *ret);
/* The same of what was asked: the prompt of a struct shape (generation.h). */
int raw_ask_prompt(const struct gateway *g, const struct ask *ask, uint32_t n_ctx,
                   struct fault *fault, struct tokenizer_ids *ret);
/* The same of several: an array of strings or of arrays of ids is so many prompts. */
int raw_prompts_from(const struct tokenizer *t, const json_t *prompt, uint32_t n_ctx,
                     struct fault *fault, struct prompt_list *ret);
int raw_ask_prompts(const struct gateway *g, const struct ask *ask, uint32_t n_ctx,
                    struct fault *fault, struct prompt_list *ret);
/* An array of ids of this vocabulary. */
int ids_from(const struct tokenizer *t, const char *name, const json_t *ids, struct fault *fault,
             struct tokenizer_ids *ret);

#endif
