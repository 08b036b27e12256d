/* SPDX-License-Identifier: MIT */
#ifndef GATEWAY_API_LOGPROBS_H
#define GATEWAY_API_LOGPROBS_H
/*
 * The log-probabilities of an answer's or a prompt's tokens as they come, and the shapes in which
 * APIs show a part of them. They are those of the model's own logits: before biases, penalties and
 * temperature.
 */
#include <jansson.h>

#include "gateway/news.h"
#include "gateway/text.h"
#include "gateway/tokenizer/tokenizer.h"

/* Grows with the tokens; zeroed is empty. */
struct logprobs {
    uint32_t n, room, n_top;
    uint32_t *ids;     /* [n] */
    float *logprobs;   /* [n]; NaN: of a prompt's first token, which follows nothing */
    uint32_t *top_ids; /* [n][n_top] */
    float *top_logprobs;
};

void logprobs_add(struct logprobs *l, const uint32_t *ids, const struct probs *probs);
/* A token that has none. */
void logprobs_add_first(struct logprobs *l, uint32_t id, uint32_t n_top);
void logprobs_fini(struct logprobs *l);

/* Members [from, to) of one. */
struct logprobs_part {
    const struct logprobs *of;
    const struct tokenizer *tokenizer;
    uint32_t from, to;
    bool is_prompt; /* control tokens are part of its text, and to is its end */
};

/* An array of {token, logprob, bytes, top_logprobs}, as in chats and responses; with_id: and id, as
 * llama.cpp's server has it. */
json_t *logprobs_list(const struct logprobs_part *p, bool with_id);

/* Where in a choice's text its next token begins, in characters. The text of a prompt and that of
 * an answer are decoded each for itself. Zeroed: at the beginning. */
struct logprobs_place {
    struct text *text; /* owned */
    int64_t at;        /* below 0: not in the text */
};
void logprobs_place_fini(struct logprobs_place *p);
/* A token that is in the ids and not in the text. */
void logprobs_place_back(struct logprobs_place *place, struct tokenizer_piece piece);

/* An object of arrays tokens, token_logprobs, top_logprobs and text_offset, as in completions. */
json_t *logprobs_columns(void);
void logprobs_columns_add(json_t *columns, const struct logprobs_part *p,
                          struct logprobs_place *place);

#endif
