/* SPDX-License-Identifier: MIT */
/*
 * The pool's cells by state, counted over a control segment that this file lays out: each chunk
 * once, for the liveliest row that holds it, and all of them sum to the pool. And the text: the
 * form is that of Prometheus' documentation of its text format, 0.0.4.
 */
#include <check.h>
#include <string.h>

#include "gateway/metrics.h"

enum { ROWS = 4, ENTRIES = 3, CHUNKS = 6, CELLS = 16 };

static struct {
    struct pool_header h;
    struct pool_row row[ROWS];
    uint64_t table[ROWS][ENTRIES];
} segment;

static void lay_out(void)
{
    memset(&segment, 0, sizeof(segment));
    segment.h.rows_off = offsetof(__typeof__(segment), row);
    segment.h.tables_off = offsetof(__typeof__(segment), table);
    segment.h.n_rows = ROWS;
    segment.h.table_entries = ENTRIES;
    segment.h.n_chunks = CHUNKS;
    segment.h.chunk_cells = CELLS;
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

static void assert_cells(uint64_t n_free, uint64_t cached, uint64_t closing, uint64_t waiting,
                         uint64_t active)
{
    uint64_t got[CELLS_STATES], sum = 0;
    metrics_pool_cells(&segment.h, got);
    ck_assert_uint_eq(got[CELLS_FREE], n_free * CELLS);
    ck_assert_uint_eq(got[CELLS_CACHED], cached * CELLS);
    ck_assert_uint_eq(got[CELLS_CLOSING], closing * CELLS);
    ck_assert_uint_eq(got[CELLS_WAITING], waiting * CELLS);
    ck_assert_uint_eq(got[CELLS_ACTIVE], active * CELLS);
    ck_assert_uint_eq(got[CELLS_TRASH], CELLS);
    for (size_t i = 0; i < CELLS_STATES; i++)
        sum += got[i];
    ck_assert_uint_eq(sum, (CHUNKS + 1) * CELLS);
}

START_TEST(each_chunk_counts_once)
{
    lay_out();
    assert_cells(CHUNKS, 0, 0, 0, 0);
    put_row(0, POOL_IDLE, 2, (uint32_t[]){1, 2});
    put_row(1, POOL_ACTIVE, 2, (uint32_t[]){1, 3}); /* shares chunk 1 */
    put_row(2, POOL_CLOSING, 1, (uint32_t[]){4});
    put_row(3, POOL_WAITING, 1, (uint32_t[]){5});
    assert_cells(1, 1, 1, 1, 2);
    segment.row[0].body[1].copy_entry = pool_entry(6, 1); /* still to be copied from */
    assert_cells(0, 2, 1, 1, 2);
}
END_TEST

START_TEST(numbers_from_the_segment_are_bounded)
{
    lay_out();
    put_row(0, POOL_ACTIVE, UINT32_MAX, (uint32_t[]){CHUNKS + 1, UINT32_MAX, 0});
    put_row(1, 77, 1, (uint32_t[]){1});
    assert_cells(CHUNKS, 0, 0, 0, 0);
}
END_TEST

static const char *const lines[] = {
    "\ncistern_requests_total{route=\"/a\",status=\"200\"} 2\n",
    "\ncistern_requests_total{route=\"/a\",status=\"499\"} 1\n",
    "\ncistern_tokens_total{kind=\"generated\"} 5\n",
    "\n# TYPE cistern_time_to_first_token_seconds histogram\n",
    "\ncistern_time_to_first_token_seconds_bucket{le=\"0.025\"} 0\n",
    "\ncistern_time_to_first_token_seconds_bucket{le=\"0.05\"} 1\n",
    "\ncistern_time_to_first_token_seconds_bucket{le=\"+Inf\"} 2\n",
    "\ncistern_time_to_first_token_seconds_sum 1000.030000\n",
    "\ncistern_time_to_first_token_seconds_count 2\n",
    "\ncistern_time_between_tokens_seconds_bucket{le=\"0.005\"} 2\n",
    "\ncistern_time_between_tokens_seconds_count 2\n",
    "\ncistern_pipelines_ready 1\n",
};

START_TEST(the_text_has_this_line)
{
    struct metrics m = {.generated_tokens = 5};
    const char *routes[] = {"/a"};
    struct metrics_now now = {.routes = routes, .n_routes = 1, .pipelines_ready = 1};
    struct bytebuf out = {0};
    metrics_request(&m, 0, 200);
    metrics_request(&m, 0, 200);
    metrics_request(&m, 0, 0); /* left before there was an answer */
    metrics_first_token(&m, 30000);
    metrics_first_token(&m, 1000000000);
    metrics_between_tokens(&m, 8000, 2);
    metrics_text(&m, &now, &out);
    bytebuf_add(&out, "", 1);
    ck_assert_msg(strstr(bytebuf_bytes(&out), lines[_i]), "no line %s in\n%s", lines[_i],
                  bytebuf_bytes(&out));
    bytebuf_fini(&out);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("metrics");
    TCase *tc = tcase_create("metrics");
    tcase_add_test(tc, each_chunk_counts_once);
    tcase_add_test(tc, numbers_from_the_segment_are_bounded);
    tcase_add_loop_test(tc, the_text_has_this_line, 0, ARRAY_LEN(lines));
    suite_add_tcase(s, tc);
    SRunner *r = srunner_create(s);
    srunner_run_all(r, CK_NORMAL);
    int failed = srunner_ntests_failed(r);
    srunner_free(r);
    return failed ? 1 : 0;
}
