/* SPDX-License-Identifier: MIT */
/* See rig.h. */
#include "tests/numerics/rig.h"

#include <string.h>
#include <sys/mman.h>
#include <time.h>

#include "proto/kv_block.h"
#include "workerd/backend.h"
#ifdef CISTERN_CUDA
#include "workerd/cuda/backend_cuda.h"
#endif

enum { DEFAULT_ROWS = 512, DEFAULT_CONTEXT = 4096, DEFAULT_CHUNK = 256, PAGE = 4096 };

__attribute__((noreturn)) static void die(const char *what, const struct why *why)
{
    fprintf(stderr, "rig: %s: %s\n", what, why ? why->text : "");
    exit(1);
}

const char *rig_demo_model(void)
{
    static char path[4096];
    static const char file[] = "SmolLM2-135M-Instruct.Q4_1.gguf";
    const char *own = getenv("CISTERN_MODEL"), *cache = getenv("XDG_CACHE_HOME");
    const char *home = getenv("HOME");
    if (own)
        (void)snprintf(path, sizeof(path), "%s", own);
    else if (cache)
        (void)snprintf(path, sizeof(path), "%s/cistern/%s", cache, file);
    else
        (void)snprintf(path, sizeof(path), "%s/.cache/cistern/%s", home ? home : "", file);
    return access(path, R_OK) == 0 ? path : NULL;
}

const char *rig_device(void) { return getenv("TEST_DEVICE"); }

static bool opens(const struct backend_ops *ops, const char *variant, const char *device,
                  uint32_t kv)
{
    const double rope_freq[8] = {0};
    struct backend_want want = {
        .device = device,
        .n_heads = 1,
        .n_kv_heads = 1,
        .head_dim = 16,
        .rope_dims = 16,
        .rope_freq = rope_freq,
        .n_layers = 1,
        .kv = kv,
        .block_cells = 32,
        .block_bytes = kv_block_of(kv, 1, 16, 32, KV_BY_CELL).bytes,
        .max_rows = 1,
        .max_lanes = 1,
        .context_tokens = 1,
        .variant = variant,
    };
    struct backend *b;
    struct why why = {""};
    if (ops->open(&want, &why, &b) < 0) {
        if (device) fprintf(stderr, "%s\n", why.text);
        return false;
    }
    ops->close(b);
    return true;
}

bool rig_device_missing(void)
{
    if (!rig_device()) return false;
#ifdef CISTERN_CUDA
    return !opens(&cuda_backend, NULL, rig_device(), POOL_KV_F16);
#else
    return true;
#endif
}

bool rig_has_variant(const char *name)
{
    bool cuda = strcmp(name, "cuda") == 0;
    if (strcmp(name, "auto") == 0) return true;
    if (rig_device() || cuda) return rig_device() && cuda;
    return opens(&cpu_backend, name, NULL, POOL_KV_F16);
}

bool rig_has_kv(uint32_t kv)
{
#ifdef CISTERN_CUDA
    if (rig_device()) return opens(&cuda_backend, NULL, rig_device(), kv);
#endif
    return opens(&cpu_backend, NULL, NULL, kv);
}

static uint32_t or_default(uint32_t v, uint32_t fallback) { return v ? v : fallback; }

static struct pool_arena *arena_new(const struct rig *r, const struct model_want *w,
                                    const struct model_facts *f, size_t *ret_bytes)
{
    uint64_t run =
        (uint64_t)(r->n_chunks + 1) * (r->want.chunk_cells / f->block_cells) * f->block_bytes;
    run = (run + PAGE - 1) / PAGE * PAGE;
    uint64_t head = (sizeof(struct pool_arena) + PAGE - 1) / PAGE * PAGE;
    size_t bytes = head + w->n_layers * run;
    struct pool_arena *a =
        mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (a == MAP_FAILED) die("arena", NULL);
    a->magic = POOL_ARENA_MAGIC;
    a->bytes = bytes;
    a->n_runs = w->n_layers;
    a->chunk_cells = r->want.chunk_cells;
    a->block_cells = f->block_cells;
    a->n_chunks = r->n_chunks;
    for (uint32_t i = 0; i < w->n_layers; i++)
        a->run[i] = (struct pool_run){
            .layer = w->first_layer + i,
            .kind = POOL_RUN_KV,
            .off = head + i * run,
            .block_bytes = f->block_bytes,
        };
    *ret_bytes = bytes;
    return a;
}

static void stage_new(struct rig *r, uint32_t i, uint32_t n_layers)
{
    struct why why = {""};
    uint32_t first = n_layers * i / r->n_stages;
    struct model_want w = {
        .first_layer = first,
        .n_layers = n_layers * (i + 1) / r->n_stages - first,
        .precision = r->want.precision,
        .kv = r->want.kv,
        .max_rows = r->want.max_rows,
        .max_lanes = r->want.max_lanes,
        .context_tokens = r->want.context_tokens,
        .n_threads = r->want.n_threads,
        .may_spin = !r->want.no_spin,
        .variant = r->want.variant,
        .device = rig_device(),
        .kv_resident = r->want.no_resident ? 0 : r->want.kv_resident,
    };
    if (model_load(r->g, &w, NULL, NULL, &why, &r->stage[i]) < 0) die("load", &why);
    r->facts = *model_facts(r->stage[i]);
    r->arena[i] = arena_new(r, &w, &r->facts, &r->arena_bytes[i]);
    if (model_use_arena(r->stage[i], r->arena[i], &why) < 0) die("arena", &why);
    r->link[i] = xcalloc((size_t)w.max_rows * r->facts.n_embd, sizeof(float));
}

struct rig *rig_new(const struct rig_want *want)
{
    struct why why = {""};
    struct rig *r = xnew(struct rig);
    struct rig_want *w = &r->want;
    struct model_facts f;
    *w = *want;
    if (w->kv_resident == 0) w->kv_resident = UINT32_MAX;
    w->kv = or_default(w->kv, POOL_KV_F16);
    w->n_threads = or_default(w->n_threads, 2);
    w->max_rows = or_default(w->max_rows, DEFAULT_ROWS);
    w->max_lanes = or_default(w->max_lanes, RIG_LANES_MAX);
    w->context_tokens = or_default(w->context_tokens, DEFAULT_CONTEXT);
    w->chunk_cells = or_default(w->chunk_cells, DEFAULT_CHUNK);
    const char *kind = getenv("TEST_KIND");
    r->n_generated = kind && strcmp(kind, "generated") == 0 ? RIG_LANES_MAX : 0;
    r->n_stages = or_default(w->n_stages, 1);
    r->n_chunks = or_default(w->n_chunks, w->max_lanes * (w->context_tokens / w->chunk_cells + 1));
    const char *path = w->path ? w->path : rig_demo_model();
    if (!path) die("the demo model isn't there; run ./demo once, or set CISTERN_MODEL", NULL);
    if (gguf_open(path, &why, &r->g) < 0) die("open", &why);
    if (model_probe(r->g, &why, &f) < 0) die("probe", &why);
    for (uint32_t i = 0; i < r->n_stages; i++)
        stage_new(r, i, f.n_layers);
    r->next_chunk = 1;
    r->probs = xcalloc(w->max_rows, sizeof(*r->probs));
    return r;
}

void rig_free(struct rig *r)
{
    for (uint32_t i = 0; i < r->n_stages; i++) {
        model_free(r->stage[i]);
        (void)munmap(r->arena[i], r->arena_bytes[i]);
        free(r->link[i]);
    }
    gguf_free(r->g);
    free(r->probs);
    free(r);
}

void rig_fill(struct rig *r, int byte)
{
    for (uint32_t i = 0; i < r->n_stages; i++) {
        size_t head = r->arena[i]->run[0].off;
        memset((char *)r->arena[i] + head, byte, r->arena_bytes[i] - head);
    }
}

struct rig_chat *rig_chat_new(struct rig *r)
{
    struct rig_chat *c = xnew(struct rig_chat);
    c->table = xcalloc(r->want.context_tokens / r->want.chunk_cells + 1, sizeof(uint64_t));
    return c;
}

void rig_chat_free(struct rig_chat *c)
{
    free(c->table);
    free(c);
}

void rig_reserve(struct rig *r, struct rig_chat *c, uint32_t n_cells)
{
    while (c->n_table * r->want.chunk_cells < n_cells) {
        if (r->next_chunk > r->n_chunks) die("no chunk left", NULL);
        c->table[c->n_table++] = pool_entry(r->next_chunk++, 1);
    }
}

struct window_lane rig_lane(struct rig *r, struct rig_chat *c, uint32_t n_rows, uint32_t want)
{
    rig_reserve(r, c, c->n_cells + n_rows);
    struct window_lane l = {
        .table = c->table,
        .n_table = c->n_table,
        .pos = c->n_cells,
        .n_rows = n_rows,
        .want = want,
    };
    c->n_cells += n_rows;
    return l;
}

static struct window window_of(const struct rig *r, struct window_lane *lanes, uint32_t n_lanes,
                               const uint32_t *tokens)
{
    struct window w = {.n_lanes = n_lanes, .tokens = tokens, .lanes = lanes, .probs = r->probs};
    for (uint32_t i = 0; i < n_lanes; i++) {
        lanes[i].first_row = w.n_rows;
        w.n_rows += lanes[i].n_rows;
        if (i < r->n_generated) w.n_generated = w.n_rows;
    }
    return w;
}

int rig_start(struct rig *r, struct window *w, struct window_lane *lanes, uint32_t n_lanes,
              const uint32_t *tokens)
{
    *w = window_of(r, lanes, n_lanes, tokens);
    return model_start(r->stage[0], w);
}

static void ways_set(const struct rig *r, uint32_t stage, struct window *w)
{
    w->in = stage ? r->link[stage - 1] : NULL;
    w->out = stage + 1 == r->n_stages ? NULL : r->link[stage];
}

int rig_prepare(struct rig *r, uint32_t stage, struct window *w, struct window_lane *lanes,
                uint32_t n_lanes, const uint32_t *tokens)
{
    *w = window_of(r, lanes, n_lanes, tokens);
    ways_set(r, stage, w);
    return model_prepare(r->stage[stage], w);
}

void rig_finish(struct rig *r)
{
    if (model_finish(r->stage[0]) < 0) die("model_finish failed", NULL);
}

void rig_run(struct rig *r, struct window_lane *lanes, uint32_t n_lanes, const uint32_t *tokens,
             void (*on_logits)(void *, uint32_t, uint32_t, const float *, uint32_t), void *arg)
{
    struct window w = window_of(r, lanes, n_lanes, tokens);
    for (uint32_t s = 0; s < r->n_stages; s++) {
        bool last = s + 1 == r->n_stages;
        ways_set(r, s, &w);
        w.on_logits = last ? on_logits : NULL;
        w.on_logits_arg = arg;
        if (model_run(r->stage[s], &w) < 0) die("model_run refused a window", NULL);
    }
}

uint32_t rig_read(struct rig *r, struct rig_chat *c, const uint32_t *tokens, uint32_t n,
                  uint32_t piece, uint32_t want,
                  void (*on_logits)(void *, uint32_t, uint32_t, const float *, uint32_t), void *arg)
{
    uint32_t token = 0;
    for (uint32_t at = 0, rows; at < n; at += rows) {
        rows = min_u32(piece, n - at);
        bool last = at + rows == n;
        struct window_lane l =
            rig_lane(r, c, rows, want == WINDOW_ALL || last ? want : WINDOW_NONE);
        rig_run(r, &l, 1, tokens + at, on_logits, arg);
        token = l.token;
    }
    return token;
}

uint64_t rig_hash(const float *v, uint32_t n)
{
    uint64_t h = UINT64_C(0xcbf29ce484222325); /* FNV-1a's constants, by words */
    for (uint32_t i = 0; i < n; i++) {
        uint32_t bits;
        memcpy(&bits, &v[i], sizeof(bits));
        h = (h ^ bits) * UINT64_C(0x100000001b3);
        h ^= h >> 29;
    }
    return h;
}

double rig_seconds(void)
{
    struct timespec t;
    (void)clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}
