/* SPDX-License-Identifier: MIT */
/*
 * Windows that are started while the one before is computed, and take its tokens where the device
 * has them: held against the same windows one after the other, by their tokens and by every byte of
 * K and V that they leave in the pool. A device that computes a window before it returns (the CPU)
 * is given the tokens, as the stage gives them. The same for windows that every stage prepares
 * before their tokens and activations are there. Argument: the folder of the tiny models.
 */
#include <check.h>
#include <errno.h>
#include <string.h>

#include "tests/numerics/rig.h"
#include "tests/suite.h"

enum {
    LANES = RIG_LANES_MAX,
    CHUNK = 64, /* small, so that the answers cross two borders */
    PIECE = 24, /* of the prompt that is read beside them */
    WINDOWS = 120,
    TIMEOUT_S = 600,
};

static const char *folder;
static int n_windows = WINDOWS;

static const struct {
    const char *file;
    uint32_t kv, n_lanes;
    uint64_t resident; /* cells; 0: all */
} subjects[] = {
    {"q4_1",  POOL_KV_F16,  1, 0        },
    {"f16",   POOL_KV_INT8, 3, 0        },
    {"mixed", POOL_KV_F16,  7, 3 * CHUNK}, /* chunks come and go while others are read */
    {"q8_0",  POOL_KV_Q4,   5, CHUNK    },
};

/* Lanes that make tokens, and after them in each window a piece of a prompt that never ends. */
struct talk {
    struct rig *r;
    struct rig_chat *chat[LANES], *prompt;
    uint32_t n_lanes, first[LANES];
    uint32_t token[WINDOWS][LANES]; /* by chat */
};

static struct talk *talk_new(int subject, uint32_t n_stages)
{
    struct talk *t = xnew(struct talk);
    char path[4096];
    (void)snprintf(path, sizeof(path), "%s/tiny_%s.gguf", folder, subjects[subject].file);
    struct rig_want want = {
        .path = path,
        .n_stages = n_stages,
        .kv = subjects[subject].kv,
        .context_tokens = WINDOWS * PIECE + CHUNK,
        .n_chunks = LANES * (WINDOWS / CHUNK + 3) + WINDOWS * PIECE / CHUNK + 2,
        .chunk_cells = CHUNK,
        .n_threads = 1,
        .kv_resident = subjects[subject].resident,
    };
    t->r = rig_new(&want);
    t->n_lanes = subjects[subject].n_lanes;
    for (uint32_t i = 0; i < t->n_lanes; i++) {
        uint32_t ids[LANES * 5 + 1], n = 1 + 5 * i;
        for (uint32_t k = 0; k < n; k++)
            ids[k] = (17 * i + k * k + 3) % t->r->facts.n_vocab;
        t->chat[i] = rig_chat_new(t->r);
        rig_reserve(t->r, t->chat[i], n + WINDOWS); /* the same chunks in every run */
        t->first[i] = rig_read(t->r, t->chat[i], ids, n, n, WINDOW_LAST, NULL, NULL);
    }
    t->prompt = rig_chat_new(t->r);
    return t;
}

static void talk_free(struct talk *t)
{
    for (uint32_t i = 0; i < t->n_lanes; i++)
        rig_chat_free(t->chat[i]);
    rig_chat_free(t->prompt);
    rig_free(t->r);
    free(t);
}

/* Window n: the chats in an order of its own, the piece before some of them in every third window.
 */
struct talk_window {
    struct window window;
    struct window_lane lanes[LANES];
    uint32_t tokens[LANES + PIECE], chat[LANES], n_lanes;
};

static uint32_t place_of(const struct talk_window *w, uint32_t chat)
{
    uint32_t i = 0;
    while (i < w->n_lanes && w->chat[i] != chat)
        i++;
    ck_assert_uint_lt(i, w->n_lanes);
    return i;
}

/* before: the window that the tokens come from; ahead: it is still being computed. */
static void window_make(struct talk *t, uint32_t n, const struct talk_window *before, bool ahead,
                        struct talk_window *w)
{
    uint32_t *token = w->tokens, piece_at = n % 3 ? UINT32_MAX : n % (t->n_lanes + 1);
    w->n_lanes = 0;
    for (uint32_t i = 0; i <= t->n_lanes; i++) {
        if (i == piece_at) {
            w->chat[w->n_lanes] = LANES; /* nobody's */
            w->lanes[w->n_lanes++] = rig_lane(t->r, t->prompt, PIECE, WINDOW_NONE);
            for (uint32_t k = 0; k < PIECE; k++)
                *token++ = (n * PIECE + k * 5) % t->r->facts.n_vocab;
        }
        if (i == t->n_lanes) break;
        uint32_t chat = (i + n) % t->n_lanes;
        struct window_lane *l = &w->lanes[w->n_lanes];
        w->chat[w->n_lanes++] = chat;
        *l = rig_lane(t->r, t->chat[chat], 1, WINDOW_LAST);
        l->sampling =
            (struct sampling){.temperature = chat % 2 ? 0.9F : 0, .top_p = 1, .seed = chat};
        if (before && ahead) l->fed_from = place_of(before, chat) + 1;
        *token++ = l->fed_from ? LINK_TOKEN_FED
                   : before    ? before->lanes[place_of(before, chat)].token
                               : t->first[chat];
    }
}

static void tokens_keep(struct talk *t, uint32_t n, const struct talk_window *w)
{
    for (uint32_t i = 0; i < w->n_lanes; i++)
        if (w->chat[i] < LANES) t->token[n][w->chat[i]] = w->lanes[i].token;
}

static void talk_in_turn(struct talk *t)
{
    struct talk_window w[2];
    for (int n = 0; n < n_windows; n++) {
        window_make(t, (uint32_t)n, n ? &w[(n - 1) % 2] : NULL, false, &w[n % 2]);
        rig_run(t->r, w[n % 2].lanes, w[n % 2].n_lanes, w[n % 2].tokens, NULL, NULL);
        tokens_keep(t, (uint32_t)n, &w[n % 2]);
    }
}

/* How many were started while the one before was computed. */
static uint32_t talk_ahead(struct talk *t)
{
    struct talk_window w[2];
    uint32_t n_ahead = 0;
    bool flying = false;
    for (int n = 0; n < n_windows; n++) {
        struct talk_window *now = &w[n % 2], *before = n ? &w[(n - 1) % 2] : NULL;
        window_make(t, (uint32_t)n, before, flying, now);
        int r = rig_start(t->r, &now->window, now->lanes, now->n_lanes, now->tokens);
        ck_assert_int_ge(r, 0);
        n_ahead += flying;
        if (flying) {
            rig_finish(t->r);
            tokens_keep(t, (uint32_t)n - 1, before);
        }
        flying = r == 1;
        if (!flying) tokens_keep(t, (uint32_t)n, now);
    }
    if (!flying) return n_ahead;
    rig_finish(t->r);
    tokens_keep(t, (uint32_t)n_windows - 1, &w[(n_windows - 1) % 2]);
    return n_ahead;
}

/* Every stage has the window before its tokens are known, and what comes from the stage before it,
 * too; of some it is taken back once. */
static void prepare_all(struct talk *t, uint32_t n, struct talk_window *w, struct window *windows)
{
    uint32_t known[LANES + PIECE];
    memcpy(known, w->tokens, sizeof(known));
    for (uint32_t i = 0, row = 0; i < w->n_lanes; row += w->lanes[i++].n_rows) {
        w->lanes[i].late = w->chat[i] < LANES;
        if (w->lanes[i].late) w->tokens[row] = LINK_TOKEN_FED;
    }
    for (uint32_t s = 0; s < t->r->n_stages; s++) {
        memset(t->r->link[s], 0xff, sizeof(float) * t->r->facts.n_embd * t->r->want.max_rows);
        for (uint32_t turns = (n + s) % 5 ? 1 : 2; turns; turns--) {
            model_drop(t->r->stage[s]); /* what is not prepared stays as it is */
            ck_assert_int_eq(rig_prepare(t->r, s, &windows[s], w->lanes, w->n_lanes, w->tokens), 0);
        }
    }
    memcpy(w->tokens, known, sizeof(known));
}

static void talk_prepared(struct talk *t)
{
    struct talk_window w[2];
    for (uint32_t n = 0; n < (uint32_t)n_windows; n++) {
        struct talk_window *now = &w[n % 2];
        struct window windows[RIG_STAGES_MAX] = {0};
        window_make(t, n, n ? &w[(n - 1) % 2] : NULL, false, now);
        prepare_all(t, n, now, windows);
        for (uint32_t s = 0; s < t->r->n_stages; s++) {
            int r = model_launch(t->r->stage[s]);
            ck_assert_int_eq(r, rig_device() != NULL);
            if (r) ck_assert_int_eq(model_finish(t->r->stage[s]), 0);
        }
        tokens_keep(t, n, now);
    }
}

static void same_arenas(const struct rig *a, const struct rig *b)
{
    for (uint32_t s = 0; s < a->n_stages; s++) {
        ck_assert_uint_eq(a->arena_bytes[s], b->arena_bytes[s]);
        ck_assert_int_eq(memcmp(a->arena[s], b->arena[s], a->arena_bytes[s]), 0);
    }
}

static void same_tokens(const struct talk *one, const struct talk *two)
{
    for (int n = 0; n < n_windows; n++)
        for (uint32_t i = 0; i < one->n_lanes; i++)
            ck_assert_msg(one->token[n][i] == two->token[n][i], "window %d, chat %u: %u and %u", n,
                          i, one->token[n][i], two->token[n][i]);
}

START_TEST(windows_prepared_ahead_equal_windows_in_turn)
{
    if (!rig_has_kv(subjects[_i].kv)) return;
    struct talk *one = talk_new(_i, 2), *two = talk_new(_i, 2);
    talk_in_turn(one);
    talk_prepared(two);
    same_tokens(one, two);
    same_arenas(one->r, two->r);
    talk_free(one);
    talk_free(two);
}
END_TEST

START_TEST(fed_windows_equal_windows_in_turn)
{
    if (!rig_has_kv(subjects[_i].kv)) return;
    struct talk *one = talk_new(_i, 1), *two = talk_new(_i, 1);
    talk_in_turn(one);
    uint32_t n_ahead = talk_ahead(two);
    ck_assert_uint_eq(n_ahead, rig_device() ? (uint32_t)n_windows - 1 : 0);
    same_tokens(one, two);
    same_arenas(one->r, two->r);
    talk_free(one);
    talk_free(two);
}
END_TEST

static void ignore(void *arg, uint32_t lane, uint32_t row, const float *logits, uint32_t n)
{
    (void)arg, (void)lane, (void)row, (void)logits, (void)n;
}

/* What the host must look at is not started behind a window, and nothing has happened to it. */
START_TEST(who_needs_the_host_waits_for_the_window_before)
{
    if (!rig_device()) return;
    struct talk *t = talk_new(0, 1);
    struct talk_window w[2];
    window_make(t, 1, NULL, false, &w[0]);
    ck_assert_int_eq(rig_start(t->r, &w[0].window, w[0].lanes, w[0].n_lanes, w[0].tokens), 1);
    window_make(t, 2, &w[0], true, &w[1]);
    struct window seen = {
        .n_rows = 1, .n_lanes = 1, .tokens = w[1].tokens, .lanes = w[1].lanes, .on_logits = ignore};
    ck_assert_int_eq(model_start(t->r->stage[0], &seen), -EAGAIN);
    rig_finish(t->r);
    w[1].tokens[0] = w[0].lanes[0].token;
    w[1].lanes[0].fed_from = 0;
    ck_assert_int_eq(model_start(t->r->stage[0], &seen), 0);
    struct talk *again = talk_new(0, 1);
    window_make(again, 1, NULL, false, &w[0]);
    rig_run(again->r, w[0].lanes, 1, w[0].tokens, NULL, NULL);
    uint32_t token = w[1].lanes[0].token;
    window_make(again, 2, &w[0], false, &w[1]);
    rig_run(again->r, w[1].lanes, 1, w[1].tokens, NULL, NULL);
    ck_assert_uint_eq(token, w[1].lanes[0].token);
    talk_free(t);
    talk_free(again);
}
END_TEST

static void prepared_run(struct talk *t, struct talk_window *w, struct window *window)
{
    ck_assert_int_eq(rig_prepare(t->r, 0, window, w->lanes, w->n_lanes, w->tokens), 0);
    ck_assert_int_eq(model_launch(t->r->stage[0]), 1);
}

/* A window whose rows are to go into an inbox that isn't open. */
START_TEST(a_refused_window_is_no_failure_of_the_one_before)
{
    if (!rig_device()) return;
    struct talk *t = talk_new(0, 2);
    struct talk_window w;
    struct window window;
    size_t bytes = sizeof(float) * t->r->facts.n_embd;
    float *rows = xcalloc(1, bytes);
    window_make(t, 1, NULL, false, &w);
    ck_assert_uint_eq(w.n_lanes, 1);
    rig_run(t->r, w.lanes, w.n_lanes, w.tokens, NULL, NULL);
    memcpy(rows, t->r->link[0], bytes);
    memset(t->r->link[0], 0xff, bytes);
    prepared_run(t, &w, &window);
    struct window refused = window;
    refused.out = NULL;
    refused.out_inbox = true;
    ck_assert_int_eq(model_start(t->r->stage[0], &refused), -EINVAL);
    ck_assert_int_eq(model_finish(t->r->stage[0]), 0);
    ck_assert_int_eq(memcmp(t->r->link[0], rows, bytes), 0);
    memset(t->r->link[0], 0xff, bytes);
    prepared_run(t, &w, &window);
    ck_assert_int_eq(model_finish(t->r->stage[0]), 0);
    ck_assert_int_eq(memcmp(t->r->link[0], rows, bytes), 0);
    free(rows);
    talk_free(t);
}
END_TEST

int main(int argc, char **argv)
{
    folder = argc > 1 ? argv[1] : ".";
    if (argc > 2) n_windows = atoi(argv[2]);
    if (rig_device_missing()) return 77;
    TCase *tc = tcase_create("feed");
    tcase_set_timeout(tc, TIMEOUT_S);
    tcase_add_loop_test(tc, windows_prepared_ahead_equal_windows_in_turn, 0, ARRAY_LEN(subjects));
    tcase_add_loop_test(tc, fed_windows_equal_windows_in_turn, 0, ARRAY_LEN(subjects));
    tcase_add_test(tc, who_needs_the_host_waits_for_the_window_before);
    tcase_add_test(tc, a_refused_window_is_no_failure_of_the_one_before);
    return suite_run_cases("feed", &tc, 1, rig_device() != NULL);
}
