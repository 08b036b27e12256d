/* SPDX-License-Identifier: MIT */
/*
 * OpenAI's completions (openai.h): a prompt as it stands, whole and streamed. With echo the
 * prompt's text comes first.
 */
#include <string.h>

#include "gateway/api/openai.h"
#include "gateway/api/raw.h"
#include "gateway/api/reply.h"

/* The k-th prompt as it was given: a text, or ids. */
static const json_t *prompt_json(const struct generation *g, const struct prompt *p)
{
    const json_t *all = g->ask.prompt;
    if (!json_is_array(all) || json_is_integer(json_array_get(all, 0))) return all;
    return json_array_get(all, (size_t)(p - g->prompt));
}

/* A text of the choice, with the probabilities of the tokens in it. */
struct piece {
    json_t *text;
    const char *reason; /* NULL: more follows */
    bool with_prompt;   /* the text begins with the prompt's */
};

/* Whether the first token of a prompt that was given as text is none of it. */
static bool has_added_bos(const struct generation *g, const struct choice *c)
{
    const struct tokenizer *t = g->gateway->model.tokenizer;
    const json_t *text = prompt_json(g, c->prompt);
    struct tokenizer_piece bos = tokenizer_piece(t, tokenizer_bos(t));
    return json_is_string(text) && c->prompt->ids.ids[0] == tokenizer_bos(t) &&
           (json_string_length(text) < bos.bytes ||
            memcmp(json_string_value(text), bos.at, bos.bytes) != 0);
}

static json_t *probs_json(struct choice *c, bool with_prompt)
{
    struct generation *g = c->of;
    const struct tokenizer *t = g->gateway->model.tokenizer;
    struct logprobs_part own = {&c->probs, t, 0, 0, false};
    /* In a stream the prompt's text is a chunk of its own. */
    if (!g->ask.stream || !with_prompt) own = choice_probs(c);
    struct logprobs_part prompt = {&c->prompt->probs, t, 0, c->prompt->probs.n, true};
    if (!g->probs || (g->ask.stream && !with_prompt && own.from == own.to)) return json_null();
    json_t *columns = logprobs_columns();
    if (with_prompt && has_added_bos(g, c))
        logprobs_place_back(&c->place, tokenizer_piece(t, tokenizer_bos(t)));
    if (with_prompt) logprobs_columns_add(columns, &prompt, &c->place);
    logprobs_columns_add(columns, &own, &c->place);
    return columns;
}

/* A choice as the API has it. Takes the text. */
static json_t *choice_json(struct choice *c, const struct piece *p)
{
    json_t *choice =
        json_pack("{s:i,s:o,s:o,s:s?}", "index", (int)c->index, "text", p->text, "logprobs",
                  probs_json(c, p->with_prompt), "finish_reason", p->reason);
    if (p->reason && c->truncated) (void)json_object_set_new(choice, "truncated", json_true());
    return choice;
}

static int send_piece(struct choice *c, const struct piece *p)
{
    json_t *choices = json_pack("[o]", choice_json(c, p));
    return openai_send_usage(c->of, openai_envelope(c->of, "text_completion", choices), NULL);
}

/* The prompt's own text, or what its ids stand for. */
static void add_prompt(const struct choice *c, struct bytebuf *out)
{
    const struct generation *g = c->of;
    const struct tokenizer_ids *ids = &c->prompt->ids;
    const json_t *prompt = prompt_json(g, c->prompt);
    struct text *text = NULL;
    if (json_is_string(prompt)) {
        bytebuf_add(out, json_string_value(prompt), json_string_length(prompt));
        return;
    }
    if (text_new(NULL, 0, &text) < 0) abort();
    for (size_t i = 0; i < ids->n; i++) {
        struct tokenizer_piece p = tokenizer_piece(g->gateway->model.tokenizer, ids->ids[i]);
        (void)text_push(text, p.at, p.bytes, out);
    }
    (void)text_end(text, out);
    text_free(text);
}

static json_t *string_from(const struct bytebuf *b)
{
    return json_stringn(bytebuf_bytes(b), bytebuf_size(b));
}

/* The prompt's text is a chunk of its own, once. */
static int send_prompt(struct choice *c)
{
    CLEANUP(bytebuf_fini) struct bytebuf prompt = {0};
    if (!c->of->ask.echo || c->echoed) return 0;
    c->echoed = true;
    add_prompt(c, &prompt);
    return send_piece(
        c, &(struct piece){.text = string_from(&prompt), .with_prompt = c->of->prompt_probs});
}

/* With its probabilities a prompt's text waits for them: they are there before its first token. */
static int completion_begin(struct generation *g)
{
    int r = 0;
    for (uint32_t i = 0; r == 0 && !g->prompt_probs && i < g->n_choices; i++)
        r = send_prompt(&g->choice[i]);
    return r;
}

static int completion_text(struct choice *c, json_t *text)
{
    int r = send_prompt(c);
    if (r == 0) return send_piece(c, &(struct piece){.text = text});
    json_decref(text);
    return r;
}

static int completion_choice_end(struct choice *c)
{
    int r = send_prompt(c);
    if (r < 0) return r;
    return send_piece(c, &(struct piece){.text = json_string(""), .reason = openai_reason(c)});
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
    for (uint32_t i = 0; i < g->n_choices; i++) {
        CLEANUP(bytebuf_fini) struct bytebuf text = {0};
        struct choice *c = &g->choice[i];
        if (g->ask.echo) add_prompt(c, &text);
        bytebuf_add(&text, bytebuf_bytes(&c->out), bytebuf_size(&c->out));
        struct piece p = {string_from(&text), openai_reason(c), g->prompt_probs};
        (void)json_array_append_new(choices, choice_json(c, &p));
    }
    json_t *answer = openai_envelope(g, "text_completion", choices);
    (void)json_object_set_new(answer, "usage", openai_usage(g));
    return answer;
}

static const struct shape completion_shape = {
    .api = API_COMPLETIONS,
    .id_prefix = "cmpl-",
    .prompts = raw_ask_prompts,
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
