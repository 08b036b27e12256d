/* SPDX-License-Identifier: MIT */
/*
 * The tokeniser's rules on vocabularies made here, small enough to work the expected ids out by
 * hand: token n < 256 is byte n, the others are listed in each test. The rules are those of the
 * GGUF metadata and of byte-pair encoding (lowest rank first, leftmost of equals).
 */
#include <check.h>
#include <errno.h>
#include <string.h>

#include "gateway/tokenizer/memo.h"
#include "gateway/tokenizer/tokenizer.h"
#include "gateway/tokenizer/utf8.h"
#include "tests/suite.h"
#include "tests/unit/gguf_write.h"

struct extra {
    const char *text;
    uint32_t type; /* 1 normal, 2 unknown, 3 control, 4 user-defined */
};

struct tiny {
    const char *model, *pre; /* NULL: no such key */
    struct extra extra[8];   /* tokens from 256 on */
    const char *merges[8];
    int missing_byte;         /* whose token is called otherwise; 0: none */
    const char *ids[4];       /* keys .._token_id .. */
    uint32_t id_values[4];    /* .. and what they hold */
    const char *flags[3];     /* keys of bools that are true */
    const char *flags_off[2]; /* .. false */
    bool no_merges_key, types_short;
};

static void write_tokens(struct gguf_write *w, const struct tiny *v, unsigned n_extra)
{
    write_key_array(w, "tokenizer.ggml.tokens", GGUF_STRING, 256 + n_extra);
    for (unsigned i = 0; i < 256; i++) {
        if (v->missing_byte && v->missing_byte == (int)i)
            write_str(w, "\u20ac");
        else
            write_byte_token(w, i);
    }
    for (unsigned i = 0; i < n_extra; i++)
        write_str(w, v->extra[i].text);
    unsigned n_types = v->types_short ? 255 : 256 + n_extra;
    write_key_array(w, "tokenizer.ggml.token_type", GGUF_I32, n_types);
    for (unsigned i = 0; i < n_types; i++)
        write_u32(w, i < 256 ? 1 : v->extra[i - 256].type);
}

static void write_tiny(struct gguf_write *w, const struct tiny *v)
{
    unsigned n_extra = 0, n_merges = 0, n_ids = 0, n_flags = 0, n_off = 0;
    while (n_extra < 8 && v->extra[n_extra].text)
        n_extra++;
    while (n_merges < 8 && v->merges[n_merges])
        n_merges++;
    while (n_ids < 4 && v->ids[n_ids])
        n_ids++;
    while (n_flags < 3 && v->flags[n_flags])
        n_flags++;
    while (n_off < 2 && v->flags_off[n_off])
        n_off++;
    write_header(w, 3, 0, 2 + !!v->model + !!v->pre + !v->no_merges_key + n_ids + n_flags + n_off);
    if (v->model) write_key_str(w, "tokenizer.ggml.model", v->model);
    if (v->pre) write_key_str(w, "tokenizer.ggml.pre", v->pre);
    write_tokens(w, v, n_extra);
    if (!v->no_merges_key) write_key_array(w, "tokenizer.ggml.merges", GGUF_STRING, n_merges);
    for (unsigned i = 0; i < n_merges; i++)
        write_str(w, v->merges[i]);
    for (unsigned i = 0; i < n_ids; i++)
        write_key_u32(w, v->ids[i], v->id_values[i]);
    for (unsigned i = 0; i < n_flags; i++)
        write_key(w, v->flags[i], GGUF_BOOL), write_u8(w, 1);
    for (unsigned i = 0; i < n_off; i++)
        write_key(w, v->flags_off[i], GGUF_BOOL), write_u8(w, 0);
}

static int make(const struct tiny *v, struct why *why, struct tokenizer **ret)
{
    CLEANUP(gguf_write_fini) struct gguf_write w = {0};
    CLEANUP(gguf_freep) struct gguf *g = NULL;
    write_tiny(&w, v);
    CLEANUP(freep) char *path = gguf_write_file(&w);
    int r = gguf_open(path, why, &g);
    (void)unlink(path);
    ck_assert_msg(r == 0, "%s", why->text);
    return tokenizer_new(g, why, ret);
}

static struct tokenizer *must_make(const struct tiny *v)
{
    struct why why = {0};
    struct tokenizer *t = NULL;
    int r = make(v, &why, &t);
    ck_assert_msg(r == 0, "%s", why.text);
    return t;
}

/* want: ids up to the first 0. */
static void check_spans(const struct tokenizer *t, const struct tokenizer_span *spans, size_t n,
                        unsigned add, const uint32_t *want)
{
    struct tokenizer_ids ids = {0};
    ck_assert_int_eq(tokenizer_encode(t, spans, n, add, 100, &ids), 0);
    size_t n_want = 0;
    while (want[n_want])
        n_want++;
    ck_assert_uint_eq(ids.n, n_want);
    for (size_t i = 0; i < n_want; i++)
        ck_assert_uint_eq(ids.ids[i], want[i]);
    free(ids.ids);
}

static void check(const struct tokenizer *t, const char *text, bool special, const uint32_t *want)
{
    struct tokenizer_span span = {text, strlen(text), special};
    check_spans(t, &span, 1, 0, want);
}

static const struct tiny merging = {
    .model = "gpt2",
    .pre = "gpt-2",
    .extra = {{"aa", 1}, {"ab", 1}, {"aab", 1}, {"b\u0120", 1}, {"cd", 1}},
    .merges = { "a b", "a a", "a ab",        "c d",     "cd c",     "nomerge", "x \u20ac", "a b"},
};

static const struct {
    const char *text;
    uint32_t ids[8];
} merged[] = {
    {"ab",   {257}             }, /* a b */
    {"aab",  {258}             }, /* "a b" is first, then "a ab" */
    {"aaab", {256, 257}        }, /* "a a" comes before "a ab" */
    {"aaa",  {256, 'a'}        }, /* leftmost of equal ranks */
    {"aaaa", {256, 256}        },
    {"cdcd", {260, 260}        },
    {"cdc",  {'c', 'd', 'c'}   }, /* "cd c" makes cdc, which is no token: its bytes */
    {"x",    {'x'}             },
    {"\xff", {0xef, 0xbf, 0xbd}}, /* U+FFFD in bytes */
};

START_TEST(merges_by_rank)
{
    CLEANUP(tokenizer_freep) struct tokenizer *t = must_make(&merging);
    check(t, merged[_i].text, false, merged[_i].ids);
}
END_TEST

/* A piece that is a token is taken whole by llama-bpe, which does not ask how it would merge. */
START_TEST(llama_bpe_takes_whole_pieces)
{
    struct tiny v = merging;
    v.merges[0] = "b b";
    v.merges[7] = NULL;
    CLEANUP(tokenizer_freep) struct tokenizer *plain = must_make(&v);
    check(plain, "ab", false, (uint32_t[]){'a', 'b', 0});
    v.pre = "llama-bpe";
    CLEANUP(tokenizer_freep) struct tokenizer *whole = must_make(&v);
    check(whole, "ab", false, (uint32_t[]){257, 0});
}
END_TEST

START_TEST(a_byte_without_token_vanishes)
{
    struct tiny v = merging;
    v.missing_byte = 'z';
    CLEANUP(tokenizer_freep) struct tokenizer *t = must_make(&v);
    check(t, "xzx", false, (uint32_t[]){'x', 'x', 0});
    check(t, "z", false, (uint32_t[]){0});
}
END_TEST

static const struct tiny special = {
    .model = "gpt2",
    .pre = "gpt-2",
    .extra = {{"<s>", 3},
              {"<s><s>", 3},
              {"<u>", 4},
              {"<u><u>", 4},
              {"<unk>", 2},
              {"</s>", 3},
              {"ab", 3},
              {"  ", 4}},
    .merges = {"a b"},
};

static const struct {
    const char *text;
    bool parse_special;
    uint32_t ids[16];
} literals[] = {
    {"<s>",       true,  {256}                    },
    {"<s>",       false, {'<', 's', '>'}          },
    {"<s><s>",    true,  {257}                    }, /* the longest */
    {"<s><s><s>", true,  {257, 256}               },
    {"x<s>y",     true,  {'x', 256, 'y'}          },
    {"<u>",       true,  {258}                    },
    {"<u>",       false, {258}                    }, /* user-defined: always */
    {"<u><u><u>", false, {259, 258}               },
    {"<s><u>",    false, {'<', 's', '>', 258}     },
    {"<unk>",     true,  {260}                    },
    {"<unk>",     false, {'<', 'u', 'n', 'k', '>'}},
    {"ab",        false, {'a', 'b'}               }, /* nor by merging */
    {"ab",        true,  {262}                    },
    {"a   b",     false, {'a', 263, ' ', 'b'}     },
    {"<s",        true,  {'<', 's'}               },
    {"<s><s",     true,  {256, '<', 's'}          },
};

START_TEST(special_tokens_by_kind)
{
    CLEANUP(tokenizer_freep) struct tokenizer *t = must_make(&special);
    check(t, literals[_i].text, literals[_i].parse_special, literals[_i].ids);
}
END_TEST

/* User-defined tokens don't heed spans, so they are found across a border; control tokens aren't.
 */
START_TEST(borders_of_spans)
{
    CLEANUP(tokenizer_freep) struct tokenizer *t = must_make(&special);
    struct tokenizer_span user[] = {
        {"x<", 2, true },
        {"u>", 2, false}
    };
    check_spans(t, user, 2, 0, (uint32_t[]){'x', 258, 0});
    struct tokenizer_span control[] = {
        {"<s", 2, true },
        {">",  1, false}
    };
    check_spans(t, control, 2, 0, (uint32_t[]){'<', 's', '>', 0});
    struct tokenizer_span shorter[] = {
        {"<s>", 3, true },
        {"<s>", 3, false}
    };
    check_spans(t, shorter, 2, 0, (uint32_t[]){256, '<', 's', '>', 0});
    struct tokenizer_span joined[] = {
        {"<s",   2, true },
        {NULL,   0, false},
        {"><s>", 4, true }
    };
    check_spans(t, joined, 3, 0, (uint32_t[]){257, 0});
    check_spans(t, NULL, 0, 0, (uint32_t[]){0});
}
END_TEST

static const struct {
    const char *pre, *flags[3], *flags_off[2];
    const char *text;
    unsigned add;
    uint32_t ids[8];
} adding[] = {
    {"gpt-2",     {"tokenizer.ggml.add_bos_token"},                    {0},                              "x",     TOKENIZER_ADD_BOS,                     {256, 'x'}},
    {"gpt-2",     {"tokenizer.ggml.add_bos_token"},                    {0},                              "x",     0,                                     {'x'}     },
    {"gpt-2",     {"tokenizer.ggml.add_bos_token"},                    {0},                              "<s>x",  TOKENIZER_ADD_BOS,                     {256, 'x'}},
    {"gpt-2",     {"tokenizer.ggml.add_bos_token"},                    {0},                              "",      TOKENIZER_ADD_BOS,                     {256}     },
    {"gpt-2",     {"tokenizer.ggml.add_bos_token"},                    {0},                              "x",     TOKENIZER_ADD_EOS,                     {'x'}     },
    {"gpt-2",     {0},                                                 {0},                              "x",     TOKENIZER_ADD_BOS,                     {'x'}     },
    {"gpt-2",     {"tokenizer.ggml.add_eos_token"},                    {0},                              "x",     TOKENIZER_ADD_EOS,                     {'x', 261}},
    {"gpt-2",     {"tokenizer.ggml.add_eos_token"},                    {0},                              "x</s>", TOKENIZER_ADD_EOS,                     {'x', 261}},
    {"llama-bpe", {0},                                                 {0},                              "x",     TOKENIZER_ADD_BOS,                     {256, 'x'}},
    {"llama-bpe", {0},                                                 {"tokenizer.ggml.add_bos_token"}, "x",     TOKENIZER_ADD_BOS,                     {'x'}     },
    {"gpt-2",
     {"tokenizer.ggml.add_bos_token", "tokenizer.ggml.add_eos_token"},
     {0},
     "x",                                                                                                         TOKENIZER_ADD_BOS | TOKENIZER_ADD_EOS,
     {256, 'x', 261}                                                                                                                                               },
};

START_TEST(never_two_bos)
{
    struct tiny v = special;
    v.pre = adding[_i].pre;
    v.ids[0] = "tokenizer.ggml.bos_token_id", v.id_values[0] = 256;
    v.ids[1] = "tokenizer.ggml.eos_token_id", v.id_values[1] = 261;
    memcpy(v.flags, adding[_i].flags, sizeof(v.flags));
    memcpy(v.flags_off, adding[_i].flags_off, sizeof(v.flags_off));
    CLEANUP(tokenizer_freep) struct tokenizer *t = must_make(&v);
    struct tokenizer_span span = {adding[_i].text, strlen(adding[_i].text), true};
    check_spans(t, &span, 1, adding[_i].add, adding[_i].ids);
    ck_assert_uint_eq(tokenizer_bos(t), 256);
    ck_assert_uint_eq(tokenizer_eos(t), 261);
}
END_TEST

START_TEST(ends_by_key_and_by_text)
{
    struct tiny v = {
        .model = "gpt2",
        .pre = "gpt-2",
 /* </s> is ordinary text here; the others end something whatever they are called. */
        .extra =
            {{"</s>", 1},                    {"<|im_end|>", 1}, {"<end_of_turn>", 4}, {"A", 3}, {"B", 3}, {"C", 1}},
        .ids = {"tokenizer.ggml.eos_token_id",                      "tokenizer.ggml.eot_token_id",
                    "tokenizer.ggml.eom_token_id"                                                  },
        .id_values = {261,259,                     260},
    };
    CLEANUP(tokenizer_freep) struct tokenizer *t = must_make(&v);
    size_t n;
    const uint32_t *eog = tokenizer_eog(t, &n);
    ck_assert_uint_eq(n, 5);
    for (uint32_t i = 0; i < 5; i++)
        ck_assert_uint_eq(eog[i], 257 + i);
    ck_assert_uint_eq(tokenizer_bos(t), TOKENIZER_NONE);
    ck_assert(tokenizer_is_control(t, 257));
    ck_assert(tokenizer_is_control(t, 258));
    check(t, "<|im_end|>", false,
          (uint32_t[]){'<', '|', 'i', 'm', '_', 'e', 'n', 'd', '|', '>', 0});
}
END_TEST

START_TEST(pieces_are_bytes)
{
    CLEANUP(tokenizer_freep) struct tokenizer *t = must_make(&special);
    ck_assert_uint_eq(tokenizer_n_vocab(t), 264);
    for (unsigned i = 0; i < 256; i++) {
        struct tokenizer_piece p = tokenizer_piece(t, i);
        ck_assert_uint_eq(p.bytes, 1);
        ck_assert_uint_eq((uint8_t)p.at[0], i);
    }
    struct tokenizer_piece p = tokenizer_piece(t, 256);
    ck_assert(p.bytes == 3 && memcmp(p.at, "<s>", 3) == 0);
    ck_assert_uint_eq(tokenizer_piece(t, 264).bytes, 0);
    ck_assert_uint_eq(tokenizer_piece(t, UINT32_MAX).bytes, 0);
    ck_assert(!tokenizer_is_control(t, UINT32_MAX));
}
END_TEST

START_TEST(too_many_tokens_are_counted)
{
    struct tiny v = special;
    v.ids[0] = "tokenizer.ggml.bos_token_id", v.id_values[0] = 256;
    v.flags[0] = "tokenizer.ggml.add_bos_token";
    CLEANUP(tokenizer_freep) struct tokenizer *t = must_make(&v);
    struct tokenizer_span span = {"wxyz", 4, false};
    struct tokenizer_ids ids = {0};
    for (size_t max = 0; max < 5; max++) {
        ck_assert_int_eq(tokenizer_encode(t, &span, 1, TOKENIZER_ADD_BOS, max, &ids), -E2BIG);
        ck_assert_uint_eq(ids.n, 5);
        ck_assert_ptr_null(ids.ids);
    }
    ck_assert_int_eq(tokenizer_encode(t, &span, 1, TOKENIZER_ADD_BOS, 5, &ids), 0);
    ck_assert_uint_eq(ids.n, 5);
    ck_assert_uint_eq(ids.ids[0], 256);
    free(ids.ids);
    struct tokenizer_span endless[] = {
        {"x", 1,        false},
        {"x", SIZE_MAX, false}
    };
    ck_assert_int_eq(tokenizer_encode(t, endless, 2, 0, SIZE_MAX, &ids), -E2BIG);
    ck_assert_uint_eq(ids.n, 0);
}
END_TEST

#define LONG_64 "0123456789012345678901234567890123456789012345678901234567890123"
#define LONG_512 LONG_64 LONG_64 LONG_64 LONG_64 LONG_64 LONG_64 LONG_64 LONG_64

static const struct {
    struct tiny v;
    int r;
    const char *says;
} refused[] = {
    {{.pre = "gpt-2"},                                                              -EPROTO,  "'tokenizer.ggml.model' is missing"       },
    {{.model = "llama", .pre = "default"},                                          -ENOTSUP, "only byte-level BPE"                     },
    {{.model = "gpt2", .pre = "falc\non"},                                          -ENOTSUP, "pre-tokeniser 'falc?on' is not supported"},
    {{.model = "gpt2", .pre = "gpt-2x"},                                            -ENOTSUP, "smollm, "                                },
    {{.model = "gpt2", .no_merges_key = true},                                      -EPROTO,  "'tokenizer.ggml.merges' is missing"      },
    {{.model = "gpt2", .types_short = true},                                        -EPROTO,  "255 entries for 256 tokens"              },
    {{.model = "gpt2", .extra = {{LONG_512 LONG_512 "x", 3}}},                      -EPROTO,  "token 256 has 1025 bytes"                },
    {{.model = "gpt2", .ids = {"tokenizer.ggml.eos_token_id"}, .id_values = {256}},
     -EPROTO,
     "'tokenizer.ggml.eos_token_id' is not the id of one of the 256 tokens"                                                             },
    {{.model = "gpt2", .flags = {"tokenizer.ggml.bos_token_id"}},
     -EPROTO,
     "'tokenizer.ggml.bos_token_id' is not the id"                                                                                      },
    {{.model = "gpt2", .ids = {"tokenizer.ggml.add_bos_token"}},                    -EPROTO,  "is not a bool"                           },
    {{.model = "gpt2", .flags = {"tokenizer.ggml.add_eos_token"}},
     -EPROTO,
     "no 'tokenizer.ggml.eos_token_id'"                                                                                                 },
    {{.model = "gpt2", .flags = {"tokenizer.ggml.pre"}},                            -EPROTO,  "is not a string"                         },
};

START_TEST(odd_vocabularies_are_refused)
{
    struct why why = {0};
    struct tokenizer *t = NULL;
    ck_assert_int_eq(make(&refused[_i].v, &why, &t), refused[_i].r);
    ck_assert_ptr_null(t);
    ck_assert_msg(strstr(why.text, refused[_i].says) != NULL, "%s", why.text);
    ck_assert_msg(strstr(why.text, "cistern-test-") != NULL, "%s", why.text);
}
END_TEST

/* From RFC 3629 and, where it is broken, from llama.cpp's unicode_cpts_from_utf8. */
static const struct {
    const char *text, *repaired;
} broken[] = {
    {"\x80",             "\uFFFD"                  },
    {"\xc3",             "\uFFFD"                  },
    {"\xc3(",            "\uFFFD("                 },
    {"\xe2\x82",         "\uFFFD\uFFFD"            },
    {"\xe2\x82z",        "\uFFFD\uFFFDz"           },
    {"\xf0\x9f\x98",     "\uFFFD\uFFFD\uFFFD"      },
    {"\xc0\xaf",         "/"                       },
    {"\xe0\x80\xaf",     "/"                       },
    {"\xed\xa0\x80",     "\xed\xa0\x80"            },
    {"\xf4\x90\x80\x80", "\uFFFD\uFFFD\uFFFD\uFFFD"},
    {"\xf8\x88\x80",     "\uFFFD\uFFFD\uFFFD"      },
    {"\xff\xfe",         "\uFFFD\uFFFD"            },
};

START_TEST(broken_utf8_is_repaired)
{
    const uint8_t *text = (const uint8_t *)broken[_i].text;
    const char *want = broken[_i].repaired;
    size_t bytes = strlen(broken[_i].text);
    uint8_t got[64];
    ck_assert_uint_le(3 * bytes, sizeof(got));
    size_t n = utf8_repair(text, bytes, got);
    ck_assert_uint_eq(n, strlen(want));
    ck_assert_mem_eq(got, want, n);
    bool same = strcmp(broken[_i].text, want) == 0;
    ck_assert_uint_eq(utf8_sound(text, bytes), same ? bytes : 0);
}
END_TEST

/* Far more pieces than places, all different; of half of them only the later bytes differ. Whatever
 * a place held, a new piece is not taken for it, and one that was just kept is found again. */
START_TEST(a_memo_tells_pieces_apart)
{
    CLEANUP(freep) struct memo_piece *pieces = xcalloc(MEMO_PIECES, sizeof(*pieces));
    const struct memo m = {.pieces = pieces};
    char text[MEMO_BYTES + 2];
    for (uint32_t i = 0; i < 16 * MEMO_PIECES; i++) {
        bool hit = true;
        int n = snprintf(text, sizeof(text), i % 2 ? "prefixes%x" : "%x", i);
        struct memo_piece *p = memo_place(&m, (const uint8_t *)text, (size_t)n, &hit);
        if (!p || hit) ck_abort_msg("%s was never kept", text);
        p->n_bytes = (uint8_t)n;
        struct memo_piece *again = memo_place(&m, (const uint8_t *)text, (size_t)n, &hit);
        if (again != p || !hit) ck_abort_msg("%s was just kept", text);
    }
    bool hit;
    ck_assert_ptr_null(memo_place(&m, (const uint8_t *)text, MEMO_BYTES + 1, &hit));
}
END_TEST

int main(void)
{
    TCase *tc = tcase_create("tokenizer rules");
    tcase_add_loop_test(tc, merges_by_rank, 0, ARRAY_LEN(merged));
    tcase_add_test(tc, llama_bpe_takes_whole_pieces);
    tcase_add_test(tc, a_byte_without_token_vanishes);
    tcase_add_loop_test(tc, special_tokens_by_kind, 0, ARRAY_LEN(literals));
    tcase_add_test(tc, borders_of_spans);
    tcase_add_loop_test(tc, never_two_bos, 0, ARRAY_LEN(adding));
    tcase_add_test(tc, ends_by_key_and_by_text);
    tcase_add_test(tc, pieces_are_bytes);
    tcase_add_test(tc, too_many_tokens_are_counted);
    tcase_add_loop_test(tc, odd_vocabularies_are_refused, 0, ARRAY_LEN(refused));
    tcase_add_loop_test(tc, broken_utf8_is_repaired, 0, ARRAY_LEN(broken));
    tcase_add_test(tc, a_memo_tells_pieces_apart);
    return suite_run("tokenizer rules", tc);
}
