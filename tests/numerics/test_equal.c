/* SPDX-License-Identifier: MIT */
/*
 * Design section 5: a token row's bits depend on the tokens before it and its position alone. Each
 * row's logits are hashed whole and compared, so one bit that differs anywhere shows. Tiny random
 * models (tests/data/make_tiny.py) cover weight types and shapes; the demo model covers real sizes.
 * Arguments: the folder of the tiny models, or "demo" for the demo model in their place; "short"
 * for fewer combinations, as under sanitizers.
 */
#include <check.h>
#include <string.h>

#include "proto/kv_block.h"
#include "tests/numerics/rig.h"
#include "tests/suite.h"

enum {
    IDS = 1100,     /* over four softmax segments of 256 cells, and over several chunks */
    COUNT_MAX = 19, /* rows at once: more than twice what shares registers in any variant, + 3 */
    OFFSET_MAX = 20,
    TIMEOUT_S = 600,
    CHUNK = 64, /* a small one, so that rows and segments cross many */
};

struct subject {
    const char *file; /* NULL: the demo model */
    enum model_precision precision;
    uint32_t kv;
    uint32_t n_ids, count_max; /* how much of it the time allows */
    uint32_t layers;
};

static const struct subject tinies[] = {
    {"q4_1",  MODEL_INT8,    POOL_KV_F16,  IDS, COUNT_MAX, 4},
    {"q4_0",  MODEL_INT8,    POOL_KV_F16,  IDS, COUNT_MAX, 4},
    {"q8_0",  MODEL_INT8,    POOL_KV_F16,  IDS, COUNT_MAX, 4},
    {"f16",   MODEL_INT8,    POOL_KV_F32,  IDS, COUNT_MAX, 4},
    {"f32",   MODEL_INT8,    POOL_KV_F16,  IDS, COUNT_MAX, 4},
    {"mixed", MODEL_INT8,    POOL_KV_F16,  IDS, COUNT_MAX, 4},
    {"mixed", MODEL_FLOAT32, POOL_KV_F32,  IDS, COUNT_MAX, 4},
    {"q4_1",  MODEL_INT8,    POOL_KV_INT8, IDS, COUNT_MAX, 4},
    {"mixed", MODEL_INT8,    POOL_KV_INT8, IDS, COUNT_MAX, 4}, /* two groups a head */
    {"f16",   MODEL_FLOAT32, POOL_KV_K8V4, IDS, COUNT_MAX, 4},
    {"q8_0",  MODEL_INT8,    POOL_KV_Q4,   IDS, COUNT_MAX, 4},
};
static const struct subject demo[] = {
    {NULL, MODEL_INT8, POOL_KV_F16,  300, 4, 30},
    {NULL, MODEL_INT8, POOL_KV_INT8, 300, 4, 30},
};

/* check's own assertion writes to a file each time: too slow for one a logit. */
#define REQUIRE(what, ...)                                                                         \
    do {                                                                                           \
        if (!(what)) ck_abort_msg(__VA_ARGS__);                                                    \
    } while (0)

static const char *folder;
static bool is_short;
static bool is_full; /* on a device, and with CHECK=full */
static struct subject subjects[ARRAY_LEN(tinies) + ARRAY_LEN(demo)];
static int n_subjects;
static uint32_t ids[IDS];
static uint32_t block_cells;   /* of the subject's blocks */
static uint64_t expected[IDS]; /* the hash of each row of the whole prompt, read at once */

struct hashes {
    uint64_t at[IDS];
    uint32_t n;
};

static void add_hash(void *arg, uint32_t lane, uint32_t row, const float *logits, uint32_t n)
{
    struct hashes *h = arg;
    (void)lane;
    (void)row;
    for (uint32_t i = 0; i < n; i++)
        REQUIRE(logits[i] == logits[i], "a logit is not a number");
    h->at[h->n++] = rig_hash(logits, n);
}

static struct rig_want want_of(const struct subject *s)
{
    static char path[4096];
    (void)snprintf(path, sizeof(path), "%s/tiny_%s.gguf", folder, s->file ? s->file : "");
    return (struct rig_want){
        .path = s->file ? path : NULL,
        .precision = s->precision,
        .kv = s->kv,
        .context_tokens = 2048,
        .chunk_cells = CHUNK,
        .max_rows = IDS,
        .n_threads = 1,
    };
}

static void fill_ids(const struct rig *r, uint32_t seed)
{
    for (uint32_t i = 0; i < IDS; i++)
        ids[i] = (seed + i * 7919 + i * i * 31) % r->facts.n_vocab;
}

/* Reads tokens [from, from + n) of ids at the chat's end in one piece and adds their hashes. */
static void read_rows(struct rig *r, struct rig_chat *c, uint32_t n, struct hashes *h)
{
    if (n > 0) (void)rig_read(r, c, ids + c->n_cells, n, n, WINDOW_ALL, add_hash, h);
}

static void check_rows(const struct hashes *h, uint32_t from, const char *what)
{
    for (uint32_t i = 0; i < h->n; i++)
        REQUIRE(h->at[i] == expected[from + i], "%s: row %u differs", what, from + i);
}

static void expect_whole(const struct subject *s)
{
    struct rig_want want = want_of(s);
    struct rig *r = rig_new(&want);
    struct rig_chat *c = rig_chat_new(r);
    static struct hashes h;
    h.n = 0;
    fill_ids(r, 1);
    read_rows(r, c, s->n_ids, &h);
    memcpy(expected, h.at, sizeof(expected));
    block_cells = r->facts.block_cells;
    for (uint32_t i = 1; i < s->n_ids; i++)
        REQUIRE(expected[i] != expected[i - 1], "row %u: the logits don't change", i);
    rig_chat_free(c);
    rig_free(r);
}

/* The whole prompt in pieces of changing length, some of one row, on a rig that differs in
 * something. */
static void check_pieces(const struct rig_want *want, const struct subject *s, const char *what)
{
    struct rig *r = rig_new(want);
    struct rig_chat *c = rig_chat_new(r);
    static struct hashes h;
    h.n = 0;
    rig_fill(r, 0xff);
    for (uint32_t i = 0; c->n_cells < s->n_ids; i++) {
        uint32_t n = i % 3 == 0 ? 1 : 1 + i * i * 13 % 97;
        read_rows(r, c, min_u32(n, s->n_ids - c->n_cells), &h);
    }
    check_rows(&h, 0, what);
    rig_chat_free(c);
    rig_free(r);
}

/* Between the offsets that are tried with one number of rows. Unless is_full, the next number has
 * the next ones. */
static uint32_t offset_step(const struct subject *s)
{
    if (is_short) return 7;
    if (!s->file) return 10;
    return is_full ? 1 : 5;
}

START_TEST(any_number_of_rows_at_any_offset)
{
    const struct subject *s = &subjects[_i];
    static const char *const variants[] = {"avx512", "avx2", "plain", "cuda"};
    expect_whole(s);
    for (size_t v = 0; v < ARRAY_LEN(variants); v++) {
        if (!rig_has_variant(variants[v])) continue;
        struct rig_want want = want_of(s);
        want.variant = variants[v];
        struct rig *r = rig_new(&want);
        uint32_t step = offset_step(s);
        for (uint32_t n = 1; n <= s->count_max; n += is_short ? 3 : 1)
            for (uint32_t offset = is_full ? 0 : (n - 1) % step; offset <= OFFSET_MAX;
                 offset += step) {
                struct rig_chat *c = rig_chat_new(r);
                static struct hashes h;
                h.n = 0;
                read_rows(r, c, offset, &h);
                read_rows(r, c, n, &h);
                check_rows(&h, 0, variants[v]);
                rig_chat_free(c);
                r->next_chunk = 1;
            }
        rig_free(r);
    }
}
END_TEST

START_TEST(variants_and_pieces)
{
    const struct subject *s = &subjects[_i];
    static const char *const variants[] = {"avx512", "avx2", "plain", "cuda"};
    expect_whole(s);
    for (size_t v = 0; v < ARRAY_LEN(variants); v++) {
        struct rig_want want = want_of(s);
        want.variant = variants[v];
        if (rig_has_variant(variants[v])) check_pieces(&want, s, variants[v]);
    }
}
END_TEST

START_TEST(threads_and_stages)
{
    const struct subject *s = &subjects[_i];
    expect_whole(s);
    for (uint32_t n = 1; n <= 3; n++) {
        struct rig_want want = want_of(s);
        want.n_threads = n;
        want.no_spin = n == 3;
        check_pieces(&want, s, "threads");
    }
    for (uint32_t n = 2; n <= RIG_STAGES_MAX; n += 2) {
        struct rig_want want = want_of(s);
        want.n_stages = n;
        want.n_threads = 1;
        check_pieces(&want, s, "stages");
    }
}
END_TEST

START_TEST(chunks_of_any_size)
{
    const struct subject *s = &subjects[_i];
    expect_whole(s);
    for (uint32_t chunk = 32; chunk <= 512; chunk *= 4) {
        struct rig_want want = want_of(s);
        want.chunk_cells = chunk;
        if (chunk >= block_cells) check_pieces(&want, s, "chunks");
    }
}
END_TEST

/* Lanes that join one after the other, one of them always with a piece of a prompt, the others with
 * a row each, all reading the same ids: every row must be what it is alone. */
static void crowd_window(struct rig *r, struct rig_chat **c, uint32_t n_lanes, uint32_t n_ids,
                         uint32_t step, struct hashes *h)
{
    struct window_lane l[RIG_LANES_MAX];
    uint32_t tokens[IDS] = {0}, at[RIG_LANES_MAX], n = 0, used = 0;
    for (uint32_t i = 0; i < n_lanes; i++) {
        uint32_t rows = i == step % n_lanes ? 1 + step * 7 % 40 : 1;
        rows = min_u32(rows, n_ids - c[i]->n_cells);
        if (rows == 0) continue;
        at[n] = c[i]->n_cells;
        memcpy(tokens + used, ids + at[n], rows * sizeof(*ids));
        used += rows;
        l[n++] = rig_lane(r, c[i], rows, WINDOW_ALL);
    }
    h->n = 0;
    rig_run(r, l, n, tokens, add_hash, h);
    for (uint32_t i = 0, k = 0; i < n; i++)
        for (uint32_t j = 0; j < l[i].n_rows; j++, k++)
            REQUIRE(h->at[k] == expected[at[i] + j], "step %u: row %u of lane %u differs", step,
                    at[i] + j, i);
}

START_TEST(crowd_equals_alone)
{
    const struct subject *s = &subjects[_i];
    struct rig_want want = want_of(s);
    static struct hashes h;
    struct rig_chat *c[RIG_LANES_MAX];
    expect_whole(s);
    want.n_threads = 2;
    struct rig *r = rig_new(&want);
    rig_fill(r, 0xff);
    for (uint32_t i = 0; i < RIG_LANES_MAX; i++)
        c[i] = rig_chat_new(r);
    for (uint32_t step = 0; step < (s->file ? 60 : 16); step++)
        crowd_window(r, c, min_u32(1 + step / 2, RIG_LANES_MAX), s->n_ids, step, &h);
    for (uint32_t i = 0; i < RIG_LANES_MAX; i++)
        rig_chat_free(c[i]);
    rig_free(r);
}
END_TEST

/* ---- long conversations ---- */

enum { LONG_CELLS = 40000, LONG_LANES = 3, LONG_STEPS = 3, LONG_ROWS = 100 };

/* Of conversations at these lengths, one step: a row each, but in the second step, when the second
 * one has a piece of a prompt. Cells that nobody computed all hold the same small values. */
static const uint32_t long_at[LONG_LANES] = {40, LONG_CELLS, LONG_CELLS - 10};

static uint32_t long_rows(uint32_t lane, uint32_t step)
{
    return lane == 1 && step == 1 ? LONG_ROWS : 1;
}

static void long_step(struct rig *r, struct rig_chat **c, uint32_t first, uint32_t n, uint32_t step,
                      struct hashes *h)
{
    struct window_lane l[LONG_LANES];
    uint32_t tokens[LONG_LANES * LONG_ROWS], used = 0;
    for (uint32_t i = 0; i < n; i++) {
        uint32_t rows = long_rows(first + i, step);
        memcpy(tokens + used, ids + step * LONG_ROWS, rows * sizeof(*ids));
        used += rows;
        l[i] = rig_lane(r, c[first + i], rows, WINDOW_ALL);
    }
    rig_run(r, l, n, tokens, add_hash, h);
}

static void long_chats(struct rig *r, struct rig_chat **c)
{
    for (uint32_t i = 0; i < LONG_LANES; i++) {
        c[i] = rig_chat_new(r);
        rig_reserve(r, c[i], long_at[i] + 2 * LONG_ROWS);
        c[i]->n_cells = long_at[i];
    }
}

START_TEST(long_conversations_do_not_disturb_each_other)
{
    const uint32_t per_step[LONG_STEPS] = {LONG_LANES, LONG_LANES - 1 + LONG_ROWS, LONG_LANES};
    struct rig_want want = want_of(&subjects[_i]);
    want.context_tokens = LONG_CELLS + 4 * LONG_ROWS;
    want.chunk_cells = 256;
    want.max_rows = LONG_LANES * LONG_ROWS;
    want.max_lanes = LONG_LANES;
    want.n_chunks = 2 * LONG_LANES * (want.context_tokens / want.chunk_cells + 1);
    struct rig *r = rig_new(&want);
    struct rig_chat *c[LONG_LANES], *alone[LONG_LANES];
    static struct hashes together, one;
    rig_fill(r, 0x2c);
    fill_ids(r, 3);
    long_chats(r, c);
    long_chats(r, alone);
    for (uint32_t step = 0; step < LONG_STEPS; step++) {
        together.n = one.n = 0;
        long_step(r, c, 0, LONG_LANES, step, &together);
        for (uint32_t i = 0; i < LONG_LANES; i++)
            long_step(r, alone, i, 1, step, &one);
        ck_assert_uint_eq(together.n, per_step[step]);
        REQUIRE(together.n == one.n && memcmp(together.at, one.at, one.n * sizeof(*one.at)) == 0,
                "step %u: rows differ from those of each alone", step);
    }
    for (uint32_t i = 0; i < LONG_LANES; i++) {
        rig_chat_free(c[i]);
        rig_chat_free(alone[i]);
    }
    rig_free(r);
}
END_TEST

static uint8_t *chunk_at(struct rig *r, uint32_t stage, uint32_t run, uint32_t chunk, size_t *bytes)
{
    struct pool_arena *a = r->arena[stage];
    *bytes = a->chunk_cells / a->block_cells * a->run[run].block_bytes;
    return (uint8_t *)a + a->run[run].off + chunk * *bytes;
}

/* The row at position `at`, read again. */
static uint64_t row_again(struct rig *r, struct rig_chat *c, uint32_t at)
{
    struct hashes h = {.n = 0};
    c->n_cells = at;
    read_rows(r, c, 1, &h);
    return h.at[0];
}

/* Turns the signs of one cell's values in the first head of a section (of codes, their highest
 * bits): a single one can vanish in the rounding to int8 that follows. Twice is as before. */
static void turn_signs(const struct rig *r, uint8_t *block, const struct kv_section *s,
                       uint32_t bits, uint32_t cell)
{
    uint32_t value = bits > 8 ? bits / 8 : 1, lines = s->lines / r->facts.n_kv_heads;
    for (uint32_t l = 0; l < lines; l++) {
        size_t unit = (size_t)l * r->facts.block_cells + cell;
        uint8_t *at = block + s->off + unit * s->unit_bytes;
        for (uint32_t i = value - 1; i < s->unit_bytes; i += value)
            at[i] ^= bits == 4 ? 0x88 : 0x80;
    }
}

/* A change to one cell of K, of V, of either's scales shows. */
static void check_cell_is_read(struct rig *r, struct rig_chat *c, uint8_t *block, uint32_t cell,
                               uint32_t at)
{
    struct kv_block b = kv_block_of(r->want.kv, r->facts.n_kv_heads, r->facts.head_dim,
                                    r->facts.block_cells, rig_device() ? KV_BY_CELL : KV_BY_DIM);
    ck_assert_uint_eq(b.bytes, r->facts.block_bytes);
    const struct {
        const struct kv_section *section;
        uint32_t bits;
    } parts[] = {
        {&b.k,       b.k_bits},
        {&b.v,       b.v_bits},
        {&b.k_scale, 16      },
        {&b.v_scale, 16      }
    };
    for (size_t i = 0; i < ARRAY_LEN(parts); i++) {
        if (parts[i].section->lines == 0) continue;
        turn_signs(r, block, parts[i].section, parts[i].bits, cell);
        REQUIRE(row_again(r, c, at) != expected[at], "part %zu of a block is not read", i);
        turn_signs(r, block, parts[i].section, parts[i].bits, cell);
        ck_assert_uint_eq(row_again(r, c, at), expected[at]);
    }
}

START_TEST(kv_is_read_from_the_arena)
{
    enum { AT = 150, CELL = 70 }; /* in the third of the chunks of 64; in the second */
    const struct subject *s = &subjects[_i];
    struct rig_want want = want_of(s);
    struct hashes h = {.n = 0};
    size_t bytes = 0;
    want.no_resident = true; /* bytes are changed behind the backend's back */
    expect_whole(s);
    struct rig *r = rig_new(&want);
    struct rig_chat *c = rig_chat_new(r);
    read_rows(r, c, AT + 1, &h);
    ck_assert_uint_eq(row_again(r, c, AT), expected[AT]);

    /* The second chunk's bytes move and its entry with them. */
    uint32_t old = pool_entry_chunk(c->table[1]), moved = r->next_chunk++;
    for (uint32_t run = 0; run < s->layers; run++) {
        const uint8_t *from = chunk_at(r, 0, run, old, &bytes);
        memcpy(chunk_at(r, 0, run, moved, &bytes), from, bytes);
        memset(chunk_at(r, 0, run, old, &bytes), 0xff, bytes);
    }
    c->table[1] = pool_entry(moved, 2);
    ck_assert_uint_eq(row_again(r, c, AT), expected[AT]);

    /* Only the cells that count are copied, by the model, and read in their new place. */
    uint32_t third = pool_entry_chunk(c->table[2]), copied = r->next_chunk++;
    for (uint32_t run = 0; run < s->layers; run++)
        memset(chunk_at(r, 0, run, copied, &bytes), 0xff, bytes);
    model_copy_cells(r->stage[0], third, copied, AT - 2 * CHUNK);
    c->table[2] = pool_entry(copied, 1);
    ck_assert_uint_eq(row_again(r, c, AT), expected[AT]);

    uint32_t B = r->facts.block_cells;
    uint8_t *chunk = chunk_at(r, 0, 1, moved, &bytes);
    check_cell_is_read(r, c, chunk + (CELL - CHUNK) / B * r->facts.block_bytes, CELL % B, AT);
    rig_chat_free(c);
    rig_free(r);
}
END_TEST

/* Of a device: copies of all chunks in its memory, of a few that take each other's places, of none.
 */
START_TEST(residency_changes_nothing)
{
    const struct subject *s = &subjects[_i];
    expect_whole(s);
    for (uint32_t chunks = 0; chunks <= 4; chunks += 2) {
        struct rig_want want = want_of(s);
        want.no_resident = chunks == 0;
        want.kv_resident = (uint64_t)chunks * CHUNK;
        check_pieces(&want, s, "residency");
    }
}
END_TEST

START_TEST(rows_past_the_table_go_to_the_trash_chunk)
{
    const struct subject *s = &subjects[_i];
    struct rig_want want = want_of(s);
    struct hashes h = {.n = 0};
    size_t bytes = 0;
    expect_whole(s);
    struct rig *r = rig_new(&want);
    struct rig_chat *c = rig_chat_new(r), *other = rig_chat_new(r);
    read_rows(r, other, CHUNK, &h);
    struct window_lane l = rig_lane(r, c, CHUNK, WINDOW_ALL);
    h.n = 0;
    l.n_rows = CHUNK + 40; /* reserved: one chunk */
    l.want = WINDOW_NONE;
    rig_run(r, &l, 1, ids, NULL, NULL);
    l.table = (const uint64_t[]){pool_entry(UINT32_MAX, 1)}; /* an entry from outside */
    rig_run(r, &l, 1, ids, NULL, NULL);
    c->n_cells = CHUNK - 1;
    read_rows(r, c, 1, &h);
    check_rows(&h, CHUNK - 1, "reserved cells");
    ck_assert_uint_eq(row_again(r, other, CHUNK - 1), expected[CHUNK - 1]);
    const uint8_t *next = chunk_at(r, 0, 0, r->next_chunk, &bytes);
    for (size_t i = 0; i < bytes; i++)
        REQUIRE(next[i] == 0, "a chunk that nobody owns was written");
    rig_chat_free(other);
    rig_chat_free(c);
    rig_free(r);
}
END_TEST

static void add_tests(TCase *t)
{
    tcase_add_loop_test(t, any_number_of_rows_at_any_offset, 0, n_subjects);
    tcase_add_loop_test(t, variants_and_pieces, 0, n_subjects);
    tcase_add_loop_test(t, threads_and_stages, 0, n_subjects);
    tcase_add_loop_test(t, chunks_of_any_size, 0, n_subjects);
    tcase_add_loop_test(t, crowd_equals_alone, 0, n_subjects);
    tcase_add_loop_test(t, long_conversations_do_not_disturb_each_other, 0,
                        min_u32(n_subjects, ARRAY_LEN(tinies)));
    tcase_add_loop_test(t, kv_is_read_from_the_arena, 0, n_subjects);
    if (rig_device()) tcase_add_loop_test(t, residency_changes_nothing, 0, n_subjects);
    tcase_add_loop_test(t, rows_past_the_table_go_to_the_trash_chunk, 0, n_subjects);
}

/* Those whose format of K and V the device has. What an f16 subject covers at length, those in
 * codes cover in a shorter form, unless is_full. */
static void choose(const struct subject *from, size_t n)
{
    enum { SHORT_IDS = 400, SHORT_DEMO_IDS = 160, SHORT_COUNT = 6 };
    const char *check = getenv("CHECK");
    is_full = rig_device() || (check && strcmp(check, "full") == 0);
    for (size_t i = 0; i < n; i++) {
        if (!rig_has_kv(from[i].kv)) continue;
        struct subject *s = &subjects[n_subjects++];
        *s = from[i];
        if (is_full || kv_bits(s->kv, 0) > 8) continue;
        s->n_ids = min_u32(s->n_ids, s->file ? SHORT_IDS : SHORT_DEMO_IDS);
        s->count_max = min_u32(s->count_max / 2, SHORT_COUNT);
    }
}

int main(int argc, char **argv)
{
    folder = argc > 1 ? argv[1] : ".";
    is_short = argc > 2;
    if (rig_device_missing()) return 77;
    bool is_demo = strcmp(folder, "demo") == 0;
    choose(is_demo ? demo : tinies, is_demo ? ARRAY_LEN(demo) : ARRAY_LEN(tinies));
    TCase *t = tcase_create("rows");
    tcase_set_timeout(t, TIMEOUT_S);
    add_tests(t);
    return suite_run_cases("equal", &t, 1, rig_device() != NULL);
}
