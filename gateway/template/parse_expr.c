/* SPDX-License-Identifier: MIT */
/* Owns the grammar of expressions: tokens become nodes. Called by the statements' parser. Recursion
 * is bounded by parse_enter(); chains are loops. */
#include "gateway/template/parse.h"

#include <errno.h>
#include <string.h>

static int primary(struct parser *p, bool has_namespace, const struct node **ret);

/* The names that filters and tests may have: "a.b" too, though none of ours does. */
static int dotted_name(struct parser *p, const struct str **ret)
{
    int r = expect_name(p, ret);
    while (r == 0 && skip_op(p, ".")) {
        const struct str *more;
        r = expect_name(p, &more);
        if (r < 0) return r;
        struct str_buf b = {.arena = p->arena, .limit_bytes = STR_MAX_BYTES};
        buf_str(&b, *ret);
        buf_lit(&b, ".");
        buf_str(&b, more);
        r = buf_finish(&b, ret);
    }
    return r;
}

static int argument(struct parser *p, struct node **ret)
{
    struct node *n = NULL;
    const struct str *name = NULL;
    enum node_kind kind = NODE_CONST; /* stands for: an expression */
    if (skip_op(p, "**"))
        kind = NODE_STAR_STAR;
    else if (skip_op(p, "*"))
        kind = NODE_STAR;
    else if (p->at->kind == TOKEN_NAME && p->at[1].kind == TOKEN_OPERATOR &&
             strcmp(p->at[1].op, "=") == 0) {
        kind = NODE_KEYWORD;
        name = p->at->str;
        p->at += 2;
    }
    const struct node *value;
    int r = parse_expression(p, &value);
    if (r < 0) return r;
    n = node_new(p, kind, value);
    if (!n) return -E2BIG;
    n->name = name;
    *ret = n;
    return 0;
}

/* ( ... ) of a call, as the kids of n. Positional arguments come before named ones. */
static int arguments(struct parser *p, struct node *n)
{
    struct kids kids = {0};
    bool named = false;
    int r = expect_op(p, "(");
    while (r == 0 && !at_op(p, ")")) {
        struct node *arg;
        if (kids.n && (r = expect_op(p, ",")) < 0) return r;
        if (at_op(p, ")")) break;
        if ((r = argument(p, &arg)) < 0) return r;
        bool positional = arg->kind == NODE_CONST || arg->kind == NODE_STAR;
        if (named && positional)
            return parse_fail(p, "a positional argument comes after a named one");
        named = named || !positional;
        r = kids_push(p, &kids, arg->kind == NODE_CONST ? arg->a : arg, 0);
    }
    kids_into(&kids, n);
    return r < 0 ? r : expect_op(p, ")");
}

static int slice_part(struct parser *p, const struct node **ret)
{
    *ret = NULL;
    if (at_op(p, ":") || at_op(p, "]") || at_op(p, ",")) return 0;
    return parse_expression(p, ret);
}

/* One of the things between [ and ]: an expression, or a slice. */
static int subscript(struct parser *p, const struct node *of, const struct node **ret)
{
    struct kids kids = {0};
    const struct node *part;
    int r = slice_part(p, &part);
    if (r < 0) return r;
    if (part && !at_op(p, ":")) {
        struct node *n = node_new(p, NODE_ITEM, of);
        if (!n) return -E2BIG;
        n->b = part;
        *ret = n;
        return 0;
    }
    r = kids_push(p, &kids, part, 0);
    if (r == 0) r = expect_op(p, ":");
    if (r == 0) r = slice_part(p, &part);
    if (r == 0) r = kids_push(p, &kids, part, 0);
    if (r < 0) return r;
    part = NULL;
    if (skip_op(p, ":")) r = slice_part(p, &part);
    if (r == 0) r = kids_push(p, &kids, part, 0);
    struct node *n = r < 0 ? NULL : node_new(p, NODE_SLICE, of);
    if (!n) return r < 0 ? r : -E2BIG;
    kids_into(&kids, n);
    *ret = n;
    return 0;
}

/* x[a, b] is x[(a, b)]. */
static int subscripts(struct parser *p, const struct node *of, const struct node **ret)
{
    int r = subscript(p, of, ret);
    if (r < 0 || !at_op(p, ",")) return r < 0 ? r : expect_op(p, "]");
    if ((*ret)->kind == NODE_SLICE) return parse_fail(p, "a slice cannot be part of a tuple");
    struct kids kids = {0};
    r = kids_push(p, &kids, (*ret)->b, 0);
    while (r == 0 && skip_op(p, ",") && !at_op(p, "]")) {
        const struct node *part;
        r = parse_expression(p, &part);
        if (r == 0) r = kids_push(p, &kids, part, 0);
    }
    if (r == 0) r = expect_op(p, "]");
    if (r < 0) return r;
    struct node *tuple = node_new(p, NODE_TUPLE, NULL), *n = node_new(p, NODE_ITEM, of);
    if (!tuple || !n) return -E2BIG;
    kids_into(&kids, tuple);
    n->b = tuple;
    *ret = n;
    return 0;
}

static int member(struct parser *p, const struct node *of, const struct node **ret)
{
    bool number = p->at->kind == TOKEN_INT;
    if (!number && p->at->kind != TOKEN_NAME) return parse_fail(p, "a name must follow '.'");
    struct node *n = node_new(p, number ? NODE_ITEM : NODE_ATTRIBUTE, of);
    struct node *index = number ? node_new(p, NODE_CONST, NULL) : NULL;
    if (!n || (number && !index)) return -E2BIG;
    if (number) index->value = p->at->number;
    n->b = index;
    n->name = p->at->str;
    p->at++;
    *ret = n;
    return 0;
}

static int call(struct parser *p, const struct node *of, const struct node **ret)
{
    struct node *n = node_new(p, NODE_CALL, of);
    if (!n) return -E2BIG;
    *ret = n;
    return arguments(p, n);
}

static int postfix(struct parser *p, const struct node **node)
{
    int r = 0;
    while (r == 0) {
        if (skip_op(p, "."))
            r = member(p, *node, node);
        else if (skip_op(p, "["))
            r = subscripts(p, *node, node);
        else if (at_op(p, "("))
            r = call(p, *node, node);
        else
            break;
    }
    return r;
}

int parse_filters(struct parser *p, const struct node *in, bool at_first_name,
                  const struct node **ret)
{
    while (at_first_name || skip_op(p, "|")) {
        at_first_name = false;
        struct node *n = node_new(p, NODE_FILTER, in);
        if (!n) return -E2BIG;
        int r = dotted_name(p, &n->name);
        if (r < 0) return r;
        n->filter = filter_find(n->name);
        if (at_op(p, "(") && (r = arguments(p, n)) < 0) return r;
        in = n;
    }
    *ret = in;
    return 0;
}

/* The one argument that a test may have without brackets: "x is divisibleby 3". */
static int bare_argument(struct parser *p, struct node *test)
{
    enum token_kind k = p->at->kind;
    bool starts = k == TOKEN_NAME || k == TOKEN_STRING || k == TOKEN_INT || k == TOKEN_FLOAT ||
                  at_op(p, "(") || at_op(p, "[") || at_op(p, "{");
    if (!starts || at_name(p, "else") || at_name(p, "or") || at_name(p, "and")) return 0;
    if (at_name(p, "is")) return parse_fail(p, "tests cannot be chained with 'is'");
    const struct node *arg;
    struct kids kids = {0};
    int r = primary(p, false, &arg);
    if (r == 0) r = postfix(p, &arg);
    if (r == 0) r = kids_push(p, &kids, arg, 0);
    if (r == 0) kids_into(&kids, test);
    return r;
}

static int parse_test(struct parser *p, const struct node *in, const struct node **ret)
{
    bool negated = skip_name(p, "not");
    struct node *n = node_new(p, NODE_TEST, in);
    if (!n) return -E2BIG;
    int r = dotted_name(p, &n->name);
    if (r < 0) return r;
    n->test = test_find(n->name);
    r = at_op(p, "(") ? arguments(p, n) : bare_argument(p, n);
    if (r < 0) return r;
    struct node *not = negated ? node_new(p, NODE_NOT, n) : n;
    if (!not ) return -E2BIG;
    *ret = not ;
    return 0;
}

static int filters_and_tests(struct parser *p, const struct node **node)
{
    int r = 0;
    while (r == 0) {
        if (at_op(p, "|"))
            r = parse_filters(p, *node, false, node);
        else if (skip_name(p, "is"))
            r = parse_test(p, *node, node);
        else if (at_op(p, "("))
            r = call(p, *node, node);
        else
            break;
    }
    return r;
}

static int strings(struct parser *p, struct node *n)
{
    const struct str *s = p->at->str;
    n->value = value_str(s);
    p->at++;
    if (p->at->kind != TOKEN_STRING) return 0;
    struct str_buf b = {.arena = p->arena, .limit_bytes = STR_MAX_BYTES};
    buf_str(&b, s);
    for (; p->at->kind == TOKEN_STRING; p->at++)
        buf_str(&b, p->at->str);
    int r = buf_finish(&b, &s);
    n->value = value_str(s);
    return r;
}

static int name_or_constant(struct parser *p, bool has_namespace, struct node *n)
{
    const struct str *s = p->at->str;
    p->at++;
    if (str_is(s, "true") || str_is(s, "True") || str_is(s, "false") || str_is(s, "False")) {
        n->value = value_bool(s->bytes == 4);
        return 0;
    }
    if (str_is(s, "none") || str_is(s, "None")) {
        n->value.kind = VALUE_NONE;
        return 0;
    }
    n->kind = NODE_NAME;
    n->name = s;
    if (has_namespace && skip_op(p, ".")) {
        const struct str *attribute;
        int r = expect_name(p, &attribute);
        if (r < 0) return r;
        n->kind = NODE_MEMBER;
        n->value = value_str(attribute);
    }
    p->says_varargs = p->says_varargs || str_is(s, "varargs");
    p->says_kwargs = p->says_kwargs || str_is(s, "kwargs");
    p->says_caller = p->says_caller || str_is(s, "caller");
    return 0;
}

static int list_literal(struct parser *p, struct node *n)
{
    struct kids kids = {0};
    n->kind = NODE_LIST;
    int r = expect_op(p, "[");
    while (r == 0 && !at_op(p, "]")) {
        const struct node *item;
        if (kids.n && (r = expect_op(p, ",")) < 0) return r;
        if (at_op(p, "]")) break;
        r = parse_expression(p, &item);
        if (r == 0) r = kids_push(p, &kids, item, 0);
    }
    kids_into(&kids, n);
    return r < 0 ? r : expect_op(p, "]");
}

static int dict_literal(struct parser *p, struct node *n)
{
    struct kids kids = {0};
    n->kind = NODE_DICT;
    int r = expect_op(p, "{");
    while (r == 0 && !at_op(p, "}")) {
        const struct node *part;
        if (kids.n && (r = expect_op(p, ",")) < 0) return r;
        if (at_op(p, "}")) break;
        r = parse_expression(p, &part);
        if (r == 0) r = kids_push(p, &kids, part, 0);
        if (r == 0) r = expect_op(p, ":");
        if (r == 0) r = parse_expression(p, &part);
        if (r == 0) r = kids_push(p, &kids, part, 0);
    }
    kids_into(&kids, n);
    return r < 0 ? r : expect_op(p, "}");
}

static int primary(struct parser *p, bool has_namespace, const struct node **ret)
{
    struct node *n = node_new(p, NODE_CONST, NULL);
    if (!n) return -E2BIG;
    *ret = n;
    switch (p->at->kind) {
    case TOKEN_NAME:
        return name_or_constant(p, has_namespace, n);
    case TOKEN_STRING:
        return strings(p, n);
    case TOKEN_INT:
    case TOKEN_FLOAT:
        n->value = p->at->number;
        p->at++;
        return 0;
    default:
        break;
    }
    if (at_op(p, "[")) return list_literal(p, n);
    if (at_op(p, "{")) return dict_literal(p, n);
    if (!skip_op(p, "(")) return parse_fail(p, "an expression is missing");
    struct tuple_rules rules = {.may_be_empty = true};
    int r = parse_tuple(p, &rules, ret);
    return r < 0 ? r : expect_op(p, ")");
}

static int parse_unary(struct parser *p, bool with_filters, const struct node **ret)
{
    int r = parse_enter(p);
    if (r < 0) return r;
    bool minus = skip_op(p, "-"), plus = !minus && skip_op(p, "+");
    if (minus || plus) {
        const struct node *of;
        r = parse_unary(p, false, &of);
        struct node *n = r < 0 ? NULL : node_new(p, minus ? NODE_NEGATE : NODE_PLUS, of);
        if (r == 0 && !n) r = -E2BIG;
        *ret = n;
    } else {
        r = primary(p, false, ret);
    }
    if (r == 0) r = postfix(p, ret);
    if (r == 0 && with_filters) r = filters_and_tests(p, ret);
    p->depth--;
    return r;
}

static int unary(struct parser *p, const struct node **ret) { return parse_unary(p, true, ret); }

/* One level of the precedence of operators that chain from left to right. */
struct level {
    const char *const *words;
    const uint8_t *ops;
    int (*below)(struct parser *p, const struct node **ret);
};

static int chain(struct parser *p, const struct level *level, enum node_kind kind, bool into_kids,
                 const struct node **ret)
{
    struct kids kids = {0};
    const struct node *first;
    int r = level->below(p, &first);
    if (r == 0 && into_kids) r = kids_push(p, &kids, first, 0);
    for (uint32_t i = 0; r == 0 && level->words[i];) {
        if (!skip_op(p, level->words[i]) && !skip_name(p, level->words[i])) {
            i++;
            continue;
        }
        const struct node *next;
        r = level->below(p, &next);
        if (r == 0) r = kids_push(p, &kids, next, level->ops[i]);
        i = 0;
    }
    if (r < 0) return r;
    *ret = first;
    if (kids.n == into_kids) return 0;
    struct node *n = node_new(p, kind, into_kids ? NULL : first);
    if (!n) return -E2BIG;
    kids_into(&kids, n);
    *ret = n;
    return 0;
}

static int parse_power(struct parser *p, const struct node **ret)
{
    static const char *const words[] = {"**", NULL};
    static const uint8_t ops[] = {OP_POW};
    return chain(p, &(struct level){words, ops, unary}, NODE_CHAIN, false, ret);
}

static int parse_product(struct parser *p, const struct node **ret)
{
    static const char *const words[] = {"*", "/", "//", "%", NULL};
    static const uint8_t ops[] = {OP_MUL, OP_DIV, OP_FLOORDIV, OP_MOD};
    return chain(p, &(struct level){words, ops, parse_power}, NODE_CHAIN, false, ret);
}

static int parse_concat(struct parser *p, const struct node **ret)
{
    static const char *const words[] = {"~", NULL};
    static const uint8_t ops[] = {0};
    return chain(p, &(struct level){words, ops, parse_product}, NODE_CONCAT, true, ret);
}

static int parse_sum(struct parser *p, const struct node **ret)
{
    static const char *const words[] = {"+", "-", NULL};
    static const uint8_t ops[] = {OP_ADD, OP_SUB};
    return chain(p, &(struct level){words, ops, parse_concat}, NODE_CHAIN, false, ret);
}

static bool relation(struct parser *p, enum op *ret)
{
    static const char words[][3] = {"==", "!=", "<", "<=", ">", ">="};
    static const uint8_t ops[] = {OP_EQ, OP_NE, OP_LT, OP_LE, OP_GT, OP_GE};
    for (size_t i = 0; i < ARRAY_LEN(words); i++) {
        *ret = ops[i];
        if (skip_op(p, words[i])) return true;
    }
    *ret = OP_IN;
    if (skip_name(p, "in")) return true;
    if (!at_name(p, "not") || p->at[1].kind != TOKEN_NAME || !str_is(p->at[1].str, "in"))
        return false;
    p->at += 2;
    *ret = OP_NOT_IN;
    return true;
}

static int parse_compare(struct parser *p, const struct node **ret)
{
    struct kids kids = {0};
    enum op op;
    int r = parse_sum(p, ret);
    while (r == 0 && relation(p, &op)) {
        const struct node *next;
        r = parse_sum(p, &next);
        if (r == 0) r = kids_push(p, &kids, next, op);
    }
    if (r < 0 || !kids.n) return r;
    struct node *n = node_new(p, NODE_COMPARE, *ret);
    if (!n) return -E2BIG;
    kids_into(&kids, n);
    *ret = n;
    return 0;
}

static int parse_not(struct parser *p, const struct node **ret)
{
    if (!skip_name(p, "not")) return parse_compare(p, ret);
    int r = parse_enter(p);
    if (r < 0) return r;
    const struct node *of;
    r = parse_not(p, &of);
    p->depth--;
    struct node *n = r < 0 ? NULL : node_new(p, NODE_NOT, of);
    if (!n) return r < 0 ? r : -E2BIG;
    *ret = n;
    return 0;
}

static int parse_and(struct parser *p, const struct node **ret)
{
    static const char *const words[] = {"and", NULL};
    static const uint8_t ops[] = {0};
    return chain(p, &(struct level){words, ops, parse_not}, NODE_AND, true, ret);
}

int parse_or(struct parser *p, const struct node **ret)
{
    static const char *const words[] = {"or", NULL};
    static const uint8_t ops[] = {0};
    return chain(p, &(struct level){words, ops, parse_and}, NODE_OR, true, ret);
}

int parse_expression(struct parser *p, const struct node **ret)
{
    int r = parse_enter(p);
    if (r < 0) return r;
    r = parse_or(p, ret);
    while (r == 0 && skip_name(p, "if")) {
        struct node *n = node_new(p, NODE_CHOICE, *ret);
        if (!n) return -E2BIG;
        r = parse_or(p, &n->b);
        if (r == 0 && skip_name(p, "else")) r = parse_expression(p, &n->c);
        *ret = n;
    }
    p->depth--;
    return r;
}

static bool tuple_ends(const struct parser *p, const struct tuple_rules *rules)
{
    return p->at->kind == TOKEN_VARIABLE_END || p->at->kind == TOKEN_BLOCK_END || at_op(p, ")") ||
           (rules->end_word && at_name(p, rules->end_word));
}

int parse_tuple(struct parser *p, const struct tuple_rules *rules, const struct node **ret)
{
    struct kids kids = {0};
    bool is_tuple = false;
    int r = 0;
    while (r == 0 && !tuple_ends(p, rules)) {
        const struct node *item;
        r = rules->simple      ? primary(p, rules->has_namespace, &item)
            : rules->no_choice ? parse_or(p, &item)
                               : parse_expression(p, &item);
        if (r == 0) r = kids_push(p, &kids, item, 0);
        if (r < 0 || !skip_op(p, ",")) break;
        is_tuple = true;
    }
    if (r < 0) return r;
    if (!is_tuple && kids.n) {
        *ret = kids.nodes[0];
        return 0;
    }
    if (!is_tuple && !rules->may_be_empty) return parse_fail(p, "an expression is missing");
    struct node *n = node_new(p, NODE_TUPLE, NULL);
    if (!n) return -E2BIG;
    kids_into(&kids, n);
    *ret = n;
    return 0;
}
