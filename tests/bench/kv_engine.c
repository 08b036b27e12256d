/* SPDX-License-Identifier: MIT */
/*
 * Speed of the compute engine on the CPU with K and V in each format of pool.kv, on the demo model.
 * Formats alternate within a round, so that a drift of the machine meets all of them; a row holds
 * the median and the best of the rounds. One thread, and seconds are those that the processor gave
 * it, so that what else runs hardly counts. Cells before a test's tokens hold zeros: a step reads
 * as many bytes for them. Prints CSV. Usage: kv_engine [VARIANT [ROUNDS]]
 */
#include <string.h>
#include <time.h>

#include "proto/kv_block.h"
#include "tests/numerics/rig.h"

enum { PIECE = 512, CONTEXT = 8704, ROUNDS_MAX = 101 };

static const uint32_t formats[] = {POOL_KV_F32, POOL_KV_F16, POOL_KV_INT8, POOL_KV_K8V4,
                                   POOL_KV_Q4};
static const struct {
    const char *name;
    uint32_t tokens, piece, depth;
} tests[] = {
    {"decode", 16,  1,   0   },
    {"decode", 16,  1,   4096},
    {"decode", 16,  1,   8192},
    {"prompt", 128, 128, 4096},
};

static double speed[ARRAY_LEN(formats)][ARRAY_LEN(tests)][ROUNDS_MAX];

static double cpu_seconds(void)
{
    struct timespec t;
    (void)clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static double measure(struct rig *r, size_t test)
{
    static uint32_t ids[PIECE];
    struct rig_chat *c = rig_chat_new(r);
    r->next_chunk = 1;
    c->n_cells = tests[test].depth;
    rig_reserve(r, c, tests[test].depth + tests[test].tokens);
    double t = cpu_seconds();
    (void)rig_read(r, c, ids, tests[test].tokens, tests[test].piece, WINDOW_LAST, NULL, NULL);
    t = cpu_seconds() - t;
    rig_chat_free(c);
    return tests[test].tokens / t;
}

static int compare(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

int main(int argc, char **argv)
{
    struct rig *r[ARRAY_LEN(formats)];
    uint32_t rounds = argc > 2 ? (uint32_t)strtoul(argv[2], NULL, 10) : 11;
    rounds = max_u32(1, min_u32(rounds, ROUNDS_MAX));
    for (size_t i = 0; i < ARRAY_LEN(formats); i++) {
        struct rig_want want = {
            .variant = argc > 1 ? argv[1] : "auto",
            .n_threads = 1,
            .kv = formats[i],
            .max_lanes = 1,
            .max_rows = PIECE,
            .context_tokens = CONTEXT,
        };
        r[i] = rig_new(&want);
        rig_fill(r[i], 0); /* pages of their own, not the kernel's one of zeros */
    }
    for (uint32_t round = 0; round < rounds; round++)
        for (size_t test = 0; test < ARRAY_LEN(tests); test++)
            for (size_t i = 0; i < ARRAY_LEN(formats); i++)
                speed[i][test][round] = measure(r[i], test);
    printf("device,kv,bytes_a_cell,test,tokens,depth,median_tokens_per_s,best\n");
    for (size_t test = 0; test < ARRAY_LEN(tests); test++)
        for (size_t i = 0; i < ARRAY_LEN(formats); i++) {
            const struct model_facts *f = &r[i]->facts;
            qsort(speed[i][test], rounds, sizeof(double), compare);
            printf("\"%s\",%s,%llu,%s,%u,%u,%.1f,%.1f\n", f->device, kv_name(formats[i]),
                   (unsigned long long)(f->block_bytes / f->block_cells * f->n_layers),
                   tests[test].name, tests[test].tokens, tests[test].depth,
                   speed[i][test][rounds / 2], speed[i][test][rounds - 1]);
        }
    for (size_t i = 0; i < ARRAY_LEN(formats); i++)
        rig_free(r[i]);
    return 0;
}
