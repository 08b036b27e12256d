/* SPDX-License-Identifier: MIT */
/*
 * See fields.h. Called for every body that comes in, so everything here is hostile: jansson bounds
 * depth and refuses what isn't UTF-8, the table bounds the rest. Must not know HTTP or tokens.
 */
#include "gateway/api/fields.h"

#include <errno.h>
#include <math.h>
#include <string.h>

const char *json_kind(const json_t *v)
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

int field_wrong(struct fault *fault, const char *name, const char *right, const json_t *v)
{
    return fault_set(fault, FAULT_REQUEST, name, "'%s' must be %s, not %s.", name, right,
                     json_kind(v));
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
    if (!json_is_boolean(v)) return field_wrong(fault, f->name, "a boolean", v);
    if (json_is_true(v) && f->max < 1)
        return fault_set(fault, FAULT_FIELD, f->name, "'%s' must be false on this server.",
                         f->name);
    *ret = json_is_true(v);
    return 0;
}

static int parse_u32(const struct field *f, const json_t *v, struct fault *fault, uint32_t *ret)
{
    double n = json_number_value(v); /* 8.0 is a whole number, too */
    if (!json_is_number(v) || n != floor(n)) return field_wrong(fault, f->name, "an integer", v);
    if (n < f->min || n > f->max) return out_of_range(f, fault);
    *ret = (uint32_t)(int64_t)n; /* -1 is all bits */
    return 0;
}

static int parse_float(const struct field *f, const json_t *v, struct fault *fault, float *ret)
{
    if (!json_is_number(v)) return field_wrong(fault, f->name, "a number", v);
    double x = json_number_value(v);
    if (!(x >= f->min && x <= f->max)) return out_of_range(f, fault);
    *ret = (float)x;
    return 0;
}

static int parse_seed(const struct field *f, const json_t *v, struct fault *fault, struct ask *ask)
{
    if (!json_is_integer(v)) return field_wrong(fault, f->name, "an integer", v);
    ask->seeded = true;
    ask->seed = (uint64_t)json_integer_value(v);
    return 0;
}

static int parse_stop(const char *name, const json_t *v, struct fault *fault,
                      struct field_stops *stops)
{
    if (!json_is_string(v)) return field_wrong(fault, name, "a string or an array of strings", v);
    if (json_string_length(v) == 0)
        return fault_set(fault, FAULT_REQUEST, name, "'%s' must not be an empty string.", name);
    if (strlen(json_string_value(v)) != json_string_length(v))
        return fault_set(fault, FAULT_REQUEST, name, "'%s' must not hold a NUL.", name);
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

/* How many there are; the ids and numbers are logit_bias.c's, which knows the vocabulary. */
static int parse_biases(const struct field *f, const json_t *v, struct fault *fault,
                        const json_t **ret)
{
    if (!json_is_object(v) && !json_is_array(v))
        return field_wrong(fault, f->name, "an object or an array", v);
    size_t n = json_is_object(v) ? json_object_size(v) : json_array_size(v);
    if (n > FIELD_BIASES_MAX)
        return fault_set(fault, FAULT_REQUEST, f->name, "'%s' must have at most %d members.",
                         f->name, FIELD_BIASES_MAX);
    *ret = v;
    return 0;
}

static int parse_list(const struct field *f, const json_t *v, struct fault *fault,
                      const json_t **ret)
{
    if (!json_is_array(v)) return field_wrong(fault, f->name, "an array", v);
    if (json_array_size(v) == 0)
        return fault_set(fault, FAULT_REQUEST, f->name, "'%s' must not be empty.", f->name);
    *ret = v;
    return 0;
}

static int parse_json(const struct field *f, const json_t *v, struct fault *fault,
                      const json_t **ret)
{
    if (f->type == FIELD_STRING && !json_is_string(v))
        return field_wrong(fault, f->name, "a string", v);
    if (f->type == FIELD_OBJECT && !json_is_object(v))
        return field_wrong(fault, f->name, "an object", v);
    if (f->type == FIELD_ARRAY && !json_is_array(v))
        return field_wrong(fault, f->name, "an array", v);
    *ret = v;
    return 0;
}

/* OpenAI's word or object, Anthropic's object. To make a model call a tool its words must be
 * constrained, which is not done: better a refusal than an answer without the call. */
static int parse_choice(const struct field *f, const json_t *v, struct fault *fault, bool *ret)
{
    const json_t *word = json_is_object(v) ? json_object_get(v, "type") : v;
    if (!json_is_string(word)) return field_wrong(fault, f->name, "a string or an object", v);
    *ret = strcmp(json_string_value(word), "none") == 0;
    if (*ret || strcmp(json_string_value(word), "auto") == 0) return 0;
    return fault_set(fault, FAULT_FIELD, f->name,
                     "'%s' must be auto or none on this server: a call can't be enforced.",
                     f->name);
}

static int parse_nothing(const struct field *f, const json_t *v, struct fault *fault)
{
    if (f->type == FIELD_NONE) {
        if (json_is_array(v) && json_array_size(v) == 0) return 0;
        if (json_is_object(v) && json_object_size(v) == 0) return 0;
        if (json_is_string(v) && json_string_length(v) == 0) return 0;
    }
    if (f->type != FIELD_TEXT)
        return fault_set(fault, FAULT_FIELD, f->name, "'%s' is not supported by this server.",
                         f->name);
    if (!json_is_string(v)) return field_wrong(fault, f->name, "a string", v);
    if (strcmp(json_string_value(v), "text") == 0) return 0;
    return fault_set(fault, FAULT_FIELD, f->name, "'%s' must be \"text\" on this server.", f->name);
}

static int parse_field(const struct field *f, const json_t *v, struct fault *fault, struct ask *ask)
{
    void *to = (char *)ask + f->offset;
    switch (f->type) {
    case FIELD_BOOL:
        return parse_bool(f, v, fault, to);
    case FIELD_U32:
        return parse_u32(f, v, fault, to);
    case FIELD_ZERO:
        *(bool *)to = json_is_integer(v) && json_integer_value(v) == 0;
        return 0;
    case FIELD_FLOAT:
        return parse_float(f, v, fault, to);
    case FIELD_SEED:
        return parse_seed(f, v, fault, ask);
    case FIELD_STOPS:
        return parse_stops(f, v, fault, to);
    case FIELD_BIASES:
        return parse_biases(f, v, fault, to);
    case FIELD_LIST:
        return parse_list(f, v, fault, to);
    case FIELD_STRING:
    case FIELD_ARRAY:
    case FIELD_OBJECT:
    case FIELD_ANY:
        return parse_json(f, v, fault, to);
    case FIELD_CHOICE:
        return parse_choice(f, v, fault, to);
    case FIELD_NONE:
    case FIELD_TEXT:
    case FIELD_ABSENT:
        return parse_nothing(f, v, fault);
    }
    return 0;
}

static void preset_field(const struct field *f, struct ask *ask)
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
    const json_t *v = body;
    for (const char *at = f->name; *at;) {
        size_t n = strcspn(at, ".");
        char outer[64];
        (void)snprintf(outer, sizeof(outer), "%.*s", (int)(at - f->name) - 1, f->name);
        if (v && at != f->name && !json_is_null(v) && !json_is_object(v))
            return field_wrong(fault, outer, "an object", v);
        v = json_object_getn(v, at, n);
        at += n + (at[n] == '.');
    }
    *ret = v && !json_is_null(v) ? v : NULL;
    return 0;
}

static int parse_fields(enum api_id api, const json_t *body, struct fault *fault, struct ask *ask)
{
    for (size_t i = 0; i < field_table_n; i++)
        if (field_table[i].apis & api) preset_field(&field_table[i], ask);
    for (size_t i = 0; i < field_table_n; i++) {
        const struct field *f = &field_table[i];
        const json_t *v = NULL;
        if (!(f->apis & api)) continue;
        int r = find_field(f, body, fault, &v);
        if (r < 0) return r;
        if (v) r = parse_field(f, v, fault, ask);
        if (r < 0) return r;
        if (!v && f->required)
            return fault_set(fault, FAULT_REQUEST, f->name, "'%s' is missing.", f->name);
    }
    return 0;
}

int ask_parse(enum api_id api, const char *body, size_t bytes, struct fault *fault, struct ask *ret)
{
    json_error_t e;
    struct ask ask = {.body = json_loadb(bytes ? body : "", bytes, JSON_ALLOW_NUL, &e)};
    if (!ask.body)
        return fault_set(fault, FAULT_REQUEST, NULL,
                         "The body is not valid JSON at byte %d (line %d, column %d): %s.",
                         e.position, e.line, e.column, e.text);
    int r = 0;
    if (!json_is_object(ask.body))
        r = fault_set(fault, FAULT_REQUEST, NULL, "The body must be an object, not %s.",
                      json_kind(ask.body));
    if (r == 0) r = parse_fields(api, ask.body, fault, &ask);
    if (r == 0 && api == API_CHAT && ask.top_logprobs && !ask.logprobs)
        r = fault_set(fault, FAULT_REQUEST, "top_logprobs",
                      "'top_logprobs' needs 'logprobs' to be true.");
    if (r < 0) {
        ask_fini(&ask);
        return r;
    }
    *ret = ask;
    return 0;
}

void ask_fini(struct ask *a)
{
    json_decref(a->body);
    a->body = NULL;
}
