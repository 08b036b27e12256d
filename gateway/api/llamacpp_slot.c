/* SPDX-License-Identifier: MIT */
/*
 * POST /slots/N?action=save|restore|erase, in llama.cpp's shape. A slot is a lane; its conversation
 * is the one that runs there, else the one that ran there last and is still cached. What is done to
 * it poolctl does, as a process of its own (tool.h); here its exit code becomes an answer.
 */
#include <errno.h>
#include <string.h>

#include "common/log.h"
#include "common/poolctl_exit.h"
#include "gateway/api/fields.h"
#include "gateway/api/llamacpp.h"
#include "gateway/api/reply.h"

enum {
    FILENAME_BYTES_MAX = 200 /* of the 255 that a name may have; what is written aside adds some */
};

enum action_kind { ACTION_SAVE, ACTION_RESTORE, ACTION_ERASE };
static const char *const action_names[] = {"save", "restore", "erase"};

/* One that is under way: from llamacpp_slot until the tool's end, or the client's. */
struct action {
    const struct gateway *gateway;
    struct exchange *exchange;
    struct tool *tool;
    enum action_kind kind;
    uint32_t slot, pipeline, lane;
    char *filename;   /* as the client wrote it; NULL of an erase */
    uint32_t n_cells; /* of what is erased */
};

static void action_free(struct action *a)
{
    if (!a) return;
    free(a->filename);
    free(a);
}
static void action_freep(struct action **a) { action_free(*a); }

/* ---- what is asked ----------------------------------------------------------------------- */

static int slot_from(const struct gateway *g, const struct exchange *x, struct fault *fault,
                     struct action *a)
{
    const char *text = exchange_path(x) + strlen("/slots/");
    size_t n = strspn(text, "0123456789");
    if (pipelines_lanes(g->pipelines) == 0 && gateway_can_serve(g, fault) < 0) return -EINVAL;
    if (text[n] || n == 0 || n > 9 ||
        pipelines_slot_at(g->pipelines, strtoul(text, NULL, 10), &a->pipeline, &a->lane) < 0)
        return fault_set(fault, FAULT_REQUEST, "id_slot",
                         "There is no such slot; GET /slots lists "
                         "them.");
    a->slot = (uint32_t)strtoul(text, NULL, 10);
    return 0;
}

static int kind_from(const struct exchange *x, struct fault *fault, enum action_kind *ret)
{
    const char *text = exchange_query(x, "action");
    for (size_t i = 0; text && i < ARRAY_LEN(action_names); i++) {
        if (strcmp(text, action_names[i]) != 0) continue;
        *ret = (enum action_kind)i;
        return 0;
    }
    return fault_set(fault, FAULT_REQUEST, "action", "'action' must be save, restore or erase.");
}

/* A name in the folder of slots and nothing else: no path, nothing hidden, nothing that a terminal
 * would take as a command. */
static int check_filename(const char *name, size_t bytes, struct fault *fault)
{
    bool ok = bytes > 0 && bytes <= FILENAME_BYTES_MAX && *name != '.' && strlen(name) == bytes;
    for (const char *c = name; ok && *c; c++)
        ok = *c != '/' && *c != '\\' && (unsigned char)*c >= ' ' && *c != 0x7f;
    if (ok) return 0;
    return fault_set(fault, FAULT_REQUEST, "filename",
                     "'filename' must be a file's name of 1 to %d bytes, without slashes and "
                     "control characters, that does not begin with a dot.",
                     FILENAME_BYTES_MAX);
}

static int filename_from(struct exchange *x, struct fault *fault, char **ret)
{
    struct ask ask = {0};
    size_t bytes;
    const char *body = exchange_body(x, &bytes);
    int r = ask_parse(API_SLOT, body, bytes, fault, &ask);
    if (r < 0) return r;
    const char *name = json_string_value(ask.filename);
    r = check_filename(name, json_string_length(ask.filename), fault);
    if (r == 0) *ret = strdup(name);
    ask_fini(&ask);
    return r;
}

/* The row of the lane's conversation that this client may have. -ENOENT: there is none. */
static int row_of(const struct gateway *g, const struct exchange *x, const struct action *a,
                  uint32_t *ret_row, struct pool_body *ret)
{
    const struct pool_header *h = pipelines_pool(g->pipelines)->h;
    const struct key *key = keys_of(g->keys, x);
    uint64_t best = 0;
    for (uint32_t row = 0; h && row < h->n_rows; row++) {
        struct pool_body b;
        (void)pool_row_read(&pool_rows(h)[row], &b);
        bool others = key && key->salt && b.salt != key->salt;
        if (b.state == POOL_FREE || b.holder || others) continue;
        if (b.pipeline != a->pipeline || b.lane != a->lane) continue;
        uint64_t use = b.state == POOL_ACTIVE    ? UINT64_MAX
                       : b.state == POOL_CLOSING ? UINT64_MAX - 1
                                                 : shm_load_u64(&pool_rows(h)[row].last_use);
        if (use < best) continue;
        best = use;
        *ret_row = row;
        *ret = b;
    }
    return best ? 0 : -ENOENT;
}

/* ---- what came of it --------------------------------------------------------------------- */

static json_t *timings(const char *name, const json_t *out)
{
    double seconds = json_real_value(json_object_get(out, "seconds"));
    return json_pack("{s:f}", name, seconds * 1000);
}

static json_t *done_json(const struct action *a, const json_t *out)
{
    json_int_t tokens = json_integer_value(json_object_get(out, "tokens"));
    json_int_t bytes = json_integer_value(json_object_get(out, "bytes"));
    switch (a->kind) {
    case ACTION_SAVE:
        return json_pack("{s:I,s:s,s:I,s:I,s:o}", "id_slot", (json_int_t)a->slot, "filename",
                         a->filename, "n_saved", tokens, "n_written", bytes, "timings",
                         timings("save_ms", out));
    case ACTION_RESTORE:
        return json_pack("{s:I,s:s,s:I,s:I,s:o}", "id_slot", (json_int_t)a->slot, "filename",
                         a->filename, "n_restored", tokens, "n_read", bytes, "timings",
                         timings("restore_ms", out));
    case ACTION_ERASE:
        break;
    }
    return json_pack("{s:I,s:I}", "id_slot", (json_int_t)a->slot, "n_erased",
                     (json_int_t)a->n_cells);
}

static const struct {
    int code;
    enum fault_kind kind;
    const char *text; /* NULL: poolctl's own */
} outcomes[] = {
    {EXIT_UNREACHED, FAULT_SLOT_BUSY,      "poold can't be reached now"                         },
    {EXIT_UNKNOWN,   FAULT_SLOT_BUSY,      "the slot's conversation changed at that moment"     },
    {EXIT_LATER,     FAULT_SLOT_BUSY,      NULL                                                 },
    {EXIT_FILE,      FAULT_INTERNAL,       "the file can't be read or written"                  },
    {EXIT_DAMAGED,   FAULT_SLOT_DAMAGED,   "the file is no saved slot, or is damaged"           },
    {EXIT_FOREIGN,   FAULT_SLOT_FOREIGN,   "the file is of another model, layout or release"    },
    {EXIT_MISSING,   FAULT_SLOT_MISSING,   "there is no such file"                              },
    {EXIT_TRUNCATED, FAULT_SLOT_TRUNCATED, "the file's end is missing"                          },
    {EXIT_DENIED,    FAULT_INTERNAL,       "poold lets only its own user and root change things"},
};

static void fault_from_end(const struct tool_end *end, struct fault *ret)
{
    const char *code = json_string_value(json_object_get(end->out, "code"));
    const char *text = json_string_value(json_object_get(end->out, "error"));
    enum fault_kind kind = FAULT_INTERNAL;
    for (size_t i = 0; i < ARRAY_LEN(outcomes); i++) {
        if (outcomes[i].code != end->code) continue;
        kind = outcomes[i].kind;
        if (outcomes[i].text) text = outcomes[i].text;
    }
    if (kind == FAULT_SLOT_BUSY && code && strcmp(code, "pool_full") == 0) kind = FAULT_POOL_FULL;
    (void)fault_set(ret, kind, NULL, "Nothing was done: %s.", text ? text : "poolctl failed");
}

static void on_ended(void *arg, const struct tool_end *end)
{
    CLEANUP(action_freep) struct action *a = arg;
    struct fault fault;
    if (end->code == EXIT_DONE && end->out) {
        reply_json(a->exchange, 200, done_json(a, end->out));
        return;
    }
    fault_from_end(end, &fault);
    if (end->code < 0 && a->gateway->stopping)
        (void)fault_set(&fault, FAULT_DRAINING, NULL, "The server is going down.");
    if (fault.kind == FAULT_INTERNAL)
        log_error("slot %u: %s ended with %d: %s", a->slot, action_names[a->kind], end->code,
                  fault.text);
    reply_fault(a->exchange, &fault);
}

/* A tool that is killed has done nothing, or all. */
static void on_gone(void *arg)
{
    struct action *a = arg;
    tool_leave(a->tool);
    action_free(a);
}

/* ---- doing it ---------------------------------------------------------------------------- */

/* Takes a. row: of what is saved or erased, as poolctl names it. */
static void run(struct gateway *g, struct exchange *x, struct action *a, const char *row)
{
    char set[1024], file[4096], pipeline[16], lane[16];
    struct fault fault;
    bool fits = (size_t)snprintf(set, sizeof(set), "run.dir=%s", g->config->run.dir) < sizeof(set);
    fits &= (size_t)snprintf(file, sizeof(file), "%s/%s", g->config->gateway.slot_dir,
                             a->filename ? a->filename : "") < sizeof(file);
    (void)snprintf(pipeline, sizeof(pipeline), "%u", a->pipeline);
    (void)snprintf(lane, sizeof(lane), "%u", a->lane);
    const struct {
        size_t n;
        const char *argument[9];
    } commands[] = {
        [ACTION_SAVE] = {6, {"--json", "--set", set, "save", row, file}},
        [ACTION_RESTORE] = {9,
                         {"--json", "--set", set, "restore", file, "--pipeline", pipeline,
                             "--lane", lane}                           },
        [ACTION_ERASE] = {5, {"--json", "--set", set, "drop", row}      },
    };
    const char *const *arguments = commands[a->kind].argument;
    int r = fits ? tools_run(g->tools, arguments, commands[a->kind].n, on_ended, a, &a->tool)
                 : -ENAMETOOLONG;
    if (r == 0) {
        a->gateway = g;
        a->exchange = x;
        exchange_wait(x, on_gone, a);
        return;
    }
    (void)fault_set(&fault, r == -EBUSY ? FAULT_SLOT_BUSY : FAULT_INTERNAL, NULL,
                    r == -EBUSY ? "Other slots are being saved or restored; try again soon."
                                : "poolctl can't be started.");
    if (r != -EBUSY) log_error("slot %u: poolctl can't be started: %s", a->slot, strerror(-r));
    reply_fault(x, &fault);
    action_free(a);
}

void llamacpp_slot(struct gateway *g, struct exchange *x)
{
    CLEANUP(action_freep) struct action *a = xnew(struct action);
    struct fault fault;
    struct pool_body b = {0};
    uint32_t index = 0;
    char row[48] = "";
    int r = 0;
    if (!g->tools)
        r = fault_set(&fault, FAULT_NOT_BUILT, NULL,
                      "Slots are not saved here; gateway.slot_dir names a folder for them.");
    if (r == 0 && g->stopping)
        r = fault_set(&fault, FAULT_DRAINING, NULL, "The server is going down.");
    if (r == 0) r = kind_from(x, &fault, &a->kind);
    if (r == 0) r = slot_from(g, x, &fault, a);
    if (r == 0 && a->kind != ACTION_ERASE) r = filename_from(x, &fault, &a->filename);
    bool empty = r == 0 && a->kind != ACTION_RESTORE && row_of(g, x, a, &index, &b) < 0;
    if (empty && a->kind == ACTION_SAVE)
        r = fault_set(&fault, FAULT_SLOT_EMPTY, NULL, "Slot %u has no conversation.", a->slot);
    if (r < 0) {
        reply_fault(x, &fault);
        return;
    }
    if (empty) { /* nothing to erase is erased */
        reply_json(x, 200, done_json(a, NULL));
        return;
    }
    a->n_cells = b.base + b.copy_cells;
    (void)snprintf(row, sizeof(row), "%u:%llu", index, (unsigned long long)b.generation);
    run(g, x, TAKE(a), row);
}
