/* SPDX-License-Identifier: MIT */
/*
 * Opens a GGUF file, answers for its keys and tensors, and maps single tensors. It owns the file's
 * descriptor and the mapping of the metadata; gguf_parse.c has checked everything that is answered
 * here. Called by the gateway and by workers from any thread; it changes nothing after gguf_open.
 */
#include "common/gguf.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include "common/ggml_type.h"
#include "common/gguf_parse.h"

static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "values are read as they stand");

static size_t page_bytes(void) { return (size_t)sysconf(_SC_PAGESIZE); }
static size_t page_up(size_t bytes) { return (bytes + page_bytes() - 1) & ~(page_bytes() - 1); }

void gguf_free(struct gguf *g)
{
    if (!g) return;
    for (size_t i = 0; g->pairs && i <= g->n_pairs; i++) {
        /* The pair at n_pairs is the one whose reading failed, if any; calloc cleared it. */
        if (i < g->n_pairs_made) free((void *)g->pairs[i].array.index);
    }
    free(g->pairs);
    free(g->tensors);
    free(g->names);
    free(g->by_name);
    if (g->map) (void)munmap(g->map, g->map_bytes);
    if (g->fd >= 0) (void)close(g->fd);
    free(g->path);
    free(g);
}
