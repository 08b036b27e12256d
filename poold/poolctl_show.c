/* SPDX-License-Identifier: MIT */
/*
 * What poolctl shows once: status by poold's own words, everything else read from shared memory.
 * Each look makes JSON; the text is printed from that, so both always say the same.
 */
#include <string.h>
#include <time.h>

#include "poold/poolctl.h"

enum { MAP_COLUMNS = 64 };

static const char *const latency_names[POOL_LATENCIES] = {
    "under_32us",  "under_128us", "under_512us", "under_2ms", "under_8ms", "under_33ms",
    "under_131ms", "under_524ms", "under_2s",    "under_8s",  "under_34s", "longer"};

json_t *cells_json(const struct pool_header *h)
{
    uint64_t cells[CELLS_STATES], total = 0;
    pool_view_cells(h, cells);
    json_t *o = json_object();
    for (size_t i = 0; i < CELLS_STATES; i++) {
        json_object_set_new(o, cells_names[i], json_integer((json_int_t)cells[i]));
        total += cells[i];
    }
    json_object_set_new(o, "total", json_integer((json_int_t)total));
    return o;
}

static json_int_t clock_us(void)
{
    struct timespec t;
    clock_gettime(CLOCK_BOOTTIME, &t);
    return (json_int_t)t.tv_sec * 1000000 + t.tv_nsec / 1000;
}

/* ---- status ---- */

void ask_status(struct ctl *c, Cistern__Envelope *m)
{
    (void)c;
    static Cistern__StatusAsk ask = CISTERN__STATUS_ASK__INIT;
    m->body_case = CISTERN__ENVELOPE__BODY_STATUS_ASK;
    m->status_ask = &ask;
}

static void text_pool(const json_t *pool)
{
    const json_t *cells = json_object_get(pool, "cells");
    printf("pool %s: %lld cells in chunks of %lld, context %lld, memory %s\n",
           json_text(pool, "id"), json_number(cells, "total"), json_number(pool, "chunk_cells"),
           json_number(pool, "context_tokens"), json_text(pool, "memory"));
    if (json_number(pool, "lane_cells"))
        printf("  each lane has %lld cells of its own: nothing is shared or moved\n",
               json_number(pool, "lane_cells"));
    static const char *const states[] = {"free",    "active", "waiting",
                                         "closing", "cached", "shared"};
    for (size_t i = 0; i < ARRAY_LEN(states); i++)
        printf("  %-8s %10lld cells\n", states[i], json_number(cells, states[i]));
}

static void text_process(const json_t *o)
{
    printf("%-7s pid %lld", json_text(o, "role"), json_number(o, "pid"));
    if (json_object_get(o, "stage"))
        printf(", pipeline %lld stage %lld, %s", json_number(o, "pipeline"),
               json_number(o, "stage"), json_text(o, "phase"));
    else if (json_object_get(o, "loaded_percent"))
        printf(", starting, %lld %% loaded", json_number(o, "loaded_percent"));
    if (json_is_true(json_object_get(o, "draining"))) printf(", drained");
    printf("%s\n", json_is_true(json_object_get(o, "dying")) ? ", being killed" : "");
    if (json_object_get(o, "activations"))
        printf("        activations: %s\n", json_text(o, "activations"));
}

static void text_rows(const json_t *list)
{
    size_t i;
    const json_t *o;
    if (json_array_size(list)) printf("row  generation state   tokens  chunks lane    idle\n");
    json_array_foreach(list, i, o) printf(
        "%-4lld %10lld %-7s %6lld %7lld %4lld %6.1fs\n", json_number(o, "row"),
        json_number(o, "generation"), json_text(o, "state"), json_number(o, "tokens"),
        json_number(o, "chunks"), json_number(o, "lane"), (double)json_number(o, "idle_ms") / 1000);
}

void text_status(const json_t *all)
{
    size_t i;
    const json_t *pool = json_object_get(all, "pool"), *o;
    printf("poold %s, pid %lld\n", json_text(all, "version"), json_number(all, "pid"));
    if (pool)
        text_pool(pool);
    else
        printf("no pool yet: no worker has attached\n");
    json_array_foreach(json_object_get(all, "pipelines"), i, o) printf(
        "pipeline %lld: %s%s, life %lld\n", json_number(o, "pipeline"),
        json_is_true(json_object_get(o, "ready")) ? "ready" : "not ready",
        json_is_true(json_object_get(o, "draining")) ? ", drained" : "", json_number(o, "life"));
    json_array_foreach(json_object_get(all, "processes"), i, o) text_process(o);
    text_rows(json_object_get(all, "conversations"));
}

/* ---- lanes and conversations ---- */

static json_t *conversation(const struct ctl *c, uint32_t row, const struct pool_body *b)
{
    const struct pool_header *h = c->view.h;
    json_int_t idle = clock_us() - (json_int_t)pool_rows(h)[row].last_use;
    json_t *o = json_pack(
        "{sI sI ss sI sI sI sI sI sI}", "row", (json_int_t)row, "generation",
        (json_int_t)b->generation, "state", cells_names[pool_view_state(h, b)], "tokens",
        (json_int_t)pool_view_tokens(&c->view, row, b), "chunks", (json_int_t)b->n_entries,
        "reserved", (json_int_t)b->n_entries * h->chunk_cells, "pipeline", (json_int_t)b->pipeline,
        "lane", (json_int_t)(int32_t)b->lane, "idle_ms", idle / 1000);
    json_object_set_new(o, "age", json_integer((json_int_t)b->arrival));
    if (b->holder) json_object_set_new(o, "transfer", json_true());
    return o;
}

static json_t *rows_json(const struct ctl *c, bool lanes)
{
    json_t *list = json_array();
    for (uint32_t row = 0; row < c->view.h->n_rows; row++) {
        struct pool_body b;
        (void)pool_row_read(&pool_rows(c->view.h)[row], &b);
        if (b.state == POOL_FREE || (lanes && b.state != POOL_ACTIVE)) continue;
        json_array_append_new(list, conversation(c, row, &b));
    }
    return list;
}

json_t *look_lanes(struct ctl *c) { return json_pack("{so}", "lanes", rows_json(c, true)); }

void text_lanes(const json_t *all)
{
    size_t i;
    const json_t *o;
    printf("pipeline lane  row:generation   tokens reserved    age\n");
    json_array_foreach(json_object_get(all, "lanes"), i, o)
        printf("%8lld %4lld  %4lld:%-10lld %7lld %8lld %6lld\n", json_number(o, "pipeline"),
               json_number(o, "lane"), json_number(o, "row"), json_number(o, "generation"),
               json_number(o, "tokens"), json_number(o, "reserved"), json_number(o, "age"));
}

json_t *look_conversations(struct ctl *c)
{
    return json_pack("{so}", "conversations", rows_json(c, false));
}

void text_conversations(const json_t *all) { text_rows(json_object_get(all, "conversations")); }

/* ---- chunks ---- */

static const char letters[CELLS_STATES] = {
    [CELLS_FREE] = '.',   [CELLS_CACHED] = 'c', [CELLS_CLOSING] = 'k', [CELLS_WAITING] = 'w',
    [CELLS_ACTIVE] = 'A', [CELLS_HELD] = 'H',   [CELLS_SHARED] = '#',  [CELLS_TRASH] = 't',
};

json_t *look_chunks(struct ctl *c)
{
    const struct pool_header *h = c->view.h;
    size_t n = (size_t)h->n_chunks + 1;
    CLEANUP(freep) uint8_t *chunks = xcalloc(n, 1);
    CLEANUP(freep) char *map = xcalloc(n, 1);
    pool_view_chunks(h, chunks);
    for (size_t i = 0; i < n; i++)
        map[i] = letters[chunks[i]];
    json_t *legend = json_object();
    for (size_t i = 0; i < CELLS_STATES; i++)
        json_object_set_new(legend, (char[]){letters[i], 0}, json_string(cells_names[i]));
    return json_pack("{sI so so so}", "chunk_cells", (json_int_t)h->chunk_cells, "cells",
                     cells_json(h), "map", json_stringn(map, n), "legend", legend);
}

void text_chunks(const json_t *o)
{
    const char *map = json_text(o, "map");
    size_t n = strlen(map);
    for (size_t i = 0; i < n; i += MAP_COLUMNS)
        printf("%8zu %.*s\n", i, MAP_COLUMNS, map + i);
    printf("\na character is %lld cells:", json_number(o, "chunk_cells"));
    for (size_t i = 0; i < CELLS_STATES; i++)
        printf(" %c %s", letters[i], cells_names[i]);
    printf("\n");
}

/* ---- metrics ---- */

static json_t *pages_json(const struct ctl *c)
{
    json_t *list = json_array();
    for (uint32_t p = 0; p < POOL_PIPELINES_MAX; p++)
        for (uint32_t s = 0; s < c->view.h->n_stages; s++) {
            const struct pool_page *at = pool_view_page(&c->view, p, s);
            if (!at) continue;
            json_array_append_new(
                list,
                json_pack("{sI sI sI sI sI sI sI sI sI sI}", "pipeline", (json_int_t)p, "stage",
                          (json_int_t)s, "windows", (json_int_t)shm_load_u64(&at->windows),
                          "bubbles", (json_int_t)shm_load_u64(&at->bubbles), "busy_us",
                          (json_int_t)shm_load_u64(&at->busy_us), "yields",
                          (json_int_t)shm_load_u64(&at->yields), "given_back",
                          (json_int_t)shm_load_u64(&at->given_back), "truncations",
                          (json_int_t)shm_load_u64(&at->truncations), "reread_tokens",
                          (json_int_t)shm_load_u64(&at->reread_tokens), "fed",
                          (json_int_t)shm_load_u64(&at->fed)));
        }
    return list;
}

static void put(json_t *o, const char *name, const uint64_t *counter)
{
    json_object_set_new(o, name, json_integer((json_int_t)shm_load_u64(counter)));
}

static json_t *counters_json(const struct pool_counters *n)
{
    static const struct {
        const char *name;
        size_t off;
    } plain[] = {
        {"forks",             offsetof(struct pool_counters, forks)            },
        {"takeovers",         offsetof(struct pool_counters, takeovers)        },
        {"resumes",           offsetof(struct pool_counters, resumes)          },
        {"moves",             offsetof(struct pool_counters, moves)            },
        {"prefix_hit_tokens", offsetof(struct pool_counters, prefix_hit_tokens)},
        {"recoveries",        offsetof(struct pool_counters, recoveries)       },
        {"recovery_us",       offsetof(struct pool_counters, recovery_us)      },
        {"restarts",          offsetof(struct pool_counters, restarts)         },
        {"restart_us",        offsetof(struct pool_counters, restart_us)       },
        {"saves",             offsetof(struct pool_counters, saves)            },
        {"restores",          offsetof(struct pool_counters, restores)         },
        {"operation_us",      offsetof(struct pool_counters, latency_us)       },
    };
    json_t *o = json_object();
    for (size_t i = 0; i < ARRAY_LEN(plain); i++)
        put(o, plain[i].name, (const uint64_t *)((const char *)n + plain[i].off));
    put(o, "evicted_chunks_no_loss", &n->evicted_chunks[0]);
    put(o, "evicted_chunks_cached", &n->evicted_chunks[1]);
    put(o, "evicted_chunks_waiting", &n->evicted_chunks[2]);
    for (size_t i = 0; i < POOL_LATENCIES; i++) {
        char name[48];
        (void)snprintf(name, sizeof(name), "operations_%s", latency_names[i]);
        put(o, name, &n->latency[i]);
    }
    for (int i = 0; i < POOL_CODES; i++) {
        const ProtobufCEnumValue *v =
            protobuf_c_enum_descriptor_get_value(&cistern__code__descriptor, i);
        char name[48];
        if (!v || i == CISTERN__CODE__OK) continue;
        (void)snprintf(name, sizeof(name), "refusals_%s", v->name);
        put(o, name, &n->refusals[i]);
    }
    return o;
}

json_t *look_metrics(struct ctl *c)
{
    return json_pack("{so so so}", "cells", cells_json(c->view.h), "counters",
                     counters_json(&c->view.h->counters), "workers", pages_json(c));
}

void text_metrics(const json_t *all)
{
    const char *key;
    json_t *v;
    size_t i;
    const json_t *o;
    json_object_foreach(json_object_get(all, "cells"), key, v)
        printf("cells_%s %lld\n", key, (long long)json_integer_value(v));
    json_object_foreach(json_object_get(all, "counters"), key, v)
        printf("%s %lld\n", key, (long long)json_integer_value(v));
    json_array_foreach(json_object_get(all, "workers"), i, o)
        json_object_foreach((json_t *)o, key, v)
            printf("worker_%zu_%s %lld\n", i, key, (long long)json_integer_value(v));
}
