/* SPDX-License-Identifier: MIT */
#ifndef GATEWAY_TEXT_H
#define GATEWAY_TEXT_H
/*
 * From the bytes of generated tokens to text that may be shown: a character is never cut, what
 * can't become a character is U+FFFD, and a stop string shows not even in part. A stop string ends
 * the answer at the byte that completes it, so the result does not depend on how the bytes were cut
 * into tokens. Streams and plain answers go through the same object and so are the same bytes.
 *
 * One object an answer; whoever made it owns it. Loop thread.
 */
#include <stdbool.h>

#include "gateway/bytebuf.h"

enum {
    TEXT_STOPS_MAX = 16,        /* OpenAI allows 4; agents send more */
    TEXT_STOP_BYTES_MAX = 1024, /* so what is withheld stays small */
};

struct text;

/* stops[]: n strings, 1 to TEXT_STOP_BYTES_MAX bytes each; they must live as long as the text. */
int text_new(const char *const *stops, size_t n, struct text **ret);
void text_free(struct text *t);
static inline void text_freep(struct text **t) { text_free(*t); }

/* One token's bytes. What may be shown now is added to out. Returns true when a stop string is
 * complete: nothing more may be pushed, and nothing is withheld. */
bool text_push(struct text *t, const char *bytes, size_t n, struct bytebuf *out);
/* The answer ended for another reason: adds what was withheld. True when a character that is cut by
 * the end completes a stop string. */
bool text_end(struct text *t, struct bytebuf *out);
/* The answer was cut: adds what was withheld, but for a character that isn't whole. */
void text_cut(struct text *t, struct bytebuf *out);
/* The one that was complete; NULL: none was. */
const char *text_stop_string(const struct text *t);
/* How many tokens lie wholly in what was shown; all of a text that was cut. from: a number that it
 * was at least before. */
uint32_t text_tokens_shown(const struct text *t, uint32_t from);
/* After a stop string: how many tokens lie wholly before it. Those are worth keeping. */
uint32_t text_tokens_before_stop(const struct text *t);

#endif
