/* SPDX-License-Identifier: MIT */
#ifndef GATEWAY_TEMPLATE_VALUE_H
#define GATEWAY_TEMPLATE_VALUE_H
/*
 * What a template computes with: Python's values, as far as Jinja shows them. A value is 16 bytes
 * and is copied; what it points to lives in an arena and does not change, but for namespaces,
 * iterators, cyclers and joiners, which belong to one render.
 */
#include "gateway/template/str.h"

enum value_kind {
    VALUE_UNDEFINED, /* str: the name for the error sentence, or NULL */
    VALUE_NONE,
    VALUE_BOOL,
    VALUE_INT,
    VALUE_FLOAT,
    VALUE_STR,
    VALUE_LIST,
    VALUE_TUPLE,
    VALUE_DICT,
    VALUE_NAMESPACE,
    VALUE_RANGE,
    VALUE_VIEW, /* of a dict: keys(), values(), items() */
    VALUE_ITER, /* a generator: can be walked once */
    VALUE_LOOP,
    VALUE_MACRO,
    VALUE_METHOD,
    VALUE_FUNCTION,
    VALUE_CYCLER,
    VALUE_JOINER,
    VALUE_MISSING, /* an argument that was not given; templates never see one */
};

struct render;
struct args;
struct list;
struct dict;
struct macro;
struct value;

/* A function that every template can call by its name. */
struct function {
    const char *name;
    int (*call)(struct render *r, const struct args *args, struct value *ret);
};

struct value {
    enum value_kind kind;
    union {
        bool boolean;
        int64_t integer;
        double real;
        const struct str *str;   /* STR, UNDEFINED */
        const struct list *list; /* LIST, TUPLE */
        struct dict *dict;       /* DICT, NAMESPACE */
        const struct range *range;
        const struct view *view;
        struct iter *iter; /* ITER, CYCLER */
        struct loop *loop;
        const struct macro *macro;
        const struct bound *bound; /* METHOD */
        const struct function *function;
        struct joiner *joiner;
    };
};

struct list {
    struct value *items;
    uint32_t n;
};

struct pair {
    struct value key, value;
};

/* In order of insertion; found through an open-addressed index once it is larger than a few. */
struct dict {
    struct pair *pairs;
    uint32_t n, cap;
    uint32_t *index; /* slot -> pair + 1; 0 is free */
    uint32_t n_index;
};

struct range {
    int64_t start, step;
    uint32_t n;
};

enum view_kind { VIEW_KEYS, VIEW_VALUES, VIEW_ITEMS };
struct view {
    enum view_kind kind;
    const struct dict *dict;
};

struct iter {
    struct list list;
    uint32_t at;
};

struct joiner {
    const struct str *separator;
    bool used;
};

struct loop {
    struct list list;
    uint32_t i;
    bool changed_once;
    struct value last_changed; /* of loop.changed() */
};

/* A method and what it is called on. */
struct bound {
    struct value self;
    const struct method *method;
};

struct args {
    const struct value *pos;
    const struct str *const *names; /* of the keyword arguments */
    const struct value *named;
    uint32_t n_pos, n_named;
};

/* Deepest nesting of lists and dicts; Python's own json module gives up near 1,000. */
enum { VALUE_MAX_DEPTH = 200 };

static inline struct value value_undefined(const struct str *name)
{
    return (struct value){.kind = VALUE_UNDEFINED, .str = name};
}
static inline struct value value_bool(bool b)
{
    return (struct value){.kind = VALUE_BOOL, .boolean = b};
}
static inline struct value value_int(int64_t i)
{
    return (struct value){.kind = VALUE_INT, .integer = i};
}
static inline struct value value_float(double d)
{
    return (struct value){.kind = VALUE_FLOAT, .real = d};
}
static inline struct value value_str(const struct str *s)
{
    return (struct value){.kind = VALUE_STR, .str = s};
}
static inline bool value_is_number(struct value v)
{
    return v.kind == VALUE_BOOL || v.kind == VALUE_INT || v.kind == VALUE_FLOAT;
}
/* bool is an int in Python. */
static inline bool value_is_integral(struct value v)
{
    return v.kind == VALUE_BOOL || v.kind == VALUE_INT;
}
static inline int64_t value_integer(struct value v)
{
    return v.kind == VALUE_BOOL ? v.boolean : v.integer;
}
static inline double value_real(struct value v)
{
    return v.kind == VALUE_FLOAT ? v.real : (double)value_integer(v);
}
static inline bool value_given(struct value v) { return v.kind != VALUE_MISSING; }

/* The name Python gives the type, for error sentences and for printing functions. */
const char *value_type_name(struct value v);
bool value_truth(struct value v);

/* Python's ==, in, < and hash. The order of values without one is an error. */
int value_equal(struct render *r, struct value a, struct value b, bool *ret);
int value_compare(struct render *r, struct value a, struct value b, int *ret);
int value_contains(struct render *r, struct value in, struct value what, bool *ret);
int value_length(struct render *r, struct value v, int64_t *ret);

/* Everything that walking the value gives, in order; a generator is used up by it. The list is
 * shared with the value where that has one: do not write to it. */
int value_items(struct render *r, struct value v, struct list *ret);
bool value_iterable(struct value v);

/* Lists are built in place by whoever made them. */
int list_new(struct render *r, uint32_t n, struct list **ret);
int value_list(struct render *r, enum value_kind kind, const struct value *items, uint32_t n,
               struct value *ret);
int value_iter(struct render *r, struct list items, struct value *ret);
/* No items, at an address that can be calculated with. */
struct list list_empty(void);

int dict_new(struct render *r, struct dict **ret);
int dict_set(struct render *r, struct dict *d, struct value key, struct value value);
/* ret is NULL when the key is not there. */
int dict_get(struct render *r, const struct dict *d, struct value key, struct value **ret);
int dict_get_text(struct render *r, const struct dict *d, const struct str *key,
                  struct value **ret);

#endif
