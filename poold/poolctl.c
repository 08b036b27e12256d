/* SPDX-License-Identifier: MIT */
/*
 * poolctl: asks poold, prints, ends. Exit codes: 0 done, 1 refused or wrong use, 2 poold can't be
 * reached.
 */
#include <errno.h>
#include <jansson.h>
#include <string.h>

#include "common/config.h"
#include "common/log.h"
#include "common/pool_client.h"

enum { EXIT_DONE = 0, EXIT_REFUSED = 1, EXIT_UNREACHED = 2, REACH_US = 3000000 };

struct ctl {
    struct loop *loop;
    struct pool_client *client;
    const struct command *command;
    bool json;
    bool all;
    uint32_t row;
    uint64_t generation;
    bool has_row;
};

struct command {
    const char *name, *args, *help;
    int (*ask)(struct ctl *c, Cistern__Envelope *m);
    void (*print)(struct ctl *c, const Cistern__Envelope *m);
};

/* ---- status ---- */

static int ask_status(struct ctl *c, Cistern__Envelope *m)
{
    (void)c;
    static Cistern__StatusAsk ask = CISTERN__STATUS_ASK__INIT;
    m->body_case = CISTERN__ENVELOPE__BODY_STATUS_ASK;
    m->status_ask = &ask;
    return 0;
}

static long long number(const json_t *o, const char *key)
{
    return (long long)json_integer_value(json_object_get(o, key));
}

static const char *text(const json_t *o, const char *key)
{
    const char *s = json_string_value(json_object_get(o, key));
    return s ? s : "-";
}

static void print_pool(const json_t *pool)
{
    const json_t *cells = json_object_get(pool, "cells");
    printf("pool %s: %lld cells in chunks of %lld, context %lld\n", text(pool, "id"),
           number(cells, "total"), number(pool, "chunk_cells"), number(pool, "context_tokens"));
    static const char *const states[] = {"free",    "active", "waiting",
                                         "closing", "cached", "shared"};
    for (size_t i = 0; i < ARRAY_LEN(states); i++)
        printf("  %-8s %10lld cells\n", states[i], number(cells, states[i]));
}

static void print_status_text(const json_t *all)
{
    size_t i;
    const json_t *pool = json_object_get(all, "pool"), *o;
    printf("poold %s, pid %lld\n", text(all, "version"), number(all, "pid"));
    if (pool)
        print_pool(pool);
    else
        printf("no pool yet: no worker has attached\n");
    json_array_foreach(json_object_get(all, "pipelines"), i, o) printf(
        "pipeline %lld: %s, life %lld\n", number(o, "pipeline"),
        json_is_true(json_object_get(o, "ready")) ? "ready" : "not ready", number(o, "life"));
    json_array_foreach(json_object_get(all, "processes"), i, o)
    {
        printf("%-7s pid %lld", text(o, "role"), number(o, "pid"));
        if (json_object_get(o, "stage"))
            printf(", pipeline %lld stage %lld, %s", number(o, "pipeline"), number(o, "stage"),
                   text(o, "phase"));
        printf("%s\n", json_is_true(json_object_get(o, "dying")) ? ", being killed" : "");
    }
    const json_t *list = json_object_get(all, "conversations");
    if (json_array_size(list)) printf("row  generation state   tokens  chunks lane    idle\n");
    json_array_foreach(list, i, o)
        printf("%-4lld %10lld %-7s %6lld %7lld %4lld %6.1fs\n", number(o, "row"),
               number(o, "generation"), text(o, "state"), number(o, "tokens"), number(o, "chunks"),
               number(o, "lane"), (double)number(o, "idle_ms") / 1000);
}

static void print_status(struct ctl *c, const Cistern__Envelope *m)
{
    if (c->json) {
        printf("%s\n", m->status->text);
        return;
    }
    json_t *all = json_loads(m->status->text, 0, NULL);
    print_status_text(all);
    json_decref(all);
}

/* ---- drop ---- */

static int ask_drop(struct ctl *c, Cistern__Envelope *m)
{
    static Cistern__Drop drop = CISTERN__DROP__INIT;
    if (c->all == c->has_row) return -EINVAL;
    drop.all = c->all;
    drop.row = c->row;
    drop.generation = c->generation;
    m->body_case = CISTERN__ENVELOPE__BODY_DROP;
    m->drop = &drop;
    return 0;
}

static void print_done(struct ctl *c, const Cistern__Envelope *m)
{
    if (c->json)
        printf("{\"dropped\":%u}\n", m->done->n);
    else
        printf("%u conversations dropped\n", m->done->n);
}

static const struct command commands[] = {
    {"status", "",                       "the pool, pipelines, processes and conversations", ask_status, print_status},
    {"drop",   "ROW:GENERATION | --all", "forget one cached conversation, or all",           ask_drop,
     print_done                                                                                                      },
};

/* ---- asking ---- */

static void on_connected(void *arg)
{
    struct ctl *c = arg;
    Cistern__AttachOther attach = CISTERN__ATTACH_OTHER__INIT;
    attach.role = POOL_ROLE_TOOL;
    Cistern__Envelope m = CISTERN__ENVELOPE__INIT;
    m.number = pool_client_number(c->client);
    m.body_case = CISTERN__ENVELOPE__BODY_ATTACH_OTHER;
    m.attach_other = &attach;
    (void)pool_client_send(c->client, &m);
}

static void on_message(void *arg, const Cistern__Envelope *m)
{
    struct ctl *c = arg;
    Cistern__Envelope ask = CISTERN__ENVELOPE__INIT;
    switch (m->body_case) {
    case CISTERN__ENVELOPE__BODY_ATTACHED:
        ask.number = pool_client_number(c->client);
        (void)c->command->ask(c, &ask);
        (void)pool_client_send(c->client, &ask);
        break;
    case CISTERN__ENVELOPE__BODY_REFUSED:
        fprintf(stderr, "poolctl: refused: %s\n", m->refused->text);
        loop_stop(c->loop, EXIT_REFUSED);
        break;
    case CISTERN__ENVELOPE__BODY_STATUS:
    case CISTERN__ENVELOPE__BODY_DONE:
        c->command->print(c, m);
        loop_stop(c->loop, EXIT_DONE);
        break;
    default:
        break; /* what poold tells everybody */
    }
}

static void on_lost(void *arg) { (void)arg; }

static void on_files(void *arg, const struct lifeline_files *f, int *fds, uint32_t n_fds)
{
    (void)arg;
    (void)f;
    for (uint32_t i = 0; i < n_fds; i++)
        (void)close(fds[i]);
}

static void on_refused(void *arg, const char *why)
{
    struct ctl *c = arg;
    fprintf(stderr, "poolctl: refused: %s\n", why);
    loop_stop(c->loop, EXIT_REFUSED);
}

static void on_timeout(void *arg)
{
    struct ctl *c = arg;
    fprintf(stderr, "poolctl: poold does not answer; does it run, with this run.dir?\n");
    loop_stop(c->loop, EXIT_UNREACHED);
}

static int run(struct ctl *c, const char *run_dir)
{
    struct why why = {0};
    struct pool_client_events events = {on_connected, on_lost, on_message, on_files, on_refused, c};
    struct loop_source *timeout = NULL;
    CLEANUP(loop_freep) struct loop *loop = NULL;
    int r = loop_new(&loop);
    c->loop = loop;
    if (r == 0) r = loop_add_timer(loop, on_timeout, c, &timeout);
    if (r == 0) r = loop_set_timer(timeout, REACH_US, 0);
    if (r == 0)
        r = pool_client_new(loop, run_dir, incarnation_new(), POOL_ROLE_TOOL, &events, &why,
                            &c->client);
    if (r < 0) {
        fprintf(stderr, "poolctl: %s\n", *why.text ? why.text : strerror(-r));
        return EXIT_REFUSED;
    }
    r = loop_run(loop);
    pool_client_free(c->client);
    return r < 0 ? EXIT_REFUSED : r;
}

/* ---- the command line ---- */

static void print_help(void)
{
    printf("poolctl: asks and changes Cistern's pool\n\n"
           "usage: poolctl [--config FILE] [--set section.key=value]... [--json] COMMAND\n\n");
    for (size_t i = 0; i < ARRAY_LEN(commands); i++)
        printf("  %s %-24s %s\n", commands[i].name, commands[i].args, commands[i].help);
    printf("\nexit codes: 0 done, 1 refused or wrong use, 2 poold can't be reached\n");
}

/* Takes poolctl's own words out of argv; what is left is the configuration's. */
static int take_words(struct ctl *c, int argc, char **argv, char **ret_rest)
{
    int n = 0;
    ret_rest[n++] = argv[0];
    for (int i = 1; i < argc; i++) {
        unsigned row;
        unsigned long long generation;
        bool value =
            i > 1 && (strcmp(argv[i - 1], "--config") == 0 || strcmp(argv[i - 1], "--set") == 0);
        const struct command *found = NULL;
        for (size_t k = 0; k < ARRAY_LEN(commands) && !value; k++)
            if (strcmp(argv[i], commands[k].name) == 0) found = &commands[k];
        if (found && !c->command)
            c->command = found;
        else if (!value && strcmp(argv[i], "--json") == 0)
            c->json = true;
        else if (!value && strcmp(argv[i], "--all") == 0)
            c->all = true;
        else if (!value && sscanf(argv[i], "%u:%llu", &row, &generation) == 2)
            c->row = row, c->generation = generation, c->has_row = true;
        else
            ret_rest[n++] = argv[i];
    }
    return n;
}

int main(int argc, char **argv)
{
    struct ctl c = {0};
    struct why why = {0};
    CLEANUP(freep) char **rest = xcalloc((size_t)argc + 1, sizeof(*rest));
    int n = take_words(&c, argc, argv, rest);
    if (!c.command && (n == 1 || strcmp(rest[1], "--help") == 0)) {
        print_help();
        return n == 1 ? EXIT_REFUSED : EXIT_DONE;
    }
    CLEANUP(config_freep) struct config *config = NULL;
    int r = config_from_args(n, rest, "poolctl", "asks and changes Cistern's pool", NULL, 0, &why,
                             &config);
    if (r > 0) return EXIT_DONE;
    Cistern__Envelope probe = CISTERN__ENVELOPE__INIT;
    if (r == 0 && !c.command) r = why_set(&why, -EINVAL, "no command; --help lists them");
    if (r == 0 && c.command->ask(&c, &probe) < 0)
        r = why_set(&why, -EINVAL, "%s wants %s", c.command->name, c.command->args);
    if (r < 0) {
        fprintf(stderr, "poolctl: %s\n", why.text);
        return EXIT_REFUSED;
    }
    return run(&c, config->run.dir);
}
