/* SPDX-License-Identifier: MIT */
/* The real pool against the model. Called between operations, when poold has nothing to do. */
#include <jansson.h>
#include <string.h>

#include "copier.h"

struct counts {
    uint32_t tables[CHUNKS_LIMIT], copies[CHUNKS_LIMIT]; /* rows that name the chunk */
};

static const struct pool_header *control(const struct model *m) { return m->head[0].control; }

static uint32_t length(const struct pool_body *b) { return b->base + b->copy_cells; }

static struct seen look(const struct model *m, uint32_t row)
{
    struct seen s = {0};
    s.version = pool_row_read(&pool_rows(control(m))[row], &s.body);
    memcpy(s.table, pool_table(control(m), row), control(m)->table_entries * sizeof(s.table[0]));
    return s;
}

static bool drained(const struct model *m, uint32_t pipeline, uint64_t window)
{
    const struct head *h = &m->head[pipeline];
    for (uint32_t s = 0; s < h->n_stages; s++)
        if (h->stage[s].page->drained < window) return false;
    return true;
}

/* ---- waiting until nothing moves ---- */

/* A poold that has just come back closes what its heads do not name when they attach. */
static bool answered(void *arg)
{
    const struct model *m = arg;
    for (uint32_t i = 0; i < m->n_heads; i++)
        if (!head_is_up(&m->head[i])) return false;
    return !m->tool.busy;
}

/* A tool's row, and the tool is there; when it is gone, the row is about to be free. */
static bool is_copied(const struct model *m, const struct pool_body *b)
{
    return b->holder && m->copier && m->copier->pid && !m->copier->killed;
}

static bool is_still(void *arg)
{
    struct model *m = arg;
    if (!answered(m)) return false;
    for (uint32_t row = 0; row < m->n_rows; row++) {
        struct seen s = look(m, row);
        if (s.body.state != POOL_CLOSING || is_copied(m, &s.body)) continue;
        if (!drained(m, s.body.pipeline, s.body.last_window)) continue;
        tool_ask_status(&m->tool); /* it is about to be folded */
        return false;
    }
    return true;
}

static void wait_still(struct model *m)
{
    uint32_t n_deaths;
    do { /* counts of a poold that has died since, or that its heads had not met yet, tell nothing
          */
        n_deaths = m->world->n_deaths;
        tool_ask_status(&m->tool);
        world_run(m->world, is_still, m);
        tool_ask_status(&m->tool);
        world_run(m->world, answered, m);
    } while (n_deaths != m->world->n_deaths);
}

void model_explain(void *arg)
{
    const struct model *m = arg;
    for (uint32_t i = 0; i < m->n_heads; i++) {
        const struct head *h = &m->head[i];
        (void)fprintf(stderr, "head %u: %s, %u windows\n", i, head_is_up(h) ? "up" : "not up",
                      h->n_windows);
        for (const struct op *op = h->op; op < h->op + OPS_MAX; op++)
            if (op->in_use && !op->answered)
                (void)fprintf(stderr, "  operation %d on row %u has no answer%s\n", op->kind,
                              op->row, op->abandoned ? ", and is abandoned" : "");
    }
    (void)fprintf(stderr, "the tool %s; copier %d%s\n", m->tool.busy ? "waits" : "is idle",
                  m->copier ? (int)m->copier->pid : 0,
                  m->copier && m->copier->killed ? ", killed" : "");
    for (uint32_t row = 0; row < m->n_rows; row++) {
        struct pool_body b = look(m, row).body;
        if (b.state == POOL_FREE) continue;
        (void)fprintf(stderr, "row %u: state %u, lease %u, %u cells in %u entries%s\n", row,
                      b.state, b.lease, length(&b), b.n_entries, b.holder ? ", a tool's" : "");
    }
}

/* ---- one row ---- */

/* The identity layout: a row's chunks are its lane's, in order. */
static uint32_t range_first(const struct model *m, const struct pool_body *b)
{
    const struct pool_header *h = control(m);
    return 1 + (b->pipeline * h->pipeline_lanes + b->lane) * h->lane_chunks;
}

static void check_table(const struct model *m, uint32_t row, const struct seen *s)
{
    const struct pool_body *b = &s->body;
    uint32_t n = b->state == POOL_FREE ? 0 : b->n_entries;
    /* Which lane a save's chunks are of, its row does not say. */
    uint32_t first = b->holder ? pool_entry_chunk(s->table[0]) : range_first(m, b);
    require(n <= control(m)->table_entries && b->base <= n * CHUNK,
            "row %u: %u cells in %u entries", row, b->base, n);
    for (uint32_t i = 0; i < control(m)->table_entries; i++) {
        uint32_t chunk = pool_entry_chunk(s->table[i]);
        if (i >= n) {
            require(s->table[i] == 0, "row %u: entry %u of %u is not the trash chunk", row, i, n);
            continue;
        }
        require(chunk > 0 && chunk <= m->n_chunks, "row %u: entry %u is chunk %u", row, i, chunk);
        require(pool_entry_generation(s->table[i]) <= pool_chunks(control(m))[chunk].generation,
                "row %u: entry %u bears a generation that chunk %u never had", row, i, chunk);
        require(!control(m)->lane_chunks || chunk == first + i,
                "row %u: entry %u is chunk %u, not of lane %u", row, i, chunk, b->lane);
    }
    if (b->state != POOL_IDLE && b->state != POOL_WAITING) return;
    require(n == (b->base + CHUNK - 1) / CHUNK, "row %u: %u entries for %u cells", row, n, b->base);
}

/* Cells of an active or closing row that stages have written, by their words. */
static uint32_t written(const struct model *m, uint32_t row, const struct pool_body *b)
{
    const struct head *h = &m->head[b->pipeline];
    uint32_t n = b->n_entries * CHUNK;
    for (uint32_t s = 0; s < h->n_stages; s++) {
        uint64_t word = h->stage[s].page->word[row];
        n = min_u32(n, pool_word_lease(word) == b->lease ? pool_word_cells(word) : b->base);
    }
    return n;
}

static void check_content(const struct model *m, uint32_t row, const struct seen *s)
{
    const struct pool_body *b = &s->body;
    const struct row *r = &m->row[row];
    const struct head *h = &m->head[0];
    bool cached = b->state == POOL_IDLE || b->state == POOL_WAITING;
    uint32_t whole = cached ? b->base : written(m, row, b), all = max_u32(whole, length(b));
    uint64_t hash = 0;
    require(all <= r->n_tokens, "row %u: %u cells of a conversation of %u", row, all, r->n_tokens);
    for (uint32_t i = 0; i < all; i++) {
        uint64_t entry = i < whole ? s->table[i / CHUNK] : b->copy_entry;
        uint32_t chunk = pool_entry_chunk(entry), off = i % CHUNK;
        hash = kv_hash(hash, r->tokens[i]);
        require(h->tokens->cell[chunk * CHUNK + off] == r->tokens[i],
                "row %u: cell %u of %u has another token", row, i, all);
        for (uint32_t k = 0; k < h->n_stages; k++)
            require(*head_cell(h, k, chunk, off) == hash + k,
                    "row %u: cell %u of %u has foreign K/V in stage %u", row, i, all, k);
    }
}

static void check_row(struct model *m, uint32_t row, const struct seen *s)
{
    const struct pool_body *b = &s->body;
    struct row *r = &m->row[row];
    check_table(m, row, s);
    require((b->state == POOL_ACTIVE) == (r->head != NULL), "row %u: state %u, %s", row, b->state,
            r->head ? "its head holds it" : "no head holds it");
    require((b->copy_entry == 0) == (b->copy_cells == 0) &&
                (b->copy_entry == 0 || b->base % CHUNK == 0),
            "row %u: %u cells to copy behind %u", row, b->copy_cells, b->base);
    if (b->state == POOL_FREE) return;
    if (b->holder) return copier_check_held(m->copier, row, s);
    if (b->generation != r->generation && m->copier) copier_learn(m->copier, row, s);
    require(b->generation == r->generation, "row %u: generation %llu, granted was %llu", row,
            (unsigned long long)b->generation, (unsigned long long)r->generation);
    require(b->salt == r->salt, "row %u has another salt", row);
    if (r->head)
        require(s->version == r->version && b->lease == r->lease && b->n_entries == r->n_entries &&
                    b->lane == r->lane && b->pipeline == r->head->pipeline,
                "row %u is not as it was granted", row);
    check_content(m, row, s);
}

/* ---- from one look to the next ---- */

static void check_closed(const struct model *m, uint32_t row, const struct seen *now)
{
    const struct pool_body *b = &now->body;
    const struct row *r = &m->row[row];
    if (!r->closing || b->generation != r->generation || b->lease != r->lease + 1) return;
    require(b->state != POOL_CLOSING && (b->state == POOL_FREE) == (r->expected == 0) &&
                (b->state == POOL_FREE || length(b) == r->expected),
            "row %u: closed with %u cells, it has %u in state %u", row, r->expected, length(b),
            b->state);
}

static void check_change(const struct model *m, uint32_t row, const struct seen *was,
                         const struct seen *now)
{
    const struct pool_body *a = &was->body, *b = &now->body;
    require(now->version >= was->version && b->lease >= a->lease && b->generation >= a->generation,
            "row %u goes back", row);
    if (now->version == was->version)
        require(memcmp(was, now, sizeof(*was)) == 0, "row %u changed without a commit", row);
    if (b->generation != a->generation || m->row[row].head) return;
    bool was_cached = a->state == POOL_IDLE || a->state == POOL_WAITING;
    if (was_cached && b->lease == a->lease + 1)
        require(length(b) <= length(a), "row %u: cached cells go from %u to %u", row, length(a),
                length(b));
    if (a->state == POOL_CLOSING && b->state == POOL_CLOSING)
        require(memcmp(was, now, sizeof(*was)) == 0, "row %u changed while it is closing", row);
}

/* ---- all rows ---- */

static void count(const struct model *m, struct counts *ret)
{
    *ret = (struct counts){0};
    for (uint32_t row = 0; row < m->n_rows; row++) {
        const struct seen *s = &m->seen[row];
        if (s->body.state == POOL_FREE) continue;
        for (uint32_t i = 0; i < s->body.n_entries; i++)
            ret->tables[pool_entry_chunk(s->table[i])]++;
        if (s->body.copy_entry) ret->copies[pool_entry_chunk(s->body.copy_entry)]++;
    }
}

/* Who will write a chunk has it alone. */
static void check_writers(const struct model *m, const struct counts *c)
{
    for (uint32_t row = 0; row < m->n_rows; row++) {
        const struct seen *s = &m->seen[row];
        bool restored = s->body.holder && s->body.keep;
        if (s->body.state != POOL_ACTIVE && !restored) continue;
        uint32_t whole = restored ? 0 : written(m, row, &s->body) / CHUNK;
        for (uint32_t i = whole; i < s->body.n_entries; i++)
            require(c->tables[pool_entry_chunk(s->table[i])] == 1,
                    "row %u writes chunk %u, which others hold", row,
                    pool_entry_chunk(s->table[i]));
    }
}

/* What poold counts is what the tables say: a chunk whose count is not would be lost, or given out
 * twice. */
static void check_counts(const struct model *m, const struct counts *c)
{
    static const char *const names[] = {"free", "active", "waiting", "closing", "cached", "shared"};
    enum { SHARED = 5 };
    uint32_t n[6] = {0}, state_of[CHUNKS_LIMIT] = {0}, sum = 0;
    for (uint32_t row = 0; row < m->n_rows; row++) {
        const struct seen *s = &m->seen[row];
        for (uint32_t i = 0; s->body.state != POOL_FREE && i < s->body.n_entries; i++)
            state_of[pool_entry_chunk(s->table[i])] = s->body.state;
        if (s->body.copy_entry && s->body.state != POOL_FREE)
            state_of[pool_entry_chunk(s->body.copy_entry)] = s->body.state;
    }
    for (uint32_t chunk = 1; chunk <= m->n_chunks; chunk++)
        n[c->tables[chunk] + c->copies[chunk] > 1 ? SHARED : state_of[chunk]]++;
    json_t *all = json_loads(m->tool.status, 0, NULL);
    const json_t *cells = json_object_get(json_object_get(all, "pool"), "cells");
    require(cells, "no cells in the status");
    for (size_t i = 0; i < ARRAY_LEN(names); i++) {
        json_int_t real = json_integer_value(json_object_get(cells, names[i]));
        require(real == (json_int_t)n[i] * CHUNK, "%s: poold counts %d cells, the tables %u",
                names[i], (int)real, n[i] * CHUNK);
        sum += n[i];
    }
    require(sum == m->n_chunks, "the cells do not sum to the pool");
    json_decref(all);
}

/* All rows, and poold's counts of the same moment: a tool goes on meanwhile. */
static void look_at_all(struct model *m, struct seen *ret)
{
    bool same;
    do {
        uint32_t n_deaths = m->world->n_deaths;
        wait_still(m);
        for (uint32_t row = 0; row < m->n_rows; row++)
            ret[row] = look(m, row);
        tool_ask_status(&m->tool);
        world_run(m->world, answered, m);
        same = n_deaths == m->world->n_deaths;
        for (uint32_t row = 0; row < m->n_rows; row++)
            same &= look(m, row).version == ret[row].version;
    } while (!same);
}

void model_check(struct model *m)
{
    struct counts c;
    struct seen now[ROWS_LIMIT];
    if (m->copier) copier_pause(m->copier, true);
    look_at_all(m, now);
    for (uint32_t row = 0; row < m->n_rows; row++) {
        check_row(m, row, &now[row]);
        if (m->has_seen) check_change(m, row, &m->seen[row], &now[row]);
        check_closed(m, row, &now[row]);
        m->seen[row] = now[row];
    }
    if (m->copier) copier_pause(m->copier, false);
    m->has_seen = true;
    count(m, &c);
    check_writers(m, &c);
    check_counts(m, &c);
}
