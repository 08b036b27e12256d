/* SPDX-License-Identifier: MIT */
#ifndef GATEWAY_API_OPENAPI_H
#define GATEWAY_API_OPENAPI_H
/*
 * The OpenAPI document of all that is served, made of the table that parses the fields.
 */
#include "gateway/gateway.h"

void openapi_serve(struct gateway *g, struct exchange *x);
json_t *openapi_document(void); /* the caller owns it */

#endif
