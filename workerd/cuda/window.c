/* SPDX-License-Identifier: MIT */
/*
 * The arena as the device sees it, and a window's rows and chunk tables at their fixed addresses.
 * The tables lie in memory that another process writes: each entry is read once and bounded here.
 */
#include <assert.h>
#include <errno.h>
#include <string.h>

#include "common/death.h"
#include "common/system.h"
#include "workerd/arena.h"
#include "workerd/cuda/cuda.h"

enum {
    SPAN_BLOCK_CELLS = 256, /* that a block of threads could attend to while it begins and ends */
    STRETCHES_LEAST = 1024, /* blocks of threads: with 256 of them an H200 is slower, with so many
                               faster; see tests/bench/README.md */
};

static int flight_new(struct backend *b, struct cuda_flight *f)
{
    uint64_t rows = b->want.max_rows;
    f->rows = cuda_get_pinned(b, rows * sizeof(*f->rows));
    f->spans = cuda_get_pinned(b, rows * sizeof(*f->spans));
    f->listed = cuda_get_pinned(b, rows * sizeof(*f->listed));
    f->picks = cuda_get_pinned(b, CUDA_PICKS * sizeof(*f->picks));
    f->late = cuda_get_pinned(b, rows * sizeof(*f->late));
    f->ways = cuda_get_pinned(b, sizeof(*f->ways));
    f->activations = cuda_get_pinned(b, rows * b->want.n_embd * sizeof(float));
    if (!f->rows || !f->spans || !f->listed || !f->picks || !f->late || !f->ways || !f->activations)
        return -ENOMEM;
    cudaError_t e = cudaEventCreateWithFlags(&f->done, cudaEventDisableTiming);
    return e == cudaSuccess ? 0 : -EIO;
}

void cuda_window_free(struct backend *b)
{
    for (int i = 0; i < 2; i++)
        if (b->flight[i].done) (void)cudaEventDestroy(b->flight[i].done);
}

int cuda_window_new(struct backend *b)
{
    const struct backend_want *w = &b->want;
    b->rows = cuda_get(b, w->max_rows * sizeof(*b->rows));
    b->spans = cuda_get(b, w->max_rows * sizeof(*b->spans));
    b->listed = cuda_get(b, w->max_rows * sizeof(*b->listed));
    b->picks = cuda_get(b, CUDA_PICKS * sizeof(*b->picks));
    b->rope_freq = cuda_get(b, w->rope_dims / 2 * sizeof(double));
    b->rope = cuda_get(b, (uint64_t)w->max_rows * w->rope_dims * sizeof(float));
    uint64_t kv = 2 * (uint64_t)w->n_kv_heads * w->head_dim;
    b->ways = cuda_get(b, sizeof(*b->ways));
    if (!b->rows || !b->spans || !b->listed || !b->picks || !b->rope_freq || !b->rope || !b->ways)
        return -ENOMEM;
    if (b->block.k_bits < 16) b->fresh = cuda_get(b, w->max_rows * kv * sizeof(float));
    if (b->block.k_bits < 16 && !b->fresh) return -ENOMEM;
    for (int i = 0; i < 2; i++) {
        int r = flight_new(b, &b->flight[i]);
        if (r < 0) return r;
    }
    b->now = &b->flight[0];
    cudaError_t e = cudaMemcpyAsync(b->rope_freq, w->rope_freq, w->rope_dims / 2 * sizeof(double),
                                    cudaMemcpyHostToDevice, b->stream);
    if (e == cudaSuccess) e = cudaStreamSynchronize(b->stream);
    return e == cudaSuccess ? 0 : -EIO;
}

/* ---- the arena ---- */

void cuda_arena_release(struct backend *b)
{
    bool ours = b->registered && !b->pinned;
    for (uint64_t at = 0; ours && at < b->arena_bytes; at += CUDA_REGISTER_BYTES)
        (void)cudaHostUnregister(b->registered + at);
    (void)cudaGetLastError(); /* a mapping that is gone was let go of with it */
    b->registered = NULL;
}

/* CUDA's own host memory (pool.memory = cuda) is known to it already, for this device since it was
 * mapped. */
static bool is_pinned(const void *at)
{
    struct cudaPointerAttributes a = {0};
    cudaError_t e = cudaPointerGetAttributes(&a, at);
    if (e != cudaSuccess) (void)cudaGetLastError();
    return e == cudaSuccess && a.type != cudaMemoryTypeUnregistered;
}

static int arena_register(struct backend *b, struct pool_arena *arena, struct why *why)
{
    cuda_arena_release(b);
    b->arena_bytes = round_up_u64(arena->bytes, PAGE_BYTES);
    b->pool_id = arena->pool_id;
    b->pinned = is_pinned(arena);
    if (b->pinned) b->registered = (uint8_t *)arena;
    for (uint64_t at = 0; !b->pinned && at < b->arena_bytes; at += CUDA_REGISTER_BYTES) {
        uint64_t n = min_u64(CUDA_REGISTER_BYTES, b->arena_bytes - at);
        cudaError_t e = cudaHostRegister((uint8_t *)arena + at, n,
                                         cudaHostRegisterMapped | cudaHostRegisterPortable);
        if (e != cudaSuccess) {
            b->arena_bytes = at;
            b->registered = (uint8_t *)arena;
            cuda_arena_release(b);
            return why_set(why, -ENOMEM,
                           "the pool's %llu bytes can't be pinned for the GPU: %s; is pool.dir on "
                           "tmpfs, and is there so much memory (also of a container's limit)?",
                           (unsigned long long)arena->bytes, cudaGetErrorString(e));
        }
        b->registered = (uint8_t *)arena;
    }
    return 0;
}

static int tables_new(struct backend *b, struct why *why)
{
    /* A lane's last row may lie past the context: it goes to the trash chunk. */
    uint32_t room = ((b->want.context_tokens + b->want.max_rows) >> b->chunk_shift) + 2;
    if (room <= b->table_room) return 0;
    uint64_t bytes = (uint64_t)b->want.max_lanes * room * sizeof(*b->tables);
    for (int i = 0; i < 2; i++)
        b->flight[i].tables = cuda_get_pinned(b, bytes);
    b->tables = cuda_get(b, bytes);
    b->table_room = room;
    bool got = b->flight[0].tables && b->flight[1].tables && b->tables;
    return got ? 0 : why_set(why, -ENOMEM, "no memory for the chunk tables");
}

int cuda_use_arena(struct backend *b, struct pool_arena *arena, uint32_t first_layer,
                   struct why *why)
{
    int r = arena_check(arena, b->want.block_cells, why);
    if (r < 0) return r;
    bool same = b->registered == (uint8_t *)arena && b->pool_id == arena->pool_id &&
                b->arena_bytes == round_up_u64(arena->bytes, PAGE_BYTES) &&
                b->first_layer == first_layer;
    for (uint32_t i = 0; i < b->want.n_layers; i++) {
        b->run[i] = arena_layer(arena, first_layer + i, b->want.block_bytes);
        if (!b->run[i])
            return why_set(why, -EINVAL, "arena: no run of %llu-byte blocks for layer %u",
                           (unsigned long long)b->want.block_bytes, first_layer + i);
    }
    b->arena = arena;
    cuda_upload_free(b); /* no weight comes any more */
    if (same) return 0;
    b->first_layer = first_layer;
    b->block_shift = (uint32_t)__builtin_ctz(arena->block_cells);
    b->chunk_shift = (uint32_t)__builtin_ctz(arena->chunk_cells);
    b->chunk_bytes = (uint64_t)(arena->chunk_cells >> b->block_shift) * b->want.block_bytes;
    cuda_list_clear(b->list); /* graphs hold addresses of the old arena */
    r = arena_register(b, arena, why);
    if (r == 0) r = tables_new(b, why);
    return r < 0 ? r : cuda_resident_new(b, why);
}

struct cuda_kv cuda_kv_of(const struct backend *b, uint32_t layer)
{
    const struct backend_want *w = &b->want;
    return (struct cuda_kv){
        .rows = b->rows,
        .tables = b->tables,
        .rope = b->rope,
        .host = b->run[layer],
        .resident = b->resident.memory ? b->resident.memory +
                                             (uint64_t)layer * b->resident.n_slots * b->chunk_bytes
                                       : NULL,
        .passing = cuda_passing_of(b, layer),
        .n_slots = b->resident.n_slots,
        .chunk_bytes = b->chunk_bytes,
        .block_bytes = w->block_bytes,
        .v_off = b->block.v.off,
        .k_scale_off = b->block.k_scale.off,
        .v_scale_off = b->block.v_scale.off,
        .table_room = b->table_room,
        .chunk_shift = b->chunk_shift,
        .block_shift = b->block_shift,
        .n_heads = w->n_heads,
        .n_kv_heads = w->n_kv_heads,
        .head_dim = w->head_dim,
        .rope_dims = w->rope_dims,
        .k_bits = b->block.k_bits,
        .v_bits = b->block.v_bits,
        .n_groups = b->block.n_groups,
        .fresh = b->fresh,
    };
}

void cuda_copy_cells(struct backend *b, uint32_t from_chunk, uint32_t to_chunk, uint32_t n_cells)
{
    if (from_chunk > b->arena->n_chunks || to_chunk > b->arena->n_chunks) return;
    uint32_t n = min_u32(n_cells, 1u << b->chunk_shift);
    for (uint32_t i = 0; i < b->want.n_layers; i++)
        arena_copy_cells(&b->block, 1u << b->block_shift, b->run[i] + to_chunk * b->chunk_bytes,
                         b->run[i] + from_chunk * b->chunk_bytes, n);
    cuda_resident_cut(b, to_chunk, 0);
}

/* ---- a window ---- */

static uint32_t cells_in_chunk(const struct backend *b, uint32_t cells, uint32_t chunk)
{
    uint32_t first = chunk << b->chunk_shift;
    return cells <= first ? 0 : min_u32(cells - first, 1u << b->chunk_shift);
}

static void place_lane(struct backend *b, uint32_t i, const struct window_lane *from)
{
    struct cuda_entry *to = b->now->tables + (size_t)i * b->table_room;
    uint32_t end = from->pos + from->n_rows;
    uint32_t n = ((end - 1) >> b->chunk_shift) + 1;
    for (uint32_t j = 0; j < n && j < b->table_room; j++) {
        uint64_t entry = 0;
        if (j < from->n_table) entry = __atomic_load_n(&from->table[j], __ATOMIC_RELAXED);
        if (pool_entry_chunk(entry) > b->arena->n_chunks) entry = 0;
        to[j].chunk = pool_entry_chunk(entry);
        uint32_t before = cells_in_chunk(b, from->pos, j);
        to[j].slot = cuda_resident_take(b, entry, before, cells_in_chunk(b, end, j));
        if (to[j].slot < 0 && from->n_rows > 1)
            to[j].slot = cuda_passing_take(b, to[j].chunk, before);
    }
}

/* A lane's rows as spans of what fits a tile of attention; few ones, or all of a window that is a
 * graph, by themselves. */
static void span_lane(struct backend *b, const struct window_lane *l)
{
    uint32_t most = CUDA_FLASH_ROWS * b->want.n_kv_heads / b->want.n_heads, at = l->first_row;
    if (!b->flash_tiles || b->shape.n_rows <= CUDA_ROWS_GRAPH || l->n_rows < CUDA_SPAN_LEAST) {
        for (uint32_t i = 0; i < l->n_rows; i++)
            b->now->listed[b->shape.n_listed++] = at + i;
        b->shape.longest = max_u32(b->shape.longest, l->pos + l->n_rows);
        return;
    }
    b->shape.longest_span = max_u32(b->shape.longest_span, l->pos + l->n_rows);
    for (uint32_t left = l->n_rows, n; left > 0; left -= n, at += n) {
        n = min_u32(left, most);
        b->now->spans[b->shape.n_spans++] = (struct cuda_span){.first_row = at, .n_rows = n};
    }
}

/* With a stretch each, blocks of threads write less and leave less to join than with a part each;
 * there must be enough of them for all multiprocessors, also when the longest row is little more
 * than half of what n_splits says. */
uint32_t cuda_together(const struct backend *b, uint32_t n_rows, uint32_t n_splits)
{
    uint64_t blocks = (uint64_t)n_rows * b->want.n_kv_heads * n_splits / CUDA_FLASH_STRETCH;
    return b->flash && n_splits >= CUDA_FLASH_STRETCH && blocks >= STRETCHES_LEAST
               ? CUDA_FLASH_STRETCH
               : 1;
}

/* Time of the spans' attention in cells, by blocks of threads that have `each` stretches of a span
 * and a K/V head; as many run at once as there are multiprocessors. */
static uint64_t spans_time(const struct backend *b, uint32_t turn, uint32_t each)
{
    uint64_t divided = (b->shape.span_stretches + each - 1) / each;
    uint64_t blocks = turn * b->want.n_kv_heads * divided;
    uint64_t rounds = (blocks + b->multiprocessors - 1) / b->multiprocessors;
    uint64_t cells = (uint64_t)each * CUDA_FLASH_STRETCH * CUDA_FLASH_CELLS + SPAN_BLOCK_CELLS;
    return (b->shape.n_spans + turn - 1) / turn * rounds * cells;
}

/* Where spans are too few for all multiprocessors, their cells are divided among several blocks,
 * which leave partial sums; the spans go in turns of as many as there is room for. What it must
 * gain is what leaving and joining costs. */
static void spans_divide(struct backend *b)
{
    const uint32_t stretch = CUDA_FLASH_STRETCH * CUDA_FLASH_CELLS;
    b->shape.span_stretches = (b->shape.longest_span + stretch - 1) / stretch;
    b->shape.span_each = 0;
    b->shape.span_turn = b->shape.n_spans;
    uint64_t entries = (uint64_t)CUDA_FLASH_ROWS * b->want.n_kv_heads * b->shape.span_stretches;
    uint32_t turn =
        (uint32_t)min_u64(b->part_rows_splits * b->want.n_heads / entries, b->shape.n_spans);
    if (turn * CUDA_SPAN_TURNS < b->shape.n_spans || b->multiprocessors == 0) return;
    uint64_t best = spans_time(b, b->shape.n_spans, b->shape.span_stretches) * 7 / 8;
    for (uint32_t each = 1; each < b->shape.span_stretches; each++) {
        uint64_t time = spans_time(b, turn, each);
        if (time >= best) continue;
        best = time;
        b->shape.span_each = each;
        b->shape.span_turn = turn;
    }
}

static void up(struct backend *b, void *to, const void *from, size_t bytes)
{
    if (bytes == 0) return;
    (void)cuda_ok(b, cudaMemcpyAsync(to, from, bytes, cudaMemcpyHostToDevice, b->stream));
}

static uint32_t token_of(const struct window *w, const struct window_lane *l, uint32_t row)
{
    if (l->fed_from) return CUDA_TOKEN_FED | l->fed_row;
    if (l->late) return CUDA_TOKEN_LATE;
    return w->tokens ? w->tokens[row] : 0;
}

static void place_rows(struct backend *b, uint32_t lane, const struct window_lane *l)
{
    for (uint32_t i = 0; i < l->n_rows; i++)
        b->now->rows[l->first_row + i] =
            (struct cuda_row){.token = token_of(b->now->window, l, l->first_row + i),
                              .pos = l->pos + i,
                              .lane = lane};
}

/* Takes a flight for the window, and forgets the one that it had. */
static void flight_begin(struct backend *b, const struct window *w)
{
    /* One that flies may not have been copied yet. The other's place makes other graphs. */
    struct cuda_flight *f = &b->flight[b->n_flying == 1 && b->now == &b->flight[0]];
    f->window = w;
    f->n_placed = 0;
    f->load_from = NULL;
    f->store_to = NULL;
    f->failed = cudaSuccess;
    f->refused = b->arena ? 0 : -EINVAL;
    *f->ways = (struct cuda_ways){0};
    b->now = f;
    b->take_late.to = b->give_late.to = NULL;
    b->choices.host_token = f->tokens;
    b->choices.probs = f->probs;
    b->passing.n = 0;
    b->window++;
}

static void lane_begin(struct backend *b, uint32_t lane)
{
    const struct window_lane *l = &b->now->window->lanes[lane];
    uint64_t end = (uint64_t)l->pos + l->n_rows;
    if (end > (uint64_t)b->table_room << b->chunk_shift) {
        cuda_refuse(b, -EINVAL);
        return;
    }
    place_lane(b, lane, l);
    b->now->n_placed++;
    span_lane(b, l);
    place_rows(b, lane, l);
    b->shape.lone_rows = b->shape.lone_rows && l->n_rows == 1;
}

void cuda_begin(struct backend *b, const struct window *w)
{
    assert(b->n_flying < 2 && !b->prepared);
    flight_begin(b, w);
    b->shape = (struct cuda_shape){
        .n_rows = w->n_rows,
        .n_plain = b->halves ? w->n_generated : w->n_rows,
        .lone_rows = true,
    };
    for (uint32_t i = 0; i < w->n_lanes && !b->now->refused; i++)
        lane_begin(b, i);
    if (b->now->refused) return;
#ifdef CISTERN_DEATH_POINTS
    if (DEATH_TRAP("window-begun")) (void)cuda_ok(b, cuda_launch_trap(b->stream));
#endif
    up(b, b->rows, b->now->rows, w->n_rows * sizeof(*b->rows));
    up(b, b->tables, b->now->tables, (size_t)w->n_lanes * b->table_room * sizeof(*b->tables));
    if (b->shape.n_spans == 0) return; /* all rows are listed, in order */
    spans_divide(b);
    up(b, b->spans, b->now->spans, b->shape.n_spans * sizeof(*b->spans));
    up(b, b->listed, b->now->listed, b->shape.n_listed * sizeof(*b->listed));
}

void cuda_window_late(struct backend *b)
{
    struct cuda_flight *f = b->now;
    const struct window *w = f->window;
    for (uint32_t i = 0; i < w->n_lanes; i++) {
        uint32_t row = w->lanes[i].first_row;
        if (w->lanes[i].late) f->late[row] = w->tokens[row];
    }
    if (f->load_from) memcpy(f->activations, f->load_from, f->load_bytes);
    f->load_from = NULL; /* more of the window may be launched: its logits by parts */
}

void cuda_window_undo(struct backend *b)
{
    for (uint32_t i = 0; i < b->now->n_placed; i++) {
        const struct window_lane *l = &b->now->window->lanes[i];
        const struct cuda_entry *table = b->now->tables + (size_t)i * b->table_room;
        uint32_t end = (l->pos + l->n_rows - 1) >> b->chunk_shift;
        for (uint32_t j = l->pos >> b->chunk_shift; j <= end; j++)
            cuda_resident_cut(b, table[j].chunk, cells_in_chunk(b, l->pos, j));
    }
}
