/* SPDX-License-Identifier: MIT */
/* What heads ask, and what the model makes of the answers. */
#include "model.h"

#include <string.h>

enum {
    DRAIN_US = 300,  /* between windows that are executed while operations wait */
    STALL_US = 3000, /* then a head gives up what waits for room, or gives room */
};

uint32_t model_random(struct model *m, uint32_t below)
{
    m->random = m->random * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return (uint32_t)((m->random >> 33) % below);
}

uint32_t model_active(const struct model *m, const struct head *h, uint32_t ret[LANES_MAX])
{
    uint32_t n = 0;
    for (uint32_t row = 0; row < m->n_rows; row++)
        if (m->row[row].head == h) ret[n++] = row;
    return n;
}

/* ---- what heads are asked ---- */

static bool is_being_closed(const struct head *h, uint32_t row)
{
    for (const struct op *op = h->op; op < h->op + OPS_MAX; op++)
        if (op->in_use && op->kind == OP_CLOSE && op->row == row) return true;
    return false;
}

/* What is still to be copied is nobody's until a window has copied it. */
static uint32_t complete_cells(const struct row *r)
{
    return r->copy_chunk ? r->copy_from : r->computed;
}

/* A forgotten row is closed by poold with what its words say, so its windows come to an end first.
 */
static void forget(struct model *m, struct head *h, uint32_t row)
{
    head_execute(h, h->n_windows);
    struct row *r = &m->row[row];
    r->head = NULL;
    r->closing = true;
    r->expected = complete_cells(r);
    m->n_forgotten++;
}

static uint32_t believed_rows(void *arg, struct head *h, uint32_t ret[LANES_MAX])
{
    struct model *m = arg;
    uint32_t rows[LANES_MAX], all = model_active(m, h, rows), n = 0;
    for (const struct op *op = h->op; op < h->op + OPS_MAX; op++) /* granted in this very round */
        if (op->in_use && op->kind == OP_OPEN && op->answered &&
            op->answer.code == CISTERN__CODE__OK)
            ret[n++] = op->answer.row;
    for (uint32_t i = 0; i < all; i++) {
        bool forgets =
            m->forget_one_in && !m->row[rows[i]].busy && model_random(m, m->forget_one_in) == 0;
        if (forgets)
            forget(m, h, rows[i]);
        else
            ret[n++] = rows[i];
    }
    return n;
}

static void on_attached(void *arg, struct head *h, const uint32_t *rows, size_t n)
{
    struct model *m = arg;
    m->n_rows = h->control->n_rows;
    m->n_chunks = h->control->n_chunks;
    require(m->n_rows <= ROWS_LIMIT && m->n_chunks < CHUNKS_LIMIT, "the pool is too large");
    for (uint32_t row = 0; row < m->n_rows; row++) {
        if (m->row[row].head != h || is_being_closed(h, row)) continue;
        bool found = false;
        for (size_t i = 0; i < n; i++)
            found |= rows[i] == row;
        require(found, "row %u is lost: its head holds it and poold does not", row);
    }
}

static void on_give_back(void *arg, struct head *h, uint32_t row, uint64_t generation)
{
    struct model *m = arg;
    struct row *r = row < m->n_rows ? &m->row[row] : NULL;
    if (r && r->head == h && r->generation == generation) r->give_back = true;
}

void model_init(struct model *m, struct world *w, uint32_t n_heads, const uint32_t *n_stages)
{
    m->world = w;
    w->explain = model_explain;
    w->explain_arg = m;
    m->n_heads = n_heads;
    for (uint32_t i = 0; i < n_heads; i++) {
        m->head[i] = (struct head){
            .rows = believed_rows, .attached = on_attached, .give_back = on_give_back, .arg = m};
        head_init(&m->head[i], w, i, n_stages[i]);
    }
    tool_init(&m->tool, w);
}

void model_fini(struct model *m)
{
    tool_fini(&m->tool);
    for (uint32_t i = 0; i < m->n_heads; i++)
        head_fini(&m->head[i]);
}

/* ---- operations ---- */

static bool find_lane(const struct model *m, const struct head *h, uint32_t *ret)
{
    uint32_t used = 0;
    for (uint32_t row = 0; row < m->n_rows; row++)
        if (m->row[row].head == h) used |= 1u << m->row[row].lane;
    for (const struct op *op = h->op; op < h->op + OPS_MAX; op++)
        if (op->in_use && op->kind == OP_OPEN) used |= 1u << op->lane;
    for (uint32_t lane = 0; lane < LANES_MAX; lane++) {
        if (used & 1u << lane) continue;
        *ret = lane;
        return true;
    }
    return false;
}

static struct op *begin_open(struct model *m, struct head *h, const uint32_t *tokens, uint32_t n)
{
    uint32_t lane;
    struct op *op = find_lane(m, h, &lane) ? head_op(h, OP_OPEN) : NULL;
    if (!op) return NULL;
    op->lane = lane;
    op->n_tokens = n;
    op->gateway = 5;
    op->exact = m->heeds_kinds && model_random(m, 2);
    memcpy(op->tokens, tokens, n * sizeof(*tokens));
    return op;
}

struct op *model_open_salted(struct model *m, struct head *h, const uint32_t *tokens, uint32_t n,
                             uint64_t salt)
{
    struct op *op = begin_open(m, h, tokens, n);
    if (!op) return NULL;
    op->salt = salt;
    op_send(op);
    return op;
}

struct op *model_open(struct model *m, struct head *h, const uint32_t *tokens, uint32_t n)
{
    return model_open_salted(m, h, tokens, n, 0);
}

struct op *model_resume(struct model *m, struct head *h, uint32_t row, const uint32_t *tokens,
                        uint32_t n, bool keep_age)
{
    const struct pool_body *b = &m->seen[row].body;
    uint32_t have = min_u32(m->row[row].n_tokens, CONTEXT - n), all[CONTEXT];
    memcpy(all, m->row[row].tokens, have * sizeof(*all));
    memcpy(all + have, tokens, n * sizeof(*all));
    struct op *op = begin_open(m, h, all, have + n);
    if (!op) return NULL;
    op->salt = m->row[row].salt;
    op->resume_row = row + 1;
    op->resume_generation = b->generation;
    if (keep_age) op->arrival = b->arrival;
    op_send(op);
    return op;
}

static struct op *begin_on_row(struct model *m, uint32_t row, enum op_kind kind)
{
    struct row *r = &m->row[row];
    struct op *op = r->head ? head_op(r->head, kind) : NULL;
    if (!op) return NULL;
    op->row = row;
    op->generation = r->generation;
    op->version = r->version;
    /* As a head says it: 0 when its life has had no window yet, and those before are drained. */
    op->last_window = r->head->count ? pool_window(r->head->life, r->head->count) : 0;
    op->crosses = r->busy;
    r->busy = true;
    return op;
}

struct op *model_grow(struct model *m, uint32_t row, uint32_t to)
{
    struct op *op = begin_on_row(m, row, OP_GROW);
    if (!op) return NULL;
    op->cells = to;
    op_send(op);
    return op;
}

struct op *model_truncate(struct model *m, uint32_t row, uint32_t to)
{
    struct op *op = begin_on_row(m, row, OP_TRUNCATE);
    if (!op) return NULL;
    op->cells = to;
    op_send(op);
    return op;
}

struct op *model_close(struct model *m, uint32_t row, uint32_t keep, bool resume)
{
    struct op *op = begin_on_row(m, row, OP_CLOSE);
    if (!op) return NULL;
    op->cells = keep;
    op->resume = resume;
    op_send(op);
    return op;
}

void model_compute(struct model *m, uint32_t row, uint32_t to)
{
    struct row *r = &m->row[row];
    struct head *h = r->head;
    to = min_u32(min_u32(to, r->n_entries * CHUNK), CONTEXT);
    if (r->busy || to <= r->computed) return;
    while (r->n_tokens < to) /* what the model says next */
        r->tokens[r->n_tokens++] = (1000 + model_random(m, 50)) | POOL_TOKEN_GENERATED;
    struct window *w = head_compose(h);
    w->row = row;
    w->lease = r->lease;
    w->from = r->computed;
    w->to = to;
    w->copy_chunk = r->copy_chunk;
    w->copy_from = r->copy_from;
    memcpy(w->table, pool_table(h->control, row), r->n_entries * sizeof(w->table[0]));
    memcpy(w->tokens, r->tokens, to * sizeof(w->tokens[0]));
    r->computed = to;
    r->copy_chunk = 0;
}

/* ---- answers ---- */

static void take_row(struct row *r, const struct answer *a)
{
    r->generation = a->generation;
    r->version = a->version;
    r->lease = a->lease;
    r->n_entries = a->n_entries;
}

/* What is reused is of the kinds that it has; who asked for them found none of others. */
static void take_kinds(struct row *r, uint32_t row, const struct op *op)
{
    const struct head *h = op->head;
    const uint64_t *table = pool_table(h->control, row);
    for (uint32_t i = 0; i < r->computed; i++) {
        bool copied = r->copy_chunk && i >= r->copy_from;
        uint32_t chunk = copied ? r->copy_chunk : pool_entry_chunk(table[i / CHUNK]);
        uint32_t word = h->tokens->cell[chunk * CHUNK + i % CHUNK], differ = word ^ r->tokens[i];
        require(!(differ & (op->exact ? UINT32_MAX : ~POOL_TOKEN_GENERATED)),
                "row %u: cell %u of %u has word %x, asked for was %x", row, i, r->computed, word,
                r->tokens[i]);
        r->tokens[i] = word;
    }
}

static void take_open(struct model *m, struct op *op)
{
    const struct answer *a = &op->answer;
    if (a->code != CISTERN__CODE__OK) {
        require(a->code == CISTERN__CODE__POOL_FULL ||
                    (op->abandoned && a->code == CISTERN__CODE__UNKNOWN),
                "an open is answered with code %d", a->code);
        m->n_refused++;
        return;
    }
    struct row *r = &m->row[a->row];
    require(a->row < m->n_rows && !r->head, "row %u is given to two heads", a->row);
    uint32_t cached = a->base + a->copy_cells, least = min_u32(op->n_tokens + CHUNK, CONTEXT);
    require(cached < op->n_tokens, "row %u: %u cells of %u are cached: the last one is computed",
            a->row, cached, op->n_tokens);
    require(a->n_entries * CHUNK >= least, "row %u: %u entries for a prompt of %u", a->row,
            a->n_entries, op->n_tokens);
    *r = (struct row){.head = op->head, .salt = op->salt, .gateway = op->gateway, .lane = op->lane};
    take_row(r, a);
    r->computed = cached;
    r->copy_chunk = a->copy_cells ? a->copy_chunk : 0;
    r->copy_from = a->base;
    r->n_tokens = op->n_tokens;
    memcpy(r->tokens, op->tokens, op->n_tokens * sizeof(r->tokens[0]));
    take_kinds(r, a->row, op);
    m->n_cached_cells += cached;
}

static void take_other(struct model *m, struct op *op)
{
    const struct answer *a = &op->answer;
    struct row *r = &m->row[op->row];
    r->busy = is_being_closed(op->head, op->row);
    bool crossed = op->kind == OP_CLOSE && op->crosses && a->code == CISTERN__CODE__STALE;
    if (crossed) return; /* another operation on the row was done first */
    /* Done before poold died, and the row was another conversation's, or cut, before the retry. */
    bool overtaken = op->kind == OP_CLOSE && a->code == CISTERN__CODE__STALE &&
                     op->n_deaths != m->world->n_deaths && a->lease != r->lease;
    bool taken_back = a->code == CISTERN__CODE__STALE && (!r->head || r->busy || r->give_back);
    if (taken_back) return; /* closed because poold asked for it, while this one waited */
    if (a->code == CISTERN__CODE__POOL_FULL && op->kind != OP_CLOSE) {
        m->n_refused++;
        return;
    }
    require(overtaken || (a->code == CISTERN__CODE__OK && a->row == op->row &&
                          r->generation == a->generation),
            "row %u: operation %d is answered with code %d", op->row, op->kind, a->code);
    if (op->kind == OP_CLOSE) {
        r->head = NULL;
        r->closing = true;
        r->give_back = false;
        r->expected = min_u32(complete_cells(r), op->cells);
        return;
    }
    take_row(r, a);
    if (op->kind == OP_GROW) {
        require(r->n_entries * CHUNK >= op->cells, "row %u did not grow", op->row);
        return;
    }
    uint32_t cells = a->base + a->copy_cells;
    require(cells == min_u32(op->cells, complete_cells(r)),
            "row %u: truncated from %u to %u, it has %u", op->row, r->computed, op->cells, cells);
    r->computed = r->n_tokens = cells;
    r->copy_chunk = a->copy_cells ? a->copy_chunk : 0;
    r->copy_from = a->base;
}

/* Opens last: an answered close has freed the row that an open was given in the same round. */
static void take_answers(struct model *m)
{
    for (int opens = 0; opens < 2; opens++)
        for (uint32_t i = 0; i < m->n_heads; i++)
            for (struct op *op = m->head[i].op; op < m->head[i].op + OPS_MAX; op++) {
                if (!op->in_use || (op->kind == OP_OPEN) != opens) continue;
                m->last = op->answer;
                m->n_answers[op->kind]++;
                op->in_use = false;
                if (opens)
                    take_open(m, op);
                else
                    take_other(m, op);
            }
}

/* ---- waiting ---- */

static bool all_answered(void *arg)
{
    struct model *m = arg;
    for (uint32_t i = 0; i < m->n_heads; i++)
        if (!head_is_up(&m->head[i]) || !head_has_answers(&m->head[i])) return false;
    return m->tool.attached && !m->tool.busy;
}

static void give_back(struct model *m, uint32_t row)
{
    m->n_given_back++;
    (void)model_close(m, row, 0, true);
}

/* What waits for room while nothing else moves: requests are given up, and what poold asked back is
 * closed; else some conversation ends, as it would by itself in a while. */
static void end_stall(struct model *m)
{
    uint32_t last = UINT32_MAX, n_before = (uint32_t)m->n_given_back;
    for (uint32_t i = 0; i < m->n_heads; i++)
        for (struct op *op = m->head[i].op; op < m->head[i].op + OPS_MAX; op++)
            if (op->in_use && !op->answered && op->kind == OP_OPEN) op_abandon(op);
    for (uint32_t row = 0; row < m->n_rows; row++) {
        const struct row *r = &m->row[row];
        if (!r->head || is_being_closed(r->head, row)) continue;
        if (r->give_back) give_back(m, row);
        if (last == UINT32_MAX || !r->busy) last = row;
    }
    if (m->n_given_back == n_before && last != UINT32_MAX) give_back(m, last);
}

struct settling {
    struct model *m;
    struct loop_source *timer;
    uint64_t stalled_us;
};

static void on_drain(void *arg)
{
    struct settling *s = arg;
    bool moves = false;
    for (uint32_t i = 0; i < s->m->n_heads; i++) {
        moves |= s->m->head[i].n_windows > 0 || !head_is_up(&s->m->head[i]);
        head_execute(&s->m->head[i], 1);
    }
    if (moves) s->stalled_us = now_us();
    if (!s->m->gives_way || now_us() - s->stalled_us < STALL_US) return;
    s->stalled_us = now_us();
    end_stall(s->m);
}

void model_settle(struct model *m)
{
    if (all_answered(m)) return take_answers(m);
    struct settling s = {.m = m, .stalled_us = now_us()};
    require(loop_add_timer(m->world->loop, on_drain, &s, &s.timer) == 0, "no timer");
    (void)loop_set_timer(s.timer, DRAIN_US, DRAIN_US);
    world_run(m->world, all_answered, m);
    loop_remove(s.timer);
    take_answers(m);
}
