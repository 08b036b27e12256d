/* SPDX-License-Identifier: MIT */
/*
 * The pool over its real sockets against a simple model: two pipelines, one of one and one of two
 * stages would not share K/V, so both have as many; random operations, several in flight; poold is
 * killed at random moments and comes back; meanwhile poolctl saves and restores (copier.h). Once in
 * the identity layout. After each round the whole pool is held against the model (model.h).
 * CISTERN_POOL_OPERATIONS: how many; CISTERN_SEED: the seed, else of the clock.
 */
#include <string.h>

#include "copier.h"

enum { FAMILIES = 3, KILL_ONE_IN = 250, COPY_ONE_IN = 10, KILL_COPIER_ONE_IN = 40 };

struct kill_timer {
    struct world *world;
    struct loop_source *timer;
};

static void on_kill(void *arg) { world_kill(((struct kill_timer *)arg)->world); }

/* Prompts of few families, whose members part at few places, and whose kinds do: so that they
 * share.
 */
static uint32_t prompt(struct model *m, uint32_t *ret)
{
    uint32_t family = model_random(m, FAMILIES), n = 2 + model_random(m, CONTEXT - 2);
    uint32_t parts = 16 * model_random(m, 6) + model_random(m, 3) * 5, branch = model_random(m, 3);
    for (uint32_t i = 0; i < n; i++)
        ret[i] = family * 10000 + i + (i >= parts ? 500 * (branch + 1) : 0);
    uint32_t from = 16 * model_random(m, 6) + model_random(m, 3) * 5;
    bool some = model_random(m, 2);
    for (uint32_t i = from; some && i < min_u32(n, from + 40); i++)
        ret[i] |= POOL_TOKEN_GENERATED;
    return n;
}

static bool pick(struct model *m, enum pool_state state, uint32_t *ret)
{
    uint32_t first = model_random(m, m->n_rows);
    for (uint32_t i = 0; i < m->n_rows; i++) {
        uint32_t row = (first + i) % m->n_rows;
        bool active = m->row[row].head && !m->row[row].busy;
        if (state == POOL_ACTIVE ? !active : m->seen[row].body.state != state) continue;
        *ret = row;
        return true;
    }
    return false;
}

static struct head *any_head(struct model *m) { return &m->head[model_random(m, m->n_heads)]; }

static void open_any(struct model *m)
{
    uint32_t tokens[CONTEXT], n = prompt(m, tokens);
    (void)model_open_salted(m, any_head(m), tokens, n, model_random(m, 8) == 0);
}

static void resume_any(struct model *m)
{
    uint32_t row, more[4] = {1, 2, 3, model_random(m, 100)};
    if (!pick(m, POOL_WAITING, &row)) return;
    struct head *h = any_head(m);
    for (struct op *op = h->op; op < h->op + OPS_MAX; op++)
        if (op->in_use && op->resume_row == row + 1) return;
    (void)model_resume(m, h, row, more, 1 + model_random(m, 4), model_random(m, 2));
}

static void drop_any(struct model *m)
{
    uint32_t row;
    if (pick(m, POOL_IDLE, &row) && !m->tool.busy)
        tool_drop(&m->tool, row, m->seen[row].body.generation);
}

static void copy_any(struct model *m)
{
    uint32_t row = model_random(m, m->n_rows);
    if (model_random(m, 2)) return copier_restore(m->copier);
    const struct pool_body *b = &m->seen[row].body;
    if (b->state != POOL_FREE && !b->holder) copier_save(m->copier, row, b->generation);
}

static void operate(struct model *m)
{
    uint32_t row, what = model_random(m, 100);
    if (what < 35) return open_any(m);
    if (what < 40) return resume_any(m);
    if (what < 42) return drop_any(m);
    if (!pick(m, POOL_ACTIVE, &row)) return;
    const struct row *r = &m->row[row];
    if (what < 60)
        (void)model_grow(m, row, min_u32(r->n_entries * CHUNK + model_random(m, 40), CONTEXT));
    else if (what < 68)
        (void)model_truncate(m, row, model_random(m, r->computed + 10));
    else
        (void)model_close(m, row, model_random(m, 4) ? UINT32_MAX : model_random(m, CONTEXT),
                          model_random(m, 4) == 0);
}

static void compute_some(struct model *m)
{
    uint32_t row;
    for (uint32_t i = model_random(m, 4); i > 0; i--)
        if (pick(m, POOL_ACTIVE, &row))
            model_compute(m, row, m->row[row].computed + 1 + model_random(m, 60));
    for (uint32_t i = 0; i < m->n_heads; i++)
        head_execute(&m->head[i], model_random(m, 4));
}

static void one_round(struct model *m, struct kill_timer *kill)
{
    compute_some(m);
    copier_look(m->copier);
    for (uint32_t i = 1 + model_random(m, 4); i > 0; i--)
        operate(m);
    if (model_random(m, 2000) == 0) head_reset(any_head(m));
    if (model_random(m, KILL_ONE_IN) == 0)
        (void)loop_set_timer(kill->timer, 1 + model_random(m, 600), 0);
    if (model_random(m, COPY_ONE_IN) == 0) copy_any(m);
    if (model_random(m, KILL_COPIER_ONE_IN) == 0) copier_kill(m->copier);
    model_settle(m);
    copier_look(m->copier);
    model_check(m);
}

static uint64_t number(const char *name, uint64_t preset)
{
    const char *text = getenv(name);
    return text && *text ? strtoull(text, NULL, 10) : preset;
}

static uint64_t n_answers(const struct model *m)
{
    uint64_t n = 0;
    for (size_t i = 0; i < ARRAY_LEN(m->n_answers); i++)
        n += m->n_answers[i];
    return n;
}

struct kind {
    const char *name;
    uint32_t n_stages, n_cells; /* 0: the identity layout */
    bool waits;
};

static void run(char **programs, const struct kind *k, uint64_t operations)
{
    struct world w;
    static struct model m;
    static struct copier copier;
    uint64_t seed = number("CISTERN_SEED", now_us());
    struct world_want want = {.program = programs[0],
                              .n_cells = k->n_cells,
                              .n_pipelines = HEADS_MAX,
                              .chunk_cells = CHUNK,
                              .n_rows = 24,
                              .when_dry_waits = k->waits};
    (void)printf("%s: CISTERN_SEED=%llu\n", k->name, (unsigned long long)seed);
    (void)fflush(stdout);
    m = (struct model){.random = seed, .heeds_kinds = true, .gives_way = true, .forget_one_in = 10};
    world_init(&w, &want);
    model_init(&m, &w, HEADS_MAX, (uint32_t[]){k->n_stages, k->n_stages});
    copier_init(&copier, &m, programs[1]);
    struct kill_timer kill = {.world = &w};
    require(loop_add_timer(w.loop, on_kill, &kill, &kill.timer) == 0, "no timer");
    model_settle(&m);
    while (n_answers(&m) < operations)
        one_round(&m, &kill);
    (void)printf(
        "opens %llu, grows %llu, truncates %llu, closes %llu, refused %llu, forgotten %llu, "
        "given back %llu, cached cells %llu, deaths %u\n",
        (unsigned long long)m.n_answers[OP_OPEN], (unsigned long long)m.n_answers[OP_GROW],
        (unsigned long long)m.n_answers[OP_TRUNCATE], (unsigned long long)m.n_answers[OP_CLOSE],
        (unsigned long long)m.n_refused, (unsigned long long)m.n_forgotten,
        (unsigned long long)m.n_given_back, (unsigned long long)m.n_cached_cells, w.n_deaths);
    (void)printf("saves %llu, restores %llu, known %llu, tools killed %llu\n",
                 (unsigned long long)copier.n_saves, (unsigned long long)copier.n_restores,
                 (unsigned long long)copier.n_restored, (unsigned long long)copier.n_killed);
    (void)loop_set_timer(kill.timer, 0, 0);
    copier_fini(&copier);
    model_fini(&m);
    world_fini(&w);
}

int main(int argc, char **argv)
{
    if (argc != 3) return 2;
    uint64_t operations = number("CISTERN_POOL_OPERATIONS", 50000);
    static const struct kind kinds[] = {
        {"one stage, when_dry = end",   1, 40 * CHUNK, false},
        {"two stages, when_dry = wait", 2, 40 * CHUNK, true },
        {"two stages, identity layout", 2, 0,          true },
    };
    for (size_t i = 0; i < ARRAY_LEN(kinds); i++)
        run(argv + 1, &kinds[i], operations / ARRAY_LEN(kinds));
    return 0;
}
