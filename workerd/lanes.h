/* SPDX-License-Identifier: MIT */
#ifndef WORKERD_LANES_H
#define WORKERD_LANES_H
/*
 * A lane's life, and what the head knows of the conversation in it. The state moves only through
 * lane_move, by the table in lanes.c. Loop thread of a head only; the stages never see a lane, they
 * see the numbers that a window copies out of it.
 */
#include <stdbool.h>
#include <stdint.h>

struct request;

enum lane_state {
    LANE_FREE,
    LANE_OPENING,   /* poold has been asked for a row */
    LANE_ABANDONED, /* its request is over, but poold's answer is still to come */
    LANE_PROMPT,    /* tokens that were given are being read */
    LANE_DECODE,    /* tokens are being made */
    LANE_STATES,
};

enum lane_event {
    LANE_OPEN,    /* a request was put in */
    LANE_GRANTED, /* poold answered with a row */
    LANE_REFUSED, /* poold refused a row */
    LANE_READ,    /* the first sampled token is back */
    LANE_END,     /* its request is over */
    LANE_EVENTS,
};

/* Cells count from the conversation's beginning: done <= posted <= known + 1, posted <= reserved.
 * One past known is posted when the token there is still to come from a window in flight: it is
 * fed. */
struct lane {
    enum lane_state state;
    struct request *request; /* owned; NULL when free */
    uint64_t serial;         /* of the request in this head: tells a late result from a fresh one */
    uint32_t group;
    uint32_t row, lease;
    uint64_t generation, version, arrival; /* of the row */
    uint32_t copy_chunk, copy_cells;       /* a fork's: what its first window copies, then 0 */
    uint32_t reserved;                     /* cells that the row's table covers */
    uint32_t known;                        /* tokens there are: given and sampled */
    uint32_t posted;                       /* tokens that windows have taken */
    uint32_t alike;       /* a prompt's tokens from posted up to here are of one kind */
    uint32_t done;        /* tokens whose windows are back */
    uint32_t in_flight;   /* windows that hold it and are not back */
    uint64_t last_window; /* number of the last one posted, or 0 */
    uint32_t last_place;  /* which lane of that window it is */
    uint32_t feed_to;     /* tokens in all; 0: what follows a token is decided by the head */
    bool hold;            /* not fed: it is to move to another group */
    bool growing;         /* a Grow is unanswered */
    bool refused;         /* poold had no room when it was asked ahead */
};

/* 0, or -EINVAL when no row of the table allows the event: our own mistake. */
int lane_move(struct lane *l, enum lane_event on);

static inline bool lane_is_active(const struct lane *l)
{
    return l->state == LANE_PROMPT || l->state == LANE_DECODE;
}
static inline uint32_t lane_unposted(const struct lane *l)
{
    return l->known > l->posted ? l->known - l->posted : 0;
}
/* Cells that windows have taken whose tokens are known: what there is to keep of it. */
static inline uint32_t lane_cells(const struct lane *l)
{
    return l->known < l->posted ? l->known : l->posted;
}
static inline uint32_t lane_room(const struct lane *l)
{
    return l->reserved > l->posted ? l->reserved - l->posted : 0;
}
/* The window in flight samples its next token, and what that is changes nothing about the row after
 * it: that one may be posted at once. A row that would be its last has none after it. */
static inline bool lane_feeds(const struct lane *l)
{
    return lane_is_active(l) && l->in_flight && l->posted == l->known && !l->hold &&
           l->known + 1 < l->feed_to && lane_room(l);
}
/* It has a next token and no cell for it. */
static inline bool lane_is_dry(const struct lane *l)
{
    return lane_is_active(l) && lane_unposted(l) && !lane_room(l);
}

/* Cells to ask poold for now, or 0. ahead: fewer cells left than this ask for more. need: cells
 * that the request can use at most. A lane that was refused ahead of time asks once more when it is
 * dry. */
uint32_t lane_growth(const struct lane *l, uint32_t ahead, uint32_t unit_cells, uint32_t need);

#endif
