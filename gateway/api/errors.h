/* SPDX-License-Identifier: MIT */
#ifndef GATEWAY_API_ERRORS_H
#define GATEWAY_API_ERRORS_H
/*
 * What a client is told when something can't be done. A fault is the decision (which kind) and a
 * sentence; its table is the one place where a kind becomes an HTTP status, an error code and a
 * Retry-After, and fault_from_code the one place where a head's Code becomes a kind.
 */
#include <jansson.h>

#include "cistern.pb-c.h"
#include "common/base.h"

enum fault_kind {
    FAULT_NONE,
    FAULT_REQUEST,        /* the body or a field is wrong */
    FAULT_FIELD,          /* a field asks for what this server doesn't do */
    FAULT_CONTEXT,        /* the prompt is longer than the context */
    FAULT_KEY,            /* no key, or none that is known */
    FAULT_HOST,           /* the Host header names somebody else */
    FAULT_ROUTE,          /* no such path */
    FAULT_MODEL,          /* no such model */
    FAULT_METHOD,         /* the path has no such method */
    FAULT_TOO_LARGE,      /* the body is over the limit */
    FAULT_KEY_BUSY,       /* the key has as many requests under way as it may */
    FAULT_SLOT_EMPTY,     /* it has no conversation */
    FAULT_SLOT_MISSING,   /* there is no such saved file */
    FAULT_SLOT_TRUNCATED, /* its end is missing */
    FAULT_SLOT_DAMAGED,   /* it is none, or a checksum does not hold */
    FAULT_SLOT_FOREIGN,   /* it is of another model, arithmetic, layout or release */
    FAULT_SLOT_BUSY,      /* try again */
    FAULT_NOT_BUILT,      /* a known path that this server doesn't serve */
    FAULT_QUEUE_FULL,
    FAULT_POOL_FULL,
    FAULT_LOADING,
    FAULT_DRAINING,
    FAULT_STAGE_LOST,
    FAULT_INTERNAL,
    FAULT_KINDS
};

struct fault {
    enum fault_kind kind;
    char text[512];                  /* a sentence for people */
    char param[128];                 /* the field; empty: none */
    uint32_t n_prompt_tokens, n_ctx; /* of FAULT_CONTEXT */
};

/* Whose words a client understands. */
enum fault_style { FAULT_OPENAI, FAULT_ANTHROPIC, FAULT_STYLES };

struct fault_row {
    unsigned status[FAULT_STYLES];
    const char *type[FAULT_STYLES];
    const char *code;       /* OpenAI's where it has one */
    unsigned retry_after_s; /* 0: waiting doesn't help */
};
const struct fault_row *fault_row(enum fault_kind kind);
enum fault_kind fault_from_code(Cistern__Code code);

/* Fills *f and returns -EINVAL, so that a refusing line is one line. param may be NULL. */
__attribute__((format(printf, 4, 5))) int fault_set(struct fault *f, enum fault_kind kind,
                                                    const char *param, const char *format, ...);
/* The same for a prompt of n_prompt tokens that doesn't fit the context of n_ctx. */
int fault_context(struct fault *f, const char *param, uint64_t n_prompt, uint32_t n_ctx);
/* {"error": {...}}; the caller owns it. */
json_t *fault_json(const struct fault *f);
/* {"type": "error", "error": {...}, "request_id": ...}; the caller owns it. */
json_t *fault_json_anthropic(const struct fault *f, const char *request_id);

#endif
