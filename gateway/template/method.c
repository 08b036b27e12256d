/* SPDX-License-Identifier: MIT */
/* Owns the methods of dicts, lists, loops and cyclers, and finds methods by type and name. Methods
 * that change a list or dict do not exist: the sandbox is the immutable one. */
#include "gateway/template/method.h"

#include <errno.h>
#include <string.h>

static int dict_get_method(struct render *r, struct value self, const struct args *args,
                           struct value *ret)
{
    struct value v[2], *found;
    int e = args_take(r, "get()", args, "key default", 1, v);
    if (e == 0) e = dict_get(r, self.dict, v[0], &found);
    if (e < 0) return e;
    *ret = found ? *found : value_given(v[1]) ? v[1] : (struct value){.kind = VALUE_NONE};
    return 0;
}

static int dict_view(struct render *r, struct value self, const struct args *args,
                     enum view_kind kind, struct value *ret)
{
    int e = args_take(r, "a view", args, "", 0, NULL);
    struct view *view = e < 0 ? NULL : arena_zero(&r->arena, 1, sizeof(*view));
    if (!view) return e < 0 ? e : -E2BIG;
    *view = (struct view){.kind = kind, .dict = self.dict};
    *ret = (struct value){.kind = VALUE_VIEW, .view = view};
    return 0;
}

static int dict_keys(struct render *r, struct value self, const struct args *args,
                     struct value *ret)
{
    return dict_view(r, self, args, VIEW_KEYS, ret);
}

static int dict_values(struct render *r, struct value self, const struct args *args,
                       struct value *ret)
{
    return dict_view(r, self, args, VIEW_VALUES, ret);
}

static int dict_items_method(struct render *r, struct value self, const struct args *args,
                             struct value *ret)
{
    return dict_view(r, self, args, VIEW_ITEMS, ret);
}

static int dict_copy(struct render *r, struct value self, const struct args *args,
                     struct value *ret)
{
    *ret = self; /* nothing can change it, so the copy is itself */
    return args_take(r, "copy()", args, "", 0, NULL);
}

static int list_index(struct render *r, struct value self, const struct args *args,
                      struct value *ret)
{
    struct value v;
    int e = args_take(r, "index()", args, "value", 1, &v);
    for (uint32_t i = 0; e == 0 && i < self.list->n; i++) {
        bool equal;
        e = value_equal(r, self.list->items[i], v, &equal);
        *ret = value_int(i);
        if (e == 0 && equal) return 0;
    }
    return e < 0 ? e : render_fail(r, -EPROTO, "index(): the value is not in the list");
}

static int list_count(struct render *r, struct value self, const struct args *args,
                      struct value *ret)
{
    struct value v;
    int64_t n = 0;
    int e = args_take(r, "count()", args, "value", 1, &v);
    for (uint32_t i = 0; e == 0 && i < self.list->n; i++) {
        bool equal = false;
        e = value_equal(r, self.list->items[i], v, &equal);
        n += equal;
    }
    *ret = value_int(n);
    return e;
}

static int loop_cycle(struct render *r, struct value self, const struct args *args,
                      struct value *ret)
{
    if (!args->n_pos || args->n_named)
        return render_fail(r, -EPROTO, "loop.cycle() takes at least one item");
    *ret = args->pos[self.loop->i % args->n_pos];
    return 0;
}

static int loop_changed(struct render *r, struct value self, const struct args *args,
                        struct value *ret)
{
    struct loop *l = self.loop;
    struct value now;
    bool same = false;
    int e = value_list(r, VALUE_TUPLE, args->pos, args->n_pos, &now);
    if (e == 0 && l->changed_once) e = value_equal(r, l->last_changed, now, &same);
    if (e < 0) return e;
    l->last_changed = now;
    l->changed_once = true;
    *ret = value_bool(!same);
    return 0;
}

static int cycler_next(struct render *r, struct value self, const struct args *args,
                       struct value *ret)
{
    *ret = self.iter->list.items[self.iter->at];
    self.iter->at = (self.iter->at + 1) % self.iter->list.n;
    return args_take(r, "next()", args, "", 0, NULL);
}

static int cycler_reset(struct render *r, struct value self, const struct args *args,
                        struct value *ret)
{
    self.iter->at = 0;
    ret->kind = VALUE_NONE;
    return args_take(r, "reset()", args, "", 0, NULL);
}

const struct method *method_find(enum value_kind kind, const struct str *name)
{
    static const struct method dict_methods[] = {
        {"get",    dict_get_method  },
        {"items",  dict_items_method},
        {"keys",   dict_keys        },
        {"values", dict_values      },
        {"copy",   dict_copy        },
    };
    static const struct method list_methods[] = {
        {"index", list_index},
        {"count", list_count},
        {"copy",  dict_copy },
    };
    static const struct method loop_methods[] = {
        {"cycle",   loop_cycle  },
        {"changed", loop_changed},
    };
    static const struct method cycler_methods[] = {
        {"next",  cycler_next },
        {"reset", cycler_reset},
    };
    static const struct {
        enum value_kind kind;
        const struct method *methods;
        size_t n;
    } types[] = {
        {VALUE_DICT,   dict_methods,   ARRAY_LEN(dict_methods)    },
        {VALUE_LIST,   list_methods,   ARRAY_LEN(list_methods)    },
        {VALUE_TUPLE,  list_methods,   ARRAY_LEN(list_methods) - 1}, /* a tuple has no copy() */
        {VALUE_LOOP,   loop_methods,   ARRAY_LEN(loop_methods)    },
        {VALUE_CYCLER, cycler_methods, ARRAY_LEN(cycler_methods)  },
    };
    if (kind == VALUE_STR) return method_of_str(name);
    for (size_t t = 0; t < ARRAY_LEN(types); t++)
        for (size_t i = 0; types[t].kind == kind && i < types[t].n; i++)
            if (str_is(name, types[t].methods[i].name)) return &types[t].methods[i];
    return NULL;
}
