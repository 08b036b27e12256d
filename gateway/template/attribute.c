/* SPDX-License-Identifier: MIT */
/* Owns what x.name, x[key] and x[a:b] give. As in jinja2's sandbox: x.name is a method or attribute
 * first and an item second, x[key] the other way round; what is not there is undefined. */
#include "gateway/template/render.h"

#include <errno.h>
#include <string.h>

static int bind_method(struct render *r, struct value self, const struct method *m,
                       struct value *ret)
{
    struct bound *b = arena_zero(&r->arena, 1, sizeof(*b));
    if (!b) return -E2BIG;
    *b = (struct bound){.self = self, .method = m};
    *ret = (struct value){.kind = VALUE_METHOD, .bound = b};
    return 0;
}

static struct value neighbour(const struct loop *l, int64_t i)
{
    return i >= 0 && i < l->list.n ? l->list.items[i] : value_undefined(NULL);
}

static struct value loop_attribute(const struct loop *l, const struct str *name)
{
    int64_t i = l->i, n = l->list.n;
    if (str_is(name, "index")) return value_int(i + 1);
    if (str_is(name, "index0")) return value_int(i);
    if (str_is(name, "revindex")) return value_int(n - i);
    if (str_is(name, "revindex0")) return value_int(n - i - 1);
    if (str_is(name, "first")) return value_bool(i == 0);
    if (str_is(name, "last")) return value_bool(i == n - 1);
    if (str_is(name, "length")) return value_int(n);
    if (str_is(name, "depth")) return value_int(1); /* only recursive loops go deeper */
    if (str_is(name, "depth0")) return value_int(0);
    if (str_is(name, "previtem")) return neighbour(l, i - 1);
    if (str_is(name, "nextitem")) return neighbour(l, i + 1);
    return value_undefined(name);
}

int value_attribute(struct render *r, struct value v, const struct str *name, struct value *ret)
{
    if (v.kind == VALUE_UNDEFINED) return render_fail_undefined(r, v);
    const struct method *m = method_find(v.kind, name);
    if (m) return bind_method(r, v, m, ret);
    *ret = value_undefined(name);
    if (v.kind == VALUE_LOOP) *ret = loop_attribute(v.loop, name);
    if (v.kind == VALUE_MACRO && str_is(name, "name")) *ret = macro_name(v.macro);
    if (v.kind == VALUE_CYCLER && str_is(name, "current")) *ret = v.iter->list.items[v.iter->at];
    if (v.kind != VALUE_DICT && v.kind != VALUE_NAMESPACE) return 0;
    struct value *found;
    int e = dict_get_text(r, v.dict, name, &found);
    if (e == 0 && found) *ret = *found;
    return e;
}

static int str_item(struct render *r, const struct str *s, int64_t i, struct value *ret)
{
    if (i < 0) i += s->chars;
    if (i < 0 || i >= s->chars) return 0;
    uint32_t off = str_offset(s, (uint32_t)i), cp, n = utf8_get(s->text + off, &cp);
    const struct str *c = str_sub(&r->arena, s, off, n);
    if (!c) return -E2BIG;
    *ret = value_str(c);
    return render_scan(r, off);
}

static int sequence_item(struct render *r, struct value v, int64_t i, struct value *ret)
{
    if (v.kind == VALUE_STR) return str_item(r, v.str, i, ret);
    int64_t n = v.kind == VALUE_RANGE ? v.range->n : v.list->n;
    if (i < 0) i += n;
    if (i < 0 || i >= n) return 0;
    *ret = v.kind == VALUE_RANGE ? value_int(v.range->start + v.range->step * i) : v.list->items[i];
    return 0;
}

static bool is_sequence(struct value v)
{
    return v.kind == VALUE_STR || v.kind == VALUE_LIST || v.kind == VALUE_TUPLE ||
           v.kind == VALUE_RANGE;
}

int value_item(struct render *r, struct value v, struct value key, struct value *ret)
{
    if (v.kind == VALUE_UNDEFINED) return render_fail_undefined(r, v);
    *ret = value_undefined(key.kind == VALUE_STR ? key.str : NULL);
    bool can_be_key = key.kind != VALUE_LIST && key.kind != VALUE_DICT;
    if (v.kind == VALUE_DICT && can_be_key) {
        struct value *found;
        int e = dict_get(r, v.dict, key, &found);
        if (e == 0 && found) *ret = *found;
        if (e < 0 || found) return e;
    }
    if (is_sequence(v) && value_is_integral(key))
        return sequence_item(r, v, value_integer(key), ret);
    return key.kind == VALUE_STR ? value_attribute(r, v, key.str, ret) : 0;
}

/* The steps of a slice over n items, by Python's rules: first index, step and how many. */
struct slice {
    int64_t first, step, n;
};

static int slice_bound(struct render *r, struct value v, int64_t missing, int64_t *ret)
{
    *ret = missing;
    if (v.kind == VALUE_NONE) return 0;
    if (!value_is_integral(v))
        return render_fail(r, -EPROTO, "a slice takes integers, not %s", value_type_name(v));
    *ret = value_integer(v);
    return 0;
}

static int64_t clamp(int64_t i, int64_t n, int64_t low, int64_t high)
{
    if (i < 0) i += n;
    return i < low ? low : i > high ? high : i;
}

static int slice_steps(struct render *r, int64_t n, const struct value bounds[3], struct slice *ret)
{
    int64_t step, first, last;
    int e = slice_bound(r, bounds[2], 1, &step);
    if (e < 0) return e;
    if (step == 0) return render_fail(r, -EPROTO, "a slice cannot step by 0");
    /* A step beyond the length takes one item, whatever it is: no overflow below. */
    if (step > n + 1) step = n + 1;
    if (step < -n - 1) step = -n - 1;
    int64_t low = step < 0 ? -1 : 0, high = step < 0 ? n - 1 : n;
    e = slice_bound(r, bounds[0], step < 0 ? n - 1 : 0, &first);
    if (e < 0) return e;
    e = slice_bound(r, bounds[1], step < 0 ? -n - 1 : n, &last);
    if (e < 0) return e;
    first = clamp(first, bounds[0].kind == VALUE_NONE ? 0 : n, low, high);
    last = clamp(last, n, low, high);
    int64_t span = step < 0 ? first - last : last - first, stride = step < 0 ? -step : step;
    *ret = (struct slice){first, step, span <= 0 ? 0 : (span + stride - 1) / stride};
    return 0;
}

static int slice_str(struct render *r, const struct str *s, const struct slice *slice,
                     struct value *ret)
{
    int e = render_scan(r, s->bytes);
    if (e < 0) return e;
    const struct str *out;
    if (slice->step == 1 || slice->n == 0) {
        uint32_t from = slice->n ? str_offset(s, (uint32_t)slice->first) : 0;
        uint32_t to = slice->n ? str_offset(s, (uint32_t)(slice->first + slice->n)) : 0;
        out = str_sub(&r->arena, s, from, to - from);
        if (!out) return -E2BIG;
        *ret = value_str(out);
        return 0;
    }
    struct list chars;
    e = value_items(r, value_str(s), &chars);
    if (e < 0) return e;
    struct str_buf b = render_buf(r);
    b.markup = s->markup;
    for (int64_t i = 0; i < slice->n; i++)
        buf_str(&b, chars.items[slice->first + i * slice->step].str);
    return render_buf_value(&b, ret);
}

int value_slice(struct render *r, struct value v, const struct value bounds[3], struct value *ret)
{
    if (v.kind == VALUE_UNDEFINED) return render_fail_undefined(r, v);
    if (!is_sequence(v)) return render_fail(r, -EPROTO, "%s cannot be sliced", value_type_name(v));
    int64_t n;
    struct slice slice = {0};
    int e = value_length(r, v, &n);
    if (e == 0) e = slice_steps(r, n, bounds, &slice);
    if (e < 0) return e;
    if (v.kind == VALUE_STR) return slice_str(r, v.str, &slice, ret);
    struct list items, *out;
    e = value_items(r, v, &items);
    if (e == 0) e = list_new(r, (uint32_t)slice.n, &out);
    if (e < 0) return e;
    for (int64_t i = 0; i < slice.n; i++)
        out->items[i] = items.items[slice.first + i * slice.step];
    *ret = (struct value){.kind = v.kind == VALUE_TUPLE ? VALUE_TUPLE : VALUE_LIST, .list = out};
    return 0;
}
