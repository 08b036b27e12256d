/* SPDX-License-Identifier: MIT */
#ifndef GATEWAY_API_FIELD_TABLE_H
#define GATEWAY_API_FIELD_TABLE_H
/*
 * The fields of all bodies that are taken, one row each: parsing (fields.c) and the OpenAPI
 * document (openapi.c) both come from it. Constant.
 */
#include <stdbool.h>
#include <stddef.h>

enum field_type {
    FIELD_BOOL,
    FIELD_U32,
    FIELD_FLOAT,
    FIELD_ZERO,   /* whether it is said and 0; another row has the number */
    FIELD_SEED,   /* any integer */
    FIELD_STOPS,  /* a string, or an array of strings */
    FIELD_BIASES, /* an object or an array (logit_bias.h), kept as JSON */
    FIELD_STRING, /* kept as JSON, as the next three */
    FIELD_LIST,   /* an array with at least one member */
    FIELD_ARRAY,  /* an array */
    FIELD_OBJECT,
    FIELD_ANY,    /* checked by who uses it */
    FIELD_CHOICE, /* of a tool: what may be left to the model is taken */
    FIELD_NONE,   /* an array or string that must be empty: what it asks for isn't done here */
    FIELD_TEXT,   /* a string that must be "text", likewise */
    FIELD_ABSENT, /* must not be there, likewise */
};

/* Sets of these say where a field is taken. */
enum api_id {
    API_CHAT = 1,          /* OpenAI's chat completions */
    API_COMPLETIONS = 2,   /* OpenAI's completions */
    API_RESPONSES = 4,     /* OpenAI's responses */
    API_MESSAGES = 8,      /* Anthropic's messages */
    API_COUNT_TOKENS = 16, /* Anthropic's count of tokens */
    API_COMPLETION = 32,   /* llama.cpp's completion */
    API_TOKENIZE = 64,     /* llama.cpp's helpers */
    API_DETOKENIZE = 128,
    API_APPLY_TEMPLATE = 256,
    API_SLOT = 512, /* saving and restoring one */
};

struct field {
    const char *name; /* "a.b": member b of object a */
    unsigned apis;    /* set of enum api_id */
    enum field_type type;
    size_t offset;   /* in struct ask */
    double min, max; /* of numbers; equal: the only value that is served */
    double preset;   /* when absent or null */
    bool required;
};

extern const struct field field_table[];
extern const size_t field_table_n;

#endif
