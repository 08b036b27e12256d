/* SPDX-License-Identifier: MIT */
/*
 * See share.h.
 */
#include "workerd/share.h"

#include "common/base.h"

enum {
    ROWS_LEAST = 16, /* a multiple of every backend's tile: fewer would cost as much */
    ROWS_FIRST = 32,
    PIECES_MAX = 32, /* then a window without one is measured again: 1 % of the time */
};

uint32_t share_piece(const struct share *s, bool others, uint32_t piece)
{
    if (!others || s->percent >= 100) return piece;
    if (s->alone_us == 0 || s->n_pieces >= PIECES_MAX) return 0;
    uint32_t rows = s->rows == 0 ? ROWS_FIRST : (uint32_t)s->rows / ROWS_LEAST * ROWS_LEAST;
    return min_u32(rows, piece);
}

/* Half of the way to what would have been right: one late window must not decide. */
static void follow(struct share *s, uint32_t n_prompt, double extra_us)
{
    double allowed_us = s->alone_us * s->percent / (100 - s->percent);
    double right = extra_us > 0 ? n_prompt * allowed_us / extra_us : 2.0 * n_prompt;
    if (right > 2.0 * n_prompt) right = 2.0 * n_prompt;
    /* The end of a prompt is short of what was allowed, and says nothing for more. */
    if (right > s->rows && n_prompt < (uint32_t)s->rows / ROWS_LEAST * ROWS_LEAST) return;
    s->rows = s->rows == 0 ? right : (s->rows + right) / 2;
    if (s->rows < ROWS_LEAST) s->rows = ROWS_LEAST;
}

void share_measured(struct share *s, uint32_t n_generated, uint32_t n_prompt, uint64_t us)
{
    if (s->percent >= 100) return;
    if (n_prompt == 0) {
        s->alone_us = s->alone_us == 0 ? (double)us : (s->alone_us + (double)us) / 2;
        s->n_pieces = 0;
        return;
    }
    if (s->alone_us == 0) return;
    s->n_pieces++;
    follow(s, n_prompt, (double)us - (n_generated ? s->alone_us : 0));
}
