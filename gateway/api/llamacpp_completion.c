/* SPDX-License-Identifier: MIT */
/*
 * llama.cpp's own completion (llamacpp.h): a prompt as it stands, in that server's shape.
 */
#include "gateway/api/generation.h"
#include "gateway/api/llamacpp.h"
#include "gateway/api/raw.h"
#include "gateway/api/reply.h"

static const char *stop_type(const struct choice *c)
{
    switch (c->ending) {
    case ENDED_BY_MODEL:
        return "eos";
    case ENDED_BY_STRING:
        return "word";
    case ENDED_BY_LENGTH:
        return "limit";
    case ENDED_NOT:
        break;
    }
    return "none";
}

static void set_probs(struct choice *c, json_t *event)
{
    struct logprobs_part p = choice_probs(c);
    if (!c->of->probs || (c->of->ask.stream && p.from == p.to)) return;
    (void)json_object_set_new(event, "completion_probabilities", logprobs_list(&p, true));
}

/* Takes content. */
static json_t *last_json(struct generation *g, json_t *content)
{
    struct choice *c = &g->choice[0];
    json_t *last = json_pack(
        "{s:i,s:o,s:b,s:s,s:s,s:s,s:I,s:I,s:I,s:b}", "index", 0, "content", content, "stop", 1,
        "model", g->gateway->model.name, "stop_type", stop_type(c), "stopping_word",
        c->stop_string ? c->stop_string : "", "tokens_predicted", (json_int_t)c->n_generated,
        "tokens_evaluated", (json_int_t)generation_prompt_tokens(g), "tokens_cached",
        (json_int_t)generation_cached_tokens(g), "truncated", (int)c->truncated);
    set_probs(c, last);
    return last;
}

static int begin(struct generation *g)
{
    (void)g;
    return 0;
}

static int send_text(struct choice *c, json_t *text)
{
    json_t *event = json_pack("{s:i,s:o,s:b}", "index", 0, "content", text, "stop", 0);
    set_probs(c, event);
    return generation_send(c->of, NULL, event);
}

static int progress(struct generation *g, json_t *progress)
{
    return generation_send(g, NULL,
                           json_pack("{s:i,s:s,s:b,s:o}", "index", 0, "content", "", "stop", 0,
                                     "prompt_progress", progress));
}

static int end(struct generation *g)
{
    return generation_send(g, NULL, last_json(g, json_string("")));
}

static int fail(struct generation *g, const struct fault *fault)
{
    return generation_send(g, NULL, fault_json(fault));
}

static json_t *whole(struct generation *g) { return last_json(g, choice_text(&g->choice[0])); }

static const struct shape shape = {
    .api = API_COMPLETION,
    .id_prefix = "cmpl-",
    .prompt = raw_ask_prompt,
    .begin = begin,
    .text = send_text,
    .progress = progress,
    .end = end,
    .fail = fail,
    .whole = whole,
};

void llamacpp_completion(struct gateway *g, struct exchange *x) { generation_serve(g, x, &shape); }
