/* SPDX-License-Identifier: MIT */
#ifndef WORKERD_SCHEDULE_H
#define WORKERD_SCHEDULE_H
/*
 * Which token rows the next window holds. Pure functions of the lanes and of which groups have a
 * window in flight: no memory is touched, no message sent, nothing allocated. The head calls them
 * until there is nothing to post.
 *
 * The lanes in use are split into as many groups as there are stages. A window holds the next token
 * of every ready lane of one group and at most one piece of a prompt, the oldest first. What is
 * read again of an answer is a piece too; where the kind of tokens changes a piece ends, and it
 * comes last, so that rows of the kind generated come before those of the kind prompt. A piece
 * rides with any group's window: the stages take windows in order, so successive pieces of one
 * prompt may be in flight at once.
 *
 * A group has one window in flight, and a second one posted ahead of its return when lanes feed
 * (lane_feeds): it holds their rows and those of lanes that are ready by then. It holds no piece,
 * and none is posted while a prompt can be read: pieces two deep would keep a newcomer waiting for
 * what the time between windows is nothing beside. Nor is one posted without a fed row: lanes that
 * come ready one after the other would never meet in a window again.
 */
#include <stddef.h>

#include "proto/link_shm.h"
#include "workerd/lanes.h"

enum { SCHEDULE_FLYING_MAX = LINK_SLOTS_PER_STAGE }; /* windows of a group: the link has so many */

struct schedule {
    uint32_t n_groups;                   /* stages of the pipeline */
    uint32_t max_rows, max_lanes, piece; /* piece: prompt tokens of one window at most; 0: none */
    uint32_t flying[POOL_STAGES_MAX];    /* windows in flight, by group */
    uint32_t next_group;                 /* where the search begins, so that all get their turn */
};

struct plan_lane {
    uint32_t lane;
    uint32_t n_rows;
    bool sampled; /* its last row is the last token there is: the next one is sampled from it */
    bool fed;     /* its row's token is still to be sampled */
};

struct plan {
    uint32_t group;
    uint32_t n_rows, n_lanes;
    struct plan_lane *lanes; /* [max_lanes], the caller's */
};

/* Fills plan and returns true, or returns false when no window can be made now. */
bool schedule_next(const struct schedule *s, const struct lane *lanes, uint32_t n_lanes,
                   struct plan *plan);

/* Whether a lane's next token is being computed, or can be now. */
bool schedule_generates(const struct lane *lanes, uint32_t n_lanes);

/* The group with the fewest active lanes: where a new one goes. */
uint32_t schedule_group(const struct lane *lanes, uint32_t n_lanes, uint32_t n_groups);

/* Moves lanes that are not in flight from full groups to emptier ones, until no two groups differ
 * by more than one lane or nothing can move. Those in flight that are to move then are held: fed,
 * they would be in flight for ever. */
void schedule_balance(struct lane *lanes, uint32_t n_lanes, uint32_t n_groups);

#endif
