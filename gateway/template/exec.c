/* SPDX-License-Identifier: MIT */
/* Owns statements: what they write, which names they set, and the calling of macros. Called by
 * chat_template_render() with the root of the tree. */
#include "gateway/template/eval.h"

#include <errno.h>
#include <string.h>

static int assign_tuple(struct render *r, const struct node *target, struct frame *f,
                        struct value v)
{
    struct list items;
    int e = value_items(r, v, &items);
    if (e < 0) return e;
    if (items.n != target->n_kids)
        return render_fail(r, -EPROTO, "%u values cannot be set to %u names", items.n,
                           target->n_kids);
    for (uint32_t i = 0; e == 0 && i < items.n; i++)
        e = assign(r, target->kids[i], f, items.items[i]);
    return e;
}

int assign(struct render *r, const struct node *target, struct frame *f, struct value v)
{
    if (target->kind == NODE_NAME) return scope_set(r, f->scope, target->name, v);
    if (target->kind == NODE_TUPLE) return assign_tuple(r, target, f, v);
    struct value space;
    int e = scope_get(r, f->scope, target->name, &space);
    if (e < 0) return e;
    if (space.kind != VALUE_NAMESPACE)
        return render_fail(r, -EPROTO, "a member of '%.*s' cannot be set: it is no namespace",
                           (int)min_u32(target->name->bytes, 64), target->name->text);
    return dict_set(r, space.dict, target->value, v);
}

/* Runs the body into a string of its own, in a scope of its own. */
static int capture(struct render *r, const struct node *body, struct scope *scope,
                   struct value *ret)
{
    struct str_buf b = render_buf(r);
    struct frame inner = {.scope = scope, .out = &b};
    enum flow flow = FLOW_ON;
    int e = exec(r, body, &inner, &flow);
    if (e == 0 && flow != FLOW_ON)
        e = render_fail(r, -EPROTO, "break and continue belong into a loop");
    return e < 0 ? e : render_buf_value(&b, ret);
}

static int exec_if(struct render *r, const struct node *n, struct frame *f, enum flow *flow)
{
    uint32_t i = 0;
    for (; i + 1 < n->n_kids; i += 2) {
        struct value condition;
        int e = eval(r, n->kids[i], f, &condition);
        if (e < 0) return e;
        if (value_truth(condition)) return exec(r, n->kids[i + 1], f, flow);
    }
    return i < n->n_kids ? exec(r, n->kids[i], f, flow) : 0;
}

/* Keeps the items that the loop's "if" holds for. */
static int filter_items(struct render *r, const struct node *n, struct frame *f, struct list *items)
{
    struct list *kept;
    int e = list_new(r, items->n, &kept);
    if (e < 0) return e;
    kept->n = 0;
    for (uint32_t i = 0; i < items->n; i++) {
        struct frame inner = *f;
        struct value condition;
        e = scope_new(r, f->scope, &inner.scope);
        if (e == 0) e = assign(r, n->a, &inner, items->items[i]);
        if (e == 0) e = eval(r, n->c, &inner, &condition);
        if (e < 0) return e;
        if (value_truth(condition)) kept->items[kept->n++] = items->items[i];
    }
    *items = *kept;
    return 0;
}

static int run_loop(struct render *r, const struct node *n, struct frame *f, struct loop *loop,
                    bool *ret_completed)
{
    const struct str *name = str_lit(&r->arena, "loop");
    if (!name) return -E2BIG;
    enum flow flow = FLOW_ON;
    *ret_completed = false;
    for (loop->i = 0; loop->i < loop->list.n && flow != FLOW_BREAK; loop->i++) {
        struct frame inner = *f;
        flow = FLOW_ON;
        int e = scope_new(r, f->scope, &inner.scope);
        if (e == 0)
            e = scope_set(r, inner.scope, name, (struct value){.kind = VALUE_LOOP, .loop = loop});
        if (e == 0) e = assign(r, n->a, &inner, loop->list.items[loop->i]);
        if (e == 0) e = exec(r, n->kids[0], &inner, &flow);
        if (e < 0) return e;
        *ret_completed = *ret_completed || flow == FLOW_ON;
    }
    return 0;
}

static int exec_for(struct render *r, const struct node *n, struct frame *f, enum flow *flow)
{
    struct loop *loop = arena_zero(&r->arena, 1, sizeof(*loop));
    struct value over;
    if (!loop) return -E2BIG;
    int e = eval(r, n->b, f, &over);
    if (e == 0) e = value_items(r, over, &loop->list);
    if (e == 0 && n->c) e = filter_items(r, n, f, &loop->list);
    if (e < 0) return e;
    bool completed;
    e = run_loop(r, n, f, loop, &completed);
    if (e < 0 || completed || !n->kids[1]) return e;
    /* jinja2 runs the else also when every round was left by break or continue. */
    struct frame inner = *f;
    e = scope_new(r, f->scope, &inner.scope);
    return e < 0 ? e : exec(r, n->kids[1], &inner, flow);
}

static int exec_set(struct render *r, const struct node *n, struct frame *f)
{
    struct value v;
    int e = eval(r, n->b, f, &v);
    return e < 0 ? e : assign(r, n->a, f, v);
}

static int exec_set_block(struct render *r, const struct node *n, struct frame *f)
{
    struct frame inner = *f;
    struct value v;
    int e = scope_new(r, f->scope, &inner.scope);
    if (e == 0) e = capture(r, n->kids[0], inner.scope, &v);
    if (e == 0 && n->b) e = eval_block_filters(r, n->b, &inner, v, &v);
    return e < 0 ? e : assign(r, n->a, f, v);
}

static int make_macro(struct render *r, const struct node *n, struct frame *f, struct value *ret)
{
    struct macro *m = arena_zero(&r->arena, 1, sizeof(*m));
    if (!m) return -E2BIG;
    *m = (struct macro){
        .signature = n->signature, .body = n->kids[0], .name = n->name, .closure = f->scope};
    *ret = (struct value){.kind = VALUE_MACRO, .macro = m};
    return 0;
}

static int exec_macro(struct render *r, const struct node *n, struct frame *f)
{
    struct value v;
    int e = make_macro(r, n, f, &v);
    return e < 0 ? e : scope_set(r, f->scope, n->name, v);
}

static int exec_call_block(struct render *r, const struct node *n, struct frame *f)
{
    struct value caller, v;
    int e = make_macro(r, n, f, &caller);
    if (e == 0) e = eval_call(r, n->a, f, caller, &v);
    return e < 0 ? e : value_print(r, f->out, v);
}

static int exec_filter_block(struct render *r, const struct node *n, struct frame *f)
{
    struct frame inner = *f;
    struct value v;
    int e = scope_new(r, f->scope, &inner.scope);
    if (e == 0) e = capture(r, n->kids[0], inner.scope, &v);
    if (e == 0) e = eval_block_filters(r, n->a, &inner, v, &v);
    return e < 0 ? e : value_print(r, f->out, v);
}

/* The values of a with see the names around it, not those that it sets. */
static int exec_with(struct render *r, const struct node *n, struct frame *f, enum flow *flow)
{
    struct frame inner = *f;
    int e = scope_new(r, f->scope, &inner.scope);
    for (uint32_t i = 0; e == 0 && i + 1 < n->n_kids; i += 2) {
        struct value v;
        e = eval(r, n->kids[i + 1], f, &v);
        if (e == 0) e = assign(r, n->kids[i], &inner, v);
    }
    return e < 0 ? e : exec(r, n->a, &inner, flow);
}

static int exec_print(struct render *r, const struct node *n, struct frame *f)
{
    struct value v;
    int e = eval(r, n->a, f, &v);
    return e < 0 ? e : value_print(r, f->out, v);
}

static int exec_body(struct render *r, const struct node *n, struct frame *f, enum flow *flow)
{
    for (uint32_t i = 0; i < n->n_kids && *flow == FLOW_ON; i++) {
        r->line = n->kids[i]->line;
        int e = exec(r, n->kids[i], f, flow);
        if (e < 0) return e;
        if (f->out->failed) return -E2BIG;
    }
    return 0;
}

static int exec_scope(struct render *r, const struct node *n, struct frame *f)
{
    struct frame inner = *f;
    struct value v;
    int e = scope_new(r, f->scope, &inner.scope);
    if (e == 0) e = capture(r, n->a, inner.scope, &v);
    return e < 0 ? e : value_print(r, f->out, v);
}

static int exec_inner(struct render *r, const struct node *n, struct frame *f, enum flow *flow)
{
    switch (n->kind) {
    case NODE_BODY:
        return exec_body(r, n, f, flow);
    case NODE_TEXT:
        buf_str(f->out, n->value.str);
        return render_scan(r, n->value.str->bytes);
    case NODE_PRINT:
        return exec_print(r, n, f);
    case NODE_IF:
        return exec_if(r, n, f, flow);
    case NODE_FOR:
        return exec_for(r, n, f, flow);
    case NODE_SET:
        return exec_set(r, n, f);
    case NODE_SET_BLOCK:
        return exec_set_block(r, n, f);
    case NODE_MACRO:
        return exec_macro(r, n, f);
    case NODE_CALL_BLOCK:
        return exec_call_block(r, n, f);
    case NODE_FILTER_BLOCK:
        return exec_filter_block(r, n, f);
    case NODE_WITH:
        return exec_with(r, n, f, flow);
    case NODE_SCOPE:
        return exec_scope(r, n, f);
    default:
        *flow = n->kind == NODE_BREAK ? FLOW_BREAK : FLOW_CONTINUE;
        return 0;
    }
}

int exec(struct render *r, const struct node *n, struct frame *f, enum flow *flow)
{
    int e = render_step(r, 1);
    if (e == 0) e = render_enter(r);
    if (e < 0) return e;
    e = exec_inner(r, n, f, flow);
    render_leave(r);
    return e;
}

/* The keyword argument of the name, or VALUE_MISSING. */
static struct value named_argument(const struct args *args, const struct str *name)
{
    for (uint32_t i = 0; i < args->n_named; i++)
        if (str_equal(args->names[i], name)) return args->named[i];
    return (struct value){.kind = VALUE_MISSING};
}

static int bind_parameters(struct render *r, const struct signature *s, const struct args *args,
                           struct frame *f)
{
    for (uint32_t i = 0; i < s->n_names; i++) {
        struct value v = i < args->n_pos ? args->pos[i] : named_argument(args, s->names[i]);
        uint32_t n_plain = s->n_names - s->n_defaults;
        int e = 0;
        if (!value_given(v) && i >= n_plain)
            e = eval(r, s->defaults[i - n_plain], f, &v);
        else if (!value_given(v))
            v = value_undefined(s->names[i]);
        if (e == 0) e = scope_set(r, f->scope, s->names[i], v);
        if (e < 0) return e;
    }
    return 0;
}

static bool is_parameter(const struct signature *s, uint32_t from, const struct str *name)
{
    for (uint32_t i = from; i < s->n_names; i++)
        if (str_equal(s->names[i], name)) return true;
    return false;
}

/* The keyword arguments that no parameter takes: "kwargs", or an error. */
static int bind_named(struct render *r, const struct signature *s, const struct args *args,
                      struct frame *f)
{
    struct dict *rest;
    int e = dict_new(r, &rest);
    struct value caller = value_undefined(NULL);
    for (uint32_t i = 0; e == 0 && i < args->n_named; i++) {
        if (is_parameter(s, args->n_pos, args->names[i])) continue;
        if (s->takes_caller && str_is(args->names[i], "caller"))
            caller = args->named[i];
        else if (!s->takes_named)
            return render_fail(r, -EPROTO, "the macro has no parameter '%.*s'",
                               (int)min_u32(args->names[i]->bytes, 64), args->names[i]->text);
        else
            e = dict_set(r, rest, value_str(args->names[i]), args->named[i]);
    }
    const struct str *kwargs = str_lit(&r->arena, "kwargs"), *name = str_lit(&r->arena, "caller");
    if (!kwargs || !name) return -E2BIG;
    if (e == 0 && s->takes_named)
        e = scope_set(r, f->scope, kwargs, (struct value){.kind = VALUE_DICT, .dict = rest});
    if (e == 0 && s->takes_caller) e = scope_set(r, f->scope, name, caller);
    return e;
}

static int bind_rest(struct render *r, const struct signature *s, const struct args *args,
                     struct frame *f)
{
    uint32_t n = args->n_pos > s->n_names ? args->n_pos - s->n_names : 0;
    if (!s->takes_rest)
        return n ? render_fail(r, -EPROTO, "the macro takes %u arguments, not %u", s->n_names,
                               args->n_pos)
                 : 0;
    struct value v;
    const struct str *name = str_lit(&r->arena, "varargs");
    int e = name ? value_list(r, VALUE_TUPLE, n ? args->pos + s->n_names : NULL, n, &v) : -E2BIG;
    return e < 0 ? e : scope_set(r, f->scope, name, v);
}

int macro_call(struct render *r, const struct macro *m, const struct args *args, struct value *ret)
{
    struct frame f = {0};
    uint32_t line = r->line;
    int e = scope_new(r, m->closure, &f.scope);
    if (e == 0) e = bind_rest(r, m->signature, args, &f);
    if (e == 0) e = bind_named(r, m->signature, args, &f);
    if (e == 0) e = bind_parameters(r, m->signature, args, &f);
    if (e == 0) e = capture(r, m->body, f.scope, ret);
    r->line = line;
    return e;
}

struct value macro_name(const struct macro *m)
{
    return m->name ? value_str(m->name) : (struct value){.kind = VALUE_NONE};
}
