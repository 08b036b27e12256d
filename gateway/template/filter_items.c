/* SPDX-License-Identifier: MIT */
/* Owns the filters that take a list, or anything that can be walked, as a whole: its length, order
 * and shape. */
#include "gateway/template/filter.h"
#include "gateway/template/text.h"

#include <errno.h>
#include <string.h>

#define FILTER(name)                                                                               \
    static int filter_##name(struct render *r, struct value in, const struct args *args,           \
                             struct value *ret)

enum { BATCH_MAX_ITEMS = 100000 }; /* in one batch, filled up */

FILTER(length)
{
    ret->kind = VALUE_INT;
    int e = args_take(r, "length", args, "", 0, NULL);
    return e < 0 ? e : value_length(r, in, &ret->integer);
}

FILTER(default)
{
    struct value v[2];
    int e = args_take(r, "default", args, "default_value boolean", 0, v);
    if (e < 0) return e;
    bool take = in.kind == VALUE_UNDEFINED || (flag_given(v[1]) && !value_truth(in));
    *ret = in;
    if (take && value_given(v[0])) *ret = v[0];
    return take && !value_given(v[0]) ? render_text(r, "", ret) : 0;
}

FILTER(list)
{
    struct list items;
    int e = args_take(r, "list", args, "", 0, NULL);
    if (e == 0) e = value_items(r, in, &items);
    return e < 0 ? e : value_list(r, VALUE_LIST, items.items, items.n, ret);
}

FILTER(first)
{
    struct list items;
    int e = args_take(r, "first", args, "", 0, NULL);
    if (e == 0) e = value_items(r, in, &items);
    if (e == 0) *ret = items.n ? items.items[0] : value_undefined(NULL);
    return e;
}

FILTER(last)
{
    struct list items;
    int e = args_take(r, "last", args, "", 0, NULL);
    if (e == 0 && in.kind == VALUE_ITER) e = render_fail(r, -EPROTO, "a generator has no end");
    if (e == 0) e = value_items(r, in, &items);
    if (e == 0) *ret = items.n ? items.items[items.n - 1] : value_undefined(NULL);
    return e;
}

FILTER(join)
{
    struct value v[2];
    const struct str *separator, *s;
    struct list items;
    int e = args_take(r, "join", args, "d attribute", 0, v);
    if (e == 0 && !value_given(v[0])) e = render_text(r, "", &v[0]);
    if (e == 0) e = value_to_str(r, v[0], &separator);
    if (e == 0) e = value_items(r, in, &items);
    struct str_buf b = render_buf(r);
    for (uint32_t i = 0; e == 0 && i < items.n; i++) {
        struct value item = items.items[i];
        if (value_given(v[1]) && v[1].kind != VALUE_NONE) e = attribute_path(r, item, v[1], &item);
        if (e == 0) e = value_to_str(r, item, &s);
        if (e == 0) e = render_scan(r, s->bytes);
        if (e < 0) return e;
        if (i) buf_str(&b, separator);
        buf_str(&b, s);
    }
    return e < 0 ? e : render_buf_value(&b, ret);
}

FILTER(items)
{
    struct list items = list_empty();
    int e = args_take(r, "items", args, "", 0, NULL);
    if (e == 0 && in.kind != VALUE_DICT && in.kind != VALUE_UNDEFINED)
        e = render_fail(r, -EPROTO, "items takes a dict, not %s", value_type_name(in));
    struct view view = {.kind = VIEW_ITEMS, .dict = in.kind == VALUE_DICT ? in.dict : NULL};
    if (e == 0 && view.dict)
        e = value_items(r, (struct value){.kind = VALUE_VIEW, .view = &view}, &items);
    return e < 0 ? e : value_iter(r, items, ret);
}

static int reversed(struct render *r, struct value in, struct list *ret)
{
    struct list items, *out;
    int e = value_items(r, in, &items);
    if (e == 0) e = list_new(r, items.n, &out);
    if (e < 0) return e;
    for (uint32_t i = 0; i < items.n; i++)
        out->items[i] = items.items[items.n - 1 - i];
    *ret = *out;
    return 0;
}

FILTER(reverse)
{
    struct list items;
    int e = args_take(r, "reverse", args, "", 0, NULL);
    if (e == 0) e = reversed(r, in, &items);
    if (e < 0) return e;
    if (in.kind != VALUE_STR) return value_iter(r, items, ret);
    struct str_buf b = render_buf(r);
    b.markup = in.str->markup;
    for (uint32_t i = 0; i < items.n; i++)
        buf_str(&b, items.items[i].str);
    return render_buf_value(&b, ret);
}

int fold_case(struct render *r, struct value v, bool case_sensitive, struct value *ret)
{
    if (!case_sensitive && v.kind == VALUE_STR) return text_case(r, v.str, TEXT_LOWER, ret);
    *ret = v;
    return 0;
}

/* A list being sorted: what is compared, beside the item it stands for. */
struct keyed {
    struct value key, item;
};

/* Merge sort: stable as Python's, and its worst case is bounded. tmp has room for n. */
static int merge_sort(struct render *r, struct keyed *rows, struct keyed *tmp, uint32_t n,
                      bool down)
{
    if (n < 2) return 0;
    uint32_t half = n / 2, a = 0, b = half;
    int e = merge_sort(r, rows, tmp, half, down);
    if (e == 0) e = merge_sort(r, rows + half, tmp, n - half, down);
    for (uint32_t i = 0; e == 0 && i < n; i++) {
        bool take_b = a == half;
        if (a < half && b < n) { /* equal ones keep their order in both directions */
            struct value left = down ? rows[a].key : rows[b].key;
            struct value right = down ? rows[b].key : rows[a].key;
            e = value_relation(r, OP_LT, left, right, &take_b);
        }
        if (e == 0) tmp[i] = take_b ? rows[b++] : rows[a++];
    }
    if (e == 0) memcpy(rows, tmp, n * sizeof(*rows));
    return e;
}

static int sort_keyed(struct render *r, struct keyed *rows, uint32_t n, bool down,
                      struct value *ret)
{
    struct list *out;
    struct keyed *tmp = arena_zero(&r->arena, n, sizeof(*tmp));
    int e = tmp ? merge_sort(r, rows, tmp, n, down) : -E2BIG;
    if (e == 0) e = list_new(r, n, &out);
    if (e < 0) return e;
    for (uint32_t i = 0; i < n; i++)
        out->items[i] = rows[i].item;
    *ret = (struct value){.kind = VALUE_LIST, .list = out};
    return 0;
}

/* The attributes in "a,b.c" as one tuple, so that they are compared in turn. */
static int sort_key(struct render *r, struct value item, struct value paths, bool case_sensitive,
                    struct value *ret)
{
    struct value parts, comma, keys;
    if (paths.kind == VALUE_MISSING || paths.kind == VALUE_NONE)
        return fold_case(r, item, case_sensitive, ret);
    if (paths.kind != VALUE_STR) {
        int e = attribute_path(r, item, paths, &item);
        return e < 0 ? e : fold_case(r, item, case_sensitive, ret);
    }
    int e = render_text(r, ",", &comma);
    if (e == 0) e = text_split(r, paths.str, comma.str, -1, false, &parts);
    struct list *out = NULL;
    if (e == 0) e = list_new(r, parts.list->n, &out);
    for (uint32_t i = 0; e == 0 && i < parts.list->n; i++) {
        struct value key;
        e = attribute_path(r, item, parts.list->items[i], &key);
        if (e == 0) e = fold_case(r, key, case_sensitive, &out->items[i]);
    }
    keys = (struct value){.kind = VALUE_LIST, .list = out};
    if (e == 0) *ret = keys;
    return e;
}

/* Python's sorted() takes an integer here, not any truth. */
static int check_reverse(struct render *r, struct value v)
{
    int64_t unused;
    return value_given(v) ? value_to_int(r, "reverse", v, &unused) : 0;
}

FILTER(sort)
{
    struct value v[3];
    struct list items;
    int e = args_take(r, "sort", args, "reverse case_sensitive attribute", 0, v);
    if (e == 0) e = value_items(r, in, &items);
    if (e < 0) return e;
    struct keyed *rows = arena_zero(&r->arena, items.n, sizeof(*rows));
    if (!rows) return -E2BIG;
    for (uint32_t i = 0; e == 0 && i < items.n; i++) {
        rows[i].item = items.items[i];
        e = sort_key(r, items.items[i], v[2], flag_given(v[1]), &rows[i].key);
    }
    if (e == 0) e = check_reverse(r, v[0]);
    return e < 0 ? e : sort_keyed(r, rows, items.n, flag_given(v[0]), ret);
}

FILTER(dictsort)
{
    struct value v[3];
    struct list items;
    int e = args_take(r, "dictsort", args, "case_sensitive by reverse", 0, v);
    if (e == 0 && in.kind != VALUE_DICT) e = render_fail(r, -EPROTO, "dictsort takes a dict");
    bool by_value = v[1].kind == VALUE_STR && str_is(v[1].str, "value");
    if (e == 0 && value_given(v[1]) && !by_value &&
        !(v[1].kind == VALUE_STR && str_is(v[1].str, "key")))
        e = render_fail(r, -EPROTO, "dictsort sorts by \"key\" or by \"value\"");
    if (e < 0) return e;
    struct view view = {.kind = VIEW_ITEMS, .dict = in.dict};
    e = value_items(r, (struct value){.kind = VALUE_VIEW, .view = &view}, &items);
    if (e < 0) return e;
    struct keyed *rows = arena_zero(&r->arena, items.n, sizeof(*rows));
    if (!rows) return -E2BIG;
    for (uint32_t i = 0; e == 0 && i < items.n; i++) {
        rows[i].item = items.items[i];
        e = fold_case(r, items.items[i].list->items[by_value], flag_given(v[0]), &rows[i].key);
    }
    if (e == 0) e = check_reverse(r, v[2]);
    return e < 0 ? e : sort_keyed(r, rows, items.n, flag_given(v[2]), ret);
}

FILTER(unique)
{
    struct value v[2];
    struct list items, *out;
    struct dict *seen;
    int e = args_take(r, "unique", args, "case_sensitive attribute", 0, v);
    if (e == 0) e = value_items(r, in, &items);
    if (e == 0) e = list_new(r, items.n, &out);
    if (e == 0) e = dict_new(r, &seen);
    if (e < 0) return e;
    out->n = 0;
    for (uint32_t i = 0; i < items.n; i++) {
        struct value key = items.items[i], *found;
        if (value_given(v[1]) && v[1].kind != VALUE_NONE) e = attribute_path(r, key, v[1], &key);
        if (e == 0) e = fold_case(r, key, flag_given(v[0]), &key);
        if (e == 0) e = dict_get(r, seen, key, &found);
        if (e == 0 && !found) e = dict_set(r, seen, key, key);
        if (e < 0) return e;
        if (!found) out->items[out->n++] = items.items[i];
    }
    return value_iter(r, *out, ret);
}

static int extreme(struct render *r, struct value in, const struct args *args, enum op op,
                   struct value *ret)
{
    struct value v[2], best, key;
    struct list items;
    int e = args_take(r, "min or max", args, "case_sensitive attribute", 0, v);
    if (e == 0) e = value_items(r, in, &items);
    *ret = value_undefined(NULL);
    for (uint32_t i = 0; e == 0 && i < items.n; i++) {
        bool better = i == 0;
        key = items.items[i];
        if (value_given(v[1]) && v[1].kind != VALUE_NONE) e = attribute_path(r, key, v[1], &key);
        if (e == 0) e = fold_case(r, key, flag_given(v[0]), &key);
        if (e == 0 && i) e = value_relation(r, op, key, best, &better);
        if (e < 0 || !better) continue;
        best = key;
        *ret = items.items[i];
    }
    return e;
}

FILTER(min) { return extreme(r, in, args, OP_LT, ret); }
FILTER(max) { return extreme(r, in, args, OP_GT, ret); }

FILTER(sum)
{
    struct value v[2];
    struct list items;
    int e = args_take(r, "sum", args, "attribute start", 0, v);
    if (e == 0) e = value_items(r, in, &items);
    *ret = e == 0 && value_given(v[1]) ? v[1] : value_int(0);
    if (e == 0 && ret->kind == VALUE_STR) e = render_fail(r, -EPROTO, "sum() takes no strings");
    for (uint32_t i = 0; e == 0 && i < items.n; i++) {
        struct value item = items.items[i];
        if (value_given(v[0]) && v[0].kind != VALUE_NONE) e = attribute_path(r, item, v[0], &item);
        if (e == 0) e = value_arithmetic(r, OP_ADD, *ret, item, ret);
    }
    return e;
}

/* One row of batch or slice: its items, and the filling behind them. */
static int add_row(struct render *r, struct list *rows, const struct value *items, uint32_t n,
                   uint32_t n_filled, struct value fill)
{
    struct list *row;
    int e = render_step(r, n_filled);
    if (e == 0) e = list_new(r, n_filled, &row);
    if (e < 0) return e;
    for (uint32_t i = 0; i < n_filled; i++)
        row->items[i] = i < n ? items[i] : fill;
    rows->items[rows->n++] = (struct value){.kind = VALUE_LIST, .list = row};
    return 0;
}

static int row_args(struct render *r, struct value in, const struct args *args, int64_t *ret_n,
                    struct value *ret_fill, struct list *ret_items)
{
    struct value v[2];
    int e = args_take(r, "batch or slice", args, "n fill_with", 1, v);
    if (e == 0) e = value_to_int(r, "batch or slice", v[0], ret_n);
    if (e == 0 && (*ret_n < 1 || *ret_n > BATCH_MAX_ITEMS))
        e = render_fail(r, -E2BIG, "batch and slice take 1 to %d", BATCH_MAX_ITEMS);
    *ret_fill = e == 0 && v[1].kind != VALUE_NONE ? v[1] : (struct value){.kind = VALUE_MISSING};
    return e < 0 ? e : value_items(r, in, ret_items);
}

FILTER(batch)
{
    int64_t n;
    struct value fill;
    struct list items, *rows;
    int e = row_args(r, in, args, &n, &fill, &items);
    if (e == 0) e = list_new(r, items.n, &rows);
    if (e < 0) return e;
    rows->n = 0;
    for (uint32_t at = 0; e == 0 && at < items.n; at += (uint32_t)n) {
        uint32_t have = min_u32(items.n - at, (uint32_t)n);
        uint32_t filled = value_given(fill) ? (uint32_t)n : have;
        e = add_row(r, rows, items.items + at, have, filled, fill);
    }
    return e < 0 ? e : value_iter(r, *rows, ret);
}

FILTER(slice)
{
    int64_t n;
    struct value fill;
    struct list items, *rows;
    int e = row_args(r, in, args, &n, &fill, &items);
    if (e == 0) e = list_new(r, (uint32_t)n, &rows);
    if (e < 0) return e;
    rows->n = 0;
    uint32_t each = items.n / (uint32_t)n, longer = items.n % (uint32_t)n, at = 0;
    for (uint32_t i = 0; e == 0 && i < n; i++) {
        uint32_t have = each + (i < longer);
        uint32_t filled = have + (value_given(fill) && i >= longer);
        e = add_row(r, rows, items.items + at, have, filled, fill);
        at += have;
    }
    return e < 0 ? e : value_iter(r, *rows, ret);
}

const struct filter *filter_of_items(const struct str *name)
{
#define ROW(name)                                                                                  \
    {                                                                                              \
#name, filter_##name                                                                       \
    }
    static const struct filter filters[] = {
        ROW(length),
        ROW(default),
        ROW(join),
        ROW(list),
        ROW(first),
        ROW(last),
        ROW(items),
        ROW(dictsort),
        ROW(sort),
        ROW(reverse),
        ROW(unique),
        ROW(min),
        ROW(max),
        ROW(sum),
        ROW(batch),
        ROW(slice),
        {"count", filter_length },
        {"d",     filter_default},
    };
#undef ROW
    for (size_t i = 0; i < ARRAY_LEN(filters); i++)
        if (str_is(name, filters[i].name)) return &filters[i];
    return NULL;
}
