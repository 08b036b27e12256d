/* SPDX-License-Identifier: MIT */
/*
 * Hashes rows of logits and appends them to the trace file. Owned by the last stage's device
 * thread. A line that can't be written is a warning: tracing never ends a worker.
 */
#include "workerd/trace.h"

#include <errno.h>
#include <inttypes.h>
#include <string.h>

#include "common/log.h"

struct trace {
    FILE *file;
    uint32_t max_rows, n_rows; /* of this window */
    struct traced {
        uint32_t lane, row;
        uint64_t hash;
    } * rows;
};

int trace_new(const char *path, uint32_t max_rows, struct why *why, struct trace **ret)
{
    FILE *f = fopen(path, "ae");
    if (!f) return why_set(why, -errno, "worker.trace = %s: %s", path, strerror(errno));
    struct trace *t = xnew(struct trace);
    *t = (struct trace){.file = f, .max_rows = max_rows};
    t->rows = xcalloc(max_rows, sizeof(*t->rows));
    *ret = t;
    return 0;
}

void trace_free(struct trace *t)
{
    if (!t) return;
    fclosep(&t->file);
    free(t->rows);
    free(t);
}

/* FNV-1a, 64 bits: offset basis and prime of Fowler, Noll and Vo. */
static uint64_t fnv1a(const void *data, size_t bytes)
{
    const unsigned char *at = data;
    uint64_t h = UINT64_C(0xcbf29ce484222325);
    for (size_t i = 0; i < bytes; i++)
        h = (h ^ at[i]) * UINT64_C(0x100000001b3);
    return h;
}

void trace_logits(void *arg, uint32_t lane, uint32_t row, const float *logits, uint32_t n_vocab)
{
    struct trace *t = arg;
    if (t->n_rows == t->max_rows) return;
    uint64_t hash = fnv1a(logits, n_vocab * sizeof(*logits));
    t->rows[t->n_rows++] = (struct traced){lane, row, hash};
}

void trace_window(struct trace *t, const struct window *w, const struct link_lane *lanes)
{
    for (uint32_t i = 0; i < t->n_rows; i++) {
        const struct traced *r = &t->rows[i];
        const struct window_lane *l = &w->lanes[r->lane];
        uint32_t at = r->row - l->first_row;
        char token[16] = "-";
        if (at + 1 == l->n_rows) (void)snprintf(token, sizeof(token), "%u", l->token);
        const struct link_lane *from = &lanes[r->lane];
        (void)fprintf(t->file, "%" PRIu64 " %u %u %s %016" PRIx64 " %c\n", from->tag, from->row,
                      l->pos + at, token, r->hash, from->kind == LINK_GENERATED ? 'g' : 'p');
    }
    t->n_rows = 0;
    if (fflush(t->file) != 0) log_warn("worker.trace: %s", strerror(errno));
}
