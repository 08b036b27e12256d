/* SPDX-License-Identifier: MIT */
/*
 * See poolctl_copy.h. Called by poolctl_transfer.c and, for chunks, by the threads of its crew.
 */
#include "poold/poolctl_copy.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>

#include "common/system.h"

enum {
    /* Summed, then written, or read, then summed: small enough to be in the second-level cache
     * meanwhile (save_bench: a quarter of the processor's time less than a chunk of 32 MiB at a
     * time), large enough that a system call a piece does not count. */
    PIECE_BYTES = 1 << 18,
};

/* ---- pages ---- */

/* Faults of its pages at once instead of one by one, where the kernel knows how. */
static void touch(char *at, size_t n, int how)
{
    size_t before = (uintptr_t)at % PAGE_BYTES;
    (void)madvise(at - before, before + n, how);
}

/* What nobody reads or stores again: taken off here by each thread, not all at the end by one. */
static void leave(char *at, size_t n) { touch(at, n, MADV_DONTNEED); }

/* What goes into the file from one place on. Of pages that are made whole, the bytes that don't
 * fill one yet. */
struct out {
    uint64_t off;
    size_t n;   /* kept, of the bytes from off on, */
    char *kept; /* [PIECE_BYTES], from that page's beginning on; NULL: none are */
};

/* A page of two chunks is written by both. */
static int out_flush(struct copy *c, struct out *o)
{
    const char *at = o->kept + o->off % PAGE_BYTES;
    size_t first = min_u64(-o->off % PAGE_BYTES, o->n);
    size_t whole = (o->n - first) / PAGE_BYTES * PAGE_BYTES, rest = o->n - first - whole;
    int r = first ? write_at(c->fd, at, first, o->off) : 0;
    if (r == 0 && whole) r = pages_put(&c->pages, at + first, whole, o->off + first);
    if (r == 0 && rest) r = write_at(c->fd, at + first + whole, rest, o->off + first + whole);
    o->off += o->n;
    o->n = 0;
    return r;
}

static int out_add(struct copy *c, struct out *o, const char *from, size_t n)
{
    int r = 0;
    if (!o->kept) {
        r = write_at(c->fd, from, n, o->off);
        o->off += n;
    }
    while (o->kept && n > 0 && r == 0) {
        size_t at = o->off % PAGE_BYTES + o->n, take = min_u64(n, PIECE_BYTES - at);
        memcpy(o->kept + at, from, take);
        o->n += take, from += take, n -= take;
        if (at + take == PIECE_BYTES) r = out_flush(c, o);
    }
    return r;
}

/* ---- a chunk ---- */

/* Where chunk i is on either side. */
struct place {
    struct saved_chunk head;
    uint64_t off, in_run;       /* in the file; in each layer's run */
    uint64_t tokens, per_layer; /* bytes */
    struct xxh64 sum;
};

static struct place place_of(const struct copy *c, uint32_t i)
{
    uint64_t blocks = c->h.chunk_cells / c->h.geometry.block_cells;
    struct place p = {
        .head = {.index = i, .n_cells = saved_chunk_cells(&c->h, i)},
        .off = SAVED_HEADER_BYTES + i * saved_chunk_bytes(&c->h, 0),
        .in_run = c->chunks[i] * blocks * c->h.geometry.block_bytes,
    };
    p.tokens = saved_tokens_bytes(p.head.n_cells);
    p.per_layer = saved_layer_bytes(&c->h, p.head.n_cells);
    return p;
}

static void sum_head(struct place *p)
{
    xxh64_init(&p->sum);
    xxh64_add(&p->sum, &p->head.index, sizeof(p->head) - offsetof(struct saved_chunk, index));
}

static bool is_stopped(const struct copy *c) { return __atomic_load_n(&c->stop, __ATOMIC_RELAXED); }

/* still: NULL, or room for a piece: the bytes may change meanwhile, by whoever runs the
 * conversation, behind its valid cells: they are copied first, so that the sum is that of what is
 * written. */
static int put(struct copy *c, struct place *p, const char *from, uint64_t n, struct out *to,
               char *still)
{
    for (uint64_t at = 0; at < n; at += PIECE_BYTES) {
        size_t bytes = min_u64(n - at, PIECE_BYTES);
        const char *piece = still ? memcpy(still, from + at, bytes) : from + at;
        xxh64_add(&p->sum, piece, bytes);
        int r = is_stopped(c) ? -ECANCELED : out_add(c, to, piece, bytes);
        if (r < 0) return r;
    }
    return 0;
}

static int get(struct copy *c, struct place *p, char *to, uint64_t n, uint64_t *off)
{
    for (uint64_t at = 0; at < n; at += PIECE_BYTES) {
        size_t bytes = min_u64(n - at, PIECE_BYTES);
        int r = is_stopped(c) ? -ECANCELED : read_at(c->fd, to + at, bytes, *off);
        if (r < 0) return r;
        xxh64_add(&p->sum, to + at, bytes);
        *off += bytes;
    }
    return 0;
}

int copy_begin_out(struct copy *c, bool many)
{
    uint8_t page[SAVED_HEADER_BYTES];
    saved_seal(&c->h, page);
    if (many) (void)pages_open(&c->pages, c->fd, c->h.bytes);
    return write_at(c->fd, page, sizeof(page), 0);
}

void copy_end_out(struct copy *c) { pages_close(&c->pages); }

int copy_out(struct copy *c, uint32_t i)
{
    struct place p = place_of(c, i);
    uint64_t n = saved_chunk_bytes(&c->h, i);
    bool whole = p.head.n_cells == c->h.chunk_cells, mapped = c->pages.map != NULL;
    CLEANUP(freep) char *still = whole ? NULL : xcalloc(1, PIECE_BYTES);
    CLEANUP(freep) char *kept = mapped ? xcalloc(1, PIECE_BYTES) : NULL;
    struct out to = {.off = p.off + sizeof(p.head), .kept = kept};
    CLEANUP(freep) uint32_t *words = xcalloc(1, p.tokens);
    memcpy(words, c->cell + (uint64_t)c->chunks[i] * c->h.chunk_cells, p.head.n_cells * 4UL);
    sum_head(&p);
    int r = mapped ? pages_reserve(&c->pages, p.off, n) : 0;
    if (r == 0) r = put(c, &p, (const char *)words, p.tokens, &to, NULL);
    for (uint32_t l = 0; r == 0 && l < c->h.geometry.n_layers; l++) {
        touch(c->layer[l] + p.in_run, p.per_layer, MADV_POPULATE_READ);
        r = put(c, &p, c->layer[l] + p.in_run, p.per_layer, &to, still);
        leave(c->layer[l] + p.in_run, p.per_layer);
    }
    if (r == 0 && mapped) r = out_flush(c, &to);
    p.head.checksum = xxh64_end(&p.sum);
    if (r == 0) r = write_at(c->fd, &p.head, sizeof(p.head), p.off);
    if (mapped) leave(c->pages.map + p.off, n);
    return r;
}

static int read_fails(int r, struct why *why)
{
    return why_set(why, r, "%s",
                   r == -ENODATA ? "it became shorter while it was read" : strerror(-r));
}

int copy_in(struct copy *c, uint32_t i, struct why *why)
{
    struct place p = place_of(c, i);
    uint64_t off = p.off + sizeof(p.head);
    CLEANUP(freep) uint32_t *words = xcalloc(1, p.tokens);
    int r = read_at(c->fd, &p.head, sizeof(p.head), p.off);
    if (r < 0) return read_fails(r, why);
    r = saved_chunk_check(&c->h, &p.head, i, why);
    if (r < 0) return r;
    sum_head(&p);
    r = get(c, &p, (char *)words, p.tokens, &off);
    for (uint32_t l = 0; r == 0 && l < c->h.geometry.n_layers; l++) {
        touch(c->layer[l] + p.in_run, p.per_layer, MADV_POPULATE_WRITE);
        r = get(c, &p, c->layer[l] + p.in_run, p.per_layer, &off);
        leave(c->layer[l] + p.in_run, p.per_layer);
    }
    if (r < 0) return read_fails(r, why);
    if (p.head.checksum != xxh64_end(&p.sum))
        return why_set(why, -EBADMSG, "chunk %u is damaged: its checksum does not hold", i);
    memcpy(c->cell + (uint64_t)c->chunks[i] * c->h.chunk_cells, words, p.head.n_cells * 4UL);
    return 0;
}
