/* SPDX-License-Identifier: MIT */
/*
 * See fields.h. Called for every body that comes in, so everything here is hostile: jansson bounds
 * depth and refuses what isn't UTF-8, the table bounds the rest. Must not know HTTP or tokens.
 */
#include "gateway/api/fields.h"

#include <errno.h>
#include <math.h>
#include <string.h>

enum field_type {
    FIELD_BOOL,
    FIELD_U32,
    FIELD_FLOAT,
    FIELD_SEED,  /* any integer */
    FIELD_STOPS, /* a string, or an array of strings */
    FIELD_LIST,  /* an array with at least one member, kept as JSON */
    FIELD_EMPTY, /* an array that must be empty: what it asks for isn't done here */
    FIELD_TEXT,  /* a string that must be "text", likewise */
};

struct field {
    const char *name; /* "a.b": member b of object a */
    enum field_type type;
    double min, max; /* of numbers; equal: the only value that is served */
    double preset;   /* when absent or null */
    size_t offset;   /* in struct chat_ask */
    bool required;
};

#define AT(member) offsetof(struct chat_ask, member)

/* Of two rows that go to the same place the later one wins. top_k and min_p are not OpenAI's; their
 * names and ranges are those of llama.cpp and vLLM. */
static const struct field fields[] = {
    {.name = "messages", .type = FIELD_LIST,  .offset = AT(messages), .required = true},
    {"stream",  FIELD_BOOL,                     0, 1, 0, AT(stream), false},
    {"stream_options.include_usage",       FIELD_BOOL,     0, 1, 0, AT(include_usage), false},
    {"max_tokens",                 FIELD_U32,                          1, FIELD_TOKENS_MAX, 0, AT(max_tokens), false},
    {"max_completion_tokens",                  FIELD_U32,        1, FIELD_TOKENS_MAX, 0, AT(max_tokens), false},
    {"temperature",                 FIELD_FLOAT,                               0, 2, 1, AT(temperature), false},
    {"top_p", FIELD_FLOAT,               0, 1, 1, AT(top_p), false},
    {"min_p",       FIELD_FLOAT, 0, 1, 0, AT(min_p), false},
    {"top_k",  FIELD_U32,                    0, 1 << 20, 0, AT(top_k), false},
    {"n",             FIELD_U32,                                1, 1, 1, AT(n), false},
    {"logprobs",FIELD_BOOL,   0, 0, 0, AT(logprobs), false},
    {"top_logprobs",                 FIELD_U32,                      0, 0, 0, AT(top_logprobs), false},
    {.name = "seed",                  .type = FIELD_SEED                        },
    {.name = "stop",                 .type = FIELD_STOPS,     .offset = AT(stop)},
    {.name = "tools",   .type = FIELD_EMPTY                },
    {.name = "functions",            .type = FIELD_EMPTY                   },
    {.name = "response_format.type",                 .type = FIELD_TEXT                                  },
};

static const char *kind_of(const json_t *v)
{
    switch (json_typeof(v)) {
    case JSON_OBJECT:
        return "an object";
    case JSON_ARRAY:
        return "an array";
    case JSON_STRING:
        return "a string";
    case JSON_INTEGER:
        return "an integer";
    case JSON_REAL:
        return "a number";
    case JSON_TRUE:
    case JSON_FALSE:
        return "a boolean";
    default:
        return "null";
    }
}

static int wrong_type(struct fault *fault, const char *name, const char *right, const json_t *v)
{
    return fault_set(fault, FAULT_REQUEST, name, "'%s' must be %s, not %s.", name, right,
                     kind_of(v));
}

static int out_of_range(const struct field *f, struct fault *fault)
{
    if (f->min == f->max)
        return fault_set(fault, FAULT_FIELD, f->name, "'%s' must be %.9g on this server.", f->name,
                         f->min);
    return fault_set(fault, FAULT_REQUEST, f->name, "'%s' must be between %.9g and %.9g.", f->name,
                     f->min, f->max);
}

static int parse_bool(const struct field *f, const json_t *v, struct fault *fault, bool *ret)
{
    if (!json_is_boolean(v)) return wrong_type(fault, f->name, "a boolean", v);
    if (json_is_true(v) && f->max < 1)
        return fault_set(fault, FAULT_FIELD, f->name, "'%s' must be false on this server.",
                         f->name);
    *ret = json_is_true(v);
    return 0;
}

static int parse_u32(const struct field *f, const json_t *v, struct fault *fault, uint32_t *ret)
{
    if (!json_is_integer(v)) return wrong_type(fault, f->name, "an integer", v);
    json_int_t n = json_integer_value(v);
    if ((double)n < f->min || (double)n > f->max) return out_of_range(f, fault);
    *ret = (uint32_t)n;
    return 0;
}

static int parse_float(const struct field *f, const json_t *v, struct fault *fault, float *ret)
{
    if (!json_is_number(v)) return wrong_type(fault, f->name, "a number", v);
    double x = json_number_value(v);
    if (!(x >= f->min && x <= f->max)) return out_of_range(f, fault);
    *ret = (float)x;
    return 0;
}

static int parse_seed(const struct field *f, const json_t *v, struct fault *fault,
                      struct chat_ask *ask)
{
    if (!json_is_integer(v)) return wrong_type(fault, f->name, "an integer", v);
    ask->seeded = true;
    ask->seed = (uint64_t)json_integer_value(v);
    return 0;
}

static int parse_stop(const char *name, const json_t *v, struct fault *fault,
                      struct field_stops *stops)
{
    if (!json_is_string(v)) return wrong_type(fault, name, "a string or an array of strings", v);
    if (json_string_length(v) == 0)
        return fault_set(fault, FAULT_REQUEST, name, "'%s' must not be an empty string.", name);
    if (json_string_length(v) > TEXT_STOP_BYTES_MAX)
        return fault_set(fault, FAULT_REQUEST, name, "'%s' must be at most %d bytes long.", name,
                         TEXT_STOP_BYTES_MAX);
    stops->at[stops->n++] = json_string_value(v);
    return 0;
}

static int parse_stops(const struct field *f, const json_t *v, struct fault *fault,
                       struct field_stops *stops)
{
    if (!json_is_array(v)) return parse_stop(f->name, v, fault, stops);
    if (json_array_size(v) > TEXT_STOPS_MAX)
        return fault_set(fault, FAULT_REQUEST, f->name, "'%s' must have at most %d strings.",
                         f->name, TEXT_STOPS_MAX);
    for (size_t i = 0; i < json_array_size(v); i++) {
        char name[32];
        (void)snprintf(name, sizeof(name), "%s[%zu]", f->name, i);
        int r = parse_stop(name, json_array_get(v, i), fault, stops);
        if (r < 0) return r;
    }
    return 0;
}

static int parse_list(const struct field *f, const json_t *v, struct fault *fault,
                      const json_t **ret)
{
    if (!json_is_array(v)) return wrong_type(fault, f->name, "an array", v);
    if (json_array_size(v) == 0)
        return fault_set(fault, FAULT_REQUEST, f->name, "'%s' must not be empty.", f->name);
    *ret = v;
    return 0;
}

static int parse_nothing(const struct field *f, const json_t *v, struct fault *fault)
{
    if (f->type == FIELD_EMPTY) {
        if (!json_is_array(v)) return wrong_type(fault, f->name, "an array", v);
        if (json_array_size(v) == 0) return 0;
        return fault_set(fault, FAULT_FIELD, f->name, "'%s' is not supported by this server.",
                         f->name);
    }
    if (!json_is_string(v)) return wrong_type(fault, f->name, "a string", v);
    if (strcmp(json_string_value(v), "text") == 0) return 0;
    return fault_set(fault, FAULT_FIELD, f->name, "'%s' must be \"text\" on this server.", f->name);
}

static int parse_field(const struct field *f, const json_t *v, struct fault *fault,
                       struct chat_ask *ask)
{
    void *to = (char *)ask + f->offset;
    switch (f->type) {
    case FIELD_BOOL:
        return parse_bool(f, v, fault, to);
    case FIELD_U32:
        return parse_u32(f, v, fault, to);
    case FIELD_FLOAT:
        return parse_float(f, v, fault, to);
    case FIELD_SEED:
        return parse_seed(f, v, fault, ask);
    case FIELD_STOPS:
        return parse_stops(f, v, fault, to);
    case FIELD_LIST:
        return parse_list(f, v, fault, to);
    case FIELD_EMPTY:
    case FIELD_TEXT:
        return parse_nothing(f, v, fault);
    }
    return 0;
}

static void preset_field(const struct field *f, struct chat_ask *ask)
{
    void *to = (char *)ask + f->offset;
    if (f->type == FIELD_U32) *(uint32_t *)to = (uint32_t)f->preset;
    if (f->type == FIELD_FLOAT) *(float *)to = (float)f->preset;
    if (f->type == FIELD_BOOL) *(bool *)to = f->preset != 0;
}

/* The value of a row's name, NULL when absent or null: clients send null for "not said". */
static int find_field(const struct field *f, const json_t *body, struct fault *fault,
                      const json_t **ret)
{
    char outer[64];
    const char *dot = strchr(f->name, '.');
    const json_t *v = body;
    if (dot) {
        (void)snprintf(outer, sizeof(outer), "%.*s", (int)(dot - f->name), f->name);
        v = json_object_get(body, outer);
        if (v && !json_is_null(v) && !json_is_object(v))
            return wrong_type(fault, outer, "an object", v);
    }
    v = json_object_get(v, dot ? dot + 1 : f->name);
    *ret = v && !json_is_null(v) ? v : NULL;
    return 0;
}

static int parse_fields(const json_t *body, struct fault *fault, struct chat_ask *ask)
{
    for (size_t i = 0; i < ARRAY_LEN(fields); i++)
        preset_field(&fields[i], ask);
    for (size_t i = 0; i < ARRAY_LEN(fields); i++) {
        const struct field *f = &fields[i];
        const json_t *v = NULL;
        int r = find_field(f, body, fault, &v);
        if (r < 0) return r;
        if (v) r = parse_field(f, v, fault, ask);
        if (r < 0) return r;
        if (!v && f->required)
            return fault_set(fault, FAULT_REQUEST, f->name, "'%s' is missing.", f->name);
    }
    return 0;
}

int chat_ask_parse(const char *body, size_t bytes, struct fault *fault, struct chat_ask *ret)
{
    json_error_t e;
    struct chat_ask ask = {.body = json_loadb(bytes ? body : "", bytes, 0, &e)};
    if (!ask.body)
        return fault_set(fault, FAULT_REQUEST, NULL,
                         "The body is not valid JSON at byte %d (line %d, column %d): %s.",
                         e.position, e.line, e.column, e.text);
    int r = 0;
    if (!json_is_object(ask.body))
        r = fault_set(fault, FAULT_REQUEST, NULL, "The body must be an object, not %s.",
                      kind_of(ask.body));
    if (r == 0) r = parse_fields(ask.body, fault, &ask);
    if (r < 0) {
        chat_ask_fini(&ask);
        return r;
    }
    *ret = ask;
    return 0;
}

void chat_ask_fini(struct chat_ask *a)
{
    json_decref(a->body);
    a->body = NULL;
}
