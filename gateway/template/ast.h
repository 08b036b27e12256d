/* SPDX-License-Identifier: MIT */
#ifndef GATEWAY_TEMPLATE_AST_H
#define GATEWAY_TEMPLATE_AST_H
/*
 * A compiled template: tokens, and the tree made of them. Both are made once by parse_template(),
 * live in the template's arena and are only read afterwards, by any thread.
 */
#include "gateway/template/render.h"

enum token_kind {
    TOKEN_DATA, /* text between the tags */
    TOKEN_VARIABLE_BEGIN,
    TOKEN_VARIABLE_END,
    TOKEN_BLOCK_BEGIN,
    TOKEN_BLOCK_END,
    TOKEN_NAME,
    TOKEN_STRING,
    TOKEN_INT,
    TOKEN_FLOAT,
    TOKEN_OPERATOR,
    TOKEN_END,
};

struct token {
    enum token_kind kind;
    uint32_t line;
    char op[3];            /* OPERATOR, ended by NUL */
    const struct str *str; /* DATA, NAME, STRING */
    struct value number;   /* INT, FLOAT */
};

/* Comments are gone, white space is controlled, the last token is TOKEN_END. */
int lex_template(struct arena *a, const char *source, size_t bytes, struct token **ret);

/* The members that a node uses, by kind; lists that are not named are empty. */
enum node_kind {
    NODE_CONST,        /* value */
    NODE_NAME,         /* name */
    NODE_LIST,         /* kids */
    NODE_TUPLE,        /* kids */
    NODE_DICT,         /* kids: key, value, key, value, ... */
    NODE_ATTRIBUTE,    /* a . name */
    NODE_ITEM,         /* a [ b ] */
    NODE_SLICE,        /* a [ kids[0] : kids[1] : kids[2] ]; absent ones are NULL */
    NODE_CALL,         /* a ( kids ) */
    NODE_FILTER,       /* a | name ( kids ), filter; a is NULL: what the block gave */
    NODE_TEST,         /* a is name ( kids ), test */
    NODE_NEGATE,       /* a */
    NODE_PLUS,         /* a */
    NODE_NOT,          /* a */
    NODE_AND,          /* kids */
    NODE_OR,           /* kids */
    NODE_CONCAT,       /* kids */
    NODE_CHAIN,        /* arithmetic, left to right: a, then ops[i] kids[i] */
    NODE_COMPARE,      /* a, then ops[i] kids[i] */
    NODE_CHOICE,       /* a if b else c, which may be NULL */
    NODE_KEYWORD,      /* in a call: name = a */
    NODE_STAR,         /* in a call: *a */
    NODE_STAR_STAR,    /* in a call: **a */
    NODE_TEXT,         /* value */
    NODE_PRINT,        /* a */
    NODE_IF,           /* kids: condition, body, ..., else-body if odd; bodies are NODE_BODY */
    NODE_FOR,          /* target a, in b, if c, body kids[0], else kids[1] or NULL */
    NODE_SET,          /* target a = b */
    NODE_SET_BLOCK,    /* target a, filter b or NULL, body kids[0] */
    NODE_MACRO,        /* name, signature, body kids[0] */
    NODE_CALL_BLOCK,   /* call a, signature, body kids[0] */
    NODE_FILTER_BLOCK, /* filter a, body kids[0] */
    NODE_WITH,         /* kids: target, value, ...; body a */
    NODE_SCOPE,        /* body a in a scope of its own */
    NODE_MEMBER,       /* target only: namespace name, member in value */
    NODE_BREAK,
    NODE_CONTINUE,
    NODE_BODY, /* kids */
};

struct signature {
    const struct str *const *names;
    const struct node *const *defaults; /* of the last n_defaults names */
    uint32_t n_names, n_defaults;
    bool takes_rest;   /* the body speaks of varargs */
    bool takes_named;  /* ... of kwargs */
    bool takes_caller; /* ... of caller */
};

struct node {
    enum node_kind kind;
    uint32_t line;
    uint32_t n_kids;
    const struct str *name;
    struct value value;
    const struct node *a, *b, *c;
    const struct node *const *kids;
    const uint8_t *ops; /* enum op, one a kid */
    union {
        const struct filter *filter; /* NULL: no filter has the name */
        const struct test *test;
        const struct signature *signature;
    };
};

int parse_template(struct arena *a, const char *source, size_t bytes, const struct node **ret);

#endif
