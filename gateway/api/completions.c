/* SPDX-License-Identifier: MIT */
/*
 * OpenAI's completions (openai.h): a prompt as it stands, whole and streamed. With echo the
 * prompt's text comes first.
 */
#include <string.h>

#include "gateway/api/openai.h"
#include "gateway/api/raw.h"
#include "gateway/api/reply.h"

/* A choice as the API has it. Takes text. */
static json_t *choice_json(const struct choice *c, json_t *text, const char *reason)
{
    json_t *choice = json_pack("{s:i,s:o,s:n,s:s?}", "index", (int)c->index, "text", text,
                               "logprobs", "finish_reason", reason);
    if (reason && c->truncated) (void)json_object_set_new(choice, "truncated", json_true());
    return choice;
}

static int send_text(const struct choice *c, json_t *text, const char *reason)
{
    json_t *choices = json_pack("[o]", choice_json(c, text, reason));
    return openai_send_usage(c->of, openai_envelope(c->of, "text_completion", choices), NULL);
}

/* The prompt's own text, or what its ids stand for. */
static void add_prompt(const struct generation *g, struct bytebuf *out)
{
    struct text *text = NULL;
    const json_t *prompt = g->ask.prompt;
    if (json_is_array(prompt) && !json_is_integer(json_array_get(prompt, 0)))
        prompt = json_array_get(prompt, 0);
    if (json_is_string(prompt)) {
        bytebuf_add(out, json_string_value(prompt), json_string_length(prompt));
        return;
    }
    if (text_new(NULL, 0, &text) < 0) abort();
    for (size_t i = 0; i < g->prompt.n; i++) {
        struct tokenizer_piece p = tokenizer_piece(g->gateway->model.tokenizer, g->prompt.ids[i]);
        (void)text_push(text, p.at, p.bytes, out);
    }
    (void)text_end(text, out);
    text_free(text);
}

static json_t *string_from(const struct bytebuf *b)
{
    return json_stringn(bytebuf_bytes(b), bytebuf_size(b));
}

static int completion_begin(struct generation *g)
{
    CLEANUP(bytebuf_fini) struct bytebuf prompt = {0};
    int r = 0;
    if (g->ask.echo) add_prompt(g, &prompt);
    for (uint32_t i = 0; r == 0 && g->ask.echo && i < g->ask.n; i++)
        r = send_text(&g->choice[i], string_from(&prompt), NULL);
    return r;
}

static int completion_text(struct choice *c, json_t *text) { return send_text(c, text, NULL); }

static int completion_choice_end(struct choice *c)
{
    return send_text(c, json_string(""), openai_reason(c));
}

static int completion_end(struct generation *g)
{
    int r = 0;
    if (g->ask.include_usage)
        r = openai_send_usage(g, openai_envelope(g, "text_completion", json_array()),
                              openai_usage(g));
    return r == 0 ? openai_done(g) : r;
}

static json_t *completion_whole(struct generation *g)
{
    json_t *choices = json_array();
    for (uint32_t i = 0; i < g->ask.n; i++) {
        CLEANUP(bytebuf_fini) struct bytebuf text = {0};
        const struct choice *c = &g->choice[i];
        if (g->ask.echo) add_prompt(g, &text);
        bytebuf_add(&text, bytebuf_bytes(&c->out), bytebuf_size(&c->out));
        (void)json_array_append_new(choices, choice_json(c, string_from(&text), openai_reason(c)));
    }
    json_t *answer = openai_envelope(g, "text_completion", choices);
    (void)json_object_set_new(answer, "usage", openai_usage(g));
    return answer;
}

static const struct shape completion_shape = {
    .api = API_COMPLETIONS,
    .id_prefix = "cmpl-",
    .prompt = raw_ask_prompt,
    .begin = completion_begin,
    .text = completion_text,
    .choice_end = completion_choice_end,
    .end = completion_end,
    .fail = openai_fail,
    .whole = completion_whole,
};

void openai_completions(struct gateway *g, struct exchange *x)
{
    generation_serve(g, x, &completion_shape);
}
