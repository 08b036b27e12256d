/* SPDX-License-Identifier: MIT */
/* Who lives where in the identity layout (ranges.h). */
#include "poold/ranges.h"

#include <errno.h>

uint32_t range_first(const struct pool *p, uint32_t pipeline, uint32_t lane)
{
    const struct pool_header *h = p->seg->h;
    if (!h->lane_chunks) return 0;
    uint64_t range = (uint64_t)pipeline * h->pipeline_lanes + lane;
    return (uint32_t)(1 + range * h->lane_chunks);
}

/* A row's chunks all lie in one range; a save that holds less than a chunk has it as its copy. Who
 * was cut to nothing while it runs has none, and the range all the same. */
static bool lives_on(const struct pool *p, uint32_t row, uint32_t first)
{
    const struct pool_body *b = segment_body(p->seg, row);
    if (b->state == POOL_FREE) return false;
    if (b->state == POOL_ACTIVE) return range_first(p, b->pipeline, b->lane) == first;
    uint64_t entry = b->n_entries ? segment_table(p->seg, row)[0] : b->copy_entry;
    uint32_t chunk = pool_entry_chunk(entry);
    return chunk >= first && chunk - first < p->seg->h->lane_chunks;
}

int range_resident(const struct pool *p, uint32_t first, uint32_t *ret_row)
{
    uint32_t found = UINT32_MAX;
    for (uint32_t row = 0; row < p->seg->n_used; row++) {
        if (!lives_on(p, row, first)) continue;
        uint32_t state = segment_body(p->seg, row)->state;
        if (state != POOL_IDLE && state != POOL_WAITING) return -EAGAIN;
        found = row;
    }
    *ret_row = found;
    return 0;
}

int range_choose(const struct pool *p, uint32_t *ret_pipeline, uint32_t *ret_lane)
{
    const struct pool_header *h = p->seg->h;
    uint32_t n = h->n_chunks / h->lane_chunks, best = n;
    uint64_t oldest = UINT64_MAX;
    for (uint32_t i = 0; i < n && oldest; i++) {
        uint32_t row;
        if (range_resident(p, 1 + i * h->lane_chunks, &row) < 0) continue;
        if (row != UINT32_MAX && segment_body(p->seg, row)->state == POOL_WAITING) continue;
        uint64_t used = row == UINT32_MAX ? 0 : p->seg->rows[row].last_use;
        if (used >= oldest) continue;
        oldest = used;
        best = i;
    }
    if (best == n) return -ENOSPC;
    *ret_pipeline = best / h->pipeline_lanes;
    *ret_lane = best % h->pipeline_lanes;
    return 0;
}
