/* SPDX-License-Identifier: MIT */
#ifndef GATEWAY_ROUTES_H
#define GATEWAY_ROUTES_H
/*
 * One table of what is served where. A new route is a row in routes.c and its handler. The
 * functions are http's events; arg is the struct gateway.
 */
#include "gateway/gateway.h"

void routes_serve(void *arg, struct exchange *x);
void routes_too_large(void *arg, struct exchange *x);
void routes_over(void *arg, const struct exchange *x);

#endif
