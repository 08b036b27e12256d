/* SPDX-License-Identifier: MIT */
/*
 * poold's speed as its clients see it, as CSV: round trips of open, grow and close with one
 * operation on its way and with sixteen (two of each of eight heads); opens while 4,096 cached
 * conversations fill all rows, so that each one plans; bind of a long conversation; and the time
 * from exec to READY with 4,096 rows over 1,000,000 cells. poold_us is the mean from receipt to
 * answer by poold's own counters, the others are round trips.
 *
 * usage: pool_bench POOLD
 */
#include <string.h>

#include "tests/pool/head.h"

enum {
    CELLS = 1 << 20,
    CELLS_OF_CHUNK = 256,
    CONVERSATIONS = 4096,
    CONTEXT_TOKENS = 1 << 18,
    HEADS = 8,
    LONG = 150000,
    TURNS = 2000,
    SAMPLES_MAX = 16384,
};

/* One operation on its way and the conversation that it is about. */
struct client {
    struct head *head;
    uint32_t lane;
    uint64_t number, sent_us;
    bool answered;
    struct answer answer;
};

struct bench {
    struct world world;
    struct head head[HEADS];
    uint32_t n_heads;
    struct client client[2 * HEADS];
    uint32_t n_clients;
    uint32_t next_token;
    uint32_t *tokens;
    uint64_t sample[SAMPLES_MAX];
    uint32_t n_samples;
    uint64_t latency_us, latencies; /* poold's, when the samples began */
};

/* ---- the heads ---- */

static uint32_t no_rows(void *arg, struct head *h, uint32_t ret[LANES_MAX])
{
    (void)arg, (void)h, (void)ret;
    return 0;
}

static void attached(void *arg, struct head *h, const uint32_t *rows, size_t n)
{
    (void)arg, (void)h, (void)rows, (void)n;
}

static void give_back(void *arg, struct head *h, uint32_t row, uint64_t generation)
{
    (void)arg, (void)h, (void)row, (void)generation;
}

static void on_row(void *arg, struct head *h, const Cistern__Envelope *m)
{
    (void)h;
    struct bench *b = arg;
    for (uint32_t i = 0; i < b->n_clients; i++) {
        struct client *c = &b->client[i];
        if (c->number != m->number || c->head != h) continue;
        if (m->body_case == CISTERN__ENVELOPE__BODY_REFUSED) fail("refused: %s", m->refused->text);
        const Cistern__Row *r = m->row;
        require(r->code == CISTERN__CODE__OK, "answered with code %d", r->code);
        c->answer = (struct answer){.row = r->row,
                                    .generation = r->generation,
                                    .version = r->version,
                                    .lease = r->lease,
                                    .base = r->base_cells,
                                    .n_entries = r->n_entries};
        c->answered = true;
        if (b->n_samples < SAMPLES_MAX) b->sample[b->n_samples++] = now_us() - c->sent_us;
    }
}

static bool heads_are_up(void *arg)
{
    const struct bench *b = arg;
    for (uint32_t i = 0; i < b->n_heads; i++)
        if (!head_is_up(&b->head[i]) || b->head[i].life == 0) return false;
    return true;
}

static bool all_answered(void *arg)
{
    const struct bench *b = arg;
    for (uint32_t i = 0; i < b->n_clients; i++)
        if (!b->client[i].answered) return false;
    return true;
}

static void begin(struct bench *b, const char *program, uint32_t n_heads, uint32_t n_clients)
{
    struct world_want want = {.program = program,
                              .n_cells = CELLS,
                              .chunk_cells = CELLS_OF_CHUNK,
                              .n_rows = CONVERSATIONS};
    *b = (struct bench){.n_heads = n_heads, .n_clients = n_clients, .next_token = 1};
    b->tokens = xcalloc(CONTEXT_TOKENS, sizeof(*b->tokens));
    world_init(&b->world, &want);
    for (uint32_t i = 0; i < n_heads; i++) {
        b->head[i] = (struct head){.rows = no_rows,
                                   .attached = attached,
                                   .give_back = give_back,
                                   .row = on_row,
                                   .context = CONTEXT_TOKENS,
                                   .arg = b};
        head_init(&b->head[i], &b->world, i, 1);
    }
    for (uint32_t i = 0; i < n_clients; i++)
        b->client[i] = (struct client){.head = &b->head[i % n_heads], .lane = i / n_heads};
    world_run(&b->world, heads_are_up, b);
}

static void end(struct bench *b)
{
    for (uint32_t i = 0; i < b->n_heads; i++)
        head_fini(&b->head[i]);
    world_fini(&b->world);
    free(b->tokens);
}

/* ---- operations ---- */

static void send(struct client *c, Cistern__Envelope *m)
{
    struct pool_client *to = c->head->stage[0].client;
    m->number = c->number = pool_client_number(to);
    c->answered = false;
    c->sent_us = now_us();
    require(pool_client_send(to, m) == 0, "a message cannot be sent");
}

static void send_open(struct client *c, const uint32_t *tokens, uint32_t n)
{
    Cistern__Open o = CISTERN__OPEN__INIT;
    Cistern__Envelope m = CISTERN__ENVELOPE__INIT;
    o.pipeline = c->head->pipeline;
    o.lane = c->lane;
    o.tokens.data = (uint8_t *)tokens;
    o.tokens.len = n * sizeof(*tokens);
    m.body_case = CISTERN__ENVELOPE__BODY_OPEN;
    m.open = &o;
    send(c, &m);
}

static void send_grow(struct client *c, uint32_t to)
{
    Cistern__Grow g = CISTERN__GROW__INIT;
    Cistern__Envelope m = CISTERN__ENVELOPE__INIT;
    g.row = c->answer.row;
    g.generation = c->answer.generation;
    g.version = c->answer.version;
    g.to_cells = to;
    m.body_case = CISTERN__ENVELOPE__BODY_GROW;
    m.grow = &g;
    send(c, &m);
}

static void send_close(struct client *c, uint32_t keep)
{
    Cistern__Close k = CISTERN__CLOSE__INIT;
    Cistern__Envelope m = CISTERN__ENVELOPE__INIT;
    k.row = c->answer.row;
    k.generation = c->answer.generation;
    k.version = c->answer.version;
    k.keep_cells = keep;
    m.body_case = CISTERN__ENVELOPE__BODY_CLOSE;
    m.close = &k;
    send(c, &m);
}

/* The stage's and the head's words, and the token ids, as if cells [from, n) had been computed. */
static void compute(struct client *c, const uint32_t *tokens, uint32_t from, uint32_t n)
{
    const struct head *h = c->head;
    const uint64_t *table = pool_table(h->control, c->answer.row);
    struct pool_page *page = h->stage[0].page;
    for (uint32_t i = from; i < n; i++)
        h->tokens->cell[(uint64_t)pool_entry_chunk(table[i / CELLS_OF_CHUNK]) * CELLS_OF_CHUNK +
                        i % CELLS_OF_CHUNK] = tokens[i];
    shm_store_u64(&page->word[c->answer.row], pool_word(c->answer.lease, n));
    shm_store_u64(&page->word[page->n_rows + c->answer.row], pool_word(c->answer.lease, n));
}

static void fresh_prompt(struct bench *b, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++)
        b->tokens[i] = b->next_token++ & ~POOL_TOKEN_GENERATED;
}

static void await(struct bench *b) { world_run(&b->world, all_answered, b); }

/* ---- figures ---- */

static int by_size(const void *a, const void *b)
{
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return x < y ? -1 : x > y;
}

static uint64_t latencies(const struct pool_counters *c)
{
    uint64_t n = 0;
    for (size_t i = 0; i < POOL_LATENCIES; i++)
        n += c->latency[i];
    return n;
}

static void start_samples(struct bench *b)
{
    const struct pool_counters *c = &b->head[0].control->counters;
    b->n_samples = 0;
    b->latency_us = c->latency_us;
    b->latencies = latencies(c);
}

static void print(const char *what, uint32_t n_clients, uint64_t *sample, uint32_t n, double poold)
{
    qsort(sample, n, sizeof(*sample), by_size);
    (void)printf("%s,%u,%u,%llu,%llu,%.1f\n", what, n_clients, n, (unsigned long long)sample[n / 2],
                 (unsigned long long)sample[(uint64_t)n * 99 / 100], poold);
    (void)fflush(stdout);
}

static void print_samples(struct bench *b, const char *what)
{
    const struct pool_counters *c = &b->head[0].control->counters;
    uint64_t n = latencies(c) - b->latencies;
    double poold = n ? (double)(c->latency_us - b->latency_us) / (double)n : 0;
    print(what, b->n_clients, b->sample, b->n_samples, poold);
}

/* ---- what is measured ---- */

enum step { OPEN, GROW, CLOSE };

/* Whole lives of short conversations, nothing of which is kept; the time of one kind of step. */
static void turns(struct bench *b, enum step measured, const char *name)
{
    uint64_t kept[SAMPLES_MAX], latency = 0, n_latencies = 0;
    uint32_t n_kept = 0;
    for (uint32_t i = 0; i < TURNS / b->n_clients; i++)
        for (enum step s = OPEN; s <= CLOSE; s++) {
            start_samples(b);
            for (uint32_t k = 0; k < b->n_clients; k++) {
                struct client *c = &b->client[k];
                if (s == OPEN) fresh_prompt(b, 40);
                if (s == OPEN) send_open(c, b->tokens, 40);
                if (s == GROW) send_grow(c, 600);
                if (s == CLOSE) send_close(c, 0);
            }
            await(b);
            if (s != measured) continue;
            memcpy(kept + n_kept, b->sample, b->n_samples * sizeof(kept[0]));
            n_kept += b->n_samples;
            latency += b->head[0].control->counters.latency_us - b->latency_us;
            n_latencies += latencies(&b->head[0].control->counters) - b->latencies;
        }
    print(name, b->n_clients, kept, n_kept,
          n_latencies ? (double)latency / (double)n_latencies : 0);
}

static void open_and_cache(struct bench *b, uint32_t n)
{
    struct client *c = &b->client[0];
    fresh_prompt(b, n);
    send_open(c, b->tokens, n);
    await(b);
    compute(c, b->tokens, 0, n);
    send_close(c, UINT32_MAX);
    await(b);
}

/* All rows hold a cached conversation: an open looks through all of them, and one gives its row. */
static void full(struct bench *b)
{
    for (uint32_t i = 0; i < CONVERSATIONS; i++)
        open_and_cache(b, 200);
    start_samples(b);
    for (uint32_t i = 0; i < 300; i++) {
        fresh_prompt(b, 200);
        send_open(&b->client[0], b->tokens, 200);
        await(b);
        compute(&b->client[0], b->tokens, 0, 200);
        uint32_t n = b->n_samples;
        send_close(&b->client[0], UINT32_MAX);
        await(b);
        b->n_samples = n;
    }
    print_samples(b, "open with 4096 cached");
}

static bool is_back(void *arg)
{
    const struct bench *b = arg;
    return b->world.ready_us != 0 && heads_are_up(arg);
}

static bool is_down(void *arg)
{
    const struct bench *b = arg;
    return !head_is_up(&b->head[0]);
}

static void recovery(struct bench *b)
{
    uint64_t sample[11];
    for (size_t i = 0; i < ARRAY_LEN(sample); i++) {
        world_kill(&b->world);
        world_run(&b->world, is_down, b);
        world_run(&b->world, is_back, b);
        sample[i] = b->world.ready_us - b->world.exec_us;
    }
    print("exec to READY", 0, sample, ARRAY_LEN(sample), 0);
}

/* A long conversation goes on, turn after turn. */
static void bind_long(struct bench *b)
{
    struct client *c = &b->client[0];
    static uint64_t kept[500];
    uint64_t latency = 0;
    open_and_cache(b, LONG);
    for (size_t i = 0; i < ARRAY_LEN(kept); i++) {
        uint32_t n = LONG + (uint32_t)i + 1;
        b->tokens[n - 1] = b->next_token++;
        start_samples(b);
        send_open(c, b->tokens, n);
        await(b);
        require(c->answer.base == n - 1, "%u cells of %u are cached", c->answer.base, n);
        kept[i] = b->sample[0];
        latency += b->head[0].control->counters.latency_us - b->latency_us;
        compute(c, b->tokens, n - 1, n);
        send_close(c, UINT32_MAX);
        await(b);
    }
    print("bind of 150000", 1, kept, ARRAY_LEN(kept), (double)latency / ARRAY_LEN(kept));
}

int main(int argc, char **argv)
{
    static struct bench b;
    if (argc != 2) return 2;
    (void)printf("what,clients,n,p50_us,p99_us,poold_us\n");
    for (uint32_t many = 0; many < 2; many++) {
        begin(&b, argv[1], many ? HEADS : 1, many ? 2 * HEADS : 1);
        turns(&b, OPEN, "open");
        turns(&b, GROW, "grow");
        turns(&b, CLOSE, "close");
        end(&b);
    }
    begin(&b, argv[1], 1, 1);
    bind_long(&b);
    full(&b);
    recovery(&b);
    end(&b);
    return 0;
}
