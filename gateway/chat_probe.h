/* SPDX-License-Identifier: MIT */
#ifndef GATEWAY_CHAT_PROBE_H
#define GATEWAY_CHAT_PROBE_H
/*
 * What a chat template takes, found by rendering small chats with it once when it is loaded:
 * nothing in a model file says it. Keeps nothing.
 */
#include <jansson.h>
#include <stdbool.h>

#include "gateway/template/template.h"

struct chat_abilities {
    bool tools;            /* definitions come out of it */
    bool system;           /* a system message does; else it is told with the user's words */
    bool object_arguments; /* of calls; else it wants them as text */
};

/* trusted: what chat.c gives to every rendering. */
struct chat_abilities chat_probe(const struct chat_template *t, const json_t *trusted);

#endif
