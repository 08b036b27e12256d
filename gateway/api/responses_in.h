/* SPDX-License-Identifier: MIT */
#ifndef GATEWAY_API_RESPONSES_IN_H
#define GATEWAY_API_RESPONSES_IN_H
/*
 * From the input and tools of OpenAI's responses to the messages and tools that templates take.
 * Knows neither HTTP nor tokens.
 */
#include "gateway/api/fields.h"

struct responses_in {
    json_t *messages, *tools; /* owned; tools may be NULL */
};

/* -EINVAL with *fault when something in them is refused. */
int responses_in_from(const struct ask *ask, struct fault *fault, struct responses_in *ret);
void responses_in_fini(struct responses_in *in);

#endif
