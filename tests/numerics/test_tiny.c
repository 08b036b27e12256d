/* SPDX-License-Identifier: MIT */
/*
 * Every weight type and several shapes against the float64 forward pass of tests/data/make_tiny.py,
 * which is written from the papers and shares no code with the engine. And files that must be
 * refused. Argument: the folder of the tiny models.
 */
#include <check.h>
#include <fcntl.h>
#include <jansson.h>
#include <math.h>
#include <string.h>

#include "proto/kv_block.h"
#include "tests/numerics/rig.h"
#include "tests/suite.h"

enum { VOCAB_MAX = 512, IDS_MAX = 64, TIMEOUT_S = 300 };

static const char *const mixes[] = {"q4_1", "q4_0", "q8_0", "f16", "f32", "mixed"};

/* Of logits whose standard deviation is about 1.5. float32: rounding of float32 sums (measured
 * 2e-5). int8: measured rms 0.07; leaving out a type's minimum, or an offset of its codes by one,
 * gives more than 0.1 for each type it was tried with. K/V as codes: held to the pass that keeps
 * the same codes; measured 2e-5, and 0.017 where a value lies so close to the middle of two codes
 * that float32 chooses the other one. */
static const struct {
    enum model_precision precision;
    uint32_t kv;
    double bound, rms;
} runs[] = {
    {MODEL_FLOAT32, POOL_KV_F32,  1e-4, 1e-5},
    {MODEL_FLOAT32, POOL_KV_F16,  0.03, 3e-3},
    {MODEL_INT8,    POOL_KV_F16,  0.8,  0.1 },
    {MODEL_FLOAT32, POOL_KV_INT8, 0.05, 5e-3},
    {MODEL_FLOAT32, POOL_KV_K8V4, 0.05, 5e-3},
    {MODEL_FLOAT32, POOL_KV_Q4,   0.05, 5e-3},
};

static const char *folder;

struct rows {
    const json_t *expected;
    uint32_t n, n_logits;
    double worst, squares;
};

static void compare_row(void *arg, uint32_t lane, uint32_t row, const float *logits, uint32_t n)
{
    struct rows *r = arg;
    const json_t *expected = json_array_get(r->expected, r->n++);
    (void)lane;
    (void)row;
    ck_assert_uint_eq(json_array_size(expected), n);
    r->n_logits += n;
    for (uint32_t i = 0; i < n; i++) {
        double d = logits[i] - json_number_value(json_array_get(expected, i));
        r->worst = fmax(r->worst, fabs(d));
        r->squares += d * d;
    }
}

static json_t *expected_of(const char *mix)
{
    char path[4096];
    json_error_t error;
    (void)snprintf(path, sizeof(path), "%s/tiny_%s.json", folder, mix);
    json_t *j = json_load_file(path, 0, &error);
    if (!j) ck_abort_msg("%s: %s", path, error.text);
    return j;
}

START_TEST(logits_match_the_float64_pass)
{
    const char *mix = mixes[(size_t)_i / ARRAY_LEN(runs)];
    size_t run = (size_t)_i % ARRAY_LEN(runs);
    char path[4096];
    uint32_t ids[IDS_MAX];
    json_t *j = expected_of(mix);
    const json_t *a = json_object_get(j, "ids");
    uint32_t n = (uint32_t)json_array_size(a);
    ck_assert_uint_le(n, IDS_MAX);
    for (uint32_t i = 0; i < n; i++)
        ids[i] = (uint32_t)json_integer_value(json_array_get(a, i));
    (void)snprintf(path, sizeof(path), "%s/tiny_%s.gguf", folder, mix);
    struct rig_want want = {.path = path,
                            .precision = runs[run].precision,
                            .kv = runs[run].kv,
                            .n_threads = 1,
                            .context_tokens = 256};
    struct rig *r = rig_new(&want);
    struct rig_chat *c = rig_chat_new(r);
    const json_t *as_kept = json_object_get(json_object_get(j, "kv"), kv_name(runs[run].kv));
    struct rows rows = {.expected = as_kept ? as_kept : json_object_get(j, "logits")};
    (void)rig_read(r, c, ids, n, n, WINDOW_ALL, compare_row, &rows);
    double rms = sqrt(rows.squares / rows.n_logits);
    printf("%s, run %zu: %.2g, rms %.2g\n", mix, run, rows.worst, rms);
    ck_assert_uint_eq(rows.n, n);
    ck_assert_msg(rows.worst <= runs[run].bound, "%s: a logit is off by %g", mix, rows.worst);
    ck_assert_msg(rms <= runs[run].rms, "%s: the logits' rms is off by %g", mix, rms);
    rig_chat_free(c);
    rig_free(r);
    json_decref(j);
}
END_TEST

/* What a want is refused for, and a word of the sentence. */
static const struct {
    struct model_want want;
    const char *word;
} refused[] = {
    {{.n_layers = 5, .kv = POOL_KV_F16, .max_rows = 8, .max_lanes = 1, .context_tokens = 64},
     "layers 0 to 4"                                                                                        },
    {{.first_layer = 4, .n_layers = 1, .kv = POOL_KV_F16, .max_rows = 8, .max_lanes = 1},
     "layers 4 to 4"                                                                                        },
    {{.n_layers = 4, .kv = 9, .max_rows = 8, .max_lanes = 1, .context_tokens = 64},           "K/V format 9"},
    {{.n_layers = 4, .kv = POOL_KV_F16, .max_rows = 0, .max_lanes = 1, .context_tokens = 64},
     "0 rows"                                                                                               },
    {{.n_layers = 4, .kv = POOL_KV_F16, .max_rows = 8, .max_lanes = 1},                       "context"     },
    {{.n_layers = 4,
      .kv = POOL_KV_F16,
      .max_rows = 8,
      .max_lanes = 1,
      .context_tokens = 64,
      .variant = "sse9"},
     "sse9"                                                                                                 },
    {{.n_layers = 4,
      .kv = POOL_KV_F16,
      .max_rows = 8,
      .max_lanes = 1,
      .context_tokens = 64,
      .cpus = "0-"},
     "list of processors"                                                                                   },
};

START_TEST(wants_are_refused_by_name)
{
    char path[4096];
    struct why why = {""};
    struct gguf *g;
    struct model *m = NULL;
    (void)snprintf(path, sizeof(path), "%s/tiny_q4_1.gguf", folder);
    ck_assert_int_eq(gguf_open(path, &why, &g), 0);
    ck_assert_int_lt(model_load(g, &refused[_i].want, NULL, NULL, &why, &m), 0);
    ck_assert_msg(strstr(why.text, refused[_i].word) != NULL, "said: %s", why.text);
    ck_assert_ptr_null(m);
    gguf_free(g);
}
END_TEST

/* Bytes of a good file that are changed, same length, and a word of the sentence that follows. */
static const struct {
    const char *from, *to, *word;
} faults[] = {
    {"blk.2.ffn_up.weight",        "blk.2.ffn_uq.weight",        "blk.2.ffn_uq.weight"         },
    {"output_norm.weight",         "output_norn.weight",         "no tensor output_norm.weight"},
    {"general.architecture\x08",   "general.architecturx\x08",   "no general.architecture"     },
    {"llama.block_count",          "llama.block_counx",          "llama.block_count is missing"},
    {"llama.rope.dimension_count", "llama.rope.dimension_counx", NULL                          },
};

static char *file_bytes(const char *path, size_t *ret_n)
{
    CLEANUP(fclosep) FILE *f = fopen(path, "rb");
    ck_assert_ptr_nonnull(f);
    (void)fseek(f, 0, SEEK_END);
    *ret_n = (size_t)ftell(f);
    rewind(f);
    char *at = xcalloc(*ret_n, 1);
    ck_assert_uint_eq(fread(at, 1, *ret_n, f), *ret_n);
    return at;
}

static int load_changed(const char *from, const char *to, struct why *why)
{
    char path[4096], changed[] = "/tmp/cistern-tiny-XXXXXX";
    size_t n, length = strlen(from);
    struct gguf *g;
    struct model *m = NULL;
    (void)snprintf(path, sizeof(path), "%s/tiny_q4_1.gguf", folder);
    CLEANUP(freep) char *at = file_bytes(path, &n);
    char *where = memmem(at, n, from, length);
    ck_assert_ptr_nonnull(where);
    memcpy(where, to, length);
    CLEANUP(closep) int fd = mkstemp(changed);
    ck_assert_int_eq(write(fd, at, n), (ssize_t)n);
    int r = gguf_open(changed, why, &g);
    (void)unlink(changed);
    ck_assert_msg(r == 0, "%s", why->text);
    struct model_want want = {
        .n_layers = 4, .kv = POOL_KV_F16, .max_rows = 8, .max_lanes = 1, .context_tokens = 64};
    r = model_load(g, &want, NULL, NULL, why, &m);
    model_free(m);
    gguf_free(g);
    return r;
}

START_TEST(files_are_refused_by_name)
{
    struct why why = {""};
    int r = load_changed(faults[_i].from, faults[_i].to, &why);
    if (!faults[_i].word) { /* an optional key: as good without */
        ck_assert_msg(r == 0, "%s", why.text);
        return;
    }
    ck_assert_int_lt(r, 0);
    ck_assert_msg(strstr(why.text, faults[_i].word) != NULL, "said: %s", why.text);
}
END_TEST

/* Windows that no lawful stage sends. */
START_TEST(windows_are_bounded)
{
    char path[4096];
    (void)snprintf(path, sizeof(path), "%s/tiny_q4_1.gguf", folder);
    struct rig_want want = {
        .path = path, .n_threads = 1, .max_rows = 8, .max_lanes = 2, .context_tokens = 64};
    struct rig *r = rig_new(&want);
    uint64_t table[1] = {0};
    uint32_t tokens[16] = {0};
    struct window_lane good = {.table = table, .n_table = 1, .n_rows = 2, .want = WINDOW_LAST};
    struct window_lane lanes[2] = {good, good};
    struct window w = {.n_rows = 4, .n_lanes = 2, .tokens = tokens, .lanes = lanes};
    ck_assert_int_lt(model_run(r->stage[0], &w), 0); /* both begin at row 0 */
    lanes[1].first_row = 2;
    ck_assert_int_eq(model_run(r->stage[0], &w), 0);
    lanes[1].n_rows = 3; /* more than the window has */
    ck_assert_int_lt(model_run(r->stage[0], &w), 0);
    w.n_rows = 9; /* more than the largest */
    lanes[1].n_rows = 7;
    ck_assert_int_lt(model_run(r->stage[0], &w), 0);
    w.n_rows = 3;
    lanes[1].n_rows = 1;
    lanes[1].pos = 65; /* past the context */
    ck_assert_int_lt(model_run(r->stage[0], &w), 0);
    rig_free(r);
}
END_TEST

int main(int argc, char **argv)
{
    folder = argc > 1 ? argv[1] : ".";
    TCase *t = tcase_create("tiny");
    tcase_set_timeout(t, TIMEOUT_S);
    tcase_add_loop_test(t, logits_match_the_float64_pass, 0,
                        (int)(ARRAY_LEN(mixes) * ARRAY_LEN(runs)));
    tcase_add_loop_test(t, wants_are_refused_by_name, 0, (int)ARRAY_LEN(refused));
    tcase_add_loop_test(t, files_are_refused_by_name, 0, (int)ARRAY_LEN(faults));
    tcase_add_test(t, windows_are_bounded);
    return suite_run("tiny", t);
}
