/* SPDX-License-Identifier: MIT */
/*
 * The input is the body of a request, taken by each API in turn: its fields, then what they hold
 * through a small template and a small vocabulary. What must hold: a refusal has a sentence and is
 * JSON in both shapes; a body that is taken is within the ranges that the rest of the gateway
 * relies on; and the prompt has exactly the control tokens of the template, whatever the messages
 * say.
 */
#include <assert.h>
#include <math.h>
#include <string.h>
#include <sys/mman.h>

#include "gateway/api/anthropic_in.h"
#include "gateway/api/logit_bias.h"
#include "gateway/api/raw.h"
#include "gateway/api/responses_in.h"
#include "gateway/chat.h"
#include "tests/unit/gguf_write.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

enum { CONTEXT = 4096, TOKEN_TYPE_NORMAL = 1, TOKEN_TYPE_CONTROL = 3 };

static const char *const control[] = {"<s>", "</s>"};
static const char template_text[] = "{% for m in messages %}<s>{{ m.role }}\n{{ m.content }}</s>\n"
                                    "{% endfor %}{% if add_generation_prompt %}<s>{% endif %}";

static struct tokenizer *tokenizer;
static struct chat_format *format;

static void write_model(struct gguf_write *w)
{
    unsigned n = 256 + ARRAY_LEN(control);
    write_header(w, 3, 0, 6);
    write_key_str(w, "tokenizer.ggml.model", "gpt2");
    write_key_str(w, "tokenizer.ggml.pre", "gpt-2");
    write_key_str(w, "tokenizer.chat_template", template_text);
    write_key_array(w, "tokenizer.ggml.tokens", GGUF_STRING, n);
    for (unsigned i = 0; i < 256; i++)
        write_byte_token(w, i);
    for (unsigned i = 0; i < ARRAY_LEN(control); i++)
        write_str(w, control[i]);
    write_key_array(w, "tokenizer.ggml.token_type", GGUF_I32, n);
    for (unsigned i = 0; i < n; i++)
        write_u32(w, i < 256 ? TOKEN_TYPE_NORMAL : TOKEN_TYPE_CONTROL);
    write_key_array(w, "tokenizer.ggml.merges", GGUF_STRING, 1);
    write_str(w, "t h");
}

/* Kept: making them costs more than an input. */
static void load(void)
{
    CLEANUP(gguf_write_fini) struct gguf_write w = {0};
    CLEANUP(closep) int fd = memfd_create("fuzz", MFD_CLOEXEC);
    CLEANUP(gguf_freep) struct gguf *g = NULL;
    char path[64];
    write_model(&w);
    assert(fd >= 0 && write(fd, w.at, w.bytes) == (ssize_t)w.bytes);
    (void)snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
    int r = gguf_open(path, NULL, &g);
    assert(r == 0);
    r = tokenizer_new(g, NULL, &tokenizer);
    assert(r == 0);
    r = chat_format_new(g, tokenizer, NULL, &format);
    assert(r == 0);
}

static void check_json(json_t *j)
{
    char *text = json_dumps(j, JSON_COMPACT);
    assert(text && strstr(text, "\"message\":\""));
    free(text);
    json_decref(j);
}

static void check_fault(const struct fault *f)
{
    assert(f->text[0] && fault_row(f->kind)->status[FAULT_OPENAI] >= 400);
    assert(fault_row(f->kind)->status[FAULT_ANTHROPIC] >= 400);
    check_json(fault_json(f));
    check_json(fault_json_anthropic(f, "req"));
}

static void check_ask(const struct ask *a)
{
    assert(a->max_tokens <= FIELD_TOKENS_MAX || a->max_tokens == UINT32_MAX);
    assert(a->n <= GENERATION_CHOICES_MAX && !a->unserved && a->top_logprobs <= 20);
    assert(a->temperature >= 0 && a->temperature <= 2 && a->top_p >= 0 && a->top_p <= 1);
    assert(a->min_p >= 0 && a->min_p <= 1);
    assert(fabsf(a->presence_penalty) <= 2 && fabsf(a->frequency_penalty) <= 2);
    assert(a->repeat_penalty >= 0 && a->repeat_penalty <= 10);
    struct text *text = NULL;
    int r = text_new(a->stop.at, a->stop.n, &text);
    assert(r == 0);
    text_free(text);
}

/* Messages that the template sees: an empty answer at the end is left out, and tools make a system
 * message where there is none. */
static size_t n_shown(const json_t *messages, const json_t *tools)
{
    size_t n = json_array_size(messages);
    const json_t *first = json_array_get(messages, 0), *last = json_array_get(messages, n - 1);
    const char *role = json_string_value(json_object_get(first, "role"));
    const char *content = json_string_value(json_object_get(last, "content"));
    const char *last_role = json_string_value(json_object_get(last, "role"));
    bool empty = n > 1 && strcmp(last_role, "assistant") == 0 && content && !*content &&
                 json_string_length(json_object_get(last, "content")) == 0 &&
                 json_array_size(json_object_get(last, "tool_calls")) == 0;
    bool system = strcmp(role, "system") == 0 || strcmp(role, "developer") == 0;
    return n - empty + (json_array_size(tools) > 0 && !system);
}

static void check_chat(const json_t *messages, const json_t *tools, const json_t *kwargs,
                       const json_t *prefill)
{
    struct fault fault;
    struct tokenizer_ids ids = {0};
    struct chat_input in = {.messages = messages,
                            .tools = tools,
                            .kwargs = kwargs,
                            .prefill = prefill,
                            .n_ctx = CONTEXT};
    if (chat_prompt(format, &in, &fault, &ids) < 0) {
        check_fault(&fault);
        return;
    }
    size_t n_control = 0;
    for (size_t i = 0; i < ids.n; i++)
        n_control += tokenizer_is_control(tokenizer, ids.ids[i]);
    assert(ids.n < CONTEXT && n_control == 2 * n_shown(messages, tools) + 1);
    free(ids.ids);
}

static void check_messages(const struct ask *a)
{
    struct fault fault;
    struct anthropic_in in;
    if (anthropic_in_from(a, &fault, &in) < 0) {
        check_fault(&fault);
        return;
    }
    check_chat(in.messages, in.tools, NULL, in.prefill);
    anthropic_in_fini(&in);
}

static void check_items(const struct ask *a)
{
    struct fault fault;
    struct responses_in in;
    if (responses_in_from(a, &fault, &in) < 0) {
        check_fault(&fault);
        return;
    }
    check_chat(in.messages, in.tools, NULL, NULL);
    responses_in_fini(&in);
}

static void check_bias(const struct ask *a)
{
    struct fault fault;
    struct logit_bias bias = {0};
    if (logit_bias_from(tokenizer, a->logit_bias, &fault, &bias) < 0) check_fault(&fault);
    assert(bias.n <= FIELD_BIASES_MAX);
    for (uint32_t i = 0; i < bias.n; i++) {
        assert(bias.ids[i] < tokenizer_n_vocab(tokenizer));
        assert(bias.biases[i] == -INFINITY || fabsf(bias.biases[i]) <= FIELD_BIAS_MAX);
    }
    logit_bias_fini(&bias);
}

static void check_list(const struct ask *a)
{
    struct fault fault;
    struct prompt_list list = {0};
    if (raw_prompts_from(tokenizer, a->prompt, CONTEXT, &fault, &list) < 0) check_fault(&fault);
    assert(list.n <= GENERATION_CHOICES_MAX);
    for (uint32_t i = 0; i < list.n; i++)
        assert(list.at[i].n > 0 && list.at[i].n < CONTEXT);
    prompt_list_fini(&list);
    check_bias(a);
}

static void check_raw(const struct ask *a)
{
    struct fault fault;
    struct tokenizer_ids ids = {0};
    if (raw_prompt_from(tokenizer, a->prompt, CONTEXT, &fault, &ids) < 0) {
        check_fault(&fault);
        return;
    }
    assert(ids.n > 0 && ids.n < CONTEXT);
    for (size_t i = 0; i < ids.n; i++)
        assert(ids.ids[i] < tokenizer_n_vocab(tokenizer));
    free(ids.ids);
    check_bias(a);
}

static void check_openai(const struct ask *a)
{
    check_chat(a->messages, a->tools, a->kwargs, NULL);
}

static void check_ids(const struct ask *a)
{
    struct fault fault;
    struct tokenizer_ids ids = {0};
    if (ids_from(tokenizer, "tokens", a->tokens, &fault, &ids) < 0) check_fault(&fault);
    free(ids.ids);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    static const struct {
        enum api_id api;
        void (*check)(const struct ask *a);
    } apis[] = {
        {API_CHAT,           check_openai  },
        {API_APPLY_TEMPLATE, check_openai  },
        {API_MESSAGES,       check_messages},
        {API_COUNT_TOKENS,   check_messages},
        {API_RESPONSES,      check_items   },
        {API_COMPLETIONS,    check_list    },
        {API_COMPLETION,     check_raw     },
        {API_DETOKENIZE,     check_ids     },
    };
    if (!format) load();
    for (size_t i = 0; i < ARRAY_LEN(apis); i++) {
        struct fault fault;
        struct ask ask;
        if (ask_parse(apis[i].api, (const char *)data, bytes, &fault, &ask) < 0) {
            check_fault(&fault);
            continue;
        }
        check_ask(&ask);
        apis[i].check(&ask);
        ask_fini(&ask);
    }
    return 0;
}
