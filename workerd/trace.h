/* SPDX-License-Identifier: MIT */
#ifndef WORKERD_TRACE_H
#define WORKERD_TRACE_H
/*
 * worker.trace: a file that gets one line for each row of logits that the last stage computes, so
 * that two runs can be held equal by all bits of their logits and not only by the tokens chosen:
 *
 *     request row position token hash kind
 *
 * request is the head's tag, row the conversation's row in the pool, position that of the token
 * row, token the one that was sampled from it ("-" for a row that only worker.trace_all asked for),
 * hash the 64-bit FNV-1a of the row's floats as they lie in memory, kind "p" for a row of a prompt
 * and "g" for a generated one. Appended to; a whole window's lines are written at once. Device
 * thread only.
 */
#include "common/base.h"
#include "workerd/link.h"
#include "workerd/window.h"

struct trace;

int trace_new(const char *path, uint32_t max_rows, struct why *why, struct trace **ret);
void trace_free(struct trace *t); /* takes NULL */

/* To be the window's on_logits, with the trace as its argument. */
void trace_logits(void *arg, uint32_t lane, uint32_t row, const float *logits, uint32_t n_vocab);
/* After the window was run: writes its lines. lanes: as the link had them, for what the window
 * doesn't say. */
void trace_window(struct trace *t, const struct window *w, const struct link_lane *lanes);

#endif
