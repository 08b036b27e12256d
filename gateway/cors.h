/* SPDX-License-Identifier: MIT */
#ifndef GATEWAY_CORS_H
#define GATEWAY_CORS_H
/*
 * Which pages in browsers may read answers: those whose origin is listed, none by default.
 */
#include "gateway/http.h"

/* Adds the headers that a page of an allowed origin needs. origins: by commas; "*": any. True for
 * the question that a browser asks before a request; nothing is then left to do but answer 204. */
bool cors_allow(const char *origins, struct exchange *x);

#endif
