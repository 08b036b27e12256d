/* SPDX-License-Identifier: MIT */
#ifndef WORKERD_HAND_H
#define WORKERD_HAND_H
/*
 * A window in a stage's hands, from the link until it is published: the copy of its slot, and what
 * the model computes of it. Two of them are enough: the device computes one while the next is given
 * to it. Owned by the stage; device thread only.
 */
#include "workerd/link.h"
#include "workerd/model.h"
#include "workerd/pool_map.h"

struct hand {
    uint32_t count;        /* its number within the life */
    struct link_copy copy; /* of its slot */
    struct window window;  /* and its arrays: valid until the hand takes another */
    struct window_lane *lanes;
    uint64_t *tables; /* [max_lanes][table_entries] */
    uint32_t table_entries;
};

/* Room for the largest windows that the model was loaded for; may be called again for another pool.
 */
void hand_size(struct hand *h, const struct model_want *want, uint32_t table_entries);
void hand_fini(struct hand *h);

/* Makes the window of the copy. Where fed lanes find their tokens, the ways in and out, and who
 * looks at logits, are the caller's to fill in. */
void hand_build(struct hand *h, const struct link *l, const struct pool_map *pool);
/* Whether a fork's beginning is to be copied first. */
bool hand_has_copies(const struct hand *h);

#endif
