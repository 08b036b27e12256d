/* SPDX-License-Identifier: MIT */
#ifndef GATEWAY_API_BODY_JSON_H
#define GATEWAY_API_BODY_JSON_H
/*
 * A body's JSON. Integers beyond 64 bits, which JSON allows and jansson refuses, are read as reals:
 * they stand in fields that nobody reads, in schemas of tools ("maximum": 18446744073709551615) and
 * where a number may be a real. A field that wants an integer refuses them by its name.
 */
#include <jansson.h>

/* The caller's reference; NULL: it is no JSON, and *ret_error says where. */
json_t *body_json(const char *text, size_t bytes, json_error_t *ret_error);

#endif
