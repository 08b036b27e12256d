/* SPDX-License-Identifier: MIT */
/*
 * See reply.h. Called by routes and APIs; must not decide what a failure means.
 */
#include "gateway/api/reply.h"

#include <string.h>

#include "common/base.h"

static void reply(struct exchange *x, struct answer a, json_t *body)
{
    a.type = "application/json";
    a.body = json_dumps(body, JSON_COMPACT);
    json_decref(body);
    if (!a.body) abort(); /* our own strings are UTF-8, so only memory can be out */
    a.bytes = strlen(a.body);
    exchange_answer(x, &a);
}

void reply_json(struct exchange *x, unsigned status, json_t *body)
{
    reply(x, (struct answer){.status = status}, body);
}

void reply_text(struct exchange *x, const char *type, struct bytebuf *text)
{
    size_t n = bytebuf_size(text);
    char *body = malloc(n + 1);
    if (!body) abort();
    memcpy(body, bytebuf_bytes(text), n);
    bytebuf_fini(text);
    exchange_answer(x, &(struct answer){.status = 200, .type = type, .body = body, .bytes = n});
}

/* Whoever spoke Anthropic's API hears its shape, also from what answers before any route does. */
static enum fault_style style_of(const struct exchange *x)
{
    static const char messages[] = "/v1/messages";
    bool path = strncmp(exchange_path(x), messages, sizeof(messages) - 1) == 0;
    return path || exchange_header(x, "anthropic-version") ? FAULT_ANTHROPIC : FAULT_OPENAI;
}

void reply_fault_allow(struct exchange *x, const struct fault *f, const char *allow)
{
    const struct fault_row *row = fault_row(f->kind);
    enum fault_style style = style_of(x);
    struct answer a = {
        .status = row->status[style],
        .retry_after_s = row->retry_after_s,
        .allow = allow,
        .challenge = f->kind == FAULT_KEY,
    };
    json_t *body =
        style == FAULT_ANTHROPIC ? fault_json_anthropic(f, exchange_request_id(x)) : fault_json(f);
    reply(x, a, body);
}

void reply_fault(struct exchange *x, const struct fault *f) { reply_fault_allow(x, f, NULL); }
