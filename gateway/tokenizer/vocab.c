/* SPDX-License-Identifier: MIT */
/*
 * Reads tokens and merges out of a GGUF file into tables for merging. GPT-2's vocabularies write
 * each byte as a printable character ("byte-level"); here everything is turned back into bytes
 * once, so that nobody else knows of that alphabet. Sizes are bounded by the file's, which gguf.c
 * has checked.
 */
#include "gateway/tokenizer/vocab.h"

#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <string.h>
#include <sys/random.h>

/* Texts that end a turn or a document in published vocabularies; many files' keys name only one of
 * the two. Some files call such a token normal or user-defined: here it is a control token, or a
 * user's text could make one. */
static const char *const end_texts[] = {
    "<|im_end|>",      "<|endoftext|>",
    "<|eot_id|>",      "<|eom_id|>",
    "<|end_of_text|>", "<|end|>",
    "<end_of_turn>",   "<end_of_utterance>",
    "<EOT>",           "_<EOT>",
    "[EOT]",           "[EOS]",
    "<eos>",           "<｜end▁of▁sentence｜>",
};
/* These end something only where the file itself calls them control tokens: vocabularies of code
 * have them as ordinary text too. */
static const char *const end_control_texts[] = {"</s>"};

static bool is_one_of(struct gguf_str s, const char *const *texts, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        if (strlen(texts[i]) == s.bytes && memcmp(texts[i], s.at, s.bytes) == 0) return true;
    }
    return false;
}

static uint64_t mix(uint64_t h)
{
    h ^= h >> 32;
    h *= 0x9e3779b97f4a7c15; /* 2^64 / golden ratio: spreads every bit upwards */
    return h ^ h >> 29;
}

static uint64_t hash_bytes(uint64_t seed, const uint8_t *at, size_t bytes)
{
    uint64_t h = seed ^ bytes;
    for (; bytes >= 8; at += 8, bytes -= 8) {
        uint64_t word;
        memcpy(&word, at, 8);
        h = mix(h ^ word) + seed;
    }
    uint64_t rest = 0;
    memcpy(&rest, at, bytes);
    return mix(mix(h ^ rest) + seed);
}

struct gguf_str vocab_symbol(const struct vocab *v, uint32_t symbol)
{
    assert(symbol < v->n_symbols);
    size_t from = symbol ? v->end[symbol - 1] : 0;
    return (struct gguf_str){(const char *)v->bytes + from, v->end[symbol] - from};
}

bool vocab_is_control(const struct vocab *v, uint32_t token)
{
    return token < v->n_tokens &&
           (v->types[token] == TOKEN_CONTROL || v->types[token] == TOKEN_UNKNOWN);
}

bool vocab_is_end(const struct vocab *v, uint32_t token)
{
    if (!vocab_is_control(v, token)) return false;
    struct gguf_str s = vocab_symbol(v, token);
    return is_one_of(s, end_texts, ARRAY_LEN(end_texts)) ||
           is_one_of(s, end_control_texts, ARRAY_LEN(end_control_texts));
}

/* The slot that holds the symbol of these bytes, or the empty one where it belongs. */
static uint32_t *slot_of(const struct vocab *v, const uint8_t *at, size_t bytes)
{
    uint64_t i = hash_bytes(v->seed, at, bytes) & (v->n_slots - 1);
    for (;; i = (i + 1) & (v->n_slots - 1)) {
        if (v->slots[i] == NO_SYMBOL) return &v->slots[i];
        struct gguf_str s = vocab_symbol(v, v->slots[i]);
        if (s.bytes == bytes && memcmp(s.at, at, bytes) == 0) return &v->slots[i];
    }
}

uint32_t vocab_find(const struct vocab *v, const void *at, size_t bytes)
{
    return bytes ? *slot_of(v, at, bytes) : NO_SYMBOL;
}

static int slots_make(struct vocab *v, uint64_t n)
{
    uint32_t *slots = malloc(n * sizeof(*slots));
    if (!slots) return -ENOMEM;
    memset(slots, 0xff, n * sizeof(*slots)); /* NO_SYMBOL */
    CLEANUP(freep) uint32_t *old = v->slots;
    uint64_t n_old = v->n_slots;
    v->slots = slots;
    v->n_slots = n;
    for (uint64_t i = 0; i < n_old; i++) {
        if (old[i] == NO_SYMBOL) continue;
        struct gguf_str s = vocab_symbol(v, old[i]);
        *slot_of(v, (const uint8_t *)s.at, s.bytes) = old[i];
    }
    return 0;
}

/* Makes a symbol findable; of two with the same bytes the first stays. */
static int slots_add(struct vocab *v, uint32_t symbol)
{
    if (v->n_used >= v->n_slots / 2) {
        int r = slots_make(v, v->n_slots * 2);
        if (r < 0) return r;
    }
    struct gguf_str s = vocab_symbol(v, symbol);
    uint32_t *slot = slot_of(v, (const uint8_t *)s.at, s.bytes);
    if (*slot != NO_SYMBOL) return 0;
    *slot = symbol;
    v->n_used++;
    return 0;
}

static int symbol_add(struct vocab *v, const void *at, size_t bytes)
{
    size_t from = v->n_symbols ? v->end[v->n_symbols - 1] : 0;
    if (v->n_symbols == v->end_room) {
        size_t room = v->end_room * 2 + 1024;
        size_t *end = realloc(v->end, room * sizeof(*end));
        if (!end) return -ENOMEM;
        v->end = end;
        v->end_room = room;
    }
    if (bytes > v->bytes_room - from) {
        size_t room = (from + bytes) * 2 + 4096;
        uint8_t *grown = realloc(v->bytes, room);
        if (!grown) return -ENOMEM;
        v->bytes = grown;
        v->bytes_room = room;
    }
    if (bytes) memcpy(v->bytes + from, at, bytes);
    v->end[v->n_symbols++] = from + bytes;
    return 0;
}

/* The symbol of these bytes, made if it isn't there. */
static int intern(struct vocab *v, const void *at, size_t bytes, uint32_t *ret)
{
    uint32_t found = vocab_find(v, at, bytes);
    if (found == NO_SYMBOL) {
        found = v->n_symbols;
        int r = symbol_add(v, at, bytes);
        if (r == 0) r = slots_add(v, found);
        if (r < 0) return r;
    }
    *ret = found;
    return 0;
}

/* The byte that a character of GPT-2's alphabet stands for, or -1: 33-126, 161-172 and 174-255 are
 * themselves, U+0100.. are the other 68 in order. */
static int alphabet_byte(uint32_t c)
{
    if ((c >= 33 && c <= 126) || (c >= 161 && c <= 172) || (c >= 174 && c <= 255)) return (int)c;
    if (c < 0x100 || c >= 0x100 + 68) return -1;
    c -= 0x100;
    if (c < 33) return (int)c;
    return c < 33 + 34 ? (int)(127 + c - 33) : 173;
}

/* Turns alphabet characters into bytes; false when there is any other character. All of the
 * alphabet are of one or two bytes in UTF-8. ret has room for s.bytes. */
static bool alphabet_decode(struct gguf_str s, uint8_t *ret, size_t *ret_bytes)
{
    size_t n = 0;
    for (size_t i = 0; i < s.bytes;) {
        uint8_t a = (uint8_t)s.at[i++];
        uint32_t c = a;
        if (a >= 0x80) {
            if ((a & 0xe0) != 0xc0 || i == s.bytes) return false;
            uint8_t b = (uint8_t)s.at[i++];
            if ((b & 0xc0) != 0x80) return false;
            c = (uint32_t)(a & 0x1f) << 6 | (b & 0x3f);
        }
        int byte = alphabet_byte(c);
        if (byte < 0) return false;
        ret[n++] = (uint8_t)byte;
    }
    *ret_bytes = n;
    return true;
}

/* Types that are written literally and that only special.c finds: merging must never make a control
 * token out of a user's text, and a user-defined one is found before merging begins. */
static bool is_literal(uint8_t type)
{
    return type == TOKEN_CONTROL || type == TOKEN_UNKNOWN || type == TOKEN_USER_DEFINED;
}

static int read_types(struct vocab *v, const struct gguf *g, struct why *why)
{
    static const char key[] = "tokenizer.ggml.token_type";
    struct gguf_array a = {0};
    int r = gguf_array(g, key, GGUF_I32, &a);
    if (r == -EPROTO) r = gguf_array(g, key, GGUF_U32, &a);
    if (r == -EPROTO) {
        return why_set(why, r, "%s: key '%s' is not an array of 32-bit integers", gguf_path(g),
                       key);
    }
    if (r == 0 && a.n != v->n_tokens) {
        return why_set(why, -EPROTO, "%s: key '%s' has %" PRIu64 " entries for %" PRIu32 " tokens",
                       gguf_path(g), key, a.n, v->n_tokens);
    }
    v->types = malloc(v->n_tokens ? v->n_tokens : 1);
    if (!v->types) return -ENOMEM;
    for (uint32_t i = 0; i < v->n_tokens; i++) {
        int32_t type = r == 0 ? gguf_array_i32(&a, i) : TOKEN_NORMAL;
        v->types[i] = type >= TOKEN_NORMAL && type <= TOKEN_BYTE ? (uint8_t)type : TOKEN_NORMAL;
    }
    return 0;
}

/* A token's symbol: its bytes when its text is of the alphabet, else the text itself, which merging
 * cannot meet. */
static int read_token(struct vocab *v, uint32_t id, struct gguf_str text)
{
    CLEANUP(freep) uint8_t *bytes = malloc(text.bytes ? text.bytes : 1);
    if (!bytes) return -ENOMEM;
    size_t n = 0;
    if (is_one_of(text, end_texts, ARRAY_LEN(end_texts))) v->types[id] = TOKEN_CONTROL;
    if (is_literal(v->types[id]) || !alphabet_decode(text, bytes, &n))
        return symbol_add(v, text.at, text.bytes);
    int r = symbol_add(v, bytes, n);
    return r < 0 || n == 0 ? r : slots_add(v, id);
}

static int read_tokens(struct vocab *v, const struct gguf *g, struct why *why)
{
    static const char key[] = "tokenizer.ggml.tokens";
    struct gguf_array a = {0};
    int r = gguf_array(g, key, GGUF_STRING, &a);
    if (r < 0) {
        return why_set(why, -EPROTO, "%s: key '%s' is %s", gguf_path(g), key,
                       r == -ENOENT ? "missing" : "not an array of strings");
    }
    if (a.n == 0 || a.n > VOCAB_TOKENS_MAX) {
        return why_set(why, -EPROTO, "%s: key '%s' has %" PRIu64 " tokens; 1 to %d are allowed",
                       gguf_path(g), key, a.n, VOCAB_TOKENS_MAX);
    }
    v->n_tokens = (uint32_t)a.n;
    r = read_types(v, g, why);
    for (uint32_t i = 0; i < v->n_tokens && r == 0; i++)
        r = read_token(v, i, gguf_array_str(&a, i));
    return r;
}

static int add_bytes(struct vocab *v)
{
    int r = 0;
    for (unsigned i = 0; i < 256 && r == 0; i++) {
        uint8_t byte = (uint8_t)i;
        r = intern(v, &byte, 1, &v->byte_symbol[i]);
    }
    return r;
}

static struct vocab_merge *merge_slot(const struct vocab *v, uint32_t left, uint32_t right)
{
    uint64_t h = mix(mix(v->seed ^ left) + right);
    uint64_t i = mix(h) & (v->n_merge_slots - 1);
    for (;; i = (i + 1) & (v->n_merge_slots - 1)) {
        struct vocab_merge *m = &v->merges[i];
        if (m->left == NO_SYMBOL || (m->left == left && m->right == right)) return m;
    }
}

const struct vocab_merge *vocab_merge(const struct vocab *v, uint32_t left, uint32_t right)
{
    const struct vocab_merge *m = merge_slot(v, left, right);
    return m->left == NO_SYMBOL ? NULL : m;
}

/* One line "left right" of the merges. Text out of the alphabet is passed over: symbols begin as
 * bytes, so such a merge can never apply. Of two equal lines the first counts. */
static int read_merge(struct vocab *v, struct gguf_str text, uint32_t rank)
{
    const char *space = text.bytes > 1 ? memchr(text.at + 1, ' ', text.bytes - 1) : NULL;
    if (!space) return 0;
    size_t at = (size_t)(space - text.at), n_left = 0, n_right = 0;
    CLEANUP(freep) uint8_t *bytes = malloc(text.bytes);
    if (!bytes) return -ENOMEM;
    struct gguf_str left = {text.at, at}, right = {space + 1, text.bytes - at - 1};
    if (!alphabet_decode(left, bytes, &n_left)) return 0;
    if (!alphabet_decode(right, bytes + n_left, &n_right) || n_right == 0) return 0;
    struct vocab_merge merge = {.rank = rank};
    int r = intern(v, bytes, n_left, &merge.left);
    if (r == 0) r = intern(v, bytes + n_left, n_right, &merge.right);
    if (r == 0) r = intern(v, bytes, n_left + n_right, &merge.result);
    if (r < 0) return r;
    struct vocab_merge *slot = merge_slot(v, merge.left, merge.right);
    if (slot->left == NO_SYMBOL) *slot = merge;
    return 0;
}

static int read_merges(struct vocab *v, const struct gguf *g, struct why *why)
{
    static const char key[] = "tokenizer.ggml.merges";
    struct gguf_array a = {0};
    int r = gguf_array(g, key, GGUF_STRING, &a);
    if (r < 0) {
        return why_set(why, -EPROTO, "%s: key '%s' is %s", gguf_path(g), key,
                       r == -ENOENT ? "missing" : "not an array of strings");
    }
    if (a.n > VOCAB_MERGES_MAX) {
        return why_set(why, -EPROTO, "%s: key '%s' has %" PRIu64 " entries; %d are the most",
                       gguf_path(g), key, a.n, VOCAB_MERGES_MAX);
    }
    for (v->n_merge_slots = 16; v->n_merge_slots < 2 * a.n;)
        v->n_merge_slots *= 2;
    v->merges = malloc(v->n_merge_slots * sizeof(*v->merges));
    if (!v->merges) return -ENOMEM;
    memset(v->merges, 0xff, v->n_merge_slots * sizeof(*v->merges)); /* left is NO_SYMBOL */
    for (uint64_t i = 0; i < a.n && r == 0; i++)
        r = read_merge(v, gguf_array_str(&a, i), (uint32_t)i);
    return r;
}

int vocab_read(struct vocab *v, const struct gguf *g, struct why *why)
{
    why_set(why, 0, "%s: no memory for the vocabulary", gguf_path(g));
    if (getrandom(&v->seed, sizeof(v->seed), 0) < 0) v->seed = (uintptr_t)v;
    int r = slots_make(v, 1 << 16);
    if (r == 0) r = read_tokens(v, g, why);
    if (r == 0) r = add_bytes(v);
    if (r == 0) r = read_merges(v, g, why);
    return r;
}

void vocab_fini(struct vocab *v)
{
    free(v->types);
    free(v->bytes);
    free(v->end);
    free(v->slots);
    free(v->merges);
}
