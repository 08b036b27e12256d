/* SPDX-License-Identifier: MIT */
/*
 * Speed of the compute engine alone, without daemons and messages: prompt and decode tokens/s of
 * the demo model. Prints CSV; see tests/bench/README.md for what to record beside it. Usage:
 *     cpu_engine [VARIANT [THREADS]]
 */
#include <string.h>

#include "tests/numerics/rig.h"

enum { PIECE = 512, TIMES = 3, DECODE_TOKENS = 64, DEEPEST = 4096 };

static const struct {
    uint32_t tokens, depth;
} prompts[] = {
    {128, 0   },
    {512, 0   },
    {512, 1024},
    {512, 4096},
};

static const struct {
    uint32_t lanes, depth;
} decodes[] = {
    {1, 0   },
    {1, 1024},
    {1, 4096},
    {8, 0   },
    {8, 1024},
};

static void tokens_fill(uint32_t *tokens, uint32_t n, uint32_t n_vocab)
{
    for (uint32_t i = 0; i < n; i++)
        tokens[i] = (i * 7919 + 13) % n_vocab;
}

static void print_row(const struct rig *r, const char *test, uint32_t tokens, uint32_t depth,
                      uint32_t lanes, double best, uint32_t n)
{
    printf("\"%s\",%s,%u,%u,%u,%.1f\n", r->facts.device, test, tokens, depth, lanes, n / best);
    (void)fflush(stdout);
}

static void bench_prompt(struct rig *r, const uint32_t *ids, uint32_t n, uint32_t depth)
{
    struct rig_chat *c = rig_chat_new(r);
    double best = 1e9;
    if (depth) (void)rig_read(r, c, ids, depth, PIECE, WINDOW_NONE, NULL, NULL);
    for (int i = 0; i < TIMES; i++) {
        c->n_cells = depth;
        double t = rig_seconds();
        (void)rig_read(r, c, ids + depth, n, PIECE, WINDOW_LAST, NULL, NULL);
        t = rig_seconds() - t;
        if (t < best) best = t;
    }
    print_row(r, "prompt", n, depth, 1, best, n);
    rig_chat_free(c);
    r->next_chunk = 1;
}

static void bench_decode(struct rig *r, const uint32_t *ids, uint32_t lanes, uint32_t depth)
{
    struct rig_chat *c[RIG_LANES_MAX];
    uint32_t next[RIG_LANES_MAX];
    double best = 1e9;
    for (uint32_t i = 0; i < lanes; i++) {
        c[i] = rig_chat_new(r);
        next[i] = 100 + i;
        if (depth) (void)rig_read(r, c[i], ids, depth, PIECE, WINDOW_NONE, NULL, NULL);
    }
    for (int time = 0; time < TIMES; time++) {
        double t = rig_seconds();
        for (uint32_t i = 0; i < lanes; i++)
            c[i]->n_cells = depth;
        for (uint32_t n = 0; n < DECODE_TOKENS; n++) {
            struct window_lane l[RIG_LANES_MAX];
            for (uint32_t i = 0; i < lanes; i++)
                l[i] = rig_lane(r, c[i], 1, WINDOW_LAST);
            rig_run(r, l, lanes, next, NULL, NULL);
            for (uint32_t i = 0; i < lanes; i++)
                next[i] = l[i].token;
        }
        t = rig_seconds() - t;
        if (t < best) best = t;
    }
    print_row(r, "decode", DECODE_TOKENS, depth, lanes, best, DECODE_TOKENS * lanes);
    for (uint32_t i = 0; i < lanes; i++)
        rig_chat_free(c[i]);
    r->next_chunk = 1;
}

int main(int argc, char **argv)
{
    struct rig_want want = {
        .variant = argc > 1 ? argv[1] : "auto",
        .n_threads = argc > 2 ? (uint32_t)strtoul(argv[2], NULL, 10) : 2,
        .context_tokens = 8192,
        .n_chunks = 64,
    };
    double t = rig_seconds();
    struct rig *r = rig_new(&want);
    fprintf(stderr, "loaded in %.3f s, %llu bytes of weights\n", rig_seconds() - t,
            (unsigned long long)r->facts.weight_bytes);
    CLEANUP(freep) uint32_t *ids = xcalloc(DEEPEST + PIECE, sizeof(*ids));
    tokens_fill(ids, DEEPEST + PIECE, r->facts.n_vocab);
    printf("device,test,tokens,depth,lanes,tokens_per_s\n");
    for (size_t i = 0; i < ARRAY_LEN(prompts); i++)
        bench_prompt(r, ids, prompts[i].tokens, prompts[i].depth);
    for (size_t i = 0; i < ARRAY_LEN(decodes); i++)
        bench_decode(r, ids, decodes[i].lanes, decodes[i].depth);
    rig_free(r);
    return 0;
}
