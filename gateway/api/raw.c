/* SPDX-License-Identifier: MIT */
/*
 * See raw.h. Called for completions of both kinds and for llama.cpp's helpers.
 */
#include "gateway/api/raw.h"

#include "gateway/chat.h"

int ids_from(const struct tokenizer *t, const char *name, const json_t *ids, struct fault *fault,
             struct tokenizer_ids *ret)
{
    size_t n = json_array_size(ids);
    CLEANUP(freep) uint32_t *list = xcalloc(n, sizeof(*list));
    for (size_t i = 0; i < n; i++) {
        const json_t *id = json_array_get(ids, i);
        json_int_t v = json_integer_value(id);
        if (!json_is_integer(id) || v < 0 || v >= tokenizer_n_vocab(t))
            return fault_set(fault, FAULT_REQUEST, name,
                             "'%s[%zu]' must be the id of a token, from 0 to %u.", name, i,
                             tokenizer_n_vocab(t) - 1);
        list[i] = (uint32_t)v;
    }
    *ret = (struct tokenizer_ids){.ids = TAKE(list), .n = n};
    return 0;
}

static int prompt_ids(const struct tokenizer *t, const json_t *ids, uint32_t n_ctx,
                      struct fault *fault, struct tokenizer_ids *ret)
{
    if (json_array_size(ids) >= n_ctx)
        return fault_context(fault, "prompt", json_array_size(ids), n_ctx);
    return ids_from(t, "prompt", ids, fault, ret);
}

static bool is_list(const json_t *prompt)
{
    return json_is_array(prompt) && json_array_size(prompt) > 0 &&
           !json_is_integer(json_array_get(prompt, 0));
}

static int one_prompt(const struct tokenizer *t, const json_t *prompt, uint32_t n_ctx,
                      struct fault *fault, struct tokenizer_ids *ret)
{
    if (json_is_string(prompt))
        return raw_prompt(t, json_string_value(prompt), json_string_length(prompt), n_ctx, fault,
                          ret);
    if (json_is_array(prompt) && json_array_size(prompt) > 0)
        return prompt_ids(t, prompt, n_ctx, fault, ret);
    return fault_set(fault, FAULT_REQUEST, "prompt",
                     "'prompt' must be a string or an array of ids, and not empty.");
}

int raw_prompt_from(const struct tokenizer *t, const json_t *prompt, uint32_t n_ctx,
                    struct fault *fault, struct tokenizer_ids *ret)
{
    if (is_list(prompt)) {
        if (json_array_size(prompt) != 1)
            return fault_set(fault, FAULT_FIELD, "prompt",
                             "'prompt' must be one prompt: a string or an array of ids.");
        prompt = json_array_get(prompt, 0);
    }
    return one_prompt(t, prompt, n_ctx, fault, ret);
}

int raw_ask_prompt(const struct gateway *g, const struct ask *ask, uint32_t n_ctx,
                   struct fault *fault, struct tokenizer_ids *ret)
{
    return raw_prompt_from(g->model.tokenizer, ask->prompt, n_ctx, fault, ret);
}

int raw_prompts_from(const struct tokenizer *t, const json_t *prompt, uint32_t n_ctx,
                     struct fault *fault, struct prompt_list *ret)
{
    bool list = is_list(prompt);
    size_t n = list ? json_array_size(prompt) : 1;
    CLEANUP(prompt_list_fini) struct prompt_list all = {0};
    if (n > ARRAY_LEN(all.at))
        return fault_set(fault, FAULT_REQUEST, "prompt", "'prompt' must be at most %zu prompts.",
                         ARRAY_LEN(all.at));
    for (; all.n < n; all.n++) {
        const json_t *one = list ? json_array_get(prompt, all.n) : prompt;
        int r = one_prompt(t, one, n_ctx, fault, &all.at[all.n]);
        if (r < 0) return r;
    }
    *ret = all;
    all.n = 0;
    return 0;
}

int raw_ask_prompts(const struct gateway *g, const struct ask *ask, uint32_t n_ctx,
                    struct fault *fault, struct prompt_list *ret)
{
    return raw_prompts_from(g->model.tokenizer, ask->prompt, n_ctx, fault, ret);
}

void prompt_list_fini(struct prompt_list *l)
{
    while (l->n)
        free(l->at[--l->n].ids);
}
