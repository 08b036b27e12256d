/* SPDX-License-Identifier: MIT */
#ifndef GATEWAY_CHAT_TOOLS_H
#define GATEWAY_CHAT_TOOLS_H
/*
 * Tools in chats: checks their definitions and the calls in messages, and writes both out as text
 * for templates that know no tools. Knows neither HTTP nor tokens.
 */
#include <jansson.h>

#include "gateway/api/errors.h"
#include "gateway/bytebuf.h"

/* tools: an array, in the form of OpenAI's chat completions. */
int tools_check(const json_t *tools, struct fault *fault);
/* The calls of messages[i], whose arguments become objects where they are text of one, since that
 * is what templates take. *ret is new. */
int tool_calls_from(const json_t *calls, size_t i, struct fault *fault, json_t **ret);
/* For a template that wants a call's arguments as text: what are objects become text of them. */
void tool_arguments_write_out(json_t *messages);
/* For a template without tools. messages: checked, of the caller's own, changed in place: the
 * definitions go to the system message, calls and results become text. */
void tools_write_out(json_t *messages, const json_t *tools);
/* Of a message whose content is a string. */
void content_add(struct bytebuf *text, const json_t *message);
void content_set(json_t *message, const struct bytebuf *text);

#endif
