/* SPDX-License-Identifier: MIT */
/*
 * See errors.h. The table of refusals and its two shapes, OpenAI's and Anthropic's; no I/O.
 */
#include "gateway/api/errors.h"

#include <assert.h>
#include <errno.h>

enum {
    RETRY_SOON_S = 2,  /* a lane becomes free, or a worker is back, within seconds */
    RETRY_POOL_S = 10, /* promised for a full pool: about what an answer takes */
};

#define BAD "invalid_request_error"
/* clang-format off */
static const struct fault_row rows[FAULT_KINDS] = {
    [FAULT_NONE] = {{200, 200}, {"", ""}, "", 0},
    [FAULT_REQUEST] = {{400, 400}, {BAD, BAD}, "invalid_request", 0},
    [FAULT_FIELD] = {{400, 400}, {BAD, BAD}, "unsupported_value", 0},
    [FAULT_CONTEXT] = {{400, 400}, {BAD, BAD}, "context_length_exceeded", 0},
    [FAULT_KEY] = {{401, 401}, {BAD, "authentication_error"}, "invalid_api_key", 0},
    [FAULT_HOST] = {{403, 403}, {"permission_error", "permission_error"}, "host_not_allowed", 0},
    [FAULT_ROUTE] = {{404, 404}, {BAD, "not_found_error"}, "not_found", 0},
    [FAULT_MODEL] = {{404, 404}, {BAD, "not_found_error"}, "model_not_found", 0},
    [FAULT_METHOD] = {{405, 405}, {BAD, BAD}, "method_not_allowed", 0},
    [FAULT_TOO_LARGE] = {{413, 413}, {BAD, "request_too_large"}, "request_too_large", 0},
    [FAULT_KEY_BUSY] = {{429, 429}, {"rate_limit_error", "rate_limit_error"}, "rate_limit_exceeded", RETRY_SOON_S},
    [FAULT_SLOT_EMPTY] = {{404, 404}, {BAD, "not_found_error"}, "slot_empty", 0},
    [FAULT_SLOT_MISSING] = {{404, 404}, {BAD, "not_found_error"}, "slot_file_missing", 0},
    [FAULT_SLOT_TRUNCATED] = {{400, 400}, {BAD, BAD}, "slot_file_truncated", 0},
    [FAULT_SLOT_DAMAGED] = {{400, 400}, {BAD, BAD}, "slot_file_damaged", 0},
    [FAULT_SLOT_FOREIGN] = {{400, 400}, {BAD, BAD}, "slot_file_foreign", 0},
    [FAULT_SLOT_BUSY] = {{503, 529}, {"server_error", "overloaded_error"}, "slot_busy", RETRY_SOON_S},
    [FAULT_NOT_BUILT] = {{501, 501}, {BAD, BAD}, "not_implemented", 0},
    [FAULT_QUEUE_FULL] = {{503, 529}, {"server_error", "overloaded_error"}, "queue_full", RETRY_SOON_S},
    [FAULT_POOL_FULL] = {{503, 503}, {"server_error", "overloaded_error"}, "kv_pool_full", RETRY_POOL_S},
    [FAULT_LOADING] = {{503, 529}, {"server_error", "overloaded_error"}, "loading", RETRY_SOON_S},
    [FAULT_DRAINING] = {{503, 529}, {"server_error", "overloaded_error"}, "draining", RETRY_SOON_S},
    [FAULT_STAGE_LOST] = {{503, 529}, {"server_error", "overloaded_error"}, "stage_lost", RETRY_SOON_S},
    [FAULT_INTERNAL] = {{500, 500}, {"server_error", "api_error"}, "internal_error", 0},
};
/* clang-format on */

const struct fault_row *fault_row(enum fault_kind kind)
{
    assert(kind >= 0 && kind < FAULT_KINDS);
    return &rows[kind];
}

enum fault_kind fault_from_code(Cistern__Code code)
{
    switch (code) {
    case CISTERN__CODE__POOL_FULL:
        return FAULT_POOL_FULL;
    case CISTERN__CODE__NEVER_FITS:
        return FAULT_CONTEXT;
    case CISTERN__CODE__QUEUE_FULL:
        return FAULT_QUEUE_FULL;
    case CISTERN__CODE__STAGE_LOST:
        return FAULT_STAGE_LOST;
    case CISTERN__CODE__NOT_READY:
        return FAULT_LOADING;
    case CISTERN__CODE__DRAINING:
        return FAULT_DRAINING;
    default:
        return FAULT_INTERNAL;
    }
}

int fault_set(struct fault *f, enum fault_kind kind, const char *param, const char *format, ...)
{
    *f = (struct fault){.kind = kind};
    if (param) (void)snprintf(f->param, sizeof(f->param), "%s", param);
    va_list ap;
    va_start(ap, format);
    (void)vsnprintf(f->text, sizeof(f->text), format, ap);
    va_end(ap);
    return -EINVAL;
}

/* Clients that compact a conversation look for "maximum context length is" in this sentence, and
 * for "prompt is too long" in Anthropic's. */
int fault_context(struct fault *f, const char *param, uint64_t n_prompt, uint32_t n_ctx)
{
    int r = fault_set(f, FAULT_CONTEXT, param,
                      "This model's maximum context length is %u tokens. The prompt has %llu, and "
                      "must leave room for one more.",
                      n_ctx, (unsigned long long)n_prompt);
    f->n_prompt_tokens = (uint32_t)min_u64(n_prompt, UINT32_MAX);
    f->n_ctx = n_ctx;
    return r;
}

/* A sentence may quote a client's text and be cut inside a character, which JSON can't hold. */
static json_t *sentence_json(const char *text)
{
    json_t *s = json_string(text);
    if (s) return s;
    char plain[sizeof(((struct fault *)0)->text)];
    (void)snprintf(plain, sizeof(plain), "%s", text);
    for (char *c = plain; *c; c++)
        if ((unsigned char)*c >= 0x80) *c = '?';
    return json_string(plain);
}

json_t *fault_json(const struct fault *f)
{
    const struct fault_row *row = fault_row(f->kind);
    json_t *error = json_pack("{s:o,s:s,s:s?,s:s}", "message", sentence_json(f->text), "type",
                              row->type[FAULT_OPENAI], "param", f->param[0] ? f->param : NULL,
                              "code", row->code);
    if (error && f->kind == FAULT_CONTEXT) {
        (void)json_object_set_new(error, "n_prompt_tokens", json_integer(f->n_prompt_tokens));
        (void)json_object_set_new(error, "n_ctx", json_integer(f->n_ctx));
    }
    if (error && row->retry_after_s)
        (void)json_object_set_new(error, "retry_after", json_integer(row->retry_after_s));
    return json_pack("{s:o}", "error", error);
}

json_t *fault_json_anthropic(const struct fault *f, const char *request_id)
{
    const struct fault_row *row = fault_row(f->kind);
    json_t *sentence = f->kind == FAULT_CONTEXT && f->n_ctx > 0
                           ? json_sprintf("prompt is too long: %u tokens > %u maximum",
                                          f->n_prompt_tokens, f->n_ctx - 1)
                           : sentence_json(f->text);
    json_t *error = json_pack("{s:s,s:o}", "type", row->type[FAULT_ANTHROPIC], "message", sentence);
    if (error && row->retry_after_s) {
        (void)json_object_set_new(error, "code", json_string(row->code));
        (void)json_object_set_new(error, "retry_after", json_integer(row->retry_after_s));
    }
    return json_pack("{s:s,s:o,s:s}", "type", "error", "error", error, "request_id", request_id);
}
