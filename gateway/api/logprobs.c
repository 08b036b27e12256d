/* SPDX-License-Identifier: MIT */
/*
 * See logprobs.h. Tokens are pieces of text that may end inside a character, so each API's way of
 * writing one that is no text by itself is here too.
 */
#include "gateway/api/logprobs.h"

#include <math.h>
#include <string.h>

/* What OpenAI writes for a probability of 0, which has no finite logarithm. */
static const double impossible = -9999;

static void *grown(void *at, size_t n, size_t bytes)
{
    void *to = reallocarray(at, n ? n : 1, bytes);
    if (!to) abort();
    return to;
}

static void reserve(struct logprobs *l, uint32_t n)
{
    if (l->n + n <= l->room) return;
    l->room = max_u32(l->n + n, l->room ? l->room * 2 : 64);
    l->ids = grown(l->ids, l->room, sizeof(*l->ids));
    l->logprobs = grown(l->logprobs, l->room, sizeof(*l->logprobs));
    l->top_ids = grown(l->top_ids, (size_t)l->room * l->n_top, sizeof(*l->top_ids));
    l->top_logprobs = grown(l->top_logprobs, (size_t)l->room * l->n_top, sizeof(*l->top_logprobs));
}

void logprobs_add(struct logprobs *l, const uint32_t *ids, const struct probs *probs)
{
    l->n_top = probs->n_top; /* the same in every call */
    reserve(l, probs->n);
    size_t at = (size_t)l->n * l->n_top, n = (size_t)probs->n * l->n_top;
    memcpy(l->ids + l->n, ids, probs->n * sizeof(*ids));
    memcpy(l->logprobs + l->n, probs->logprobs, probs->n * sizeof(*l->logprobs));
    if (n) memcpy(l->top_ids + at, probs->top_ids, n * sizeof(*l->top_ids));
    if (n) memcpy(l->top_logprobs + at, probs->top_logprobs, n * sizeof(*l->top_logprobs));
    l->n += probs->n;
}

void logprobs_add_first(struct logprobs *l, uint32_t id, uint32_t n_top)
{
    l->n_top = n_top;
    reserve(l, 1);
    l->ids[l->n] = id;
    l->logprobs[l->n++] = NAN;
    memset(l->top_ids, 0, n_top * sizeof(*l->top_ids));
    memset(l->top_logprobs, 0, n_top * sizeof(*l->top_logprobs));
}

void logprobs_fini(struct logprobs *l)
{
    free(l->ids);
    free(l->logprobs);
    free(l->top_ids);
    free(l->top_logprobs);
    *l = (struct logprobs){0};
}

/* ---- one token --------------------------------------------------------------------------- */

static json_t *number_json(float logprob)
{
    return json_real(isinf(logprob) ? impossible : (double)logprob);
}

/* What is no text by itself is shown with U+FFFD: bytes says what it is. */
static json_t *text_json(struct tokenizer_piece piece)
{
    json_t *plain = json_stringn(piece.at, piece.bytes);
    if (plain) return plain;
    CLEANUP(text_freep) struct text *text = NULL;
    CLEANUP(bytebuf_fini) struct bytebuf out = {0};
    if (text_new(NULL, 0, &text) < 0) abort();
    (void)text_push(text, piece.at, piece.bytes, &out);
    (void)text_end(text, &out);
    return json_stringn(bytebuf_bytes(&out), bytebuf_size(&out));
}

/* OpenAI's completions have no field for the bytes, so they write them into the token. */
static json_t *escaped_json(struct tokenizer_piece piece)
{
    json_t *plain = json_stringn(piece.at, piece.bytes);
    if (plain) return plain;
    CLEANUP(bytebuf_fini) struct bytebuf out = {0};
    bytebuf_add(&out, "bytes:", 6);
    for (size_t i = 0; i < piece.bytes; i++)
        bytebuf_addf(&out, "\\x%02x", (unsigned char)piece.at[i]);
    return json_stringn(bytebuf_bytes(&out), bytebuf_size(&out));
}

static json_t *bytes_json(struct tokenizer_piece piece)
{
    json_t *bytes = json_array();
    for (size_t i = 0; i < piece.bytes; i++)
        (void)json_array_append_new(bytes, json_integer((unsigned char)piece.at[i]));
    return bytes;
}

static json_t *token_json(const struct tokenizer *t, uint32_t id, float logprob, bool with_id)
{
    struct tokenizer_piece piece = tokenizer_piece(t, id);
    json_t *o = json_pack("{s:o,s:o,s:o}", "token", text_json(piece), "logprob",
                          number_json(logprob), "bytes", bytes_json(piece));
    if (with_id) (void)json_object_set_new(o, "id", json_integer(id));
    return o;
}

json_t *logprobs_list(const struct logprobs_part *p, bool with_id)
{
    const struct logprobs *l = p->of;
    json_t *list = json_array();
    for (uint32_t i = p->from; i < p->to; i++) {
        json_t *token = token_json(p->tokenizer, l->ids[i], l->logprobs[i], with_id);
        json_t *top = json_array();
        for (size_t k = (size_t)i * l->n_top; k < ((size_t)i + 1) * l->n_top; k++)
            (void)json_array_append_new(
                top, token_json(p->tokenizer, l->top_ids[k], l->top_logprobs[k], with_id));
        (void)json_object_set_new(token, "top_logprobs", top);
        (void)json_array_append_new(list, token);
    }
    return list;
}

/* ---- columns ----------------------------------------------------------------------------- */

json_t *logprobs_columns(void)
{
    return json_pack("{s:[],s:[],s:[],s:[]}", "tokens", "token_logprobs", "top_logprobs",
                     "text_offset");
}

static void append(json_t *columns, const char *column, json_t *v)
{
    (void)json_array_append_new(json_object_get(columns, column), v);
}

/* Of two tokens that are written alike the more likely one stays. */
static void add_alternative(json_t *tops, const struct tokenizer *t, uint32_t id, float logprob)
{
    json_t *key = escaped_json(tokenizer_piece(t, id));
    const char *name = json_string_value(key);
    size_t bytes = json_string_length(key);
    if (!json_object_getn(tops, name, bytes))
        (void)json_object_setn_new(tops, name, bytes, number_json(logprob));
    json_decref(key);
}

/* The sampled token is always among them, as in OpenAI's. */
static json_t *alternatives_json(const struct logprobs_part *p, uint32_t i)
{
    const struct logprobs *l = p->of;
    json_t *tops = json_object();
    for (size_t k = (size_t)i * l->n_top; k < ((size_t)i + 1) * l->n_top; k++)
        add_alternative(tops, p->tokenizer, l->top_ids[k], l->top_logprobs[k]);
    add_alternative(tops, p->tokenizer, l->ids[i], l->logprobs[i]);
    return tops;
}

static int64_t characters(const char *at, size_t bytes)
{
    int64_t n = 0;
    for (size_t i = 0; i < bytes; i++)
        n += ((unsigned char)at[i] & 0xc0) != 0x80;
    return n;
}

/* Ends one text: what it withheld is shown. */
static void place_end(struct logprobs_place *place)
{
    CLEANUP(bytebuf_fini) struct bytebuf out = {0};
    if (place->text) (void)text_end(place->text, &out);
    place->at += characters(bytebuf_bytes(&out), bytebuf_size(&out));
    text_free(TAKE(place->text));
}

/* Where a token begins; moves on past it. One that ends inside a character begins after what was
 * whole before it; a whole one may also have ended a character that never became whole. */
static int64_t place_step(struct logprobs_place *place, struct tokenizer_piece piece)
{
    CLEANUP(bytebuf_fini) struct bytebuf out = {0};
    int64_t before = place->at;
    if (!place->text && text_new(NULL, 0, &place->text) < 0) abort();
    (void)text_push(place->text, piece.at, piece.bytes, &out);
    place->at += characters(bytebuf_bytes(&out), bytebuf_size(&out));
    json_t *plain = json_stringn(piece.at, piece.bytes);
    if (plain) before = place->at - characters(piece.at, piece.bytes);
    json_decref(plain);
    return before;
}

void logprobs_place_fini(struct logprobs_place *p)
{
    text_free(p->text);
    *p = (struct logprobs_place){0};
}

void logprobs_place_back(struct logprobs_place *place, struct tokenizer_piece piece)
{
    place->at -= characters(piece.at, piece.bytes);
}

void logprobs_columns_add(json_t *columns, const struct logprobs_part *p,
                          struct logprobs_place *place)
{
    const struct logprobs *l = p->of;
    for (uint32_t i = p->from; i < p->to; i++) {
        struct tokenizer_piece piece = tokenizer_piece(p->tokenizer, l->ids[i]), shown = piece;
        if (!p->is_prompt && tokenizer_is_control(p->tokenizer, l->ids[i])) shown.bytes = 0;
        int64_t at = place_step(place, shown);
        bool none = isnan(l->logprobs[i]);
        append(columns, "tokens", escaped_json(piece));
        append(columns, "token_logprobs", none ? json_null() : number_json(l->logprobs[i]));
        append(columns, "top_logprobs", none ? json_null() : alternatives_json(p, i));
        append(columns, "text_offset", json_integer(at > 0 ? at : 0));
    }
    if (p->is_prompt) place_end(place);
}
