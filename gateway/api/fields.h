/* SPDX-License-Identifier: MIT */
#ifndef GATEWAY_API_FIELDS_H
#define GATEWAY_API_FIELDS_H
/*
 * From a body to a checked request, for every API, by the one table in field_table.c: types,
 * ranges, presets and error texts come from it. Fields that the table doesn't know are ignored.
 */
#include <stdbool.h>

#include "gateway/api/errors.h"
#include "gateway/api/field_table.h"
#include "gateway/text.h"

enum {
    FIELD_TOKENS_MAX = 1 << 24, /* max_tokens; more than any context */
    FIELD_BIASES_MAX = 1024,    /* logit_bias; what a worker takes (workerd/requests.h) */
    FIELD_BIAS_MAX = 100,       /* OpenAI's */
    GENERATION_CHOICES_MAX = 8, /* of all prompts */
};

#define FIELD_NO_LOGPROBS UINT32_MAX

struct field_stops {
    uint32_t n;
    const char *at[TEXT_STOPS_MAX];
};

/* A checked request. Strings and JSON live in body. NULL: not said. */
struct ask {
    json_t *body;                  /* owned */
    const json_t *messages;        /* a non-empty array; its members are not checked yet */
    const json_t *model, *content; /* strings */
    const json_t *filename;        /* a string, not checked yet */
    const json_t *system, *prompt; /* not checked yet */
    const json_t *tools, *tokens;  /* arrays, likewise */
    const json_t *include;         /* an array, likewise */
    const json_t *logit_bias;      /* its ids are not checked yet */
    const json_t *kwargs, *thinking, *metadata; /* objects */
    uint32_t max_tokens;                        /* 0: not said */
    uint32_t top_k;                             /* 0: all */
    uint32_t n, best_of;
    float temperature, top_p, min_p;
    float presence_penalty, frequency_penalty;
    float repeat_penalty, repetition_penalty; /* 1: off; two servers' names of one thing, but the
                                                 second looks at all tokens */
    uint32_t repeat_last_n;                   /* tokens that repeat_penalty looks at */
    uint32_t min_tokens;
    bool logprobs;
    uint32_t top_logprobs; /* with logprobs */
    uint32_t n_logprobs;   /* of completions: both in one, FIELD_NO_LOGPROBS: none */
    bool stream, include_usage, echo, ignore_eos, return_progress;
    bool no_tools;  /* they are not to be shown to the model */
    bool no_answer; /* the prompt is read, nothing is generated */
    bool add_special, parse_special, with_pieces;
    bool seeded;
    uint64_t seed; /* when seeded */
    struct field_stops stop;
    /* Where what isn't served is parsed to; each has but one value. */
    bool unserved;
};

/* -EINVAL with *fault when the body is refused; *ret is then untouched. */
int ask_parse(enum api_id api, const char *body, size_t bytes, struct fault *fault,
              struct ask *ret);
void ask_fini(struct ask *a);

/* "an array", for sentences. */
const char *json_kind(const json_t *v);
/* A field has the wrong type: fills *fault and returns -EINVAL. */
int field_wrong(struct fault *fault, const char *name, const char *right, const json_t *v);

#endif
