/* SPDX-License-Identifier: MIT */
#ifndef GATEWAY_API_OPENAPI_ANSWERS_H
#define GATEWAY_API_OPENAPI_ANSWERS_H
/*
 * What /openapi.json says of answers: the members that each kind always has. Clients may meet more.
 */
#include <jansson.h>

enum openapi_answer {
    ANSWER_CHAT = 1 << 0,
    ANSWER_COMPLETIONS = 1 << 1,
    ANSWER_RESPONSES = 1 << 2,
    ANSWER_MESSAGES = 1 << 3,
    ANSWER_COUNT = 1 << 4,
    ANSWER_COMPLETION = 1 << 5,
    ANSWER_TOKENS = 1 << 6,
    ANSWER_TEXT = 1 << 7,
    ANSWER_PROMPT = 1 << 8,
    ANSWER_MODELS = 1 << 9,
    ANSWER_MODEL = 1 << 10,
    ANSWER_PROPS = 1 << 11,
    ANSWER_SLOTS = 1 << 12,
    ANSWER_SLOT = 1 << 13,
    ANSWER_VERSION = 1 << 14,
    ANSWER_HEALTH = 1 << 15,
    ANSWER_ERROR = 1 << 16,
    ANSWER_ERROR_ANTHROPIC = 1 << 17,
    ANSWER_METRICS = 1 << 18, /* text, or JSON for who accepts it */
    ANSWER_DOCUMENT = 1 << 19,
};

/* {description, content}; the caller owns it. */
json_t *openapi_answer(enum openapi_answer kind, const char *description);

#endif
