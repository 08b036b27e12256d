/* SPDX-License-Identifier: MIT */
/* Owns the grammar of statements and the parser's helpers. Called by chat_template_new() through
 * parse_template(). What chat templates have no use for (inheritance, includes, imports,
 * autoescape) is refused by name. */
#include "gateway/template/parse.h"

#include <errno.h>
#include <string.h>

int parse_fail(const struct parser *p, const char *format, ...)
{
    char what[256];
    va_list ap;
    va_start(ap, format);
    (void)vsnprintf(what, sizeof(what), format, ap);
    va_end(ap);
    return why_set(p->arena->why, -EPROTO, "line %u: %s", p->at->line, what);
}

int parse_enter(struct parser *p)
{
    if (p->depth == PARSE_MAX_DEPTH)
        return why_set(p->arena->why, -E2BIG, "line %u: the template nests deeper than %d",
                       p->at->line, PARSE_MAX_DEPTH);
    p->depth++;
    return 0;
}

struct node *node_new(struct parser *p, enum node_kind kind, const struct node *a)
{
    struct node *n = arena_zero(p->arena, 1, sizeof(*n));
    if (!n) return NULL;
    n->kind = kind;
    n->line = p->at->line;
    n->a = a;
    return n;
}

int kids_push(struct parser *p, struct kids *k, const struct node *n, enum op op)
{
    if (k->n == k->cap) {
        uint32_t cap = k->cap ? k->cap * 2 : 4;
        const struct node **nodes =
            arena_grow(p->arena, k->nodes, k->cap * sizeof(n), cap * sizeof(n));
        uint8_t *ops = arena_grow(p->arena, k->ops, k->cap, cap);
        if (!nodes || !ops) return -E2BIG;
        *k = (struct kids){.nodes = nodes, .ops = ops, .n = k->n, .cap = cap};
    }
    k->nodes[k->n] = n;
    k->ops[k->n++] = (uint8_t)op;
    return 0;
}

void kids_into(const struct kids *k, struct node *n)
{
    n->kids = k->nodes;
    n->ops = k->ops;
    n->n_kids = k->n;
}

bool at_op(const struct parser *p, const char *op)
{
    return p->at->kind == TOKEN_OPERATOR && strcmp(p->at->op, op) == 0;
}

bool at_name(const struct parser *p, const char *name)
{
    return p->at->kind == TOKEN_NAME && str_is(p->at->str, name);
}

bool skip_op(struct parser *p, const char *op)
{
    bool there = at_op(p, op);
    p->at += there;
    return there;
}

bool skip_name(struct parser *p, const char *name)
{
    bool there = at_name(p, name);
    p->at += there;
    return there;
}

int expect_op(struct parser *p, const char *op)
{
    return skip_op(p, op) ? 0 : parse_fail(p, "'%s' is missing", op);
}

int expect_name(struct parser *p, const struct str **ret)
{
    if (p->at->kind != TOKEN_NAME) return parse_fail(p, "a name is missing");
    *ret = p->at->str;
    p->at++;
    return 0;
}

static int expect_kind(struct parser *p, enum token_kind kind)
{
    if (p->at->kind != kind) return parse_fail(p, "a tag has more in it than it should");
    p->at++;
    return 0;
}

static bool can_assign(const struct node *n)
{
    if (n->kind == NODE_NAME || n->kind == NODE_MEMBER) return true;
    if (n->kind != NODE_TUPLE) return false;
    for (uint32_t i = 0; i < n->n_kids; i++)
        if (!can_assign(n->kids[i])) return false;
    return true;
}

int parse_target(struct parser *p, const char *end_word, bool has_namespace,
                 const struct node **ret)
{
    struct tuple_rules rules = {
        .simple = true, .has_namespace = has_namespace, .end_word = end_word};
    int r = parse_tuple(p, &rules, ret);
    if (r < 0) return r;
    return can_assign(*ret) ? 0 : parse_fail(p, "this cannot be assigned to");
}

static int parse_statement(struct parser *p, const struct node **ret);

static bool at_any(const struct parser *p, const char *const *words)
{
    for (; words && *words; words++)
        if (at_name(p, *words)) return true;
    return false;
}

static int print_tag(struct parser *p, struct node **ret)
{
    struct tuple_rules rules = {0};
    *ret = node_new(p, NODE_PRINT, NULL);
    if (!*ret) return -E2BIG;
    int r = parse_tuple(p, &rules, &(*ret)->a);
    return r < 0 ? r : expect_kind(p, TOKEN_VARIABLE_END);
}

/* Statements up to a block that starts with one of the words, which stays ahead; without words, up
 * to the end of the template. */
static int parse_body(struct parser *p, const char *const *until, const struct node **ret)
{
    struct kids kids = {0};
    struct node *body = node_new(p, NODE_BODY, NULL), *n;
    int r = body ? parse_enter(p) : -E2BIG;
    if (r < 0) return r;
    for (;;) {
        enum token_kind kind = p->at->kind;
        if (kind == TOKEN_END) break;
        p->at++;
        const struct node *statement = NULL;
        if (kind == TOKEN_DATA) {
            n = node_new(p, NODE_TEXT, NULL);
            if (!n) return -E2BIG;
            n->value = value_str(p->at[-1].str);
            statement = n;
        } else if (kind == TOKEN_VARIABLE_BEGIN) {
            r = print_tag(p, &n);
            statement = n;
        } else {
            if (at_any(p, until)) break;
            r = parse_statement(p, &statement);
            if (r == 0) r = expect_kind(p, TOKEN_BLOCK_END);
        }
        if (r == 0) r = kids_push(p, &kids, statement, 0);
        if (r < 0) return r;
    }
    if (until && p->at->kind == TOKEN_END)
        return parse_fail(p, "the template ends where a {%% %s %%} is missing", until[0]);
    p->depth--;
    kids_into(&kids, body);
    *ret = body;
    return 0;
}

/* From the end of the opening tag to the word that closes it, which is taken. */
static int parse_block(struct parser *p, const char *end_word, const struct node **ret)
{
    const char *const until[] = {end_word, NULL};
    int r = expect_kind(p, TOKEN_BLOCK_END);
    if (r == 0) r = parse_body(p, until, ret);
    if (r == 0) p->at++;
    return r;
}

static int block_into_kids(struct parser *p, const char *end_word, struct node *n)
{
    struct kids kids = {0};
    const struct node *body;
    int r = parse_block(p, end_word, &body);
    if (r == 0) r = kids_push(p, &kids, body, 0);
    if (r == 0) kids_into(&kids, n);
    return r;
}

static int parse_if(struct parser *p, struct node *n)
{
    static const char *const until[] = {"endif", "elif", "else", NULL};
    static const char *const until_end[] = {"endif", NULL};
    struct tuple_rules condition_rules = {.no_choice = true};
    struct kids kids = {0};
    const struct node *part;
    int r = 0;
    do {
        r = parse_tuple(p, &condition_rules, &part);
        if (r == 0) r = kids_push(p, &kids, part, 0);
        if (r == 0) r = expect_kind(p, TOKEN_BLOCK_END);
        if (r == 0) r = parse_body(p, until, &part);
        if (r == 0) r = kids_push(p, &kids, part, 0);
    } while (r == 0 && skip_name(p, "elif"));
    if (r == 0 && skip_name(p, "else")) {
        r = expect_kind(p, TOKEN_BLOCK_END);
        if (r == 0) r = parse_body(p, until_end, &part);
        if (r == 0) r = kids_push(p, &kids, part, 0);
    }
    kids_into(&kids, n);
    if (r == 0) p->at++;
    return r;
}

static int parse_for(struct parser *p, struct node *n)
{
    static const char *const until[] = {"endfor", "else", NULL};
    static const char *const until_end[] = {"endfor", NULL};
    struct tuple_rules rules = {.no_choice = true, .end_word = "recursive"};
    struct kids kids = {0};
    const struct node *body;
    int r = parse_target(p, "in", false, &n->a);
    if (r == 0 && !skip_name(p, "in")) r = parse_fail(p, "'in' is missing");
    if (r == 0) r = parse_tuple(p, &rules, &n->b);
    if (r == 0 && skip_name(p, "if")) r = parse_expression(p, &n->c);
    if (r == 0 && at_name(p, "recursive")) r = parse_fail(p, "recursive loops are not supported");
    if (r == 0) r = expect_kind(p, TOKEN_BLOCK_END);
    bool outer = p->in_loop;
    p->in_loop = true;
    if (r == 0) r = parse_body(p, until, &body);
    p->in_loop = outer;
    if (r == 0) r = kids_push(p, &kids, body, 0);
    body = NULL;
    if (r == 0 && skip_name(p, "else")) {
        r = expect_kind(p, TOKEN_BLOCK_END);
        if (r == 0) r = parse_body(p, until_end, &body);
    }
    if (r == 0) r = kids_push(p, &kids, body, 0);
    kids_into(&kids, n);
    if (r == 0) p->at++;
    return r;
}

static int parse_set(struct parser *p, struct node *n)
{
    struct tuple_rules rules = {0};
    int r = parse_target(p, NULL, true, &n->a);
    if (r < 0) return r;
    if (skip_op(p, "=")) return parse_tuple(p, &rules, &n->b);
    n->kind = NODE_SET_BLOCK;
    r = parse_filters(p, NULL, false, &n->b);
    return r < 0 ? r : block_into_kids(p, "endset", n);
}

static int parse_signature(struct parser *p, struct signature *s)
{
    struct kids defaults = {0};
    const struct str **names = NULL;
    int r = expect_op(p, "(");
    while (r == 0 && !at_op(p, ")")) {
        if (s->n_names && (r = expect_op(p, ",")) < 0) return r;
        names = arena_grow(p->arena, names, s->n_names * sizeof(*names),
                           (s->n_names + 1) * sizeof(*names));
        if (!names) return -E2BIG;
        const struct node *value;
        r = expect_name(p, &names[s->n_names++]);
        if (r == 0 && skip_op(p, "=")) {
            r = parse_expression(p, &value);
            if (r == 0) r = kids_push(p, &defaults, value, 0);
        } else if (r == 0 && defaults.n) {
            r = parse_fail(p, "a parameter without a default follows one with");
        }
    }
    s->names = names;
    s->defaults = defaults.nodes;
    s->n_defaults = defaults.n;
    return r < 0 ? r : expect_op(p, ")");
}

/* The body of a macro or call block; what it speaks of becomes part of the signature. */
static int macro_body(struct parser *p, const char *end_word, struct signature *s, struct node *n)
{
    struct parser outer = *p;
    p->says_varargs = p->says_kwargs = p->says_caller = p->in_loop = false;
    int r = block_into_kids(p, end_word, n);
    s->takes_rest = p->says_varargs;
    s->takes_named = p->says_kwargs;
    s->takes_caller = p->says_caller;
    for (uint32_t i = 0; i < s->n_names; i++) {
        if (str_is(s->names[i], "varargs")) s->takes_rest = false;
        if (str_is(s->names[i], "kwargs")) s->takes_named = false;
        if (str_is(s->names[i], "caller")) s->takes_caller = false;
    }
    p->says_varargs = p->says_varargs || outer.says_varargs;
    p->says_kwargs = p->says_kwargs || outer.says_kwargs;
    p->says_caller = p->says_caller || outer.says_caller;
    p->in_loop = outer.in_loop;
    n->signature = s;
    return r;
}

static int parse_macro(struct parser *p, struct node *n)
{
    struct signature *s = arena_zero(p->arena, 1, sizeof(*s));
    if (!s) return -E2BIG;
    int r = expect_name(p, &n->name);
    if (r == 0) r = parse_signature(p, s);
    return r < 0 ? r : macro_body(p, "endmacro", s, n);
}

static int parse_call_block(struct parser *p, struct node *n)
{
    struct signature *s = arena_zero(p->arena, 1, sizeof(*s));
    if (!s) return -E2BIG;
    int r = at_op(p, "(") ? parse_signature(p, s) : 0;
    if (r == 0) r = parse_expression(p, &n->a);
    if (r == 0 && n->a->kind != NODE_CALL) r = parse_fail(p, "a call must follow 'call'");
    return r < 0 ? r : macro_body(p, "endcall", s, n);
}

static int parse_filter_block(struct parser *p, struct node *n)
{
    int r = parse_filters(p, NULL, true, &n->a);
    return r < 0 ? r : block_into_kids(p, "endfilter", n);
}

static int parse_with(struct parser *p, struct node *n)
{
    struct kids kids = {0};
    int r = 0;
    while (r == 0 && p->at->kind != TOKEN_BLOCK_END) {
        const struct node *part;
        if (kids.n && (r = expect_op(p, ",")) < 0) return r;
        r = parse_target(p, NULL, false, &part);
        if (r == 0) r = kids_push(p, &kids, part, 0);
        if (r == 0) r = expect_op(p, "=");
        if (r == 0) r = parse_expression(p, &part);
        if (r == 0) r = kids_push(p, &kids, part, 0);
    }
    kids_into(&kids, n);
    return r < 0 ? r : parse_block(p, "endwith", &n->a);
}

/* Marks what the assistant generated, for training; here it only has a scope. */
static int parse_generation(struct parser *p, struct node *n)
{
    return parse_block(p, "endgeneration", &n->a);
}

static int parse_print(struct parser *p, struct node *n)
{
    struct kids kids = {0};
    struct node *all = node_new(p, NODE_CONCAT, NULL);
    int r = all ? 0 : -E2BIG;
    while (r == 0 && p->at->kind != TOKEN_BLOCK_END) {
        const struct node *part;
        if (kids.n && (r = expect_op(p, ",")) < 0) return r;
        r = parse_expression(p, &part);
        if (r == 0) r = kids_push(p, &kids, part, 0);
    }
    if (r < 0) return r;
    kids_into(&kids, all);
    n->a = all;
    return 0;
}

static int parse_leave(struct parser *p, struct node *n)
{
    (void)n;
    return p->in_loop ? 0 : parse_fail(p, "break and continue belong into a loop");
}

static int parse_statement(struct parser *p, const struct node **ret)
{
    static const struct {
        const char *word;
        enum node_kind kind;
        int (*parse)(struct parser *p, struct node *n);
    } rows[] = {
        {"if",         NODE_IF,           parse_if          },
        {"for",        NODE_FOR,          parse_for         },
        {"set",        NODE_SET,          parse_set         },
        {"macro",      NODE_MACRO,        parse_macro       },
        {"call",       NODE_CALL_BLOCK,   parse_call_block  },
        {"filter",     NODE_FILTER_BLOCK, parse_filter_block},
        {"with",       NODE_WITH,         parse_with        },
        {"generation", NODE_SCOPE,        parse_generation  },
        {"print",      NODE_PRINT,        parse_print       },
        {"break",      NODE_BREAK,        parse_leave       },
        {"continue",   NODE_CONTINUE,     parse_leave       },
    };
    const struct str *word = NULL;
    struct node *n = node_new(p, NODE_BODY, NULL);
    if (!n) return -E2BIG;
    int r = expect_name(p, &word);
    if (r < 0) return r;
    for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
        if (!str_is(word, rows[i].word)) continue;
        n->kind = rows[i].kind;
        *ret = n;
        return rows[i].parse(p, n);
    }
    return parse_fail(p, "the tag {%% %.*s %%} is not known here", (int)min_u32(word->bytes, 64),
                      word->text);
}

/* jinja2 knows at once that a filter or test does not exist, but for those under an "if". This also
 * bounds the depth of the tree, which the evaluator's recursion follows. */
static int check_tree(struct parser *p, const struct node *n, bool soft, uint32_t depth)
{
    if (!n) return 0;
    if (depth == TREE_MAX_DEPTH)
        return why_set(p->arena->why, -E2BIG, "line %u: an expression is too deep", n->line);
    bool unknown = (n->kind == NODE_FILTER && !n->filter) || (n->kind == NODE_TEST && !n->test);
    if (unknown && !soft)
        return why_set(p->arena->why, -EPROTO, "line %u: there is no %s named '%.*s'", n->line,
                       n->kind == NODE_FILTER ? "filter" : "test", (int)min_u32(n->name->bytes, 64),
                       n->name->text);
    bool opens_scope = n->kind == NODE_FOR || n->kind == NODE_MACRO || n->kind == NODE_WITH ||
                       n->kind == NODE_SET_BLOCK || n->kind == NODE_FILTER_BLOCK ||
                       n->kind == NODE_SCOPE || n->kind == NODE_CALL_BLOCK;
    soft = n->kind == NODE_IF || n->kind == NODE_CHOICE || (soft && !opens_scope);
    int r = check_tree(p, n->a, soft, depth + 1);
    if (r == 0) r = check_tree(p, n->b, soft, depth + 1);
    if (r == 0) r = check_tree(p, n->c, soft, depth + 1);
    for (uint32_t i = 0; r == 0 && i < n->n_kids; i++)
        r = check_tree(p, n->kids[i], soft, depth + 1);
    bool has_signature = n->kind == NODE_MACRO || n->kind == NODE_CALL_BLOCK;
    for (uint32_t i = 0; r == 0 && has_signature && i < n->signature->n_defaults; i++)
        r = check_tree(p, n->signature->defaults[i], soft, depth + 1);
    return r;
}

int parse_template(struct arena *a, const char *source, size_t bytes, const struct node **ret)
{
    struct token *tokens;
    int r = lex_template(a, source, bytes, &tokens);
    if (r < 0) return r;
    struct parser p = {.arena = a, .at = tokens};
    const struct node *root;
    r = parse_body(&p, NULL, &root);
    if (r == 0) r = check_tree(&p, root, false, 0);
    if (r == 0) *ret = root;
    return r;
}
