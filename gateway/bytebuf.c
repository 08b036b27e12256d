/* SPDX-License-Identifier: MIT */
/*
 * See bytebuf.h. Space in front is used again before more is asked for, so a stream that keeps up
 * with its reader lives in a few hundred bytes.
 */
#include "gateway/bytebuf.h"

#include <string.h>

enum { BYTEBUF_FIRST_BYTES = 512 /* holds most events of a stream */ };

static void bytebuf_make_room(struct bytebuf *b, size_t n)
{
    if (b->off_ > 0 && b->room_ - b->end_ < n) {
        memmove(b->at_, b->at_ + b->off_, bytebuf_size(b));
        b->end_ -= b->off_;
        b->off_ = 0;
    }
    if (b->at_ && b->room_ - b->end_ >= n) return;
    size_t room = b->room_ ? b->room_ : BYTEBUF_FIRST_BYTES;
    while (room - b->end_ < n) {
        if (room > SIZE_MAX / 2) abort();
        room *= 2;
    }
    b->at_ = realloc(b->at_, room);
    if (!b->at_) abort();
    b->room_ = room;
}

void bytebuf_add(struct bytebuf *b, const void *bytes, size_t n)
{
    if (n == 0) return;
    bytebuf_make_room(b, n);
    memcpy(b->at_ + b->end_, bytes, n);
    b->end_ += n;
}

void bytebuf_addf(struct bytebuf *b, const char *format, ...)
{
    char line[512]; /* callers write single metrics and headers, none near this long */
    va_list ap;
    va_start(ap, format);
    int n = vsnprintf(line, sizeof(line), format, ap);
    va_end(ap);
    if (n > 0) bytebuf_add(b, line, min_u64((uint64_t)n, sizeof(line) - 1));
}

void bytebuf_take(struct bytebuf *b, size_t n)
{
    b->off_ += n;
    if (b->off_ < b->end_) return;
    b->off_ = 0;
    b->end_ = 0;
}

void bytebuf_fini(struct bytebuf *b)
{
    free(b->at_);
    *b = (struct bytebuf){0};
}
