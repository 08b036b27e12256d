/* SPDX-License-Identifier: MIT */
/*
 * The input's first byte chooses: a GGUF file (whose vocabulary is loaded and used), or text for a
 * small vocabulary with one of the pre-tokenisers. Text is cut into spans at 0x1e, which also turns
 * parse_special over. What must hold: ids are in range, the pieces are the text again where it is
 * UTF-8, and a text without special parsing has no control token.
 */
#include <assert.h>
#include <string.h>
#include <sys/mman.h>

#include "gateway/tokenizer/tokenizer.h"
#include "gateway/tokenizer/utf8.h"
#include "tests/unit/gguf_write.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

enum { SPANS_MAX = 64 };

static const char *const pres[] = {"smollm", "gpt-2", "llama-bpe", "qwen2", "default"};
static const struct {
    const char *text;
    uint32_t type;
} extra[] = {
    {"<s>",          3},
    {"</s>",         3},
    {"<|im_end|>",   3},
    {"<u>",          4},
    {"<u><u>",       4},
    {"  ",           4},
    {"th",           1},
    {"the",          1},
    {"\u0120t",      1},
    {"12",           1},
    {"\u0120\u0120", 1},
};
static const char *const merges[] = {"t h",           "th e",          "\u0120 t",
                                     "1 2",           "\u0120 \u0120", "\u0120t h",
                                     "\u010a \u010a", "a a",           "aa aa"};

static void write_vocabulary(struct gguf_write *w, const char *pre)
{
    unsigned n = 256 + ARRAY_LEN(extra);
    write_header(w, 3, 0, 5);
    write_key_str(w, "tokenizer.ggml.model", "gpt2");
    write_key_str(w, "tokenizer.ggml.pre", pre);
    write_key_array(w, "tokenizer.ggml.tokens", GGUF_STRING, n);
    for (unsigned i = 0; i < n; i++) {
        if (i < 256)
            write_byte_token(w, i);
        else
            write_str(w, extra[i - 256].text);
    }
    write_key_array(w, "tokenizer.ggml.token_type", GGUF_I32, n);
    for (unsigned i = 0; i < n; i++)
        write_u32(w, i < 256 ? 1 : extra[i - 256].type);
    write_key_array(w, "tokenizer.ggml.merges", GGUF_STRING, ARRAY_LEN(merges));
    for (unsigned i = 0; i < ARRAY_LEN(merges); i++)
        write_str(w, merges[i]);
}

static struct tokenizer *load(const uint8_t *file, size_t bytes)
{
    CLEANUP(closep) int fd = memfd_create("fuzz", MFD_CLOEXEC);
    assert(fd >= 0 && write(fd, file, bytes) == (ssize_t)bytes);
    char path[64];
    (void)snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
    CLEANUP(gguf_freep) struct gguf *g = NULL;
    struct why why = {0};
    struct tokenizer *t = NULL;
    if (gguf_open(path, &why, &g) < 0) return NULL;
    if (tokenizer_new(g, &why, &t) < 0) assert(!t && strncmp(why.text, path, strlen(path)) == 0);
    return t;
}

static size_t cut(const uint8_t *text, size_t bytes, struct tokenizer_span *spans)
{
    size_t n = 0;
    bool special = true;
    const uint8_t *end = text + bytes;
    for (const uint8_t *next; n < SPANS_MAX && text < end; text = next + 1) {
        next = memchr(text, 0x1e, (size_t)(end - text));
        if (!next || n == SPANS_MAX - 1) next = end;
        spans[n++] = (struct tokenizer_span){(const char *)text, (size_t)(next - text), special};
        special = !special;
    }
    return n;
}

static void check_round_trip(const struct tokenizer *t, const struct tokenizer_span *spans,
                             size_t n, const struct tokenizer_ids *ids)
{
    char *text = NULL, *back = NULL;
    size_t text_bytes = 0, back_bytes = 0;
    FILE *f = open_memstream(&text, &text_bytes);
    for (size_t i = 0; i < n; i++)
        (void)fwrite(spans[i].at, 1, spans[i].bytes, f);
    (void)fclose(f);
    f = open_memstream(&back, &back_bytes);
    for (size_t i = 0; i < ids->n; i++) {
        struct tokenizer_piece p = tokenizer_piece(t, ids->ids[i]);
        (void)fwrite(p.at, 1, p.bytes, f);
    }
    (void)fclose(f);
    if (utf8_sound((const uint8_t *)text, text_bytes) == text_bytes)
        assert(back_bytes == text_bytes && memcmp(back, text, text_bytes) == 0);
    free(text);
    free(back);
}

static void use(const struct tokenizer *t, const uint8_t *text, size_t bytes, bool whole_alphabet)
{
    struct tokenizer_span spans[SPANS_MAX];
    size_t n = cut(text, bytes, spans);
    for (int off = 0; off < 2; off++) {
        for (size_t i = 0; off && i < n; i++)
            spans[i].parse_special = false;
        struct tokenizer_ids ids = {0}, same = {0};
        int r =
            tokenizer_encode(t, spans, n, TOKENIZER_ADD_BOS | TOKENIZER_ADD_EOS, SIZE_MAX, &ids);
        assert(r == 0);
        r = tokenizer_encode(t, spans, n, 0, ids.n, &same);
        assert(r == 0 && same.n <= ids.n);
        for (size_t i = 0; i < same.n; i++) {
            assert(same.ids[i] < tokenizer_n_vocab(t));
            assert(!off || !tokenizer_is_control(t, same.ids[i]));
        }
        if (whole_alphabet) check_round_trip(t, spans, n, &same);
        free(ids.ids);
        free(same.ids);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    static struct tokenizer *tiny[ARRAY_LEN(pres)]; /* kept: making them costs more than an input */
    for (size_t i = 0; i < ARRAY_LEN(pres) && !tiny[i]; i++) {
        CLEANUP(gguf_write_fini) struct gguf_write w = {0};
        write_vocabulary(&w, pres[i]);
        tiny[i] = load(w.at, w.bytes);
        assert(tiny[i]);
    }
    if (bytes == 0) return 0;
    if (data[0] != 'G') {
        use(tiny[data[0] % ARRAY_LEN(pres)], data + 1, bytes - 1, true);
        return 0;
    }
    static const char sample[] = "<s>The 12 \x1e the  <|im_end|>\n\x1e </s>\xff";
    CLEANUP(tokenizer_freep) struct tokenizer *t = load(data, bytes);
    if (t) use(t, (const uint8_t *)sample, sizeof(sample) - 1, false);
    return 0;
}
