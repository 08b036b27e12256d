/* SPDX-License-Identifier: MIT */
#ifndef GATEWAY_TEMPLATE_TEMPLATE_H
#define GATEWAY_TEMPLATE_TEMPLATE_H
/*
 * A model's chat template: Jinja as chat templates use it, compiled once and rendered any number of
 * times. The output says which of its bytes come from values (messages, tools, documents, ...) and
 * which are the template's own, so that a tokeniser takes control tokens only from the latter.
 *
 * The language is that of jinja2 3.1 in an immutable sandbox with trim_blocks, lstrip_blocks and
 * the loop controls, and with what chat templates are given besides: raise_exception, strftime_now,
 * tojson without HTML escapes, {% generation %}. Refused by name: inheritance, includes, imports,
 * autoescape, recursive loops, the filters filesizeformat, groupby, pprint, random, striptags,
 * truncate, urlize, wordwrap and xmlattr. Integers have 64 bits, fields of formats 1,000
 * characters.
 *
 * A compiled template is immutable: any number of threads may render it at once. Both source and
 * context may be hostile; each limit that is met is -E2BIG with a sentence.
 */
#include "common/base.h"

#include <jansson.h>
#include <stdbool.h>

struct chat_template;

/* Bytes [off, off + bytes) of the text. Spans cover the text, in order, and alternate. A span that
 * is not from_value may hold control tokens; a border between spans is no border of tokens. */
struct template_span {
    size_t off, bytes;
    bool from_value;
};

struct rendered {
    char *text; /* valid UTF-8, also ended by NUL */
    size_t bytes;
    struct template_span *spans;
    size_t n_spans;
};

/* What one render may take; 0 takes the default, which is in template.c. */
struct template_limits {
    uint64_t steps;      /* nodes walked, items visited, text scanned in pieces of 64 bytes */
    size_t output_bytes; /* of the text, and of any string on the way to it */
    size_t memory_bytes;
    uint32_t depth; /* calls, statements and expressions in each other */
};

struct template_input {
    const json_t *values;  /* messages, tools, add_generation_prompt, kwargs of the request, ... */
    const json_t *trusted; /* or NULL: bos_token, eos_token, ...: the model's own text */
    int64_t now_s;         /* seconds since the epoch, for strftime_now, shown in local time */
    struct template_limits limits;
};

/* The source is copied. -EPROTO: it is no template, and why says where; -E2BIG: over a limit. */
int chat_template_new(const char *source, size_t bytes, struct why *why,
                      struct chat_template **ret);
void chat_template_free(struct chat_template *t);

/* -EBADMSG: the template refuses these messages, why has its own words; -EPROTO: it fails on them;
 * -E2BIG: over a limit. Nothing is kept of the input. */
int chat_template_render(const struct chat_template *t, const struct template_input *in,
                         struct why *why, struct rendered *ret);
void rendered_fini(struct rendered *r);

#endif
