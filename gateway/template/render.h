/* SPDX-License-Identifier: MIT */
#ifndef GATEWAY_TEMPLATE_RENDER_H
#define GATEWAY_TEMPLATE_RENDER_H
/*
 * One render under way: its memory, what is left of its limits, and where a failure goes. It is
 * made and ended by chat_template_render(), belongs to that call's thread, and is passed to every
 * function that computes. All of them return 0 or a negative errno with the sentence in why.
 */
#include "gateway/template/value.h"

struct render {
    struct arena arena;
    struct why *why;
    uint64_t steps_left, steps_limit;
    uint32_t depth, depth_limit;
    size_t text_limit_bytes; /* of the output, and of any one string */
    struct dict *values;     /* the context's variables */
    struct dict *trusted;
    int64_t now_s;
    uint32_t line; /* of the statement under way */
};

/* Return err after writing "line N: ..." */
__attribute__((format(printf, 3, 4))) int render_fail(struct render *r, int err, const char *format,
                                                      ...);
/* For an operation that an undefined value does not have. */
int render_fail_undefined(struct render *r, struct value v);
/* Takes steps from the budget. Whatever walks text or items pays for it: text at STEP_BYTES a step,
 * so that a few operations on huge strings cannot outlast the limit on steps. */
int render_step(struct render *r, uint64_t steps);
enum { STEP_BYTES = 64 };
static inline int render_scan(struct render *r, size_t bytes)
{
    return render_step(r, 1 + bytes / STEP_BYTES);
}
/* Guards recursion: every enter that returned 0 is followed by a leave. */
int render_enter(struct render *r);
static inline void render_leave(struct render *r) { r->depth--; }

struct str_buf render_buf(struct render *r);
int render_buf_value(struct str_buf *b, struct value *ret);
/* An empty, untainted string and a string of the engine itself. */
int render_text(struct render *r, const char *text, struct value *ret);

/* Sorts arguments into the named slots ("old new count"): missing ones are VALUE_MISSING. Fails on
 * unknown names, too many, or fewer than n_required. */
int args_take(struct render *r, const char *what, const struct args *args, const char *names,
              uint32_t n_required, struct value *ret);
int value_to_int(struct render *r, const char *what, struct value v, int64_t *ret);

/* str() and repr() of Python; a str keeps its runs, containers are values but for literals. */
int value_print(struct render *r, struct str_buf *b, struct value v);
int value_repr(struct render *r, struct str_buf *b, struct value v);
int value_to_str(struct render *r, struct value v, const struct str **ret);
void real_repr(double d, char ret[32]);

struct json_style {
    bool ensure_ascii, sort_keys;
    const struct str *indent; /* NULL: on one line */
    const struct str *item_separator, *key_separator;
};
int value_to_json(struct render *r, struct value v, const struct json_style *style,
                  const struct str **ret);

/* x.name and x[key]; the attribute of an undefined value is an error, a missing one undefined. */
int value_attribute(struct render *r, struct value v, const struct str *name, struct value *ret);
int value_item(struct render *r, struct value v, struct value key, struct value *ret);
int value_slice(struct render *r, struct value v, const struct value bounds[3], struct value *ret);

enum op {
    OP_ADD,
    OP_SUB,
    OP_MUL,
    OP_DIV,
    OP_FLOORDIV,
    OP_MOD,
    OP_POW,
    OP_EQ,
    OP_NE,
    OP_LT,
    OP_LE,
    OP_GT,
    OP_GE,
    OP_IN,
    OP_NOT_IN,
};
int value_arithmetic(struct render *r, enum op op, struct value a, struct value b,
                     struct value *ret);
int value_relation(struct render *r, enum op op, struct value a, struct value b, bool *ret);
int value_negate(struct render *r, struct value v, struct value *ret);

int value_call(struct render *r, struct value f, const struct args *args, struct value *ret);
int macro_call(struct render *r, const struct macro *m, const struct args *args, struct value *ret);

/* None for the caller of a call block. */
struct value macro_name(const struct macro *m);

struct method {
    const char *name;
    int (*call)(struct render *r, struct value self, const struct args *args, struct value *ret);
};
/* NULL when the type has no such method. */
const struct method *method_find(enum value_kind kind, const struct str *name);
const struct function *function_find(const struct str *name);

struct filter {
    const char *name;
    int (*call)(struct render *r, struct value in, const struct args *args, struct value *ret);
};
const struct filter *filter_find(const struct str *name);

struct test {
    const char *name;
    int (*call)(struct render *r, struct value in, const struct args *args, bool *ret);
};
const struct test *test_find(const struct str *name);

/* '%s' % args, and '{}'.format(args). */
int format_percent(struct render *r, const struct str *format, struct value args,
                   struct value *ret);
int format_braces(struct render *r, const struct str *format, const struct args *args,
                  struct value *ret);

#endif
