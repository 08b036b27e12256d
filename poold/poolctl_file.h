/* SPDX-License-Identifier: MIT */
#ifndef POOLD_POOLCTL_FILE_H
#define POOLD_POOLCTL_FILE_H
/*
 * A saved conversation's file: a header, then each chunk with a checksum of its own. Little-endian;
 * the split of the layers over stages is not part of it. Version 1:
 *
 *   header  struct saved_header, 4096 bytes; its checksum counts itself as 0
 *   chunk   struct saved_chunk, then the tokens' words (n_cells of pool_shm.h's), padded with zeros
 *           to 8 bytes, then for each layer, in order, the blocks that hold the n_cells
 *
 * All chunks have chunk_cells cells but the last one, which may have fewer. So the header alone
 * says how long the file is. Checksums are XXH64 (seed 0): they find damage, they prove no author.
 */
#include <stdbool.h>

#include "common/base.h"
#include "proto/pool_shm.h"

#define SAVED_MAGIC UINT64_C(0x31767653434e5443) /* "CTNCSvv1" */

enum {
    SAVED_VERSION = 1,
    SAVED_HEADER_BYTES = 4096,
    SAVED_BLOCK_BYTES_MAX = 1 << 26, /* far above any block; see is_sane */
};

struct saved_header {
    uint64_t magic;
    uint32_t version;
    uint32_t header_bytes;
    uint64_t checksum; /* of these header_bytes, this field being 0 */
    uint64_t bytes;    /* of the whole file */
    uint64_t salt;     /* who may share it */
    uint32_t n_cells;  /* tokens of the conversation */
    uint32_t chunk_cells;
    struct pool_geometry geometry;
};
static_assert(sizeof(struct saved_header) <= SAVED_HEADER_BYTES, "it fits its place");

struct saved_chunk {
    uint64_t checksum; /* of what follows this field, to the end of the chunk */
    uint32_t index, n_cells;
};
static_assert(sizeof(struct saved_chunk) == 16, "no hidden padding");

/* XXH64 over bytes that come piece by piece: the format's own description is the source,
 * github.com/Cyan4973/xxHash, doc/xxhash_spec.md. */
struct xxh64 {
    uint64_t v[4], total;
    uint8_t rest[32];
    uint32_t n_rest;
};
void xxh64_init(struct xxh64 *x);
void xxh64_add(struct xxh64 *x, const void *at, size_t bytes);
uint64_t xxh64_end(const struct xxh64 *x);

/* Cells of chunk i, and its bytes in the file, struct saved_chunk included. */
uint32_t saved_chunk_cells(const struct saved_header *h, uint32_t i);
uint64_t saved_chunk_bytes(const struct saved_header *h, uint32_t i);
uint32_t saved_n_chunks(const struct saved_header *h);
/* Bytes of the tokens' part, and of one layer's, of a chunk of n_cells. */
uint64_t saved_tokens_bytes(uint32_t n_cells);
uint64_t saved_layer_bytes(const struct saved_header *h, uint32_t n_cells);

/* Fills in everything that follows from the rest: magic, sizes, checksum. page: the header as it is
 * written. */
void saved_seal(struct saved_header *h, uint8_t page[SAVED_HEADER_BYTES]);
/* Reads the first bytes of a file that is file_bytes long, which may be hostile: after 0 every
 * number in it is bounded and fits the file. -EBADMSG: no saved conversation, or damaged; -ENODATA:
 * its end is missing; -EPROTONOSUPPORT: of a release that writes another version. */
int saved_from(const uint8_t *at, size_t n, uint64_t file_bytes, struct why *why,
               struct saved_header *ret);
/* Whether it fits a pool: 0, or -EXDEV with what differs. */
int saved_fits(const struct saved_header *h, const struct pool_header *pool, struct why *why);
/* Checks a chunk's head against its place. -EBADMSG. */
int saved_chunk_check(const struct saved_header *h, const struct saved_chunk *c, uint32_t i,
                      struct why *why);

#endif
