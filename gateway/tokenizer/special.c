/* SPDX-License-Identifier: MIT */
/*
 * Finds special tokens: a sorted list, and at each place of the text the range of it that still
 * agrees, narrowed byte by byte. No memory beyond the list, and the work at one place is bounded by
 * the longest token's bytes. Called by tokenizer.c.
 */
#include "gateway/tokenizer/special.h"

#include <errno.h>
#include <inttypes.h>
#include <string.h>

enum {
    /* Bytes of a special token's text. Published ones stay under 100; the bound keeps a hostile
     * file from making every place of a text cost a megabyte of comparisons. */
    SPECIAL_BYTES_MAX = 1024,
};

static bool is_special(const struct vocab *v, uint32_t id)
{
    return vocab_is_control(v, id) || v->types[id] == TOKEN_USER_DEFINED;
}

static int text_order(const void *a, const void *b, void *arg)
{
    uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;
    struct gguf_str s = vocab_symbol(arg, x), t = vocab_symbol(arg, y);
    int order = memcmp(s.at, t.at, min_u64(s.bytes, t.bytes));
    if (order == 0) order = (s.bytes > t.bytes) - (s.bytes < t.bytes);
    return order ? order : (x > y) - (x < y);
}

int special_init(struct special *s, const struct vocab *v, const struct gguf *g, struct why *why)
{
    s->ids = malloc(v->n_tokens * sizeof(*s->ids));
    if (!s->ids) return why_set(why, -ENOMEM, "%s: no memory for special tokens", gguf_path(g));
    for (uint32_t id = 0; id < v->n_tokens; id++) {
        size_t bytes = vocab_symbol(v, id).bytes;
        if (!is_special(v, id) || bytes == 0) continue;
        if (bytes > SPECIAL_BYTES_MAX) {
            return why_set(why, -EPROTO,
                           "%s: key 'tokenizer.ggml.tokens': special token %" PRIu32
                           " has %zu bytes; %d are the most",
                           gguf_path(g), id, bytes, SPECIAL_BYTES_MAX);
        }
        s->ids[s->n++] = id;
    }
    qsort_r(s->ids, s->n, sizeof(*s->ids), text_order, (void *)v);
    size_t i = 0;
    for (unsigned byte = 0; byte <= 256; byte++) {
        while (i < s->n && (uint8_t)vocab_symbol(v, s->ids[i]).at[0] < byte)
            i++;
        s->first[byte] = i;
    }
    return 0;
}

void special_fini(struct special *s) { free(s->ids); }

/* The first of ids[lo, hi), which agree in their first depth bytes and are longer, whose next byte
 * is at least wanted. */
static size_t narrow(const struct special *s, const struct vocab *v, size_t lo, size_t hi,
                     size_t depth, unsigned wanted)
{
    while (lo < hi) {
        size_t mid = lo + (hi - lo) / 2;
        if ((uint8_t)vocab_symbol(v, s->ids[mid]).at[depth] < wanted)
            lo = mid + 1;
        else
            hi = mid;
    }
    return lo;
}

uint32_t special_match(const struct special *s, const struct vocab *v, const char *text,
                       size_t bytes, size_t control_bytes)
{
    uint32_t best = NO_SYMBOL;
    uint8_t head = (uint8_t)text[0];
    size_t lo = s->first[head], hi = s->first[head + 1];
    for (size_t depth = 1; lo < hi; depth++) {
        for (; lo < hi && vocab_symbol(v, s->ids[lo]).bytes == depth; lo++) {
            if (!vocab_is_control(v, s->ids[lo]) || depth <= control_bytes) best = s->ids[lo];
        }
        if (depth == bytes) break;
        uint8_t next = (uint8_t)text[depth];
        lo = narrow(s, v, lo, hi, depth, next);
        hi = narrow(s, v, lo, hi, depth, next + 1u);
    }
    return best;
}
