/* SPDX-License-Identifier: MIT */
/*
 * The pool as its readers count it, over a control segment that this file lays out: each chunk
 * once, shared when two rows hold it, held when its pipeline loses a process; all of them sum to
 * the pool. The expected numbers are counted by hand.
 */
#include <check.h>
#include <string.h>

#include "common/pool_view.h"
#include "tests/suite.h"

enum { ROWS = 4, ENTRIES = 3, CHUNKS = 6, CELLS = 16 };

static struct {
    struct pool_header h;
    struct pool_process process[POOL_PROCESSES_MAX];
    struct pool_row row[ROWS];
    uint64_t table[ROWS][ENTRIES];
} segment;

static void lay_out(void)
{
    memset(&segment, 0, sizeof(segment));
    segment.h.processes_off = offsetof(__typeof__(segment), process);
    segment.h.rows_off = offsetof(__typeof__(segment), row);
    segment.h.tables_off = offsetof(__typeof__(segment), table);
    segment.h.n_rows = ROWS;
    segment.h.table_entries = ENTRIES;
    segment.h.n_chunks = CHUNKS;
    segment.h.chunk_cells = CELLS;
    segment.h.n_stages = 1;
}

static void put_row(uint32_t row, uint32_t state, uint32_t n, const uint32_t *chunks)
{
    struct pool_row *r = &segment.row[row];
    r->version = 1; /* the second body holds */
    r->body[0] = (struct pool_body){.state = POOL_ACTIVE, .n_entries = ENTRIES};
    r->body[1] = (struct pool_body){.state = state, .n_entries = n};
    for (uint32_t i = 0; i < n && i < ENTRIES; i++)
        segment.table[row][i] = pool_entry(chunks[i], 3);
}

/* want: chunks by state; those not named there are 0. */
static void assert_chunks(const uint64_t want[CELLS_STATES])
{
    uint64_t got[CELLS_STATES], sum = 0;
    pool_view_cells(&segment.h, got);
    for (size_t i = 0; i < CELLS_STATES; i++) {
        ck_assert_msg(got[i] == want[i] * CELLS, "%s: %llu cells, not %llu", cells_names[i],
                      (unsigned long long)got[i], (unsigned long long)want[i] * CELLS);
        sum += got[i];
    }
    ck_assert_uint_eq(sum, (CHUNKS + 1) * CELLS);
}
#define CHUNKS_ARE(...)                                                                            \
    assert_chunks((const uint64_t[CELLS_STATES]){[CELLS_TRASH] = 1, __VA_ARGS__})

START_TEST(each_chunk_counts_once)
{
    lay_out();
    CHUNKS_ARE([CELLS_FREE] = CHUNKS);
    put_row(0, POOL_IDLE, 2, (uint32_t[]){1, 2});
    put_row(1, POOL_ACTIVE, 2, (uint32_t[]){1, 3});
    put_row(2, POOL_CLOSING, 1, (uint32_t[]){4});
    put_row(3, POOL_WAITING, 1, (uint32_t[]){5});
    CHUNKS_ARE([CELLS_FREE] = 1, [CELLS_SHARED] = 1, [CELLS_CACHED] = 1, [CELLS_ACTIVE] = 1,
               [CELLS_CLOSING] = 1, [CELLS_WAITING] = 1);
    segment.row[0].body[1].copy_entry = pool_entry(6, 1); /* still to be copied from */
    CHUNKS_ARE([CELLS_SHARED] = 1, [CELLS_CACHED] = 2, [CELLS_ACTIVE] = 1, [CELLS_CLOSING] = 1,
               [CELLS_WAITING] = 1);
}
END_TEST

START_TEST(rows_of_a_dying_worker_are_held)
{
    lay_out();
    put_row(0, POOL_ACTIVE, 2, (uint32_t[]){1, 2});
    put_row(1, POOL_IDLE, 1, (uint32_t[]){3});
    segment.row[0].body[1].pipeline = 2;
    segment.process[7] = (struct pool_process){
        .incarnation = 9, .role = POOL_ROLE_WORKER, .pipeline = 2, .dying = 1};
    CHUNKS_ARE([CELLS_FREE] = 3, [CELLS_HELD] = 2, [CELLS_CACHED] = 1);
    segment.process[7].incarnation = 0; /* confirmed dead: the record is free */
    CHUNKS_ARE([CELLS_FREE] = 3, [CELLS_ACTIVE] = 2, [CELLS_CACHED] = 1);
}
END_TEST

START_TEST(numbers_from_the_segment_are_bounded)
{
    lay_out();
    put_row(0, POOL_ACTIVE, UINT32_MAX, (uint32_t[]){CHUNKS + 1, UINT32_MAX, 0});
    put_row(1, 77, 1, (uint32_t[]){1});
    CHUNKS_ARE([CELLS_FREE] = CHUNKS);
}
END_TEST

/* By the contract: the least of the words; a word of another lease counts as base. */
START_TEST(tokens_are_the_least_of_the_words)
{
    static uint64_t words[sizeof(struct pool_page) / 8 + 2 * ROWS];
    struct pool_page *page = (struct pool_page *)words;
    lay_out();
    put_row(1, POOL_ACTIVE, 3, (uint32_t[]){1, 2, 3});
    struct pool_body *b = &segment.row[1].body[1];
    b->lease = 4;
    b->base = 11;
    page->n_rows = ROWS;
    struct pool_view v = {.h = &segment.h};
    ck_assert_uint_eq(pool_view_tokens(&v, 1, b), 11); /* no page: what is certain */
    v.page[0][0].at = page;
    page->word[1] = pool_word(4, 40);
    page->word[ROWS + 1] = pool_word(4, 37);
    ck_assert_uint_eq(pool_view_tokens(&v, 1, b), 37);
    page->word[ROWS + 1] = pool_word(3, 37);
    ck_assert_uint_eq(pool_view_tokens(&v, 1, b), 11);
    page->word[1] = pool_word(4, 1000); /* past the table */
    page->word[ROWS + 1] = pool_word(4, 1000);
    ck_assert_uint_eq(pool_view_tokens(&v, 1, b), 3 * CELLS);
}
END_TEST

int main(void)
{
    TCase *tc = tcase_create("pool_view");
    tcase_add_test(tc, each_chunk_counts_once);
    tcase_add_test(tc, rows_of_a_dying_worker_are_held);
    tcase_add_test(tc, numbers_from_the_segment_are_bounded);
    tcase_add_test(tc, tokens_are_the_least_of_the_words);
    return suite_run("pool_view", tc);
}
