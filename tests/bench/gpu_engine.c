/* SPDX-License-Identifier: MIT */
/*
 * Speed of the compute engine on one GPU, without daemons and messages: decoding with some lanes at
 * some depth, and prompts. The K/V of the depth isn't computed but what the arena holds, zeros: the
 * time of a step does not depend on it. Prints CSV, a row as soon as it is measured. Usage:
 *     gpu_engine DEVICE MODEL KV CONTEXT KV_RESIDENT TEST...
 * TEST is prompt:TOKENS:DEPTH[:PIECE] or CHOICE:LANES:DEPTH[:fed]: decode is greedy, the others'
 * names and what they ask for stand below; fed: each window is started while the one before is
 * computed. KV is a format as in pool.kv; KV_RESIDENT counts cells, "all" or 0.
 */
#include <string.h>

#include "proto/kv_block.h"
#include "tests/numerics/rig.h"

enum {
    PIECE = 512, /* of a prompt, when a test names none */
    PIECE_MOST = 4096,
    WARM_UP = 12,   /* decode steps before the clock: graphs are captured, chunks loaded */
    STEPS = 100,    /* of a row */
    BUDGET_S = 20,  /* a row ends after this time with the steps that it has */
    LANES_MAX = 64, /* of one window */
    CHUNK = 256,
};

static const char *device_name;

/* How a test's tokens are chosen: "decode" is greedy. */
static const struct choice {
    const char *test;
    struct sampling sampling;
    uint32_t probs, n_top;
} choices[] = {
    {"decode", {.top_p = 1},                                    0,                  0           },
    {"sample", {.temperature = 1, .top_p = 0.95F, .top_k = 40}, 0,                  0           },
    {"plain",  {.temperature = 1, .top_p = 1},                  0,                  0           },
    {"top_p",  {.temperature = 1, .top_p = 0.95F},              0,                  0           },
    {"probs",  {.top_p = 1},                                    LINK_PROBS_SAMPLED, LINK_TOP_MAX},
};

static struct window_lane lane_of(struct rig *r, struct rig_chat *c, const struct choice *choice,
                                  uint32_t seed)
{
    struct window_lane l = rig_lane(r, c, 1, WINDOW_LAST);
    l.sampling = choice->sampling;
    l.sampling.seed = seed;
    l.probs = choice->probs;
    l.n_top = choice->n_top;
    return l;
}

static void step(struct rig *r, struct rig_chat **c, uint32_t lanes, const struct choice *choice,
                 uint32_t *next)
{
    struct window_lane l[LANES_MAX];
    for (uint32_t i = 0; i < lanes; i++)
        l[i] = lane_of(r, c[i], choice, i);
    rig_run(r, l, lanes, next, NULL, NULL);
    for (uint32_t i = 0; i < lanes; i++)
        next[i] = l[i].token;
}

/* The choice of a test NAME:LANES:DEPTH; NULL when it is none. */
static const struct choice *choice_of(const char *test, unsigned *lanes, unsigned *depth)
{
    char name[16];
    if (sscanf(test, "%15[^:]:%u:%u", name, lanes, depth) != 3) return NULL;
    for (size_t i = 0; i < ARRAY_LEN(choices); i++)
        if (strcmp(choices[i].test, name) == 0) return &choices[i];
    return NULL;
}

/* Windows that begin with what the device has just chosen: `n` of them, or fewer when the time is
 * up. */
static uint32_t steps_fed(struct rig *r, struct rig_chat **c, uint32_t lanes,
                          const struct choice *choice, uint32_t *next, uint32_t n)
{
    struct window w[2];
    struct window_lane l[2][LANES_MAX];
    double end = rig_seconds() + BUDGET_S;
    bool flying = false;
    uint32_t i = 0;
    for (; i < n && rig_seconds() < end; i++) {
        struct window_lane *now = l[i % 2], *before = l[(i + 1) % 2];
        for (uint32_t k = 0; k < lanes; k++) {
            if (i > 0 && !flying) next[k] = before[k].token;
            now[k] = lane_of(r, c[k], choice, k);
            now[k].fed_from = flying ? k + 1 : 0;
        }
        int s = rig_start(r, &w[i % 2], now, lanes, next);
        if (flying) rig_finish(r);
        flying = s > 0;
    }
    if (flying) rig_finish(r);
    for (uint32_t k = 0; k < lanes; k++)
        next[k] = l[(i + 1) % 2][k].token;
    return i;
}

static uint32_t steps_in_turn(struct rig *r, struct rig_chat **c, uint32_t lanes,
                              const struct choice *choice, uint32_t *next, uint32_t n)
{
    double end = rig_seconds() + BUDGET_S;
    uint32_t i = 0;
    for (; i < n && rig_seconds() < end; i++)
        step(r, c, lanes, choice, next);
    return i;
}

static void bench_decode(struct rig *r, const struct choice *choice, bool fed, uint32_t lanes,
                         uint32_t depth)
{
    struct rig_chat *c[LANES_MAX];
    uint32_t next[LANES_MAX];
    for (uint32_t i = 0; i < lanes; i++) {
        c[i] = rig_chat_new(r);
        next[i] = 100 + i;
        rig_reserve(r, c[i], depth + WARM_UP + STEPS);
        c[i]->n_cells = depth;
    }
    uint32_t (*run)(struct rig *, struct rig_chat **, uint32_t, const struct choice *, uint32_t *,
                    uint32_t) = fed ? steps_fed : steps_in_turn;
    r->n_generated = lanes;
    (void)run(r, c, lanes, choice, next, WARM_UP);
    double t = rig_seconds();
    uint32_t n = run(r, c, lanes, choice, next, STEPS);
    double end = rig_seconds();
    printf("\"%s\",%s%s,%u,%u,%.3f,%.1f\n", device_name, choice->test, fed ? " fed" : "", lanes,
           depth, (end - t) / n * 1e3, n * lanes / (end - t));
    (void)fflush(stdout);
    for (uint32_t i = 0; i < lanes; i++)
        rig_chat_free(c[i]);
    r->n_generated = 0;
    r->next_chunk = 1;
}

static void bench_prompt(struct rig *r, uint32_t tokens, uint32_t depth, uint32_t piece)
{
    CLEANUP(freep) uint32_t *ids = xcalloc(tokens, sizeof(*ids));
    for (uint32_t i = 0; i < tokens; i++)
        ids[i] = (i * 7919 + 13) % r->facts.n_vocab;
    struct rig_chat *c = rig_chat_new(r);
    double best = 1e9;
    rig_reserve(r, c, depth + tokens);
    for (int i = 0; i < 3; i++) {
        c->n_cells = depth;
        double t = rig_seconds();
        (void)rig_read(r, c, ids, tokens, piece, WINDOW_LAST, NULL, NULL);
        t = rig_seconds() - t;
        if (t < best) best = t;
    }
    printf("\"%s\",prompt by %u,%u,%u,%.3f,%.1f\n", device_name, piece, tokens, depth, best * 1e3,
           tokens / best);
    (void)fflush(stdout);
    rig_chat_free(c);
    r->next_chunk = 1;
}

/* Chunks that the largest test needs; a prompt counts as one lane. */
static uint32_t chunks_of(char **tests, int n)
{
    uint32_t most = 0;
    for (int i = 0; i < n; i++) {
        unsigned a = 0, depth = 0;
        bool decode = choice_of(tests[i], &a, &depth);
        if (!decode && sscanf(tests[i], "prompt:%u:%u", &a, &depth) != 2) continue;
        uint32_t lanes = decode ? a : 1, cells = depth + (decode ? WARM_UP + STEPS : a);
        most = max_u32(most, lanes * (cells / CHUNK + 1));
    }
    return most;
}

static uint32_t largest_piece(char **tests, int n)
{
    uint32_t most = PIECE;
    for (int i = 0; i < n; i++) {
        unsigned tokens, depth, piece;
        if (sscanf(tests[i], "prompt:%u:%u:%u", &tokens, &depth, &piece) == 3)
            most = max_u32(most, piece);
    }
    return min_u32(most, PIECE_MOST);
}

int main(int argc, char **argv)
{
    if (argc < 7 || setenv("TEST_DEVICE", argv[1], 1) < 0) {
        fprintf(stderr, "usage: gpu_engine DEVICE MODEL KV CONTEXT KV_RESIDENT TEST...\n");
        return 1;
    }
    uint32_t kv = POOL_KV_F32, context = (uint32_t)strtoul(argv[4], NULL, 10);
    bool all = strcmp(argv[5], "all") == 0;
    while (kv_bits(kv, 0) && strcmp(kv_name(kv), argv[3]) != 0)
        kv++;
    struct rig_want want = {
        .path = argv[2],
        .kv = kv,
        .context_tokens = context,
        .max_lanes = LANES_MAX,
        .max_rows = largest_piece(argv + 6, argc - 6) + LANES_MAX,
        .chunk_cells = CHUNK,
        .n_chunks = chunks_of(argv + 6, argc - 6),
        .kv_resident = all ? 0 : strtoull(argv[5], NULL, 10),
        .no_resident = strcmp(argv[5], "0") == 0,
    };
    double t = rig_seconds();
    struct rig *r = rig_new(&want);
    device_name = r->facts.device;
    fprintf(stderr, "loaded in %.3f s, %llu bytes of weights\n", rig_seconds() - t,
            (unsigned long long)r->facts.weight_bytes);
    printf("device,test,lanes or tokens,depth,ms,tokens_per_s\n");
    for (int i = 6; i < argc; i++) {
        unsigned n = 0, depth = 0, piece = PIECE;
        const struct choice *choice = choice_of(argv[i], &n, &depth);
        if (choice && n >= 1 && n <= LANES_MAX)
            bench_decode(r, choice, strstr(argv[i], ":fed") != NULL, n, depth);
        else if (sscanf(argv[i], "prompt:%u:%u:%u", &n, &depth, &piece) >= 2 && n >= 1 &&
                 piece >= 1 && piece <= PIECE_MOST)
            bench_prompt(r, n, depth, piece);
        else
            fprintf(stderr, "%s: not a test\n", argv[i]);
    }
    rig_free(r);
    return 0;
}
