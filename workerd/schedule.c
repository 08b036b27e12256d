/* SPDX-License-Identifier: MIT */
/*
 * Composition of windows and the split of lanes into groups. Called by the head's loop thread;
 * pure: the lanes' counters move when the head posts what is planned here.
 */
#include "workerd/schedule.h"

#include "common/base.h"

static bool decodes(const struct lane *l)
{
    return l->state == LANE_DECODE && lane_unposted(l) && lane_room(l);
}

/* The oldest prompt with a token to read and a cell to put it in, or n_lanes. */
static uint32_t oldest_prompt(const struct lane *lanes, uint32_t n_lanes)
{
    uint32_t best = n_lanes;
    for (uint32_t i = 0; i < n_lanes; i++) {
        const struct lane *l = &lanes[i];
        if (l->state != LANE_PROMPT || !lane_unposted(l) || !lane_room(l)) continue;
        if (best == n_lanes || l->arrival < lanes[best].arrival) best = i;
    }
    return best;
}

bool schedule_generates(const struct lane *lanes, uint32_t n_lanes)
{
    for (uint32_t i = 0; i < n_lanes; i++)
        if (decodes(&lanes[i]) || (lanes[i].state == LANE_DECODE && lanes[i].in_flight))
            return true;
    return false;
}

static bool group_has(const struct lane *lanes, uint32_t n_lanes, uint32_t group,
                      bool (*is)(const struct lane *l))
{
    for (uint32_t i = 0; i < n_lanes; i++)
        if (lanes[i].group == group && is(&lanes[i])) return true;
    return false;
}

/* The group whose window is next, or n_groups: one without a window in flight before one that would
 * only get ahead. */
static uint32_t next_group(const struct schedule *s, const struct lane *lanes, uint32_t n_lanes,
                           bool reads)
{
    for (uint32_t flying = 0; flying < (reads ? 1 : SCHEDULE_FLYING_MAX); flying++)
        for (uint32_t i = 0; i < s->n_groups; i++) {
            uint32_t g = (s->next_group + i) % s->n_groups;
            if (s->flying[g] != flying) continue;
            if (group_has(lanes, n_lanes, g, lane_feeds)) return g;
            if (flying == 0 && (reads || group_has(lanes, n_lanes, g, decodes))) return g;
        }
    return s->n_groups;
}

static void plan_add(struct plan *p, const struct lane *lanes, uint32_t lane, uint32_t n_rows)
{
    p->lanes[p->n_lanes++] = (struct plan_lane){
        .lane = lane,
        .n_rows = n_rows,
        .sampled = n_rows >= lane_unposted(&lanes[lane]),
        .fed = lane_unposted(&lanes[lane]) == 0,
    };
    p->n_rows += n_rows;
}

bool schedule_next(const struct schedule *s, const struct lane *lanes, uint32_t n_lanes,
                   struct plan *plan)
{
    uint32_t prompt = s->piece ? oldest_prompt(lanes, n_lanes) : n_lanes;
    uint32_t group = next_group(s, lanes, n_lanes, prompt < n_lanes);
    if (group == s->n_groups) return false;

    plan->group = group;
    plan->n_rows = plan->n_lanes = 0;
    for (uint32_t i = 0; i < n_lanes && plan->n_lanes < s->max_lanes; i++)
        if (lanes[i].group == group && (decodes(&lanes[i]) || lane_feeds(&lanes[i])) &&
            plan->n_rows < s->max_rows)
            plan_add(plan, lanes, i, 1);
    if (prompt == n_lanes || plan->n_lanes == s->max_lanes || plan->n_rows == s->max_rows)
        return true;
    const struct lane *l = &lanes[prompt];
    uint32_t n = min_u32(min_u32(lane_unposted(l), lane_room(l)), s->piece);
    n = min_u32(n, l->alike - l->posted);
    plan_add(plan, lanes, prompt, min_u32(n, s->max_rows - plan->n_rows));
    return true;
}

static void count_groups(const struct lane *lanes, uint32_t n_lanes, uint32_t n_groups,
                         uint32_t count[POOL_STAGES_MAX])
{
    for (uint32_t g = 0; g < n_groups; g++)
        count[g] = 0;
    for (uint32_t i = 0; i < n_lanes; i++)
        if (lane_is_active(&lanes[i]) && lanes[i].group < n_groups) count[lanes[i].group]++;
}

static uint32_t least(const uint32_t *count, uint32_t n)
{
    uint32_t best = 0;
    for (uint32_t g = 1; g < n; g++)
        if (count[g] < count[best]) best = g;
    return best;
}

uint32_t schedule_group(const struct lane *lanes, uint32_t n_lanes, uint32_t n_groups)
{
    uint32_t count[POOL_STAGES_MAX];
    count_groups(lanes, n_lanes, n_groups, count);
    return least(count, n_groups);
}

void schedule_balance(struct lane *lanes, uint32_t n_lanes, uint32_t n_groups)
{
    uint32_t count[POOL_STAGES_MAX];
    count_groups(lanes, n_lanes, n_groups, count);
    for (uint32_t flying = 0; flying < 2; flying++)
        for (uint32_t i = 0; i < n_lanes; i++) {
            struct lane *l = &lanes[i];
            uint32_t to = least(count, n_groups);
            if (!lane_is_active(l) || !l->in_flight != !flying) continue;
            l->hold = flying && count[l->group] >= count[to] + 2;
            if (count[l->group] < count[to] + 2) continue;
            count[l->group]--;
            count[to]++;
            if (!flying) l->group = to;
        }
}
