/* SPDX-License-Identifier: MIT */
/*
 * Processor time of turning a text into tokens, as CSV. Usage: tokenizer_bench MODEL.gguf ROUNDS
 * FILE...: the files one after the other, over and over, up to a megabyte.
 */
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "common/gguf.h"
#include "gateway/tokenizer/tokenizer.h"

enum { BYTES = 1000000, ROUNDS_MAX = 10000 };

static size_t append(char *text, size_t n, const char *path)
{
    FILE *f = fopen(path, "re");
    if (!f) exit(2);
    n += fread(text + n, 1, BYTES - n, f);
    (void)fclose(f);
    return n;
}

static double processor_ms(void)
{
    struct timespec t;
    (void)clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (double)t.tv_sec * 1e3 + (double)t.tv_nsec / 1e6;
}

static int by_size(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

int main(int argc, char **argv)
{
    static char text[BYTES];
    static double took[ROUNDS_MAX];
    struct why why;
    struct gguf *g = NULL;
    struct tokenizer *t = NULL;
    int rounds = argc > 3 ? atoi(argv[2]) : 0;
    if (rounds < 1 || rounds > ROUNDS_MAX) return 2;
    if (gguf_open(argv[1], &why, &g) < 0 || tokenizer_new(g, &why, &t) < 0) {
        (void)fprintf(stderr, "%s\n", why.text);
        return 1;
    }
    size_t n = 0, n_tokens = 0;
    for (int i = 3; n < BYTES; i = i + 1 < argc ? i + 1 : 3)
        n = append(text, n, argv[i]);
    struct tokenizer_span span = {text, n, false};
    for (int i = 0; i < rounds; i++) {
        struct tokenizer_ids ids;
        double since = processor_ms();
        if (tokenizer_encode(t, &span, 1, 0, SIZE_MAX, &ids) < 0) return 1;
        took[i] = processor_ms() - since;
        n_tokens = ids.n;
        free(ids.ids);
    }
    qsort(took, (size_t)rounds, sizeof(took[0]), by_size);
    (void)printf("bytes,tokens,rounds,median_ms,least_ms\n%zu,%zu,%d,%.2f,%.2f\n", n, n_tokens,
                 rounds, took[rounds / 2], took[0]);
    tokenizer_free(t);
    gguf_free(g);
    return 0;
}
