/* SPDX-License-Identifier: MIT */
/* Owns expressions: nodes become values. Called by the statements; recursion is bounded by
 * render_enter(), work by render_step(). */
#include "gateway/template/eval.h"

#include <errno.h>
#include <string.h>

int scope_new(struct render *r, struct scope *parent, struct scope **ret)
{
    *ret = arena_zero(&r->arena, 1, sizeof(**ret));
    if (!*ret) return -E2BIG;
    (*ret)->parent = parent;
    return 0;
}

static struct value *scope_find(const struct scope *s, const struct str *name)
{
    for (uint32_t i = 0; i < s->n; i++)
        if (s->vars[i].name == name || str_equal(s->vars[i].name, name)) return &s->vars[i].value;
    return NULL;
}

int scope_set(struct render *r, struct scope *s, const struct str *name, struct value v)
{
    struct value *found = scope_find(s, name);
    if (found) {
        *found = v;
        return 0;
    }
    if (s->n == s->cap) {
        uint32_t cap = s->cap ? s->cap * 2 : 2;
        struct binding *vars =
            arena_grow(&r->arena, s->vars, s->cap * sizeof(*vars), cap * sizeof(*vars));
        if (!vars) return -E2BIG;
        s->vars = vars;
        s->cap = cap;
    }
    s->vars[s->n++] = (struct binding){.name = name, .value = v};
    return 0;
}

/* The template's own names first, then the context, then what every template has. */
int scope_get(struct render *r, const struct scope *s, const struct str *name, struct value *ret)
{
    for (; s; s = s->parent) {
        const struct value *found = scope_find(s, name);
        int e = render_step(r, s->n / 8); /* names are few; thousands of them must cost */
        if (e < 0) return e;
        if (!found) continue;
        *ret = *found;
        return 0;
    }
    struct value *found;
    int e = dict_get_text(r, r->trusted, name, &found);
    if (e == 0 && !found) e = dict_get_text(r, r->values, name, &found);
    if (e < 0) return e;
    const struct function *function = found ? NULL : function_find(name);
    if (found)
        *ret = *found;
    else if (function)
        *ret = (struct value){.kind = VALUE_FUNCTION, .function = function};
    else
        *ret = value_undefined(name);
    return 0;
}

static int eval_items(struct render *r, const struct node *n, struct frame *f, struct value *ret)
{
    struct list *l;
    int e = list_new(r, n->n_kids, &l);
    for (uint32_t i = 0; e == 0 && i < n->n_kids; i++)
        e = eval(r, n->kids[i], f, &l->items[i]);
    if (e < 0) return e;
    *ret = (struct value){.kind = n->kind == NODE_LIST ? VALUE_LIST : VALUE_TUPLE, .list = l};
    return 0;
}

static int eval_dict(struct render *r, const struct node *n, struct frame *f, struct value *ret)
{
    struct dict *d;
    int e = dict_new(r, &d);
    for (uint32_t i = 0; e == 0 && i + 1 < n->n_kids; i += 2) {
        struct value key, value;
        e = eval(r, n->kids[i], f, &key);
        if (e == 0) e = eval(r, n->kids[i + 1], f, &value);
        if (e == 0) e = dict_set(r, d, key, value);
    }
    if (e == 0) *ret = (struct value){.kind = VALUE_DICT, .dict = d};
    return e;
}

static int eval_slice(struct render *r, const struct node *n, struct frame *f, struct value *ret)
{
    struct value of, bounds[3] = {{.kind = VALUE_NONE}, {.kind = VALUE_NONE}, {.kind = VALUE_NONE}};
    int e = eval(r, n->a, f, &of);
    for (uint32_t i = 0; e == 0 && i < 3; i++)
        if (n->kids[i]) e = eval(r, n->kids[i], f, &bounds[i]);
    return e < 0 ? e : value_slice(r, of, bounds, ret);
}

/* The arguments of a call being collected. */
struct arg_list {
    struct value *pos, *named;
    const struct str **names;
    uint32_t n_pos, n_named, cap_pos, cap_named;
};

static int add_pos(struct render *r, struct arg_list *l, struct value v)
{
    if (l->n_pos == l->cap_pos) {
        uint32_t cap = l->cap_pos ? l->cap_pos * 2 : 4;
        struct value *pos = arena_grow(&r->arena, l->pos, l->cap_pos * sizeof(v), cap * sizeof(v));
        if (!pos) return -E2BIG;
        l->pos = pos;
        l->cap_pos = cap;
    }
    l->pos[l->n_pos++] = v;
    return 0;
}

static int add_named(struct render *r, struct arg_list *l, const struct str *name, struct value v)
{
    for (uint32_t i = 0; i < l->n_named; i++)
        if (str_equal(l->names[i], name))
            return render_fail(r, -EPROTO, "an argument is given twice");
    if (l->n_named == l->cap_named) {
        uint32_t cap = l->cap_named ? l->cap_named * 2 : 4;
        struct value *named =
            arena_grow(&r->arena, l->named, l->cap_named * sizeof(v), cap * sizeof(v));
        const struct str **names =
            arena_grow(&r->arena, l->names, l->cap_named * sizeof(*names), cap * sizeof(*names));
        if (!named || !names) return -E2BIG;
        l->named = named;
        l->names = names;
        l->cap_named = cap;
    }
    l->named[l->n_named] = v;
    l->names[l->n_named++] = name;
    return render_step(r, 1 + l->n_named / 8);
}

static int add_star(struct render *r, struct arg_list *l, struct value v)
{
    struct list items;
    int e = value_items(r, v, &items);
    for (uint32_t i = 0; e == 0 && i < items.n; i++)
        e = add_pos(r, l, items.items[i]);
    return e;
}

static int add_star_star(struct render *r, struct arg_list *l, struct value v)
{
    int e = 0;
    if (v.kind != VALUE_DICT)
        return render_fail(r, -EPROTO, "** takes a dict, not %s", value_type_name(v));
    for (uint32_t i = 0; e == 0 && i < v.dict->n; i++) {
        if (v.dict->pairs[i].key.kind != VALUE_STR)
            return render_fail(r, -EPROTO, "names of arguments are strings");
        e = add_named(r, l, v.dict->pairs[i].key.str, v.dict->pairs[i].value);
    }
    return e;
}

static int eval_args(struct render *r, const struct node *n, struct frame *f, struct value caller,
                     struct args *ret)
{
    struct arg_list l = {0};
    int e = 0;
    for (uint32_t i = 0; e == 0 && i < n->n_kids; i++) {
        const struct node *kid = n->kids[i];
        bool wrapped =
            kid->kind == NODE_KEYWORD || kid->kind == NODE_STAR || kid->kind == NODE_STAR_STAR;
        struct value v;
        e = eval(r, wrapped ? kid->a : kid, f, &v);
        if (e < 0) return e;
        if (kid->kind == NODE_KEYWORD)
            e = add_named(r, &l, kid->name, v);
        else if (kid->kind == NODE_STAR)
            e = add_star(r, &l, v);
        else if (kid->kind == NODE_STAR_STAR)
            e = add_star_star(r, &l, v);
        else
            e = add_pos(r, &l, v);
    }
    const struct str *name = value_given(caller) ? str_lit(&r->arena, "caller") : NULL;
    if (e == 0 && value_given(caller)) e = name ? add_named(r, &l, name, caller) : -E2BIG;
    *ret = (struct args){
        .pos = l.pos, .n_pos = l.n_pos, .names = l.names, .named = l.named, .n_named = l.n_named};
    return e;
}

int eval_call(struct render *r, const struct node *n, struct frame *f, struct value caller,
              struct value *ret)
{
    struct value function;
    struct args args;
    int e = eval(r, n->a, f, &function);
    if (e == 0) e = eval_args(r, n, f, caller, &args);
    return e < 0 ? e : value_call(r, function, &args, ret);
}

static int apply_filter(struct render *r, const struct node *n, struct frame *f, struct value in,
                        struct value *ret)
{
    struct args args;
    if (!n->filter)
        return render_fail(r, -EPROTO, "there is no filter named '%.*s'",
                           (int)min_u32(n->name->bytes, 64), n->name->text);
    int e = eval_args(r, n, f, (struct value){.kind = VALUE_MISSING}, &args);
    return e < 0 ? e : n->filter->call(r, in, &args, ret);
}

int eval_block_filters(struct render *r, const struct node *n, struct frame *f, struct value in,
                       struct value *ret)
{
    int e = render_enter(r);
    if (e < 0) return e;
    if (n->a) e = eval_block_filters(r, n->a, f, in, &in);
    if (e == 0) e = apply_filter(r, n, f, in, ret);
    render_leave(r);
    return e;
}

static int eval_test(struct render *r, const struct node *n, struct frame *f, struct value *ret)
{
    struct value in;
    struct args args;
    bool holds = false;
    int e = eval(r, n->a, f, &in);
    if (e == 0 && !n->test)
        return render_fail(r, -EPROTO, "there is no test named '%.*s'",
                           (int)min_u32(n->name->bytes, 64), n->name->text);
    if (e == 0) e = eval_args(r, n, f, (struct value){.kind = VALUE_MISSING}, &args);
    if (e == 0) e = n->test->call(r, in, &args, &holds);
    if (e == 0) *ret = value_bool(holds);
    return e;
}

static int eval_and_or(struct render *r, const struct node *n, struct frame *f, struct value *ret)
{
    int e = 0;
    for (uint32_t i = 0; e == 0 && i < n->n_kids; i++) {
        e = eval(r, n->kids[i], f, ret);
        if (e == 0 && value_truth(*ret) == (n->kind == NODE_OR)) break;
    }
    return e;
}

static int eval_concat(struct render *r, const struct node *n, struct frame *f, struct value *ret)
{
    struct value parts;
    int e = eval_items(r, n, f, &parts);
    struct str_buf b = render_buf(r);
    for (uint32_t i = 0; e == 0 && i < n->n_kids; i++)
        e = value_print(r, &b, parts.list->items[i]);
    return e < 0 ? e : render_buf_value(&b, ret);
}

static int eval_chain(struct render *r, const struct node *n, struct frame *f, struct value *ret)
{
    int e = eval(r, n->a, f, ret);
    for (uint32_t i = 0; e == 0 && i < n->n_kids; i++) {
        struct value right;
        e = eval(r, n->kids[i], f, &right);
        if (e == 0) e = value_arithmetic(r, n->ops[i], *ret, right, ret);
    }
    return e;
}

static int eval_compare(struct render *r, const struct node *n, struct frame *f, struct value *ret)
{
    struct value left;
    bool holds = true;
    int e = eval(r, n->a, f, &left);
    for (uint32_t i = 0; e == 0 && holds && i < n->n_kids; i++) {
        struct value right;
        e = eval(r, n->kids[i], f, &right);
        if (e == 0) e = value_relation(r, n->ops[i], left, right, &holds);
        left = right;
    }
    if (e == 0) *ret = value_bool(holds);
    return e;
}

static int eval_choice(struct render *r, const struct node *n, struct frame *f, struct value *ret)
{
    struct value condition;
    int e = eval(r, n->b, f, &condition);
    if (e < 0) return e;
    if (value_truth(condition)) return eval(r, n->a, f, ret);
    *ret = value_undefined(NULL);
    return n->c ? eval(r, n->c, f, ret) : 0;
}

/* Nodes that compute from the value of their a. */
static int eval_from(struct render *r, const struct node *n, struct frame *f, struct value *ret)
{
    struct value of, key;
    int e = eval(r, n->a, f, &of);
    if (e < 0) return e;
    switch (n->kind) {
    case NODE_ATTRIBUTE:
        return value_attribute(r, of, n->name, ret);
    case NODE_ITEM:
        e = eval(r, n->b, f, &key);
        return e < 0 ? e : value_item(r, of, key, ret);
    case NODE_FILTER:
        return apply_filter(r, n, f, of, ret);
    case NODE_NEGATE:
        return value_negate(r, of, ret);
    case NODE_PLUS:
        e = value_negate(r, of, ret); /* refuses what has no sign */
        if (e == 0) *ret = of.kind == VALUE_BOOL ? value_int(of.boolean) : of;
        return e;
    default:
        *ret = value_bool(!value_truth(of));
        return 0;
    }
}

static int eval_inner(struct render *r, const struct node *n, struct frame *f, struct value *ret)
{
    switch (n->kind) {
    case NODE_LIST:
    case NODE_TUPLE:
        return eval_items(r, n, f, ret);
    case NODE_DICT:
        return eval_dict(r, n, f, ret);
    case NODE_SLICE:
        return eval_slice(r, n, f, ret);
    case NODE_CALL:
        return eval_call(r, n, f, (struct value){.kind = VALUE_MISSING}, ret);
    case NODE_TEST:
        return eval_test(r, n, f, ret);
    case NODE_AND:
    case NODE_OR:
        return eval_and_or(r, n, f, ret);
    case NODE_CONCAT:
        return eval_concat(r, n, f, ret);
    case NODE_CHAIN:
        return eval_chain(r, n, f, ret);
    case NODE_COMPARE:
        return eval_compare(r, n, f, ret);
    case NODE_CHOICE:
        return eval_choice(r, n, f, ret);
    default:
        return eval_from(r, n, f, ret);
    }
}

int eval(struct render *r, const struct node *n, struct frame *f, struct value *ret)
{
    int e = render_step(r, 1);
    if (e < 0) return e;
    if (n->kind == NODE_CONST) {
        *ret = n->value;
        return 0;
    }
    if (n->kind == NODE_NAME) return scope_get(r, f->scope, n->name, ret);
    e = render_enter(r);
    if (e < 0) return e;
    e = eval_inner(r, n, f, ret);
    render_leave(r);
    return e;
}
