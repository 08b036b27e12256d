/* SPDX-License-Identifier: MIT */
/*
 * See llamacpp.h. What is going on is read off the pool's control segment and the gateway's own
 * requests at the moment it is asked for; no text of anybody is shown.
 */
#include "gateway/api/llamacpp.h"

#include <string.h>

#include "gateway/api/fields.h"
#include "gateway/api/openai.h"
#include "gateway/api/raw.h"
#include "gateway/api/reply.h"

/* ---- tokens ------------------------------------------------------------------------------ */

/* A token may be a part of a character: then it is shown as bytes. */
static json_t *piece_json(const struct tokenizer *t, uint32_t id)
{
    struct tokenizer_piece p = tokenizer_piece(t, id);
    json_t *piece = json_stringn(p.at, p.bytes);
    if (!piece) {
        piece = json_array();
        for (size_t i = 0; i < p.bytes; i++)
            (void)json_array_append_new(piece, json_integer((unsigned char)p.at[i]));
    }
    return json_pack("{s:I,s:o}", "id", (json_int_t)id, "piece", piece);
}

static int encode(const struct tokenizer *t, const struct ask *ask, struct fault *fault,
                  struct tokenizer_ids *ret)
{
    struct tokenizer_span span = {
        .at = json_string_value(ask->content),
        .bytes = json_string_length(ask->content),
        .parse_special = ask->parse_special,
    };
    unsigned add = ask->add_special ? TOKENIZER_ADD_BOS | TOKENIZER_ADD_EOS : 0;
    int r = tokenizer_encode(t, &span, 1, add, UINT32_MAX, ret);
    if (r == 0) return 0;
    return fault_set(fault, FAULT_INTERNAL, "content", "The text could not be tokenised: %s.",
                     strerror(-r));
}

void llamacpp_tokenize(struct gateway *g, struct exchange *x)
{
    const struct tokenizer *t = g->model.tokenizer;
    struct fault fault;
    struct ask ask = {0};
    struct tokenizer_ids ids = {0};
    size_t bytes;
    const char *body = exchange_body(x, &bytes);
    int r = ask_parse(API_TOKENIZE, body, bytes, &fault, &ask);
    if (r == 0) r = encode(t, &ask, &fault, &ids);
    json_t *list = json_array();
    for (size_t i = 0; i < ids.n; i++)
        (void)json_array_append_new(list, ask.with_pieces ? piece_json(t, ids.ids[i])
                                                          : json_integer(ids.ids[i]));
    if (r == 0)
        reply_json(x, 200, json_pack("{s:O}", "tokens", list));
    else
        reply_fault(x, &fault);
    json_decref(list);
    free(ids.ids);
    ask_fini(&ask);
}

static json_t *content_json(const struct tokenizer *t, const struct tokenizer_ids *ids)
{
    CLEANUP(bytebuf_fini) struct bytebuf out = {0};
    struct text *text = NULL;
    if (text_new(NULL, 0, &text) < 0) abort(); /* it has no stop strings to refuse */
    for (size_t i = 0; i < ids->n; i++) {
        struct tokenizer_piece p = tokenizer_piece(t, ids->ids[i]);
        (void)text_push(text, p.at, p.bytes, &out);
    }
    (void)text_end(text, &out);
    text_free(text);
    return json_pack("{s:o}", "content", json_stringn(bytebuf_bytes(&out), bytebuf_size(&out)));
}

void llamacpp_detokenize(struct gateway *g, struct exchange *x)
{
    struct fault fault;
    struct ask ask = {0};
    struct tokenizer_ids ids = {0};
    size_t bytes;
    const char *body = exchange_body(x, &bytes);
    int r = ask_parse(API_DETOKENIZE, body, bytes, &fault, &ask);
    if (r == 0) r = ids_from(g->model.tokenizer, "tokens", ask.tokens, &fault, &ids);
    if (r == 0)
        reply_json(x, 200, content_json(g->model.tokenizer, &ids));
    else
        reply_fault(x, &fault);
    free(ids.ids);
    ask_fini(&ask);
}

void llamacpp_apply_template(struct gateway *g, struct exchange *x)
{
    struct fault fault;
    struct ask ask = {0};
    CLEANUP(bytebuf_fini) struct bytebuf text = {0};
    size_t bytes;
    const char *body = exchange_body(x, &bytes);
    int r = ask_parse(API_APPLY_TEMPLATE, body, bytes, &fault, &ask);
    struct chat_input in = {
        .messages = ask.messages, .tools = ask.no_tools ? NULL : ask.tools, .kwargs = ask.kwargs};
    if (r == 0 && !g->model.chat)
        r = fault_set(&fault, FAULT_REQUEST, NULL, "This model takes no chats: %s.",
                      g->model.why_no_chat.text);
    if (r == 0) r = chat_text(g->model.chat, &in, &fault, &text);
    if (r == 0)
        reply_json(x, 200,
                   json_pack("{s:s#}", "prompt", bytebuf_bytes(&text), (int)bytebuf_size(&text)));
    else
        reply_fault(x, &fault);
    ask_fini(&ask);
}

/* ---- what there is ----------------------------------------------------------------------- */

static json_t *token_text(const struct tokenizer *t, uint32_t id)
{
    if (id == TOKENIZER_NONE) return json_string("");
    struct tokenizer_piece p = tokenizer_piece(t, id);
    json_t *text = json_stringn(p.at, p.bytes);
    return text ? text : json_string("");
}

void llamacpp_props(struct gateway *g, struct exchange *x)
{
    const struct tokenizer *t = g->model.tokenizer;
    const char *slash = strrchr(g->config->model.path, '/');
    size_t n_template = 0;
    const char *source = g->model.chat ? chat_source(g->model.chat, &n_template) : "";
    json_t *template = json_stringn(source, n_template);
    json_t *props = json_pack(
        "{s:{s:I,s:{s:f,s:f,s:f,s:i}},s:I,s:s,s:s,s:o,s:o,s:o,s:{s:b,s:b},s:{s:b},s:s}",
        "default_generation_settings", "n_ctx", (json_int_t)gateway_context(g), "params",
        "temperature", 1.0, "top_p", 1.0, "min_p", 0.0, "top_k", 0, "total_slots",
        (json_int_t)pipelines_lanes(g->pipelines), "model_alias", g->model.name, "model_path",
        slash ? slash + 1 : g->config->model.path, "chat_template",
        template ? template : json_string(""), "bos_token", token_text(t, tokenizer_bos(t)),
        "eos_token", token_text(t, tokenizer_eos(t)), "modalities", "vision", 0, "audio", 0,
        "chat_template_caps", "supports_tools", g->model.chat && chat_knows_tools(g->model.chat),
        "build_info", "cistern " CISTERN_VERSION);
    reply_json(x, 200, props);
}

void llamacpp_version(struct gateway *g, struct exchange *x)
{
    (void)g;
    reply_json(x, 200, json_pack("{s:s,s:s}", "name", "cistern", "version", CISTERN_VERSION));
}

/* ---- slots ------------------------------------------------------------------------------- */

static json_t *slot_json(const struct gateway *g, uint32_t pipeline, uint32_t lane)
{
    return json_pack("{s:I,s:I,s:I,s:I,s:b}", "id",
                     (json_int_t)pipelines_slot(g->pipelines, pipeline, lane), "pipeline",
                     (json_int_t)pipeline, "lane", (json_int_t)lane, "n_ctx",
                     (json_int_t)gateway_context(g), "is_processing", 0);
}

/* What only this gateway knows of a conversation: requests of others show as busy, no more. */
static void set_request(json_t *slot, const struct request_view *v)
{
    (void)json_object_set_new(slot, "id_task", json_integer((json_int_t)v->id));
    (void)json_object_set_new(slot, "n_prompt_tokens", json_integer(v->n_prompt));
    (void)json_object_set_new(slot, "n_prompt_tokens_cache", json_integer(v->n_cached));
    (void)json_object_set_new(slot, "next_token",
                              json_pack("[{s:b,s:I,s:I}]", "has_next_token", 1, "n_decoded",
                                        (json_int_t)v->n_generated, "n_remain",
                                        (json_int_t)v->max_tokens - (json_int_t)v->n_generated));
}

/* Cells that the head has published, as poold would read them. */
static uint32_t cells_of(const struct pool_view *v, uint32_t row, const struct pool_body *b)
{
    bool known = b->pipeline < POOL_PIPELINES_MAX && v->page[b->pipeline][0].at;
    const struct pool_page *page = known ? v->page[b->pipeline][0].at : NULL;
    if (!page || row >= page->n_rows) return b->base;
    uint64_t word = shm_load_u64(&page->word[row]);
    return pool_word_lease(word) == b->lease ? pool_word_cells(word) : b->base;
}

static void add_row(const struct gateway *g, const struct pool_view *pool, uint32_t row,
                    json_t *slots)
{
    struct pool_body b;
    struct request_view view;
    const struct pool_header *h = pool->h;
    (void)pool_row_read(&pool_rows(h)[row], &b);
    if (b.state != POOL_ACTIVE && (b.state != POOL_CLOSING || b.holder)) return;
    json_t *slot = slot_json(g, b.pipeline, b.lane);
    (void)json_object_set_new(slot, "is_processing", json_true());
    (void)json_object_set_new(slot, "row", json_integer(row));
    (void)json_object_set_new(slot, "n_past", json_integer(cells_of(pool, row, &b)));
    (void)json_object_set_new(slot, "n_cells",
                              json_integer((json_int_t)b.n_entries * h->chunk_cells));
    if (requests_on_row(g->requests, row, b.generation, &view)) set_request(slot, &view);
    (void)json_array_append_new(slots, slot);
}

static bool has_slot(const json_t *slots, uint32_t pipeline, uint32_t lane)
{
    for (size_t i = 0; i < json_array_size(slots); i++) {
        const json_t *s = json_array_get(slots, i);
        if (json_integer_value(json_object_get(s, "pipeline")) == pipeline &&
            json_integer_value(json_object_get(s, "lane")) == lane)
            return true;
    }
    return false;
}

void llamacpp_slots(struct gateway *g, struct exchange *x)
{
    const struct pool_view *view = pipelines_pool(g->pipelines);
    const struct pool_header *h = view->h;
    json_t *slots = json_array();
    for (uint32_t row = 0; h && row < h->n_rows; row++)
        add_row(g, view, row, slots);
    const struct pipeline *p;
    for (uint32_t i = 0; (p = pipelines_at(g->pipelines, i)); i++)
        for (uint32_t lane = 0; pipeline_is_ready(p) && lane < p->n_lanes; lane++)
            if (!has_slot(slots, p->id, lane))
                (void)json_array_append_new(slots, slot_json(g, p->id, lane));
    reply_json(x, 200, slots);
}
