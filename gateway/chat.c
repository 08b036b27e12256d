/* SPDX-License-Identifier: MIT */
/*
 * See chat.h. Owns the compiled template and the model's own words for it. What clients send is
 * checked here message by message; after that the template decides.
 */
#include "gateway/chat.h"

#include <errno.h>
#include <string.h>
#include <time.h>

#include "gateway/chat_probe.h"
#include "gateway/chat_tools.h"
#include "gateway/template/template.h"

struct chat_format {
    struct chat_template *template;
    const struct tokenizer *tokenizer;
    json_t *trusted; /* bos_token, eos_token: text that may hold control tokens */
    struct chat_abilities takes;
    char *source;
    size_t source_bytes;
};

/* ---- life -------------------------------------------------------------------------------- */

static void set_token(struct chat_format *c, const char *name, uint32_t id)
{
    struct tokenizer_piece piece = {.at = "", .bytes = 0};
    if (id != TOKENIZER_NONE) piece = tokenizer_piece(c->tokenizer, id);
    (void)json_object_set_new(c->trusted, name, json_stringn(piece.at, piece.bytes));
}

int chat_format_new(const struct gguf *g, const struct tokenizer *tokenizer, struct why *why,
                    struct chat_format **ret)
{
    struct gguf_str source;
    int r = gguf_str(g, "tokenizer.chat_template", &source);
    if (r < 0) return why_set(why, -ENOENT, "%s has no chat template", gguf_path(g));
    return chat_format_of(source.at, source.bytes, tokenizer, why, ret);
}

int chat_format_of(const char *source, size_t bytes, const struct tokenizer *tokenizer,
                   struct why *why, struct chat_format **ret)
{
    CLEANUP(chat_format_freep) struct chat_format *c = xnew(struct chat_format);
    c->tokenizer = tokenizer;
    c->source = strndup(source, bytes);
    c->source_bytes = bytes;
    if (!c->source) return -ENOMEM;
    c->trusted = json_object();
    if (!c->trusted) return -ENOMEM;
    set_token(c, "bos_token", tokenizer_bos(tokenizer));
    set_token(c, "eos_token", tokenizer_eos(tokenizer));
    int r = chat_template_new(source, bytes, why, &c->template);
    if (r < 0) return r;
    c->takes = chat_probe(c->template, c->trusted);
    *ret = TAKE(c);
    return 0;
}

const char *chat_source(const struct chat_format *c, size_t *ret_bytes)
{
    *ret_bytes = c->source_bytes;
    return c->source;
}

bool chat_knows_tools(const struct chat_format *c) { return c->takes.tools; }

void chat_format_free(struct chat_format *c)
{
    if (!c) return;
    if (c->template) chat_template_free(c->template);
    json_decref(c->trusted);
    free(c->source);
    free(c);
}

/* ---- messages ---------------------------------------------------------------------------- */

/* Where in the body, for the sentence and the field's name. */
struct place {
    char name[64];
};

static struct place place_of(size_t message, const char *member)
{
    struct place p;
    (void)snprintf(p.name, sizeof(p.name), "messages[%zu]%s", message, member);
    return p;
}

static struct place place_of_part(size_t message, size_t part)
{
    struct place p;
    (void)snprintf(p.name, sizeof(p.name), "messages[%zu].content[%zu]", message, part);
    return p;
}

/* Templates know "system"; "developer" is OpenAI's later name of it. NULL: no such role. */
static const char *role_of(const json_t *message)
{
    static const char *const roles[][2] = {
        {"system",    "system"   },
        {"developer", "system"   },
        {"user",      "user"     },
        {"assistant", "assistant"},
        {"tool",      "tool"     },
    };
    const char *role = json_string_value(json_object_get(message, "role"));
    for (size_t i = 0; role && i < ARRAY_LEN(roles); i++)
        if (strcmp(role, roles[i][0]) == 0) return roles[i][1];
    return NULL;
}

static int part_text(const json_t *part, struct place at, struct fault *fault, const json_t **ret)
{
    const char *type = json_string_value(json_object_get(part, "type"));
    const json_t *text = json_object_get(part, "text");
    if (!type)
        return fault_set(fault, FAULT_REQUEST, at.name,
                         "'%s' must be an object with a 'type' that is a string.", at.name);
    if (strcmp(type, "text") != 0)
        return fault_set(fault, FAULT_FIELD, at.name,
                         "'%s' has the type '%.32s'; this model takes text only.", at.name, type);
    if (!json_is_string(text))
        return fault_set(fault, FAULT_REQUEST, at.name, "'%s' must have a 'text' that is a string.",
                         at.name);
    *ret = text;
    return 0;
}

/* Parts become one string, since templates of text models take strings; nothing comes between them,
 * as with templates that walk parts themselves. */
static int join_parts(const json_t *parts, size_t message, struct fault *fault, json_t **ret)
{
    struct bytebuf text = {0};
    int r = 0;
    for (size_t i = 0; r == 0 && i < json_array_size(parts); i++) {
        const json_t *part = NULL;
        r = part_text(json_array_get(parts, i), place_of_part(message, i), fault, &part);
        if (r < 0) break;
        bytebuf_add(&text, json_string_value(part), json_string_length(part));
    }
    if (r == 0) *ret = json_stringn(bytebuf_bytes(&text), bytebuf_size(&text));
    bytebuf_fini(&text);
    return r;
}

static int content_of(const json_t *message, size_t i, const char *role, struct fault *fault,
                      json_t **ret)
{
    struct place at = place_of(i, ".content");
    const json_t *content = json_object_get(message, "content");
    if (json_is_array(content)) return join_parts(content, i, fault, ret);
    if (json_is_string(content)) {
        *ret = json_stringn(json_string_value(content), json_string_length(content));
        return 0;
    }
    if ((!content || json_is_null(content)) && strcmp(role, "assistant") == 0) {
        *ret = json_string("");
        return 0;
    }
    return fault_set(fault, FAULT_REQUEST, at.name, "'%s' must be a string or an array of parts.",
                     at.name);
}

/* The message as templates take it: a known role, content as a string, the rest as it came. */
static int message_from(const json_t *message, size_t i, struct fault *fault, json_t **ret)
{
    struct place at = place_of(i, json_is_object(message) ? ".role" : "");
    const char *role = role_of(message);
    json_t *content = NULL;
    if (!json_is_object(message))
        return fault_set(fault, FAULT_REQUEST, at.name, "'%s' must be an object.", at.name);
    if (!role)
        return fault_set(fault, FAULT_REQUEST, at.name,
                         "'%s' must be one of system, developer, user, assistant, tool.", at.name);
    int r = content_of(message, i, role, fault, &content);
    if (r < 0) return r;
    json_t *m = json_copy((json_t *)(uintptr_t)message); /* jansson's copy takes no const */
    (void)json_object_set_new(m, "role", json_string(role));
    (void)json_object_set_new(m, "content", content);
    const json_t *calls = json_object_get(message, "tool_calls");
    json_t *checked = NULL;
    if (calls && !json_is_null(calls)) r = tool_calls_from(calls, i, fault, &checked);
    if (checked) (void)json_object_set_new(m, "tool_calls", checked);
    if (r < 0) json_decref(m);
    if (r == 0) *ret = m;
    return r;
}

/* Clients of other servers end a list with an empty answer, to be filled in. */
static bool is_empty_end(const json_t *messages, size_t i)
{
    const json_t *m = json_array_get(messages, i);
    const char *role = json_string_value(json_object_get(m, "role"));
    const json_t *content = json_object_get(m, "content");
    return i > 0 && i + 1 == json_array_size(messages) && role && strcmp(role, "assistant") == 0 &&
           json_is_string(content) && json_string_length(content) == 0 &&
           json_array_size(json_object_get(m, "tool_calls")) == 0;
}

static int messages_from(const json_t *messages, struct fault *fault, json_t **ret)
{
    CLEANUP(json_decrefp) json_t *list = json_array();
    for (size_t i = 0; i < json_array_size(messages); i++) {
        json_t *m = NULL;
        if (is_empty_end(messages, i)) break;
        int r = message_from(json_array_get(messages, i), i, fault, &m);
        if (r < 0) return r;
        (void)json_array_append_new(list, m);
    }
    *ret = TAKE(list);
    return 0;
}

/* For a template that takes no system message: what it says stands before the next user's words, or
 * becomes a user's message when none follows. */
static void system_to_users(json_t *messages)
{
    for (size_t i = 0; i < json_array_size(messages); i++) {
        json_t *m = json_array_get(messages, i), *next = json_array_get(messages, i + 1);
        const char *role = json_string_value(json_object_get(m, "role"));
        const char *next_role = json_string_value(json_object_get(next, "role"));
        if (strcmp(role, "system") != 0) continue;
        (void)json_object_set_new(m, "role", json_string("user"));
        if (!next_role || (strcmp(next_role, "user") != 0 && strcmp(next_role, "system") != 0))
            continue;
        struct bytebuf text = {0};
        content_add(&text, m);
        bytebuf_addf(&text, "\n\n");
        content_add(&text, next);
        content_set(next, &text);
        bytebuf_fini(&text);
        (void)json_array_remove(messages, i--);
    }
}

/* ---- the prompt -------------------------------------------------------------------------- */

/* Names that the server itself sets win over a client's. */
static json_t *values_of(const struct chat_format *c, const struct chat_input *in, json_t *messages)
{
    json_t *values = json_object();
    if (in->kwargs) (void)json_object_update(values, (json_t *)(uintptr_t)in->kwargs);
    (void)json_object_set(values, "messages", messages);
    (void)json_object_set_new(values, "add_generation_prompt", json_true());
    (void)json_object_del(values, "tools");
    if (json_array_size(in->tools) > 0 && c->takes.tools)
        (void)json_object_set(values, "tools", (json_t *)(uintptr_t)in->tools);
    return values;
}

static int render(const struct chat_format *c, const struct chat_input *input, json_t *messages,
                  struct fault *fault, struct rendered *ret)
{
    struct why why = {.text = ""};
    CLEANUP(json_decrefp) json_t *values = values_of(c, input, messages);
    struct template_input in = {.values = values, .trusted = c->trusted, .now_s = time(NULL)};
    int r = chat_template_render(c->template, &in, &why, ret);
    if (r == 0) return 0;
    if (r == -ENOMEM)
        return fault_set(fault, FAULT_INTERNAL, NULL, "There is not enough memory for the prompt.");
    return fault_set(fault, FAULT_REQUEST, "messages",
                     "The model's chat template does not take these messages: %s.", why.text);
}

static int tokenise(const struct tokenizer *t, const struct tokenizer_span *spans, size_t n,
                    uint32_t n_ctx, struct fault *fault, struct tokenizer_ids *ret)
{
    struct tokenizer_ids ids = {0};
    size_t bytes = 0;
    for (size_t i = 0; i < n; i++)
        bytes += spans[i].bytes;
    int r = tokenizer_encode(t, spans, n, TOKENIZER_ADD_BOS, n_ctx - 1, &ids);
    if (r == -E2BIG) return fault_context(fault, "messages", ids.n ? ids.n : bytes, n_ctx);
    if (r < 0)
        return fault_set(fault, FAULT_INTERNAL, NULL, "The prompt could not be tokenised: %s.",
                         strerror(-r));
    if (ids.n == 0) {
        free(ids.ids);
        return fault_set(fault, FAULT_REQUEST, NULL, "The prompt is empty.");
    }
    *ret = ids;
    return 0;
}

int raw_prompt(const struct tokenizer *t, const char *text, size_t bytes, uint32_t n_ctx,
               struct fault *fault, struct tokenizer_ids *ret)
{
    struct tokenizer_span span = {.at = text, .bytes = bytes, .parse_special = true};
    return tokenise(t, &span, 1, n_ctx, fault, ret);
}

static int tokenise_chat(const struct chat_format *c, const struct chat_input *in,
                         const struct rendered *text, struct fault *fault,
                         struct tokenizer_ids *ret)
{
    CLEANUP(freep)
    struct tokenizer_span *spans = xcalloc(text->n_spans + 1, sizeof(struct tokenizer_span));
    size_t n = text->n_spans;
    for (size_t i = 0; i < n; i++) {
        const struct template_span *s = &text->spans[i];
        spans[i] = (struct tokenizer_span){
            .at = text->text + s->off, .bytes = s->bytes, .parse_special = !s->from_value};
    }
    if (in->prefill)
        spans[n++] = (struct tokenizer_span){.at = json_string_value(in->prefill),
                                             .bytes = json_string_length(in->prefill)};
    return tokenise(c->tokenizer, spans, n, in->n_ctx, fault, ret);
}

static int render_input(const struct chat_format *c, const struct chat_input *in,
                        struct fault *fault, struct rendered *ret)
{
    CLEANUP(json_decrefp) json_t *list = NULL;
    int r = in->tools ? tools_check(in->tools, fault) : 0;
    if (r == 0) r = messages_from(in->messages, fault, &list);
    if (r == 0 && !c->takes.tools) tools_write_out(list, in->tools);
    if (r == 0 && !c->takes.object_arguments) tool_arguments_write_out(list);
    if (r == 0 && !c->takes.system) system_to_users(list);
    return r < 0 ? r : render(c, in, list, fault, ret);
}

int chat_prompt(const struct chat_format *c, const struct chat_input *in, struct fault *fault,
                struct tokenizer_ids *ret)
{
    struct rendered text;
    int r = render_input(c, in, fault, &text);
    if (r < 0) return r;
    r = tokenise_chat(c, in, &text, fault, ret);
    rendered_fini(&text);
    return r;
}

int chat_text(const struct chat_format *c, const struct chat_input *in, struct fault *fault,
              struct bytebuf *ret)
{
    struct rendered text;
    int r = render_input(c, in, fault, &text);
    if (r < 0) return r;
    bytebuf_add(ret, text.text, text.bytes);
    rendered_fini(&text);
    return 0;
}
