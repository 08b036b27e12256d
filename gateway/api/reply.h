/* SPDX-License-Identifier: MIT */
#ifndef GATEWAY_API_REPLY_H
#define GATEWAY_API_REPLY_H
/*
 * Whole answers: JSON, faults, plain text. What is given is released.
 */
#include <jansson.h>

#include "gateway/api/errors.h"
#include "gateway/bytebuf.h"
#include "gateway/http.h"

void reply_json(struct exchange *x, unsigned status, json_t *body);
void reply_text(struct exchange *x, const char *type, struct bytebuf *text);
void reply_fault(struct exchange *x, const struct fault *f);
void reply_fault_allow(struct exchange *x, const struct fault *f, const char *allow);

#endif
