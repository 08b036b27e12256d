/* SPDX-License-Identifier: MIT */
/*
 * A saved conversation's file from outside: the header, then each chunk's head at the place that
 * the header gives it. An accepted header's sizes must lie inside the file. Half of the inputs get
 * the checksum that they should have, so that the numbers behind it are reached.
 */
#include <string.h>

#include "poold/poolctl_file.h"

static void walk(const struct saved_header *h, uint64_t file_bytes)
{
    uint64_t at = SAVED_HEADER_BYTES;
    uint32_t n = saved_n_chunks(h);
    for (uint32_t i = 0; i < n && i < 64; i++) {
        if (saved_chunk_cells(h, i) == 0 || saved_chunk_cells(h, i) > h->chunk_cells) abort();
        at += saved_chunk_bytes(h, i);
        if (at > file_bytes) abort();
    }
    if (n <= 64 && at != file_bytes) abort();
}

/* It fits the pool that it describes, unless that has no room for it. */
static void check_fit(const struct saved_header *h)
{
    struct why why;
    struct pool_header pool = {.chunk_cells = h->chunk_cells, .geometry = h->geometry};
    bool room = h->n_cells <= h->geometry.context_tokens;
    if ((saved_fits(h, &pool, &why) == 0) != room) abort();
    pool.chunk_cells++;
    if (saved_fits(h, &pool, &why) == 0) abort();
    pool.geometry.fingerprint[0] ^= 1;
    if (saved_fits(h, &pool, &why) == 0) abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    uint8_t page[SAVED_HEADER_BYTES] = {0};
    struct saved_header h;
    struct why why;
    if (n == 0) return 0;
    memcpy(page, data + 1, min_u64(n - 1, sizeof(page)));
    if (data[0] & 1) {
        memcpy(&h, page, sizeof(h));
        if (h.chunk_cells && h.geometry.block_cells && h.n_cells) saved_seal(&h, page);
    }
    memcpy(&h, page, sizeof(h));
    uint64_t bytes = data[0] & 2 ? n : h.bytes;
    struct saved_header got;
    if (saved_from(page, data[0] & 4 ? n - 1 : sizeof(page), bytes, &why, &got) == 0) {
        walk(&got, bytes);
        check_fit(&got);
    }
    return 0;
}
