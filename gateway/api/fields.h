/* SPDX-License-Identifier: MIT */
#ifndef GATEWAY_API_FIELDS_H
#define GATEWAY_API_FIELDS_H
/*
 * The fields of a chat completions request: one table from which parsing, range checks, defaults
 * and error texts come. A new field is a row in fields.c, a member here and its consumer. Fields
 * that the table doesn't know are ignored.
 */
#include <stdbool.h>

#include "gateway/api/errors.h"
#include "gateway/text.h"

enum { FIELD_TOKENS_MAX = 1 << 24 /* max_tokens; more than any context */ };

struct field_stops {
    uint32_t n;
    const char *at[TEXT_STOPS_MAX];
};

/* A checked request. Strings and messages live in body. */
struct chat_ask {
    json_t *body;           /* owned */
    const json_t *messages; /* a non-empty array; its members are not checked yet */
    uint32_t max_tokens;    /* 0: not said */
    uint32_t top_k;         /* 0: all */
    uint32_t n;
    uint32_t top_logprobs;
    float temperature, top_p, min_p;
    bool stream, include_usage, logprobs;
    bool seeded;
    uint64_t seed; /* when seeded */
    struct field_stops stop;
};

/* -EINVAL with *fault when the body is refused; *ret is then untouched. */
int chat_ask_parse(const char *body, size_t bytes, struct fault *fault, struct chat_ask *ret);
void chat_ask_fini(struct chat_ask *a);

#endif
