/* SPDX-License-Identifier: MIT */
/*
 * The pool's and the workers' part of /metrics: read from the control segment and the pages, which
 * others write meanwhile, when somebody asks. No message, no cost for who does not look.
 */
#include <string.h>

#include "cistern.pb-c.h"
#include "gateway/metrics.h"

struct counter {
    const char *name, *labels, *help; /* help NULL: another row of the metric above */
    size_t off;
};

#define POOLD(member) offsetof(struct pool_counters, member)
static const struct counter of_poold[] = {
    {"forks_total",             "",                  "Conversations that began with another's cells.",          POOLD(forks)            },
    {"takeovers_total",         "",                  "Cached conversations that were gone on with.",            POOLD(takeovers)        },
    {"resumes_total",           "",                  "Conversations that went on after waiting.",               POOLD(resumes)          },
    {"moves_total",             "",                  "Conversations that went on in another lane or pipeline.", POOLD(moves)            },
    {"prefix_hit_tokens_total", "",                  "Prompt tokens found in the pool.",                        POOLD(prefix_hit_tokens)},
    {"recoveries_total",        "{of=\"pipeline\"}", "Returns to service after a death.",
     POOLD(recoveries)                                                                                                                  },
    {"recoveries_total",        "{of=\"poold\"}",    NULL,                                                      POOLD(restarts)         },
    {"saves_total",             "",                  "Saves begun.",                                            POOLD(saves)            },
    {"restores_total",          "",                  "Restores begun.",                                         POOLD(restores)         },
};
static const struct counter recovery_times[] = {
    {"recovery_seconds_total", "{of=\"pipeline\"}",
     "From a confirmed death, or poold's start, to ready again.", POOLD(recovery_us)},
    {"recovery_seconds_total", "{of=\"poold\"}",    NULL,         POOLD(restart_us) },
};
static const char *const ranks[POOL_RANKS] = {"no_loss", "cached", "waiting"};

#define PAGE(member) offsetof(struct pool_page, member)
static const struct counter of_heads[] = {
    {"yields_total",      "", "Prompts that let a shorter one pass.",               PAGE(yields)       },
    {"fed_windows_total", "", "Windows posted before all their tokens were known.", PAGE(fed)          },
    {"given_back_total",  "", "Conversations that made room for older ones.",       PAGE(given_back)   },
    {"truncations_total", "", "Answers that ended for want of room.",               PAGE(truncations)  },
    {"reread_tokens",     "", "Computed again after a death or a move.",            PAGE(reread_tokens)},
};
static const struct counter of_workers[] = {
    {"windows_total", "", "Windows run.",                                              PAGE(windows)},
    {"bubbles_total", "", "Times without a window while one was in flight elsewhere.",
     PAGE(bubbles)                                                                                  },
};

static uint64_t load(const void *base, size_t off)
{
    return shm_load_u64((const uint64_t *)((const char *)base + off));
}

static void put_head(const char *name, const char *type, const char *help, struct bytebuf *out)
{
    if (!help) return;
    bytebuf_addf(out, "# HELP cistern_%s %s\n# TYPE cistern_%s %s\n", name, help, name, type);
}

static void put_cells(const struct pool_header *h, struct bytebuf *out)
{
    uint64_t cells[CELLS_STATES];
    pool_view_cells(h, cells);
    put_head("pool_cells", "gauge",
             "Cells by state; they sum to the pool and its trash chunk. A chunk of several "
             "conversations is shared, whatever their states.",
             out);
    for (size_t i = 0; i < CELLS_STATES; i++)
        bytebuf_addf(out, "cistern_pool_cells{state=\"%s\"} %llu\n", cells_names[i],
                     (unsigned long long)cells[i]);
}

static void put_poold(const struct pool_header *h, struct bytebuf *out)
{
    const struct pool_counters *c = &h->counters;
    for (size_t i = 0; i < ARRAY_LEN(of_poold); i++) {
        const struct counter *k = &of_poold[i];
        put_head(k->name, "counter", k->help, out);
        bytebuf_addf(out, "cistern_%s%s %llu\n", k->name, k->labels,
                     (unsigned long long)load(c, k->off));
    }
    for (size_t i = 0; i < ARRAY_LEN(recovery_times); i++) {
        const struct counter *k = &recovery_times[i];
        put_head(k->name, "counter", k->help, out);
        bytebuf_addf(out, "cistern_%s%s %.6f\n", k->name, k->labels, (double)load(c, k->off) / 1e6);
    }
    put_head("evicted_cells_total", "counter", "Cells given back, by rank.", out);
    for (size_t i = 0; i < POOL_RANKS; i++)
        bytebuf_addf(out, "cistern_evicted_cells_total{rank=\"%s\"} %llu\n", ranks[i],
                     (unsigned long long)(shm_load_u64(&c->evicted_chunks[i]) * h->chunk_cells));
    put_head("refusals_total", "counter", "What poold refused, by code.", out);
    for (int i = 1; i < POOL_CODES; i++) {
        const ProtobufCEnumValue *v =
            protobuf_c_enum_descriptor_get_value(&cistern__code__descriptor, i);
        if (v)
            bytebuf_addf(out, "cistern_refusals_total{code=\"%s\"} %llu\n", v->name,
                         (unsigned long long)shm_load_u64(&c->refusals[i]));
    }
}

/* The classes are pool_shm.h's: 32 us, and four times as much each. */
static void put_latency(const struct pool_counters *c, struct bytebuf *out)
{
    uint64_t n = 0;
    put_head("operation_seconds", "histogram",
             "A head's operation in poold, from receipt to answer, waiting included.", out);
    for (uint32_t i = 0; i + 1 < POOL_LATENCIES; i++) {
        n += shm_load_u64(&c->latency[i]);
        bytebuf_addf(out, "cistern_operation_seconds_bucket{le=\"%g\"} %llu\n",
                     (double)(UINT64_C(32) << (2 * i)) / 1e6, (unsigned long long)n);
    }
    n += shm_load_u64(&c->latency[POOL_LATENCIES - 1]);
    bytebuf_addf(out,
                 "cistern_operation_seconds_bucket{le=\"+Inf\"} %llu\n"
                 "cistern_operation_seconds_sum %.6f\n"
                 "cistern_operation_seconds_count %llu\n",
                 (unsigned long long)n, (double)shm_load_u64(&c->latency_us) / 1e6,
                 (unsigned long long)n);
}

/* One row a place, of all stages or of the heads alone. */
static void put_pages(const struct pool_view *v, const struct counter *k, uint32_t n_stages,
                      struct bytebuf *out)
{
    put_head(k->name, "counter", k->help, out);
    for (uint32_t p = 0; p < POOL_PIPELINES_MAX; p++)
        for (uint32_t s = 0; s < n_stages; s++) {
            const struct pool_page *page = pool_view_page(v, p, s);
            if (page)
                bytebuf_addf(out, "cistern_%s{pipeline=\"%u\",stage=\"%u\"} %llu\n", k->name, p, s,
                             (unsigned long long)load(page, k->off));
        }
}

void metrics_pool_text(const struct pool_view *v, struct bytebuf *out)
{
    if (!v || !v->h) return;
    put_cells(v->h, out);
    put_poold(v->h, out);
    put_latency(&v->h->counters, out);
    for (size_t i = 0; i < ARRAY_LEN(of_heads); i++)
        put_pages(v, &of_heads[i], 1, out);
    for (size_t i = 0; i < ARRAY_LEN(of_workers); i++)
        put_pages(v, &of_workers[i], v->h->n_stages, out);
}

/* ---- JSON ---- */

/* Cells that each lane's conversation holds; shared ones count for each. */
static json_t *lanes_json(const struct pool_view *v, const uint32_t *n_lanes)
{
    json_t *list = json_array();
    uint32_t first[POOL_PIPELINES_MAX], n = 0;
    for (uint32_t p = 0; p < POOL_PIPELINES_MAX; p++) {
        first[p] = n;
        for (uint32_t i = 0; i < n_lanes[p]; i++, n++)
            (void)json_array_append_new(list, json_integer(0));
    }
    for (uint32_t row = 0; row < v->h->n_rows; row++) {
        struct pool_body b;
        (void)pool_row_read(&pool_rows(v->h)[row], &b);
        if (b.state != POOL_ACTIVE || b.pipeline >= POOL_PIPELINES_MAX) continue;
        if (b.lane >= n_lanes[b.pipeline]) continue;
        json_int_t cells = (json_int_t)b.n_entries * v->h->chunk_cells;
        (void)json_array_set_new(list, first[b.pipeline] + b.lane, json_integer(cells));
    }
    return list;
}

json_t *metrics_pool_json(const struct pool_view *v, const uint32_t n_lanes[POOL_PIPELINES_MAX])
{
    if (!v || !v->h) return json_pack("{s{sn}}", "live", "kv_pool");
    uint64_t cells[CELLS_STATES];
    pool_view_cells(v->h, cells);
    json_t *states = json_object();
    for (size_t i = 0; i < CELLS_STATES; i++)
        (void)json_object_set_new(states, cells_names[i], json_integer((json_int_t)cells[i]));
    json_t *slots = lanes_json(v, n_lanes);
    json_int_t main_cells = json_integer_value(json_array_get(slots, 0));
    (void)json_array_remove(slots, 0);
    return json_pack("{s{s{sI sI sI so so}}}", "live", "kv_pool", "cells",
                     (json_int_t)v->h->n_chunks * v->h->chunk_cells, "free",
                     (json_int_t)cells[CELLS_FREE], "main", main_cells, "slots", slots, "states",
                     states);
}
