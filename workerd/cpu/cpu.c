/* SPDX-License-Identifier: MIT */
/*
 * The CPU backend: opening and closing it, weights, buffers, the arena. The operations are in
 * ops.c, the kernels in product.c, attend.c and rows.c. Device thread only, but for the tasks of a
 * list.
 */
#include <assert.h>
#include <errno.h>
#include <math.h>
#include <string.h>
#if defined(__x86_64__)
#include <cpuid.h>
#endif

#include "workerd/arena.h"
#include "workerd/cpu/ops.h"
#include "workerd/cpu/plan.h"
#include "workerd/cpu/repack.h"
#include "workerd/cpu/store.h"

enum {
    /* Entries of a window's list: a dozen a layer (seven operations, some with a second entry), and
     * embedding, head and hand-over. */
    OPS_A_LAYER = 7 * CPU_OPS_PER_CALL,
    OPS_BESIDE = 16,
    HEAD_ROWS = 16, /* 3 MiB of logits at a vocabulary of 49,152 */
};

static bool has_avx512(void)
{
#if defined(__x86_64__)
    return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
           __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512vnni");
#else
    return false;
#endif
}

/* Not among the names that clang 14's __builtin_cpu_supports knows. */
static bool has_f16c(void)
{
#if defined(__x86_64__)
    unsigned int a, b, c, d;
    return __get_cpuid(1, &a, &b, &c, &d) && (c & bit_F16C);
#else
    return false;
#endif
}

static bool has_avx2(void)
{
#if defined(__x86_64__)
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && has_f16c();
#else
    return false;
#endif
}

static bool has_plain(void) { return true; }

/* The fastest first. */
static const struct {
    const struct cpu_kernels *kernels;
    bool (*there)(void);
} variants[] = {
#if defined(__x86_64__)
    {&cpu_kernels_avx512, has_avx512},
    {&cpu_kernels_avx2,   has_avx2  },
#endif
    {&cpu_kernels_plain,  has_plain },
};

static int choose(const char *name, struct why *why, const struct cpu_kernels **ret)
{
    bool any = !name || strcmp(name, "auto") == 0;
    for (size_t i = 0; i < ARRAY_LEN(variants); i++) {
        if (!any && strcmp(name, variants[i].kernels->name) != 0) continue;
        if (!variants[i].there()) {
            if (any) continue;
            return why_set(why, -ENOTSUP, "this processor can't run the variant '%s'", name);
        }
        *ret = variants[i].kernels;
        return 0;
    }
    return why_set(why, -EINVAL, "'%s' is not a variant: auto, avx512, avx2, plain", name);
}

static void cpu_close(struct backend *b)
{
    if (!b) return;
    for (uint32_t i = 0; b->sampler && i < team_size(b->team); i++)
        sampler_free(b->sampler[i]);
    free(b->sampler);
    team_free(b->team);
    cpu_store_free(b->store);
    free(b->chunk_words);
    free(b->rope_freq);
    free(b->run);
    free(b->op);
    free(b);
}
static inline void cpu_closep(struct backend **b) { cpu_close(*b); }

static struct cpu_geometry geometry_of(const struct backend_want *w)
{
    uint32_t group = w->n_heads / w->n_kv_heads;
    return (struct cpu_geometry){
        .n_heads = w->n_heads,
        .n_kv_heads = w->n_kv_heads,
        .head_dim = w->head_dim,
        .rope_dims = w->rope_dims,
        .kv = w->kv,
        .block_cells = w->block_cells,
        .block = kv_block_of(w->kv, w->n_kv_heads, w->head_dim, w->block_cells, KV_BY_DIM),
        .scale = (float)(1.0 / sqrt(w->head_dim)),
        .tile_rows = QUERY_ROWS_MAX / group,
    };
}

static int check_want(const struct backend_want *w, struct why *why)
{
    if (!kv_bits(w->kv, 0)) return why_set(why, -EINVAL, "there is no K/V format %u", w->kv);
    if (w->head_dim == 0 || w->head_dim % TILE)
        return why_set(why, -ENOTSUP, "heads of %u values: must be a multiple of %d", w->head_dim,
                       TILE);
    if (w->rope_dims % TILE || w->rope_dims > w->head_dim)
        return why_set(why, -ENOTSUP, "rope over %u of %u dimensions: must be a multiple of %d",
                       w->rope_dims, w->head_dim, TILE);
    if (w->n_kv_heads == 0 || w->n_heads % w->n_kv_heads ||
        w->n_heads / w->n_kv_heads > QUERY_ROWS_MAX)
        return why_set(why, -ENOTSUP, "%u query heads over %u K/V heads", w->n_heads,
                       w->n_kv_heads);
    if (w->block_cells < TILE || w->block_cells & (w->block_cells - 1))
        return why_set(why, -EINVAL, "blocks of %u cells", w->block_cells);
    if (w->block_bytes != geometry_of(w).block.bytes)
        return why_set(why, -EINVAL, "blocks of %u cells in %llu bytes", w->block_cells,
                       (unsigned long long)w->block_bytes);
    return 0;
}

static void samplers_new(struct backend *b)
{
    uint32_t n = team_size(b->team);
    if (b->want.n_vocab == 0) return;
    b->sampler = xcalloc(n, sizeof(*b->sampler));
    for (uint32_t i = 0; i < n; i++)
        b->sampler[i] = sampler_new(b->want.n_vocab);
}

static int cpu_open(const struct backend_want *want, struct why *why, struct backend **ret)
{
    const struct cpu_kernels *kernels = NULL;
    int r = check_want(want, why);
    if (r == 0) r = choose(want->variant, why, &kernels);
    if (r < 0) return r;
    CLEANUP(cpu_closep) struct backend *b = xnew(struct backend);
    b->want = *want;
    b->geo = geometry_of(want);
    b->kernels = kernels;
    b->store = cpu_store_new();
    b->run = xcalloc(want->n_layers, sizeof(*b->run));
    b->rope_freq = xcalloc(want->rope_dims / 2, sizeof(double));
    memcpy(b->rope_freq, want->rope_freq, want->rope_dims / 2 * sizeof(double));
    b->want.rope_freq = b->rope_freq;
    b->max_ops = want->n_layers * OPS_A_LAYER + OPS_BESIDE;
    b->op = aligned_alloc(ALIGNMENT, b->max_ops * sizeof(*b->op));
    if (!b->op) return why_set(why, -ENOMEM, "no memory for the list of operations");
    uint32_t n_threads = max_u32(1, want->n_threads);
    r = team_new(n_threads, want->cpus, want->may_spin, why, &b->team);
    if (r == 0) r = cpu_plan_new(b, why);
    if (r < 0) return r;
    samplers_new(b);
    (void)snprintf(b->device, sizeof(b->device), "cpu %s, %u thread%s", kernels->name, n_threads,
                   n_threads == 1 ? "" : "s");
    *ret = TAKE(b);
    return 0;
}

static const char *cpu_device(const struct backend *b) { return b->device; }
static bool cpu_multiplies(uint32_t type) { return cpu_pack_of(type, false) != PACK_NONE; }
static uint64_t cpu_weight_bytes(const struct backend *b) { return b->weight_bytes; }

static int weight_vector(struct backend *b, const struct backend_tensor *t,
                         struct backend_weight *w)
{
    float *to = cpu_store_get(b->store, t->n_in * sizeof(float));
    if (!to) return -ENOMEM;
    cpu_dequantise(t->type, t->data, t->n_in, to);
    w->data = (const uint8_t *)to;
    b->weight_bytes += t->n_in * sizeof(float);
    return 0;
}

struct repack_job {
    const struct backend_tensor *t;
    struct backend_weight *w;
    uint8_t *to;
    float *scratch; /* [member][n_in] */
    uint32_t n_members;
};

static void repack_share(void *arg, uint32_t member)
{
    const struct repack_job *j = arg;
    for (uint32_t i = member; i < j->w->n_tiles; i += j->n_members)
        cpu_repack_tile(j->w->pack, j->t, i, j->scratch + (size_t)member * j->t->n_in,
                        j->to + i * j->w->tile_bytes);
}

static int weight_matrix(struct backend *b, const struct backend_tensor *t,
                         struct backend_weight *w)
{
    w->pack = cpu_pack_of(t->type, b->want.float32);
    w->n_tiles = (t->n_out + TILE - 1) / TILE;
    w->tile_bytes = cpu_tile_bytes(w->pack, t->n_in);
    uint32_t n = team_size(b->team);
    CLEANUP(freep) float *scratch = malloc((size_t)n * t->n_in * sizeof(float));
    struct repack_job job = {t, w, cpu_store_get(b->store, w->n_tiles * w->tile_bytes), scratch, n};
    if (!job.to || !scratch) return -ENOMEM;
    team_run(b->team, repack_share, &job);
    w->data = job.to;
    b->weight_bytes += w->n_tiles * w->tile_bytes;
    return 0;
}

static int cpu_weight(struct backend *b, enum weight_use use, const struct backend_tensor *t,
                      struct why *why, struct backend_weight **ret)
{
    if (t->n_in == 0 || t->n_in % QBLOCK || t->n_out == 0)
        return why_set(why, -ENOTSUP, "%s: rows of %u values: must be a multiple of %d", t->name,
                       t->n_in, QBLOCK);
    struct backend_weight *w = cpu_store_get(b->store, sizeof(*w));
    if (!w) return why_set(why, -ENOMEM, "%s: no memory", t->name);
    *w = (struct backend_weight){.type = t->type, .n_out = t->n_out, .n_in = t->n_in};
    int r = 0;
    if (use == WEIGHT_LOOKUP)
        w->data = t->data;
    else if (use == WEIGHT_VECTOR)
        r = weight_vector(b, t, w);
    else
        r = weight_matrix(b, t, w);
    if (r < 0) return why_set(why, r, "%s: no memory for %u x %u", t->name, t->n_out, t->n_in);
    *ret = w;
    return 0;
}

static int buffer_new(struct backend *b, const struct backend_buffer_want *w,
                      struct backend_buffer **ret)
{
    struct backend_buffer *x = cpu_store_get(b->store, sizeof(*x));
    if (!x) return -ENOMEM;
    /* A last tile that is not full writes 16 as well. */
    uint32_t width = (w->width + TILE - 1) / TILE * TILE;
    size_t rows = (size_t)w->max_rows + (size_t)team_size(b->team) * EACH_ROWS;
    *x = (struct backend_buffer){.max_rows = w->max_rows, .width = width};
    *ret = x;
    x->f = cpu_store_get(b->store, rows * width * sizeof(float));
    if (!x->f) return -ENOMEM;
    if (!w->multiplied) return 0;
    x->q = cpu_store_get(b->store, rows * width);
    size_t blocks = rows * (width / QBLOCK + 1);
    x->d = cpu_store_get(b->store, blocks * sizeof(float));
    x->s = cpu_store_get(b->store, blocks * sizeof(float));
    x->sum = cpu_store_get(b->store, blocks * sizeof(int32_t));
    return x->q && x->d && x->s && x->sum ? 0 : -ENOMEM;
}

static int cpu_buffer(struct backend *b, const struct backend_buffer_want *want, struct why *why,
                      struct backend_buffer **ret)
{
    struct backend_buffer *x = NULL;
    int r = buffer_new(b, want, &x);
    if (r < 0)
        return why_set(why, r, "no memory for windows of %u rows; %llu bytes of weights are there",
                       want->max_rows, (unsigned long long)b->weight_bytes);
    *ret = x;
    return 0;
}

static int cpu_use_arena(struct backend *b, struct pool_arena *arena, uint32_t first_layer,
                         struct why *why)
{
    int r = arena_check(arena, b->geo.block_cells, why);
    if (r < 0) return r;
    for (uint32_t i = 0; i < b->want.n_layers; i++) {
        b->run[i] = arena_layer(arena, first_layer + i, b->geo.block.bytes);
        if (!b->run[i])
            return why_set(why, -EINVAL, "arena: no run of %llu-byte blocks for layer %u",
                           (unsigned long long)b->geo.block.bytes, first_layer + i);
    }
    b->arena = arena;
    b->geo.chunk_cells = arena->chunk_cells;
    return cpu_plan_arena(b, why);
}

static void cpu_copy_cells(struct backend *b, uint32_t from_chunk, uint32_t to_chunk,
                           uint32_t n_cells)
{
    const struct cpu_geometry *g = &b->geo;
    uint64_t chunk_bytes = (uint64_t)(g->chunk_cells / g->block_cells) * g->block.bytes;
    uint32_t n = min_u32(n_cells, g->chunk_cells);
    if (from_chunk > b->arena->n_chunks || to_chunk > b->arena->n_chunks) return;
    for (uint32_t i = 0; i < b->want.n_layers; i++)
        arena_copy_cells(&g->block, g->block_cells, b->run[i] + to_chunk * chunk_bytes,
                         b->run[i] + from_chunk * chunk_bytes, n);
}

static void cpu_begin(struct backend *b, const struct window *w)
{
    b->n_ops = 0;
    b->steps = w->steps;
    b->failed = b->arena ? 0 : -EINVAL;
    if (b->arena) cpu_plan_begin(b, w);
}

static const float *cpu_row(struct backend *b, const struct backend_buffer *x, uint32_t row)
{
    (void)b;
    return x->f + (size_t)(cpu_first_row(x, x->each, 0) + row) * x->width;
}

/* ---- between stages: the link's slots are this device's memory already ---- */

static void cpu_inbox(struct backend *b, uint32_t n_slots, struct link_inbox *ret)
{
    (void)b, (void)n_slots;
    *ret = (struct link_inbox){.state = LINK_INBOX_NONE, .text = "it is on a CPU"};
}

static int cpu_peer_open(struct backend *b, const struct link_inbox *peer, struct why *why)
{
    (void)b, (void)peer;
    return why_set(why, -ENOTSUP, "this one is on a CPU");
}

static void cpu_peer_close(struct backend *b) { (void)b; }

/* Not called: nothing was opened and no inbox was named. */
static void cpu_take(struct backend *b, struct backend_buffer *x, uint32_t slot)
{
    (void)b, (void)x, (void)slot;
    assert(false);
}

static void cpu_give(struct backend *b, uint32_t slot, const struct backend_buffer *x)
{
    (void)b, (void)slot, (void)x;
    assert(false);
}

static void cpu_prepare(struct backend *b) { (void)b; }

static void cpu_drop(struct backend *b) { b->n_ops = 0; }

/* The device thread is one of those that compute. */
static int cpu_launch(struct backend *b)
{
    (void)b;
    return 0;
}

/* The variants give the same bits, so none is named. */
static const char *cpu_arithmetic(const struct backend *b)
{
    (void)b;
    return "cpu-1";
}

static bool cpu_done(struct backend *b)
{
    (void)b;
    return true;
}

const struct backend_ops cpu_backend = {
    .name = "cpu",
    .arithmetic = cpu_arithmetic,
    .head_rows = HEAD_ROWS,
    .open = cpu_open,
    .close = cpu_close,
    .device = cpu_device,
    .multiplies = cpu_multiplies,
    .weight = cpu_weight,
    .weight_bytes = cpu_weight_bytes,
    .buffer = cpu_buffer,
    .use_arena = cpu_use_arena,
    .copy_cells = cpu_copy_cells,
    .begin = cpu_begin,
    .embed = cpu_embed,
    .load = cpu_load,
    .store = cpu_store_rows,
    .inbox = cpu_inbox,
    .peer_open = cpu_peer_open,
    .peer_close = cpu_peer_close,
    .take = cpu_take,
    .give = cpu_give,
    .rms_norm = cpu_rms_norm,
    .qkv = cpu_qkv,
    .attend = cpu_attend,
    .project = cpu_project,
    .gate_up = cpu_gate_up,
    .pick = cpu_pick,
    .matmul = cpu_matmul,
    .sample = cpu_sample,
    .prepare = cpu_prepare,
    .drop = cpu_drop,
    .launch = cpu_launch,
    .done = cpu_done,
    .sync = cpu_sync,
    .row = cpu_row,
};
