/* SPDX-License-Identifier: MIT */
/* Owns what values are: truth, equality, order, walking, and how lists and dicts are kept. Called
 * by every part of the evaluator; knows no syntax and no names of filters. */
#include "gateway/template/render.h"

#include <errno.h>
#include <math.h>
#include <string.h>

enum {
    DICT_INDEX_FROM = 12, /* pairs: below it walking is as quick */
};

const char *value_type_name(struct value v)
{
    static const char *const names[] = {
        [VALUE_UNDEFINED] = "Undefined", [VALUE_NONE] = "NoneType",
        [VALUE_BOOL] = "bool",           [VALUE_INT] = "int",
        [VALUE_FLOAT] = "float",         [VALUE_STR] = "str",
        [VALUE_LIST] = "list",           [VALUE_TUPLE] = "tuple",
        [VALUE_DICT] = "dict",           [VALUE_NAMESPACE] = "Namespace",
        [VALUE_RANGE] = "range",         [VALUE_VIEW] = "dict view",
        [VALUE_ITER] = "generator",      [VALUE_LOOP] = "LoopContext",
        [VALUE_MACRO] = "Macro",         [VALUE_METHOD] = "method",
        [VALUE_FUNCTION] = "function",   [VALUE_CYCLER] = "Cycler",
        [VALUE_JOINER] = "Joiner",       [VALUE_MISSING] = "missing argument",
    };
    return names[v.kind];
}

bool value_truth(struct value v)
{
    switch (v.kind) {
    case VALUE_UNDEFINED:
    case VALUE_NONE:
        return false;
    case VALUE_BOOL:
        return v.boolean;
    case VALUE_INT:
        return v.integer != 0;
    case VALUE_FLOAT:
        return v.real != 0;
    case VALUE_STR:
        return v.str->bytes != 0;
    case VALUE_LIST:
    case VALUE_TUPLE:
        return v.list->n != 0;
    case VALUE_DICT:
        return v.dict->n != 0;
    case VALUE_RANGE:
        return v.range->n != 0;
    case VALUE_VIEW:
        return v.view->dict->n != 0;
    default:
        return true;
    }
}

static int lists_equal(struct render *r, const struct list *a, const struct list *b, bool *ret)
{
    *ret = a->n == b->n;
    for (uint32_t i = 0; *ret && i < a->n; i++) {
        int e = value_equal(r, a->items[i], b->items[i], ret);
        if (e < 0) return e;
    }
    return 0;
}

static int dicts_equal(struct render *r, const struct dict *a, const struct dict *b, bool *ret)
{
    *ret = a->n == b->n;
    for (uint32_t i = 0; *ret && i < a->n; i++) {
        struct value *other;
        int e = dict_get(r, b, a->pairs[i].key, &other);
        if (e < 0) return e;
        *ret = other != NULL;
        if (other) e = value_equal(r, a->pairs[i].value, *other, ret);
        if (e < 0) return e;
    }
    return 0;
}

static bool ranges_equal(const struct range *a, const struct range *b)
{
    return a->n == b->n && (a->n == 0 || a->start == b->start) && (a->n < 2 || a->step == b->step);
}

static int containers_equal(struct render *r, struct value a, struct value b, bool *ret)
{
    int e = render_enter(r);
    if (e < 0) return e;
    e = a.kind == VALUE_DICT ? dicts_equal(r, a.dict, b.dict, ret)
                             : lists_equal(r, a.list, b.list, ret);
    render_leave(r);
    return e;
}

int value_equal(struct render *r, struct value a, struct value b, bool *ret)
{
    int e = render_step(r, 1);
    if (e < 0) return e;
    if (value_is_integral(a) && value_is_integral(b)) {
        *ret = value_integer(a) == value_integer(b);
        return 0;
    }
    if (value_is_number(a) && value_is_number(b)) {
        *ret = value_real(a) == value_real(b);
        return 0;
    }
    *ret = false;
    if (a.kind != b.kind) return 0;
    switch (a.kind) {
    case VALUE_UNDEFINED:
    case VALUE_NONE:
        *ret = true;
        return 0;
    case VALUE_STR:
        *ret = str_equal(a.str, b.str);
        return render_scan(r, a.str->bytes);
    case VALUE_LIST:
    case VALUE_TUPLE:
    case VALUE_DICT:
        return containers_equal(r, a, b, ret);
    case VALUE_RANGE:
        *ret = ranges_equal(a.range, b.range);
        return 0;
    default:
        *ret = a.dict == b.dict;
        return 0; /* the same thing, whatever it is */
    }
}

static int lists_compare(struct render *r, const struct list *a, const struct list *b, int *ret)
{
    for (uint32_t i = 0; i < a->n && i < b->n; i++) {
        bool equal;
        int e = value_equal(r, a->items[i], b->items[i], &equal);
        if (e < 0) return e;
        if (!equal) return value_compare(r, a->items[i], b->items[i], ret);
    }
    *ret = (a->n > b->n) - (a->n < b->n);
    return 0;
}

/* NaN is neither less nor more, so it compares as 2, which is no order at all. */
int value_compare(struct render *r, struct value a, struct value b, int *ret)
{
    int e = render_step(r, 1);
    if (e < 0) return e;
    if (value_is_integral(a) && value_is_integral(b)) {
        int64_t x = value_integer(a), y = value_integer(b);
        *ret = (x > y) - (x < y);
        return 0;
    }
    if (value_is_number(a) && value_is_number(b)) {
        double x = value_real(a), y = value_real(b);
        *ret = isnan(x) || isnan(y) ? 2 : (x > y) - (x < y);
        return 0;
    }
    if (a.kind == b.kind && a.kind == VALUE_STR) {
        *ret = str_compare(a.str, b.str);
        return render_scan(r, a.str->bytes);
    }
    if (a.kind == b.kind && (a.kind == VALUE_LIST || a.kind == VALUE_TUPLE)) {
        e = render_enter(r);
        if (e < 0) return e;
        e = lists_compare(r, a.list, b.list, ret);
        render_leave(r);
        return e;
    }
    return render_fail(r, -EPROTO, "%s and %s have no order", value_type_name(a),
                       value_type_name(b));
}

static int items_contain(struct render *r, struct value in, struct value what, bool *ret)
{
    struct list items;
    int e = value_items(r, in, &items);
    *ret = false;
    for (uint32_t i = 0; e == 0 && !*ret && i < items.n; i++)
        e = value_equal(r, items.items[i], what, ret);
    return e;
}

int value_contains(struct render *r, struct value in, struct value what, bool *ret)
{
    struct value *found;
    int e;
    switch (in.kind) {
    case VALUE_STR:
        if (what.kind != VALUE_STR)
            return render_fail(r, -EPROTO, "'in' a string takes a string, not %s",
                               value_type_name(what));
        *ret = str_find(in.str, what.str, 0) >= 0;
        return render_scan(r, in.str->bytes);
    case VALUE_DICT:
        e = dict_get(r, in.dict, what, &found);
        if (e == 0) *ret = found != NULL;
        return e;
    case VALUE_NAMESPACE:
    case VALUE_LOOP:
        break;
    default:
        return items_contain(r, in, what, ret);
    }
    return render_fail(r, -EPROTO, "'in' does not work on %s", value_type_name(in));
}

int value_length(struct render *r, struct value v, int64_t *ret)
{
    switch (v.kind) {
    case VALUE_UNDEFINED:
        *ret = 0;
        return 0;
    case VALUE_STR:
        *ret = v.str->chars;
        return 0;
    case VALUE_LIST:
    case VALUE_TUPLE:
        *ret = v.list->n;
        return 0;
    case VALUE_DICT:
        *ret = v.dict->n;
        return 0;
    case VALUE_RANGE:
        *ret = v.range->n;
        return 0;
    case VALUE_VIEW:
        *ret = v.view->dict->n;
        return 0;
    case VALUE_LOOP:
        *ret = v.loop->list.n;
        return 0;
    default:
        return render_fail(r, -EPROTO, "%s has no length", value_type_name(v));
    }
}

bool value_iterable(struct value v)
{
    switch (v.kind) {
    case VALUE_UNDEFINED:
    case VALUE_STR:
    case VALUE_LIST:
    case VALUE_TUPLE:
    case VALUE_DICT:
    case VALUE_RANGE:
    case VALUE_VIEW:
    case VALUE_ITER:
    case VALUE_LOOP:
        return true;
    default:
        return false;
    }
}

/* The characters of a string that went through safe are plain ones. */
static int str_items(struct render *r, const struct str *marked, struct list *l)
{
    const struct str *s = str_as_markup(&r->arena, marked, false);
    if (!s) return -E2BIG;
    uint32_t off = 0;
    for (uint32_t i = 0; i < s->chars; i++) {
        uint32_t cp, n = utf8_get(s->text + off, &cp);
        const struct str *c = str_sub(&r->arena, s, off, n);
        if (!c) return -E2BIG;
        l->items[i] = value_str(c);
        off += n;
    }
    return 0;
}

static int dict_items(struct render *r, const struct dict *d, enum view_kind kind, struct list *l)
{
    for (uint32_t i = 0; i < d->n; i++) {
        struct value pair[] = {d->pairs[i].key, d->pairs[i].value};
        l->items[i] = pair[kind == VIEW_VALUES];
        int e = kind == VIEW_ITEMS ? value_list(r, VALUE_TUPLE, pair, 2, &l->items[i]) : 0;
        if (e < 0) return e;
    }
    return 0;
}

static void range_items(const struct range *range, struct list *l)
{
    for (uint32_t i = 0; i < range->n; i++)
        l->items[i] = value_int(range->start + range->step * (int64_t)i);
}

/* What is left of something that can be walked once. */
static void take_rest(struct list *from, uint32_t *at, struct list *ret)
{
    *ret = (struct list){.items = from->items + *at, .n = from->n - *at};
    *at = from->n;
}

struct list list_empty(void)
{
    static struct value nothing; /* never written: there is no item */
    return (struct list){.items = &nothing};
}

int value_items(struct render *r, struct value v, struct list *ret)
{
    *ret = list_empty();
    if (!value_iterable(v))
        return render_fail(r, -EPROTO, "%s cannot be walked", value_type_name(v));
    if (v.kind == VALUE_LIST || v.kind == VALUE_TUPLE)
        *ret = *v.list;
    else if (v.kind == VALUE_ITER)
        take_rest(&v.iter->list, &v.iter->at, ret);
    if (v.kind == VALUE_LIST || v.kind == VALUE_TUPLE || v.kind == VALUE_ITER)
        return render_step(r, ret->n);
    if (v.kind == VALUE_LOOP) return render_fail(r, -EPROTO, "the loop itself cannot be walked");

    int64_t n;
    int e = value_length(r, v, &n);
    if (e == 0) e = render_step(r, (uint64_t)n);
    if (e < 0) return e;
    struct list *l;
    e = list_new(r, (uint32_t)n, &l);
    if (e < 0) return e;
    if (v.kind == VALUE_STR) e = str_items(r, v.str, l);
    if (v.kind == VALUE_DICT) e = dict_items(r, v.dict, VIEW_KEYS, l);
    if (v.kind == VALUE_VIEW) e = dict_items(r, v.view->dict, v.view->kind, l);
    if (v.kind == VALUE_RANGE) range_items(v.range, l);
    *ret = *l;
    return e;
}

int list_new(struct render *r, uint32_t n, struct list **ret)
{
    struct list *l = arena_zero(&r->arena, 1, sizeof(*l));
    if (!l) return -E2BIG;
    l->n = n;
    l->items = arena_zero(&r->arena, n, sizeof(*l->items));
    if (!l->items) return -E2BIG;
    *ret = l;
    return 0;
}

int value_list(struct render *r, enum value_kind kind, const struct value *items, uint32_t n,
               struct value *ret)
{
    struct list *l;
    int e = list_new(r, n, &l);
    if (e < 0) return e;
    if (n) memcpy(l->items, items, n * sizeof(*items));
    *ret = (struct value){.kind = kind, .list = l};
    return 0;
}

int value_iter(struct render *r, struct list items, struct value *ret)
{
    struct iter *it = arena_zero(&r->arena, 1, sizeof(*it));
    if (!it) return -E2BIG;
    it->list = items;
    *ret = (struct value){.kind = VALUE_ITER, .iter = it};
    return 0;
}

int dict_new(struct render *r, struct dict **ret)
{
    *ret = arena_zero(&r->arena, 1, sizeof(**ret));
    return *ret ? 0 : -E2BIG;
}

static uint32_t mix(uint32_t h, const void *data, size_t bytes)
{
    const uint8_t *p = data;
    for (size_t i = 0; i < bytes; i++)
        h = (h ^ p[i]) * 16777619u; /* FNV-1a */
    return h;
}

/* Equal values have equal hashes, so numbers are hashed as the double that they are. */
static int hash(struct render *r, struct value v, uint32_t *ret)
{
    uint32_t h = 2166136261u;
    if (v.kind == VALUE_STR) {
        *ret = mix(h, v.str->text, v.str->bytes);
        return render_scan(r, v.str->bytes);
    }
    if (value_is_number(v)) {
        double d = value_real(v) + 0.0; /* -0.0 becomes 0.0 */
        *ret = mix(h, &d, sizeof(d));
        return 0;
    }
    if (v.kind == VALUE_LIST || v.kind == VALUE_DICT || v.kind == VALUE_NAMESPACE)
        return render_fail(r, -EPROTO, "%s cannot be a key", value_type_name(v));
    if (v.kind != VALUE_TUPLE) {
        *ret = h + v.kind;
        return 0;
    }
    int e = render_step(r, 1);
    if (e == 0) e = render_enter(r);
    if (e < 0) return e;
    for (uint32_t i = 0; e == 0 && i < v.list->n; i++) {
        uint32_t item;
        e = hash(r, v.list->items[i], &item);
        if (e == 0) h = mix(h, &item, sizeof(item));
    }
    render_leave(r);
    *ret = h;
    return e;
}

/* The slot of the index that holds the key, or the free one where it would go. */
static int find_slot(struct render *r, const struct dict *d, struct value key, uint32_t *ret)
{
    uint32_t h = 0;
    int e = hash(r, key, &h);
    if (e < 0) return e;
    for (uint32_t slot = h & (d->n_index - 1);; slot = (slot + 1) & (d->n_index - 1)) {
        bool equal = false;
        *ret = slot;
        if (!d->index[slot]) return 0;
        e = value_equal(r, d->pairs[d->index[slot] - 1].key, key, &equal);
        if (e < 0 || equal) return e;
    }
}

int dict_get(struct render *r, const struct dict *d, struct value key, struct value **ret)
{
    *ret = NULL;
    uint32_t slot;
    int e;
    if (d->n_index) {
        e = find_slot(r, d, key, &slot);
        if (e == 0 && d->index[slot]) *ret = &d->pairs[d->index[slot] - 1].value;
        return e;
    }
    uint32_t unused;
    e = hash(r, key, &unused); /* refuses what cannot be a key */
    for (uint32_t i = 0; e == 0 && i < d->n; i++) {
        bool equal;
        e = value_equal(r, d->pairs[i].key, key, &equal);
        if (e < 0 || !equal) continue;
        *ret = &d->pairs[i].value;
        break;
    }
    return e;
}

int dict_get_text(struct render *r, const struct dict *d, const struct str *key, struct value **ret)
{
    return dict_get(r, d, value_str(key), ret);
}

static int grow_index(struct render *r, struct dict *d)
{
    d->n_index = d->cap * 4; /* cap is a power of two; at most a quarter full */
    d->index = arena_zero(&r->arena, d->n_index, sizeof(*d->index));
    if (!d->index) return -E2BIG;
    for (uint32_t i = 0; i < d->n; i++) {
        uint32_t slot;
        int e = find_slot(r, d, d->pairs[i].key, &slot);
        if (e < 0) return e;
        d->index[slot] = i + 1;
    }
    return 0;
}

static int grow_pairs(struct render *r, struct dict *d)
{
    uint32_t cap = d->cap ? d->cap * 2 : 4;
    struct pair *pairs =
        arena_grow(&r->arena, d->pairs, d->cap * sizeof(*pairs), cap * sizeof(*pairs));
    if (!pairs) return -E2BIG;
    d->pairs = pairs;
    d->cap = cap;
    return cap > DICT_INDEX_FROM ? grow_index(r, d) : 0;
}

int dict_set(struct render *r, struct dict *d, struct value key, struct value value)
{
    struct value *found;
    int e = dict_get(r, d, key, &found);
    if (e < 0) return e;
    if (found) {
        *found = value;
        return 0;
    }
    if (d->n == d->cap && (e = grow_pairs(r, d)) < 0) return e;
    d->pairs[d->n++] = (struct pair){.key = key, .value = value};
    if (!d->n_index) return 0;
    uint32_t slot;
    e = find_slot(r, d, key, &slot);
    if (e == 0) d->index[slot] = d->n;
    return e;
}
