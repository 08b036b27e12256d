/* SPDX-License-Identifier: MIT */
/*
 * poold's speed as its clients see it, as CSV: round trips of open, grow and close with one
 * operation on its way and with sixteen (two of each of eight heads); opens while 4,096 cached
 * conversations fill all rows, so that each one plans; bind of a long conversation; and the time
 * from exec to READY with 4,096 rows over 1,000,000 cells. poold_us and, of one at a time,
 * poold_p50_us are the mean and the median from receipt to answer by poold's own counters, the
 * others are round trips.
 *
 * usage: pool_bench POOLD
 */
#include <sched.h>
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
    BINDS = 500,
    RESTARTS = 11,
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
    uint64_t sample[SAMPLES_MAX], poold[SAMPLES_MAX]; /* poold: with one client only */
    uint32_t n_samples;
    uint64_t latency_us, latencies; /* poold's, when the samples began */
    uint64_t before_us, before;     /* and when the last operation was sent */
};

/* ---- the heads ---- */

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
        b->head[i] = (struct head){.row = on_row, .context = CONTEXT_TOKENS, .arg = b};
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

static uint64_t latencies(const struct pool_counters *c)
{
    uint64_t n = 0;
    for (size_t i = 0; i < POOL_LATENCIES; i++)
        n += c->latency[i];
    return n;
}

static void send(struct client *c, Cistern__Envelope *m)
{
    struct bench *b = c->head->arg;
    b->before_us = c->head->control->counters.latency_us;
    b->before = latencies(&c->head->control->counters);
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

/* ---- figures ---- */

static int by_size(const void *a, const void *b)
{
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return x < y ? -1 : x > y;
}

/* poold counts an operation when its answer is out: the last one's count is waited for. */
static void await(struct bench *b)
{
    const struct pool_counters *c = &b->head[0].control->counters;
    world_run(&b->world, all_answered, b);
    if (b->n_clients > 1) return;
    while (latencies(c) == b->before)
        (void)sched_yield();
    if (b->n_samples) b->poold[b->n_samples - 1] = c->latency_us - b->before_us;
}

static void start_samples(struct bench *b)
{
    const struct pool_counters *c = &b->head[0].control->counters;
    b->n_samples = 0;
    b->latency_us = c->latency_us;
    b->latencies = latencies(c);
}

struct figures {
    uint64_t sample[SAMPLES_MAX], poold[SAMPLES_MAX];
    uint32_t n;
    double poold_mean;
};

static void print(const char *what, uint32_t n_clients, struct figures *f)
{
    char median[24] = "";
    qsort(f->sample, f->n, sizeof(*f->sample), by_size);
    qsort(f->poold, f->n, sizeof(*f->poold), by_size);
    if (n_clients == 1)
        (void)snprintf(median, sizeof(median), "%llu", (unsigned long long)f->poold[f->n / 2]);
    (void)printf("%s,%u,%u,%llu,%llu,%.1f,%s\n", what, n_clients, f->n,
                 (unsigned long long)f->sample[f->n / 2],
                 (unsigned long long)f->sample[(uint64_t)f->n * 99 / 100], f->poold_mean, median);
    (void)fflush(stdout);
}

static void keep(struct figures *f, const struct bench *b)
{
    memcpy(f->sample + f->n, b->sample, b->n_samples * sizeof(f->sample[0]));
    memcpy(f->poold + f->n, b->poold, b->n_samples * sizeof(f->poold[0]));
    f->n += b->n_samples;
}

/* ---- what is measured ---- */

enum step { OPEN, GROW, CLOSE };

/* Whole lives of short conversations, nothing of which is kept; the time of one kind of step. */
static void turns(struct bench *b, enum step measured, const char *name)
{
    static struct figures f;
    uint64_t latency = 0, n_latencies = 0;
    f.n = 0;
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
            keep(&f, b);
            latency += b->head[0].control->counters.latency_us - b->latency_us;
            n_latencies += latencies(&b->head[0].control->counters) - b->latencies;
        }
    f.poold_mean = n_latencies ? (double)latency / (double)n_latencies : 0;
    print(name, b->n_clients, &f);
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

static double mean(const uint64_t *sample, uint32_t n)
{
    double sum = 0;
    for (uint32_t i = 0; i < n; i++)
        sum += (double)sample[i];
    return sum / n;
}

/* All rows hold a cached conversation: an open looks through all of them, and one gives its row. */
static void full(struct bench *b)
{
    static struct figures f;
    for (uint32_t i = 0; i < CONVERSATIONS; i++)
        open_and_cache(b, 200);
    for (uint32_t i = 0; i < 300; i++) {
        start_samples(b);
        fresh_prompt(b, 200);
        send_open(&b->client[0], b->tokens, 200);
        await(b);
        keep(&f, b);
        compute(&b->client[0], b->tokens, 0, 200);
        send_close(&b->client[0], UINT32_MAX);
        await(b);
    }
    f.poold_mean = mean(f.poold, f.n);
    print("open with 4096 cached", 1, &f);
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
    static struct figures f;
    for (f.n = 0; f.n < RESTARTS; f.n++) {
        world_kill(&b->world);
        world_run(&b->world, is_down, b);
        world_run(&b->world, is_back, b);
        f.sample[f.n] = b->world.ready_us - b->world.exec_us;
    }
    print("exec to READY", 0, &f);
}

/* A long conversation goes on, turn after turn. */
static void bind_long(struct bench *b)
{
    struct client *c = &b->client[0];
    static struct figures f;
    open_and_cache(b, LONG);
    for (uint32_t i = 0; i < BINDS; i++) {
        uint32_t n = LONG + i + 1;
        b->tokens[n - 1] = b->next_token++;
        start_samples(b);
        send_open(c, b->tokens, n);
        await(b);
        require(c->answer.base == n - 1, "%u cells of %u are cached", c->answer.base, n);
        keep(&f, b);
        compute(c, b->tokens, n - 1, n);
        send_close(c, UINT32_MAX);
        await(b);
    }
    f.poold_mean = mean(f.poold, f.n);
    print("bind of 150000", 1, &f);
}

int main(int argc, char **argv)
{
    static struct bench b;
    if (argc != 2) return 2;
    (void)printf("what,clients,n,p50_us,p99_us,poold_us,poold_p50_us\n");
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
