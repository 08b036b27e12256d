/* SPDX-License-Identifier: MIT */
/*
 * Design section 5: a token row's bits depend on the tokens before it, its position and its kind,
 * prompt or generated, also where the other rows of its window are of the other kind, and where
 * rows are computed again. Each row's logits are compared by a hash of all their bits. Argument:
 * the folder of the tiny models (tests/data/make_tiny.py).
 */
#include <check.h>
#include <string.h>

#include "tests/numerics/rig.h"
#include "tests/suite.h"

enum {
    PROMPT = 150, /* over a block of token rows of any kernel, and over several chunks */
    ALL = 260,
    CHATS = 4,
    CHUNK = 64,
};

static const char *const files[] = {"q8_0", "q4_0", "q4_1", "mixed", "f16"};

static const char *folder;
static uint32_t ids[ALL];
static uint64_t expected[ALL]; /* of each row, the prompt's read at once, the others one by one */

struct hashes {
    uint64_t at[CHATS * ALL];
    uint32_t n;
};

static void add_hash(void *arg, uint32_t lane, uint32_t row, const float *logits, uint32_t n)
{
    struct hashes *h = arg;
    (void)lane;
    (void)row;
    h->at[h->n++] = rig_hash(logits, n);
}

static struct rig *rig_of(const char *file, uint32_t n_stages)
{
    char path[4096];
    (void)snprintf(path, sizeof(path), "%s/tiny_%s.gguf", folder, file);
    struct rig_want want = {.path = path,
                            .context_tokens = 1024,
                            .chunk_cells = CHUNK,
                            .max_rows = ALL + CHATS,
                            .n_stages = n_stages};
    struct rig *r = rig_new(&want);
    rig_fill(r, 0xff);
    for (uint32_t i = 0; i < ALL; i++)
        ids[i] = (1 + i * 7919 + i * i * 31) % r->facts.n_vocab;
    return r;
}

/* The next n rows of a chat, of one kind. */
static void read_kind(struct rig *r, struct rig_chat *c, uint32_t n, bool generated,
                      struct hashes *h)
{
    r->n_generated = generated;
    (void)rig_read(r, c, ids + c->n_cells, n, n, WINDOW_ALL, add_hash, h);
}

static void check_row(uint64_t hash, uint32_t at, const char *what)
{
    if (hash != expected[at]) ck_abort_msg("%s: row %u differs", what, at);
}

static void expect(struct rig *r)
{
    static struct hashes h;
    struct rig_chat *c = rig_chat_new(r);
    h.n = 0;
    read_kind(r, c, PROMPT, false, &h);
    while (c->n_cells < ALL)
        read_kind(r, c, 1, true, &h);
    memcpy(expected, h.at, sizeof(expected));
    rig_chat_free(c);
    r->next_chunk = 1;
}

/* As after a death: pieces of other lengths, those of generated rows of many. */
START_TEST(rows_that_are_computed_again_are_what_they_were)
{
    static const uint32_t pieces[] = {1, 7, 66, 300};
    static struct hashes h;
    for (uint32_t n_stages = 1; n_stages <= 2; n_stages++) {
        struct rig *r = rig_of(files[_i], n_stages);
        expect(r);
        for (uint32_t i = 0; i < ARRAY_LEN(pieces); i++) {
            struct rig_chat *c = rig_chat_new(r);
            h.n = 0;
            while (c->n_cells < PROMPT)
                read_kind(r, c, min_u32(pieces[i], PROMPT - c->n_cells), false, &h);
            while (c->n_cells < ALL)
                read_kind(r, c, min_u32(pieces[i], ALL - c->n_cells), true, &h);
            for (uint32_t k = 0; k < ALL; k++)
                check_row(h.at[k], k, "again");
            rig_chat_free(c);
            r->next_chunk = 1;
        }
        rig_free(r);
    }
}
END_TEST

/* One window: a row each of the chats that are past their prompts, then a piece of the first that
 * is not. Returns whether there was anything to do. */
static bool mixed_window(struct rig *r, struct rig_chat **c, uint32_t step, struct hashes *h)
{
    struct window_lane l[CHATS];
    uint32_t tokens[ALL + CHATS], at[CHATS], n = 0, used = 0;
    r->n_generated = 0;
    for (uint32_t i = 0; i < 2 * CHATS; i++) {
        struct rig_chat *of = c[i % CHATS];
        const bool generated = i < CHATS;
        if ((of->n_cells >= PROMPT) != generated || of->n_cells == ALL) continue;
        if (!generated && n > r->n_generated) break; /* one piece a window */
        const uint32_t rows = generated ? 1 : min_u32(1 + step * 11 % 70, PROMPT - of->n_cells);
        at[n] = of->n_cells;
        memcpy(tokens + used, ids + at[n], rows * sizeof(*ids));
        used += rows;
        l[n++] = rig_lane(r, of, rows, WINDOW_ALL);
        if (generated) r->n_generated = n;
    }
    h->n = 0;
    if (n > 0) rig_run(r, l, n, tokens, add_hash, h);
    for (uint32_t i = 0, k = 0; i < n; i++)
        for (uint32_t j = 0; j < l[i].n_rows; j++)
            check_row(h->at[k++], at[i] + j, "beside others");
    return n > 0;
}

START_TEST(rows_of_both_kinds_do_not_disturb_each_other)
{
    static struct hashes h;
    for (uint32_t n_stages = 1; n_stages <= 2; n_stages++) {
        struct rig *r = rig_of(files[_i], n_stages);
        struct rig_chat *c[CHATS];
        expect(r);
        for (uint32_t i = 0; i < CHATS; i++)
            c[i] = rig_chat_new(r);
        uint32_t step = 0;
        while (mixed_window(r, c, step, &h))
            step++;
        ck_assert_uint_gt(step, ALL - PROMPT);
        for (uint32_t i = 0; i < CHATS; i++)
            rig_chat_free(c[i]);
        rig_free(r);
    }
}
END_TEST

/* Where the arithmetic says that kinds differ (ARCHITECTURE.md), they do: else the tests above
 * would hold nothing. Weights that are multiplied as floats know no kinds. */
START_TEST(kinds_differ_where_they_are_said_to)
{
    static struct hashes h;
    struct rig *r = rig_of(files[_i], 1);
    const bool differ = strncmp(r->facts.arithmetic, "cuda-5 ", 7) == 0;
    uint32_t n = 0;
    expect(r);
    struct rig_chat *c = rig_chat_new(r);
    h.n = 0;
    read_kind(r, c, ALL, false, &h);
    for (uint32_t k = 0; k < PROMPT; k++)
        check_row(h.at[k], k, "the prompt");
    for (uint32_t k = PROMPT; k < ALL; k++)
        n += h.at[k] != expected[k];
    ck_assert_uint_eq(n, differ && strcmp(files[_i], "f16") != 0 ? ALL - PROMPT : 0);
    rig_chat_free(c);
    rig_free(r);
}
END_TEST

int main(int argc, char **argv)
{
    folder = argc > 1 ? argv[1] : ".";
    if (rig_device_missing()) return 77;
    TCase *t = tcase_create("rows");
    tcase_set_timeout(t, 120);
    tcase_add_loop_test(t, rows_that_are_computed_again_are_what_they_were, 0, ARRAY_LEN(files));
    tcase_add_loop_test(t, rows_of_both_kinds_do_not_disturb_each_other, 0, ARRAY_LEN(files));
    tcase_add_loop_test(t, kinds_differ_where_they_are_said_to, 0, ARRAY_LEN(files));
    return suite_run_cases("kinds", &t, 1, rig_device() != NULL);
}
