/* SPDX-License-Identifier: MIT */
/*
 * Text from tokens, however its bytes are cut into them. U+FFFD for broken bytes follows the tables
 * of the Unicode standard, chapter 3 ("maximal subpart"), whose rows are the literals below; where
 * an answer ends follows from the rule in text.h.
 */
#include <check.h>
#include <string.h>

#include "gateway/text.h"
#include "tests/suite.h"

#define FFFD "\xef\xbf\xbd"

static const struct {
    const char *bytes; /* what the tokens stand for */
    const char *stop[3];
    const char *shown;
    bool stopped;
} cases[] = {
    {"plain",                                {NULL},                    "plain",                          false},
    {"",                                     {NULL},                    "",                               false},
    {"\xc3\xa9t\xc3\xa9",                    {NULL},                    "\xc3\xa9t\xc3\xa9",              false},
    {"\xe2\x82\xac \xf0\x9f\x98\x80.",       {NULL},                    "\xe2\x82\xac \xf0\x9f\x98\x80.", false},
 /* The end cuts a character: one U+FFFD for all its bytes. */
    {"a\xf0\x9f\x98",                        {NULL},                    "a" FFFD,                         false},
    {"a\xe2",                                {NULL},                    "a" FFFD,                         false},
 /* Table 3-8 of the Unicode standard, version 15. */
    {"\xc0\xaf\xe0\x80\xbf\xf0\x81\x82\x41",
     {NULL},
     FFFD FFFD FFFD FFFD FFFD FFFD FFFD FFFD "A",
     false                                                                                                     },
    {"\xed\xa0\x80\xed\xbf\xbf\xed\xaf\x41",
     {NULL},
     FFFD FFFD FFFD FFFD FFFD FFFD FFFD FFFD "A",
     false                                                                                                     },
    {"\xf4\x91\x92\x93\xff\x41\x80\xbf\x42",
     {NULL},
     FFFD FFFD FFFD FFFD FFFD "A" FFFD FFFD "B",
     false                                                                                                     },
    {"\xe1\x80\xe2\xf0\x91\x92\xf1\xbf\x41", {NULL},                    FFFD FFFD FFFD FFFD "A",          false},
 /* Stop strings. */
    {"one two three",                        {"two"},                   "one ",                           true },
    {"two",                                  {"two"},                   "",                               true },
    {"one tw",                               {"two"},                   "one tw",                         false}, /* withheld text is released */
    {"aaab",                                 {"aab"},                   "a",                              true },
    {"ababac",                               {"abac"},                  "ab",                             true },
    {"abcd",                                 {"abcx", "bcd"},           "a",                              true },
    {"abc",                                  {"abc", "b"},              "a",                              true }, /* the one that is complete first */
    {"xabc",                                 {"bc", "abc"},             "x",                              true }, /* both at once: the longer */
    {"caf\xc3\xa9!",                         {"\xc3\xa9"},              "caf",                            true },
    {"a\xe2\x82\xac",                        {"\xe2\x82\xac"},          "a",                              true },
    {"a\xe2\x82",                            {"\xe2\x82\xac"},          "a" FFFD,                         false},
    {"a\xe2\nb",                             {"\n"},                    "a" FFFD,                         true }, /* a broken character before the stop */
    {"ab\xff"
     "c",                               {FFFD},
     "ab",                                                                                                true }, /* the text as it is shown counts */
    {"ab\xe2\x82",                           {"b" FFFD},                "a",                              true }, /* complete only by the end of the answer */
    {"a\xc3\xa9\xe2"
     "b",                               {FFFD "b"},
     "a\xc3\xa9",                                                                                         true },
    {"stop",                                 {"nothing", "like", "it"}, "stop",                           false},
};

static struct text *text_of(size_t i)
{
    struct text *t = NULL;
    size_t n = 0;
    while (n < ARRAY_LEN(cases[i].stop) && cases[i].stop[n])
        n++;
    ck_assert_int_eq(text_new(cases[i].stop, n, &t), 0);
    return t;
}

static void assert_shown(const struct bytebuf *out, const char *want)
{
    ck_assert_uint_eq(bytebuf_size(out), strlen(want));
    ck_assert_mem_eq(bytebuf_bytes(out), want, strlen(want));
}

/* What was shown so far must be the beginning of the result: nothing is ever taken back. */
static void assert_beginning(const struct bytebuf *out, const char *want)
{
    ck_assert_uint_le(bytebuf_size(out), strlen(want));
    ck_assert_mem_eq(bytebuf_bytes(out), want, bytebuf_size(out));
}

/* Each subset of the borders between bytes is a way to cut them into tokens. */
START_TEST(shown_text_does_not_depend_on_tokens)
{
    size_t n = strlen(cases[_i].bytes);
    ck_assert_uint_le(n, 16);
    for (unsigned long cuts = 0; cuts < (n ? 1UL << (n - 1) : 1); cuts++) {
        struct text *t = text_of((size_t)_i);
        struct bytebuf out = {0};
        bool stopped = false;
        for (size_t at = 0; at < n && !stopped;) {
            size_t end = at + 1;
            while (end < n && !(cuts >> (end - 1) & 1))
                end++;
            stopped = text_push(t, cases[_i].bytes + at, end - at, &out);
            assert_beginning(&out, cases[_i].shown);
            at = end;
        }
        stopped = stopped || text_end(t, &out);
        ck_assert(stopped == cases[_i].stopped);
        assert_shown(&out, cases[_i].shown);
        bytebuf_fini(&out);
        text_free(t);
    }
}
END_TEST

START_TEST(no_character_is_ever_cut)
{
    const char *euro = "\xe2\x82\xac";
    struct text *t = NULL;
    struct bytebuf out = {0};
    ck_assert_int_eq(text_new(NULL, 0, &t), 0);
    ck_assert(!text_push(t, euro, 1, &out));
    ck_assert_uint_eq(bytebuf_size(&out), 0);
    ck_assert(!text_push(t, euro + 1, 1, &out));
    ck_assert_uint_eq(bytebuf_size(&out), 0);
    ck_assert(!text_push(t, euro + 2, 1, &out));
    assert_shown(&out, euro);
    bytebuf_fini(&out);
    text_free(t);
}
END_TEST

/* max_tokens ends the answer inside a character, and inside what may become a stop string: the
 * character is left out, the other is text. */
START_TEST(a_cut_answer_has_no_part_of_a_character)
{
    static const char *const stop[] = {"END"};
    struct text *t = NULL;
    struct bytebuf out = {0};
    ck_assert_int_eq(text_new(stop, 1, &t), 0);
    ck_assert(!text_push(t, "a", 1, &out));
    ck_assert(!text_push(t, "EN\xe2", 3, &out));
    ck_assert(!text_push(t, "\x82", 1, &out));
    ck_assert_uint_eq(text_tokens_shown(t, 0), 1);
    text_cut(t, &out);
    assert_shown(&out, "aEN");
    ck_assert_uint_eq(text_tokens_shown(t, 0), 3);
    bytebuf_fini(&out);
    text_free(t);
}
END_TEST

/* tokens: their text, by spaces; keep: how many lie wholly before the stop string "END". */
static const struct {
    const char *tokens[5];
    uint32_t keep;
} kept[] = {
    {{"a", "b", "END"},    2},
    {{"a", "bEN", "D"},    1},
    {{"END"},              0},
    {{"a", "E", "N", "D"}, 1},
    {{"a", "", "E", "ND"}, 2},
};

START_TEST(tokens_before_the_stop_are_counted)
{
    static const char *const stop[] = {"END"};
    struct text *t = NULL;
    struct bytebuf out = {0};
    bool stopped = false;
    ck_assert_int_eq(text_new(stop, 1, &t), 0);
    for (size_t i = 0; i < ARRAY_LEN(kept[_i].tokens) && kept[_i].tokens[i]; i++)
        stopped = text_push(t, kept[_i].tokens[i], strlen(kept[_i].tokens[i]), &out);
    ck_assert(stopped);
    ck_assert_uint_eq(text_tokens_before_stop(t), kept[_i].keep);
    bytebuf_fini(&out);
    text_free(t);
}
END_TEST

START_TEST(stop_strings_are_bounded)
{
    static char long_one[TEXT_STOP_BYTES_MAX + 2];
    const char *many[TEXT_STOPS_MAX + 1];
    struct text *t = NULL;
    const char *empty = "", *too_long = long_one;
    memset(long_one, 'a', sizeof(long_one) - 1);
    for (size_t i = 0; i < ARRAY_LEN(many); i++)
        many[i] = "a";
    ck_assert_int_lt(text_new(&empty, 1, &t), 0);
    ck_assert_int_lt(text_new(&too_long, 1, &t), 0);
    ck_assert_int_lt(text_new(many, ARRAY_LEN(many), &t), 0);
    ck_assert_ptr_null(t);
}
END_TEST

int main(void)
{
    TCase *tc = tcase_create("text");
    tcase_add_loop_test(tc, shown_text_does_not_depend_on_tokens, 0, ARRAY_LEN(cases));
    tcase_add_test(tc, no_character_is_ever_cut);
    tcase_add_test(tc, a_cut_answer_has_no_part_of_a_character);
    tcase_add_loop_test(tc, tokens_before_the_stop_are_counted, 0, ARRAY_LEN(kept));
    tcase_add_test(tc, stop_strings_are_bounded);
    return suite_run("text", tc);
}
