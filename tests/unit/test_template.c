/* SPDX-License-Identifier: MIT */
/*
 * The chat-template interpreter. Expected texts come from Python: tests/data/jinja_cases.json and
 * tests/data/smollm2/templates.json were rendered by jinja2 3.1.6 (make_templates.py and the README
 * there). Expected origins (which bytes come from values) are written by hand, after the rule that
 * text of the context is a value and text of the template is not; limits are this program's own.
 */
#include <check.h>
#include <errno.h>
#include <pthread.h>
#include <string.h>

#include "common/gguf.h"
#include "gateway/template/template.h"
#include "tests/suite.h"

static json_t *load(const char *name)
{
    char path[4096];
    json_error_t error;
    (void)snprintf(path, sizeof(path), "%s/%s", getenv("TEST_DATA"), name);
    json_t *j = json_load_file(path, JSON_ALLOW_NUL, &error);
    ck_assert_msg(j != NULL, "%s: %s", path, error.text);
    return j;
}

static int render(const char *source, size_t bytes, const struct template_input *in,
                  struct why *why, struct rendered *ret)
{
    struct chat_template *t = NULL;
    int r = chat_template_new(source, bytes, why, &t);
    if (r == 0) r = chat_template_render(t, in, why, ret);
    chat_template_free(t);
    return r;
}

static void check_case(const json_t *c, const json_t *context, int64_t now_s)
{
    const char *source = json_string_value(json_object_get(c, "template"));
    const json_t *text = json_object_get(c, "text"), *refused = json_object_get(c, "refused");
    const json_t *values = json_object_get(c, "values");
    struct template_input in = {.values = values ? values : context,
                                .trusted = json_object_get(c, "trusted"),
                                .now_s = now_s};
    struct why why = {""};
    struct rendered out = {0};
    int r = render(source, json_string_length(json_object_get(c, "template")), &in, &why, &out);
    if (text) {
        ck_assert_msg(r == 0, "%s: %s", source, why.text);
        bool equal = out.bytes == json_string_length(text) &&
                     memcmp(out.text, json_string_value(text), out.bytes) == 0;
        ck_assert_msg(equal, "%s gives '%s', not '%s'", source, out.text, json_string_value(text));
    } else if (refused) {
        ck_assert_int_eq(r, -EBADMSG);
        ck_assert_str_eq(why.text, json_string_value(refused));
    } else {
        ck_assert_msg(r == -EPROTO || r == -E2BIG, "%s gives %d and '%s', where Python has %s",
                      source, r, out.text, json_string_value(json_object_get(c, "fails")));
        ck_assert_msg(why.text[0] != '\0', "%s: no reason", source);
    }
    rendered_fini(&out);
}

START_TEST(small_templates_are_those_of_jinja2)
{
    json_t *all = load("jinja_cases.json"), *c;
    size_t i;
    setenv("TZ", "UTC", 1);
    json_array_foreach(json_object_get(all, "cases"), i, c) check_case(
        c, json_object_get(all, "context"), json_integer_value(json_object_get(all, "now")));
    ck_assert_uint_gt(i, 900);
    json_decref(all);
}
END_TEST

/* What the values of this row are in order: each message's role and content. */
static void values_of(const json_t *messages, char *ret, size_t bytes)
{
    size_t i, n = 0;
    const json_t *m;
    ret[0] = '\0';
    json_array_foreach(messages, i, m)
    {
        const json_t *role = json_object_get(m, "role"), *content = json_object_get(m, "content");
        n += (size_t)snprintf(ret + n, bytes - n, "%s%s", json_string_value(role),
                              json_string_value(content));
        ck_assert_uint_lt(n, bytes);
    }
}

START_TEST(real_messages_give_the_text_and_the_values)
{
    json_t *all = load("smollm2/templates.json"), *row;
    const json_t *source = json_object_get(all, "template");
    size_t i;
    json_array_foreach(json_object_get(all, "templates"), i, row)
    {
        static char want[1 << 16], got[1 << 16];
        struct template_input in = {.values = row};
        struct why why = {""};
        struct rendered out;
        int r = render(json_string_value(source), json_string_length(source), &in, &why, &out);
        ck_assert_msg(r == 0, "%s", why.text);
        ck_assert_str_eq(out.text, json_string_value(json_object_get(row, "rendered")));
        values_of(json_object_get(row, "messages"), want, sizeof(want));
        size_t off = 0, n = 0;
        for (size_t s = 0; s < out.n_spans; s++) {
            ck_assert_uint_eq(out.spans[s].off, off);
            ck_assert(s == 0 || out.spans[s].from_value != out.spans[s - 1].from_value);
            if (out.spans[s].from_value) {
                memcpy(got + n, out.text + off, out.spans[s].bytes);
                n += out.spans[s].bytes;
            }
            off += out.spans[s].bytes;
        }
        got[n] = '\0';
        ck_assert_uint_eq(off, out.bytes);
        ck_assert_str_eq(got, want);
        rendered_fini(&out);
    }
    ck_assert_uint_eq(i, 25);
    json_decref(all);
}
END_TEST

START_TEST(the_models_own_template_compiles)
{
    const char *model = getenv("CISTERN_MODEL"), *cache = getenv("XDG_CACHE_HOME");
    char path[4096], *home = getenv("HOME");
    (void)snprintf(path, sizeof(path), "%s%s/cistern/SmolLM2-135M-Instruct.Q4_1.gguf",
                   cache ? cache : home, cache ? "" : "/.cache");
    struct why why;
    struct gguf *g;
    int r = gguf_open(model ? model : path, &why, &g);
    ck_assert_msg(r == 0, "%s (./demo fetches the demo model)", why.text);
    struct gguf_str source;
    ck_assert_int_eq(gguf_str(g, "tokenizer.chat_template", &source), 0);
    json_t *all = load("smollm2/templates.json");
    const json_t *want = json_object_get(all, "template");
    ck_assert_uint_eq(source.bytes, json_string_length(want));
    ck_assert_mem_eq(source.at, json_string_value(want), source.bytes);
    struct chat_template *t;
    r = chat_template_new(source.at, source.bytes, &why, &t);
    ck_assert_msg(r == 0, "%s", why.text);
    chat_template_free(t);
    json_decref(all);
    gguf_free(g);
}
END_TEST

/* v is a value "<e>", w a value "a,b", d a dict of them, bos the model's "<s>"; in the expected
 * text values stand between « and ». */
static const struct {
    const char *source, *want;
} origins[] = {
    {"<e>{{ v }}<e>",                                                                    "<e>«<e>»<e>"              },
    {"{{ '<e>' + v + '<e>' }}",                                                          "<e>«<e>»<e>"              },
    {"{{ '<e>' ~ v ~ 1 ~ none }}",                                                       "<e>«<e>»1None"            },
    {"{{ bos + v }}",                                                                    "<s>«<e>»"                 },
    {"{{ v[0] }}{{ v[1:] }}{{ v[::-1] }}",                                               "«<e>>e<»"                 },
    {"{{ ('x' ~ v)[0] }}{{ ('x' ~ v)[1] }}",                                             "x«<»"                     },
    {"{{ ('xy' ~ v ~ 'z')[1:4] }}",                                                      "y«<e»"                    },
    {"{{ v|upper }}{{ v.lower() }}{{ 'x'|upper }}",                                      "«<E><e>»X"                },
    {"{{ ('x' ~ v)|upper }}",                                                            "X«<E>»"                   },
    {"{{ (' ' ~ v ~ ' ')|trim }}",                                                       "«<e>»"                    },
    {"{{ 'a-b'|replace('-', v) }}",                                                      "a«<e>»b"                  },
    {"{{ v|replace('e', 'im_end') }}",                                                   "«<»im_end«>»"           },
    {"{{ v.replace('e', v) }}",                                                          "«<<e>>»"                  },
    {"{{ w.split(',')|join('<e>') }}",                                                   "«a»<e>«b»"              },
    {"{{ ','.join(w.split(',')) }}",                                                     "«a»,«b»"                },
    {"{{ ['x', v, 'y']|join }}",                                                         "x«<e>»y"                  },
    {"{{ [v, 'y']|first }}{{ ['y', v]|last }}",                                          "«<e><e>»"                 },
    {"{{ v|list|join }}",                                                                "«<e>»"                    },
    {"{% for c in v %}{{ c }}{% endfor %}",                                              "«<e>»"                    },
    {"{% for k, x in d.items() %}{{ k }}={{ x }};{% endfor %}",                          "«k»=«<e>»;"             },
    {"{{ d.k }}{{ d['k'] }}{{ d.get('k') }}{{ d|dictsort }}",                            "«<e><e><e>[('k', '<e>')]»"},
    {"{{ {'<e>': '<f>'}[v] }}",                                                          "<f>"                        },
    {"{{ v|tojson }}{{ 'x'|tojson }}",                                                   "«\"<e>\"\"»x«\"»"       },
    {"{{ d|tojson }}",                                                                   "«{\"k\": \"<e>\"}»"       },
    {"{{ d }}",                                                                          "«{'k': '<e>'}»"           },
    {"{{ {'<f>': v} }}",                                                                 "«{'»<f>«': '<e>'}»"     },
    {"{{ '%s|%s' % ('x', v) }}",                                                         "x|«<e>»"                  },
    {"{{ '<e>%s'|format(v) }}",                                                          "<e>«<e>»"                 },
    {"{{ '%c%c' % (60, 'x') }}",                                                         "«<»x"                     },
    {"{{ v % () }}{{ '{}<e>'.format(v) }}",                                              "«<e><e>»<e>"              },
    {"{{ '%5s|%-5s' % (v, v) }}",                                                        "  «<e>»|«<e>»  "        },
    {"{{ v|indent(2, true) }}",                                                          "  «<e>»"                  },
    {"{{ v * 2 }}{{ 'x' * 2 }}",                                                         "«<e><e>»xx"               },
    {"{{ v|e }}{{ '<'|e }}",                                                             "«&lt;e&gt;»&lt;"          },
    {"{{ v|safe + '<' }}",                                                               "«<e>»&lt;"                },
    {"{{ v|center(7) }}",                                                                "  «<e>»  "                },
    {"{{ v|title }}{{ v|capitalize }}",                                                  "«<E><e>»"                 },
    {"{{ v|reverse }}",                                                                  "«>e<»"                    },
    {"{{ v|string }}{{ v|default('x') }}{{ z|default('<e>') }}",                         "«<e><e>»<e>"              },
    {"{{ v if true else 'x' }}{{ v or 'x' }}{{ '' or '<e>' }}",                          "«<e><e>»<e>"              },
    {"{% set x = v %}{{ x }}{% set x %}<e>{{ v }}{% endset %}{{ x }}",                   "«<e>»<e>«<e>»"          },
    {"{% macro m(a, b='<e>') %}[{{ a }}{{ b }}]{% endmacro %}{{ m(v) }}",                "[«<e>»<e>]"               },
    {"{% macro m() %}{{ caller() }}{% endmacro %}{% call m() %}<e>{{ v }}{% endcall %}",
     "<e>«<e>»"                                                                                                     },
    {"{% filter upper %}<e>{{ v }}{% endfilter %}",                                      "<E>«<E>»"                 },
    {"{% set n = namespace(x=v) %}{{ n.x }}{% set n.x = '<e>' %}{{ n.x }}",              "«<e>»<e>"                 },
    {"{{ {'a': v, 'b': 'x'}|map(attribute='a')|list }}",                                 "«[Undefined, Undefined]»" },
    {"{{ [v, 'x']|map('upper')|join }}",                                                 "«<E>»X"                   },
    {"{{ [v, 'x']|sort|join }}{{ [v, '<e>']|unique|join }}",                             "«<e>»x«<e>»"            },
    {"{{ ['<e>', v]|unique|join }}",                                                     "<e>"                        },
    {"{{ v.partition('e')|join('|') }}",                                                 "«<»|«e»|«>»"          },
    {"{{ v.strip('<>') }}{{ v.removeprefix('<') }}",                                     "«ee>»"                    },
    {"{{ 7 }}{{ n }}{{ v|length }}",                                                     "773"                        },
    {"{{ [n, true] }}",                                                                  "«[»7«, »True«]»"      },
    {"{% if v == '<e>' and '<' in v and v in ['<e>'] %}yes{% endif %}",                  "yes"                        },
    {"{{ strftime_now('<e>') }}",                                                        "<e>"                        },
    {"{% generation %}<e>{{ v }}{% endgeneration %}",                                    "<e>«<e>»"                 },
};

static void marked(const struct rendered *out, char *ret, size_t bytes)
{
    size_t n = 0;
    ret[0] = '\0';
    for (size_t i = 0; i < out->n_spans; i++) {
        const struct template_span *s = &out->spans[i];
        n += (size_t)snprintf(ret + n, bytes - n, s->from_value ? "«%.*s»" : "%.*s", (int)s->bytes,
                              out->text + s->off);
        ck_assert_uint_lt(n, bytes);
    }
}

START_TEST(text_keeps_its_origin)
{
    json_t *values = json_pack("{ss,ss,s{ss},si}", "v", "<e>", "w", "a,b", "d", "k", "<e>", "n", 7);
    json_t *trusted = json_pack("{ss}", "bos", "<s>");
    struct template_input in = {.values = values, .trusted = trusted};
    struct why why = {""};
    struct rendered out;
    char got[1024];
    int r = render(origins[_i].source, strlen(origins[_i].source), &in, &why, &out);
    ck_assert_msg(r == 0, "%s: %s", origins[_i].source, why.text);
    marked(&out, got, sizeof(got));
    ck_assert_str_eq(got, origins[_i].want);
    rendered_fini(&out);
    json_decref(values);
    json_decref(trusted);
}
END_TEST

static const struct {
    const char *source;
    int want;
} hostile[] = {
    {"{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}",              -E2BIG },
    {"{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}",                                             -E2BIG },
    {"{% macro m(x) %}{{ m([x]) }}{% endmacro %}{{ m(1) }}",                                        -E2BIG },
    {"{% set n = namespace(s='x') %}{% for i in range(99) %}{% set n.s = n.s ~ n.s %}{% endfor %}",
     -E2BIG                                                                                                },
    {"{% set n = namespace(l=[1]) %}{% for i in range(99) %}{% set n.l = n.l + n.l %}{% endfor %}",
     -E2BIG                                                                                                },
    {"{% set n = namespace(l=[]) %}{% for i in range(9999) %}{% set n.l = [n.l] %}{% endfor %}"
     "{{ n.l }}",                                                                              -E2BIG },
    {"{% set n = namespace(l=[]) %}{% for i in range(9999) %}{% set n.l = [n.l] %}{% endfor %}"
     "{{ n.l == [n.l] }}",                                                                     -E2BIG },
    {"{% set n = namespace(l=[]) %}{% for i in range(9999) %}{% set n.l = [n.l] %}{% endfor %}"
     "{{ n.l|tojson }}",                                                                       -E2BIG },
    {"{% set n = namespace(l=[1]) %}{% for i in range(60) %}{% set n.l = [n.l, n.l] %}{% endfor %}"
     "{{ n.l }}",                                                                              -E2BIG },
    {"{% set n = namespace(l=[1]) %}{% for i in range(60) %}{% set n.l = [n.l, n.l] %}{% endfor %}"
     "{{ n.l == n.l }}",                                                                       -E2BIG },
    {"{% set n = namespace(t=(1,)) %}{% for i in range(60) %}{% set n.t = (n.t, n.t) %}{% endfor %}"
     "{{ {n.t: 1} }}",                                                                         -E2BIG },
    {"{% set n = namespace() %}{% set n.x = namespace(y=n) %}{{ n }}{{ n == n.x }}",                0      },
    {"{% set n = namespace(l=[]) %}{% set n.l = [n] %}{{ n.l }}",                                   0      },
    {"{{ 'x' * 999999999999 }}",                                                                    -E2BIG },
    {"{{ 'xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx' * 9999999 }}",                                          -E2BIG },
    {"{{ [1] * 9999999999999999 }}",                                                                -E2BIG },
    {"{{ range(100001) }}",                                                                         -E2BIG },
    {"{{ range(-9223372036854775807, 9223372036854775807) }}",                                      -E2BIG },
    {"{{ range(0, 9223372036854775807, 9223372036854775807) }}",                                    0      },
    {"{{ 9223372036854775807 + 1 }}",                                                               -E2BIG },
    {"{{ (-9223372036854775807 - 1) // -1 }}",                                                      -E2BIG },
    {"{{ (-9223372036854775807 - 1) % -1 }}",                                                       0      },
    {"{{ -(-9223372036854775807 - 1) }}",                                                           -E2BIG },
    {"{{ (-9223372036854775807 - 1)|abs }}",                                                        -E2BIG },
    {"{{ '99999999999999999999'|int }}{{ '1e30'|int }}",                                            -E2BIG },
    {"{{ 1e30|int }}",                                                                              -E2BIG },
    {"{{ 9 ** 99999999 }}",                                                                         -E2BIG },
    {"{{ 2 ** -9223372036854775807 }}",                                                             0      },
    {"{{ 1e300 ** 2 }}",                                                                            -EPROTO},
    {"{{ 99999999999999999999 }}",                                                                  -EPROTO},
    {"{{ '%999999999d' % 1 }}",                                                                     -E2BIG },
    {"{{ '%*d' % (999999999, 1) }}",                                                                -E2BIG },
    {"{{ '%.999999999f' % 1.5 }}",                                                                  -E2BIG },
    {"{{ '%.1000f' % 1e308 }}",                                                                     0      },
    {"{{ '{:1000.1000f}'.format(1e308) }}",                                                         0      },
    {"{{ '{:1000,}'.format(1) }}",                                                                  0      },
    {"{{ '{:999999999}'.format(1) }}",                                                              -E2BIG },
    {"{{ '{:\xc3\xa4<5}{:\xf0\x9f\x99\x82>3}'.format('a', 'b') }}",                                 0      },
    {"{{ 'x'.center(999999999999) }}",                                                              -E2BIG },
    {"{{ 'x'.zfill(-9223372036854775807) }}",                                                       0      },
    {"{{ 'x'|indent(9223372036854775807) }}",                                                       -E2BIG },
    {"{{ {}|tojson(indent=99999999) }}",                                                            -E2BIG },
    {"{{ 'abc'[::-9223372036854775807] }}{{ 'abc'[::9223372036854775807] }}",                       0      },
    {"{{ 'abc'[-9223372036854775807:9223372036854775807] }}",                                       0      },
    {"{{ 'abc'.find('c', -9223372036854775807, 9223372036854775807) }}",                            0      },
    {"{{ [1, 2]|batch(9223372036854775807)|list }}",                                                -E2BIG },
    {"{{ 1.5|round(9999) }}",                                                                       -E2BIG },
    {"{{ 1e308|round(300) }}",                                                                      0      },
    {"{{ strftime_now('%c' * 5000) }}",                                                             -E2BIG },
    {"{{ l|select|list }}{{ l|map('x')|list }}{{ z|slice(2)|list }}{{ z|items|list }}",             0      },
    {"{% set c = cycler() %}",                                                                      -EPROTO},
    {"{{ loop }}",                                                                                  0      },
    {"{% for x in 'ab' %}{{ loop }}{{ loop|list }}{% endfor %}",                                    -EPROTO},
    {"{% for x in 'ab' recursive %}{{ loop(x) }}{% endfor %}",                                      -EPROTO},
    {"{% include 'x' %}",                                                                           -EPROTO},
    {"{% extends 'x' %}",                                                                           -EPROTO},
    {"{{ \xff }}",                                                                                  -EPROTO},
    {"\xff",                                                                                        -EPROTO},
    {"{{ '\xed\xa0\x80' }}",                                                                        -EPROTO},
};

START_TEST(hostile_templates_get_a_sentence)
{
    struct template_input in = {0};
    struct why why = {""};
    struct rendered out = {0};
    int r = render(hostile[_i].source, strlen(hostile[_i].source), &in, &why, &out);
    ck_assert_msg(r == hostile[_i].want, "%s: %d '%s'", hostile[_i].source, r, why.text);
    ck_assert_msg(r == 0 || why.text[0], "%s: no reason", hostile[_i].source);
    rendered_fini(&out);
}
END_TEST

/* Each construct in itself, far deeper than allowed. */
static const struct {
    const char *open, *middle, *close;
} deep[] = {
    {"(",                    "1", ")"                  },
    {"[",                    "",  "]"                  },
    {"{1:",                  "1", "}"                  },
    {"-",                    "1", ""                   },
    {"not ",                 "1", ""                   },
    {"1 if ",                "1", " else 1"            },
    {"1 if 1 else ",         "1", ""                   },
    {"f(",                   "",  ")"                  },
    {"x[",                   "1", "]"                  },
    {"x|f(",                 "",  ")"                  },
    {"1 ** ",                "1", ""                   },
    {"",                     "x", ".a"                 },
    {"",                     "x", "|trim"              },
    {"",                     "x", "()"                 },
    {"",                     "1", " if 1"              },
    {"}}{% if 1 %}{{",       "1", "}}{% endif %}{{"    },
    {"}}{% for x in y %}{{", "1", "}}{% endfor %}{{"   },
    {"}}{% macro m() %}{{",  "1", "}}{% endmacro %}{{" },
    {"}}{% set x %}{{",      "1", "}}{% endset %}{{"   },
    {"}}{% filter f %}{{",   "1", "}}{% endfilter %}{{"},
};

START_TEST(deep_templates_are_refused)
{
    enum { TIMES = 20000 };
    char *source = xcalloc(TIMES, 64), *at = source;
    struct template_input in = {0};
    struct why why = {""};
    struct rendered out = {0};
    at = stpcpy(at, "{{");
    for (int i = 0; i < TIMES; i++)
        at = stpcpy(at, deep[_i].open);
    at = stpcpy(at, deep[_i].middle);
    for (int i = 0; i < TIMES; i++)
        at = stpcpy(at, deep[_i].close);
    at = stpcpy(at, "}}");
    int r = render(source, (size_t)(at - source), &in, &why, &out);
    ck_assert_msg(r == -E2BIG || r == -EPROTO || r == 0, "%d", r);
    ck_assert_msg(r < 0 || strcmp(deep[_i].open, "1 ** ") == 0, "%s is not refused", deep[_i].open);
    rendered_fini(&out);
    free(source);
}
END_TEST

START_TEST(deep_json_is_refused)
{
    enum { DEPTH = 2000 };
    char text[DEPTH * 2 + 1];
    memset(text, '[', DEPTH);
    memset(text + DEPTH, ']', DEPTH);
    text[DEPTH * 2] = '\0';
    json_t *messages = json_loads(text, 0, NULL);
    ck_assert_ptr_nonnull(messages);
    json_t *values = json_pack("{so}", "messages", messages);
    struct template_input in = {.values = values};
    struct why why = {""};
    struct rendered out;
    ck_assert_int_eq(render("x", 1, &in, &why, &out), -E2BIG);
    ck_assert_ptr_nonnull(strstr(why.text, "deeper"));
    json_decref(values);
}
END_TEST

static const struct {
    const char *source;
    struct template_limits limits;
    const char *says;
} limits[] = {
    {"{% for i in range(1000) %}{% endfor %}",   {.steps = 500},          "steps" },
    {"{% for i in range(1000) %}xx{% endfor %}", {.output_bytes = 1999},  "1999"  },
    {"{{ range(1000)|list }}",                   {.memory_bytes = 65536}, "memory"},
    {"{{ [[[[[[[[[[1]]]]]]]]]] }}",              {.depth = 8},            "deeper"},
};

START_TEST(each_limit_says_which_it_is)
{
    struct template_input in = {.limits = limits[_i].limits};
    struct why why = {""};
    struct rendered out = {0};
    int r = render(limits[_i].source, strlen(limits[_i].source), &in, &why, &out);
    ck_assert_int_eq(r, -E2BIG);
    ck_assert_msg(strstr(why.text, limits[_i].says) != NULL, "%s", why.text);
    in.limits = (struct template_limits){0};
    ck_assert_int_eq(render(limits[_i].source, strlen(limits[_i].source), &in, &why, &out), 0);
    rendered_fini(&out);
}
END_TEST

START_TEST(an_error_names_the_line)
{
    const char *const sources[] = {"a\n\n{{ x.y }}", "{% if 1 %}\n\n{{ x y }}{% endif %}",
                                   "a\n{#\n#}{{ 'b\n' + 1 }}"};
    for (size_t i = 0; i < ARRAY_LEN(sources); i++) {
        struct template_input in = {0};
        struct why why = {""};
        struct rendered out;
        ck_assert_int_eq(render(sources[i], strlen(sources[i]), &in, &why, &out), -EPROTO);
        ck_assert_msg(strncmp(why.text, "line 3", 6) == 0, "%s", why.text);
    }
}
END_TEST

START_TEST(a_long_refusal_is_cut_between_characters)
{
    char source[2048] = "{{ raise_exception('x";
    for (int i = 0; i < 600; i++)
        strcat(source, "é");
    strcat(source, "') }}");
    struct template_input in = {0};
    struct why why = {""};
    struct rendered out;
    ck_assert_int_eq(render(source, strlen(source), &in, &why, &out), -EBADMSG);
    ck_assert_uint_eq(strlen(why.text), 511); /* x and 255 times two bytes */
}
END_TEST

struct renderer {
    const struct chat_template *t;
    const json_t *values;
    const char *want;
    bool equal;
};

static void *render_often(void *arg)
{
    struct renderer *p = arg;
    p->equal = true;
    for (int i = 0; i < 200; i++) {
        struct template_input in = {.values = p->values};
        struct why why;
        struct rendered out = {0};
        int r = chat_template_render(p->t, &in, &why, &out);
        p->equal = p->equal && r == 0 && strcmp(out.text, p->want) == 0;
        rendered_fini(&out);
    }
    return NULL;
}

START_TEST(one_template_serves_many_threads)
{
    static const char source[] = "{% macro m(x='d') %}{{ x|upper }}{% endmacro %}"
                                 "{% for x in l %}{{ m(x) }}{{ m() }}{% endfor %}";
    struct why why;
    struct chat_template *t;
    ck_assert_int_eq(chat_template_new(source, sizeof(source) - 1, &why, &t), 0);
    json_t *values = json_pack("{s[sss]}", "l", "a", "b", "c");
    struct renderer p[4];
    pthread_t threads[ARRAY_LEN(p)];
    for (size_t i = 0; i < ARRAY_LEN(p); i++) {
        p[i] = (struct renderer){.t = t, .values = values, .want = "ADBDCD"};
        ck_assert_int_eq(pthread_create(&threads[i], NULL, render_often, &p[i]), 0);
    }
    for (size_t i = 0; i < ARRAY_LEN(p); i++) {
        ck_assert_int_eq(pthread_join(threads[i], NULL), 0);
        ck_assert(p[i].equal);
    }
    json_decref(values);
    chat_template_free(t);
}
END_TEST

int main(void)
{
    TCase *tc = tcase_create("template");
    tcase_set_timeout(tc, 60);
    tcase_add_test(tc, small_templates_are_those_of_jinja2);
    tcase_add_test(tc, real_messages_give_the_text_and_the_values);
    tcase_add_test(tc, the_models_own_template_compiles);
    tcase_add_loop_test(tc, text_keeps_its_origin, 0, ARRAY_LEN(origins));
    tcase_add_loop_test(tc, hostile_templates_get_a_sentence, 0, ARRAY_LEN(hostile));
    tcase_add_loop_test(tc, deep_templates_are_refused, 0, ARRAY_LEN(deep));
    tcase_add_test(tc, deep_json_is_refused);
    tcase_add_loop_test(tc, each_limit_says_which_it_is, 0, ARRAY_LEN(limits));
    tcase_add_test(tc, an_error_names_the_line);
    tcase_add_test(tc, a_long_refusal_is_cut_between_characters);
    tcase_add_test(tc, one_template_serves_many_threads);
    return suite_run("template", tc);
}
