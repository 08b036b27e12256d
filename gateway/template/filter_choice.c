/* SPDX-License-Identifier: MIT */
/* Owns the filters that apply something to each item of a list: map, and select with its kin. */
#include "gateway/template/filter.h"
#include "gateway/template/text.h"

#include <errno.h>
#include <string.h>

#define FILTER(name)                                                                               \
    static int filter_##name(struct render *r, struct value in, const struct args *args,           \
                             struct value *ret)

/* jinja2's filters here take anything false for an empty list, None too. */
static int items_if_any(struct render *r, struct value in, struct list *ret)
{
    *ret = list_empty();
    return value_truth(in) ? value_items(r, in, ret) : 0;
}

/* A part of digits is an index. */
static int path_part(struct render *r, struct value v, const struct str *part, struct value *ret)
{
    int64_t i = 0;
    bool digits = part->bytes > 0 && part->bytes < 10;
    for (uint32_t at = 0; digits && at < part->bytes; at++) {
        digits = part->text[at] >= '0' && part->text[at] <= '9';
        i = i * 10 + part->text[at] - '0';
    }
    return value_item(r, v, digits ? value_int(i) : value_str(part), ret);
}

int attribute_path(struct render *r, struct value v, struct value path, struct value *ret)
{
    struct value dot, parts;
    if (path.kind != VALUE_STR) return value_item(r, v, path, ret);
    int e = render_text(r, ".", &dot);
    if (e == 0) e = text_split(r, path.str, dot.str, -1, false, &parts);
    for (uint32_t i = 0; e == 0 && i < parts.list->n; i++)
        e = path_part(r, v, parts.list->items[i].str, &v);
    if (e == 0) *ret = v;
    return e;
}

static const struct value *named(const struct args *args, const char *name)
{
    for (uint32_t i = 0; i < args->n_named; i++)
        if (str_is(args->names[i], name)) return &args->named[i];
    return NULL;
}

/* What map does to each item: an attribute with a default, or a filter with the other arguments. */
struct mapping {
    const struct value *attribute, *missing;
    const struct filter *filter;
    struct args args;
};

static int mapping_from(struct render *r, const struct args *args, struct mapping *ret)
{
    *ret = (struct mapping){.args = *args};
    if (!args->n_pos) {
        ret->attribute = named(args, "attribute");
        ret->missing = named(args, "default");
        uint32_t n_known = (ret->attribute != NULL) + (ret->missing != NULL);
        return ret->attribute && n_known == args->n_named
                   ? 0
                   : render_fail(r, -EPROTO, "map takes a filter or an attribute");
    }
    if (args->pos[0].kind == VALUE_STR) ret->filter = filter_find(args->pos[0].str);
    ret->args.pos++;
    ret->args.n_pos--;
    return 0;
}

FILTER(map)
{
    struct mapping m;
    struct list items, *out;
    bool looks = value_truth(in); /* as in jinja2, what is wrong with an empty list goes unseen */
    int e = items_if_any(r, in, &items);
    if (e == 0 && looks) e = mapping_from(r, args, &m);
    if (e == 0) e = list_new(r, items.n, &out);
    for (uint32_t i = 0; e == 0 && i < items.n; i++) {
        struct value *to = &out->items[i];
        if (!m.filter && !m.attribute)
            return render_fail(r, -EPROTO, "map does not know this filter");
        if (m.filter) {
            e = m.filter->call(r, items.items[i], &m.args, to);
            continue;
        }
        e = attribute_path(r, items.items[i], *m.attribute, to);
        if (e == 0 && to->kind == VALUE_UNDEFINED && m.missing) *to = *m.missing;
    }
    return e < 0 ? e : value_iter(r, *out, ret);
}

/* Keeps the items for which the test, or else their truth, is as wanted; attribute: that of it. */
static int choose(struct render *r, struct value in, const struct args *args, bool attribute,
                  bool wanted, struct value *ret)
{
    struct list items, *out;
    struct args rest = *args;
    bool looks = value_truth(in);
    int e = items_if_any(r, in, &items);
    if (e == 0) e = list_new(r, items.n, &out);
    if (e < 0) return e;
    out->n = 0;
    if (looks && rest.n_pos < attribute)
        return render_fail(r, -EPROTO, "the attribute to choose by is missing");
    uint32_t n_taken = looks ? attribute : 0;
    struct value path = n_taken ? args->pos[0] : value_int(0);
    bool has_test = args->n_pos > n_taken;
    const struct test *test = NULL;
    if (looks && has_test && args->pos[n_taken].kind == VALUE_STR)
        test = test_find(args->pos[n_taken].str);
    if (items.n && has_test && !test)
        return render_fail(r, -EPROTO, "there is no test of this name to choose by");
    if (looks && n_taken + has_test) {
        rest.pos += n_taken + has_test;
        rest.n_pos -= n_taken + has_test;
    }
    for (uint32_t i = 0; i < items.n; i++) {
        struct value v = items.items[i];
        bool holds;
        if (attribute) e = attribute_path(r, v, path, &v);
        if (e == 0 && test) e = test->call(r, v, &rest, &holds);
        if (e < 0) return e;
        if (!test) holds = value_truth(v);
        if (holds == wanted) out->items[out->n++] = items.items[i];
    }
    return value_iter(r, *out, ret);
}

FILTER(select) { return choose(r, in, args, false, true, ret); }
FILTER(reject) { return choose(r, in, args, false, false, ret); }
FILTER(selectattr) { return choose(r, in, args, true, true, ret); }
FILTER(rejectattr) { return choose(r, in, args, true, false, ret); }

/* The attribute only, never the item; our values have methods alone, and namespaces members. */
FILTER(attr)
{
    struct value name;
    int e = args_take(r, "attr", args, "name", 1, &name);
    if (e == 0 && name.kind != VALUE_STR) e = render_fail(r, -EPROTO, "attr takes a name");
    if (e < 0) return e;
    *ret = value_undefined(name.str);
    if (in.kind == VALUE_DICT && !method_find(VALUE_DICT, name.str)) return 0;
    return value_attribute(r, in, name.str, ret);
}

const struct filter *filter_of_choice(const struct str *name)
{
    static const struct filter filters[] = {
        {"map",        filter_map       },
        {"select",     filter_select    },
        {"reject",     filter_reject    },
        {"selectattr", filter_selectattr},
        {"rejectattr", filter_rejectattr},
        {"attr",       filter_attr      },
    };
    for (size_t i = 0; i < ARRAY_LEN(filters); i++)
        if (str_is(name, filters[i].name)) return &filters[i];
    return NULL;
}
