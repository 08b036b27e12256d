# SPDX-License-Identifier: MIT
"""The environment that transformers renders chat templates in, rebuilt on jinja2 3.1."""
import datetime
import functools
import json

import jinja2
from jinja2 import nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.sandbox import ImmutableSandboxedEnvironment


class Generation(Extension):
    """{% generation %} marks what the assistant wrote; rendering takes no notice."""
    tags = {"generation"}

    def parse(self, parser):
        line = next(parser.stream).lineno
        body = parser.parse_statements(["name:endgeneration"], drop_needle=True)
        return nodes.CallBlock(self.call_method("_body"), [], [], body).set_lineno(line)

    def _body(self, caller):
        return caller()


class Refused(Exception):
    """The template called raise_exception."""


def tojson(x, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
    return json.dumps(x, ensure_ascii=ensure_ascii, indent=indent, separators=separators,
                      sort_keys=sort_keys)


def raise_exception(message):
    raise Refused(message)


def environment(now=0):
    env = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True,
                                        extensions=[Generation, loopcontrols])
    env.filters["tojson"] = tojson
    env.globals["raise_exception"] = raise_exception
    env.globals["strftime_now"] = lambda f: datetime.datetime.fromtimestamp(now).strftime(f)
    return env


@functools.lru_cache
def compiled(source, now):
    return environment(now).from_string(source)


def render(source, variables, now=0):
    """The rendered text, or the exception: Refused when the template itself refuses."""
    try:
        text = compiled(source, now).render(**variables)
        text.encode()
        return text
    except (jinja2.TemplateError, Refused, TypeError, ValueError, OverflowError, RecursionError,
            ZeroDivisionError, LookupError, AttributeError, SyntaxError) as e:
        return e
