/* SPDX-License-Identifier: MIT */
/*
 * See share.h.
 */
#include "workerd/share.h"

#include "common/base.h"

enum {
    ROWS_UNIT = 16, /* a multiple of every backend's tile: fewer would cost as much */
    ROWS_FIRST = 32,
    PIECES_MAX = 32, /* then a window without one is measured again: 1 % of the time */
    PAUSE_MAX = 32,  /* windows between pieces: however much they take, a prompt is read */
};

static double allowed_us(const struct share *s)
{
    return s->alone_us * s->percent / (100 - s->percent);
}

static uint32_t least(const struct share *s) { return max_u32(s->least, ROWS_UNIT); }

uint32_t share_piece(const struct share *s, bool others, uint32_t piece)
{
    if (!others || s->percent >= 100) return piece;
    if (s->alone_us == 0 || s->n_pieces >= PIECES_MAX) return 0;
    /* A little over what is allowed, as measured, is no reason for a pause. */
    if (s->credit_us < -allowed_us(s) / 2) return 0;
    uint32_t rows = s->rows == 0 ? ROWS_FIRST : (uint32_t)s->rows / ROWS_UNIT * ROWS_UNIT;
    return min_u32(max_u32(rows, least(s)), piece);
}

/* Half of the way to what would have been right: one late window must not decide. */
static void follow(struct share *s, uint32_t n_prompt, double extra_us)
{
    double right = extra_us > 0 ? n_prompt * allowed_us(s) / extra_us : 2.0 * n_prompt;
    if (right > 2.0 * n_prompt) right = 2.0 * n_prompt;
    /* The end of a prompt is short of what was allowed, and says nothing for more. */
    if (right > s->rows && n_prompt < (uint32_t)s->rows / ROWS_UNIT * ROWS_UNIT) return;
    s->rows = s->rows == 0 ? right : (s->rows + right) / 2;
    if (s->rows < least(s)) s->rows = least(s);
}

static void credit(struct share *s, uint32_t n_windows, double extra_us)
{
    double allowed = allowed_us(s), credit = s->credit_us + n_windows * allowed - extra_us;
    if (credit > allowed / 2) credit = allowed / 2; /* what was not used is gone */
    if (credit < -allowed * PAUSE_MAX) credit = -allowed * PAUSE_MAX;
    s->credit_us = credit;
}

void share_measured(struct share *s, const struct share_windows *w)
{
    double us = (double)w->us / w->n;
    if (s->percent >= 100) return;
    if (w->n_prompt == 0) {
        s->alone_us = s->alone_us == 0 ? us : (s->alone_us + us) / 2;
        s->n_pieces = 0;
        credit(s, w->n, 0);
        return;
    }
    if (s->alone_us == 0) return;
    double extra_us = (double)w->us - (w->n_generated ? w->n * s->alone_us : 0);
    s->n_pieces++;
    follow(s, w->n_prompt, extra_us);
    if (w->n_generated) credit(s, w->n, extra_us);
}
