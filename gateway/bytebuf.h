/* SPDX-License-Identifier: MIT */
#ifndef GATEWAY_BYTEBUF_H
#define GATEWAY_BYTEBUF_H
/*
 * Bytes that grow at the end and are taken from the front: bodies coming in, streams going out,
 * answers being put together. Who owns the struct bounds how much is put in. Zeroed is empty.
 */
#include "common/base.h"

struct bytebuf {
    char *at_; /* the storage; what is held begins at off_ */
    size_t off_, end_, room_;
};

static inline const char *bytebuf_bytes(const struct bytebuf *b)
{
    return b->at_ ? b->at_ + b->off_ : "";
}
static inline size_t bytebuf_size(const struct bytebuf *b) { return b->end_ - b->off_; }
/* Memory being out ends the process, as with xcalloc. */
void bytebuf_add(struct bytebuf *b, const void *bytes, size_t n);
__attribute__((format(printf, 2, 3))) void bytebuf_addf(struct bytebuf *b, const char *format, ...);
void bytebuf_take(struct bytebuf *b, size_t n); /* drops n bytes from the front */
void bytebuf_fini(struct bytebuf *b);           /* empty afterwards */

#endif
