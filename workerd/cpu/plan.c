/* SPDX-License-Identifier: MIT */
/*
 * A window as the kernels see it. The chunk tables lie in memory that another process writes, so
 * each entry is read once and bounded here, and the kernels read the copy.
 */
#include "workerd/cpu/plan.h"

#include <errno.h>
#include <math.h>

#include "workerd/cpu/store.h"

enum {
    /* Rows are split into segments only while whole rows leave threads idle. */
    SHARES_A_THREAD = 8,
};

static uint32_t segments_of(uint32_t cells) { return (cells + SEGMENT_CELLS - 1) / SEGMENT_CELLS; }

static void *get(struct backend *b, size_t n, size_t bytes, bool *failed)
{
    void *at = n > SIZE_MAX / bytes / 2 ? NULL : cpu_store_get(b->store, n * bytes);
    if (!at) *failed = true;
    return at;
}

static struct cpu_partial partial_new(struct backend *b, size_t n, bool *failed)
{
    return (struct cpu_partial){
        .max = get(b, n, sizeof(float), failed),
        .sum = get(b, n, sizeof(float), failed),
        .o = get(b, n * b->geo.head_dim, sizeof(float), failed),
    };
}

static void fresh_new(struct backend *b, bool *failed)
{
    const struct cpu_geometry *g = &b->geo;
    uint32_t blocks = (b->want.max_rows + ROW_BLOCK - 1) / ROW_BLOCK, n = cpu_groups(g);
    if (n == 0) return;
    b->fresh.f =
        get(b, (size_t)b->want.max_rows * 2 * g->n_kv_heads, g->head_dim * sizeof(float), failed);
    b->fresh.left = get(b, (size_t)blocks * n, sizeof(uint32_t), failed);
    for (uint32_t i = 0; i < blocks * n && !*failed; i++)
        b->fresh.left[i] = cpu_group_values(g, i % g->block.n_groups) / TILE;
}

int cpu_plan_new(struct backend *b, struct why *why)
{
    const struct backend_want *want = &b->want;
    struct cpu_window *w = &b->win;
    uint32_t threads = team_size(b->team), group = want->n_heads / want->n_kv_heads;
    bool failed = false;
    b->n_segments = segments_of(want->context_tokens);
    b->n_slots = min_u32(want->max_lanes, SHARES_A_THREAD * threads / want->n_kv_heads + 1);
    w->lane = get(b, want->max_lanes, sizeof(*w->lane), &failed);
    w->cell = get(b, want->max_rows, sizeof(*w->cell), &failed);
    w->rope = get(b, (size_t)want->max_rows * want->rope_dims, sizeof(float), &failed);
    size_t queries = (size_t)want->max_rows + (size_t)b->n_slots * b->n_segments;
    w->query = get(b, queries, sizeof(*w->query), &failed);
    b->scratch = get(b, threads, sizeof(*b->scratch), &failed);
    for (uint32_t i = 0; i < threads && !failed; i++) {
        struct cpu_scratch *s = &b->scratch[i];
        s->score = get(b, (size_t)QUERY_ROWS_MAX * STEP_CELLS, sizeof(float), &failed);
        s->kv = get(b, (size_t)STEP_CELLS * want->head_dim, sizeof(float), &failed);
        if (b->geo.block.n_groups)
            s->weight = get(b, (size_t)QUERY_ROWS_MAX * STEP_CELLS * b->geo.block.n_groups,
                            sizeof(float), &failed);
        s->part = partial_new(b, QUERY_ROWS_MAX, &failed);
        s->total = partial_new(b, QUERY_ROWS_MAX, &failed);
    }
    fresh_new(b, &failed);
    size_t slots = (size_t)b->n_slots * want->n_kv_heads;
    b->split_left = get(b, slots, sizeof(*b->split_left), &failed);
    b->split = get(b, slots, sizeof(*b->split), &failed);
    for (size_t i = 0; i < slots && !failed; i++)
        b->split[i] = partial_new(b, (size_t)b->n_segments * group, &failed);
    return failed ? why_set(why, -ENOMEM, "no memory for windows of %u rows", want->max_rows) : 0;
}

static uint32_t chunks_of_context(const struct backend *b)
{
    return b->want.context_tokens / b->geo.chunk_cells + 1;
}

int cpu_plan_arena(struct backend *b, struct why *why)
{
    free(b->chunk_words);
    b->chunk_words = calloc((size_t)b->want.max_lanes * chunks_of_context(b), sizeof(uint32_t));
    return b->chunk_words ? 0 : why_set(why, -ENOMEM, "no memory for the chunk tables");
}

static void place_lane(struct backend *b, uint32_t i, const struct window_lane *from)
{
    uint32_t room = chunks_of_context(b);
    uint32_t *chunk = b->chunk_words + (size_t)i * room;
    struct cpu_lane *l = &b->win.lane[i];
    *l = (struct cpu_lane){
        .pos = from->pos,
        .n_rows = from->n_rows,
        .first_row = from->first_row,
        .chunk = chunk,
        .n_chunks = min_u32(from->n_table, room),
    };
    for (uint32_t j = 0; j < l->n_chunks; j++) {
        uint32_t id = pool_entry_chunk(__atomic_load_n(&from->table[j], __ATOMIC_RELAXED));
        chunk[j] = id <= b->arena->n_chunks ? id : 0;
    }
    for (uint32_t r = 0; r < l->n_rows; r++)
        b->win.cell[l->first_row + r] = (struct cpu_cell){
            .block = cpu_block_off(&b->geo, l, l->pos + r),
            .at = (l->pos + r) % b->geo.block_cells,
        };
}

/* Angles in double: a float's error at position 8,000 would show in the logits. */
static void turn_row(struct backend *b, uint32_t row, uint32_t pos)
{
    float *to = b->win.rope + (size_t)row * b->geo.rope_dims;
    for (uint32_t i = 0; i < b->geo.rope_dims / 2; i++) {
        double angle = (double)pos * b->rope_freq[i];
        to[2 * i] = (float)cos(angle);
        to[2 * i + 1] = (float)sin(angle);
    }
}

static void share_row(struct backend *b, uint32_t lane, uint32_t slot)
{
    struct cpu_window *w = &b->win;
    uint32_t n = segments_of(w->lane[lane].pos + 1);
    for (uint32_t s = 0; s < n; s++)
        w->query[w->n_queries++] = (struct cpu_query){
            .lane = lane,
            .row = w->lane[lane].first_row,
            .n_rows = 1,
            .segment = (int32_t)s,
            .slot = slot,
        };
    for (uint32_t h = 0; h < b->geo.n_kv_heads; h++)
        b->split_left[(size_t)slot * b->geo.n_kv_heads + h] = n;
}

static void share_lanes(struct backend *b)
{
    struct cpu_window *w = &b->win;
    uint32_t slot = 0, threads = team_size(b->team);
    bool idle = threads > 1 && w->n_lanes * b->geo.n_kv_heads < SHARES_A_THREAD * threads;
    w->n_queries = 0;
    for (uint32_t i = 0; i < w->n_lanes; i++) {
        const struct cpu_lane *l = &w->lane[i];
        if (idle && l->n_rows == 1 && slot < b->n_slots && l->pos < b->want.context_tokens) {
            share_row(b, i, slot++);
            continue;
        }
        for (uint32_t r = 0; r < l->n_rows; r += b->geo.tile_rows)
            w->query[w->n_queries++] = (struct cpu_query){
                .lane = i,
                .row = l->first_row + r,
                .n_rows = min_u32(b->geo.tile_rows, l->n_rows - r),
                .segment = -1,
            };
    }
}

void cpu_plan_begin(struct backend *b, const struct window *w)
{
    b->win.n_rows = w->n_rows;
    b->win.n_lanes = w->n_lanes;
    b->win.tokens = w->tokens;
    for (uint32_t i = 0; i < w->n_lanes; i++) {
        place_lane(b, i, &w->lanes[i]);
        for (uint32_t r = 0; r < w->lanes[i].n_rows; r++)
            turn_row(b, w->lanes[i].first_row + r, w->lanes[i].pos + r);
    }
    share_lanes(b);
}
