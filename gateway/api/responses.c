/* SPDX-License-Identifier: MIT */
/*
 * OpenAI's responses (openai.h). A response is made of items; what the model writes is one item, a
 * message with one part of text. Every event bears its number and the whole response is in the
 * first and in the last ones. Nothing is stored: an earlier response can't be named.
 */
#include <string.h>

#include "gateway/api/openai.h"
#include "gateway/api/reply.h"
#include "gateway/api/responses_in.h"

/* ---- shapes ------------------------------------------------------------------------------ */

static json_t *usage_json(const struct generation *g)
{
    json_int_t in = (json_int_t)generation_prompt_tokens(g), out = generation_tokens(g);
    return json_pack("{s:I,s:{s:I,s:i},s:I,s:{s:i},s:I}", "input_tokens", in,
                     "input_tokens_details", "cached_tokens",
                     (json_int_t)generation_cached_tokens(g), "cache_write_tokens", 0,
                     "output_tokens", out, "output_tokens_details", "reasoning_tokens", 0,
                     "total_tokens", in + out);
}

static json_t *written(const struct generation *g)
{
    if (!g->ask.stream) return choice_text(&g->choice[0]);
    return json_stringn(bytebuf_bytes(&g->shown), bytebuf_size(&g->shown));
}

/* logprobs: an array. */
static json_t *part_json(json_t *text, json_t *logprobs)
{
    return json_pack("{s:s,s:o,s:[],s:o}", "type", "output_text", "text", text, "annotations",
                     "logprobs", logprobs);
}

/* Those of the text so far; empty when nobody asked. */
static json_t *written_probs(struct generation *g)
{
    (void)choice_probs(&g->choice[0]);
    struct logprobs_part p = choice_shown_probs(&g->choice[0]);
    return logprobs_list(&p, false);
}

static const char *item_id(const struct generation *g, char ret[64])
{
    (void)snprintf(ret, 64, "msg_%.48s", g->id + strlen("resp_"));
    return ret;
}

static const char *status_of(const struct generation *g)
{
    const struct choice *c = &g->choice[0];
    if (!c->ending) return "in_progress";
    return c->ending == ENDED_BY_LENGTH ? "incomplete" : "completed";
}

/* content: its parts. */
static json_t *item_json(const struct generation *g, json_t *content)
{
    char id[64];
    return json_pack("{s:s,s:s,s:s,s:s,s:o}", "id", item_id(g, id), "type", "message", "status",
                     status_of(g), "role", "assistant", "content", content);
}

static json_t *item_whole(struct generation *g)
{
    return item_json(g, json_pack("[o]", part_json(written(g), written_probs(g))));
}

static void set(json_t *object, const char *name, const json_t *v)
{
    (void)json_object_set(object, name, v ? (json_t *)(uintptr_t)v : json_null());
}

/* What was asked, said back as the API does. */
static void set_asked(json_t *response, const struct ask *ask)
{
    set(response, "instructions", ask->system);
    set(response, "max_output_tokens", NULL);
    if (ask->max_tokens)
        (void)json_object_set_new(response, "max_output_tokens", json_integer(ask->max_tokens));
    set(response, "previous_response_id", NULL);
    (void)json_object_set_new(response, "tool_choice",
                              json_string(ask->no_tools ? "none" : "auto"));
    (void)json_object_set_new(response, "tools", json_array());
    if (ask->tools) set(response, "tools", ask->tools);
    (void)json_object_set_new(response, "temperature", json_real((double)ask->temperature));
    (void)json_object_set_new(response, "top_p", json_real((double)ask->top_p));
    (void)json_object_set_new(response, "metadata", json_object());
    if (ask->metadata) set(response, "metadata", ask->metadata);
    (void)json_object_set_new(response, "text", json_pack("{s:{s:s}}", "format", "type", "text"));
}

/* status: NULL: as the generation stands. error: NULL: none. */
static json_t *response_json(const struct generation *g, const char *status, json_t *output,
                             json_t *error)
{
    const struct choice *c = &g->choice[0];
    json_t *r = json_pack("{s:s,s:s,s:I,s:s,s:s,s:o,s:o,s:b,s:s,s:b}", "id", g->id, "object",
                          "response", "created_at", (json_int_t)g->created, "status",
                          status ? status : status_of(g), "model", g->gateway->model.name, "output",
                          output, "error", error ? error : json_null(), "parallel_tool_calls", 1,
                          "truncation", "disabled", "store", 0);
    bool cut = c->ending == ENDED_BY_LENGTH;
    (void)json_object_set_new(r, "incomplete_details",
                              cut ? json_pack("{s:s}", "reason", "max_output_tokens")
                                  : json_null());
    if (cut && c->truncated) (void)json_object_set_new(r, "truncated", json_true());
    (void)json_object_set_new(r, "usage", c->ending ? usage_json(g) : json_null());
    set_asked(r, &g->ask);
    return r;
}

static json_t *response_whole(struct generation *g)
{
    return response_json(g, NULL, json_pack("[o]", item_whole(g)), NULL);
}

/* ---- the stream -------------------------------------------------------------------------- */

/* Takes members. */
static int send(struct generation *g, const char *type, json_t *members)
{
    (void)json_object_set_new(members, "type", json_string(type));
    (void)json_object_set_new(members, "sequence_number", json_integer(g->n_events));
    return generation_send(g, type, members);
}

static int send_response(struct generation *g, const char *type, json_t *response)
{
    return send(g, type, json_pack("{s:o}", "response", response));
}

static int send_item(struct generation *g, const char *type, json_t *item)
{
    return send(g, type, json_pack("{s:i,s:o}", "output_index", 0, "item", item));
}

/* An event of the part of text; value may be a string or the part. */
static json_t *part_event(const struct generation *g, const char *name, json_t *value)
{
    char id[64];
    return json_pack("{s:s,s:i,s:i,s:o}", "item_id", item_id(g, id), "output_index", 0,
                     "content_index", 0, name, value);
}

static int send_part(struct generation *g, const char *type, json_t *part)
{
    return send(g, type, part_event(g, "part", part));
}

static int send_text(struct generation *g, const char *type, json_t *event, json_t *logprobs)
{
    (void)json_object_set_new(event, "logprobs", logprobs);
    return send(g, type, event);
}

static int response_begin(struct generation *g)
{
    int r = send_response(g, "response.created", response_json(g, NULL, json_array(), NULL));
    if (r == 0)
        r = send_response(g, "response.in_progress", response_json(g, NULL, json_array(), NULL));
    if (r == 0) r = send_item(g, "response.output_item.added", item_json(g, json_array()));
    if (r == 0)
        r = send_part(g, "response.content_part.added", part_json(json_string(""), json_array()));
    return r;
}

static int response_text(struct choice *c, json_t *text)
{
    struct logprobs_part probs = choice_probs(c);
    return send_text(c->of, "response.output_text.delta", part_event(c->of, "delta", text),
                     logprobs_list(&probs, false));
}

static int response_end(struct generation *g)
{
    int r = send_text(g, "response.output_text.done", part_event(g, "text", written(g)),
                      written_probs(g));
    if (r == 0)
        r = send_part(g, "response.content_part.done", part_json(written(g), written_probs(g)));
    if (r == 0) r = send_item(g, "response.output_item.done", item_whole(g));
    if (r < 0) return r;
    bool cut = g->choice[0].ending == ENDED_BY_LENGTH;
    return send_response(g, cut ? "response.incomplete" : "response.completed", response_whole(g));
}

/* The error's code is one that typed clients know; ours is beside it. */
static int response_fail(struct generation *g, const struct fault *fault)
{
    const struct fault_row *row = fault_row(fault->kind);
    json_t *said = fault_json(fault);
    json_t *error =
        json_pack("{s:s,s:O,s:s}", "code", "server_error", "message",
                  json_object_get(json_object_get(said, "error"), "message"), "reason", row->code);
    if (row->retry_after_s)
        (void)json_object_set_new(error, "retry_after", json_integer(row->retry_after_s));
    json_decref(said);
    json_t *output = g->begun ? json_pack("[o]", item_whole(g)) : json_array();
    return send_response(g, "response.failed", response_json(g, "failed", output, error));
}

/* Some clients count events, not bytes, when they wait. */
static int response_silent(struct generation *g)
{
    if (!g->begun) return exchange_write(g->exchange, ": wait\n\n", 8);
    return send_response(g, "response.in_progress", response_json(g, NULL, json_array(), NULL));
}

/* ---- its beginning ----------------------------------------------------------------------- */

static int read_prompt(const struct gateway *g, const struct ask *ask, uint32_t n_ctx,
                       struct fault *fault, struct tokenizer_ids *ret)
{
    CLEANUP(responses_in_fini) struct responses_in in = {0};
    int r = responses_in_from(ask, fault, &in);
    if (r < 0) return r;
    struct chat_input chat = {
        .messages = in.messages,
        .tools = ask->no_tools ? NULL : in.tools,
        .n_ctx = n_ctx,
    };
    return chat_tokens(g, &chat, fault, ret);
}

static const struct shape response_shape = {
    .api = API_RESPONSES,
    .id_prefix = "resp_",
    .prompt = read_prompt,
    .keep_text = true,
    .early = true, /* comments alone do not satisfy clients that count events */
    .begin = response_begin,
    .text = response_text,
    .end = response_end,
    .fail = response_fail,
    .silent = response_silent,
    .whole = response_whole,
};

void openai_responses(struct gateway *g, struct exchange *x)
{
    generation_serve(g, x, &response_shape);
}
