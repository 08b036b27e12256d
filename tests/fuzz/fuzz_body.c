/* SPDX-License-Identifier: MIT */
/*
 * The input is the body of a chat completions request: its fields, then its messages through a
 * small template and a small vocabulary. What must hold: a refusal has a sentence and is JSON; a
 * body that is taken is within the ranges that the rest of the gateway relies on; and the prompt
 * has exactly the control tokens of the template, whatever the messages say.
 */
#include <assert.h>
#include <string.h>
#include <sys/mman.h>

#include "gateway/api/fields.h"
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

static void check_fault(const struct fault *f)
{
    assert(f->text[0] && fault_row(f->kind)->status[FAULT_OPENAI] >= 400);
    json_t *j = fault_json(f);
    char *text = json_dumps(j, JSON_COMPACT);
    assert(text && strstr(text, "\"message\":\""));
    free(text);
    json_decref(j);
}

static void check_ask(const struct ask *a)
{
    assert(json_array_size(a->messages) > 0);
    assert(a->max_tokens <= FIELD_TOKENS_MAX && a->n >= 1 && a->n <= GENERATION_CHOICES_MAX);
    assert(a->temperature >= 0 && a->temperature <= 2 && a->top_p >= 0 && a->top_p <= 1);
    assert(a->min_p >= 0 && a->min_p <= 1);
    struct text *text = NULL;
    int r = text_new(a->stop.at, a->stop.n, &text);
    assert(r == 0);
    text_free(text);
}

static void check_prompt(const struct ask *a)
{
    struct fault fault;
    struct tokenizer_ids ids = {0};
    struct chat_input in = {.messages = a->messages, .tools = a->tools, .n_ctx = CONTEXT};
    if (chat_prompt(format, &in, &fault, &ids) < 0) {
        check_fault(&fault);
        return;
    }
    size_t n_control = 0;
    for (size_t i = 0; i < ids.n; i++)
        n_control += tokenizer_is_control(tokenizer, ids.ids[i]);
    assert(ids.n < CONTEXT && n_control == 2 * json_array_size(a->messages) + 1);
    free(ids.ids);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    struct fault fault;
    struct ask ask;
    if (!format) load();
    if (ask_parse(API_CHAT, (const char *)data, bytes, &fault, &ask) < 0) {
        check_fault(&fault);
        return 0;
    }
    check_ask(&ask);
    check_prompt(&ask);
    ask_fini(&ask);
    return 0;
}
