/* SPDX-License-Identifier: MIT */
/*
 * See logit_bias.h. Called for bodies of the APIs that have the field.
 */
#include "gateway/api/logit_bias.h"

#include <errno.h>
#include <math.h>
#include <string.h>

void logit_bias_fini(struct logit_bias *b)
{
    free(b->ids);
    free(b->biases);
    *b = (struct logit_bias){0};
}

static int wrong(struct fault *fault, const char *format, const char *what)
{
    return fault_set(fault, FAULT_REQUEST, "logit_bias", format, what);
}

static int add(struct logit_bias *b, uint32_t id, float bias, struct fault *fault)
{
    if (b->n == FIELD_BIASES_MAX)
        return fault_set(fault, FAULT_REQUEST, "logit_bias",
                         "'logit_bias' must be of at most %d tokens.", FIELD_BIASES_MAX);
    b->ids[b->n] = id;
    b->biases[b->n++] = bias;
    return 0;
}

/* false is never, for those who may say it. */
static int bias_of(const json_t *v, bool may_be_false, struct fault *fault, float *ret)
{
    double x = json_number_value(v);
    *ret = (float)x;
    if (may_be_false && json_is_false(v)) {
        *ret = -INFINITY;
        return 0;
    }
    if (json_is_number(v) && x >= -FIELD_BIAS_MAX && x <= FIELD_BIAS_MAX) return 0;
    return fault_set(fault, FAULT_REQUEST, "logit_bias",
                     "A bias in 'logit_bias' must be a number between %d and %d%s.",
                     -FIELD_BIAS_MAX, FIELD_BIAS_MAX, may_be_false ? ", or false" : "");
}

static int id_of(const struct tokenizer *t, json_int_t id, struct fault *fault, uint32_t *ret)
{
    if (id < 0 || id >= tokenizer_n_vocab(t))
        return fault_set(fault, FAULT_REQUEST, "logit_bias",
                         "A token in 'logit_bias' must be an id from 0 to %u.",
                         tokenizer_n_vocab(t) - 1);
    *ret = (uint32_t)id;
    return 0;
}

/* Decimal digits and nothing else, few enough for no overflow; else -1, which is no id. */
static json_int_t key_id(const char *key)
{
    size_t n = strspn(key, "0123456789");
    return n == 0 || n > 10 || key[n] ? -1 : strtoll(key, NULL, 10);
}

static int from_object(const struct tokenizer *t, const json_t *v, struct fault *fault,
                       struct logit_bias *b)
{
    const char *key;
    json_t *member;
    json_object_foreach((json_t *)(uintptr_t)v, key, member)
    {
        uint32_t id = 0;
        float bias = 0;
        int r = id_of(t, key_id(key), fault, &id);
        if (r == 0) r = bias_of(member, false, fault, &bias);
        if (r == 0) r = add(b, id, bias, fault);
        if (r < 0) return r;
    }
    return 0;
}

static int add_text(const struct tokenizer *t, const json_t *text, float bias, struct fault *fault,
                    struct logit_bias *b)
{
    struct tokenizer_span span = {json_string_value(text), json_string_length(text), true};
    struct tokenizer_ids ids = {0};
    if (tokenizer_encode(t, &span, 1, 0, FIELD_BIASES_MAX, &ids) < 0)
        return wrong(fault, "A text in 'logit_bias' %s.", "has too many tokens");
    int r = 0;
    for (size_t i = 0; r == 0 && i < ids.n; i++)
        r = add(b, ids.ids[i], bias, fault);
    free(ids.ids);
    return r;
}

static int from_array(const struct tokenizer *t, const json_t *v, struct fault *fault,
                      struct logit_bias *b)
{
    for (size_t i = 0; i < json_array_size(v); i++) {
        const json_t *pair = json_array_get(v, i), *token = json_array_get(pair, 0);
        uint32_t id = 0;
        float bias = 0;
        if (json_array_size(pair) != 2 || !(json_is_integer(token) || json_is_string(token)))
            return wrong(fault, "A member of 'logit_bias' must be %s.",
                         "an array of a token's id or a text, and its bias");
        int r = bias_of(json_array_get(pair, 1), true, fault, &bias);
        if (r == 0 && json_is_string(token))
            r = add_text(t, token, bias, fault, b);
        else if (r == 0)
            r = id_of(t, json_integer_value(token), fault, &id);
        if (r == 0 && json_is_integer(token)) r = add(b, id, bias, fault);
        if (r < 0) return r;
    }
    return 0;
}

int logit_bias_from(const struct tokenizer *t, const json_t *v, struct fault *fault,
                    struct logit_bias *ret)
{
    struct logit_bias b = {0};
    if (!v) {
        *ret = b;
        return 0;
    }
    b.ids = xcalloc(FIELD_BIASES_MAX, sizeof(*b.ids));
    b.biases = xcalloc(FIELD_BIASES_MAX, sizeof(*b.biases));
    int r = json_is_object(v) ? from_object(t, v, fault, &b) : from_array(t, v, fault, &b);
    if (r < 0) {
        logit_bias_fini(&b);
        return r;
    }
    *ret = b;
    return 0;
}
