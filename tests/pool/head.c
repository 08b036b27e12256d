/* SPDX-License-Identifier: MIT */
/* The messages and the memory of a pipeline that computes nothing but hashes. */
#include "head.h"

#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>

enum {
    N_LAYERS = 2,
    BLOCK_BYTES = BLOCK * sizeof(uint64_t),
    BEAT_US = 20000, /* more often than workers do: a test has less patience */
    PHASE_SERVING = 2,
};

/* ---- attaching ---- */

static void send_attach(struct stage *s)
{
    struct head *h = s->head;
    uint32_t rows[LANES_MAX], n_layers = (h->n_layers ? h->n_layers : N_LAYERS) / h->n_stages;
    uint64_t pending[OPS_MAX];
    Cistern__Geometry g = CISTERN__GEOMETRY__INIT;
    g.n_layers = n_layers * h->n_stages;
    g.n_kv_heads = g.head_dim = 1;
    g.kv = POOL_KV_F32;
    g.block_cells = h->block_cells ? h->block_cells : BLOCK;
    g.block_bytes = h->block_bytes ? h->block_bytes : BLOCK_BYTES;
    g.context_tokens = h->context ? h->context : CONTEXT;
    g.fingerprint = g.arithmetic = "hashes";
    Cistern__AttachWorker a = CISTERN__ATTACH_WORKER__INIT;
    a.pipeline = h->pipeline;
    a.stage = s->number;
    a.n_stages = h->n_stages;
    a.first_layer = s->number * n_layers;
    a.n_layers = n_layers;
    a.geometry = &g;
    a.max_rows = a.n_embd = 1;
    a.max_lanes = LANES_MAX;
    a.endpoint = "nowhere";
    if (s->number == 0) {
        a.n_rows = h->rows ? h->rows(h->arg, h, rows) : 0;
        a.rows = rows;
        a.pending = pending;
        for (struct op *op = h->op; op < h->op + OPS_MAX; op++)
            if (op->in_use && !op->answered) pending[a.n_pending++] = op->number;
    }
    Cistern__Envelope m = CISTERN__ENVELOPE__INIT;
    m.number = s->attach_number = pool_client_number(s->client);
    m.body_case = CISTERN__ENVELOPE__BODY_ATTACH_WORKER;
    m.attach_worker = &a;
    require(pool_client_send(s->client, &m) == 0, "an attach cannot be sent");
}

static void on_connected(void *arg) { send_attach(arg); }

static void on_beat(void *arg)
{
    struct stage *s = arg;
    Cistern__Heartbeat beat = CISTERN__HEARTBEAT__INIT;
    beat.phase = PHASE_SERVING;
    beat.life = s->life;
    Cistern__Envelope m = CISTERN__ENVELOPE__INIT;
    m.body_case = CISTERN__ENVELOPE__BODY_HEARTBEAT;
    m.heartbeat = &beat;
    if (s->attached) (void)pool_client_send(s->client, &m);
}

static void on_lost(void *arg)
{
    struct stage *s = arg;
    s->attached = s->answered = s->has_files = false;
}

static void on_refused(void *arg, const char *text)
{
    (void)arg;
    fail("the lifeline is refused: %s", text);
}

static void *map(int fd, int protection, size_t *ret_bytes)
{
    struct stat st;
    require(fstat(fd, &st) == 0, "fstat");
    *ret_bytes = (size_t)st.st_size;
    void *at = mmap(NULL, *ret_bytes, protection, MAP_SHARED, fd, 0);
    require(at != MAP_FAILED, "mmap");
    (void)close(fd);
    return at;
}

static void unmap(const void *at, size_t bytes)
{
    if (at) (void)munmap((void *)at, bytes);
}

static void take_pool(struct stage *s, const int *fds)
{
    struct head *h = s->head;
    if (s->number == 0) {
        unmap(h->control, h->control_bytes);
        unmap(h->tokens, h->tokens_bytes);
        h->control = map(fds[0], PROT_READ, &h->control_bytes);
        h->tokens = map(fds[1], PROT_READ | PROT_WRITE, &h->tokens_bytes);
    } else {
        (void)close(fds[0]);
        (void)close(fds[1]);
    }
    unmap(s->page, s->page_bytes);
    unmap(s->arena, s->arena_bytes);
    s->page = map(fds[2], PROT_READ | PROT_WRITE, &s->page_bytes);
    s->arena = map(fds[3], PROT_READ | PROT_WRITE, &s->arena_bytes);
}

static void send_abandon(const struct op *op);

/* All that has no answer is asked again once every stage is attached. */
static void attach_done(struct stage *s)
{
    struct head *h = s->head;
    if (!s->answered || !s->has_files) return;
    s->attached = true;
    if (s->number == 0 && h->attached) h->attached(h->arg, h, s->rows, s->n_rows);
    for (struct op *op = h->op; head_is_up(h) && op < h->op + OPS_MAX; op++) {
        if (!op->in_use || op->answered) continue;
        op_send(op);
        if (op->abandoned) send_abandon(op);
    }
    world_stir(h->world);
}

/* What the old life has in flight is finished here and now, and nothing more of it is taken. */
static void take_life(struct head *h, uint32_t life)
{
    if (life <= h->life) return;
    head_execute(h, h->n_windows);
    h->life = life;
    h->count = 0;
}

static void on_files(void *arg, const struct lifeline_files *f, int *fds, uint32_t n)
{
    struct stage *s = arg;
    if (f->kind == LIFELINE_POOL) {
        require(n == 4, "%u descriptors of the pool", n);
        take_pool(s, fds);
        s->has_files = true;
        attach_done(s);
        return;
    }
    for (uint32_t i = 0; i < n; i++)
        (void)close(fds[i]);
    take_life(s->head, f->life);
    s->life = f->life;
    uint64_t all = pool_window(f->life - 1, POOL_WINDOW_ALL);
    if (s->page && s->page->drained < all) shm_store_u64(&s->page->drained, all);
    world_stir(s->head->world);
}

/* ---- operations ---- */

static void fill_open(const struct op *op, Cistern__Open *o)
{
    *o = (Cistern__Open)CISTERN__OPEN__INIT;
    o->pipeline = op->head->pipeline;
    o->lane = op->lane;
    o->tokens.data = (uint8_t *)op->tokens;
    o->tokens.len = op->n_tokens * sizeof(uint32_t);
    o->exact = op->exact;
    o->salt = op->salt;
    o->gateway = op->gateway;
    o->arrival = op->arrival;
    o->resume_row = op->resume_row;
    o->resume_generation = op->resume_generation;
}

void op_send(struct op *op)
{
    Cistern__Open open;
    Cistern__Grow grow = CISTERN__GROW__INIT;
    Cistern__Truncate truncate = CISTERN__TRUNCATE__INIT;
    Cistern__Close close = CISTERN__CLOSE__INIT;
    Cistern__Envelope m = CISTERN__ENVELOPE__INIT;
    m.number = op->number;
    switch (op->kind) {
    case OP_OPEN:
        fill_open(op, &open);
        m.body_case = CISTERN__ENVELOPE__BODY_OPEN;
        m.open = &open;
        break;
    case OP_GROW:
        grow.row = op->row;
        grow.generation = op->generation;
        grow.version = op->version;
        grow.to_cells = op->cells;
        m.body_case = CISTERN__ENVELOPE__BODY_GROW;
        m.grow = &grow;
        break;
    case OP_TRUNCATE:
        truncate.row = op->row;
        truncate.generation = op->generation;
        truncate.version = op->version;
        truncate.to_cells = op->cells;
        truncate.last_window = op->last_window;
        m.body_case = CISTERN__ENVELOPE__BODY_TRUNCATE;
        m.truncate = &truncate;
        break;
    case OP_CLOSE:
        close.row = op->row;
        close.generation = op->generation;
        close.version = op->version;
        close.keep_cells = op->cells;
        close.last_window = op->last_window;
        close.resume = op->resume;
        m.body_case = CISTERN__ENVELOPE__BODY_CLOSE;
        m.close = &close;
        break;
    }
    (void)pool_client_send(op->head->stage[0].client, &m); /* else it is sent after the attach */
}

static void send_abandon(const struct op *op)
{
    struct pool_client *client = op->head->stage[0].client;
    Cistern__Abandon a = CISTERN__ABANDON__INIT;
    a.number = op->number;
    Cistern__Envelope m = CISTERN__ENVELOPE__INIT;
    m.number = pool_client_number(client);
    m.body_case = CISTERN__ENVELOPE__BODY_ABANDON;
    m.abandon = &a;
    (void)pool_client_send(client, &m);
}

void op_abandon(struct op *op)
{
    op->abandoned = true;
    if (head_is_up(op->head)) send_abandon(op);
}

struct op *head_op(struct head *h, enum op_kind kind)
{
    for (struct op *op = h->op; op < h->op + OPS_MAX; op++) {
        if (op->in_use) continue;
        *op = (struct op){.head = h,
                          .kind = kind,
                          .in_use = true,
                          .n_deaths = h->world->n_deaths,
                          .number = pool_client_number(h->stage[0].client)};
        return op;
    }
    return NULL;
}

bool head_has_answers(const struct head *h)
{
    for (const struct op *op = h->op; op < h->op + OPS_MAX; op++)
        if (op->in_use && !op->answered) return false;
    return true;
}

void head_reset(struct head *h)
{
    Cistern__Reset reset = CISTERN__RESET__INIT;
    reset.pipeline = h->pipeline;
    Cistern__Envelope m = CISTERN__ENVELOPE__INIT;
    m.number = pool_client_number(h->stage[0].client);
    m.body_case = CISTERN__ENVELOPE__BODY_RESET;
    m.reset = &reset;
    (void)pool_client_send(h->stage[0].client, &m);
}

bool head_is_up(const struct head *h)
{
    for (uint32_t s = 0; s < h->n_stages; s++)
        if (!h->stage[s].attached) return false;
    return true;
}

static void on_attached(struct stage *s, const Cistern__Attached *a)
{
    require(a->n_rows <= LANES_MAX, "%zu rows are bound to a head", a->n_rows);
    s->n_rows = (uint32_t)a->n_rows;
    if (a->n_rows) memcpy(s->rows, a->rows, a->n_rows * sizeof(s->rows[0]));
    s->answered = true;
    attach_done(s);
}

static void on_answer(struct head *h, const Cistern__Envelope *m)
{
    struct op *op = h->op;
    while (op < h->op + OPS_MAX && (!op->in_use || op->answered || op->number != m->number))
        op++;
    if (op == h->op + OPS_MAX) {
        if (h->row) h->row(h->arg, h, m);
        return;
    }
    op->answered = true;
    if (m->body_case == CISTERN__ENVELOPE__BODY_REFUSED) {
        op->answer = (struct answer){.code = m->refused->code};
        return;
    }
    const Cistern__Row *r = m->row;
    op->answer = (struct answer){r->code,       r->row,       r->state,      r->lease,
                                 r->base_cells, r->n_entries, r->copy_cells, r->copy_chunk,
                                 r->generation, r->version,   r->arrival};
}

static void on_message(void *arg, const Cistern__Envelope *m)
{
    struct stage *s = arg;
    bool refused = m->body_case == CISTERN__ENVELOPE__BODY_REFUSED;
    if (refused && m->number == s->attach_number)
        fail("stage %u.%u is refused: %s", s->head->pipeline, s->number, m->refused->text);
    if (m->body_case == CISTERN__ENVELOPE__BODY_ATTACHED)
        on_attached(s, m->attached);
    else if (refused || m->body_case == CISTERN__ENVELOPE__BODY_ROW)
        on_answer(s->head, m);
    else if (m->body_case == CISTERN__ENVELOPE__BODY_GIVE_BACK)
        if (s->head->give_back)
            s->head->give_back(s->head->arg, s->head, m->give_back->row, m->give_back->generation);
    world_stir(s->head->world);
}

void head_init(struct head *h, struct world *w, uint32_t pipeline, uint32_t n_stages)
{
    char run_dir[80];
    struct why why;
    (void)snprintf(run_dir, sizeof(run_dir), "%s/run", w->dir);
    h->world = w;
    h->pipeline = pipeline;
    h->n_stages = n_stages;
    for (uint32_t i = 0; i < n_stages; i++) {
        struct stage *s = &h->stage[i];
        *s = (struct stage){.head = h, .number = i, .self = incarnation_new()};
        struct pool_client_events events = {on_connected, on_lost,    on_message,
                                            on_files,     on_refused, s};
        require(pool_client_new(w->loop, run_dir, s->self, POOL_ROLE_WORKER, &events, &why,
                                &s->client) == 0,
                "%s", why.text);
        require(loop_add_timer(w->loop, on_beat, s, &s->beat) == 0, "no timer");
        (void)loop_set_timer(s->beat, BEAT_US, BEAT_US);
    }
}

void head_fini(struct head *h)
{
    for (uint32_t i = 0; i < h->n_stages; i++) {
        loop_remove(h->stage[i].beat);
        pool_client_free(h->stage[i].client);
        unmap(h->stage[i].page, h->stage[i].page_bytes);
        unmap(h->stage[i].arena, h->stage[i].arena_bytes);
    }
    unmap(h->control, h->control_bytes);
    unmap(h->tokens, h->tokens_bytes);
}

/* ---- windows ---- */

uint64_t kv_hash(uint64_t before, uint32_t token)
{
    uint64_t v = (before ^ token) + UINT64_C(0x9e3779b97f4a7c15);
    v = (v ^ v >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
    v = (v ^ v >> 27) * UINT64_C(0x94d049bb133111eb);
    return v ^ v >> 31;
}

uint64_t *head_cell(const struct head *h, uint32_t stage, uint32_t chunk, uint32_t offset)
{
    struct pool_arena *a = h->stage[stage].arena;
    return (uint64_t *)((char *)a + a->run[0].off) + (uint64_t)chunk * CHUNK + offset;
}

struct window *head_compose(struct head *h)
{
    if (h->n_windows == WINDOWS_MAX) head_execute(h, 1);
    struct window *w = &h->window[h->n_windows++];
    *w = (struct window){.number = pool_window(h->life, ++h->count)};
    return w;
}

static void execute_copy(struct head *h, const struct window *w)
{
    for (uint32_t i = w->copy_from; w->copy_chunk && i < w->from; i++) {
        uint32_t to = pool_entry_chunk(w->table[i / CHUNK]), off = i % CHUNK;
        for (uint32_t s = 0; s < h->n_stages; s++)
            *head_cell(h, s, to, off) = *head_cell(h, s, w->copy_chunk, off);
        h->tokens->cell[to * CHUNK + off] = h->tokens->cell[w->copy_chunk * CHUNK + off];
    }
}

static void execute(struct head *h, const struct window *w)
{
    uint64_t hash = 0;
    execute_copy(h, w);
    for (uint32_t i = 0; i < w->to; i++) {
        hash = kv_hash(hash, w->tokens[i]);
        if (i < w->from) continue;
        uint32_t chunk = pool_entry_chunk(w->table[i / CHUNK]);
        for (uint32_t s = 0; s < h->n_stages; s++)
            *head_cell(h, s, chunk, i % CHUNK) = hash + s;
        h->tokens->cell[chunk * CHUNK + i % CHUNK] = w->tokens[i];
    }
    for (uint32_t s = 0; s < h->n_stages; s++)
        shm_store_u64(&h->stage[s].page->word[w->row], pool_word(w->lease, w->to));
    struct pool_page *page = h->stage[0].page;
    shm_store_u64(&page->word[page->n_rows + w->row], pool_word(w->lease, w->to));
    for (uint32_t s = 0; s < h->n_stages; s++)
        shm_store_u64(&h->stage[s].page->drained, w->number);
}

void head_execute(struct head *h, uint32_t n)
{
    n = min_u32(n, h->n_windows);
    for (uint32_t i = 0; i < n; i++)
        execute(h, &h->window[i]);
    h->n_windows -= n;
    memmove(h->window, h->window + n, h->n_windows * sizeof(h->window[0]));
}

/* ---- a tool ---- */

static void tool_send(struct tool *t)
{
    Cistern__StatusAsk ask = CISTERN__STATUS_ASK__INIT;
    Cistern__Drop drop = CISTERN__DROP__INIT;
    Cistern__Envelope m = CISTERN__ENVELOPE__INIT;
    m.number = t->number;
    m.body_case = CISTERN__ENVELOPE__BODY_STATUS_ASK;
    m.status_ask = &ask;
    drop.row = t->drop_row;
    drop.generation = t->drop_generation;
    if (t->drop) {
        m.body_case = CISTERN__ENVELOPE__BODY_DROP;
        m.drop = &drop;
    }
    (void)pool_client_send(t->client, &m);
}

static void tool_connected(void *arg)
{
    struct tool *t = arg;
    Cistern__AttachOther a = CISTERN__ATTACH_OTHER__INIT;
    a.role = POOL_ROLE_TOOL;
    Cistern__Envelope m = CISTERN__ENVELOPE__INIT;
    m.number = pool_client_number(t->client);
    m.body_case = CISTERN__ENVELOPE__BODY_ATTACH_OTHER;
    m.attach_other = &a;
    require(pool_client_send(t->client, &m) == 0, "a tool's attach cannot be sent");
}

static void tool_lost(void *arg) { ((struct tool *)arg)->attached = false; }

static void tool_message(void *arg, const Cistern__Envelope *m)
{
    struct tool *t = arg;
    if (m->body_case == CISTERN__ENVELOPE__BODY_ATTACHED) {
        t->attached = true;
        if (t->busy) tool_send(t);
    } else if (t->busy && m->number == t->number) {
        t->busy = false;
        if (m->body_case == CISTERN__ENVELOPE__BODY_STATUS) {
            free(t->status);
            t->status = strdup(m->status->text);
        }
    }
    world_stir(t->world);
}

static void tool_files(void *arg, const struct lifeline_files *f, int *fds, uint32_t n)
{
    (void)arg;
    (void)f;
    for (uint32_t i = 0; i < n; i++)
        (void)close(fds[i]);
}

void tool_init(struct tool *t, struct world *w)
{
    char run_dir[80];
    struct why why;
    (void)snprintf(run_dir, sizeof(run_dir), "%s/run", w->dir);
    *t = (struct tool){.world = w, .self = incarnation_new()};
    struct pool_client_events events = {tool_connected, tool_lost,  tool_message,
                                        tool_files,     on_refused, t};
    require(pool_client_new(w->loop, run_dir, t->self, POOL_ROLE_TOOL, &events, &why, &t->client) ==
                0,
            "%s", why.text);
}

void tool_fini(struct tool *t)
{
    pool_client_free(t->client);
    free(t->status);
}

static void tool_begin(struct tool *t, bool drop)
{
    require(!t->busy, "the tool has a question already");
    t->busy = true;
    t->drop = drop;
    t->number = pool_client_number(t->client);
    if (t->attached) tool_send(t);
}

void tool_ask_status(struct tool *t) { tool_begin(t, false); }

void tool_drop(struct tool *t, uint32_t row, uint64_t generation)
{
    t->drop_row = row;
    t->drop_generation = generation;
    tool_begin(t, true);
}
