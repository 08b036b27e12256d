/* SPDX-License-Identifier: MIT */
#ifndef GATEWAY_CHAT_H
#define GATEWAY_CHAT_H
/*
 * From the messages of a chat to the tokens of its prompt: checks them, renders the model file's
 * own template, and tokenises the result so that control tokens come from the template alone, never
 * from what somebody wrote. Immutable after chat_format_new; knows nothing of HTTP.
 */
#include <jansson.h>
#include <stdbool.h>

#include "common/gguf.h"
#include "gateway/api/errors.h"
#include "gateway/bytebuf.h"
#include "gateway/tokenizer/tokenizer.h"

struct chat_format;

/* tokenizer must live as long. -ENOENT: the file has no chat template. */
int chat_format_new(const struct gguf *g, const struct tokenizer *tokenizer, struct why *why,
                    struct chat_format **ret);
/* The same of a template that stands in no file. */
int chat_format_of(const char *source, size_t bytes, const struct tokenizer *tokenizer,
                   struct why *why, struct chat_format **ret);
void chat_format_free(struct chat_format *c);
static inline void chat_format_freep(struct chat_format **c) { chat_format_free(*c); }

struct chat_input {
    const json_t *messages; /* an array */
    const json_t *tools;    /* an array, or NULL */
    const json_t *kwargs;   /* an object: more values for the template; or NULL */
    const json_t *prefill;  /* a string that the answer begins with; or NULL */
    uint32_t
        n_ctx; /* tokens of the longest conversation; the prompt must leave room for one more */
};

/* -EINVAL with *fault when it is refused. The caller frees ret->ids. */
int chat_prompt(const struct chat_format *c, const struct chat_input *in, struct fault *fault,
                struct tokenizer_ids *ret);
/* The same before it is tokenised. */
int chat_text(const struct chat_format *c, const struct chat_input *in, struct fault *fault,
              struct bytebuf *ret);
/* A text that is a prompt as it stands: control tokens written out in it are control tokens. */
int raw_prompt(const struct tokenizer *t, const char *text, size_t bytes, uint32_t n_ctx,
               struct fault *fault, struct tokenizer_ids *ret);
const char *chat_source(const struct chat_format *c, size_t *ret_bytes); /* of the template */
bool chat_knows_tools(const struct chat_format *c); /* or they are written out for it */

#endif
