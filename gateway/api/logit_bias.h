/* SPDX-License-Identifier: MIT */
#ifndef GATEWAY_API_LOGIT_BIAS_H
#define GATEWAY_API_LOGIT_BIAS_H
/*
 * What a body's logit_bias asks for, with ids that the vocabulary has: OpenAI's object {"id":
 * bias}, or llama.cpp's array of pairs [id or text, bias or false]; a text biases each of its
 * tokens, and false means never.
 */
#include "gateway/api/fields.h"
#include "gateway/tokenizer/tokenizer.h"

struct logit_bias {
    uint32_t *ids; /* owned, as biases */
    float *biases;
    uint32_t n; /* at most FIELD_BIASES_MAX */
};

/* v: NULL or what ask_parse left. -EINVAL with *fault; *ret is then untouched. */
int logit_bias_from(const struct tokenizer *t, const json_t *v, struct fault *fault,
                    struct logit_bias *ret);
void logit_bias_fini(struct logit_bias *b);

#endif
