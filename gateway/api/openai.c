/* SPDX-License-Identifier: MIT */
/*
 * See openai.h. The shapes of chat completions and of models.
 */
#include "gateway/api/openai.h"

#include <errno.h>
#include <string.h>

#include "gateway/api/generation.h"
#include "gateway/api/reply.h"

/* ---- shapes ------------------------------------------------------------------------------ */

json_t *openai_usage(const struct generation *g)
{
    json_int_t in = generation_prompt_tokens(g), out = generation_tokens(g);
    return json_pack("{s:I,s:I,s:I,s:{s:I}}", "prompt_tokens", in, "completion_tokens", out,
                     "total_tokens", in + out, "prompt_tokens_details", "cached_tokens",
                     (json_int_t)generation_cached_tokens(g));
}

json_t *openai_envelope(const struct generation *g, const char *object, json_t *choices)
{
    return json_pack("{s:s,s:s,s:I,s:s,s:o}", "id", g->id, "object", object, "created",
                     (json_int_t)g->created, "model", g->gateway->model.name, "choices", choices);
}

const char *openai_reason(const struct choice *c)
{
    if (!c->ending) return NULL;
    return c->ending == ENDED_BY_LENGTH ? "length" : "stop";
}

/* null: not asked for, or of no token whose text is in this part. */
static json_t *probs_json(struct choice *c)
{
    struct logprobs_part p = choice_probs(c);
    if (!c->of->probs || (c->of->ask.stream && p.from == p.to)) return json_null();
    return json_pack("{s:o,s:n}", "content", logprobs_list(&p, false), "refusal");
}

/* part: "message" or "delta". */
static json_t *choice_json(struct choice *c, const char *part, json_t *content, const char *reason)
{
    json_t *choice = json_pack("{s:i,s:o,s:o,s:s?}", "index", (int)c->index, part, content,
                               "logprobs", probs_json(c), "finish_reason", reason);
    if (reason && c->truncated) (void)json_object_set_new(choice, "truncated", json_true());
    return choice;
}

int openai_send_usage(struct generation *g, json_t *chunk, json_t *usage)
{
    if (g->ask.include_usage)
        (void)json_object_set_new(chunk, "usage", usage ? usage : json_null());
    else
        json_decref(usage);
    return generation_send(g, NULL, chunk);
}

static int send_delta(struct choice *c, json_t *delta, const char *reason)
{
    json_t *choices = json_pack("[o]", choice_json(c, "delta", delta, reason));
    return openai_send_usage(c->of, openai_envelope(c->of, "chat.completion.chunk", choices), NULL);
}

/* ---- the stream -------------------------------------------------------------------------- */

static int chat_begin(struct generation *g)
{
    int r = 0;
    for (uint32_t i = 0; r == 0 && i < g->n_choices; i++)
        r = send_delta(&g->choice[i], json_pack("{s:s,s:s}", "role", "assistant", "content", ""),
                       NULL);
    return r;
}

static int chat_text_piece(struct choice *c, json_t *text)
{
    return send_delta(c, json_pack("{s:o}", "content", text), NULL);
}

/* Beside an empty delta, where llama.cpp's clients look for it. */
static int chat_progress(struct generation *g, json_t *progress)
{
    json_t *choices = json_pack("[o]", choice_json(&g->choice[0], "delta", json_object(), NULL));
    json_t *chunk = openai_envelope(g, "chat.completion.chunk", choices);
    (void)json_object_set_new(chunk, "prompt_progress", progress);
    return openai_send_usage(g, chunk, NULL);
}

static int chat_choice_end(struct choice *c)
{
    return send_delta(c, json_object(), openai_reason(c));
}

int openai_done(struct generation *g)
{
    return exchange_write(g->exchange, "data: [DONE]\n\n", 14);
}

static int chat_end(struct generation *g)
{
    int r = 0;
    if (g->ask.include_usage)
        r = openai_send_usage(g, openai_envelope(g, "chat.completion.chunk", json_array()),
                              openai_usage(g));
    return r == 0 ? openai_done(g) : r;
}

int openai_fail(struct generation *g, const struct fault *fault)
{
    int r = generation_send(g, NULL, fault_json(fault));
    return r == 0 ? openai_done(g) : r;
}

static json_t *chat_whole(struct generation *g)
{
    json_t *choices = json_array();
    for (uint32_t i = 0; i < g->n_choices; i++) {
        struct choice *c = &g->choice[i];
        json_t *message = json_pack("{s:s,s:o}", "role", "assistant", "content", choice_text(c));
        (void)json_array_append_new(choices, choice_json(c, "message", message, openai_reason(c)));
    }
    json_t *answer = openai_envelope(g, "chat.completion", choices);
    (void)json_object_set_new(answer, "usage", openai_usage(g));
    return answer;
}

/* ---- its beginning ----------------------------------------------------------------------- */

int chat_tokens(const struct gateway *g, const struct chat_input *in, struct fault *fault,
                struct tokenizer_ids *ret)
{
    if (!g->model.chat)
        return fault_set(fault, FAULT_REQUEST, NULL, "This model takes no chats: %s.",
                         g->model.why_no_chat.text);
    return chat_prompt(g->model.chat, in, fault, ret);
}

static int read_prompt(const struct gateway *g, const struct ask *ask, uint32_t n_ctx,
                       struct fault *fault, struct tokenizer_ids *ret)
{
    struct chat_input in = {
        .messages = ask->messages,
        .tools = ask->no_tools ? NULL : ask->tools,
        .kwargs = ask->kwargs,
        .n_ctx = n_ctx,
    };
    return chat_tokens(g, &in, fault, ret);
}

static const struct shape chat_shape = {
    .api = API_CHAT,
    .id_prefix = "chatcmpl-",
    .prompt = read_prompt,
    .begin = chat_begin,
    .text = chat_text_piece,
    .progress = chat_progress,
    .choice_end = chat_choice_end,
    .end = chat_end,
    .fail = openai_fail,
    .whole = chat_whole,
};

void openai_chat(struct gateway *g, struct exchange *x) { generation_serve(g, x, &chat_shape); }

/* ---- models ------------------------------------------------------------------------------ */

static json_t *model_json(const struct gateway *g)
{
    json_int_t n_ctx = gateway_context(g);
    return json_pack("{s:s,s:s,s:I,s:s,s:I,s:{s:I,s:I,s:I}}", "id", g->model.name, "object",
                     "model", "created", (json_int_t)g->started, "owned_by", "cistern",
                     "max_model_len", n_ctx, "meta", "n_ctx", n_ctx, "n_ctx_train",
                     (json_int_t)g->model.n_ctx_train, "n_vocab",
                     (json_int_t)tokenizer_n_vocab(g->model.tokenizer));
}

/* Both APIs have this path, and clients of both take what they don't know. */
static json_t *model_both(const struct gateway *g)
{
    json_t *model = model_json(g);
    char at[32];
    struct tm tm;
    (void)strftime(at, sizeof(at), "%Y-%m-%dT%H:%M:%SZ", gmtime_r(&g->started, &tm));
    (void)json_object_set_new(model, "type", json_string("model"));
    (void)json_object_set_new(model, "display_name", json_string(g->model.name));
    (void)json_object_set_new(model, "created_at", json_string(at));
    return model;
}

void openai_models(struct gateway *g, struct exchange *x)
{
    const char *id = g->model.name;
    reply_json(x, 200,
               json_pack("{s:s,s:[o],s:b,s:s,s:s}", "object", "list", "data", model_both(g),
                         "has_more", 0, "first_id", id, "last_id", id));
}

void openai_model(struct gateway *g, struct exchange *x)
{
    struct fault fault;
    const char *id = exchange_path(x) + strlen("/v1/models/");
    if (strcmp(id, g->model.name) == 0) {
        reply_json(x, 200, model_both(g));
        return;
    }
    (void)fault_set(&fault, FAULT_MODEL, "model",
                    "There is no model '%.64s' here; the one that is served is called '%.128s'.",
                    id, g->model.name);
    reply_fault(x, &fault);
}

void openai_embeddings(struct gateway *g, struct exchange *x)
{
    struct fault fault;
    (void)fault_set(&fault, FAULT_NOT_BUILT, NULL,
                    "This server makes no embeddings; '%.128s' generates text.", g->model.name);
    reply_fault(x, &fault);
}
