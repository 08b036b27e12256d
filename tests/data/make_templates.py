#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Writes jinja_cases.json: what jinja2 3.1.6 makes of many small templates, of broken ones, and of
mutations of a real chat template. The environment is that of tests/templates/environment.py.

    python3 make_templates.py        # writes beside itself
"""
import json
import pathlib
import random
import sys

HERE = pathlib.Path(__file__).parent
sys.path.insert(0, str(HERE.parent / "templates"))
from environment import Refused, render  # noqa: E402
from template_cases import CASES, CONTEXT, STATEMENTS  # noqa: E402

NOW = 1767225600
N_MUTANTS = 20

REPLACEMENTS = [  # what a mutation may put in the place of what
    ("message['role']", ["message.role", "message.role|upper", "message['role']|title",
                         "(message.role ~ '')", "message.get('role', 'x')"]),
    ("message['content']", ["message.content|trim", "message['content'][:7]", "message.content|tojson",
                            "(message.content or 'none')|replace('e', 'E')",
                            "message.content.split('\\n')|join('|')",
                            "message.content|string|length|string"]),
    ("loop.first", ["loop.index == 1", "not loop.index0", "loop.previtem is undefined",
                    "(loop.first or loop.last)"]),
    ("!= 'system'", ["not in ['system', 'developer']", "!= 'user'", "is ne 'system'"]),
    ("{% endfor %}", ["{% else %}nobody{% endfor %}", "{%- endfor -%}",
                      "{% if loop.index > 2 %}{% break %}{% endif %}{% endfor %}"]),
    ("{% for message in messages %}", ["{% for message in messages if message.role != 'tool' %}",
                                       "{%- for message in messages|reverse -%}",
                                       "{% for message in messages[1:] + messages[:1] %}\n",
                                       "{% for message in messages|sort(attribute='role') %}"]),
    ("{% if add_generation_prompt %}", ["{% if add_generation_prompt is true %}",
                                        "{% if not add_generation_prompt %}no{% else %}",
                                        "   {% if add_generation_prompt and messages %}  "]),
    ("+ '\\n'", ["~ '\\n'", "~ '\\t\\x41\\n'", "+ '\\n' * 2"]),
    ("+ '<|im_end|>'", ["~ '<|im_end|>'", "+ eos_token", "~ (eos_token if loop.last else bos_token)"]),
    ("{{'<|im_start|>'", ["{{- '<|im_start|>'", "{# a note #}{{ '<|im_start|>'",
                          "{% set x = loop.index0 %}{{ x ~ '<|im_start|>'"]),
]


def mutate(source, rng):
    source = source.replace("\n", "\\n")  # its literals hold real newlines
    for _ in range(rng.randint(1, 4)):
        old, news = rng.choice(REPLACEMENTS)
        source = source.replace(old, rng.choice(news))
    return source


def outcome(case):
    got = render(case["template"], case["values"] | case.get("trusted", {}), NOW)
    if isinstance(got, str):
        return {"text": got}
    if isinstance(got, Refused):
        return {"refused": str(got)}
    return {"fails": type(got).__name__}


def mutants():
    real = json.loads((HERE / "smollm2" / "templates.json").read_text())
    rng = random.Random(3)
    seen = {real["template"]}
    while len(seen) <= N_MUTANTS:
        seen.add(mutate(real["template"], rng))
    for source in sorted(seen - {real["template"]}):
        for row in real["templates"][::4]:
            yield {"template": source, "trusted": {"bos_token": "<s>", "eos_token": "<|im_end|>"},
                   "values": {"messages": row["messages"],
                              "add_generation_prompt": row["add_generation_prompt"]}}


def main():
    cases = [{"template": "{{ " + c + " }}", "values": CONTEXT} for c in CASES]
    cases += [{"template": s, "values": CONTEXT} for s in STATEMENTS]
    cases += mutants()
    for case in cases:
        case.update(outcome(case))
        if case["values"] is CONTEXT:
            del case["values"]  # written once
    out = {"source": "jinja2 3.1.6, ImmutableSandboxedEnvironment; see make_templates.py",
           "now": NOW, "context": CONTEXT, "cases": cases}
    (HERE / "jinja_cases.json").write_text(
        "{\n" + ",\n".join(f"{json.dumps(k)}: {dump(v)}" for k, v in out.items()) + "\n}\n")


def dump(v):
    if not isinstance(v, list):
        return json.dumps(v, ensure_ascii=False)
    return "[\n" + ",\n".join(json.dumps(x, ensure_ascii=False) for x in v) + "\n]"


if __name__ == "__main__":
    main()
