/* SPDX-License-Identifier: MIT */
#ifndef GATEWAY_TEMPLATE_PARSE_H
#define GATEWAY_TEMPLATE_PARSE_H
/*
 * The parser's state and what its two halves, expressions and statements, share. The grammar is
 * that of jinja2's parser.py, function by function, so that both read alike.
 */
#include "gateway/template/ast.h"

struct parser {
    struct arena *arena;
    const struct token *at;
    uint32_t depth;
    /* Which of these names the macro at hand speaks of: it then takes such arguments. */
    bool says_varargs, says_kwargs, says_caller;
    bool in_loop; /* where break and continue have something to leave */
};

/* A list of nodes being put together. */
struct kids {
    const struct node **nodes;
    uint8_t *ops;
    uint32_t n, cap;
};

enum {
    PARSE_MAX_DEPTH = 120, /* statements and brackets in each other; jinja2 manages about 80 */
    TREE_MAX_DEPTH = 1000, /* of the finished tree, which chains of filters make deeper */
};

__attribute__((format(printf, 2, 3))) int parse_fail(const struct parser *p, const char *format,
                                                     ...);
int parse_enter(struct parser *p);
struct node *node_new(struct parser *p, enum node_kind kind, const struct node *a);
int kids_push(struct parser *p, struct kids *k, const struct node *n, enum op op);
void kids_into(const struct kids *k, struct node *n);

bool at_op(const struct parser *p, const char *op);
bool at_name(const struct parser *p, const char *name);
bool skip_op(struct parser *p, const char *op);
bool skip_name(struct parser *p, const char *name);
int expect_op(struct parser *p, const char *op);
int expect_name(struct parser *p, const struct str **ret);

int parse_expression(struct parser *p, const struct node **ret);
int parse_or(struct parser *p, const struct node **ret);
/* One of the words ends the tuple besides the closing marks, or NULL. */
struct tuple_rules {
    bool simple;        /* names and literals only: what can be assigned to */
    bool no_choice;     /* no "a if b else c" */
    bool may_be_empty;  /* in brackets */
    bool has_namespace; /* a target may be ns.member */
    const char *end_word;
};
int parse_tuple(struct parser *p, const struct tuple_rules *rules, const struct node **ret);
int parse_target(struct parser *p, const char *end_word, bool has_namespace,
                 const struct node **ret);
/* A filter with those that follow it; in may be NULL; at the name or at a "|". */
int parse_filters(struct parser *p, const struct node *in, bool at_first_name,
                  const struct node **ret);

#endif
