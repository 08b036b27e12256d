/* SPDX-License-Identifier: MIT */
/*
 * The tokeniser: makes its tables from a GGUF file, and turns spans of text into ids. The text of
 * all spans is one; special tokens are cut out of it first (control tokens only where a span allows
 * them), and what is left between them is repaired, split and merged. Called by the gateway; it
 * allocates per call and keeps nothing between calls.
 */
#include "gateway/tokenizer/tokenizer.h"

#include <errno.h>
#include <inttypes.h>
#include <string.h>

#include "gateway/tokenizer/bpe.h"
#include "gateway/tokenizer/memo.h"
#include "gateway/tokenizer/special.h"
#include "gateway/tokenizer/split.h"
#include "gateway/tokenizer/utf8.h"
#include "gateway/tokenizer/vocab.h"

enum {
    /* Bytes of one text: the longest context of any published model (10 million tokens) at 6 bytes
     * a token. Merging takes up to 72 bytes of memory for each, if the text is one piece. */
    TEXT_BYTES_MAX = 64 << 20,
    MEMO_FROM_BYTES = 4096, /* of a text: below, making the memo costs as much as it saves */
};

struct tokenizer {
    struct vocab vocab;
    struct special special;
    struct split *split;
    struct split_habits habits;
    bool add_bos, add_eos;
    uint32_t bos, eos; /* or TOKENIZER_NONE */
    uint32_t *eog;     /* ascending */
    size_t n_eog;
};

/* A token's id out of a key: -ENOENT leaves TOKENIZER_NONE. */
static int read_id(const struct tokenizer *t, const struct gguf *g, const char *key,
                   struct why *why, uint32_t *ret)
{
    uint64_t id = TOKENIZER_NONE;
    int r = gguf_u64(g, key, &id);
    if (r == -EPROTO || (r == 0 && id >= t->vocab.n_tokens)) {
        return why_set(why, -EPROTO, "%s: key '%s' is not the id of one of the %" PRIu32 " tokens",
                       gguf_path(g), key, t->vocab.n_tokens);
    }
    *ret = (uint32_t)id;
    return 0;
}

static int read_flag(const struct gguf *g, const char *key, struct why *why, bool *ret)
{
    int r = gguf_bool(g, key, ret);
    if (r == -EPROTO) return why_set(why, r, "%s: key '%s' is not a bool", gguf_path(g), key);
    return 0;
}

static int read_eog(struct tokenizer *t, const struct gguf *g, struct why *why)
{
    static const char *const keys[] = {"tokenizer.ggml.eos_token_id", "tokenizer.ggml.eot_token_id",
                                       "tokenizer.ggml.eom_token_id"};
    uint32_t named[ARRAY_LEN(keys)];
    for (size_t i = 0; i < ARRAY_LEN(keys); i++) {
        int r = read_id(t, g, keys[i], why, &named[i]);
        if (r < 0) return r;
    }
    t->eos = named[0];
    t->eog = malloc(t->vocab.n_tokens * sizeof(*t->eog));
    if (!t->eog) return why_set(why, -ENOMEM, "%s: no memory for the vocabulary", gguf_path(g));
    for (uint32_t id = 0; id < t->vocab.n_tokens; id++) {
        bool is_eog = vocab_is_end(&t->vocab, id);
        for (size_t i = 0; i < ARRAY_LEN(keys); i++)
            is_eog |= id == named[i];
        if (is_eog) t->eog[t->n_eog++] = id;
    }
    return 0;
}

static int read_bos(struct tokenizer *t, const struct gguf *g, struct why *why)
{
    t->add_bos = t->habits.add_bos;
    int r = read_id(t, g, "tokenizer.ggml.bos_token_id", why, &t->bos);
    if (r == 0) r = read_flag(g, "tokenizer.ggml.add_bos_token", why, &t->add_bos);
    if (r == 0) r = read_flag(g, "tokenizer.ggml.add_eos_token", why, &t->add_eos);
    if (r < 0) return r;
    if (t->add_eos && t->eos == TOKENIZER_NONE) {
        return why_set(why, -EPROTO,
                       "%s: key 'tokenizer.ggml.add_eos_token' is set, but there is no "
                       "'tokenizer.ggml.eos_token_id'",
                       gguf_path(g));
    }
    /* A pre-tokeniser's habit alone must not refuse a vocabulary without BOS. */
    if (t->bos == TOKENIZER_NONE) t->add_bos = false;
    return 0;
}

static int check_model(const struct gguf *g, struct why *why)
{
    static const char key[] = "tokenizer.ggml.model";
    struct gguf_str model = {0};
    int r = gguf_str(g, key, &model);
    if (r == 0 && model.bytes == 4 && memcmp(model.at, "gpt2", 4) == 0) return 0;
    if (r < 0) {
        return why_set(why, -EPROTO, "%s: key '%s' is %s", gguf_path(g), key,
                       r == -ENOENT ? "missing" : "not a string");
    }
    return why_set(why, -ENOTSUP,
                   "%s: key '%s': only byte-level BPE vocabularies ('gpt2') are supported",
                   gguf_path(g), key);
}

static int make_split(struct tokenizer *t, const struct gguf *g, struct why *why)
{
    static const char key[] = "tokenizer.ggml.pre";
    struct gguf_str pre = {"", 0};
    struct why reason = {0};
    int r = gguf_str(g, key, &pre);
    if (r == -EPROTO) return why_set(why, r, "%s: key '%s' is not a string", gguf_path(g), key);
    r = split_new(pre, &reason, &t->split);
    if (r < 0) return why_set(why, r, "%s: key '%s': %.300s", gguf_path(g), key, reason.text);
    t->habits = split_habits(t->split);
    return 0;
}

int tokenizer_new(const struct gguf *g, struct why *why, struct tokenizer **ret)
{
    CLEANUP(tokenizer_freep) struct tokenizer *t = xnew(struct tokenizer);
    int r = check_model(g, why);
    if (r == 0) r = make_split(t, g, why);
    if (r == 0) r = vocab_read(&t->vocab, g, why);
    if (r == 0) r = read_eog(t, g, why);
    if (r == 0) r = read_bos(t, g, why);
    if (r == 0) r = special_init(&t->special, &t->vocab, g, why);
    if (r < 0) return r;
    *ret = TAKE(t);
    return 0;
}

void tokenizer_free(struct tokenizer *t)
{
    if (!t) return;
    vocab_fini(&t->vocab);
    special_fini(&t->special);
    split_free(t->split);
    free(t->eog);
    free(t);
}

/* The working memory of one call. */
struct encoding {
    const struct tokenizer *t;
    struct bpe bpe;
    struct memo memo;
    uint32_t *ids;
    size_t room, max;
    size_t n; /* found; those beyond max are only counted */
    uint32_t first, last;
};

static void encoding_fini(struct encoding *e)
{
    bpe_fini(&e->bpe);
    free(e->memo.pieces);
    free(e->ids);
}

static int emit(struct encoding *e, uint32_t id)
{
    if (e->n == 0) e->first = id;
    e->last = id;
    if (e->n >= e->max) {
        e->n++;
        return 0;
    }
    if (e->n == e->room) {
        size_t room = min_u64(e->room * 2 + 256, e->max);
        uint32_t *ids = realloc(e->ids, room * sizeof(*ids));
        if (!ids) return -ENOMEM;
        e->ids = ids;
        e->room = room;
    }
    e->ids[e->n++] = id;
    return 0;
}

/* A symbol without a token is written by its bytes' tokens; a byte that has none vanishes. */
static int emit_symbol(struct encoding *e, uint32_t symbol)
{
    const struct vocab *v = &e->t->vocab;
    if (symbol < v->n_tokens) return emit(e, symbol);
    struct gguf_str s = vocab_symbol(v, symbol);
    int r = 0;
    for (size_t i = 0; i < s.bytes && r == 0; i++) {
        uint32_t byte = v->byte_symbol[(uint8_t)s.at[i]];
        if (byte < v->n_tokens) r = emit(e, byte);
    }
    return r;
}

static int emit_known(struct encoding *e, const struct memo_piece *p)
{
    int r = 0;
    for (uint32_t i = 0; i < p->n_symbols && r == 0; i++)
        r = emit_symbol(e, p->symbol[i]);
    return r;
}

static int encode_piece(void *arg, const uint8_t *at, size_t bytes)
{
    struct encoding *e = arg;
    const struct vocab *v = &e->t->vocab;
    if (e->t->habits.whole_first) {
        uint32_t whole = vocab_find(v, at, bytes);
        if (whole < v->n_tokens) return emit(e, whole);
    }
    bool hit = false;
    struct memo_piece *known = memo_place(&e->memo, at, bytes, &hit);
    if (hit) return emit_known(e, known);
    int r = bpe_merge(&e->bpe, v, at, bytes);
    uint32_t n = 0;
    for (uint32_t i = 0; r == 0 && i != NO_SYMBOL; i = e->bpe.parts[i].next) {
        uint32_t symbol = e->bpe.parts[i].symbol;
        if (known && n < MEMO_SYMBOLS) known->symbol[n] = symbol;
        n++;
        r = emit_symbol(e, symbol);
    }
    if (known && r == 0 && n <= MEMO_SYMBOLS) {
        known->n_symbols = (uint8_t)n;
        known->n_bytes = (uint8_t)bytes;
    }
    return r;
}

/* Text without special tokens. */
static int encode_plain(struct encoding *e, const char *at, size_t bytes)
{
    const uint8_t *text = (const uint8_t *)at;
    if (bytes == 0) return 0;
    size_t sound = utf8_sound(text, bytes);
    if (sound == bytes) return split_text(e->t->split, text, bytes, encode_piece, e);
    CLEANUP(freep) uint8_t *repaired = malloc(sound + 3 * (bytes - sound) + MEMO_BYTES);
    if (!repaired) return -ENOMEM;
    memcpy(repaired, text, sound);
    size_t n = sound + utf8_repair(text + sound, bytes - sound, repaired + sound);
    return split_text(e->t->split, repaired, n, encode_piece, e);
}

/* All spans' text and, for each place, where the stretch ends in which control tokens are read. */
struct joined {
    char *text;
    size_t bytes;
    const struct tokenizer_span *spans;
    size_t n_spans;
    size_t next_span, stretch_end; /* of the place last asked for */
    bool parse_special;            /* in that stretch */
};

static void joined_fini(struct joined *j) { free(j->text); }

/* Bytes from place on within which a control token may lie. Places are asked for in order. */
static size_t control_bytes(struct joined *j, size_t place)
{
    while (place >= j->stretch_end && j->next_span < j->n_spans) {
        j->parse_special = j->spans[j->next_span].parse_special;
        while (j->next_span < j->n_spans &&
               (j->spans[j->next_span].parse_special == j->parse_special ||
                j->spans[j->next_span].bytes == 0))
            j->stretch_end += j->spans[j->next_span++].bytes;
    }
    return j->parse_special ? j->stretch_end - place : 0;
}

static int encode_joined(struct encoding *e, struct joined *j)
{
    size_t plain = 0;
    for (size_t at = 0; at < j->bytes;) {
        if (!special_begins(&e->t->special, (uint8_t)j->text[at])) {
            at++;
            continue;
        }
        uint32_t id = special_match(&e->t->special, &e->t->vocab, j->text + at, j->bytes - at,
                                    control_bytes(j, at));
        if (id == NO_SYMBOL) {
            at++;
            continue;
        }
        int r = encode_plain(e, j->text + plain, at - plain);
        if (r == 0) r = emit(e, id);
        if (r < 0) return r;
        at += vocab_symbol(&e->t->vocab, id).bytes;
        plain = at;
    }
    return encode_plain(e, j->text + plain, j->bytes - plain);
}

static int join(const struct tokenizer_span *spans, size_t n_spans, struct joined *ret)
{
    size_t bytes = 0;
    for (size_t i = 0; i < n_spans; i++) {
        if (spans[i].bytes > TEXT_BYTES_MAX - bytes) return -E2BIG;
        bytes += spans[i].bytes;
    }
    char *text = malloc(bytes + MEMO_BYTES); /* see memo_place */
    if (!text) return -ENOMEM;
    *ret = (struct joined){.text = text, .spans = spans, .n_spans = n_spans};
    for (size_t i = 0; i < n_spans; i++) {
        if (spans[i].bytes) memcpy(text + ret->bytes, spans[i].at, spans[i].bytes);
        ret->bytes += spans[i].bytes;
    }
    return 0;
}

/* BOS stands first, but whether the text brings it is known only behind the text: it is put in
 * front when all is there. */
static int put_bos(struct encoding *e)
{
    uint32_t bos = e->t->bos;
    if (e->n && e->first == bos) return 0;
    int r = emit(e, bos);
    if (r < 0 || e->n > e->max) return r;
    memmove(e->ids + 1, e->ids, (e->n - 1) * sizeof(*e->ids));
    e->ids[0] = bos;
    return 0;
}

static int put_ends(struct encoding *e, unsigned add)
{
    const struct tokenizer *t = e->t;
    int r = 0;
    if (add & TOKENIZER_ADD_EOS && t->add_eos && !(e->n && e->last == t->eos)) r = emit(e, t->eos);
    if (r == 0 && add & TOKENIZER_ADD_BOS && t->add_bos) r = put_bos(e);
    return r;
}

int tokenizer_encode(const struct tokenizer *t, const struct tokenizer_span *spans, size_t n_spans,
                     unsigned add, size_t max_tokens, struct tokenizer_ids *ret)
{
    CLEANUP(joined_fini) struct joined joined = {0};
    int r = join(spans, n_spans, &joined);
    if (r == -E2BIG) *ret = (struct tokenizer_ids){0};
    if (r < 0) return r;
    CLEANUP(encoding_fini) struct encoding e = {.t = t, .max = max_tokens};
    if (joined.bytes >= MEMO_FROM_BYTES) {
        e.memo.pieces = calloc(MEMO_PIECES, sizeof(*e.memo.pieces));
        if (!e.memo.pieces) return -ENOMEM;
    }
    r = encode_joined(&e, &joined);
    if (r == 0) r = put_ends(&e, add);
    if (r < 0) return r;
    if (e.n > max_tokens) {
        *ret = (struct tokenizer_ids){.n = e.n};
        return -E2BIG;
    }
    *ret = (struct tokenizer_ids){TAKE(e.ids), e.n};
    return 0;
}

struct tokenizer_piece tokenizer_piece(const struct tokenizer *t, uint32_t id)
{
    if (id >= t->vocab.n_tokens) return (struct tokenizer_piece){"", 0};
    struct gguf_str s = vocab_symbol(&t->vocab, id);
    return (struct tokenizer_piece){s.at, s.bytes};
}

bool tokenizer_is_control(const struct tokenizer *t, uint32_t id)
{
    return vocab_is_control(&t->vocab, id);
}

bool tokenizer_is_eog(const struct tokenizer *t, uint32_t id)
{
    for (size_t i = 0; i < t->n_eog; i++) {
        if (t->eog[i] == id) return true;
    }
    return false;
}

const uint32_t *tokenizer_eog(const struct tokenizer *t, size_t *ret_n)
{
    *ret_n = t->n_eog;
    return t->eog;
}

uint32_t tokenizer_n_vocab(const struct tokenizer *t) { return t->vocab.n_tokens; }
uint32_t tokenizer_bos(const struct tokenizer *t) { return t->bos; }
uint32_t tokenizer_eos(const struct tokenizer *t) { return t->eos; }
