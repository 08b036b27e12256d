/* SPDX-License-Identifier: MIT */
/*
 * The saved conversation's format (poolctl_file.h): sizes, checksums and the check of a header that
 * came from outside. Does no input and output.
 */
#include "poold/poolctl_file.h"

#include <errno.h>
#include <string.h>

/* ---- XXH64 ---- */

static const uint64_t prime[] = {0,
                                 UINT64_C(0x9E3779B185EBCA87),
                                 UINT64_C(0xC2B2AE3D27D4EB4F),
                                 UINT64_C(0x165667B19E3779F9),
                                 UINT64_C(0x85EBCA77C2B2AE63),
                                 UINT64_C(0x27D4EB2F165667C5)};

static uint64_t rotate(uint64_t x, int n) { return x << n | x >> (64 - n); }

static uint64_t load64(const uint8_t *at)
{
    uint64_t v;
    memcpy(&v, at, sizeof(v));
    return v;
}

static uint64_t xxh_round(uint64_t acc, uint64_t lane)
{
    return rotate(acc + lane * prime[2], 31) * prime[1];
}

void xxh64_init(struct xxh64 *x)
{
    *x = (struct xxh64){
        .v = {prime[1] + prime[2], prime[2], 0, -prime[1]}
    };
}

static const uint8_t *stripes(struct xxh64 *x, const uint8_t *at, size_t n)
{
    uint64_t a = x->v[0], b = x->v[1], c = x->v[2], d = x->v[3];
    for (; n > 0; n--, at += 32) {
        a = xxh_round(a, load64(at));
        b = xxh_round(b, load64(at + 8));
        c = xxh_round(c, load64(at + 16));
        d = xxh_round(d, load64(at + 24));
    }
    x->v[0] = a, x->v[1] = b, x->v[2] = c, x->v[3] = d;
    return at;
}

void xxh64_add(struct xxh64 *x, const void *bytes, size_t n)
{
    const uint8_t *at = bytes;
    x->total += n;
    if (x->n_rest) {
        size_t take = min_u64(n, sizeof(x->rest) - x->n_rest);
        memcpy(x->rest + x->n_rest, at, take);
        x->n_rest += (uint32_t)take;
        at += take;
        n -= take;
        if (x->n_rest < sizeof(x->rest)) return;
        (void)stripes(x, x->rest, 1);
        x->n_rest = 0;
    }
    at = stripes(x, at, n / 32);
    x->n_rest = (uint32_t)(n % 32);
    if (x->n_rest) memcpy(x->rest, at, x->n_rest);
}

static uint64_t merge(uint64_t acc, uint64_t v)
{
    return (acc ^ xxh_round(0, v)) * prime[1] + prime[4];
}

uint64_t xxh64_end(const struct xxh64 *x)
{
    const uint64_t *v = x->v;
    const uint8_t *at = x->rest, *end = x->rest + x->n_rest;
    uint64_t acc = prime[5];
    if (x->total >= 32) {
        acc = rotate(v[0], 1) + rotate(v[1], 7) + rotate(v[2], 12) + rotate(v[3], 18);
        for (int i = 0; i < 4; i++)
            acc = merge(acc, v[i]);
    }
    acc += x->total;
    for (; end - at >= 8; at += 8)
        acc = rotate(acc ^ xxh_round(0, load64(at)), 27) * prime[1] + prime[4];
    if (end - at >= 4) {
        uint32_t word;
        memcpy(&word, at, sizeof(word));
        acc = rotate(acc ^ word * prime[1], 23) * prime[2] + prime[3];
        at += 4;
    }
    for (; at < end; at++)
        acc = rotate(acc ^ *at * prime[5], 11) * prime[1];
    acc = (acc ^ acc >> 33) * prime[2];
    acc = (acc ^ acc >> 29) * prime[3];
    return acc ^ acc >> 32;
}

/* ---- sizes ---- */

uint32_t saved_n_chunks(const struct saved_header *h)
{
    return h->n_cells / h->chunk_cells + (h->n_cells % h->chunk_cells != 0);
}

uint32_t saved_chunk_cells(const struct saved_header *h, uint32_t i)
{
    return min_u32(h->chunk_cells, h->n_cells - i * h->chunk_cells);
}

uint64_t saved_tokens_bytes(uint32_t n_cells) { return (n_cells * UINT64_C(4) + 7) / 8 * 8; }

uint64_t saved_layer_bytes(const struct saved_header *h, uint32_t n_cells)
{
    const struct pool_geometry *g = &h->geometry;
    return (n_cells + g->block_cells - 1) / g->block_cells * g->block_bytes;
}

uint64_t saved_chunk_bytes(const struct saved_header *h, uint32_t i)
{
    uint32_t n = saved_chunk_cells(h, i);
    return sizeof(struct saved_chunk) + saved_tokens_bytes(n) +
           saved_layer_bytes(h, n) * h->geometry.n_layers;
}

static uint64_t file_bytes_of(const struct saved_header *h)
{
    uint32_t n = saved_n_chunks(h);
    return SAVED_HEADER_BYTES + saved_chunk_bytes(h, 0) * (n - 1) + saved_chunk_bytes(h, n - 1);
}

/* ---- the header ---- */

static uint64_t header_checksum(const uint8_t page[SAVED_HEADER_BYTES])
{
    static const uint8_t zero[sizeof(uint64_t)];
    size_t at = offsetof(struct saved_header, checksum), behind = at + sizeof(zero);
    struct xxh64 x;
    xxh64_init(&x);
    xxh64_add(&x, page, at);
    xxh64_add(&x, zero, sizeof(zero));
    xxh64_add(&x, page + behind, SAVED_HEADER_BYTES - behind);
    return xxh64_end(&x);
}

void saved_seal(struct saved_header *h, uint8_t page[SAVED_HEADER_BYTES])
{
    h->magic = SAVED_MAGIC;
    h->version = SAVED_VERSION;
    h->header_bytes = SAVED_HEADER_BYTES;
    h->bytes = file_bytes_of(h);
    h->checksum = 0;
    memset(page, 0, SAVED_HEADER_BYTES);
    memcpy(page, h, sizeof(*h));
    h->checksum = header_checksum(page);
    memcpy(page, h, sizeof(*h));
}

static bool is_text(const char text[POOL_TEXT_BYTES])
{
    return memchr(text, 0, POOL_TEXT_BYTES) != NULL;
}

/* Bounds so that no size computed from the header overflows: 2^24 cells, 2^10 layers and 2^26 bytes
 * a block stay below 2^64 together. */
static bool is_sane(const struct saved_header *h)
{
    const struct pool_geometry *g = &h->geometry;
    return h->header_bytes == SAVED_HEADER_BYTES && h->n_cells > 0 && h->n_cells <= 1 << 24 &&
           h->chunk_cells > 0 && h->chunk_cells <= 1 << 16 && g->n_layers > 0 &&
           g->n_layers <= POOL_RUNS_MAX && g->block_cells > 0 && g->block_bytes > 0 &&
           g->block_bytes <= SAVED_BLOCK_BYTES_MAX && h->chunk_cells % g->block_cells == 0 &&
           is_text(g->fingerprint) && is_text(g->arithmetic);
}

int saved_from(const uint8_t *at, size_t n, uint64_t file_bytes, struct why *why,
               struct saved_header *ret)
{
    static const uint64_t magic = SAVED_MAGIC;
    struct saved_header h;
    if (memcmp(at, &magic, min_u64(n, sizeof(magic))) != 0)
        return why_set(why, -EBADMSG, "it is no saved conversation");
    if (n < SAVED_HEADER_BYTES) return why_set(why, -ENODATA, "it is shorter than a header");
    memcpy(&h, at, sizeof(h));
    if (h.version != SAVED_VERSION)
        return why_set(why, -EPROTONOSUPPORT, "it has version %u, this release reads %u", h.version,
                       SAVED_VERSION);
    if (header_checksum(at) != h.checksum || !is_sane(&h))
        return why_set(why, -EBADMSG, "its header is damaged");
    if (file_bytes_of(&h) != h.bytes) return why_set(why, -EBADMSG, "its header is damaged");
    if (h.bytes != file_bytes)
        return why_set(why, file_bytes < h.bytes ? -ENODATA : -EBADMSG,
                       "it has %llu bytes and should have %llu", (unsigned long long)file_bytes,
                       (unsigned long long)h.bytes);
    *ret = h;
    return 0;
}

int saved_fits(const struct saved_header *h, const struct pool_header *pool, struct why *why)
{
    const struct pool_geometry *a = &h->geometry, *b = &pool->geometry;
    if (strcmp(a->fingerprint, b->fingerprint) != 0)
        return why_set(why, -EXDEV, "it is of another model: %.64s, the pool's is %.64s",
                       a->fingerprint, b->fingerprint);
    if (strcmp(a->arithmetic, b->arithmetic) != 0)
        return why_set(why, -EXDEV, "it was computed by \"%.100s\", the pool's is \"%.100s\"",
                       a->arithmetic, b->arithmetic);
    if (h->chunk_cells != pool->chunk_cells)
        return why_set(why, -EXDEV, "its chunks have %u cells, the pool's %u (pool.chunk)",
                       h->chunk_cells, pool->chunk_cells);
    if (h->n_cells > b->context_tokens)
        return why_set(why, -EXDEV, "it has %u tokens, the context %u", h->n_cells,
                       b->context_tokens);
    bool same = a->n_layers == b->n_layers && a->n_kv_heads == b->n_kv_heads &&
                a->head_dim == b->head_dim && a->kv == b->kv && a->block_cells == b->block_cells &&
                a->block_bytes == b->block_bytes;
    return same ? 0 : why_set(why, -EXDEV, "its K/V has another layout than the pool's (pool.kv)");
}

int saved_chunk_check(const struct saved_header *h, const struct saved_chunk *c, uint32_t i,
                      struct why *why)
{
    if (c->index == i && c->n_cells == saved_chunk_cells(h, i)) return 0;
    return why_set(why, -EBADMSG, "chunk %u is damaged", i);
}
