/* SPDX-License-Identifier: MIT */
/*
 * See openapi.h. What a body may hold is said field by field from field_table; nothing about a
 * field is written here.
 */
#include "gateway/api/openapi.h"

#include <string.h>

#include "gateway/api/fields.h"
#include "gateway/api/openapi_answers.h"
#include "gateway/api/reply.h"

static const struct operation {
    const char *path, *method;
    enum api_id api; /* 0: no body */
    enum openapi_answer answer;
    const char *summary;
} operations[] = {
    {"/v1/chat/completions",      "post", API_CHAT,           ANSWER_CHAT,        "A chat's next message."               },
    {"/v1/completions",           "post", API_COMPLETIONS,    ANSWER_COMPLETIONS, "What follows a prompt."               },
    {"/v1/responses",             "post", API_RESPONSES,      ANSWER_RESPONSES,   "A response to items."                 },
    {"/v1/messages",              "post", API_MESSAGES,       ANSWER_MESSAGES,    "A chat's next message."               },
    {"/v1/messages/count_tokens", "post", API_COUNT_TOKENS,   ANSWER_COUNT,
     "How many tokens a prompt has."                                                                                     },
    {"/completion",               "post", API_COMPLETION,     ANSWER_COMPLETION,  "What follows a prompt."               },
    {"/tokenize",                 "post", API_TOKENIZE,       ANSWER_TOKENS,      "The tokens of a text."                },
    {"/detokenize",               "post", API_DETOKENIZE,     ANSWER_TEXT,        "The text of tokens."                  },
    {"/apply-template",           "post", API_APPLY_TEMPLATE, ANSWER_PROMPT,      "A chat's prompt."                     },
    {"/v1/models",                "get",  0,                  ANSWER_MODELS,      "The models that are served."          },
    {"/v1/models/{model}",        "get",  0,                  ANSWER_MODEL,       "A model that is served."              },
    {"/props",                    "get",  0,                  ANSWER_PROPS,       "What is served, and how."             },
    {"/slots",                    "get",  0,                  ANSWER_SLOTS,       "What is going on in each lane."       },
    {"/slots/{id_slot}",          "post", API_SLOT,           ANSWER_SLOT,        "Saves, restores or erases a slot."    },
    {"/version",                  "get",  0,                  ANSWER_VERSION,     "The version of the server."           },
    {"/health",                   "get",  0,                  ANSWER_HEALTH,      "Whether a request could be served."   },
    {"/v1/health",                "get",  0,                  ANSWER_HEALTH,      "Whether a request could be served."   },
    {"/openapi.json",             "get",  0,                  ANSWER_DOCUMENT,    "This document."                       },
    {"/metrics",                  "get",  0,                  ANSWER_METRICS,     "What is counted, as Prometheus reads."},
};

static json_t *number_json(const struct field *f, const char *type)
{
    json_t *s = json_pack("{s:[s,s]}", "type", type, "null");
    bool whole = strcmp(type, "integer") == 0;
    (void)json_object_set_new(s, "minimum",
                              whole ? json_integer((json_int_t)f->min) : json_real(f->min));
    (void)json_object_set_new(s, "maximum",
                              whole ? json_integer((json_int_t)f->max) : json_real(f->max));
    return s;
}

/* null is "not said" for every field that need not be there. */
static json_t *typed(const struct field *f, const char *type)
{
    if (f->required) return json_pack("{s:s}", "type", type);
    return json_pack("{s:[s,s]}", "type", type, "null");
}

static json_t *stops_json(void)
{
    return json_pack("{s:[{s:[s,s],s:i,s:i},{s:s,s:i,s:{s:s,s:i,s:i}}]}", "anyOf", "type", "string",
                     "null", "minLength", 1, "maxLength", TEXT_STOP_BYTES_MAX, "type", "array",
                     "maxItems", TEXT_STOPS_MAX, "items", "type", "string", "minLength", 1,
                     "maxLength", TEXT_STOP_BYTES_MAX);
}

/* OpenAI's object, and llama.cpp's array of pairs. */
static json_t *biases_json(void)
{
    json_t *by_id = json_pack("{s:[s,s],s:i,s:{s:s},s:{s:s,s:i,s:i}}", "type", "object", "null",
                              "maxProperties", FIELD_BIASES_MAX, "propertyNames", "pattern",
                              "^(0|[1-9][0-9]*)$", "additionalProperties", "type", "number",
                              "minimum", -FIELD_BIAS_MAX, "maximum", FIELD_BIAS_MAX);
    json_t *token = json_pack("{s:[{s:s,s:i},{s:s}]}", "anyOf", "type", "integer", "minimum", 0,
                              "type", "string");
    json_t *bias = json_pack("{s:[{s:s,s:i,s:i},{s:[b]}]}", "anyOf", "type", "number", "minimum",
                             -FIELD_BIAS_MAX, "maximum", FIELD_BIAS_MAX, "enum", 0);
    json_t *pairs = json_pack("{s:s,s:i,s:{s:s,s:[o,o],s:i,s:i}}", "type", "array", "maxItems",
                              FIELD_BIASES_MAX, "items", "type", "array", "prefixItems", token,
                              bias, "minItems", 2, "maxItems", 2);
    return json_pack("{s:[o,o]}", "anyOf", by_id, pairs);
}

static json_t *messages_json(enum api_id api)
{
    bool anthropic = api == API_MESSAGES || api == API_COUNT_TOKENS;
    json_t *roles =
        anthropic ? json_pack("[s,s]", "user", "assistant")
                  : json_pack("[s,s,s,s,s]", "system", "developer", "user", "assistant", "tool");
    return json_pack("{s:s,s:i,s:{s:s,s:[s],s:{s:{s:o},s:{s:[s,s,s]}}}}", "type", "array",
                     "minItems", 1, "items", "type", "object", "required", "role", "properties",
                     "role", "enum", roles, "content", "type", "string", "array", "null");
}

/* A text, token ids, or several of these. */
static json_t *prompt_json(void)
{
    return json_pack("{s:[{s:s,s:i},{s:s,s:i}]}", "anyOf", "type", "string", "minLength", 1, "type",
                     "array", "minItems", 1);
}

static json_t *schema_of(const struct field *f, enum api_id api)
{
    switch (f->type) {
    case FIELD_BOOL:
        if (f->max < 1) return json_pack("{s:[b,n]}", "enum", 0);
        return typed(f, "boolean");
    case FIELD_ZERO: /* the row with the number follows it */
    case FIELD_U32:
        return number_json(f, "integer");
    case FIELD_FLOAT:
        return number_json(f, "number");
    case FIELD_SEED:
        return typed(f, "integer");
    case FIELD_STOPS:
        return stops_json();
    case FIELD_BIASES:
        return biases_json();
    case FIELD_STRING:
        return typed(f, "string");
    case FIELD_LIST:
        return messages_json(api);
    case FIELD_ARRAY:
        return typed(f, "array");
    case FIELD_OBJECT:
        return typed(f, "object");
    case FIELD_CHOICE:
        return json_pack("{s:[{s:[s,s,n]},{s:s,s:[s],s:{s:{s:[s,s]}}}]}", "anyOf", "enum", "auto",
                         "none", "type", "object", "required", "type", "properties", "type", "enum",
                         "auto", "none");
    case FIELD_NONE:
        return json_pack("{s:[s,[],{},n]}", "enum", "");
    case FIELD_TEXT:
        return json_pack("{s:[s,n]}", "enum", "text");
    case FIELD_ABSENT:
        return json_pack("{s:s}", "type", "null");
    case FIELD_ANY:
        if (f->required) return prompt_json();
        break;
    }
    return json_object();
}

/* The properties that "a.b" lies in, made on the way. */
static json_t *properties_at(json_t *schema, const char **name)
{
    json_t *properties = json_object_get(schema, "properties");
    for (const char *dot; (dot = strchr(*name, '.')); *name = dot + 1) {
        size_t n = (size_t)(dot - *name);
        json_t *outer = json_object_getn(properties, *name, n);
        if (!outer) {
            outer = json_pack("{s:[s,s],s:{}}", "type", "object", "null", "properties");
            (void)json_object_setn_new(properties, *name, n, outer);
        }
        properties = json_object_get(outer, "properties");
    }
    return properties;
}

static json_t *body_of(enum api_id api)
{
    json_t *schema = json_pack("{s:s,s:{}}", "type", "object", "properties");
    json_t *required = json_array();
    for (size_t i = 0; i < field_table_n; i++) {
        const struct field *f = &field_table[i];
        const char *name = f->name;
        if (!(f->apis & api)) continue;
        json_t *properties = properties_at(schema, &name);
        (void)json_object_set_new(properties, name, schema_of(f, api));
        if (f->required) (void)json_array_append_new(required, json_string(f->name));
    }
    if (json_array_size(required) > 0) (void)json_object_set(schema, "required", required);
    json_decref(required);
    return json_pack("{s:b,s:{s:{s:o}}}", "required", 1, "content", "application/json", "schema",
                     schema);
}

/* Whatever a kind of fault may be answered with. */
static json_t *answers_of(const struct operation *o)
{
    json_t *answers = json_pack("{s:o}", "200", openapi_answer(o->answer, o->summary));
    enum fault_style style =
        o->api == API_MESSAGES || o->api == API_COUNT_TOKENS ? FAULT_ANTHROPIC : FAULT_OPENAI;
    for (int kind = FAULT_NONE + 1; kind < FAULT_KINDS; kind++) {
        const struct fault_row *row = fault_row((enum fault_kind)kind);
        char status[16];
        (void)snprintf(status, sizeof(status), "%u", row->status[style]);
        (void)json_object_set_new(
            answers, status,
            openapi_answer(style == FAULT_ANTHROPIC ? ANSWER_ERROR_ANTHROPIC : ANSWER_ERROR,
                           row->type[style]));
    }
    return answers;
}

/* Of the two paths that have any: whose, and of a slot what is to be done. */
static json_t *parameters_of(const struct operation *o)
{
    if (o->answer == ANSWER_MODEL)
        return json_pack("[{s:s,s:s,s:b,s:{s:s}}]", "name", "model", "in", "path", "required", 1,
                         "schema", "type", "string");
    if (o->answer != ANSWER_SLOT) return NULL;
    return json_pack("[{s:s,s:s,s:b,s:{s:s,s:i}},{s:s,s:s,s:b,s:{s:[s,s,s]}}]", "name", "id_slot",
                     "in", "path", "required", 1, "schema", "type", "integer", "minimum", 0, "name",
                     "action", "in", "query", "required", 1, "schema", "enum", "save", "restore",
                     "erase");
}

json_t *openapi_document(void)
{
    json_t *paths = json_object();
    for (size_t i = 0; i < ARRAY_LEN(operations); i++) {
        const struct operation *o = &operations[i];
        json_t *operation = json_pack("{s:s,s:o,s:o*}", "summary", o->summary, "responses",
                                      answers_of(o), "parameters", parameters_of(o));
        if (o->api) (void)json_object_set_new(operation, "requestBody", body_of(o->api));
        (void)json_object_set_new(paths, o->path, json_pack("{s:o}", o->method, operation));
    }
    return json_pack("{s:s,s:{s:s,s:s},s:o,s:{s:{s:{s:s,s:s},s:{s:s,s:s,s:s}}}}", "openapi",
                     "3.1.0", "info", "title", "Cistern", "version", CISTERN_VERSION, "paths",
                     paths, "components", "securitySchemes", "bearer", "type", "http", "scheme",
                     "bearer", "header", "type", "apiKey", "in", "header", "name", "x-api-key");
}

void openapi_serve(struct gateway *g, struct exchange *x)
{
    (void)g;
    reply_json(x, 200, openapi_document());
}
