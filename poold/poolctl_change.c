/* SPDX-License-Identifier: MIT */
/*
 * poolctl's changes: one message each, whose answer says how many it concerned. Whether the user
 * may is poold's to say.
 */
#include <errno.h>
#include <string.h>

#include "poold/poolctl.h"

int check_drop(struct ctl *c)
{
    if (c->all) return c->n_args == 0 ? 0 : -EINVAL;
    return c->n_args == 1 ? check_row(c) : -EINVAL;
}

void ask_drop(struct ctl *c, Cistern__Envelope *m)
{
    static Cistern__Drop drop = CISTERN__DROP__INIT;
    drop.all = c->all;
    drop.row = c->row;
    drop.generation = c->generation;
    m->body_case = CISTERN__ENVELOPE__BODY_DROP;
    m->drop = &drop;
}

int check_evict(struct ctl *c)
{
    if (c->has_cells) return c->n_args == 0 && c->cells > 0 ? 0 : -EINVAL;
    return c->n_args == 1 ? check_row(c) : -EINVAL;
}

void ask_evict(struct ctl *c, Cistern__Envelope *m)
{
    static Cistern__Evict evict = CISTERN__EVICT__INIT;
    evict.cells = c->cells;
    evict.has_row = !c->has_cells;
    evict.row = c->row;
    evict.generation = c->generation;
    m->body_case = CISTERN__ENVELOPE__BODY_EVICT;
    m->evict = &evict;
}

int check_move(struct ctl *c) { return c->n_args == 1 && c->has_pipeline ? check_row(c) : -EINVAL; }

void ask_move(struct ctl *c, Cistern__Envelope *m)
{
    static Cistern__Move move = CISTERN__MOVE__INIT;
    move.row = c->row;
    move.generation = c->generation;
    move.pipeline = c->pipeline;
    m->body_case = CISTERN__ENVELOPE__BODY_MOVE;
    m->move = &move;
}

static int digits_from(const char *text, char **ret_end, uint32_t max, uint32_t *ret)
{
    if (*text < '0' || *text > '9') return -EINVAL;
    unsigned long v = strtoul(text, ret_end, 10);
    if (v > max) return -EINVAL;
    *ret = (uint32_t)v;
    return 0;
}

int check_place(struct ctl *c)
{
    char *end = NULL;
    if (c->n_args != 1) return -EINVAL;
    int r = digits_from(c->arg[0], &end, POOL_PIPELINES_MAX - 1, &c->pipeline);
    if (r < 0 || !*end) return r;
    c->has_stage = true;
    r = *end == '.' ? digits_from(end + 1, &end, POOL_STAGES_MAX - 1, &c->stage) : -EINVAL;
    return r < 0 || *end ? -EINVAL : 0;
}

static void fill_drain(struct ctl *c, Cistern__Envelope *m, bool on)
{
    static Cistern__Drain drain = CISTERN__DRAIN__INIT;
    drain.pipeline = c->pipeline;
    drain.on = on;
    drain.has_stage = c->has_stage;
    drain.stage = c->stage;
    m->body_case = CISTERN__ENVELOPE__BODY_DRAIN;
    m->drain = &drain;
}

void ask_drain(struct ctl *c, Cistern__Envelope *m) { fill_drain(c, m, true); }
void ask_undrain(struct ctl *c, Cistern__Envelope *m) { fill_drain(c, m, false); }

void text_change(const json_t *o)
{
    static const struct {
        const char *command, *words;
    } done[] = {
        {"drop",    "conversations dropped"                       },
        {"evict",   "chunks given back, or conversations asked to"},
        {"move",    "conversations asked to move"                 },
        {"drain",   "drained now"                                 },
        {"undrain", "no longer drained"                           },
    };
    for (size_t i = 0; i < ARRAY_LEN(done); i++)
        if (strcmp(done[i].command, json_text(o, "command")) == 0)
            printf("%lld %s\n", json_number(o, "n"), done[i].words);
}
