/* SPDX-License-Identifier: MIT */
/*
 * The demo model against tests/data/smollm2, a float32 forward pass in numpy (make_reference.py
 * there). The tolerances are that folder's README's: float32 finds a fault in the graph, which the
 * noise of int8 activations would hide; int8 shows that quantised products are no noisier than they
 * must be.
 */
#include <check.h>
#include <jansson.h>
#include <math.h>

#include "proto/kv_block.h"
#include "tests/numerics/rig.h"
#include "tests/suite.h"

enum {
    VOCAB = 49152,
    N_EMBD = 576,
    PIECE = 250,
    TOP_LOGPROBS = 10,
    IDS_MAX = 4096,
    TIMEOUT_S = 600
};

struct tolerance {
    const char *name, *variant;
    enum model_precision precision;
    uint32_t kv;
    double top, top_long; /* of the top-20 logits, up to and beyond 1,000 tokens */
    double logprob;       /* of the top 10 */
    double swap;          /* the largest may be another when the top two are this close */
    double margin;        /* greedy tokens are compared up to the first margin under this */
    double nll;
    double hidden; /* mean, std and first values of the last vector; 0: not compared */
    bool is_long;  /* long prompt and NLL as well */
};

/* The NLL alone, with float32 activations: how far it may be from that of make_reference.py with K
 * and V in this format, and how much more than with none it may be, as a part of it. Rounding may
 * choose another code than numpy's where a value lies in the middle of two. */
static const struct {
    const char *name;
    uint32_t kv;
    double nll, change;
} kept[] = {
    {"float32, K/V int8", POOL_KV_INT8, 1e-3, 0.001},
    {"float32, K/V k8v4", POOL_KV_K8V4, 5e-3, 0.01 },
    {"float32, K/V q4",   POOL_KV_Q4,   0.03, 0.1  },
};

static const struct tolerance runs[] = {
    {"float32, K/V f32", "auto",   MODEL_FLOAT32, POOL_KV_F32, 1e-3, 3e-3, 1e-3, 0,   0.002, 1e-4, 1e-3,
     true                                                                                                     },
    {"float32, K/V f16", "auto",   MODEL_FLOAT32, POOL_KV_F16, 0.03, 0.03, 0.03, 0,   0.05,  2e-4, 0.03,
     true                                                                                                     },
    {"int8, avx512",     "avx512", MODEL_INT8,    POOL_KV_F16, 1.2,  1.2,  0.6,  0.5, 1.0,   0.02, 0,    true },
    {"int8, avx2",       "avx2",   MODEL_INT8,    POOL_KV_F16, 1.2,  1.2,  0.6,  0.5, 1.0,   0.02, 0,    true },
    {"int8, cuda",       "cuda",   MODEL_INT8,    POOL_KV_F16, 1.2,  1.2,  0.6,  0.5, 1.0,   0.02, 0,    true },
 /* Held to the reference as far as its speed allows. */
    {"int8, plain",      "plain",  MODEL_INT8,    POOL_KV_F16, 1.2,  1.2,  0.6,  0.5, 1.0,   0.02, 0,    false},
};

static const struct tolerance *run;
static bool is_full; /* on a device, and with CHECK=full */
static struct rig *rig;
static json_t *reference, *perplexity;
static float row[VOCAB];

static json_t *data(const char *file)
{
    char path[4096];
    json_error_t error;
    (void)snprintf(path, sizeof(path), "%s/smollm2/%s", getenv("TEST_DATA"), file);
    json_t *j = json_load_file(path, 0, &error);
    if (!j) ck_abort_msg("%s: %s", path, error.text);
    return j;
}

static uint32_t ids_of(const json_t *entry, uint32_t *ids)
{
    const json_t *a = json_object_get(entry, "ids");
    uint32_t n = (uint32_t)json_array_size(a);
    ck_assert_uint_le(n, IDS_MAX);
    for (uint32_t i = 0; i < n; i++)
        ids[i] = (uint32_t)json_integer_value(json_array_get(a, i));
    return n;
}

static double number(const json_t *array, size_t i)
{
    return json_number_value(json_array_get(array, i));
}

static void keep_row(void *arg, uint32_t lane, uint32_t r, const float *logits, uint32_t n)
{
    (void)arg;
    (void)lane;
    (void)r;
    ck_assert_uint_eq(n, VOCAB);
    memcpy(row, logits, sizeof(row));
}

static double log_sum_exp(const float *l)
{
    double most = l[0], sum = 0;
    for (int i = 1; i < VOCAB; i++)
        most = l[i] > most ? l[i] : most;
    for (int i = 0; i < VOCAB; i++)
        sum += exp(l[i] - most);
    return most + log(sum);
}

static void check_position(const char *name, const json_t *at, double tolerance)
{
    const json_t *top = json_object_get(at, "top");
    double norm = json_number_value(json_object_get(at, "logsumexp")), own = log_sum_exp(row);
    double worst = 0, worst_p = 0;
    uint32_t best = 0;
    for (uint32_t i = 1; i < VOCAB; i++)
        best = row[i] > row[best] ? i : best;
    for (size_t i = 0; i < json_array_size(top); i++) {
        const json_t *pair = json_array_get(top, i);
        uint32_t id = (uint32_t)json_integer_value(json_array_get(pair, 0));
        double d = fabs(row[id] - number(pair, 1));
        double p = fabs((row[id] - own) - (number(pair, 1) - norm));
        worst = fmax(worst, d);
        if (i < TOP_LOGPROBS) worst_p = fmax(worst_p, p);
    }
    printf("%s: %s: top-20 %.2g, logprob %.2g\n", run->name, name, worst, worst_p);
    ck_assert_msg(worst <= tolerance, "%s: a top-20 logit is off by %g", name, worst);
    ck_assert_msg(worst_p <= run->logprob, "%s: a logprob is off by %g", name, worst_p);
    uint32_t first = (uint32_t)json_integer_value(json_array_get(json_array_get(top, 0), 0));
    double gap = number(json_array_get(top, 0), 1) - number(json_array_get(top, 1), 1);
    ck_assert_msg(best == first || gap < run->swap, "%s: %u is largest, not %u", name, best, first);
}

static double statistics_off(const json_t *want, const float *v)
{
    const json_t *first = json_object_get(want, "first8");
    double mean = 0, square = 0, worst;
    for (int i = 0; i < N_EMBD; i++)
        mean += v[i] / (double)N_EMBD;
    for (int i = 0; i < N_EMBD; i++)
        square += (v[i] - mean) * (v[i] - mean) / N_EMBD;
    worst = fmax(fabs(mean - json_number_value(json_object_get(want, "mean"))),
                 fabs(sqrt(square) - json_number_value(json_object_get(want, "std"))));
    for (size_t i = 0; i < json_array_size(first); i++)
        worst = fmax(worst, fabs(v[i] - number(first, i)));
    return worst;
}

/* The vector before the output norm is some 14 times as large as the one after it. */
static void check_hidden(const char *name, const json_t *at)
{
    enum { RESIDUAL_SCALE = 14 };
    if (run->hidden == 0) return;
    const float *hidden = model_hidden(rig->stage[0], 0);
    double after = statistics_off(json_object_get(at, "hidden"), hidden);
    const float *residual = model_residual(rig->stage[0], 0);
    double before = statistics_off(json_object_get(at, "residual"), residual);
    printf("%s: %s: hidden %.2g, residual %.2g\n", run->name, name, after, before);
    ck_assert_msg(after <= run->hidden, "%s: the last vector is off by %g", name, after);
    ck_assert_msg(before <= run->hidden * RESIDUAL_SCALE, "%s: the one before its norm by %g", name,
                  before);
}

/* Greedy tokens up to the first that rounding may decide. */
static void check_greedy(const char *name, struct rig_chat *c, const json_t *greedy, uint32_t token)
{
    const json_t *ids = json_object_get(greedy, "ids"),
                 *margins = json_object_get(greedy, "margins");
    size_t i = 0;
    for (; i < json_array_size(ids) && number(margins, i) >= run->margin; i++) {
        ck_assert_msg(token == (uint32_t)json_integer_value(json_array_get(ids, i)),
                      "%s: greedy token %zu is %u", name, i, token);
        token = rig_read(rig, c, &token, 1, 1, WINDOW_LAST, NULL, NULL);
    }
    printf("%s: %s: %zu greedy tokens equal\n", run->name, name, i);
}

START_TEST(prompts_match)
{
    uint32_t ids[IDS_MAX];
    size_t i;
    json_t *entry;
    json_array_foreach(json_object_get(reference, "prompts"), i, entry)
    {
        const char *name = json_string_value(json_object_get(entry, "name"));
        struct rig_chat *c = rig_chat_new(rig);
        uint32_t n = ids_of(entry, ids);
        uint32_t token = rig_read(rig, c, ids, n, PIECE, WINDOW_LAST, keep_row, NULL);
        check_position(name, json_object_get(entry, "last"), run->top);
        check_hidden(name, json_object_get(entry, "last"));
        check_greedy(name, c, json_object_get(entry, "greedy"), token);
        rig_chat_free(c);
        rig->next_chunk = 1;
    }
    ck_assert_uint_gt(i, 0);
}
END_TEST

START_TEST(long_prompt_matches)
{
    static uint32_t ids[IDS_MAX];
    const json_t *entry = json_object_get(reference, "long");
    struct rig_chat *c = rig_chat_new(rig);
    uint32_t n = ids_of(entry, ids), read = 0;
    const char *at;
    json_t *position;
    json_object_foreach(json_object_get(entry, "at"), at, position)
    {
        uint32_t to = (uint32_t)strtoul(at, NULL, 10);
        ck_assert_uint_gt(to, read);
        ck_assert_uint_le(to, n);
        (void)rig_read(rig, c, ids + read, to - read, PIECE, WINDOW_LAST, keep_row, NULL);
        read = to;
        check_position(at, position, run->top_long);
        check_hidden(at, position);
    }
    ck_assert_uint_eq(read, n);
    rig_chat_free(c);
    rig->next_chunk = 1;
}
END_TEST

struct nll {
    const uint32_t *ids;
    uint32_t n, at;
    double sum;
};

static void add_nll(void *arg, uint32_t lane, uint32_t r, const float *logits, uint32_t n)
{
    struct nll *l = arg;
    (void)lane;
    (void)r;
    (void)n;
    if (++l->at < l->n) l->sum += log_sum_exp(logits) - logits[l->ids[l->at]];
}

static double mean_nll(const json_t *entry)
{
    static uint32_t ids[IDS_MAX];
    struct rig_chat *c = rig_chat_new(rig);
    struct nll l = {.ids = ids, .n = ids_of(entry, ids)};
    (void)rig_read(rig, c, ids, l.n, PIECE, WINDOW_ALL, add_nll, &l);
    ck_assert_uint_eq(l.at, l.n);
    rig_chat_free(c);
    rig->next_chunk = 1;
    return l.sum / (l.n - 1);
}

static double nll_of(const json_t *numbers)
{
    const json_t *mean = json_object_get(numbers, "mean_nll");
    ck_assert(json_is_number(mean));
    return json_number_value(mean);
}

START_TEST(likelihood_matches)
{
    const json_t *entry = json_object_get(perplexity, "perplexity");
    double mean = mean_nll(entry), expected = nll_of(json_object_get(entry, "float32"));
    printf("%s: NLL %.6f, expected %.6f\n", run->name, mean, expected);
    ck_assert_msg(fabs(mean - expected) <= run->nll, "NLL %g, expected %g", mean, expected);
}
END_TEST

START_TEST(likelihood_hardly_changes)
{
    const json_t *entry = json_object_get(perplexity, "perplexity");
    const json_t *numpy = json_object_get(json_object_get(entry, "kv"), kv_name(kept[_i].kv));
    double mean = mean_nll(entry), none = nll_of(json_object_get(entry, "float32"));
    double expected = nll_of(numpy), change = mean / none - 1;
    printf("%s: NLL %.6f, expected %.6f; %+.3f %% of %.6f\n", kept[_i].name, mean, expected,
           100 * change, none);
    ck_assert_msg(fabs(mean - expected) <= kept[_i].nll, "NLL %g, expected %g", mean, expected);
    ck_assert_msg(fabs(change) <= kept[_i].change, "the NLL changes by %g %%", 100 * change);
}
END_TEST

/* Of the slow runs, those with float32 activations, the exact one reads the long prompt. */
static void add_reference(TCase *t, int i)
{
    bool is_slow = run->precision == MODEL_FLOAT32 && run->kv != POOL_KV_F32;
    (void)i;
    tcase_add_test(t, prompts_match);
    if (!run->is_long) return;
    if (is_full || !is_slow) tcase_add_test(t, long_prompt_matches);
    tcase_add_test(t, likelihood_matches);
}

static void add_kept(TCase *t, int i)
{
    tcase_add_loop_test(t, likelihood_hardly_changes, i, i + 1);
}

static int run_tests(const char *name, struct rig_want want, void (*add)(TCase *t, int i), int i)
{
    double seconds = rig_seconds();
    want.max_rows = PIECE;
    want.max_lanes = 1;
    rig = rig_new(&want);
    TCase *t = tcase_create("reference");
    tcase_set_timeout(t, TIMEOUT_S);
    add(t, i);
    /* One process: compute threads don't survive a fork, and loading once a run is enough. */
    int failed = suite_run_cases(name, &t, 1, true);
    rig_free(rig);
    printf("%s: %.1f s\n", name, rig_seconds() - seconds);
    return failed;
}

/* Whether a faster variant is there, which has the same bits (test_equal.c). */
static bool has_faster(const char *variant)
{
    static const char *const variants[] = {"avx512", "avx2", "plain"};
    for (size_t i = 0; i + 1 < ARRAY_LEN(variants); i++)
        if (strcmp(variant, variants[i + 1]) == 0) return rig_has_variant(variants[i]);
    return false;
}

int main(void)
{
    int failed = 0;
    if (rig_device_missing()) return 77;
    reference = data("reference.json");
    perplexity = data("perplexity.json");
    const char *check = getenv("CHECK");
    is_full = rig_device() || (check && strcmp(check, "full") == 0);
    for (size_t i = 0; i < ARRAY_LEN(runs); i++) {
        run = &runs[i];
        if (!rig_has_variant(run->variant)) continue;
        if (!is_full && has_faster(run->variant)) continue;
        struct rig_want want = {
            .variant = run->variant, .precision = run->precision, .kv = run->kv};
        failed += run_tests(run->name, want, add_reference, 0);
    }
    for (size_t i = 0; i < ARRAY_LEN(kept); i++) {
        struct rig_want want = {.precision = MODEL_FLOAT32, .kv = kept[i].kv};
        if (rig_has_kv(kept[i].kv)) failed += run_tests(kept[i].name, want, add_kept, (int)i);
    }
    json_decref(reference);
    json_decref(perplexity);
    return failed ? 1 : 0;
}
