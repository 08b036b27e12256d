/* SPDX-License-Identifier: MIT */
#ifndef GATEWAY_TEMPLATE_EVAL_H
#define GATEWAY_TEMPLATE_EVAL_H
/*
 * Walking the tree: where names are looked up and where text goes. Scopes live in the render's
 * arena, so that a macro can keep the one that it was made in.
 */
#include "gateway/template/ast.h"

struct binding {
    const struct str *name;
    struct value value;
};

struct scope {
    struct scope *parent;
    struct binding *vars;
    uint32_t n, cap;
};

struct frame {
    struct scope *scope;
    struct str_buf *out;
};

struct macro {
    const struct signature *signature;
    const struct node *body;
    const struct str *name; /* NULL: the caller of a call block */
    struct scope *closure;
};

enum flow { FLOW_ON, FLOW_BREAK, FLOW_CONTINUE };

int scope_new(struct render *r, struct scope *parent, struct scope **ret);
int scope_set(struct render *r, struct scope *s, const struct str *name, struct value v);
int scope_get(struct render *r, const struct scope *s, const struct str *name, struct value *ret);

int eval(struct render *r, const struct node *n, struct frame *f, struct value *ret);
/* A call, with the macro that a call block hands over, or VALUE_MISSING. */
int eval_call(struct render *r, const struct node *n, struct frame *f, struct value caller,
              struct value *ret);
/* The filters of a block: the innermost one takes what the block gave. */
int eval_block_filters(struct render *r, const struct node *n, struct frame *f, struct value in,
                       struct value *ret);
int exec(struct render *r, const struct node *n, struct frame *f, enum flow *flow);
int assign(struct render *r, const struct node *target, struct frame *f, struct value v);

#endif
