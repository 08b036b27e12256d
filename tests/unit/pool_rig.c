/* SPDX-License-Identifier: MIT */
/* See pool_rig.h. Called by test_pool.c and test_pool_full.c. */
#include "tests/unit/pool_rig.h"

#include <check.h>
#include <string.h>

#include "poold/store.h"

static char dir[64];
struct pool *pool;
static struct mapped_file tokens_file, page_file;
uint32_t *cells;
struct pool_page *page;
uint64_t op_number;

static void open_pool(struct segment *seg)
{
    struct why why = {0};
    bool fresh;
    ck_assert_int_eq(store_tokens(dir, seg->h, &why, &tokens_file, &fresh), 0);
    ck_assert_int_eq(store_page(dir, seg->h, 0, 0, &why, &page_file, &fresh), 0);
    page = page_file.at;
    cells = ((struct pool_tokens *)tokens_file.at)->cell;
    pool = pool_new(seg, cells);
    pool->page[0][0] = page;
    pool->manned[0][0] = true;
}

static void setup(uint32_t context, uint32_t lane_chunks)
{
    struct why why = {0};
    strcpy(dir, "/dev/shm/test_pool_XXXXXX");
    ck_assert_ptr_nonnull(mkdtemp(dir));
    struct segment_want want = {
        .n_rows = ROWS,
        .n_chunks = CHUNKS,
        .chunk_cells = C,
        .grow_chunks = 1,
        .n_stages = 1,
        .lane_chunks = lane_chunks,
        .pipeline_lanes = lane_chunks ? CHUNKS / lane_chunks : 0,
        .geometry = {.n_layers = 1, .block_cells = B, .context_tokens = context, .block_bytes = 64},
    };
    struct segment *seg;
    ck_assert_int_eq(segment_make(dir, &want, &why, &seg), 0);
    open_pool(seg);
}

void pool_rig_setup(void) { setup(CONTEXT, 0); }
void pool_rig_setup_ranges(void) { setup(CHUNKS / 3 * C, CHUNKS / 3); }

static void close_pool(void)
{
    pool_free(pool);
    mapped_file_fini(&tokens_file);
    mapped_file_fini(&page_file);
}

void pool_rig_teardown(void)
{
    close_pool();
    char command[100];
    (void)snprintf(command, sizeof(command), "rm -r %s", dir);
    ck_assert_int_eq(system(command), 0);
}

void restart(void)
{
    struct why why = {0};
    close_pool();
    struct segment *seg;
    ck_assert_int_eq(segment_open(dir, &why, &seg), 0);
    open_pool(seg);
}

const struct pool_body *body(uint32_t row) { return segment_body(pool->seg, row); }

struct row_seen seen(uint32_t row)
{
    return (struct row_seen){row, body(row)->generation, pool->seg->rows[row].version};
}

struct op_id next_op(void) { return (struct op_id){ME, ++op_number}; }

int open_prompt(uint32_t first, uint32_t n, uint64_t salt, uint32_t *ret_row)
{
    return open_on_lane(0, first, n, salt, ret_row);
}

int open_on_lane(uint32_t lane, uint32_t first, uint32_t n, uint64_t salt, uint32_t *ret_row)
{
    uint32_t tokens[CONTEXT];
    for (uint32_t i = 0; i < n; i++)
        tokens[i] = first + i;
    struct pool_open ask = {.op = next_op(),
                            .lane = lane,
                            .tokens = tokens,
                            .n_tokens = n,
                            .salt = salt,
                            .arrival = pool_next_arrival(pool),
                            .may_wait = true};
    return pool_open_row(pool, &ask, ret_row);
}

void compute(uint32_t row, uint32_t first, uint32_t n)
{
    const uint64_t *table = segment_table(pool->seg, row);
    for (uint32_t i = 0; i < n; i++)
        cells[pool_entry_chunk(table[i / C]) * C + i % C] = first + i;
    page->word[row] = pool_word(body(row)->lease, n);
    page->word[page->n_rows + row] = pool_word(body(row)->lease, n);
}

void mark_generated(uint32_t row, uint32_t from, uint32_t to)
{
    const uint64_t *table = segment_table(pool->seg, row);
    for (uint32_t i = from; i < to; i++)
        cells[pool_entry_chunk(table[i / C]) * C + i % C] |= POOL_TOKEN_GENERATED;
}

void close_row(uint32_t row, uint32_t keep)
{
    struct pool_close ask = {.op = next_op(), .seen = seen(row), .keep = keep};
    ck_assert_int_eq(pool_close_row(pool, &ask), 0);
    ck_assert_uint_eq(pool_drain(pool), 1);
}

uint32_t cached(uint32_t first, uint32_t n)
{
    uint32_t row;
    ck_assert_int_eq(open_prompt(first, n, 0, &row), 0);
    compute(row, first, n);
    close_row(row, UINT32_MAX);
    ck_assert_uint_eq(body(row)->state, POOL_IDLE);
    return row;
}

void check_invariants(void)
{
    uint32_t refs[CHUNKS + 1] = {0}, copies[CHUNKS + 1] = {0}, n_free = 0;
    for (uint32_t row = 0; row < ROWS; row++) {
        const struct pool_body *b = body(row);
        const uint64_t *table = segment_table(pool->seg, row);
        uint32_t n = b->state == POOL_FREE ? 0 : b->n_entries;
        ck_assert_uint_le(b->base, n * C);
        for (uint32_t i = 0; i < n; i++) {
            uint32_t chunk = pool_entry_chunk(table[i]);
            ck_assert_uint_gt(chunk, 0);
            ck_assert_uint_le(chunk, CHUNKS);
            refs[chunk]++;
        }
        for (uint32_t i = n; i < pool->seg->h->table_entries; i++)
            ck_assert_uint_eq(table[i], 0);
        if (b->state == POOL_IDLE) ck_assert_uint_eq(n, (b->base + C - 1) / C);
        if (b->state == POOL_FREE) continue;
        ck_assert_uint_eq(b->copy_entry == 0, b->copy_cells == 0);
        if (b->copy_entry) ck_assert_uint_eq(b->base % C, 0);
        if (b->copy_entry) copies[pool_entry_chunk(b->copy_entry)]++;
    }
    for (uint32_t chunk = 1; chunk <= CHUNKS; chunk++) {
        ck_assert_uint_eq(refs[chunk] + copies[chunk], pool->refs[chunk]);
        n_free += pool->refs[chunk] == 0;
    }
    ck_assert_uint_eq(n_free, pool->n_free);
    for (uint32_t row = 0; row < ROWS; row++) { /* who will write has the chunk alone */
        const struct pool_body *b = body(row);
        for (uint32_t i = pool_valid_cells(pool, row) / C;
             b->state == POOL_ACTIVE && i < b->n_entries; i++)
            ck_assert_uint_eq(refs[pool_entry_chunk(segment_table(pool->seg, row)[i])], 1);
    }
    struct pool_counts counts;
    pool_count(pool, &counts);
    ck_assert_uint_eq(counts.free + counts.active + counts.waiting + counts.closing + counts.idle +
                          counts.shared,
                      CHUNKS);
}
