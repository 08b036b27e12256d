/* SPDX-License-Identifier: MIT */
#ifndef WORKERD_SHARE_H
#define WORKERD_SHARE_H
/*
 * How many rows of a prompt a window may hold while others are being answered, so that prompts take
 * worker.prompt_share percent of the time. By measured times alone: what it says changes when rows
 * are computed, never what they come to (a piece may be cut anywhere). Owned by the head; its loop
 * thread alone calls it.
 *
 * A window without a piece says what the others take. What a window with one takes beyond that is
 * its piece's: the next is larger or smaller by what was missing. Pieces cost more the further they
 * lie from the prompt's beginning, and lanes come and go, so both are measured again and again.
 * Below `least` rows a piece takes hardly less: there windows without one make up for it instead.
 */
#include <stdbool.h>
#include <stdint.h>

struct share {
    uint32_t percent;  /* 100: no limit */
    uint32_t least;    /* rows of a piece that are worth a window */
    double alone_us;   /* a window without a piece; 0: not known */
    double rows;       /* of the next piece; 0: none was limited yet */
    uint32_t n_pieces; /* windows with one since alone_us was measured */
    double credit_us;  /* what prompts may take more than they did; below 0: they took more */
};

/* Rows of the next piece at most: `piece` when nobody is being answered; 0 where a window without
 * one is wanted, to be measured or to make up. */
uint32_t share_piece(const struct share *s, bool others, uint32_t piece);

/* Windows that came back together: of several, nobody knows which took how long. */
struct share_windows {
    uint32_t n;                     /* at least 1 */
    uint32_t n_generated, n_prompt; /* rows of all of them */
    uint64_t us;                    /* that they took */
};
void share_measured(struct share *s, const struct share_windows *w);

#endif
