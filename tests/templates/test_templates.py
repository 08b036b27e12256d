# SPDX-License-Identifier: MIT
"""Real chat templates: llama.cpp's models/templates and those in its vocabularies, which
tests/data/fetch_vocabs fetches. The expected texts are jinja2's, in the environment that transformers
renders templates in (environment.py): equal byte for byte on every list of messages of messages.py,
and refused where jinja2 refuses. Then the gateway's own way with tools, for each template.
"""
import json
import os
import pathlib
import subprocess
import sys
import time

import pytest

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parents[1]
sys.path[:0] = [str(HERE), str(ROOT / "tests/data/smollm2")]

from environment import Refused, render  # noqa: E402
from make_reference import Gguf  # noqa: E402
from messages import CONTEXTS, assistant, call, system, tool, user  # noqa: E402

BUILD = pathlib.Path(os.environ.get("CISTERN_BUILD", ROOT / "build"))
CACHE = pathlib.Path(os.environ.get("XDG_CACHE_HOME", pathlib.Path.home() / ".cache")) / "cistern"
VOCABS = pathlib.Path(os.environ.get("CISTERN_VOCABS", CACHE / "vocabs"))
RENDER = BUILD / "tests/templates/template_render"
NOW = 1767225600
N_TEMPLATES = 71  # of that llama.cpp, so that none is missed


def in_vocabularies():
    for path in sorted(VOCABS.glob("*.gguf")):
        for key, source in Gguf(path).kv.items():
            if key.startswith("tokenizer.chat_template") and isinstance(source, str):
                yield f"{path.stem}{key.removeprefix('tokenizer.chat_template')}", source


def all_templates():
    found = {p.stem: p.read_text() for p in sorted((VOCABS / "templates").glob("*.jinja"))}
    return found | dict(in_vocabularies())


TEMPLATES = all_templates()
each_template = pytest.mark.parametrize("name", TEMPLATES)


def ours(asks, *arguments):
    lines = "".join(json.dumps(a) + "\n" for a in asks)
    out = subprocess.run(
        [RENDER, *arguments], input=lines, capture_output=True, text=True, check=True
    )
    return [json.loads(line) for line in out.stdout.split("\n") if line]


def test_none_is_missing():
    """71 files and 7 in vocabularies: command-r (3), gemma-4, phi-3, qwen2 and qwen35."""
    assert len(list((VOCABS / "templates").glob("*.jinja"))) == N_TEMPLATES
    assert len(TEMPLATES) == N_TEMPLATES + 7


# ---- the interpreter


def agree(theirs, mine):
    if isinstance(theirs, str):
        return mine.get("text") == theirs
    if "error" not in mine:
        return False
    return not isinstance(theirs, Refused) or mine["why"] == str(theirs)[:511]


@each_template
def test_equals_jinja2(name):
    source = TEMPLATES[name]
    asks = [
        {"template": source, "now": NOW, "values": c["values"], "trusted": c["trusted"]}
        for c in CONTEXTS
    ]
    for context, mine in zip(CONTEXTS, ours(asks), strict=True):
        theirs = render(source, context["values"] | context["trusted"], NOW)
        if isinstance(theirs, str) and "text" in mine:
            assert mine["text"] == theirs, context["name"]
        assert agree(theirs, mine), f"{context['name']}: jinja2 {theirs!r}, ours {mine}"


# ---- the gateway's way


WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Weather of a place.",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string", "description": "Its name"}},
            "required": ["city"],
        },
    },
}
CALL = assistant("", tool_calls=[call("get_weather", {"city": "Rome"}, "call00001")])
RESULT = tool("sunny", "call00001", name="get_weather")
ANSWERED = [user("Weather?"), CALL, RESULT, assistant("Fine."), user("And now?")]
TWO_CALLS = [
    user("Both?"),
    assistant("", tool_calls=[call("get_weather", {"city": "Rome"}, "call00001"),
                              call("get_weather", {"city": "Bonn"}, "call00002")]),
    RESULT,
    tool("foggy", "call00002", name="get_weather"),
]
CHATS = {
    "system": ([system("Brevity."), user("Hello")], None, ["Brevity.", "Hello"]),
    "tools": ([user("Hello")], [WEATHER], ["get_weather", "Its name", "Hello"]),
    "tools and system": ([system("Brevity."), user("Hello")], [WEATHER],
                         ["Brevity.", "get_weather", "Its name", "Hello"]),
    "a call": (ANSWERED, [WEATHER], ["get_weather", "Rome", "sunny", "And now?"]),
    "two calls": (TWO_CALLS, [WEATHER], ["get_weather", "Rome", "Bonn", "sunny", "foggy"]),
    "a call without tools": (ANSWERED, None, ["And now?"]),
}

# jinja2 refuses these, too: the templates' authors render them otherwise.
APPEND = "appends to a list, which jinja2's immutable sandbox forbids"
SINGLE = "allows one call a turn"
FUNCTIONS = "wants the values functions and datetime, which clients give in chat_template_kwargs"
REFUSED = {
    "Kimi-K2-Instruct": (["a call", "two calls", "a call without tools"], APPEND),
    "Kimi-K2-Thinking": (["a call", "two calls", "a call without tools"], APPEND),
    "fireworks-ai-llama-3-firefunction-v2": (list(CHATS), FUNCTIONS),
    "meta-llama-Llama-3.1-8B-Instruct": (["two calls"], SINGLE),
    "meta-llama-Llama-3.2-3B-Instruct": (["two calls"], SINGLE),
    "meta-llama-Llama-3.3-70B-Instruct": (["two calls"], SINGLE),
}


# These leave out a part of what they are given, and jinja2 with them: all but a turn's first call, or
# each call.
LEFT_OUT = {
    "GigaChat3-10B-A1.8B": ["Bonn"],
    "GigaChat3.1-10B-A1.8B": ["Bonn"],
    "openai-gpt-oss-120b": ["Bonn"],
    "LFM2-8B-A1B": ["Rome", "Bonn"],
    "LFM2.5-Instruct": ["Rome", "Bonn"],
    "ibm-granite-granite-3.3-2B-Instruct": ["Rome", "Bonn"],
}


@pytest.fixture(scope="session")
def vocabulary(tmp_path_factory):
    path = tmp_path_factory.mktemp("tiny") / "tiny.gguf"
    subprocess.run([sys.executable, ROOT / "tests/data/make_tiny.py", path], check=True)
    return path


def by_jinja2(source, messages, tools, vocabulary):
    kv = Gguf(vocabulary).kv
    tokens = kv["tokenizer.ggml.tokens"]
    values = {
        "messages": messages,
        "add_generation_prompt": True,
        "bos_token": tokens[kv["tokenizer.ggml.bos_token_id"]],
        "eos_token": tokens[kv["tokenizer.ggml.eos_token_id"]],
    }
    return render(source, values | ({"tools": tools} if tools else {}), int(time.time()))


@each_template
def test_tools(name, vocabulary):
    """Whatever the template knows: definitions, calls and results all reach the model, and what it
    does know is written as it writes it."""
    refused, reason = REFUSED.get(name, ([], ""))
    asks = [
        {"template": TEMPLATES[name], "chat": {"messages": messages, "tools": tools}}
        for messages, tools, _ in CHATS.values()
    ]
    asks = [{**a, "chat": {k: v for k, v in a["chat"].items() if v}} for a in asks]
    for (chat, (messages, tools, words)), mine in zip(
        CHATS.items(), ours(asks, vocabulary), strict=True
    ):
        theirs = by_jinja2(TEMPLATES[name], messages, tools, vocabulary)
        if chat in refused:
            assert "error" in mine and not isinstance(theirs, str), f"{chat}: no longer {reason}"
            continue
        assert "text" in mine, f"{chat}: {mine}"
        left_out = LEFT_OUT.get(name, [])
        missing = [w for w in words if w not in mine["text"] and w not in left_out]
        assert not missing, f"{chat}: {missing} in {mine['text']!r}"
        if mine["knows_tools"] and isinstance(theirs, str):
            assert mine["text"] == theirs, chat
