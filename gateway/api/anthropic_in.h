/* SPDX-License-Identifier: MIT */
#ifndef GATEWAY_API_ANTHROPIC_IN_H
#define GATEWAY_API_ANTHROPIC_IN_H
/*
 * From the messages and tools of Anthropic's API to those that templates take. Knows neither HTTP
 * nor tokens.
 */
#include "gateway/api/fields.h"

struct anthropic_in {
    json_t *messages, *tools; /* owned; tools may be NULL */
    json_t *prefill;          /* owned: what the answer begins with, or NULL */
};

/* -EINVAL with *fault when something in them is refused. */
int anthropic_in_from(const struct ask *ask, struct fault *fault, struct anthropic_in *ret);
void anthropic_in_fini(struct anthropic_in *in);

#endif
