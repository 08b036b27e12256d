/* SPDX-License-Identifier: MIT */
/*
 * Loading a stage and running its windows: what is common to all families and devices. The weights
 * are weights.c's, the forward pass the family's, the arithmetic the backend's.
 */
#include "workerd/model.h"

#include <assert.h>
#include <errno.h>
#include <string.h>

#include "proto/kv_block.h"
#include "workerd/weights.h"
#ifdef CISTERN_CUDA
#include "workerd/cuda/backend_cuda.h"
#endif

enum {
    LOGITS_ROWS_MAX = 64, /* rows of logits made at a time */
    PAST_LEAST = 1 << 20, /* ids that penalties look at, of the rows of one time, may be so many: 16
                             thousand of each; rows with more are chosen in turns */
    LANES_MAX = 4096,
    ROWS_MAX = 1 << 16,
    CONTEXT_MAX = 1 << 24,
};

/* Rows with logits, collected until the backend's head_rows are there, or what their penalties look
 * back to is max_past. */
struct wanted {
    uint32_t n, n_past, row[LOGITS_ROWS_MAX], lane[LOGITS_ROWS_MAX];
};

/* A window until it is finished. Of the last stage: its rows of logits of one time. */
struct flight {
    struct window *w;
    bool flies; /* all of it is enqueued at once */
    struct wanted want;
    struct sampler_row *rows; /* [LOGITS_ROWS_MAX] */
    uint32_t *past;           /* [max_past]: what their penalties look back to */
};

struct model {
    struct model_facts facts;
    struct model_want want;
    const struct arch *arch;
    struct arch_params params;
    const struct backend_ops *ops;
    struct backend *backend;
    struct weights weights;
    struct arch_buffers buf;
    struct pool_arena *arena;
    uint32_t max_past;
    /* The window that was prepared or started last, and the one before. */
    struct flight flight[2], *now;
    uint32_t n_flying; /* started, not finished */
    bool prepared;     /* now is, and is not started yet */
};

static struct flight *other_flight(struct model *m) { return &m->flight[m->now == &m->flight[0]]; }

static bool is_first(const struct model *m) { return m->want.first_layer == 0; }
static bool is_last(const struct model *m)
{
    return m->want.first_layer + m->want.n_layers == m->params.n_layers;
}

/* ---- facts ---- */

static void block_facts(const struct arch_params *p, uint32_t kv, struct model_facts *f)
{
    f->block_cells = kv_block_cells(kv, p->n_kv_heads, p->head_dim);
    f->block_bytes = kv_block_of(kv, p->n_kv_heads, p->head_dim, f->block_cells, KV_BY_CELL).bytes;
}

static void name_facts(const struct gguf *g, const struct arch *a, struct model_facts *f)
{
    struct gguf_str name;
    (void)snprintf(f->arch, sizeof(f->arch), "%s", a->name);
    if (gguf_str(g, "general.name", &name) < 0) name = (struct gguf_str){"unnamed", 7};
    (void)snprintf(f->name, sizeof(f->name), "%.*s", (int)min_u64(name.bytes, sizeof(f->name) - 1),
                   name.at);
}

static int probe(const struct gguf *g, struct why *why, const struct arch **arch,
                 struct arch_params *p, struct model_facts *f)
{
    int r = arch_find(g, why, arch);
    if (r == 0) r = (*arch)->params(g, why, p);
    if (r < 0) return r;
    *f = (struct model_facts){
        .n_layers = p->n_layers,
        .n_embd = p->dim[DIM_EMBD],
        .n_vocab = p->dim[DIM_VOCAB],
        .n_kv_heads = p->n_kv_heads,
        .head_dim = p->head_dim,
        .n_ctx_train = p->n_ctx_train,
    };
    name_facts(g, *arch, f);
    return 0;
}

int model_probe(const struct gguf *g, struct why *why, struct model_facts *ret)
{
    const struct arch *arch;
    struct arch_params p;
    struct model_facts f;
    int r = probe(g, why, &arch, &p, &f);
    if (r == 0) *ret = f;
    return r;
}

/* ---- loading ---- */

static int check_want(const struct model_want *w, const struct model_facts *f, struct why *why)
{
    if (w->n_layers == 0 || w->first_layer >= f->n_layers ||
        w->n_layers > f->n_layers - w->first_layer)
        return why_set(why, -EINVAL, "layers %u to %u: the model has layers 0 to %u",
                       w->first_layer, w->first_layer + w->n_layers - 1, f->n_layers - 1);
    if (!kv_bits(w->kv, 0)) return why_set(why, -EINVAL, "there is no K/V format %u", w->kv);
    if (w->max_rows == 0 || w->max_rows > ROWS_MAX || w->max_lanes == 0 ||
        w->max_lanes > LANES_MAX || w->max_lanes > w->max_rows)
        return why_set(why, -EINVAL,
                       "windows of %u rows and %u lanes: at most %d rows and %d lanes", w->max_rows,
                       w->max_lanes, ROWS_MAX, LANES_MAX);
    if (w->context_tokens == 0 || w->context_tokens > CONTEXT_MAX)
        return why_set(why, -EINVAL, "a context of %u tokens: expected 1 to %d", w->context_tokens,
                       CONTEXT_MAX);
    return 0;
}

static int choose_device(const char *name, struct why *why, const struct backend_ops **ret)
{
    if (!name || strcmp(name, "cpu") == 0) {
        *ret = &cpu_backend;
        return 0;
    }
#ifdef CISTERN_CUDA
    int number;
    if (cuda_device_of(name, &number) == 0) {
        *ret = &cuda_backend;
        return 0;
    }
    return why_set(why, -EINVAL, "'%s' is not a device: cpu or cuda:N", name);
#else
    return why_set(why, -EINVAL,
                   "'%s': this build knows the device cpu alone (meson's -Dcuda=enabled)", name);
#endif
}

static int open_backend(struct model *m, struct why *why)
{
    const struct model_want *w = &m->want;
    m->max_past = is_last(m) ? max_u32(PAST_LEAST, w->context_tokens + w->max_rows) : 0;
    struct backend_want want = {
        .n_embd = m->facts.n_embd,
        .n_heads = m->params.n_heads,
        .n_kv_heads = m->params.n_kv_heads,
        .head_dim = m->params.head_dim,
        .n_layers = w->n_layers,
        .n_vocab = is_last(m) ? m->facts.n_vocab : 0,
        .rope_dims = m->params.rope_dims,
        .rope_freq = m->params.rope_freq,
        .eps = (float)m->params.eps,
        .float32 = w->precision == MODEL_FLOAT32,
        .kv = w->kv,
        .block_cells = m->facts.block_cells,
        .block_bytes = m->facts.block_bytes,
        .max_rows = w->max_rows,
        .max_lanes = w->max_lanes,
        .context_tokens = w->context_tokens,
        .max_past = m->max_past,
        .n_threads = w->n_threads,
        .cpus = w->cpus,
        .variant = w->variant,
        .may_spin = w->may_spin,
        .device = w->device,
        .memory_limit = w->memory_limit,
        .kv_resident = w->kv_resident,
    };
    int r = choose_device(w->device, why, &m->ops);
    return r < 0 ? r : m->ops->open(&want, why, &m->backend);
}

static int make_buffers(struct model *m, struct why *why)
{
    const uint32_t *dim = m->params.dim, rows = m->want.max_rows;
    uint32_t head_rows = is_last(m) ? min_u32(rows, m->ops->head_rows) : 0;
    const struct {
        struct backend_buffer **at;
        struct backend_buffer_want want;
    } buffers[] = {
        {&m->buf.x,      {rows, dim[DIM_EMBD], false}      },
        {&m->buf.norm,   {rows, dim[DIM_EMBD], true}       },
        {&m->buf.q,      {rows, dim[DIM_Q], false}         },
        {&m->buf.attn,   {rows, dim[DIM_Q], true}          },
        {&m->buf.ff,     {rows, dim[DIM_FF], true}         },
        {&m->buf.head,   {head_rows, dim[DIM_EMBD], false} },
        {&m->buf.logits, {head_rows, dim[DIM_VOCAB], false}},
    };
    for (size_t i = 0; i < ARRAY_LEN(buffers); i++) {
        if (buffers[i].want.max_rows == 0) continue;
        int r = m->ops->buffer(m->backend, &buffers[i].want, why, buffers[i].at);
        if (r < 0) return r;
    }
    if (!is_last(m)) return 0;
    for (int i = 0; i < 2; i++) {
        m->flight[i].rows = xcalloc(LOGITS_ROWS_MAX, sizeof(*m->flight[i].rows));
        m->flight[i].past = xcalloc(m->max_past, sizeof(*m->flight[i].past));
    }
    return 0;
}

static void state_arithmetic(struct model *m)
{
    (void)snprintf(m->facts.arithmetic, sizeof(m->facts.arithmetic), "%s %s kv-%s",
                   m->ops->arithmetic(m->backend),
                   m->want.precision == MODEL_FLOAT32 ? "float32" : "int8", kv_name(m->want.kv));
    (void)snprintf(m->facts.device, sizeof(m->facts.device), "%s", m->ops->device(m->backend));
    m->facts.weight_bytes = m->ops->weight_bytes(m->backend);
}

static inline void model_freep(struct model **m) { model_free(*m); }

int model_load(const struct gguf *g, const struct model_want *want, void (*progress)(void *, int),
               void *progress_arg, struct why *why, struct model **ret)
{
    CLEANUP(model_freep) struct model *m = xnew(struct model);
    m->want = *want;
    m->now = &m->flight[0];
    int r = probe(g, why, &m->arch, &m->params, &m->facts);
    if (r == 0) r = check_want(want, &m->facts, why);
    if (r < 0) return r;
    block_facts(&m->params, want->kv, &m->facts);
    r = open_backend(m, why);
    if (r < 0) return r;
    struct weights_want weights = {
        .gguf = g,
        .arch = m->arch,
        .params = &m->params,
        .ops = m->ops,
        .backend = m->backend,
        .first_layer = want->first_layer,
        .n_layers = want->n_layers,
        .progress = progress,
        .progress_arg = progress_arg,
    };
    r = weights_load(&weights, why, &m->weights);
    if (r == 0) r = make_buffers(m, why);
    if (r < 0) return r;
    state_arithmetic(m);
    *ret = TAKE(m);
    return 0;
}

void model_free(struct model *m)
{
    if (!m) return;
    if (m->backend) m->ops->close(m->backend);
    weights_fini(&m->weights);
    for (int i = 0; i < 2; i++) {
        free(m->flight[i].rows);
        free(m->flight[i].past);
    }
    free(m);
}

const struct model_facts *model_facts(const struct model *m) { return &m->facts; }

int model_use_arena(struct model *m, struct pool_arena *arena, struct why *why)
{
    int r = m->ops->use_arena(m->backend, arena, m->want.first_layer, why);
    if (r == 0) m->arena = arena;
    return r;
}

void model_inbox(struct model *m, uint32_t n_slots, struct link_inbox *ret)
{
    m->ops->inbox(m->backend, n_slots, ret);
}

int model_peer_open(struct model *m, const struct link_inbox *peer, struct why *why)
{
    return m->ops->peer_open(m->backend, peer, why);
}

bool model_on_device(const struct model *m) { return m->ops != &cpu_backend; }

void model_peer_close(struct model *m) { m->ops->peer_close(m->backend); }

void model_copy_cells(struct model *m, uint32_t from_chunk, uint32_t to_chunk, uint32_t n_cells)
{
    m->ops->copy_cells(m->backend, from_chunk, to_chunk, n_cells);
}

/* ---- running ---- */

/* The lanes' rows follow each other and fill the window. */
static int check_window(const struct model *m, const struct window *w)
{
    uint32_t row = 0;
    if (!m->arena || w->n_rows > m->want.max_rows || w->n_lanes > m->want.max_lanes) return -EINVAL;
    for (uint32_t i = 0; i < w->n_lanes; i++) {
        const struct window_lane *l = &w->lanes[i];
        if (l->first_row != row || l->n_rows == 0 || l->n_rows > w->n_rows - row) return -EINVAL;
        if (l->pos > m->want.context_tokens) return -EINVAL;
        row += l->n_rows;
    }
    if (row != w->n_rows || row == 0 || w->n_generated > row) return -EINVAL;
    return !is_first(m) && !w->in && !w->in_inbox ? -EINVAL : 0;
}

static bool is_sampled(const struct window_lane *l, uint32_t row)
{
    return row == l->first_row + l->n_rows - 1;
}

/* How far the penalties of a row look back. */
static uint32_t looks_back(const struct window *w, const struct window_lane *l, uint32_t row)
{
    uint32_t end = l->pos + l->n_rows;
    if (!is_sampled(l, row) || !sampling_penalises(&l->sampling) || w->n_cells == 0) return 0;
    return sampling_looks_back(&l->sampling, end, end - min_u32(l->generated_from, end));
}

/* The tokens up to the lane's last row that its penalties look at. The head wrote them before it
 * posted this window, and nobody else may while the window is in flight. */
static struct sampler_past past_read(const struct model *m, const struct window *w,
                                     const struct window_lane *l, uint32_t back, uint32_t *ids)
{
    uint32_t end = l->pos + l->n_rows, n = 0;
    for (uint32_t pos = end - back; pos < end; pos++) {
        uint32_t i = pos / w->chunk_cells;
        uint64_t entry = i < l->n_table ? l->table[i] : 0;
        uint64_t cell = (uint64_t)pool_entry_chunk(entry) * w->chunk_cells + pos % w->chunk_cells;
        uint32_t id = cell < w->n_cells ? w->cells[cell] & ~POOL_TOKEN_GENERATED : UINT32_MAX;
        if (id < m->facts.n_vocab) ids[n++] = id;
    }
    return (struct sampler_past){ids, n, min_u32(end - min_u32(l->generated_from, end), n)};
}

/* The token that follows a row, if it is known. */
static uint32_t follows(const struct window *w, const struct window_lane *l, uint32_t row)
{
    if (!is_sampled(l, row)) return w->tokens[row + 1];
    return l->probs == LINK_PROBS_ALL ? l->next : LINK_NEXT_SAMPLED;
}

/* What is asked of a wanted row. */
static struct sampler_row row_of(struct model *m, const struct window *w,
                                 const struct window_lane *l, uint32_t row, uint32_t *past)
{
    bool chooses = is_sampled(l, row);
    bool has_probs = l->probs == LINK_PROBS_ALL || (l->probs && chooses);
    return (struct sampler_row){
        .sampling = chooses ? &l->sampling : NULL,
        .past = past_read(m, w, l, looks_back(w, l, row), past),
        .pos = l->pos + l->n_rows,
        .probs = has_probs ? &w->probs[row] : NULL,
        .of = has_probs ? follows(w, l, row) : LINK_NEXT_SAMPLED,
        .n_top = l->n_top,
    };
}

static void row_done(struct model *m, const struct flight *f, uint32_t i)
{
    const struct window *w = f->w;
    uint32_t lane = f->want.lane[i], row = f->want.row[i];
    if (is_sampled(&w->lanes[lane], row)) w->lanes[lane].token = f->rows[i].token;
    if (!w->on_logits) return;
    const float *logits = m->ops->row(m->backend, m->buf.logits, i);
    w->on_logits(w->on_logits_arg, lane, row, logits, m->facts.n_vocab);
}

/* Enqueues what is asked of the rows collected so far. */
static void head_enqueue(struct model *m, const struct arch_pass *p)
{
    struct flight *f = m->now;
    const struct wanted *want = &f->want;
    uint32_t *past = f->past;
    for (uint32_t i = 0; i < want->n; i++) {
        f->rows[i] = row_of(m, f->w, &f->w->lanes[want->lane[i]], want->row[i], past);
        past += f->rows[i].past.n;
    }
    if (want->n == 0) return;
    m->ops->pick(m->backend, m->buf.head, m->buf.x, want->row, want->n);
    m->arch->head_forward(p);
    m->ops->sample(m->backend, m->buf.logits, f->rows);
}

static int head_wait(struct model *m, struct flight *f)
{
    int r = m->ops->sync(m->backend);
    for (uint32_t i = 0; i < f->want.n && r == 0; i++)
        row_done(m, f, i);
    f->want.n = f->want.n_past = 0;
    return r;
}

static uint32_t head_rows(const struct model *m)
{
    return min_u32(m->ops->head_rows, m->want.max_rows);
}

/* Logits of the wanted rows, in row order; the layers may still be enqueued. The last of them are
 * enqueued and not waited for. */
static int head(struct model *m, const struct arch_pass *p)
{
    struct wanted *want = &m->now->want;
    const struct window *w = m->now->w;
    assert(head_rows(m) <= LOGITS_ROWS_MAX);
    for (uint32_t i = 0; i < w->n_lanes; i++) {
        const struct window_lane *l = &w->lanes[i];
        if (l->want == WINDOW_NONE) continue;
        for (uint32_t r = l->want == WINDOW_ALL ? 0 : l->n_rows - 1; r < l->n_rows; r++) {
            uint32_t back = looks_back(w, l, l->first_row + r);
            bool full = want->n == head_rows(m) || back > m->max_past - want->n_past;
            if (full) head_enqueue(m, p);
            int e = full ? head_wait(m, m->now) : 0;
            if (e < 0) return e;
            want->row[want->n] = l->first_row + r;
            want->lane[want->n++] = i;
            want->n_past += back;
        }
    }
    head_enqueue(m, p);
    return 0;
}

/* Whether nothing of a window is left to be done when the device has done what is enqueued at
 * first: its logits are made at one time, and the host sees none of them. */
static bool flies(const struct model *m, const struct window *w)
{
    uint64_t n_past = 0;
    if (!is_last(m)) return true;
    if (w->on_logits || w->n_lanes > head_rows(m)) return false;
    for (uint32_t i = 0; i < w->n_lanes; i++) {
        const struct window_lane *l = &w->lanes[i];
        if (l->want == WINDOW_ALL) return false;
        n_past += looks_back(w, l, l->first_row + l->n_rows - 1);
    }
    return n_past <= m->max_past;
}

/* Where the lanes that are fed find their tokens: in the sample of the window before. */
static int find_fed(const struct model *m, const struct window *w)
{
    const struct flight *before = &m->flight[m->now == &m->flight[0]];
    if (!is_first(m)) return 0; /* it sees no tokens */
    for (uint32_t i = 0; i < w->n_lanes; i++) {
        struct window_lane *l = &w->lanes[i];
        uint32_t k = 0, n = before->want.n;
        if (!l->fed_from) continue;
        while (k < n && before->want.lane[k] != l->fed_from - 1)
            k++;
        if (m->n_flying != 1 || k == n || l->n_rows != 1) return -EINVAL;
        l->fed_row = k;
    }
    return 0;
}

static int enqueue(struct model *m, struct window *w)
{
    struct arch_pass p = {
        .ops = m->ops,
        .backend = m->backend,
        .buf = &m->buf,
        .layers = m->weights.layers,
        .head = m->weights.head,
        .n_layers = m->want.n_layers,
    };
    m->ops->begin(m->backend, w);
    if (is_first(m))
        m->arch->embed(&p);
    else if (w->in_inbox)
        m->ops->take(m->backend, m->buf.x, w->slot);
    else
        m->ops->load(m->backend, m->buf.x, w->in);
    m->arch->layers_forward(&p);
    if (is_last(m)) return head(m, &p);
    if (w->out_inbox)
        m->ops->give(m->backend, w->slot, m->buf.x);
    else
        m->ops->store(m->backend, w->out, m->buf.x);
    return 0;
}

int model_prepare(struct model *m, struct window *w)
{
    assert(m->n_flying < 2 && !m->prepared);
    int r = check_window(m, w);
    bool may_fly = flies(m, w);
    if (r == 0 && m->n_flying && !may_fly) return -EAGAIN;
    m->now = &m->flight[m->n_flying == 1 && m->now == &m->flight[0]];
    m->now->w = w;
    m->now->flies = may_fly;
    m->now->want.n = m->now->want.n_past = 0;
    if (r == 0) r = find_fed(m, w);
    if (r == 0 && may_fly) r = enqueue(m, w);
    if (r == 0 && may_fly) m->ops->prepare(m->backend);
    m->prepared = r == 0;
    if (r < 0 && m->n_flying > 0) m->now = other_flight(m);
    return r;
}

int model_launch(struct model *m)
{
    assert(m->prepared);
    struct flight *f = m->now;
    m->prepared = false;
    int r = f->flies ? m->ops->launch(m->backend) : enqueue(m, f->w);
    if (r < 0 && m->n_flying > 0) m->now = other_flight(m);
    if (r < 0) return r;
    m->n_flying += (uint32_t)r;
    return r ? r : head_wait(m, f);
}

void model_drop(struct model *m)
{
    if (!m->prepared) return;
    assert(m->n_flying == 0);
    m->prepared = false;
    if (m->now->flies) m->ops->drop(m->backend);
}

int model_start(struct model *m, struct window *w)
{
    int r = model_prepare(m, w);
    return r < 0 ? r : model_launch(m);
}

bool model_is_done(const struct model *m) { return m->ops->done(m->backend); }

int model_finish(struct model *m)
{
    assert(m->n_flying > 0);
    bool other = m->n_flying + m->prepared == 2;
    struct flight *f = other ? other_flight(m) : m->now;
    m->n_flying--;
    return head_wait(m, f);
}

int model_run(struct model *m, struct window *w)
{
    int r = model_start(m, w);
    return r > 0 ? model_finish(m) : r;
}

const float *model_residual(struct model *m, uint32_t i)
{
    return m->ops->row(m->backend, m->buf.head, i);
}

const float *model_hidden(struct model *m, uint32_t i)
{
    bool is_float = m->want.precision == MODEL_FLOAT32;
    return is_float ? m->ops->row(m->backend, m->buf.norm, i) : NULL;
}
