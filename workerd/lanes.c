/* SPDX-License-Identifier: MIT */
/*
 * The table of a lane's states and the rule when it asks for more cells. Called by the head; it
 * knows no messages and no memory.
 */
#include "workerd/lanes.h"

#include <errno.h>

#include "common/base.h"

static const struct {
    enum lane_state from;
    enum lane_event on;
    enum lane_state to;
} rules[] = {
    {LANE_FREE,      LANE_OPEN,    LANE_OPENING  },
    {LANE_OPENING,   LANE_GRANTED, LANE_PROMPT   },
    {LANE_OPENING,   LANE_REFUSED, LANE_FREE     },
    {LANE_OPENING,   LANE_END,     LANE_ABANDONED}, /* the Open can't be called back */
    {LANE_ABANDONED, LANE_GRANTED, LANE_FREE     }, /* the row is closed at once */
    {LANE_ABANDONED, LANE_REFUSED, LANE_FREE     },
    {LANE_PROMPT,    LANE_READ,    LANE_DECODE   },
    {LANE_PROMPT,    LANE_END,     LANE_FREE     }, /* what is in flight is poold's to wait for */
    {LANE_DECODE,    LANE_END,     LANE_FREE     },
};

int lane_move(struct lane *l, enum lane_event on)
{
    for (size_t i = 0; i < ARRAY_LEN(rules); i++) {
        if (rules[i].from != l->state || rules[i].on != on) continue;
        l->state = rules[i].to;
        return 0;
    }
    return -EINVAL;
}

uint32_t lane_growth(const struct lane *l, uint32_t ahead, uint32_t unit_cells, uint32_t need)
{
    if (!lane_is_active(l) || l->growing || l->reserved >= need) return 0;
    if (lane_room(l) >= ahead) return 0;
    if (l->refused && !lane_is_dry(l)) return 0;
    return l->reserved + unit_cells;
}
