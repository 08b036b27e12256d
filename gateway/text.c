/* SPDX-License-Identifier: MIT */
/*
 * See text.h. Owns the bytes that are withheld: the beginning of a character or of a stop string.
 * Knows nothing of tokenisers or HTTP.
 */
#include "gateway/text.h"

#include <errno.h>
#include <string.h>

struct text {
    const char *stop[TEXT_STOPS_MAX];
    size_t stop_bytes[TEXT_STOPS_MAX];
    size_t n_stops;
    struct bytebuf raw;   /* the beginning of a character */
    struct bytebuf held;  /* text not yet shown */
    uint64_t shown_bytes; /* of text, before held */
    uint64_t *token_end;  /* of each token, in bytes of text from the answer's beginning */
    uint32_t n_tokens, tokens_room;
    const char *stopped_by; /* one of stop[] */
    uint64_t stop_at;       /* where in the text the stop string begins */
    bool is_cut;
};

int text_new(const char *const *stops, size_t n, struct text **ret)
{
    if (n > TEXT_STOPS_MAX) return -EINVAL;
    CLEANUP(text_freep) struct text *t = xnew(struct text);
    for (size_t i = 0; i < n; i++) {
        size_t bytes = strlen(stops[i]);
        if (bytes == 0 || bytes > TEXT_STOP_BYTES_MAX) return -EINVAL;
        t->stop[i] = stops[i];
        t->stop_bytes[i] = bytes;
    }
    t->n_stops = n;
    *ret = TAKE(t);
    return 0;
}

void text_free(struct text *t)
{
    if (!t) return;
    bytebuf_fini(&t->raw);
    bytebuf_fini(&t->held);
    free(t->token_end);
    free(t);
}

/* Bytes of the character that begins at s, or of the longest beginning of one that can't go on.
 * *ret_state: 1 whole, 0 the bytes end inside it, -1 can never become one (Unicode 15, table 3-7).
 */
static size_t utf8_step(const unsigned char *s, size_t n, int *ret_state)
{
    unsigned char lo = 0x80, hi = 0xbf;
    size_t want;
    *ret_state = -1;
    if (s[0] < 0x80) {
        *ret_state = 1;
        return 1;
    }
    if (s[0] < 0xc2 || s[0] > 0xf4) return 1;
    want = s[0] < 0xe0 ? 2 : s[0] < 0xf0 ? 3 : 4;
    if (s[0] == 0xe0) lo = 0xa0;
    if (s[0] == 0xed) hi = 0x9f;
    if (s[0] == 0xf0) lo = 0x90;
    if (s[0] == 0xf4) hi = 0x8f;
    for (size_t i = 1; i < want; i++) {
        if (i == n) {
            *ret_state = 0;
            return i;
        }
        if (s[i] < lo || s[i] > hi) return i;
        lo = 0x80;
        hi = 0xbf;
    }
    *ret_state = 1;
    return want;
}

/* Moves what is decided from raw to held; at the end of an answer all of it is. */
static void decode(struct text *t, bool at_end)
{
    const unsigned char *s = (const unsigned char *)bytebuf_bytes(&t->raw);
    size_t n = bytebuf_size(&t->raw), i = 0;
    while (i < n) {
        int state;
        size_t step = utf8_step(s + i, n - i, &state);
        if (state == 0 && !at_end) break;
        if (state == 1)
            bytebuf_add(&t->held, s + i, step);
        else
            bytebuf_add(&t->held, "\xef\xbf\xbd", 3);
        i += step;
    }
    bytebuf_take(&t->raw, i);
}

static void show(struct text *t, size_t n, struct bytebuf *out)
{
    bytebuf_add(out, bytebuf_bytes(&t->held), n);
    bytebuf_take(&t->held, n);
    t->shown_bytes += n;
}

/* The longest stop string that ends at the first n withheld bytes; 0 when none does. */
static size_t stop_ending_at(struct text *t, size_t n)
{
    size_t best = 0;
    for (size_t i = 0; i < t->n_stops; i++) {
        size_t bytes = t->stop_bytes[i];
        if (bytes <= n && bytes > best &&
            memcmp(bytebuf_bytes(&t->held) + n - bytes, t->stop[i], bytes) == 0) {
            best = bytes;
            t->stopped_by = t->stop[i];
        }
    }
    return best;
}

/* How many bytes at the end may still become a stop string. */
static size_t stop_begun(const struct text *t)
{
    size_t n = bytebuf_size(&t->held), best = 0;
    const char *end = bytebuf_bytes(&t->held) + n;
    for (size_t i = 0; i < t->n_stops; i++) {
        size_t most = min_u64(t->stop_bytes[i] - 1, n);
        for (size_t k = most; k > best; k--) {
            if (memcmp(end - k, t->stop[i], k) != 0) continue;
            best = k;
            break;
        }
    }
    return best;
}

/* A token that ends inside a character ends past that character's first byte. */
static void token_ends(struct text *t)
{
    if (t->n_tokens == t->tokens_room) {
        t->tokens_room = t->tokens_room ? t->tokens_room * 2 : 64;
        t->token_end = reallocarray(t->token_end, t->tokens_room, sizeof(*t->token_end));
        if (!t->token_end) abort();
    }
    uint64_t end = t->shown_bytes + bytebuf_size(&t->held);
    t->token_end[t->n_tokens++] = end + (bytebuf_size(&t->raw) > 0);
}

/* Shows what may be shown of held, whose first `seen` bytes complete no stop string. */
static bool release(struct text *t, size_t seen, struct bytebuf *out)
{
    size_t n = bytebuf_size(&t->held);
    for (size_t end = seen + 1; t->n_stops && end <= n; end++) {
        size_t stop = stop_ending_at(t, end);
        if (stop == 0) continue;
        show(t, end - stop, out);
        t->stop_at = t->shown_bytes;
        bytebuf_fini(&t->held);
        return true;
    }
    show(t, n - stop_begun(t), out);
    return false;
}

bool text_push(struct text *t, const char *bytes, size_t n, struct bytebuf *out)
{
    size_t seen = bytebuf_size(&t->held);
    bytebuf_add(&t->raw, bytes, n);
    decode(t, false);
    token_ends(t);
    return release(t, seen, out);
}

bool text_end(struct text *t, struct bytebuf *out)
{
    size_t seen = bytebuf_size(&t->held);
    decode(t, true);
    if (release(t, seen, out)) return true;
    show(t, bytebuf_size(&t->held), out);
    return false;
}

void text_cut(struct text *t, struct bytebuf *out)
{
    bytebuf_fini(&t->raw);
    show(t, bytebuf_size(&t->held), out);
    t->is_cut = true;
}

const char *text_stop_string(const struct text *t) { return t->stopped_by; }

uint32_t text_tokens_shown(const struct text *t, uint32_t from)
{
    if (t->is_cut) return t->n_tokens;
    while (from < t->n_tokens && t->token_end[from] <= t->shown_bytes)
        from++;
    return from;
}

uint32_t text_tokens_before_stop(const struct text *t)
{
    uint32_t n = t->n_tokens;
    while (n > 0 && t->token_end[n - 1] > t->stop_at)
        n--;
    return n;
}
