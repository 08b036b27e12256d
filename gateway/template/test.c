/* SPDX-License-Identifier: MIT */
/* Owns the tests: what "x is name" means. Called by the evaluator and by the filters that select.
 */
#include "gateway/template/render.h"
#include "gateway/template/unicode.h"

#include <errno.h>
#include <string.h>

static int none_left(struct render *r, const struct args *args)
{
    return args->n_pos || args->n_named ? render_fail(r, -EPROTO, "this test takes no argument")
                                        : 0;
}

static bool has_kind(struct value v, uint32_t kinds) { return (kinds >> v.kind) & 1; }

/* Tests of the type alone: one bit a kind. */
#define KIND_TEST(name, kinds)                                                                     \
    static int test_##name(struct render *r, struct value in, const struct args *args, bool *ret)  \
    {                                                                                              \
        *ret = has_kind(in, kinds);                                                                \
        return none_left(r, args);                                                                 \
    }
enum {
    SEQUENCES = 1u << VALUE_STR | 1u << VALUE_LIST | 1u << VALUE_TUPLE | 1u << VALUE_DICT |
                1u << VALUE_RANGE | 1u << VALUE_UNDEFINED,
    CALLABLES = 1u << VALUE_MACRO | 1u << VALUE_METHOD | 1u << VALUE_FUNCTION | 1u << VALUE_JOINER |
                1u << VALUE_UNDEFINED,
};
KIND_TEST(boolean, 1u << VALUE_BOOL)
KIND_TEST(callable, CALLABLES)
KIND_TEST(defined, ~(1u << VALUE_UNDEFINED))
KIND_TEST(undefined, 1u << VALUE_UNDEFINED)
KIND_TEST(float, 1u << VALUE_FLOAT)
KIND_TEST(integer, 1u << VALUE_INT)
KIND_TEST(mapping, 1u << VALUE_DICT)
KIND_TEST(none, 1u << VALUE_NONE)
KIND_TEST(number, 1u << VALUE_BOOL | 1u << VALUE_INT | 1u << VALUE_FLOAT)
KIND_TEST(sequence, SEQUENCES)
KIND_TEST(string, 1u << VALUE_STR)

static int test_iterable(struct render *r, struct value in, const struct args *args, bool *ret)
{
    *ret = value_iterable(in);
    return none_left(r, args);
}

static int test_true(struct render *r, struct value in, const struct args *args, bool *ret)
{
    *ret = in.kind == VALUE_BOOL && in.boolean;
    return none_left(r, args);
}

static int test_false(struct render *r, struct value in, const struct args *args, bool *ret)
{
    *ret = in.kind == VALUE_BOOL && !in.boolean;
    return none_left(r, args);
}

static int test_escaped(struct render *r, struct value in, const struct args *args, bool *ret)
{
    *ret = in.kind == VALUE_STR && in.str->markup;
    return none_left(r, args);
}

static int test_relation(struct render *r, enum op op, struct value in, const struct args *args,
                         bool *ret)
{
    struct value other;
    int e = args_take(r, "a comparison", args, "b", 1, &other);
    return e < 0 ? e : value_relation(r, op, in, other, ret);
}

#define RELATION_TEST(name, op)                                                                    \
    static int test_##name(struct render *r, struct value in, const struct args *args, bool *ret)  \
    {                                                                                              \
        return test_relation(r, op, in, args, ret);                                                \
    }
RELATION_TEST(eq, OP_EQ)
RELATION_TEST(ne, OP_NE)
RELATION_TEST(lt, OP_LT)
RELATION_TEST(le, OP_LE)
RELATION_TEST(gt, OP_GT)
RELATION_TEST(ge, OP_GE)
RELATION_TEST(in, OP_IN)

static int remainder_of(struct render *r, struct value in, struct value by, bool want_zero,
                        bool *ret)
{
    struct value rest;
    int e = value_arithmetic(r, OP_MOD, in, by, &rest);
    struct value want = value_int(!want_zero);
    return e < 0 ? e : value_equal(r, rest, want, ret);
}

static int test_divisibleby(struct render *r, struct value in, const struct args *args, bool *ret)
{
    struct value by;
    int e = args_take(r, "divisibleby", args, "num", 1, &by);
    return e < 0 ? e : remainder_of(r, in, by, true, ret);
}

static int test_even(struct render *r, struct value in, const struct args *args, bool *ret)
{
    int e = none_left(r, args);
    return e < 0 ? e : remainder_of(r, in, value_int(2), true, ret);
}

static int test_odd(struct render *r, struct value in, const struct args *args, bool *ret)
{
    int e = none_left(r, args);
    return e < 0 ? e : remainder_of(r, in, value_int(2), false, ret);
}

/* Python's islower and isupper: some letter with case, and none of the other one. */
static int all_of_case(struct render *r, struct value in, enum unicode_case wanted, bool *ret)
{
    const struct str *s;
    int e = value_to_str(r, in, &s);
    if (e == 0) e = render_scan(r, s->bytes);
    if (e < 0) return e;
    *ret = false;
    for (uint32_t off = 0; off < s->bytes;) {
        uint32_t cp, to[UNICODE_MAX_FULL];
        off += utf8_get(s->text + off, &cp);
        if (!unicode_is_cased(cp)) continue;
        bool same = unicode_to(wanted, cp, to) == 1 && to[0] == cp;
        *ret = same;
        if (!same) break;
    }
    return 0;
}

static int test_lower(struct render *r, struct value in, const struct args *args, bool *ret)
{
    int e = none_left(r, args);
    return e < 0 ? e : all_of_case(r, in, UNICODE_LOWER, ret);
}

static int test_upper(struct render *r, struct value in, const struct args *args, bool *ret)
{
    int e = none_left(r, args);
    return e < 0 ? e : all_of_case(r, in, UNICODE_UPPER, ret);
}

/* Python's "is": the same object. Of values that are equal, we call small ones the same. */
static int test_sameas(struct render *r, struct value in, const struct args *args, bool *ret)
{
    struct value other;
    int e = args_take(r, "sameas", args, "other", 1, &other);
    if (e < 0) return e;
    bool by_content = in.kind == VALUE_NONE || in.kind == VALUE_BOOL || in.kind == VALUE_INT;
    *ret = false;
    if (in.kind != other.kind) return 0;
    if (by_content) return value_equal(r, in, other, ret);
    *ret = in.dict == other.dict;
    return 0;
}

static int test_filter(struct render *r, struct value in, const struct args *args, bool *ret)
{
    *ret = in.kind == VALUE_STR && filter_find(in.str);
    return none_left(r, args);
}

static int test_test(struct render *r, struct value in, const struct args *args, bool *ret)
{
    *ret = in.kind == VALUE_STR && test_find(in.str);
    return none_left(r, args);
}

const struct test *test_find(const struct str *name)
{
    static const struct test tests[] = {
        {"defined",     test_defined    },
        {"undefined",   test_undefined  },
        {"none",        test_none       },
        {"string",      test_string     },
        {"mapping",     test_mapping    },
        {"iterable",    test_iterable   },
        {"sequence",    test_sequence   },
        {"boolean",     test_boolean    },
        {"true",        test_true       },
        {"false",       test_false      },
        {"number",      test_number     },
        {"integer",     test_integer    },
        {"float",       test_float      },
        {"callable",    test_callable   },
        {"escaped",     test_escaped    },
        {"lower",       test_lower      },
        {"upper",       test_upper      },
        {"even",        test_even       },
        {"odd",         test_odd        },
        {"divisibleby", test_divisibleby},
        {"sameas",      test_sameas     },
        {"filter",      test_filter     },
        {"test",        test_test       },
        {"in",          test_in         },
        {"==",          test_eq         },
        {"eq",          test_eq         },
        {"equalto",     test_eq         },
        {"!=",          test_ne         },
        {"ne",          test_ne         },
        {"<",           test_lt         },
        {"lt",          test_lt         },
        {"lessthan",    test_lt         },
        {"<=",          test_le         },
        {"le",          test_le         },
        {">",           test_gt         },
        {"gt",          test_gt         },
        {"greaterthan", test_gt         },
        {">=",          test_ge         },
        {"ge",          test_ge         },
    };
    for (size_t i = 0; i < ARRAY_LEN(tests); i++)
        if (str_is(name, tests[i].name)) return &tests[i];
    return NULL;
}
