/* SPDX-License-Identifier: MIT */
/* Owns arithmetic and relations between values, by Python's rules; integers are 64 bits, and what
 * would not fit is an error. Called by the evaluator and by filters. */
#include "gateway/template/render.h"

#include <errno.h>
#include <math.h>
#include <string.h>

static const char *const op_words[] = {
    [OP_ADD] = "+", [OP_SUB] = "-",  [OP_MUL] = "*", [OP_DIV] = "/", [OP_FLOORDIV] = "//",
    [OP_MOD] = "%", [OP_POW] = "**", [OP_EQ] = "==", [OP_NE] = "!=", [OP_LT] = "<",
    [OP_LE] = "<=", [OP_GT] = ">",   [OP_GE] = ">=", [OP_IN] = "in", [OP_NOT_IN] = "not in",
};

static int too_large(struct render *r)
{
    return render_fail(r, -E2BIG, "an integer does not fit into 64 bits");
}

static int int_power(struct render *r, int64_t base, int64_t exponent, int64_t *ret)
{
    int64_t v = 1;
    bool over = false;
    while (exponent > 0 && !over) {
        if (exponent & 1) over = __builtin_mul_overflow(v, base, &v);
        exponent >>= 1;
        if (exponent) over = __builtin_mul_overflow(base, base, &base) || over;
    }
    *ret = v;
    return over ? too_large(r) : 0;
}

static int int_arithmetic(struct render *r, enum op op, int64_t a, int64_t b, struct value *ret)
{
    int64_t v = 0;
    bool over = false;
    int e = 0;
    if (op == OP_ADD) over = __builtin_add_overflow(a, b, &v);
    if (op == OP_SUB) over = __builtin_sub_overflow(a, b, &v);
    if (op == OP_MUL) over = __builtin_mul_overflow(a, b, &v);
    if (op == OP_POW) e = int_power(r, a, b, &v);
    if (op == OP_FLOORDIV || op == OP_MOD) {
        if (b == -1) { /* INT64_MIN / -1 traps */
            over = op == OP_FLOORDIV && __builtin_sub_overflow((int64_t)0, a, &v);
        } else {
            v = op == OP_FLOORDIV ? a / b : a % b;
            bool uneven = a % b != 0 && (a < 0) != (b < 0); /* Python rounds down */
            if (uneven) v = op == OP_FLOORDIV ? v - 1 : v + b;
        }
    }
    if (over) return too_large(r);
    *ret = value_int(v);
    return e;
}

static double float_mod(double a, double b)
{
    double v = fmod(a, b);
    if (v == 0) return copysign(0, b);
    return (v < 0) != (b < 0) ? v + b : v;
}

static int float_arithmetic(struct render *r, enum op op, double a, double b, struct value *ret)
{
    double v = 0;
    if (op == OP_ADD) v = a + b;
    if (op == OP_SUB) v = a - b;
    if (op == OP_MUL) v = a * b;
    if (op == OP_DIV) v = a / b;
    if (op == OP_FLOORDIV) v = (a - float_mod(a, b)) / b;
    if (op == OP_FLOORDIV) v = v - floor(v) > 0.5 ? floor(v) + 1 : floor(v);
    if (op == OP_MOD) v = float_mod(a, b);
    if (op == OP_POW) {
        v = pow(a, b);
        if (isnan(v) && !isnan(a) && !isnan(b))
            return render_fail(r, -EPROTO, "a power of a negative number is not real");
        if (isinf(v) && !isinf(a) && !isinf(b))
            return render_fail(r, -EPROTO, "a power is too large");
    }
    *ret = value_float(v);
    return 0;
}

static int numbers(struct render *r, enum op op, struct value a, struct value b, struct value *ret)
{
    bool divides = op == OP_DIV || op == OP_FLOORDIV || op == OP_MOD;
    bool negative_power = op == OP_POW && value_real(b) < 0;
    if ((divides && value_real(b) == 0) || (negative_power && value_real(a) == 0))
        return render_fail(r, -EPROTO, "division by zero");
    if (value_is_integral(a) && value_is_integral(b) && op != OP_DIV && !negative_power)
        return int_arithmetic(r, op, value_integer(a), value_integer(b), ret);
    return float_arithmetic(r, op, value_real(a), value_real(b), ret);
}

/* Where one side went through safe or escape, the other is escaped, as markupsafe does. */
static int join_strings(struct render *r, const struct str *a, const struct str *b,
                        struct value *ret)
{
    struct str_buf out = render_buf(r);
    out.markup = a->markup || b->markup;
    if (out.markup && !a->markup)
        buf_escaped(&out, a);
    else
        buf_str(&out, a);
    if (out.markup && !b->markup)
        buf_escaped(&out, b);
    else
        buf_str(&out, b);
    int e = render_scan(r, out.bytes);
    return e < 0 ? e : render_buf_value(&out, ret);
}

static int join_lists(struct render *r, struct value a, struct value b, struct value *ret)
{
    struct list *l;
    int e = render_step(r, (uint64_t)a.list->n + b.list->n);
    if (e == 0) e = list_new(r, a.list->n + b.list->n, &l);
    if (e < 0) return e;
    if (a.list->n) memcpy(l->items, a.list->items, a.list->n * sizeof(*l->items));
    if (b.list->n) memcpy(l->items + a.list->n, b.list->items, b.list->n * sizeof(*l->items));
    *ret = (struct value){.kind = a.kind, .list = l};
    return 0;
}

static int repeat(struct render *r, struct value v, int64_t times, struct value *ret)
{
    if (times < 0) times = 0;
    int e = render_step(r, (uint64_t)times);
    if (e < 0) return e;
    if (v.kind == VALUE_STR) {
        struct str_buf b = render_buf(r);
        b.markup = v.str->markup;
        for (int64_t i = 0; i < times && v.str->bytes && !b.failed; i++)
            buf_str(&b, v.str);
        e = render_scan(r, b.bytes);
        return e < 0 ? e : render_buf_value(&b, ret);
    }
    struct list *l;
    uint64_t n = v.list->n * (uint64_t)times; /* both are under 2^32: the budget of steps is */
    e = n > UINT32_MAX ? render_fail(r, -E2BIG, "a list is too long") : render_step(r, n);
    if (e == 0) e = list_new(r, (uint32_t)n, &l);
    if (e < 0) return e;
    for (uint64_t i = 0; i < n; i++)
        l->items[i] = v.list->items[i % v.list->n];
    *ret = (struct value){.kind = v.kind, .list = l};
    return 0;
}

static bool repeats(struct value v)
{
    return v.kind == VALUE_STR || v.kind == VALUE_LIST || v.kind == VALUE_TUPLE;
}

int value_arithmetic(struct render *r, enum op op, struct value a, struct value b,
                     struct value *ret)
{
    if (value_is_number(a) && value_is_number(b)) return numbers(r, op, a, b, ret);
    if (op == OP_MOD && a.kind == VALUE_STR) return format_percent(r, a.str, b, ret);
    if (a.kind == VALUE_UNDEFINED) return render_fail_undefined(r, a);
    if (b.kind == VALUE_UNDEFINED) return render_fail_undefined(r, b);
    if (op == OP_ADD && a.kind == VALUE_STR && b.kind == VALUE_STR)
        return join_strings(r, a.str, b.str, ret);
    if (op == OP_ADD && a.kind == b.kind && repeats(a)) return join_lists(r, a, b, ret);
    if (op == OP_MUL && repeats(a) && value_is_integral(b))
        return repeat(r, a, value_integer(b), ret);
    if (op == OP_MUL && repeats(b) && value_is_integral(a))
        return repeat(r, b, value_integer(a), ret);
    return render_fail(r, -EPROTO, "%s %s %s is not defined", value_type_name(a), op_words[op],
                       value_type_name(b));
}

int value_relation(struct render *r, enum op op, struct value a, struct value b, bool *ret)
{
    int order, e;
    if (op == OP_EQ || op == OP_NE) {
        e = value_equal(r, a, b, ret);
        if (op == OP_NE) *ret = !*ret;
        return e;
    }
    if (op == OP_IN || op == OP_NOT_IN) {
        e = value_contains(r, b, a, ret);
        if (op == OP_NOT_IN) *ret = !*ret;
        return e;
    }
    if (a.kind == VALUE_UNDEFINED) return render_fail_undefined(r, a);
    if (b.kind == VALUE_UNDEFINED) return render_fail_undefined(r, b);
    e = value_compare(r, a, b, &order);
    if (e < 0) return e;
    *ret = (op == OP_LT && order == -1) || (op == OP_GT && order == 1) ||
           (op == OP_LE && order <= 0) || (op == OP_GE && (order == 0 || order == 1));
    return 0;
}

int value_negate(struct render *r, struct value v, struct value *ret)
{
    if (v.kind == VALUE_UNDEFINED) return render_fail_undefined(r, v);
    if (v.kind == VALUE_FLOAT) {
        *ret = value_float(-v.real);
        return 0;
    }
    if (!value_is_integral(v))
        return render_fail(r, -EPROTO, "%s cannot be negated", value_type_name(v));
    return int_arithmetic(r, OP_SUB, 0, value_integer(v), ret);
}
