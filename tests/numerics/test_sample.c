/* SPDX-License-Identifier: MIT */
/*
 * The operation sample of a backend against sampler.h's sampler_do, which tests/unit/test_sampler.c
 * holds to numbers worked out elsewhere: tokens and log-probabilities have the same bits, for rows
 * of every kind that a model can make and some that none does, alone and beside others. On the CPU,
 * or on $TEST_DEVICE. Argument: "short" for fewer and smaller ones.
 */
#include <check.h>
#include <math.h>
#include <string.h>
#include <sys/mman.h>

#include "proto/kv_block.h"
#include "tests/numerics/rig.h"
#include "tests/suite.h"
#include "workerd/backend.h"
#ifdef CISTERN_CUDA
#include "workerd/cuda/backend_cuda.h"
#endif

enum {
    HEAD_DIM = 16,
    BLOCK_CELLS = 64,
    ARENA_BYTES = 1 << 20,
    PAST = 3000,
    ROWS_MAX = 64,
    TIMEOUT_S = 600,
};

static const uint32_t vocabularies[] = {1, 2, 33, 1000, 4096, 4097, 49152, 128256};
static bool is_short;

/* xorshift64* (Vigna 2016). */
static uint64_t state = 88172645463325252u;
static uint64_t next_random(void)
{
    state ^= state >> 12;
    state ^= state << 25;
    state ^= state >> 27;
    return state * UINT64_C(0x2545f4914f6cdd1d);
}
static uint32_t below(uint32_t n) { return (uint32_t)(next_random() >> 33) % n; }
static double uniform(void) { return (double)(next_random() >> 11) * 0x1p-53; }
static float normal(double deviation) /* the sum of twelve */
{
    double sum = -6;
    for (int i = 0; i < 12; i++)
        sum += uniform();
    return (float)(sum * deviation);
}

/* ---- rows ---- */

enum row_kind {
    PEAKED, /* as a model's: some stand out of many */
    FLAT,   /* much within the reach of every filter */
    EQUAL,
    TIED,   /* a few values */
    ZEROS,  /* of both signs, and the least numbers there are */
    BANNED, /* most are -INFINITY */
    ALL_BANNED,
    ONE_NAN,
    NANS,
    INFINITIES,
    EXTREME, /* the largest numbers there are, of both signs */
    STEEP,   /* one apart: nearly all have no mass */
    ROW_KINDS
};

static float logit_of(enum row_kind kind, uint32_t i, uint32_t n)
{
    static const float tiny[] = {0.0F, -0.0F, 1e-45F, -1e-45F, 1e-38F};
    switch (kind) {
    case PEAKED:
        return normal(2) + (i % 997 == 3 ? 12 - (float)(i / 997) * 0.2F : 0);
    case FLAT:
        return normal(0.05);
    case EQUAL:
        return -7;
    case TIED:
        return (float)below(5) * 0.75F;
    case ZEROS:
        return tiny[below(5)];
    case BANNED:
        return below(50) ? -INFINITY : normal(3);
    case ALL_BANNED:
        return -INFINITY;
    case ONE_NAN:
        return i == n / 2 ? NAN : normal(2);
    case NANS:
        return NAN;
    case INFINITIES:
        return below(3) ? normal(1) : below(2) ? INFINITY : -INFINITY;
    case EXTREME:
        return below(2) ? 3.4e38F : -3.4e38F;
    default:
        return -(float)(i ^ 21);
    }
}

/* What is asked: a row of each of the first, with one of the second. */
static const struct filter {
    float temperature, top_p, min_p;
    uint32_t top_k;
} filters[] = {
    {0,        1,         0,      0     },
    {1,        1,         0,      0     },
    {0.3F,     1,         0,      0     },
    {1e-6F,    1,         0,      0     },
    {1e6F,     1,         0,      0     },
    {INFINITY, 1,         0,      0     },
    {NAN,      0.5F,      0,      0     },
    {1,        0.95F,     0,      40    },
    {0.7F,     1,         0,      1     },
    {1.5F,     1,         0,      1024  },
    {1.5F,     0.9F,      0,      1025  },
    {1,        1,         0,      128255},
    {1,        1,         0,      500000},
    {1,        0.95F,     0,      0     },
    {1,        0.5F,      0,      0     },
    {2,        0.999F,    0,      0     },
    {1,        0,         0,      0     },
    {1,        -INFINITY, 0,      0     },
    {1,        NAN,       0,      0     },
    {1,        1,         0.05F,  0     },
    {1,        1,         1,      0     },
    {1,        1,         2,      0     },
    {1,        1,         1e-12F, 0     },
    {0.8F,     0.9F,      0.02F,  50    },
    {0.8F,     0.99F,     0.9F,   2000  },
};
static const struct penalty {
    uint32_t repeat_last;
    float repeat, presence, frequency;
} penalties[] = {
    {0,          0,    0,    0    },
    {0,          0,    0,    0    },
    {0,          0,    0.5F, 0    },
    {0,          1,    -1,   0.25F},
    {64,         1.3F, 0,    0    },
    {UINT32_MAX, 0.7F, 0,    0    },
    {500,        1.1F, 1,    0.1F },
    {0,          0,    0,    3    },
};

static struct sampling sampling_of(const struct filter *f)
{
    const struct penalty *p = &penalties[below(ARRAY_LEN(penalties))];
    return (struct sampling){
        .temperature = f->temperature,
        .top_p = f->top_p,
        .min_p = f->min_p,
        .top_k = f->top_k,
        .seed = next_random(),
        .repeat_last = p->repeat_last,
        .repeat = p->repeat,
        .presence = p->presence,
        .frequency = p->frequency,
    };
}

/* ---- the backend ---- */

struct bench {
    const struct backend_ops *ops;
    struct backend *b;
    struct backend_buffer *x;
    struct pool_arena *arena;
    uint32_t n_vocab, width;
};

static const double no_turn[HEAD_DIM / 2];

static struct pool_arena *arena_new(uint64_t block_bytes)
{
    struct pool_arena *a =
        mmap(NULL, ARENA_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    ck_assert(a != MAP_FAILED);
    a->magic = POOL_ARENA_MAGIC;
    a->bytes = ARENA_BYTES;
    a->n_runs = 1;
    a->chunk_cells = a->block_cells = BLOCK_CELLS;
    a->n_chunks = 4;
    a->run[0] = (struct pool_run){
        .layer = 0, .kind = POOL_RUN_KV, .off = ARENA_BYTES / 2, .block_bytes = block_bytes};
    return a;
}

static struct bench bench_new(uint32_t n_vocab)
{
    struct bench s = {.ops = &cpu_backend, .n_vocab = n_vocab, .width = (n_vocab + 31) / 32 * 32};
    struct why why = {""};
#ifdef CISTERN_CUDA
    if (rig_device()) s.ops = &cuda_backend;
#endif
    uint64_t block =
        kv_block_of(POOL_KV_F16, 1, HEAD_DIM, BLOCK_CELLS, rig_device() ? KV_BY_CELL : KV_BY_DIM)
            .bytes;
    struct backend_want want = {
        .n_embd = s.width, /* the rows come as activations do */
        .n_heads = 1,
        .n_kv_heads = 1,
        .head_dim = HEAD_DIM,
        .n_layers = 1,
        .n_vocab = n_vocab,
        .rope_dims = HEAD_DIM,
        .rope_freq = no_turn,
        .eps = 1e-5F,
        .kv = POOL_KV_F16,
        .block_cells = BLOCK_CELLS,
        .block_bytes = block,
        .max_rows = ROWS_MAX,
        .max_lanes = ROWS_MAX,
        .context_tokens = PAST,
        .max_past = ROWS_MAX * PAST,
        .n_threads = 2,
        .device = rig_device(),
    };
    ck_assert_msg(s.ops->open(&want, &why, &s.b) == 0, "%s", why.text);
    struct backend_buffer_want x = {.max_rows = ROWS_MAX, .width = s.width};
    ck_assert_int_eq(s.ops->buffer(s.b, &x, &why, &s.x), 0);
    s.arena = arena_new(block);
    ck_assert_msg(s.ops->use_arena(s.b, s.arena, 0, &why) == 0, "%s", why.text);
    return s;
}

static void bench_free(struct bench *s)
{
    s->ops->close(s->b);
    (void)munmap(s->arena, ARENA_BYTES);
}

static void bench_do(const struct bench *s, const float *logits, struct sampler_row *rows,
                     uint32_t n)
{
    struct window_lane lanes[ROWS_MAX];
    const uint64_t table[] = {pool_entry(1, 1)};
    for (uint32_t i = 0; i < n; i++)
        lanes[i] = (struct window_lane){.table = table, .n_table = 1, .n_rows = 1, .first_row = i};
    struct window w = {.n_rows = n, .n_lanes = n, .lanes = lanes, .in = logits};
    s->ops->begin(s->b, &w);
    s->ops->load(s->b, s->x, logits);
    s->ops->sample(s->b, s->x, rows);
    ck_assert_int_eq(s->ops->sync(s->b), 0);
}

/* ---- the tests ---- */

struct asked_rows {
    float *logits; /* [ROWS_MAX][width] */
    uint32_t *past;
    struct link_bias biases[40];
    struct link_probs got[ROWS_MAX], expected[ROWS_MAX];
    struct sampler_row rows[ROWS_MAX];
    struct sampling sampling[ROWS_MAX];
};

static void rows_fini(struct asked_rows *r)
{
    free(r->logits);
    free(r->past);
}

static void rows_init(struct asked_rows *r, const struct bench *s)
{
    memset(r, 0, sizeof(*r));
    r->logits = xcalloc((size_t)ROWS_MAX * s->width, sizeof(float));
    r->past = xcalloc(PAST, sizeof(uint32_t));
    for (uint32_t i = 0; i < PAST; i++)
        r->past[i] = below(4) ? below(s->n_vocab) : below(min_u32(20, s->n_vocab));
    for (uint32_t i = 0; i < ARRAY_LEN(r->biases); i++)
        r->biases[i] =
            (struct link_bias){below(min_u32(s->n_vocab, 6000)), below(5) ? normal(3) : -INFINITY};
}

static void row_make(struct asked_rows *r, const struct bench *s, uint32_t i, enum row_kind kind,
                     uint32_t what)
{
    struct sampling *a = &r->sampling[i];
    *a = sampling_of(&filters[what]);
    if (below(3) == 0) {
        a->biases = r->biases;
        a->n_biases = 1 + below(ARRAY_LEN(r->biases));
    }
    for (uint32_t k = 0; k < s->n_vocab; k++)
        r->logits[(size_t)i * s->width + k] = logit_of(kind, k, s->n_vocab);
    uint32_t n = below(PAST + 1);
    r->rows[i] = (struct sampler_row){
        .sampling = below(16) ? a : NULL,
        .past = {r->past, n, below(n + 1)},
        .pos = below(1 << 20),
        .token = UINT32_MAX,
        .probs = below(2) ? &r->got[i] : NULL,
        .of = below(2) ? LINK_NEXT_SAMPLED : below(s->n_vocab),
        .n_top = below(2) ? below(LINK_TOP_MAX + 4) : 0,
    };
    if (!r->rows[i].sampling && r->rows[i].of == LINK_NEXT_SAMPLED) r->rows[i].of = 0;
    memset(&r->got[i], 0xa5, sizeof(r->got[i]));
}

static void check_rows(struct asked_rows *r, const struct bench *s, struct sampler *host,
                       uint32_t n, const char *what)
{
    bench_do(s, r->logits, r->rows, n);
    for (uint32_t i = 0; i < n; i++) {
        struct sampler_row e = r->rows[i];
        e.token = UINT32_MAX;
        if (e.probs) e.probs = &r->expected[i];
        sampler_do(host, r->logits + (size_t)i * s->width, &e);
        if (e.token != r->rows[i].token)
            ck_abort_msg("%s of %u: row %u: token %u, expected %u", what, s->n_vocab, i,
                         r->rows[i].token, e.token);
        if (e.probs && memcmp(&r->got[i], &r->expected[i], sizeof(r->got[i])) != 0)
            ck_abort_msg("%s of %u: row %u: probabilities differ: %.9g, expected %.9g; first of %u "
                         "is %u, expected %u",
                         what, s->n_vocab, i, (double)r->got[i].logprob,
                         (double)r->expected[i].logprob, r->got[i].n_top, r->got[i].top[0].id,
                         r->expected[i].top[0].id);
    }
}

/* Every kind of row with every filter, all filters at once. */
START_TEST(every_row_has_the_hosts_bits)
{
    uint32_t n_vocab = vocabularies[_i];
    struct bench s = bench_new(n_vocab);
    struct sampler *host = sampler_new(n_vocab);
    struct asked_rows r;
    for (uint32_t kind = 0; kind < ROW_KINDS; kind++) {
        char what[32];
        (void)snprintf(what, sizeof(what), "kind %u", kind);
        rows_init(&r, &s);
        for (uint32_t i = 0; i < ARRAY_LEN(filters); i++)
            row_make(&r, &s, i, kind, i);
        check_rows(&r, &s, host, ARRAY_LEN(filters), what);
        rows_fini(&r);
    }
    sampler_free(host);
    bench_free(&s);
}
END_TEST

/* From 1 to 64 rows of all kinds, so that lists are of every shape, captured ones too. */
START_TEST(windows_of_any_size)
{
    uint32_t n_vocab = 5000, times = is_short ? 2 : 3;
    struct bench s = bench_new(n_vocab);
    struct sampler *host = sampler_new(n_vocab);
    struct asked_rows r;
    for (uint32_t n = 1; n <= ROWS_MAX; n += n < 8 ? 1 : is_short ? 28 : 7)
        for (uint32_t k = 0; k < times; k++) {
            rows_init(&r, &s);
            for (uint32_t i = 0; i < n; i++)
                row_make(&r, &s, i, below(ROW_KINDS), below(ARRAY_LEN(filters)));
            check_rows(&r, &s, host, n, "a window");
            rows_fini(&r);
        }
    sampler_free(host);
    bench_free(&s);
}
END_TEST

/* Nothing is asked but the largest: the short way. */
START_TEST(greedy_rows)
{
    uint32_t n_vocab = vocabularies[_i];
    struct bench s = bench_new(n_vocab);
    struct sampler *host = sampler_new(n_vocab);
    struct asked_rows r;
    rows_init(&r, &s);
    for (uint32_t i = 0; i < ROW_KINDS; i++) {
        row_make(&r, &s, i, i, 0);
        r.sampling[i] = (struct sampling){.top_p = 1};
        r.rows[i].sampling = &r.sampling[i];
        r.rows[i].probs = NULL;
    }
    check_rows(&r, &s, host, ROW_KINDS, "greedy");
    rows_fini(&r);
    sampler_free(host);
    bench_free(&s);
}
END_TEST

int main(int argc, char **argv)
{
    is_short = argc > 1 && strcmp(argv[1], "short") == 0;
    if (rig_device_missing()) return 77;
    TCase *rows = tcase_create("rows"), *windows = tcase_create("windows");
    TCase *all[] = {rows, windows}; /* CK_RUN_CASE runs one */
    int n = (int)ARRAY_LEN(vocabularies);
    tcase_add_loop_test(rows, every_row_has_the_hosts_bits, 0, is_short ? n - 2 : n);
    tcase_add_test(windows, windows_of_any_size);
    tcase_add_loop_test(windows, greedy_rows, 0, n);
    for (size_t i = 0; i < ARRAY_LEN(all); i++)
        tcase_set_timeout(all[i], TIMEOUT_S);
    return suite_run_cases("sample", all, ARRAY_LEN(all), rig_device() != NULL);
}
