/* SPDX-License-Identifier: MIT */
/*
 * Scans of ASCII against the expressions that they stand for, run by PCRE2: those of the published
 * tokenizer.json of gpt2, Meta-Llama-3-8B and Qwen2.5 (a last \s+ of gpt2's, which matches what no
 * other alternative does, makes no difference to the pieces).
 */
#include <check.h>
#include <stdbool.h>
#include <string.h>

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include "common/base.h"
#include "gateway/tokenizer/scan.h"
#include "tests/suite.h"

#define GPT2 "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+"
#define LLAMA3(digits)                                                                             \
    "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|" digits                           \
    "| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"

enum { TEXTS = 20000, BYTES_MAX = 24 };

static const struct {
    const char *expression;
    scan_piece *scan;
} known[] = {
    {GPT2,                  scan_gpt2        },
    {LLAMA3("\\p{N}{1,3}"), scan_cl100k      },
    {LLAMA3("\\p{N}"),      scan_cl100k_digit},
};

static uint64_t state = 1;

static uint32_t draw(uint32_t below)
{
    state = state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return (uint32_t)((state >> 33) % below);
}

/* Short pieces of every kind, and characters beyond ASCII of every kind: letter, digit, white
 * space, other, and a combining mark, which is other behind a letter. */
static size_t random_text(uint8_t *ret)
{
    static const char *const parts[] = {
        "a",
        "Zq",
        "s",
        "t",
        "re",
        "ll",
        "'",
        "1",
        "42",
        "007",
        " ",
        " ",
        "  ",
        "\n",
        "\r",
        "\r\n",
        "\t",
        "\v",
        ".",
        "!?",
        "_",
        "\x01",
        "\x7f",
        "(",
        "-",
        "\xc3\xa9",
        "\xd9\xa3",
        "\xc2\xa0",
        "\xe3\x80\x80",
        "\xe2\x82\xac",
        "\xcc\x81",
        "\xf0\x9f\x99\x82",
    };
    size_t n = 0, wanted = 1 + draw(BYTES_MAX - 5);
    bool ascii = draw(2);
    while (n < wanted) {
        const char *part = parts[draw(ARRAY_LEN(parts))];
        if (ascii && (uint8_t)part[0] >= 0x80) continue;
        memcpy(ret + n, part, strlen(part));
        n += strlen(part);
    }
    return n;
}

static size_t end_by_pcre(const pcre2_code *code, pcre2_match_data *match, const uint8_t *text,
                          size_t bytes, size_t from)
{
    int r = pcre2_match(code, text, bytes, from, PCRE2_ANCHORED, match, NULL);
    if (r <= 0) ck_abort_msg("%.*s: nothing matches at %zu", (int)bytes, (const char *)text, from);
    return pcre2_get_ovector_pointer(match)[1];
}

START_TEST(a_scan_finds_what_its_expression_matches)
{
    int error;
    PCRE2_SIZE off;
    uint8_t text[BYTES_MAX];
    uint64_t n_scanned = 0, n_asked = 0;
    pcre2_code *code = pcre2_compile((PCRE2_SPTR)known[_i].expression, PCRE2_ZERO_TERMINATED,
                                     PCRE2_UTF | PCRE2_UCP, &error, &off, NULL);
    pcre2_match_data *match = pcre2_match_data_create(1, NULL);
    ck_assert(code && match);
    for (uint32_t i = 0; i < TEXTS; i++) {
        size_t bytes = random_text(text);
        for (size_t from = 0, end; from < bytes; from = end) {
            end = end_by_pcre(code, match, text, bytes, from);
            size_t found = known[_i].scan(text, bytes, from);
            if (found && found != end)
                ck_abort_msg("%.*s: from %zu to %zu, not %zu", (int)bytes, (const char *)text, from,
                             end, found);
            n_scanned += found > 0;
            n_asked += found == 0;
        }
    }
    ck_assert_uint_gt(n_scanned, n_asked); /* or it is of no use */
    pcre2_match_data_free(match);
    pcre2_code_free(code);
}
END_TEST

START_TEST(the_next_digit_is_found)
{
    const uint8_t *text = (const uint8_t *)"ab c5\xd9\xa3x";
    ck_assert_uint_eq(scan_digit(text, 8, 0), 4);
    ck_assert_uint_eq(scan_digit(text, 4, 0), 4); /* none */
    ck_assert_uint_eq(scan_digit(text, 8, 5), 5); /* beyond ASCII */
    ck_assert_uint_eq(scan_digit(text, 8, 7), 8);
}
END_TEST

int main(void)
{
    TCase *t = tcase_create("scan");
    tcase_add_loop_test(t, a_scan_finds_what_its_expression_matches, 0, ARRAY_LEN(known));
    tcase_add_test(t, the_next_digit_is_found);
    return suite_run("scan", t);
}
