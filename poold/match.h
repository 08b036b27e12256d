/* SPDX-License-Identifier: MIT */
#ifndef POOLD_MATCH_H
#define POOLD_MATCH_H
/*
 * The best cached beginning of a prompt: exact, by token ids and, where that is asked for, by the
 * kinds that they were computed as; within one salt.
 */
#include "poold/pool.h"

struct match {
    uint32_t row;   /* UINT32_MAX: none */
    uint32_t cells; /* common cells, at most n_tokens - 1: the last token is always computed */
    uint32_t valid; /* cells that the row has */
    uint32_t state; /* of the row: idle, closing, active or waiting */
};

/* Cells of row that equal the tokens asked for, at most limit. */
uint32_t match_common(const struct pool *p, uint32_t row, const struct pool_open *ask,
                      uint32_t limit);
/* Over idle, active and waiting rows, and closing ones when closing is set. Ties go to idle rows,
 * then to the most recently used. */
struct match match_best(const struct pool *p, const struct pool_open *ask, bool closing);

#endif
