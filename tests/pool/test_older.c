/* SPDX-License-Identifier: MIT */
/*
 * An older conversation that comes back finds the pool full of younger ones that run: one that was
 * made to give back, or lost its pipeline, or gave way with its prompt half read. It waits, and no
 * younger one takes room meanwhile; so one of them must give back, the youngest, or all wait for
 * each other for good. What must hold is ARCHITECTURE.md's: only an older one takes from a younger,
 * so the oldest always ends.
 *
 * usage: test_pool_older POOLD
 */
#include <string.h>

#include "tests/pool/head.h"

enum {
    ENTRIES = 5,                        /* that a prompt and a growth unit want */
    TOKENS = (ENTRIES - 1) * CHUNK - 4, /* of that prompt */
    CELLS = (3 * ENTRIES + 1) * CHUNK,  /* one chunk is left beside three of them */
    GATEWAY = 77,
};

struct story {
    struct world world;
    struct head head;
    uint32_t n_asked, asked_row; /* to give back */
};

static void on_give_back(void *arg, struct head *h, uint32_t row, uint64_t generation)
{
    (void)h, (void)generation;
    struct story *s = arg;
    s->n_asked++;
    s->asked_row = row;
}

static bool is_up(void *arg)
{
    const struct story *s = arg;
    return head_is_up(&s->head) && s->head.life > 0;
}

static bool is_answered(void *op) { return ((const struct op *)op)->answered; }

static bool is_asked(void *arg) { return ((const struct story *)arg)->n_asked > 0; }

static struct op *open_send(struct story *s, uint32_t lane, uint64_t arrival)
{
    struct op *op = head_op(&s->head, OP_OPEN);
    op->lane = lane;
    op->gateway = GATEWAY;
    op->arrival = arrival;
    op->n_tokens = TOKENS;
    for (uint32_t i = 0; i < TOKENS; i++)
        op->tokens[i] = 1 + lane; /* no two have a beginning in common */
    op_send(op);
    return op;
}

static struct op *row_send(struct story *s, enum op_kind kind, const struct answer *row,
                           uint32_t cells)
{
    struct op *op = head_op(&s->head, kind);
    op->row = row->row;
    op->generation = row->generation;
    op->version = row->version;
    op->cells = cells;
    op_send(op);
    return op;
}

static struct answer answer(struct story *s, struct op *op)
{
    world_run(&s->world, is_answered, op);
    struct answer a = op->answer;
    op->in_use = false;
    return a;
}

static struct answer sound(struct story *s, struct op *op)
{
    struct answer a = answer(s, op);
    require(a.code == CISTERN__CODE__OK, "answered with code %d", a.code);
    return a;
}

/* Three that run; the one in the middle has given back all and comes again, and the youngest, which
 * has grown meanwhile, is to give back. */
struct crowd {
    struct answer oldest, older, young;
    struct op *again;
};

static void leaves_and_comes(struct story *s, struct crowd *c)
{
    (void)sound(s, row_send(s, OP_CLOSE, &c->older, 0));
    c->young = sound(s, row_send(s, OP_GROW, &c->young, (ENTRIES + 2) * CHUNK));
    c->again = open_send(s, 1, c->older.arrival);
    s->n_asked = 0;
    world_run(&s->world, is_asked, s);
    require(s->asked_row == c->young.row, "row %u was asked, not the youngest, %u", s->asked_row,
            c->young.row);
}

static void begin(struct story *s, struct crowd *c)
{
    c->oldest = sound(s, open_send(s, 0, 0));
    c->older = sound(s, open_send(s, 1, 0));
    c->young = sound(s, open_send(s, 2, 0));
    require(c->young.n_entries == ENTRIES, "%u entries", c->young.n_entries);
}

static void the_youngest_gives_back(struct story *s)
{
    struct crowd c;
    begin(s, &c);
    leaves_and_comes(s, &c);
    struct op *grow = row_send(s, OP_GROW, &c.young, (ENTRIES + 3) * CHUNK);
    require(!c.again->answered && !grow->answered, "nobody has got anything");
    (void)sound(s, row_send(s, OP_CLOSE, &c.young, 0));
    require(sound(s, c.again).n_entries == ENTRIES, "the older one has its room");
    require(answer(s, grow).code == CISTERN__CODE__STALE, "the younger one is closed");
    require(s->n_asked == 1, "%u were asked", s->n_asked);
    (void)sound(s, open_send(s, 2, c.young.arrival));
}

static void compute(struct story *s, const struct answer *a, uint32_t token)
{
    struct window *w = head_compose(&s->head);
    w->row = a->row;
    w->lease = a->lease;
    w->to = TOKENS;
    for (uint32_t i = 0; i < ENTRIES; i++)
        w->table[i] = shm_load_u64(pool_table(s->head.control, a->row) + i);
    for (uint32_t i = 0; i < TOKENS; i++)
        w->tokens[i] = token;
    head_execute(&s->head, 1);
}

/* It had ended when it was asked, and goes on with another turn in the same row: that it was asked
 * once is nothing to it. */
static void who_had_ended_is_asked_again(struct story *s)
{
    struct crowd c;
    begin(s, &c);
    compute(s, &c.young, 1 + 2);
    leaves_and_comes(s, &c);
    struct answer turn = c.young;
    (void)sound(s, row_send(s, OP_CLOSE, &c.young, TOKENS));
    c.older = sound(s, c.again);
    c.young = sound(s, open_send(s, 2, 0));
    require(c.young.row == turn.row && c.young.generation == turn.generation, "the same row");
    leaves_and_comes(s, &c);
    (void)sound(s, row_send(s, OP_CLOSE, &c.young, 0));
    (void)sound(s, c.again);
}

static void run(const char *poold, bool waits, void (*tell)(struct story *s))
{
    static struct story s;
    memset(&s, 0, sizeof(s));
    struct world_want want = {.program = poold,
                              .n_cells = CELLS,
                              .chunk_cells = CHUNK,
                              .n_rows = 16,
                              .when_dry_waits = waits};
    world_init(&s.world, &want);
    s.head = (struct head){.give_back = on_give_back, .arg = &s};
    head_init(&s.head, &s.world, 0, 1);
    world_run(&s.world, is_up, &s);
    tell(&s);
    head_fini(&s.head);
    world_fini(&s.world);
}

int main(int argc, char **argv)
{
    require(argc == 2, "usage: test_pool_older POOLD");
    for (int waits = 0; waits < 2; waits++) {
        run(argv[1], waits, the_youngest_gives_back);
        run(argv[1], waits, who_had_ended_is_asked_again);
    }
    return 0;
}
