# SPDX-License-Identifier: MIT
"""Messages through the real anthropic package: what it parses, types and raises is its own code."""
import http.client
import json

import anthropic
import pytest
from harness import Cistern, eventually
from pool import ACTIVE
from test_equal import SMALL, words

HELLO = [{"role": "user", "content": "hello"}]
# Newer packages have no names for the numbers of the sampling; they still send what they are given.
FIELDS = {"model": "tiny", "max_tokens": 12, "extra_body": {"temperature": 0}}
TOOL = {
    "name": "weather",
    "description": "The weather of a place.",
    "input_schema": {"type": "object", "properties": {"place": {"type": "string"}}},
}


@pytest.fixture
def client(c):
    url = f"http://127.0.0.1:{c.port}"
    with anthropic.Anthropic(base_url=url, api_key="none", max_retries=0) as client:
        yield client


def text_of(message):
    assert [block.type for block in message.content] == ["text"]
    return message.content[0].text


def test_answer(client):
    m = client.messages.create(messages=HELLO, **FIELDS)
    assert (m.type, m.role, m.model) == ("message", "assistant", "tiny") and m.id.startswith("msg_")
    assert m.stop_reason in ("end_turn", "max_tokens") and m.stop_sequence is None
    assert m.usage.output_tokens <= 12 and text_of(m) is not None
    assert m.usage.cache_creation_input_tokens == 0 and m._request_id


def test_fields_of_others_are_ignored(client):
    """Also where another API has them and their values would be refused there."""
    extra = {"temperature": 0, "top_logprobs": 99, "logit_bias": [7], "logprobs": "x", "n": 9}
    m = client.messages.create(messages=HELLO, **{**FIELDS, "extra_body": extra})
    assert text_of(m) == text_of(client.messages.create(messages=HELLO, **FIELDS))


def test_stream_events(client):
    """The order that the API promises, and the same text as in one piece."""
    whole = client.messages.create(messages=HELLO, **FIELDS)
    events = list(client.messages.create(messages=HELLO, stream=True, **FIELDS))
    types = [e.type for e in events]
    assert types[:2] == ["message_start", "content_block_start"]
    assert types[-3:] == ["content_block_stop", "message_delta", "message_stop"]
    assert set(types[2:-3]) <= {"content_block_delta"}
    start, last = events[0].message, events[-2]
    assert start.usage.input_tokens + start.usage.cache_read_input_tokens > 0
    assert start.content == [] and start.stop_reason is None
    assert last.delta.stop_reason == whole.stop_reason
    assert last.usage.output_tokens == whole.usage.output_tokens
    assert "".join(e.delta.text for e in events[2:-3]) == text_of(whole)
    assert {e.index for e in events[1:-2]} == {0}


def test_stream_helper(client):
    whole = client.messages.create(messages=HELLO, **FIELDS)
    with client.messages.stream(messages=HELLO, **FIELDS) as stream:
        text = "".join(stream.text_stream)
        final = stream.get_final_message()
    assert text == text_of(final) == text_of(whole)
    assert final.stop_reason == whole.stop_reason


def test_wire_has_both_names_and_no_done(c):
    connection = c.connect()
    body = json.dumps({"model": "tiny", "max_tokens": 12, "messages": HELLO, "stream": True})
    headers = {"Content-Type": "application/json", "anthropic-version": "2023-06-01"}
    connection.request("POST", "/v1/messages?beta=true", body, headers)
    response = connection.getresponse()
    assert response.status == 200
    text = response.read().decode()
    assert "[DONE]" not in text
    for event in text.strip().split("\n\n"):
        name, data = event.split("\n")
        assert name == "event: " + json.loads(data.removeprefix("data: "))["type"]


def test_reasons(client):
    whole = client.messages.create(messages=HELLO, **{**FIELDS, "max_tokens": 40})
    text = text_of(whole)
    stop = text[len(text) // 2 : len(text) // 2 + 3]
    fields = {**FIELDS, "max_tokens": 40, "stop_sequences": [stop]}
    cut = client.messages.create(messages=HELLO, **fields)
    assert (cut.stop_reason, cut.stop_sequence) == ("stop_sequence", stop)
    assert text_of(cut) == text[: text.index(stop)]
    with client.messages.stream(messages=HELLO, **fields) as stream:
        final = stream.get_final_message()
    assert (final.stop_reason, final.stop_sequence) == ("stop_sequence", stop)
    assert text_of(final) == text_of(cut)
    short = client.messages.create(messages=HELLO, **{**FIELDS, "max_tokens": 1})
    assert (short.stop_reason, short.stop_sequence) == ("max_tokens", None)


def test_cached_tokens_are_counted_apart(client):
    messages = [{"role": "user", "content": words(40, 5)}]
    n = client.messages.count_tokens(model="tiny", messages=messages).input_tokens
    first = client.messages.create(messages=messages, **FIELDS).usage
    again = client.messages.create(messages=messages, **FIELDS).usage
    assert first.input_tokens + first.cache_read_input_tokens == n
    assert again.input_tokens + again.cache_read_input_tokens == n
    assert again.cache_read_input_tokens > n // 2


def test_what_agents_send(client):
    """Blocks of every kind in the history, cache marks, tools, thinking: taken, and counted alike."""
    mark = {"cache_control": {"type": "ephemeral"}}
    body = {
        "model": "tiny",
        "system": [{"type": "text", "text": "be brief", **mark}, {"type": "text", "text": ""}],
        "messages": [
            {"role": "user", "content": [{"type": "text", "text": "what is it like?", **mark}]},
            {
                "role": "assistant",
                "content": [
                    {"type": "thinking", "thinking": "hm", "signature": "c2ln"},
                    {"type": "redacted_thinking", "data": "eHg="},
                    {"type": "text", "text": "I look."},
                    {"type": "tool_use", "id": "toolu_1", "name": "weather", "input": {"place": "x"}},
                ],
            },
            {
                "role": "user",
                "content": [
                    {
                        "type": "tool_result",
                        "tool_use_id": "toolu_1",
                        "content": [{"type": "text", "text": "rain"}],
                        "is_error": False,
                    },
                    {"type": "tool_result", "tool_use_id": "toolu_1", "content": "wind"},
                    {"type": "text", "text": "so?"},
                ],
            },
        ],
        "tools": [{**TOOL, **mark}],
        "tool_choice": {"type": "auto", "disable_parallel_tool_use": True},
    }
    n = client.messages.count_tokens(**body).input_tokens
    m = client.messages.create(
        **body,
        max_tokens=4,
        extra_body={"top_k": 5, "top_p": 0.9, "temperature": 0},
        metadata={"user_id": "u"},
        thinking={"type": "enabled", "budget_tokens": 1024},
        extra_headers={"anthropic-beta": "anything-2025-01-01"},
    )
    assert m.usage.input_tokens + m.usage.cache_read_input_tokens == n
    without = client.messages.count_tokens(**{**body, "tool_choice": {"type": "none"}}).input_tokens
    assert without < n


def test_prefill(c, client):
    """An answer at the end is gone on with: its text is in the prompt, unended."""
    whole = text_of(client.messages.create(messages=HELLO, **FIELDS))
    begun = [*HELLO, {"role": "assistant", "content": whole[:4]}]
    rest = client.messages.create(messages=begun, **{**FIELDS, "max_tokens": 8})
    prompt = c.post("/apply-template", {"messages": HELLO})[1]["prompt"] + whole[:4]
    ids = c.post("/tokenize", {"content": prompt, "parse_special": True})[1]["tokens"]
    plain = {"prompt": ids, "max_tokens": 8, "temperature": 0}
    assert text_of(rest) == c.post("/v1/completions", plain)[1]["choices"][0]["text"]
    if not c.kinds_differ():  # else the last token of a prompt isn't what a generated one is
        assert text_of(rest) == whole[4:12]


def test_billing_header_costs_no_reread(client):
    def ask(mark):
        header = f"x-anthropic-billing-header: cc_version=2.1.1; cch={mark};\n"
        system = [{"type": "text", "text": header}, {"type": "text", "text": words(30, 9)}]
        return client.messages.create(messages=HELLO, system=system, **FIELDS)

    one, two = ask("0f3a9"), ask("b77c1")
    assert text_of(one) == text_of(two)
    assert two.usage.input_tokens < 80, "only the rest of a chunk is read again"


def test_control_tokens_are_never_typed(client):
    def count(text):
        messages = [{"role": "user", "content": text}]
        return client.messages.count_tokens(model="tiny", messages=messages).input_tokens

    assert count("a<|im_end|>") == count("a") + len("<|im_end|>"), "a token a byte"


@pytest.mark.parametrize(
    "change, part",
    [
        ({"messages": "x"}, "messages"),
        ({"messages": []}, "messages"),
        ({"messages": [{"role": "user"}]}, "messages[0].content"),
        ({"messages": [{"role": "tool", "content": "x"}]}, "messages[0].role"),
        ({"messages": [{"content": "x"}]}, "messages[0].role"),
        ({"messages": [7]}, "messages[0]"),
        ({"messages": [{"role": "user", "content": [{"type": "image"}]}]}, "messages[0].content[0]"),
        ({"messages": [{"role": "user", "content": [{"text": "x"}]}]}, "type"),
        ({"messages": [{"role": "user", "content": [{"type": "tool_result"}]}]}, "tool_use_id"),
        ({"messages": [{"role": "assistant", "content": [{"type": "tool_use"}]}]}, ".id"),
        ({"system": 7}, "system"),
        ({"messages": [{"role": "system"}]}, "messages[0].content"),
        ({"messages": [{"role": "system", "content": ""}]}, "messages"),
        ({"extra_body": {"temperature": 9}}, "temperature"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"stop_sequences": [""]}, "stop_sequences"),
        ({"tools": [{"name": "x"}]}, "tools[0].input_schema"),
        ({"tools": [{"type": "web_search_20250305", "name": "web_search"}]}, "tools[0].type"),
        ({"tools": [TOOL], "tool_choice": {"type": "any"}}, "tool_choice"),
        ({"tools": [TOOL], "tool_choice": {"type": "tool", "name": "weather"}}, "tool_choice"),
    ],
)
def test_refusals(client, change, part):
    with pytest.raises(anthropic.BadRequestError) as caught:
        client.messages.create(**{"messages": HELLO, **FIELDS, **change})
    body = caught.value.body
    assert body["type"] == "error" and body["error"]["type"] == "invalid_request_error"
    assert part in body["error"]["message"] and body["request_id"] == caught.value.request_id


def test_too_long(client):
    long = [{"role": "user", "content": "word " * 4000}]
    with pytest.raises(anthropic.BadRequestError) as caught:
        client.messages.create(messages=long, stream=True, **FIELDS)
    assert "prompt is too long" in caught.value.message and "2047" in caught.value.message
    assert client.messages.count_tokens(model="tiny", messages=long).input_tokens > 2048


def test_models(client):
    assert [m.id for m in client.models.list()] == ["tiny"]
    assert client.models.retrieve("tiny").display_name == "tiny"
    with pytest.raises(anthropic.NotFoundError) as caught:
        client.models.retrieve("none")
    assert caught.value.body["error"]["type"] == "not_found_error"


def test_other_errors_have_its_shape(c):
    connection = http.client.HTTPConnection("127.0.0.1", c.port)
    for method, path, status in (("GET", "/v1/messages", 405), ("POST", "/v1/messages/x", 404)):
        connection.request(method, path, "{}")
        response = connection.getresponse()
        body = json.loads(response.read())
        assert response.status == status and body["type"] == "error", body


def test_cancel(c, client):
    messages = [{"role": "user", "content": words(30, 77)}]
    fields = {**FIELDS, "max_tokens": 1500}
    manager = client.messages.stream(messages=messages, **fields)
    stream = c.begin(manager.__enter__)
    with c.without_room():
        next(iter(stream.text_stream))
        assert c.pool().rows(ACTIVE)
        manager.__exit__(None, None, None)
    eventually(lambda: not c.pool().rows(ACTIVE), "the lane is free")


def test_overload_is_told_in_its_words(tiny_model):
    """A stage that is missing: 529 with a time to come back, which the package raises as its own."""
    with Cistern(tiny_model, settings=SMALL) as c:
        c.start_poold()
        c.start_worker(0, wait=False)
        c.start_gateway()
        url = f"http://127.0.0.1:{c.port}"
        with anthropic.Anthropic(base_url=url, api_key="none", max_retries=0) as client:
            with pytest.raises(anthropic.APIStatusError) as caught:
                client.messages.create(messages=HELLO, **FIELDS)
            assert caught.value.status_code == 529
            assert caught.value.body["error"]["type"] == "overloaded_error"
            assert int(caught.value.response.headers["retry-after"]) > 0
            count = client.messages.count_tokens(model="tiny", messages=HELLO)
            assert count.input_tokens > 0, "counting needs no worker"
