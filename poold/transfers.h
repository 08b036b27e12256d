/* SPDX-License-Identifier: MIT */
#ifndef POOLD_TRANSFERS_H
#define POOLD_TRANSFERS_H
/*
 * Rows that a tool copies out of or into. Such a row is closing and names its holder; no window
 * ends it, but transfer_end or the holder's confirmed death. A save's shares the saved
 * conversation's chunks, the partly filled one as its copy; that one may run meanwhile, and be cut,
 * evicted or taken over: what was valid when the save began is the save's as long as it lasts. A
 * restore's row has fresh chunks and base 0, so that nothing of it counts before it is complete.
 * Errors as in pool.h; -EBUSY: the row is a tool's itself; -ENODATA: nothing is computed yet.
 */
#include "poold/pool.h"

int transfer_save(struct pool *p, uint32_t row, uint64_t generation, uint64_t holder,
                  uint32_t *ret_row);
struct transfer_restore {
    uint32_t cells;
    uint32_t pipeline, lane; /* that are taken to have run it last; lane may be POOL_NO_LANE */
    uint64_t salt, holder;
};
/* Reserves all chunks first: a pool without room is told before a byte is read. */
int transfer_restore(struct pool *p, const struct transfer_restore *ask, uint32_t *ret_row);
/* complete: of a restore, the conversation is cached from now on; else the row is free again. */
int transfer_end(struct pool *p, uint32_t row, uint64_t generation, uint64_t holder, bool complete);
/* The holder is dead. */
void transfers_forget(struct pool *p, uint64_t holder);

#endif
