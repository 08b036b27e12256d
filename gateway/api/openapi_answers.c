/* SPDX-License-Identifier: MIT */
/*
 * See openapi_answers.h. tests/clients holds every answer against this.
 */
#include "gateway/api/openapi_answers.h"

#include <stdbool.h>
#include <string.h>

#include "common/base.h"

enum {
    OPENAI = ANSWER_CHAT | ANSWER_COMPLETIONS,
    STREAMS = OPENAI | ANSWER_RESPONSES | ANSWER_MESSAGES | ANSWER_COMPLETION,
    ERRORS = ANSWER_ERROR | ANSWER_ERROR_ANTHROPIC,
};

/* "a.b" lies in the object a, "a[].b" in each member of the array a; "[]" alone is the answer
 * itself. A type that ends with ? may be null. */
static const struct answer_field {
    unsigned answers;
    const char *name, *type;
} answer_fields[] = {
    {OPENAI | ANSWER_RESPONSES | ANSWER_MESSAGES,              "id",                        "string" },
    {OPENAI | ANSWER_RESPONSES | ANSWER_MODELS | ANSWER_MODEL, "object",                    "string" },
    {OPENAI | ANSWER_MODEL,                                    "created",                   "integer"},
    {STREAMS,                                                  "model",                     "string" },
    {OPENAI,                                                   "choices[].index",           "integer"},
    {OPENAI,                                                   "choices[].finish_reason",   "string" },
    {ANSWER_CHAT,                                              "choices[].message.role",    "string" },
    {ANSWER_CHAT,                                              "choices[].message.content", "string" },
    {ANSWER_COMPLETIONS,                                       "choices[].text",            "string" },
    {OPENAI,                                                   "usage.prompt_tokens",       "integer"},
    {OPENAI,                                                   "usage.completion_tokens",   "integer"},
    {OPENAI | ANSWER_RESPONSES,                                "usage.total_tokens",        "integer"},
    {ANSWER_RESPONSES,                                         "created_at",                "integer"},
    {ANSWER_RESPONSES,                                         "status",                    "string" },
    {ANSWER_RESPONSES,                                         "output[].type",             "string" },
    {ANSWER_RESPONSES | ANSWER_MESSAGES,                       "usage.input_tokens",        "integer"},
    {ANSWER_RESPONSES | ANSWER_MESSAGES,                       "usage.output_tokens",       "integer"},
    {ANSWER_MESSAGES | ANSWER_ERROR_ANTHROPIC,                 "type",                      "string" },
    {ANSWER_MESSAGES,                                          "role",                      "string" },
    {ANSWER_MESSAGES,                                          "content[].type",            "string" },
    {ANSWER_MESSAGES,                                          "stop_reason",               "string" },
    {ANSWER_MESSAGES,                                          "stop_sequence",             "string?"},
    {ANSWER_COUNT,                                             "input_tokens",              "integer"},
    {ANSWER_COMPLETION | ANSWER_TEXT,                          "content",                   "string" },
    {ANSWER_COMPLETION,                                        "stop",                      "boolean"},
    {ANSWER_COMPLETION,                                        "stop_type",                 "string" },
    {ANSWER_COMPLETION,                                        "tokens_predicted",          "integer"},
    {ANSWER_COMPLETION,                                        "tokens_evaluated",          "integer"},
    {ANSWER_TOKENS,                                            "tokens",                    "array"  },
    {ANSWER_PROMPT,                                            "prompt",                    "string" },
    {ANSWER_MODELS,                                            "data[].id",                 "string" },
    {ANSWER_MODELS,                                            "data[].max_model_len",      "integer"},
    {ANSWER_MODEL,                                             "id",                        "string" },
    {ANSWER_MODEL,                                             "owned_by",                  "string" },
    {ANSWER_PROPS,                                             "total_slots",               "integer"},
    {ANSWER_PROPS,                                             "chat_template",             "string" },
    {ANSWER_SLOTS,                                             "[].id",                     "integer"},
    {ANSWER_SLOTS,                                             "[].n_ctx",                  "integer"},
    {ANSWER_SLOTS,                                             "[].is_processing",          "boolean"},
    {ANSWER_SLOT,                                              "id_slot",                   "integer"},
    {ANSWER_VERSION,                                           "name",                      "string" },
    {ANSWER_VERSION,                                           "version",                   "string" },
    {ANSWER_HEALTH,                                            "status",                    "string" },
    {ERRORS,                                                   "error.message",             "string" },
    {ERRORS,                                                   "error.type",                "string" },
    {ANSWER_ERROR,                                             "error.param",               "string?"},
    {ANSWER_ERROR,                                             "error.code",                "string" },
    {ANSWER_ERROR_ANTHROPIC,                                   "request_id",                "string" },
    {ANSWER_DOCUMENT,                                          "openapi",                   "string" },
};

/* Makes a schema without a type one of an object, or of an array of objects. */
static json_t *object_in(json_t *schema, bool each)
{
    if (!json_object_get(schema, "type"))
        (void)json_object_set_new(schema, "type", json_string(each ? "array" : "object"));
    if (!each) return schema;
    if (!json_object_get(schema, "items"))
        (void)json_object_set_new(schema, "items", json_object());
    return object_in(json_object_get(schema, "items"), false);
}

/* The member's schema, made when it is not there, and then required. */
static json_t *member_of(json_t *object, const char *name, size_t n)
{
    if (!json_object_get(object, "properties")) {
        (void)json_object_set_new(object, "properties", json_object());
        (void)json_object_set_new(object, "required", json_array());
    }
    json_t *properties = json_object_get(object, "properties");
    json_t *member = json_object_getn(properties, name, n);
    if (member) return member;
    member = json_object();
    (void)json_object_setn_new(properties, name, n, member);
    (void)json_array_append_new(json_object_get(object, "required"), json_stringn(name, n));
    return member;
}

static void add_field(json_t *schema, const struct answer_field *f)
{
    const char *at = f->name;
    for (const char *dot; (dot = strchr(at, '.')); at = dot + 1) {
        bool each = dot - at >= 2 && dot[-1] == ']';
        size_t n = (size_t)(dot - at) - (each ? 2 : 0);
        schema = object_in(n > 0 ? member_of(schema, at, n) : schema, each);
    }
    json_t *member = member_of(object_in(schema, false), at, strlen(at));
    size_t n = strcspn(f->type, "?");
    json_t *type = json_stringn(f->type, n);
    if (f->type[n]) type = json_pack("[o,s]", type, "null");
    (void)json_object_set_new(member, "type", type);
}

json_t *openapi_answer(enum openapi_answer kind, const char *description)
{
    json_t *schema = json_object(), *content = json_object();
    for (size_t i = 0; i < ARRAY_LEN(answer_fields); i++)
        if (answer_fields[i].answers & kind) add_field(schema, &answer_fields[i]);
    (void)json_object_set_new(content, "application/json", json_pack("{s:o}", "schema", schema));
    if (kind & STREAMS)
        (void)json_object_set_new(content, "text/event-stream",
                                  json_pack("{s:{s:s}}", "schema", "type", "string"));
    if (kind == ANSWER_METRICS)
        (void)json_object_set_new(content, "text/plain",
                                  json_pack("{s:{s:s}}", "schema", "type", "string"));
    return json_pack("{s:s,s:o}", "description", description, "content", content);
}
