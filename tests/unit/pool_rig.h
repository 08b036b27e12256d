/* SPDX-License-Identifier: MIT */
#ifndef TESTS_UNIT_POOL_RIG_H
#define TESTS_UNIT_POOL_RIG_H
/*
 * A small pool of one pipeline of one stage, in this process: what the tests of its rows and tables
 * stand on. One a test; a fixture makes and removes it.
 */
#include "poold/pool.h"

enum { C = 16, B = 4, CHUNKS = 12, ROWS = 6, CONTEXT = 128, ME = 77 };

extern struct pool *pool;
extern uint32_t *cells; /* of the tokens file */
extern struct pool_page *page;
extern uint64_t op_number; /* of the last next_op */

void pool_rig_setup(void);
/* The identity layout: three lanes of a context of four chunks each. */
void pool_rig_setup_ranges(void);
void pool_rig_teardown(void);
/* As after kill -9: everything derived is gone. */
void restart(void);
/* The body in force. */
const struct pool_body *body(uint32_t row);
/* The row as an operation names it now. */
struct row_seen seen(uint32_t row);
struct op_id next_op(void);
/* A prompt whose tokens are first, first + 1, ... */
int open_on_lane(uint32_t lane, uint32_t first, uint32_t n, uint64_t salt, uint32_t *ret_row);
int open_prompt(uint32_t first, uint32_t n, uint64_t salt, uint32_t *ret_row);
/* What the head and the stage do for n cells: token ids, then their words. */
void compute(uint32_t row, uint32_t first, uint32_t n);
/* Of a row's cells [from, to), computed: generated. */
void mark_generated(uint32_t row, uint32_t from, uint32_t to);
/* Closes it and lets its windows drain. */
void close_row(uint32_t row, uint32_t keep);
/* A conversation of n cells that is cached: its row. */
uint32_t cached(uint32_t first, uint32_t n);
/* Holds what must always hold, counted from the control segment alone. */
void check_invariants(void);

#endif
