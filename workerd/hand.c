/* SPDX-License-Identifier: MIT */
/*
 * From the numbers of a slot, bounded by link_read, to a window as the model takes it. Called by
 * stage.c.
 */
#include "workerd/hand.h"

void hand_size(struct hand *h, const struct model_want *want, uint32_t table_entries)
{
    if (!h->lanes) {
        h->lanes = xcalloc(want->max_lanes, sizeof(*h->lanes));
        h->copy.lanes = xcalloc(want->max_lanes, sizeof(*h->copy.lanes));
        h->copy.tokens = xcalloc(want->max_rows, sizeof(*h->copy.tokens));
        h->copy.biases =
            xcalloc((size_t)want->max_lanes * LINK_BIASES_MAX, sizeof(*h->copy.biases));
    }
    if (h->table_entries == table_entries) return;
    free(h->tables);
    h->tables = xcalloc((size_t)want->max_lanes * table_entries, sizeof(*h->tables));
    h->table_entries = table_entries;
}

void hand_fini(struct hand *h)
{
    free(h->lanes);
    free(h->copy.lanes);
    free(h->copy.tokens);
    free(h->copy.biases);
    free(h->tables);
}

/* Copies the lane's part of its chunk table, so that what was bounded stays bounded. */
static void table_read(struct hand *h, const struct pool_map *pool, uint32_t i)
{
    const struct link_lane *from = &h->copy.lanes[i];
    uint64_t *table = h->tables + (size_t)i * h->table_entries;
    uint32_t cells = from->pos + from->n_rows;
    uint32_t n = min_u32((cells + pool->chunk_cells - 1) / pool->chunk_cells, h->table_entries);
    for (uint32_t k = 0; k < n; k++)
        table[k] = pool_map_entry(pool, from->row, k);
    h->lanes[i].table = table;
    h->lanes[i].n_table = n;
}

static struct sampling sampling_from(const struct link_lane *l, const struct link_bias *biases)
{
    return (struct sampling){
        .temperature = l->temperature,
        .top_p = l->top_p,
        .min_p = l->min_p,
        .top_k = l->top_k,
        .seed = l->seed,
        .biases = biases,
        .n_biases = l->n_biases,
        .repeat_last = l->repeat_last,
        .repeat = l->repeat,
        .presence = l->presence,
        .frequency = l->frequency,
    };
}

static struct window_lane lane_from(const struct link_lane *l, const struct link_bias *biases)
{
    return (struct window_lane){
        .pos = l->pos,
        .n_rows = l->n_rows,
        .want = l->want,
        .sampling = sampling_from(l, biases),
        .generated_from = l->generated_from,
        .probs = l->probs,
        .n_top = l->n_top,
        .next = l->next,
    };
}

void hand_build(struct hand *h, const struct link *l, const struct pool_map *pool)
{
    uint32_t first_row = 0;
    const struct link_bias *biases = h->copy.biases;
    h->window = (struct window){
        .n_rows = h->copy.window.n_rows,
        .n_lanes = h->copy.window.n_lanes,
        .tokens = h->copy.tokens,
        .lanes = h->lanes,
        .cells = pool->tokens->cell,
        .n_cells = pool->n_cells,
        .chunk_cells = pool->chunk_cells,
        .probs = link_probs(l, h->count),
    };
    for (uint32_t i = 0; i < h->window.n_lanes; i++) {
        const struct link_lane *from = &h->copy.lanes[i];
        h->lanes[i] = lane_from(from, biases);
        h->lanes[i].first_row = first_row;
        table_read(h, pool, i);
        first_row += from->n_rows;
        if (from->kind == LINK_GENERATED) h->window.n_generated = first_row;
        biases += from->n_biases;
    }
}

bool hand_has_copies(const struct hand *h)
{
    for (uint32_t i = 0; i < h->copy.window.n_lanes; i++)
        if (h->copy.lanes[i].copy_cells) return true;
    return false;
}
