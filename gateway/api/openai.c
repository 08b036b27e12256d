/* SPDX-License-Identifier: MIT */
/*
 * See openai.h. Owns a chat from its request to its last byte: an exchange on one side, a request
 * to the workers on the other. Streams and whole answers differ only in when text is handed over,
 * so they are the same bytes. Which heads compute, and how often it took another, is not known
 * here.
 */
#include "gateway/api/openai.h"

#include <errno.h>
#include <string.h>
#include <sys/random.h>

#include "common/log.h"
#include "gateway/api/fields.h"
#include "gateway/api/reply.h"

struct chat {
    struct gateway *g;
    struct exchange *x;
    struct request *request; /* NULL once it is finished */
    struct text *text;
    struct chat_ask ask; /* text's stop strings live in its body */
    struct bytebuf out;  /* text not yet handed over */
    char id[48];
    time_t created;
    uint32_t n_prompt, n_generated, n_cached;
    uint64_t last_token_us;
    bool streaming; /* the headers are out */
};

static void chat_free(struct chat *c)
{
    text_free(c->text);
    bytebuf_fini(&c->out);
    chat_ask_fini(&c->ask);
    free(c);
}

/* ---- shapes ------------------------------------------------------------------------------ */

static json_t *usage_json(const struct chat *c)
{
    return json_pack("{s:i,s:i,s:i,s:{s:i}}", "prompt_tokens", (int)c->n_prompt,
                     "completion_tokens", (int)c->n_generated, "total_tokens",
                     (int)(c->n_prompt + c->n_generated), "prompt_tokens_details", "cached_tokens",
                     (int)c->n_cached);
}

static json_t *envelope_json(const struct chat *c, const char *object, json_t *choices)
{
    return json_pack("{s:s,s:s,s:I,s:s,s:o}", "id", c->id, "object", object, "created",
                     (json_int_t)c->created, "model", c->g->model.name, "choices", choices);
}

/* part: "message" or "delta". */
static json_t *choice_json(const char *part, json_t *content, const char *finish_reason,
                           bool truncated)
{
    json_t *choice =
        json_pack("{s:i,s:o,s:s?}", "index", 0, part, content, "finish_reason", finish_reason);
    if (choice && truncated) (void)json_object_set_new(choice, "truncated", json_true());
    return choice;
}

/* ---- the stream -------------------------------------------------------------------------- */

static int send_event(struct chat *c, json_t *event)
{
    char *line = json_dumps(event, JSON_COMPACT);
    json_decref(event);
    if (!line) return -ENOMEM;
    struct bytebuf b = {0};
    bytebuf_add(&b, "data: ", 6);
    bytebuf_add(&b, line, strlen(line));
    bytebuf_add(&b, "\n\n", 2);
    int r = exchange_write(c->x, bytebuf_bytes(&b), bytebuf_size(&b));
    bytebuf_fini(&b);
    free(line);
    return r;
}

static int send_chunk(struct chat *c, json_t *choices, json_t *usage)
{
    json_t *chunk = envelope_json(c, "chat.completion.chunk", choices);
    if (!chunk) {
        json_decref(usage);
        return -ENOMEM;
    }
    if (c->ask.include_usage)
        (void)json_object_set_new(chunk, "usage", usage ? usage : json_null());
    else
        json_decref(usage);
    return send_event(c, chunk);
}

static int send_delta(struct chat *c, json_t *delta, const char *finish_reason, bool truncated)
{
    json_t *choice = choice_json("delta", delta, finish_reason, truncated);
    return send_chunk(c, json_pack("[o]", choice), NULL);
}

static int send_text(struct chat *c)
{
    if (!c->streaming || bytebuf_size(&c->out) == 0) return 0;
    json_t *text = json_stringn(bytebuf_bytes(&c->out), bytebuf_size(&c->out));
    bytebuf_take(&c->out, bytebuf_size(&c->out));
    return send_delta(c, json_pack("{s:o}", "content", text), NULL, false);
}

/* The headers and the first chunk, before anything else is known. */
static int begin_stream(struct chat *c)
{
    if (c->streaming || !c->ask.stream) return 0;
    c->streaming = true;
    exchange_stream(c->x);
    return send_delta(c, json_pack("{s:s,s:s}", "role", "assistant", "content", ""), NULL, false);
}

static int end_stream(struct chat *c, const char *finish_reason, bool truncated)
{
    int r = begin_stream(c);
    if (r == 0) r = send_text(c);
    if (r == 0) r = send_delta(c, json_object(), finish_reason, truncated);
    if (r == 0 && c->ask.include_usage) r = send_chunk(c, json_array(), usage_json(c));
    if (r == 0) r = exchange_write(c->x, "data: [DONE]\n\n", 14);
    return r;
}

static int fail_stream(struct chat *c, const struct fault *fault)
{
    (void)text_end(c->text, &c->out);
    int r = send_text(c);
    if (r == 0) r = send_event(c, fault_json(fault));
    if (r == 0) r = exchange_write(c->x, "data: [DONE]\n\n", 14);
    return r;
}

/* ---- the end ----------------------------------------------------------------------------- */

/* The reader doesn't read, or is gone. */
static void chat_abandon(struct chat *c)
{
    if (c->request) request_leave(TAKE(c->request));
    exchange_drop(c->x);
    chat_free(c);
}

static void close_stream(struct chat *c, int r)
{
    if (r < 0) {
        chat_abandon(c);
        return;
    }
    exchange_end(c->x);
    chat_free(c);
}

static void chat_complete(struct chat *c, const char *finish_reason, bool truncated)
{
    if (c->ask.stream) {
        close_stream(c, end_stream(c, finish_reason, truncated));
        return;
    }
    json_t *text = json_stringn(bytebuf_bytes(&c->out), bytebuf_size(&c->out));
    json_t *message = json_pack("{s:s,s:o}", "role", "assistant", "content", text);
    json_t *choice = choice_json("message", message, finish_reason, truncated);
    json_t *answer = envelope_json(c, "chat.completion", json_pack("[o]", choice));
    (void)json_object_set_new(answer, "usage", usage_json(c));
    reply_json(c->x, 200, answer);
    chat_free(c);
}

static void chat_fail(struct chat *c, const struct fault *fault)
{
    if (c->streaming) {
        close_stream(c, fail_stream(c, fault));
        return;
    }
    reply_fault(c->x, fault);
    chat_free(c);
}

/* ---- what happens to it ------------------------------------------------------------------ */

static void on_gone(void *arg)
{
    struct chat *c = arg;
    if (c->request) request_leave(c->request);
    chat_free(c);
}

static void on_started(void *arg)
{
    struct chat *c = arg;
    c->n_cached = request_cached_tokens(c->request);
    c->g->metrics.cached_tokens += c->n_cached;
    if (begin_stream(c) < 0) chat_abandon(c);
}

static void on_late(void *arg)
{
    struct chat *c = arg;
    if (begin_stream(c) < 0) chat_abandon(c);
}

static void count_tokens(struct chat *c, size_t n)
{
    struct metrics *m = &c->g->metrics;
    uint64_t now = now_us();
    m->generated_tokens += n;
    if (c->last_token_us)
        metrics_between_tokens(m, now - c->last_token_us, n);
    else
        metrics_first_token(m, now - exchange_since_us(c->x));
    c->last_token_us = now;
}

/* Adds the text of the tokens. True when a stop string is complete. */
static bool add_tokens(struct chat *c, const uint32_t *ids, size_t n)
{
    const struct tokenizer *t = c->g->model.tokenizer;
    for (size_t i = 0; i < n; i++) {
        struct tokenizer_piece piece = tokenizer_piece(t, ids[i]);
        if (tokenizer_is_control(t, ids[i])) piece.bytes = 0;
        c->n_generated++;
        if (text_push(c->text, piece.at, piece.bytes, &c->out)) return true;
    }
    return false;
}

static void on_tokens(void *arg, const uint32_t *ids, size_t n)
{
    struct chat *c = arg;
    count_tokens(c, n);
    if (add_tokens(c, ids, n)) {
        request_stop(TAKE(c->request), text_tokens_before_stop(c->text));
        chat_complete(c, "stop", false);
        return;
    }
    int r = begin_stream(c);
    if (r == 0) r = send_text(c);
    if (r < 0) chat_abandon(c);
}

static void on_finished(void *arg, const struct request_end *end)
{
    struct chat *c = arg;
    c->request = NULL;
    if (end->fault != FAULT_NONE) {
        struct fault fault;
        (void)fault_set(&fault, end->fault, NULL, "%s", end->text);
        fault.n_prompt_tokens = c->n_prompt;
        fault.n_ctx = gateway_context(c->g);
        chat_fail(c, &fault);
        return;
    }
    bool stopped = text_end(c->text, &c->out) || end->reason == CISTERN__REASON__STOP;
    chat_complete(c, stopped ? "stop" : "length", !stopped && end->truncated);
}

/* ---- its beginning ----------------------------------------------------------------------- */

static uint64_t random_u64(void)
{
    uint64_t v;
    if (getrandom(&v, sizeof(v), 0) != sizeof(v)) abort();
    return v;
}

static uint32_t answer_tokens(const struct chat *c)
{
    uint32_t room = gateway_context(c->g) - c->n_prompt;
    uint32_t want = c->ask.max_tokens ? c->ask.max_tokens : c->g->config->gateway.default_tokens;
    return want ? min_u32(want, room) : room;
}

static void submit(struct chat *c, const struct tokenizer_ids *prompt)
{
    size_t n_stop;
    const uint32_t *stop = tokenizer_eog(c->g->model.tokenizer, &n_stop);
    c->n_prompt = (uint32_t)prompt->n;
    c->g->metrics.prompt_tokens += c->n_prompt;
    struct request_ask ask = {
        .prompt = prompt->ids,
        .n_prompt = c->n_prompt,
        .max_tokens = answer_tokens(c),
        .top_k = c->ask.top_k,
        .temperature = c->ask.temperature,
        .top_p = c->ask.top_p,
        .min_p = c->ask.min_p,
        .seed = c->ask.seeded ? c->ask.seed : random_u64(),
        .stop_tokens = stop,
        .n_stop_tokens = (uint32_t)n_stop,
    };
    struct request_events events = {
        .started = on_started,
        .late = on_late,
        .tokens = on_tokens,
        .finished = on_finished,
        .arg = c,
    };
    exchange_wait(c->x, on_gone, c);
    c->request = request_new(c->g->requests, &ask, &events);
}

static int read_prompt(const struct gateway *g, const struct chat_ask *ask, struct fault *fault,
                       struct tokenizer_ids *ret)
{
    if (!g->model.chat)
        return fault_set(fault, FAULT_REQUEST, NULL, "This model takes no chats: %s.",
                         g->model.why_no_chat.text);
    return chat_prompt(g->model.chat, ask->messages, gateway_context(g), fault, ret);
}

static struct chat *chat_new(struct gateway *g, struct exchange *x, struct chat_ask *ask)
{
    struct chat *c = xnew(struct chat);
    c->g = g;
    c->x = x;
    c->ask = *ask;
    *ask = (struct chat_ask){0};
    c->created = time(NULL);
    (void)snprintf(c->id, sizeof(c->id), "chatcmpl-%016llx%08llx", (unsigned long long)random_u64(),
                   (unsigned long long)random_u64() >> 32);
    if (text_new(c->ask.stop.at, c->ask.stop.n, &c->text) < 0) abort(); /* fields.c bounded them */
    return c;
}

/* Whether there is a place is asked first: who must come back later should know at once. */
void openai_chat(struct gateway *g, struct exchange *x)
{
    struct fault fault;
    struct chat_ask ask = {0};
    struct tokenizer_ids prompt = {0};
    size_t bytes;
    const char *body = exchange_body(x, &bytes);
    int r = gateway_admits(g, &fault);
    if (r == 0) r = chat_ask_parse(body, bytes, &fault, &ask);
    if (r == 0) r = read_prompt(g, &ask, &fault, &prompt);
    if (r < 0)
        reply_fault(x, &fault);
    else
        submit(chat_new(g, x, &ask), &prompt);
    free(prompt.ids);
    chat_ask_fini(&ask);
}

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

void openai_models(struct gateway *g, struct exchange *x)
{
    reply_json(x, 200, json_pack("{s:s,s:[o]}", "object", "list", "data", model_json(g)));
}

void openai_model(struct gateway *g, struct exchange *x)
{
    struct fault fault;
    const char *id = exchange_path(x) + strlen("/v1/models/");
    if (strcmp(id, g->model.name) == 0) {
        reply_json(x, 200, model_json(g));
        return;
    }
    (void)fault_set(&fault, FAULT_MODEL, "model",
                    "There is no model '%.64s' here; the one that is served is called '%.128s'.",
                    id, g->model.name);
    reply_fault(x, &fault);
}
