/* SPDX-License-Identifier: MIT */
/*
 * See anthropic.h. The shape of a message and of its events. What the model writes is one block of
 * text. Tokens that were cached are counted apart from the others, as this API has it.
 */
#include "gateway/api/anthropic.h"

#include "gateway/api/anthropic_in.h"
#include "gateway/api/openai.h"
#include "gateway/api/reply.h"

/* ---- shapes ------------------------------------------------------------------------------ */

static json_t *usage_json(const struct generation *g, uint32_t n_out)
{
    json_int_t cached = generation_cached_tokens(g);
    return json_pack("{s:I,s:i,s:I,s:I}", "input_tokens",
                     (json_int_t)generation_prompt_tokens(g) - cached,
                     "cache_creation_input_tokens", 0, "cache_read_input_tokens", cached,
                     "output_tokens", (json_int_t)n_out);
}

static const char *reason_of(const struct choice *c)
{
    switch (c->ending) {
    case ENDED_NOT:
        return NULL;
    case ENDED_BY_STRING:
        return "stop_sequence";
    case ENDED_BY_LENGTH:
        return "max_tokens";
    case ENDED_BY_MODEL:
        break;
    }
    return "end_turn";
}

static json_t *message_json(const struct generation *g, json_t *content)
{
    const struct choice *c = &g->choice[0];
    json_t *m = json_pack("{s:s,s:s,s:s,s:s,s:o,s:s?,s:s?,s:o}", "id", g->id, "type", "message",
                          "role", "assistant", "model", g->gateway->model.name, "content", content,
                          "stop_reason", reason_of(c), "stop_sequence", c->stop_string, "usage",
                          usage_json(g, c->n_generated));
    if (c->truncated) (void)json_object_set_new(m, "truncated", json_true());
    return m;
}

static json_t *message_whole(struct generation *g)
{
    json_t *text = json_pack("{s:s,s:o}", "type", "text", "text", choice_text(&g->choice[0]));
    return message_json(g, json_pack("[o]", text));
}

/* ---- the stream -------------------------------------------------------------------------- */

static int message_begin(struct generation *g)
{
    json_t *start =
        json_pack("{s:s,s:o}", "type", "message_start", "message", message_json(g, json_array()));
    json_t *block = json_pack("{s:s,s:i,s:{s:s,s:s}}", "type", "content_block_start", "index", 0,
                              "content_block", "type", "text", "text", "");
    int r = generation_send(g, "message_start", start);
    if (r < 0) {
        json_decref(block);
        return r;
    }
    return generation_send(g, "content_block_start", block);
}

static int message_text(struct choice *c, json_t *text)
{
    json_t *delta = json_pack("{s:s,s:i,s:{s:s,s:o}}", "type", "content_block_delta", "index", 0,
                              "delta", "type", "text_delta", "text", text);
    return generation_send(c->of, "content_block_delta", delta);
}

static int message_end(struct generation *g)
{
    const struct choice *c = &g->choice[0];
    json_t *delta =
        json_pack("{s:s?,s:s?}", "stop_reason", reason_of(c), "stop_sequence", c->stop_string);
    if (c->truncated) (void)json_object_set_new(delta, "truncated", json_true());
    json_t *last = json_pack("{s:s,s:o,s:o}", "type", "message_delta", "delta", delta, "usage",
                             usage_json(g, c->n_generated));
    int r = generation_send(g, "content_block_stop",
                            json_pack("{s:s,s:i}", "type", "content_block_stop", "index", 0));
    if (r < 0) {
        json_decref(last);
        return r;
    }
    r = generation_send(g, "message_delta", last);
    if (r < 0) return r;
    return generation_send(g, "message_stop", json_pack("{s:s}", "type", "message_stop"));
}

static int message_fail(struct generation *g, const struct fault *fault)
{
    return generation_send(g, "error",
                           fault_json_anthropic(fault, exchange_request_id(g->exchange)));
}

static int message_ping(struct generation *g)
{
    return generation_send(g, "ping", json_pack("{s:s}", "type", "ping"));
}

/* ---- its beginning ----------------------------------------------------------------------- */

static int read_prompt(const struct gateway *g, const struct ask *ask, uint32_t n_ctx,
                       struct fault *fault, struct tokenizer_ids *ret)
{
    CLEANUP(anthropic_in_fini) struct anthropic_in in = {0};
    int r = anthropic_in_from(ask, fault, &in);
    if (r < 0) return r;
    struct chat_input chat = {
        .messages = in.messages, .tools = in.tools, .prefill = in.prefill, .n_ctx = n_ctx};
    return chat_tokens(g, &chat, fault, ret);
}

static const struct shape message_shape = {
    .api = API_MESSAGES,
    .id_prefix = "msg_",
    .prompt = read_prompt,
    .begin = message_begin,
    .text = message_text,
    .end = message_end,
    .fail = message_fail,
    .silent = message_ping,
    .whole = message_whole,
};

void anthropic_messages(struct gateway *g, struct exchange *x)
{
    generation_serve(g, x, &message_shape);
}

/* Needs no worker, and a prompt may be longer than the context. */
void anthropic_count_tokens(struct gateway *g, struct exchange *x)
{
    struct fault fault;
    struct ask ask = {0};
    struct tokenizer_ids prompt = {0};
    size_t bytes;
    const char *body = exchange_body(x, &bytes);
    int r = ask_parse(API_COUNT_TOKENS, body, bytes, &fault, &ask);
    if (r == 0) r = generation_model(g, &ask, &fault);
    if (r == 0) r = read_prompt(g, &ask, UINT32_MAX, &fault, &prompt);
    if (r < 0)
        reply_fault(x, &fault);
    else
        reply_json(x, 200, json_pack("{s:I}", "input_tokens", (json_int_t)prompt.n));
    free(prompt.ids);
    ask_fini(&ask);
}
