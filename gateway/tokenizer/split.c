/* SPDX-License-Identifier: MIT */
/*
 * The pre-tokenisers' table and the loop over its expressions. Each expression of a row cuts every
 * piece that the one before has left; what none of its alternatives matches stays a piece. Called
 * by tokenizer.c. A new pre-tokeniser is a row here.
 *
 * Expressions are those of the vocabularies' published tokenizer.json files as llama.cpp
 * (llama-vocab.cpp) runs them. White space is written out: PCRE2's \s takes U+180E too, which no
 * other reader does, and the contractions' letters are written out because caseless matching would
 * take U+017F for an s.
 */
#include "gateway/tokenizer/split.h"

#include <assert.h>
#include <errno.h>
#include <string.h>

#include "gateway/tokenizer/scan.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#define SPACE                                                                                      \
    "\\t-\\r \\x{85}\\x{a0}\\x{1680}\\x{2000}-\\x{200a}\\x{2028}\\x{2029}\\x{202f}\\x{205f}"       \
    "\\x{3000}"
#define GPT2                                                                                       \
    "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^" SPACE "\\p{L}\\p{N}]+|[" SPACE              \
    "]+(?![^" SPACE "])"
#define LLAMA3(digits)                                                                             \
    "'(?:[sStTmMdD]|[rR][eE]|[vV][eE]|[lL][lL])|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|" digits             \
    "| ?[^" SPACE "\\p{L}\\p{N}]+[\\r\\n]*|[" SPACE "]*[\\r\\n]+|[" SPACE "]+(?![^" SPACE          \
    "])|[" SPACE "]+"

enum { PASSES_MAX = 4 };

#define DIGITS_THEN_GPT2                                                                           \
    {                                                                                              \
        {"\\p{N}", NULL, scan_digit}, { GPT2, scan_gpt2, NULL }                                    \
    }
#define ONLY_GPT2                                                                                  \
    {                                                                                              \
        {                                                                                          \
            GPT2, scan_gpt2, NULL                                                                  \
        }                                                                                          \
    }
#define DEFAULT                                                                                    \
    {                                                                                              \
        {"[\\p{P}$+<=>^~|]+"}, {GPT2, scan_gpt2, NULL}, {"\\p{N}+"}, { "[0-9][0-9][0-9]" }         \
    }

struct pass {
    const char *expression;
    scan_piece *piece;  /* what it matches in ASCII; NULL: nobody but PCRE2 knows */
    scan_piece *before; /* where in ASCII it does not match yet */
};

static const struct row {
    const char *name;
    struct pass passes[PASSES_MAX];
    struct split_habits habits;
} rows[] = {
    {"smollm",           DIGITS_THEN_GPT2,                              {0}},
    {"starcoder",        DIGITS_THEN_GPT2,                              {0}},
    {"refact",           DIGITS_THEN_GPT2,                              {0}},
    {"command-r",        DIGITS_THEN_GPT2,                              {0}},
    {"gpt-2",            ONLY_GPT2,                                     {0}},
    {"mpt",              ONLY_GPT2,                                     {0}},
    {"llama-bpe",
     {{LLAMA3("\\p{N}{1,3}"), scan_cl100k, NULL}},
     {.whole_first = true, .add_bos = true}                                },
    {"qwen2",            {{LLAMA3("\\p{N}"), scan_cl100k_digit, NULL}}, {0}},
    {"deepseek-r1-qwen", {{LLAMA3("\\p{N}"), scan_cl100k_digit, NULL}}, {0}},
    {"default",          DEFAULT,                                       {0}},
    {"",                 DEFAULT,                                       {0}},
};

struct split {
    const struct row *row;
    size_t n_passes;
    pcre2_code *codes[PASSES_MAX];
};

/* One text's splitting. */
struct job {
    const struct split *split;
    pcre2_match_context *context;
    pcre2_match_data *match[PASSES_MAX]; /* a pass's, while the next one works on its piece */
    split_piece *piece;
    void *arg;
};

static void context_freep(pcre2_match_context **c) { pcre2_match_context_free(*c); }

static const struct row *find_row(struct gguf_str name)
{
    for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
        if (strlen(rows[i].name) == name.bytes && memcmp(rows[i].name, name.at, name.bytes) == 0)
            return &rows[i];
    }
    return NULL;
}

/* Names every row, so that whoever reads the refusal knows what would have worked. */
static int refuse(struct gguf_str name, struct why *why)
{
    char shown[64], known[256] = "";
    size_t n_shown = name.bytes < sizeof(shown) ? name.bytes : sizeof(shown) - 1;
    for (size_t i = 0; i < n_shown; i++)
        shown[i] = name.at[i] >= ' ' && name.at[i] <= '~' ? name.at[i] : '?';
    shown[n_shown] = '\0';
    for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
        size_t n = strlen(known);
        if (rows[i].name[0])
            (void)snprintf(known + n, sizeof(known) - n, "%s%s", n ? ", " : "", rows[i].name);
    }
    return why_set(why, -ENOTSUP, "pre-tokeniser '%s' is not supported (these are: %s)", shown,
                   known);
}

int split_new(struct gguf_str name, struct why *why, struct split **ret)
{
    const struct row *row = find_row(name);
    if (!row) return refuse(name, why);
    CLEANUP(split_freep) struct split *s = xnew(struct split);
    s->row = row;
    for (; s->n_passes < PASSES_MAX && row->passes[s->n_passes].expression; s->n_passes++) {
        int error;
        PCRE2_SIZE off;
        pcre2_code *code =
            pcre2_compile((PCRE2_SPTR)row->passes[s->n_passes].expression, PCRE2_ZERO_TERMINATED,
                          PCRE2_UTF | PCRE2_UCP, &error, &off, NULL);
        if (!code) {
            assert(error == PCRE2_ERROR_HEAP_FAILED); /* the table is ours */
            return why_set(why, -ENOMEM, "no memory for the pre-tokeniser");
        }
        s->codes[s->n_passes] = code;
        /* A refusal (no executable memory) leaves PCRE2's interpreter, which is slower. */
        (void)pcre2_jit_compile(code, PCRE2_JIT_COMPLETE);
    }
    *ret = TAKE(s);
    return 0;
}

void split_free(struct split *s)
{
    if (!s) return;
    for (size_t i = 0; i < s->n_passes; i++)
        pcre2_code_free(s->codes[i]);
    free(s);
}

struct split_habits split_habits(const struct split *s) { return s->row->habits; }

/* What a scan knows; false: PCRE2 must be asked, from *from on. */
static bool scan(const struct pass *pass, const uint8_t *text, size_t bytes, size_t *from,
                 size_t *begin, size_t *end)
{
    if (pass->piece) {
        *begin = *from;
        *end = pass->piece(text, bytes, *from);
        return *end > 0;
    }
    if (!pass->before) return false;
    *from = *begin = pass->before(text, bytes, *from);
    *end = min_u64(*begin + 1, bytes);
    return *begin == bytes || text[*begin] < 0x80;
}

/* Where the next match at or after from begins and ends; from = bytes when there is none. */
static int next_match(struct job *job, size_t pass, const uint8_t *text, size_t bytes, size_t from,
                      size_t *begin, size_t *end)
{
    const pcre2_code *code = job->split->codes[pass];
    if (scan(&job->split->row->passes[pass], text, bytes, &from, begin, end)) return 0;
    pcre2_match_data *match = job->match[pass];
    /* The text has been made UTF-8 before; PCRE2 would check all of it again at each match. */
    int r = pcre2_match(code, text, bytes, from, PCRE2_NO_UTF_CHECK, match, job->context);
    if (r == PCRE2_ERROR_JIT_STACKLIMIT) {
        r = pcre2_match(code, text, bytes, from, PCRE2_NO_UTF_CHECK | PCRE2_NO_JIT, match,
                        job->context);
    }
    if (r == PCRE2_ERROR_NOMATCH) {
        *begin = *end = bytes;
        return 0;
    }
    if (r < 0) return r == PCRE2_ERROR_NOMEMORY || r == PCRE2_ERROR_HEAPLIMIT ? -ENOMEM : -EIO;
    *begin = pcre2_get_ovector_pointer(match)[0];
    *end = pcre2_get_ovector_pointer(match)[1];
    assert(*begin >= from && *end > *begin); /* no expression matches nothing */
    return 0;
}

/* Cuts a piece by the expressions from pass on; the depth of the recursion is their number. */
static int cut(struct job *job, size_t pass, const uint8_t *text, size_t bytes)
{
    if (bytes == 0) return 0;
    if (pass == job->split->n_passes) return job->piece(job->arg, text, bytes);
    for (size_t from = 0, begin = 0, end = 0; from < bytes; from = end) {
        int r = next_match(job, pass, text, bytes, from, &begin, &end);
        if (r == 0) r = cut(job, pass + 1, text + from, begin - from);
        if (r == 0) r = cut(job, pass + 1, text + begin, end - begin);
        if (r < 0) return r;
    }
    return 0;
}

int split_text(const struct split *s, const uint8_t *text, size_t bytes, split_piece *piece,
               void *arg)
{
    CLEANUP(context_freep) pcre2_match_context *context = pcre2_match_context_create(NULL);
    if (!context) return -ENOMEM;
    /* The expressions take time linear in the text, but as many steps as it has bytes: the default
     * limit of ten million would refuse long runs of spaces. */
    (void)pcre2_set_match_limit(context, UINT32_MAX);
    struct job job = {.split = s, .context = context, .piece = piece, .arg = arg};
    int r = 0;
    for (size_t i = 0; i < s->n_passes && r == 0; i++) {
        job.match[i] = pcre2_match_data_create(1, NULL);
        if (!job.match[i]) r = -ENOMEM;
    }
    if (r == 0) r = cut(&job, 0, text, bytes);
    for (size_t i = 0; i < s->n_passes; i++)
        pcre2_match_data_free(job.match[i]);
    return r;
}
