/* SPDX-License-Identifier: MIT */
#ifndef COMMON_POOL_VIEW_H
#define COMMON_POOL_VIEW_H
/*
 * The pool as one sees it who may only read: the control segment and the workers' pages, mapped
 * from the descriptors that come over the lifeline. Looking costs poold and the workers nothing.
 * Used by gateways (metrics) and tools; one thread. What is read was written by other processes at
 * that very moment: rows are read whole, and whatever they name is bounded.
 */
#include <stdbool.h>

#include "common/lifeline.h"

struct pool_view {
    const struct pool_header *h; /* NULL: there is no pool yet */
    size_t bytes;
    struct pool_view_page {
        const struct pool_page *at; /* NULL: never attached */
        size_t bytes;
    } page[POOL_PIPELINES_MAX][POOL_STAGES_MAX];
};

/* Takes what LIFELINE_POOL and LIFELINE_PAGE bring, ignores the rest; fds stay the caller's.
 * -EPROTO: the file is not what it should be; what was there before stays. */
int pool_view_take(struct pool_view *v, const struct lifeline_files *f, const int *fds,
                   uint32_t n_fds);
void pool_view_fini(struct pool_view *v);

/* The page of a place on this pool, or NULL. */
const struct pool_page *pool_view_page(const struct pool_view *v, uint32_t pipeline,
                                       uint32_t stage);
/* Cells of a row that are complete, by its workers' pages. */
uint32_t pool_view_tokens(const struct pool_view *v, uint32_t row, const struct pool_body *b);

/* What a chunk's cells are. Each chunk counts once, so all of them sum to the pool, the trash chunk
 * included. Held: of a row whose pipeline has a process that is being killed and is not yet known
 * dead. Shared: of more than one row, whatever their states. */
enum cells {
    CELLS_FREE,
    CELLS_CACHED,
    CELLS_CLOSING,
    CELLS_WAITING,
    CELLS_ACTIVE,
    CELLS_HELD,
    CELLS_SHARED,
    CELLS_TRASH,
    CELLS_STATES
};
extern const char *const cells_names[CELLS_STATES];

/* ret[n_chunks + 1]: each chunk's enum cells. */
void pool_view_chunks(const struct pool_header *h, uint8_t *ret);
void pool_view_cells(const struct pool_header *h, uint64_t ret[CELLS_STATES]);
/* What the state of this row's own chunks is. */
enum cells pool_view_state(const struct pool_header *h, const struct pool_body *b);

#endif
