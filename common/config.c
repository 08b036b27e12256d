/* SPDX-License-Identifier: MIT */
/*
 * Reads cistern.conf and the command line into struct config by the table in config_keys.c. Called
 * once by each program's main; knows no key by name.
 */
#include "common/config.h"

#include <errno.h>
#include <ini.h>
#include <limits.h>
#include <string.h>

#include "common/log.h"

enum { SETS_MAX = 64 }; /* --set on one command line: far above any use, and bounded */

struct reading {
    struct config *config;
    const char *path; /* for messages; NULL while presets are applied */
    struct why *why;
    int result;
};

static void *field(struct config *c, const struct config_key *k) { return (char *)c + k->offset; }

/* Edits between two words (Levenshtein), bounded by their lengths: for the nearest key. */
static unsigned distance(const char *a, const char *b)
{
    enum { WORD_MAX = 40 };
    unsigned row[WORD_MAX + 1];
    size_t na = strnlen(a, WORD_MAX), nb = strnlen(b, WORD_MAX);
    for (size_t j = 0; j <= nb; j++)
        row[j] = (unsigned)j;
    for (size_t i = 1; i <= na; i++) {
        unsigned diagonal = row[0];
        row[0] = (unsigned)i;
        for (size_t j = 1; j <= nb; j++) {
            unsigned change = diagonal + (a[i - 1] != b[j - 1]);
            diagonal = row[j];
            unsigned shift = (row[j] < row[j - 1] ? row[j] : row[j - 1]) + 1;
            row[j] = change < shift ? change : shift;
        }
    }
    return row[nb];
}

static const struct config_key *key_find(const char *section, const char *name,
                                         const struct config_key **ret_nearest)
{
    unsigned best = UINT_MAX;
    for (size_t i = 0; i < config_n_keys; i++) {
        const struct config_key *k = &config_keys[i];
        unsigned d = distance(section, k->section) + distance(name, k->name);
        if (d == 0) return k;
        if (d < best) best = d, *ret_nearest = k;
    }
    return NULL;
}

static int number_from(const char *text, uint64_t *ret)
{
    char *end = NULL;
    errno = 0;
    unsigned long long v = strtoull(text, &end, 10);
    if (errno || end == text || *text == '-' || *text == '+') return -EINVAL;
    static const struct {
        char letter;
        unsigned shift;
    } units[] = {
        {'k', 10},
        {'M', 20},
        {'G', 30}
    };
    for (size_t i = 0; i < ARRAY_LEN(units); i++) {
        if (*end != units[i].letter) continue;
        if (v > UINT64_MAX >> units[i].shift) return -ERANGE;
        v <<= units[i].shift;
        end++;
        break;
    }
    if (*end) return -EINVAL;
    *ret = v;
    return 0;
}

static int set_number(struct config *c, const struct config_key *k, const char *text,
                      struct why *why)
{
    uint64_t v = 0;
    int r = number_from(text, &v);
    if (r < 0 || v < k->min || v > k->max)
        return why_set(why, -EINVAL,
                       "%s.%s = %s: a whole number from %llu to %llu is wanted (k, M, G "
                       "stand for 2^10, 2^20, 2^30)",
                       k->section, k->name, text, (unsigned long long)k->min,
                       (unsigned long long)k->max);
    if (k->type == CONFIG_U32)
        *(uint32_t *)field(c, k) = (uint32_t)v;
    else
        *(uint64_t *)field(c, k) = v;
    return 0;
}

static int set_flag(struct config *c, const struct config_key *k, const char *text, struct why *why)
{
    static const struct {
        const char *word;
        bool value;
    } words[] = {
        {"yes",   true },
        {"no",    false},
        {"true",  true },
        {"false", false},
        {"on",    true },
        {"off",   false},
        {"1",     true },
        {"0",     false},
    };
    for (size_t i = 0; i < ARRAY_LEN(words); i++) {
        if (strcmp(text, words[i].word) != 0) continue;
        *(bool *)field(c, k) = words[i].value;
        return 0;
    }
    return why_set(why, -EINVAL, "%s.%s = %s: yes or no is wanted", k->section, k->name, text);
}

static int set_choice(struct config *c, const struct config_key *k, const char *text,
                      struct why *why)
{
    size_t n = strlen(text);
    uint32_t i = 0;
    for (const char *at = k->choices; at; i++) {
        const char *bar = strchr(at, '|');
        size_t m = bar ? (size_t)(bar - at) : strlen(at);
        if (m == n && memcmp(at, text, n) == 0) {
            *(uint32_t *)field(c, k) = k->values ? k->values[i] : i;
            return 0;
        }
        at = bar ? bar + 1 : NULL;
    }
    return why_set(why, -EINVAL, "%s.%s = %s: one of %s is wanted", k->section, k->name, text,
                   k->choices);
}

static int key_set(struct config *c, const struct config_key *k, const char *text, struct why *why)
{
    switch (k->type) {
    case CONFIG_U32:
    case CONFIG_U64:
        return set_number(c, k, text, why);
    case CONFIG_BOOL:
        return set_flag(c, k, text, why);
    case CONFIG_CHOICE:
        return set_choice(c, k, text, why);
    case CONFIG_STRING:
        break;
    }
    char **at = field(c, k);
    free(*at);
    *at = strdup(text);
    return *at ? 0 : -ENOMEM;
}

const char *config_choice(const struct config *c, const char *section, const char *name,
                          char ret[32])
{
    const struct config_key *nearest = NULL, *k = key_find(section, name, &nearest);
    uint32_t v = *(const uint32_t *)field((struct config *)c, k), i = 0;
    for (const char *at = k->choices; at; i++) {
        size_t n = strcspn(at, "|");
        if ((k->values ? k->values[i] : i) == v) (void)snprintf(ret, 32, "%.*s", (int)n, at);
        at = at[n] ? at + n + 1 : NULL;
    }
    return ret;
}

/* One "section.key = value" from a file or from --set; where names the place for the message. */
static int config_set(struct config *c, const char *section, const char *name, const char *value,
                      const char *where, struct why *why)
{
    const struct config_key *nearest = NULL, *k = key_find(section, name, &nearest);
    if (!k)
        return why_set(why, -EINVAL, "%s: unknown key %s.%s; did you mean %s.%s?", where, section,
                       name, nearest->section, nearest->name);
    struct why inner = {0};
    int r = key_set(c, k, value, &inner);
    return r < 0 ? why_set(why, r, "%s: %s", where, inner.text) : 0;
}

static int on_line(void *arg, const char *section, const char *name, const char *value)
{
    struct reading *r = arg;
    if (r->result == 0 && !*section)
        r->result = why_set(r->why, -EINVAL, "%s: %s stands in no [section]", r->path, name);
    else if (r->result == 0)
        r->result = config_set(r->config, section, name, value ? value : "", r->path, r->why);
    return r->result == 0;
}

static int read_file(struct config *c, const char *path, struct why *why)
{
    struct reading reading = {.config = c, .path = path, .why = why};
    int line = ini_parse(path, on_line, &reading);
    if (reading.result < 0) return reading.result;
    if (line < 0) return why_set(why, -ENOENT, "%s: cannot be read: %s", path, strerror(errno));
    if (line > 0)
        return why_set(why, -EINVAL, "%s: line %d is neither [section] nor key = value", path,
                       line);
    return 0;
}

static int apply_set(struct config *c, const char *set, struct why *why)
{
    CLEANUP(freep) char *copy = strdup(set);
    char *dot = copy ? strchr(copy, '.') : NULL;
    char *equals = dot ? strchr(dot, '=') : NULL;
    if (!equals) return why_set(why, -EINVAL, "--set %s: section.key=value is wanted", set);
    *dot = *equals = 0;
    return config_set(c, copy, dot + 1, equals + 1, "--set", why);
}

/* What one key cannot tell alone. */
static int config_check(const struct config *c, struct why *why)
{
    if (c->pool.chunk & (c->pool.chunk - 1))
        return why_set(why, -EINVAL, "pool.chunk = %u: a power of two is wanted", c->pool.chunk);
    uint32_t devices = 1;
    for (const char *at = c->worker.device; (at = strchr(at, ',')) != NULL; at++)
        devices++;
    if (devices != 1 && devices != c->worker.stages)
        return why_set(
            why, -EINVAL,
            "worker.device = %s: one device, or as many as worker.stages = %u, is wanted",
            c->worker.device, c->worker.stages);
    return 0;
}

int config_load(const char *path, char *const *sets, size_t n_sets, struct why *why,
                struct config **ret)
{
    CLEANUP(config_freep) struct config *c = xnew(struct config);
    int r = 0;
    for (size_t i = 0; r == 0 && i < config_n_keys; i++)
        r = key_set(c, &config_keys[i], config_keys[i].preset, why);
    if (r == 0 && path) r = read_file(c, path, why);
    for (size_t i = 0; r == 0 && i < n_sets; i++)
        r = apply_set(c, sets[i], why);
    if (r == 0) r = config_check(c, why);
    if (r < 0) return r;
    *ret = TAKE(c);
    return 0;
}

void config_free(struct config *c)
{
    if (!c) return;
    for (size_t i = 0; i < config_n_keys; i++)
        if (config_keys[i].type == CONFIG_STRING) free(*(char **)field(c, &config_keys[i]));
    free(c);
}

/* ---- the command line ---- */

static void print_help(const char *program, const char *what, const struct config_option *options,
                       size_t n)
{
    printf("%s: %s\n\nusage: %s [--config FILE] [--set section.key=value]...", program, what,
           program);
    for (size_t i = 0; i < n; i++)
        printf(" [--%s N]", options[i].name);
    printf("\n\n  --config FILE            read this configuration\n"
           "  --set section.key=value  override one key\n");
    for (size_t i = 0; i < n; i++)
        printf("  --%-22s %s\n", options[i].name, options[i].help);
    printf("  --print-config           print a configuration file with every key and end\n"
           "  --help, --version\n\nKeys of the configuration:\n");
    for (size_t i = 0; i < config_n_keys; i++) {
        const struct config_key *k = &config_keys[i];
        char full[64];
        (void)snprintf(full, sizeof(full), "%s.%s", k->section, k->name);
        printf("  %-24s %s (%s%sdefault: %s)\n", full, k->help, k->choices ? k->choices : "",
               k->choices ? "; " : "", *k->preset ? k->preset : "empty");
    }
}

/* The whole configuration as a file, each key with its preset and what it is for. */
static void print_config(void)
{
    const char *section = "";
    for (size_t i = 0; i < config_n_keys; i++) {
        const struct config_key *k = &config_keys[i];
        if (strcmp(section, k->section) != 0) printf("%s[%s]\n", i ? "\n" : "", k->section);
        section = k->section;
        printf("; %s%s%s%s\n; %s = %s\n", k->help, k->choices ? " (" : "",
               k->choices ? k->choices : "", k->choices ? ")" : "", k->name, k->preset);
    }
}

struct args {
    const char *config;
    char *sets[SETS_MAX];
    size_t n_sets;
    bool help, version, print;
};

/* Takes the argument at argv[*i], and the word after it where it has a value. */
static int take_arg(struct args *a, char **argv, int argc, int *i,
                    const struct config_option *options, size_t n, struct why *why)
{
    const char *arg = argv[*i];
    if (strcmp(arg, "--help") == 0) return a->help = true, 0;
    if (strcmp(arg, "--version") == 0) return a->version = true, 0;
    if (strcmp(arg, "--print-config") == 0) return a->print = true, 0;
    char *value = *i + 1 < argc ? argv[*i + 1] : NULL;
    const struct config_option *o = NULL;
    for (size_t k = 0; k < n; k++)
        if (strncmp(arg, "--", 2) == 0 && strcmp(arg + 2, options[k].name) == 0) o = &options[k];
    bool config = strcmp(arg, "--config") == 0, set = strcmp(arg, "--set") == 0;
    if (!o && !config && !set)
        return why_set(why, -EINVAL, "unknown argument %s; --help lists what there is", arg);
    if (!value) return why_set(why, -EINVAL, "%s wants a value", arg);
    ++*i;
    if (config) return a->config = value, 0;
    if (set) {
        if (a->n_sets == SETS_MAX) return why_set(why, -E2BIG, "more than %d --set", SETS_MAX);
        a->sets[a->n_sets++] = value;
        return 0;
    }
    uint64_t v = 0;
    if (number_from(value, &v) < 0 || v > o->max)
        return why_set(why, -EINVAL, "%s %s: a whole number from 0 to %u is wanted", arg, value,
                       o->max);
    *o->value = (uint32_t)v;
    return 0;
}

int config_from_args(int argc, char **argv, const char *program, const char *what,
                     const struct config_option *options, size_t n_options, struct why *why,
                     struct config **ret)
{
    struct args a = {0};
    for (int i = 1; i < argc; i++) {
        int r = take_arg(&a, argv, argc, &i, options, n_options, why);
        if (r < 0) return r;
    }
    if (a.help) return print_help(program, what, options, n_options), 1;
    if (a.version) return printf("%s %s\n", program, CISTERN_VERSION), 1;
    if (a.print) return print_config(), 1;
    int r = config_load(a.config, a.sets, a.n_sets, why, ret);
    if (r == 0) log_init(program, (int)(*ret)->run.log_level);
    return r;
}

/* ---- layers ---- */

int config_device(const char *devices, uint32_t stage, char *ret, size_t room)
{
    const char *at = devices;
    for (uint32_t i = 0; i < stage && strchr(devices, ','); i++) {
        at = strchr(at, ',');
        if (!at) return -EINVAL;
        at++;
    }
    size_t n = strcspn(at, ",");
    if (n == 0 || n >= room) return -EINVAL;
    memcpy(ret, at, n);
    ret[n] = 0;
    return 0;
}

int config_layers(const struct config *c, uint32_t stage, uint32_t n_layers, struct why *why,
                  uint32_t *ret_first, uint32_t *ret_n)
{
    uint32_t n = c->worker.stages;
    if (stage >= n || n > n_layers)
        return why_set(why, -EINVAL,
                       "stage %u of %u stages, for a model of %u layers: no such stage", stage, n,
                       n_layers);
    if (strcmp(c->worker.layers, "auto") == 0 || strcmp(c->worker.layers, "free") == 0) {
        *ret_first = (uint32_t)((uint64_t)n_layers * stage / n);
        *ret_n = (uint32_t)((uint64_t)n_layers * (stage + 1) / n) - *ret_first;
        return 0;
    }
    uint32_t next = 0, i = 0;
    for (const char *at = c->worker.layers; i < n; i++) {
        unsigned first, last;
        int used = 0;
        if (sscanf(at, "%u-%u%n", &first, &last, &used) != 2 || first != next || last < first ||
            last >= n_layers || (at[used] != (i + 1 < n ? ',' : 0)))
            break;
        if (i == stage) *ret_first = first, *ret_n = last - first + 1;
        next = last + 1;
        at += used + 1;
    }
    if (i == n && next == n_layers) return 0;
    return why_set(
        why, -EINVAL,
        "worker.layers = %s: %u ranges that follow each other from 0 to %u are wanted, as in "
        "\"0-%u,%u-%u\"",
        c->worker.layers, n, n_layers - 1, n_layers / 2 - 1, n_layers / 2, n_layers - 1);
}
