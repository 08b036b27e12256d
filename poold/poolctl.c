/* SPDX-License-Identifier: MIT */
/*
 * poolctl: the command line, the table of commands, and the tie to poold. It asks or looks, prints,
 * and ends with a code that says what happened.
 */
#include "poold/poolctl.h"

#include <ctype.h>
#include <errno.h>
#include <signal.h>
#include <string.h>

#include "common/log.h"

enum { REACH_US = 3000000 };

/* clang-format off */
static const struct command commands[] = {
    {"status", "", "the pool, pipelines, processes and conversations", check_none,
     .ask = ask_status, .text = text_status},
    {"top", "[--once]", "the same, live, from shared memory; q ends it", check_none,
     .begin = begin_top},
    {"lanes", "", "what runs, by pipeline and lane", check_none,
     .look = look_lanes, .text = text_lanes},
    {"conversations", "", "every conversation of the pool", check_none,
     .look = look_conversations, .text = text_conversations},
    {"chunks", "", "a map of the pool, a character a chunk", check_none,
     .look = look_chunks, .text = text_chunks},
    {"metrics", "", "what poold and the workers have counted", check_none,
     .look = look_metrics, .text = text_metrics},
    {"evict", "ROW:GENERATION | --cells N", "make one give back all, or idle ones give back until N cells are free", check_evict,
     .ask = ask_evict, .text = text_change},
    {"drop", "ROW:GENERATION | --all", "forget one cached conversation, or all", check_drop,
     .ask = ask_drop, .text = text_change},
    {"move", "ROW:GENERATION --pipeline P", "let a running conversation go on in pipeline P", check_move,
     .ask = ask_move, .text = text_change},
    {"drain", "PIPELINE[.STAGE]", "take nothing new there; what runs moves away, or finishes", check_place,
     .ask = ask_drain, .text = text_change},
    {"undrain", "PIPELINE[.STAGE]", "take requests there again", check_place,
     .ask = ask_undrain, .text = text_change},
    {"save", "ROW:GENERATION FILE", "write a conversation to a file, also while it runs", check_save,
     .begin = begin_save, .message = transfer_message, .files = transfer_files, .text = text_transfer},
    {"restore", "FILE [--pipeline P --lane L]", "cache a saved conversation again", check_restore,
     .begin = begin_restore, .message = transfer_message, .files = transfer_files, .text = text_transfer},
    {"doctor", "", "what would be started with this configuration, and whether it fits", check_none,
     .alone = doctor, .text = text_doctor},
};
/* clang-format on */

static const struct {
    int code;
    const char *meaning;
} exit_codes[] = {
    {EXIT_DONE,      "done"                                                       },
    {EXIT_REFUSED,   "wrong use, or refused; of doctor: something would not fit"  },
    {EXIT_UNREACHED, "poold can't be reached"                                     },
    {EXIT_UNKNOWN,   "no such conversation or pipeline"                           },
    {EXIT_LATER,     "busy, full or not ready: try again later"                   },
    {EXIT_DENIED,    "only root and poold's own user may do this"                 },
    {EXIT_FILE,      "the file can't be read or written"                          },
    {EXIT_DAMAGED,   "the file is no saved conversation, or is damaged"           },
    {EXIT_FOREIGN,   "the file is of another model, arithmetic, layout or release"},
    {EXIT_MISSING,   "there is no such file"                                      },
    {EXIT_TRUNCATED, "the file's end is missing"                                  },
};

/* poolctl's own options; what else begins with -- is the configuration's. */
static const struct option {
    const char *name, *value, *help;
} options[] = {
    {"--json",     NULL,                "print JSON"                                 },
    {"--all",      NULL,                "of drop: all cached conversations"          },
    {"--once",     NULL,                "of top: print once and end"                 },
    {"--cells",    "N",                 "of evict: cells that are to be free"        },
    {"--pipeline", "P",                 "of move: where to"                          },
    {"--lane",     "L",                 "of restore: the lane that is to have run it"},
    {"--config",   "FILE",              "the configuration, as of all programs"      },
    {"--set",      "SECTION.KEY=VALUE", "one key of it"                              },
    {"--words",    NULL,                "print the commands and options, for shells" },
    {"--help",     NULL,                "print this"                                 },
    {"--version",  NULL,                "print the version"                          },
};

/* ---- printing ---- */

long long json_number(const json_t *o, const char *key)
{
    return (long long)json_integer_value(json_object_get(o, key));
}

const char *json_text(const json_t *o, const char *key)
{
    const char *s = json_string_value(json_object_get(o, key));
    return s ? s : "-";
}

void ctl_print(struct ctl *c, json_t *o)
{
    if (c->json || !c->command->text) {
        json_dumpf(o, stdout, JSON_COMPACT);
        (void)putchar('\n');
    } else {
        c->command->text(o);
    }
    json_decref(o);
    (void)fflush(stdout);
}

void ctl_end(struct ctl *c, int code) { loop_stop(c->loop, code); }

static void fail(struct ctl *c, int code, const char *name, const char *text)
{
    fprintf(stderr, "poolctl: %s\n", text);
    if (c->json) {
        json_t *o = json_pack("{si ss ss*}", "exit", code, "error", text, "code", name);
        json_dumpf(o, stdout, JSON_COMPACT);
        (void)putchar('\n');
        json_decref(o);
    }
    if (c->loop) ctl_end(c, code);
}

void ctl_fail(struct ctl *c, int code, const char *format, ...)
{
    char text[512];
    va_list ap;
    va_start(ap, format);
    (void)vsnprintf(text, sizeof(text), format, ap);
    va_end(ap);
    fail(c, code, NULL, text);
}

static int code_exit(Cistern__Code code)
{
    switch (code) {
    case CISTERN__CODE__UNKNOWN:
        return EXIT_UNKNOWN;
    case CISTERN__CODE__BUSY:
    case CISTERN__CODE__POOL_FULL:
    case CISTERN__CODE__NOT_READY:
    case CISTERN__CODE__STALE:
        return EXIT_LATER;
    case CISTERN__CODE__DENIED:
        return EXIT_DENIED;
    case CISTERN__CODE__NEVER_FITS:
        return EXIT_FOREIGN;
    default:
        return EXIT_REFUSED;
    }
}

/* poold's refusal, with its code's name for who reads JSON. */
static void fail_refused(struct ctl *c, const Cistern__Refused *r)
{
    char text[512], name[32] = "";
    const ProtobufCEnumValue *v =
        protobuf_c_enum_descriptor_get_value(&cistern__code__descriptor, (int)r->code);
    for (size_t i = 0; v && v->name[i] && i + 1 < sizeof(name); i++)
        name[i] = (char)tolower(v->name[i]), name[i + 1] = 0;
    (void)snprintf(text, sizeof(text), "refused: %s", r->text);
    fail(c, code_exit(r->code), name, text);
}

/* ---- the tie to poold ---- */

int ctl_send(struct ctl *c, Cistern__Envelope *m)
{
    m->number = pool_client_number(c->client);
    int r = pool_client_send(c->client, m);
    if (r < 0) ctl_fail(c, EXIT_UNREACHED, "poold takes no message: %s", strerror(-r));
    return r;
}

/* Both the answer and the files are there: what the command is for can be done. */
static void go(struct ctl *c)
{
    const struct command *k = c->command;
    if (c->attached || (c->pool_id && (!c->view.h || c->view.h->pool_id != c->pool_id))) return;
    c->attached = true;
    if (k->ask) {
        Cistern__Envelope m = CISTERN__ENVELOPE__INIT;
        k->ask(c, &m);
        (void)ctl_send(c, &m);
        return;
    }
    if (!c->view.h) {
        ctl_fail(c, EXIT_LATER, "there is no pool yet: no worker has attached");
        return;
    }
    if (k->begin) {
        k->begin(c);
        return;
    }
    ctl_print(c, k->look(c));
    ctl_end(c, EXIT_DONE);
}

static void on_connected(void *arg)
{
    struct ctl *c = arg;
    Cistern__AttachOther attach = CISTERN__ATTACH_OTHER__INIT;
    attach.role = POOL_ROLE_TOOL;
    Cistern__Envelope m = CISTERN__ENVELOPE__INIT;
    m.body_case = CISTERN__ENVELOPE__BODY_ATTACH_OTHER;
    m.attach_other = &attach;
    (void)ctl_send(c, &m);
}

static void on_answer(struct ctl *c, const Cistern__Envelope *m)
{
    json_t *o = m->body_case == CISTERN__ENVELOPE__BODY_STATUS
                    ? json_loads(m->status->text, 0, NULL)
                    : json_pack("{sssI}", "command", c->command->name, "n", (json_int_t)m->done->n);
    if (!o) return ctl_fail(c, EXIT_REFUSED, "poold's answer is no JSON");
    ctl_print(c, o);
    ctl_end(c, EXIT_DONE);
}

static void on_message(void *arg, const Cistern__Envelope *m)
{
    struct ctl *c = arg;
    switch (m->body_case) {
    case CISTERN__ENVELOPE__BODY_ATTACHED:
        c->pool_id = m->attached->pool_id;
        if (c->pool_id == 0) pool_view_fini(&c->view);
        go(c);
        break;
    case CISTERN__ENVELOPE__BODY_REFUSED:
        fail_refused(c, m->refused);
        break;
    case CISTERN__ENVELOPE__BODY_STATUS:
    case CISTERN__ENVELOPE__BODY_DONE:
        if (c->command->ask) on_answer(c, m);
        /* fall through */
    default: /* and what poold tells everybody */
        if (c->command->message) c->command->message(c, m);
        break;
    }
}

/* Before the answer it is tried again until time is up; a command under way is over. */
static void on_lost(void *arg)
{
    struct ctl *c = arg;
    if (!c->attached) return;
    if (c->command->begin == begin_top) {
        c->attached = false;
        return;
    }
    ctl_fail(c, EXIT_UNREACHED, "poold went away before it was done");
}

static void on_files(void *arg, const struct lifeline_files *f, int *fds, uint32_t n_fds)
{
    struct ctl *c = arg;
    int r = pool_view_take(&c->view, f, fds, n_fds);
    if (r < 0)
        ctl_fail(c, EXIT_REFUSED, "poold's files can't be read: %s; are both of one release?",
                 strerror(-r));
    if (c->command->files) c->command->files(c, f, fds, n_fds);
    for (uint32_t i = 0; i < n_fds; i++)
        (void)close(fds[i]);
    if (c->pool_id && !c->attached) go(c);
}

static void on_refused(void *arg, const char *why)
{
    ctl_fail(arg, EXIT_REFUSED, "refused: %s", why);
}

static void on_timeout(void *arg)
{
    struct ctl *c = arg;
    if (c->attached) return;
    ctl_fail(c, EXIT_UNREACHED, "poold does not answer; does it run, with run.dir = %s?",
             c->config->run.dir);
}

static int run(struct ctl *c)
{
    struct pool_client_events events = {on_connected, on_lost, on_message, on_files, on_refused, c};
    struct loop_source *timeout = NULL;
    CLEANUP(loop_freep) struct loop *loop = NULL;
    int r = loop_new(&loop);
    c->loop = loop;
    if (r == 0) r = loop_add_timer(loop, on_timeout, c, &timeout);
    if (r == 0) r = loop_set_timer(timeout, REACH_US, 0);
    if (r == 0)
        r = pool_client_new(loop, c->config->run.dir, incarnation_new(), POOL_ROLE_TOOL, &events,
                            c->why, &c->client);
    if (r < 0) {
        fprintf(stderr, "poolctl: %s\n", *c->why->text ? c->why->text : strerror(-r));
        return EXIT_REFUSED;
    }
    r = loop_run(loop);
    pool_client_free(c->client);
    pool_view_fini(&c->view);
    return r < 0 ? EXIT_REFUSED : r;
}

/* ---- the command line ---- */

static void print_help(void)
{
    printf("poolctl: asks and changes Cistern's pool\n\n"
           "usage: poolctl [OPTION]... COMMAND [ARGUMENT]...\n\n");
    for (size_t i = 0; i < ARRAY_LEN(commands); i++)
        printf("  %-13s %-28s %s\n", commands[i].name, commands[i].args, commands[i].help);
    printf("\noptions:\n");
    for (size_t i = 0; i < ARRAY_LEN(options); i++)
        printf("  %-10s %-18s %s\n", options[i].name, options[i].value ? options[i].value : "",
               options[i].help);
    printf("\nexit codes:\n");
    for (size_t i = 0; i < ARRAY_LEN(exit_codes); i++)
        printf("  %d  %s\n", exit_codes[i].code, exit_codes[i].meaning);
}

static void print_words(void)
{
    for (size_t i = 0; i < ARRAY_LEN(commands); i++)
        printf("%s\n", commands[i].name);
    for (size_t i = 0; i < ARRAY_LEN(options); i++)
        printf("%s\n", options[i].name);
}

int check_none(struct ctl *c) { return c->n_args == 0 ? 0 : -EINVAL; }

int check_row(struct ctl *c)
{
    char *end = NULL;
    if (c->n_args == 0 || c->arg[0][0] < '0' || c->arg[0][0] > '9') return -EINVAL;
    unsigned long row = strtoul(c->arg[0], &end, 10);
    if (*end != ':' || end[1] < '0' || end[1] > '9' || row > UINT32_MAX) return -EINVAL;
    c->row = (uint32_t)row;
    c->generation = strtoull(end + 1, &end, 10);
    return *end ? -EINVAL : 0;
}

static int number_from(const char *text, uint64_t max, uint64_t *ret)
{
    char *end = NULL;
    if (!text || *text < '0' || *text > '9') return -EINVAL;
    errno = 0;
    unsigned long long v = strtoull(text, &end, 10);
    if (errno || *end || v > max) return -EINVAL;
    *ret = v;
    return 0;
}

/* The one of poolctl's own options that argv[*i] is; moves past its value. 1: none. */
static int take_option(struct ctl *c, int argc, char **argv, int *i)
{
    const char *word = argv[*i];
    uint64_t v = 0;
    if (strcmp(word, "--json") == 0) return c->json = true, 0;
    if (strcmp(word, "--all") == 0) return c->all = true, 0;
    if (strcmp(word, "--once") == 0) return c->once = true, 0;
    bool cells = strcmp(word, "--cells") == 0, pipeline = strcmp(word, "--pipeline") == 0;
    bool lane = strcmp(word, "--lane") == 0;
    if (!cells && !pipeline && !lane) return 1;
    uint64_t max = cells ? UINT64_MAX : pipeline ? POOL_PIPELINES_MAX - 1 : POOL_NO_LANE - 1;
    ++*i;
    if (number_from(*i < argc ? argv[*i] : NULL, max, &v))
        return why_set(c->why, -EINVAL, "%s wants a number", word);
    if (cells) c->cells = v, c->has_cells = true;
    if (pipeline) c->pipeline = (uint32_t)v, c->has_pipeline = true;
    if (lane) c->lane = (uint32_t)v, c->has_lane = true;
    return 0;
}

static int take_word(struct ctl *c, const char *word)
{
    if (c->command) {
        if (c->n_args == CTL_ARGS_MAX) return why_set(c->why, -EINVAL, "too many arguments");
        c->arg[c->n_args++] = word;
        return 0;
    }
    for (size_t k = 0; k < ARRAY_LEN(commands); k++)
        if (strcmp(word, commands[k].name) == 0) c->command = &commands[k];
    return c->command ? 0
                      : why_set(c->why, -EINVAL, "there is no command %s; --help lists them", word);
}

/* Takes poolctl's own words out of argv; what is left is the configuration's. */
static int take_words(struct ctl *c, int argc, char **argv, char **ret_rest, int *ret_n)
{
    int n = 0;
    ret_rest[n++] = argv[0];
    for (int i = 1; i < argc; i++) {
        int r = take_option(c, argc, argv, &i);
        if (r == 1 && argv[i][0] != '-') r = take_word(c, argv[i]);
        if (r < 0) return r;
        if (r == 0) continue;
        ret_rest[n++] = argv[i];
        bool value = strcmp(argv[i], "--config") == 0 || strcmp(argv[i], "--set") == 0;
        if (value && i + 1 < argc) ret_rest[n++] = argv[++i];
    }
    *ret_n = n;
    return 0;
}

static bool has_word(int argc, char **argv, const char *word)
{
    for (int i = 1; i < argc; i++)
        if (strcmp(argv[i], word) == 0) return true;
    return false;
}

static int prepare(struct ctl *c, int argc, char **argv)
{
    CLEANUP(freep) char **rest = xcalloc((size_t)argc + 1, sizeof(*rest));
    int n = 0;
    int r = take_words(c, argc, argv, rest, &n);
    if (r < 0) return r;
    r = config_from_args(n, rest, "poolctl", "asks and changes Cistern's pool", NULL, 0, c->why,
                         &c->config);
    if (r != 0) return r;
    if (!c->command) return why_set(c->why, -EINVAL, "no command; --help lists them");
    c->pipeline = c->has_pipeline ? c->pipeline : 0;
    if (c->command->check(c) == 0) return 0;
    return why_set(c->why, -EINVAL, "%s takes %s", c->command->name,
                   *c->command->args ? c->command->args : "no argument");
}

int main(int argc, char **argv)
{
    struct why why = {0};
    struct ctl c = {.why = &why};
    if (argc == 1 || has_word(argc, argv, "--help")) {
        print_help();
        return argc == 1 ? EXIT_REFUSED : EXIT_DONE;
    }
    if (has_word(argc, argv, "--words")) return print_words(), EXIT_DONE;
    (void)signal(SIGPIPE, SIG_IGN);
    int r = prepare(&c, argc, argv);
    int code = EXIT_DONE;
    if (r < 0)
        ctl_fail(&c, code = EXIT_REFUSED, "%s", why.text);
    else if (r == 0)
        code = c.command->alone ? c.command->alone(&c) : run(&c);
    config_free(c.config);
    return code;
}
