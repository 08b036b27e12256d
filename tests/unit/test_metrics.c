/* SPDX-License-Identifier: MIT */
/*
 * The text of the metrics: the form is that of Prometheus' documentation of its text format, 0.0.4.
 * What is expected of the pool's part is counted by hand over a control segment that this file lays
 * out.
 */
#include <check.h>
#include <string.h>

#include "cistern.pb-c.h"
#include "gateway/metrics.h"
#include "tests/suite.h"

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
    "\ncistern_resubmissions_total{cause=\"moved\"} 3\n",
    "\ncistern_pool_cells{state=\"free\"} 48\n",
    "\ncistern_pool_cells{state=\"active\"} 32\n",
    "\ncistern_pool_cells{state=\"held\"} 0\n",
    "\ncistern_pool_cells{state=\"trash\"} 16\n",
    "\ncistern_evicted_cells_total{rank=\"cached\"} 64\n",
    "\ncistern_refusals_total{code=\"POOL_FULL\"} 7\n",
    "\ncistern_recovery_seconds_total{of=\"pipeline\"} 0.250000\n",
    "\ncistern_operation_seconds_bucket{le=\"3.2e-05\"} 1\n",
    "\ncistern_operation_seconds_bucket{le=\"0.000128\"} 3\n",
    "\ncistern_operation_seconds_count 3\n",
    "\ncistern_reread_tokens{pipeline=\"1\",stage=\"0\"} 9\n",
};

enum { ROWS = 3, ENTRIES = 3, CHUNKS = 5, CELLS = 16 };

static struct {
    struct pool_header h;
    struct pool_process process[POOL_PROCESSES_MAX];
    struct pool_row row[ROWS];
    uint64_t table[ROWS][ENTRIES];
} segment;
static struct pool_page page;

/* Row 0 runs in lane 1 of pipeline 1 and holds chunks 1 and 2. */
static struct pool_view lay_out(void)
{
    memset(&segment, 0, sizeof(segment));
    segment.h = (struct pool_header){
        .pool_id = 5,
        .processes_off = offsetof(__typeof__(segment), process),
        .rows_off = offsetof(__typeof__(segment), row),
        .tables_off = offsetof(__typeof__(segment), table),
        .n_rows = ROWS,
        .table_entries = ENTRIES,
        .n_chunks = CHUNKS,
        .chunk_cells = CELLS,
        .n_stages = 1,
        .counters = {.evicted_chunks = {0, 4, 0}, .latency = {1, 2}, .recovery_us = 250000},
    };
    segment.h.counters.refusals[CISTERN__CODE__POOL_FULL] = 7;
    segment.row[0].body[0] =
        (struct pool_body){.state = POOL_ACTIVE, .n_entries = 2, .pipeline = 1, .lane = 1};
    segment.table[0][0] = pool_entry(1, 1);
    segment.table[0][1] = pool_entry(2, 1);
    page = (struct pool_page){.pool_id = 5, .n_rows = ROWS, .reread_tokens = 9};
    struct pool_view v = {.h = &segment.h};
    v.page[1][0].at = &page;
    return v;
}

START_TEST(the_text_has_this_line)
{
    struct metrics m = {.generated_tokens = 5};
    const char *routes[] = {"/a"};
    struct pool_view view = lay_out();
    struct metrics_now now = {
        .routes = routes, .n_routes = 1, .pipelines_ready = 1, .pool = &view, .moved = 3};
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

/* The shape is the one that other tools read: main is lane 0, slots are the others. */
START_TEST(the_json_has_main_and_slots)
{
    struct pool_view view = lay_out();
    const uint32_t n_lanes[POOL_PIPELINES_MAX] = {2, 2};
    json_t *got = metrics_pool_json(&view, n_lanes);
    json_t *want = json_loads("{\"live\":{\"kv_pool\":{\"cells\":80,\"free\":48,\"main\":0,"
                              "\"slots\":[0,0,32],\"states\":{\"free\":48,\"cached\":0,"
                              "\"closing\":0,\"waiting\":0,\"active\":32,\"held\":0,"
                              "\"shared\":0,\"trash\":16}}}}",
                              0, NULL);
    ck_assert_ptr_nonnull(want);
    ck_assert(json_equal(got, want));
    json_decref(got);
    json_decref(want);
}
END_TEST

int main(void)
{
    TCase *tc = tcase_create("metrics");
    tcase_add_test(tc, the_json_has_main_and_slots);
    tcase_add_loop_test(tc, the_text_has_this_line, 0, ARRAY_LEN(lines));
    return suite_run("metrics", tc);
}
