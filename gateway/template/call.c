/* SPDX-License-Identifier: MIT */
/* Owns calling: how arguments meet parameters, and the functions that every template has. Called by
 * the evaluator. */
#include "gateway/template/render.h"

#include <errno.h>
#include <string.h>
#include <time.h>

enum {
    RANGE_MAX_ITEMS = 100000, /* jinja2's sandbox has the same limit */
    TIME_TEXT_MAX_BYTES = 1024,
};

/* The slot of a name in "old new count", or -1. */
static int slot_of(const char *names, const struct str *name)
{
    int slot = 0;
    for (const char *at = names; *at; slot++) {
        size_t n = strcspn(at, " ");
        if (n == name->bytes && memcmp(at, name->text, n) == 0) return slot;
        at += n + (at[n] == ' ');
    }
    return -1;
}

static uint32_t count_names(const char *names)
{
    uint32_t n = *names != '\0';
    for (; *names; names++)
        n += *names == ' ';
    return n;
}

int args_take(struct render *r, const char *what, const struct args *args, const char *names,
              uint32_t n_required, struct value *ret)
{
    uint32_t n = count_names(names);
    for (uint32_t i = 0; i < n; i++)
        ret[i] = i < args->n_pos ? args->pos[i] : (struct value){.kind = VALUE_MISSING};
    if (args->n_pos > n)
        return render_fail(r, -EPROTO, "%s takes %u arguments, not %u", what, n, args->n_pos);
    for (uint32_t i = 0; i < args->n_named; i++) {
        int slot = slot_of(names, args->names[i]);
        if (slot < 0 || value_given(ret[slot]))
            return render_fail(r, -EPROTO, "%s has no argument '%.*s' left", what,
                               (int)min_u32(args->names[i]->bytes, 64), args->names[i]->text);
        ret[slot] = args->named[i];
    }
    for (uint32_t i = 0; i < n_required; i++)
        if (!value_given(ret[i])) return render_fail(r, -EPROTO, "%s lacks an argument", what);
    return 0;
}

int value_to_int(struct render *r, const char *what, struct value v, int64_t *ret)
{
    if (!value_is_integral(v))
        return render_fail(r, -EPROTO, "%s takes an integer, not %s", what, value_type_name(v));
    *ret = value_integer(v);
    return 0;
}

static int call_range(struct render *r, const struct args *args, struct value *ret)
{
    struct value v[3];
    int64_t bounds[3] = {0, 0, 1};
    int e = args_take(r, "range()", args, "start stop step", 1, v);
    if (e == 0 && args->n_named) e = render_fail(r, -EPROTO, "range() takes no names");
    bool one = e == 0 && !value_given(v[1]);
    for (int i = 0; e == 0 && i < 3; i++)
        if (value_given(v[i])) e = value_to_int(r, "range()", v[i], &bounds[one ? 1 : i]);
    if (e < 0) return e;
    if (bounds[2] == 0) return render_fail(r, -EPROTO, "range() cannot step by 0");
    __int128 start = bounds[0], stop = bounds[1], step = bounds[2];
    __int128 n = step > 0 ? (stop - start + step - 1) / step : (start - stop - step - 1) / -step;
    if (n > RANGE_MAX_ITEMS)
        return render_fail(r, -E2BIG, "range() gives at most %d items", RANGE_MAX_ITEMS);
    struct range *range = arena_zero(&r->arena, 1, sizeof(*range));
    if (!range) return -E2BIG;
    /* Without a second item the step is never taken, and must not overflow where the end is
     * printed. */
    *range = (struct range){bounds[0], n > 1 ? bounds[2] : 1, n > 0 ? (uint32_t)n : 0};
    *ret = (struct value){.kind = VALUE_RANGE, .range = range};
    return 0;
}

/* Pairs, or a dict, into a dict. */
static int fill_dict(struct render *r, struct dict *d, struct value from)
{
    struct list items, pair;
    if (from.kind == VALUE_DICT) {
        struct view view = {.kind = VIEW_ITEMS, .dict = from.dict};
        return fill_dict(r, d, (struct value){.kind = VALUE_VIEW, .view = &view});
    }
    if (from.kind == VALUE_UNDEFINED) return render_fail_undefined(r, from);
    int e = value_items(r, from, &items);
    for (uint32_t i = 0; e == 0 && i < items.n; i++) {
        e = value_items(r, items.items[i], &pair);
        if (e == 0 && pair.n != 2) e = render_fail(r, -EPROTO, "a dict is made of pairs");
        if (e == 0) e = dict_set(r, d, pair.items[0], pair.items[1]);
    }
    return e;
}

static int make_dict(struct render *r, const char *what, const struct args *args,
                     enum value_kind kind, struct value *ret)
{
    struct dict *d;
    int e = dict_new(r, &d);
    if (e == 0 && args->n_pos > 1) e = render_fail(r, -EPROTO, "%s takes one dict", what);
    if (e == 0 && args->n_pos) e = fill_dict(r, d, args->pos[0]);
    for (uint32_t i = 0; e == 0 && i < args->n_named; i++)
        e = dict_set(r, d, value_str(args->names[i]), args->named[i]);
    if (e == 0) *ret = (struct value){.kind = kind, .dict = d};
    return e;
}

static int call_dict(struct render *r, const struct args *args, struct value *ret)
{
    return make_dict(r, "dict()", args, VALUE_DICT, ret);
}

static int call_namespace(struct render *r, const struct args *args, struct value *ret)
{
    return make_dict(r, "namespace()", args, VALUE_NAMESPACE, ret);
}

static int call_cycler(struct render *r, const struct args *args, struct value *ret)
{
    if (!args->n_pos || args->n_named)
        return render_fail(r, -EPROTO, "cycler() takes at least one item");
    struct value items;
    int e = value_list(r, VALUE_LIST, args->pos, args->n_pos, &items);
    if (e == 0) e = value_iter(r, *items.list, ret);
    if (e == 0) ret->kind = VALUE_CYCLER;
    return e;
}

static int call_joiner(struct render *r, const struct args *args, struct value *ret)
{
    struct value v;
    int e = args_take(r, "joiner()", args, "sep", 0, &v);
    struct joiner *j = arena_zero(&r->arena, 1, sizeof(*j));
    if (e < 0 || !j) return e < 0 ? e : -E2BIG;
    if (!value_given(v)) e = render_text(r, ", ", &v);
    if (e == 0) e = value_to_str(r, v, &j->separator);
    *ret = (struct value){.kind = VALUE_JOINER, .joiner = j};
    return e;
}

static int call_raise(struct render *r, const struct args *args, struct value *ret)
{
    (void)ret;
    struct value v;
    const struct str *s;
    int e = args_take(r, "raise_exception()", args, "message", 1, &v);
    if (e == 0) e = value_to_str(r, v, &s);
    if (e < 0) return e;
    uint32_t n = min_u32(s->bytes, sizeof(r->why->text) - 1);
    while (n < s->bytes && n > 0 && ((uint8_t)s->text[n] & 0xc0) == 0x80)
        n--; /* never half a character */
    return why_set(r->why, -EBADMSG, "%.*s", (int)n, s->text);
}

static int call_strftime_now(struct render *r, const struct args *args, struct value *ret)
{
    struct value v;
    struct tm tm;
    time_t now = (time_t)r->now_s;
    int e = args_take(r, "strftime_now()", args, "format", 1, &v);
    if (e < 0) return e;
    if (v.kind != VALUE_STR) return render_fail(r, -EPROTO, "strftime_now() takes a string");
    if (!localtime_r(&now, &tm)) return render_fail(r, -EPROTO, "the time has no date");
    char format[TIME_TEXT_MAX_BYTES], text[TIME_TEXT_MAX_BYTES];
    if (v.str->bytes + 2 > sizeof(format))
        return render_fail(r, -E2BIG, "the format of a time is too long");
    /* The space tells an empty time from one that does not fit. */
    int n = snprintf(format, sizeof(format), " %.*s", (int)v.str->bytes, v.str->text);
    size_t bytes = n > 0 ? strftime(text, sizeof(text), format, &tm) : 0;
    if (!bytes) return render_fail(r, -E2BIG, "a time is too long");
    if (!utf8_valid(text, bytes)) return render_fail(r, -EPROTO, "a time is not UTF-8");
    struct str_buf b = render_buf(r);
    buf_add(&b, text + 1, bytes - 1, v.str->n_runs || v.str->from_value);
    return render_buf_value(&b, ret);
}

const struct function *function_find(const struct str *name)
{
    static const struct function functions[] = {
        {"range",           call_range       },
        {"dict",            call_dict        },
        {"namespace",       call_namespace   },
        {"cycler",          call_cycler      },
        {"joiner",          call_joiner      },
        {"raise_exception", call_raise       },
        {"strftime_now",    call_strftime_now},
    };
    for (size_t i = 0; i < ARRAY_LEN(functions); i++)
        if (str_is(name, functions[i].name)) return &functions[i];
    return NULL;
}

static int call_joiner_value(struct render *r, struct joiner *j, struct value *ret)
{
    if (!j->used) {
        j->used = true;
        return render_text(r, "", ret);
    }
    *ret = value_str(j->separator);
    return 0;
}

int value_call(struct render *r, struct value f, const struct args *args, struct value *ret)
{
    int e = render_enter(r);
    if (e < 0) return e;
    switch (f.kind) {
    case VALUE_FUNCTION:
        e = f.function->call(r, args, ret);
        break;
    case VALUE_METHOD:
        e = f.bound->method->call(r, f.bound->self, args, ret);
        break;
    case VALUE_MACRO:
        e = macro_call(r, f.macro, args, ret);
        break;
    case VALUE_JOINER:
        e = call_joiner_value(r, f.joiner, ret);
        break;
    case VALUE_UNDEFINED:
        e = render_fail_undefined(r, f);
        break;
    default:
        e = render_fail(r, -EPROTO, "%s cannot be called", value_type_name(f));
        break;
    }
    render_leave(r);
    return e;
}
