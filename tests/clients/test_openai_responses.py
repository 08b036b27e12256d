# SPDX-License-Identifier: MIT
"""Responses through the real openai package, whose stream helper checks each event's place."""
import openai
import pytest
from harness import eventually
from pool import ACTIVE
from test_equal import words
from test_openai_sdk import make_client

FIELDS = {"model": "tiny", "input": "hello", "max_output_tokens": 12, "temperature": 0}
TOOL = {
    "type": "function",
    "name": "weather",
    "description": "The weather of a place.",
    "parameters": {"type": "object", "properties": {"place": {"type": "string"}}},
    "strict": False,
}


@pytest.fixture
def client(c):
    with make_client(c.port, max_retries=0) as client:
        yield client


def test_answer(client):
    r = client.responses.create(**FIELDS, store=False, include=[], metadata={"a": "b"})
    assert r.object == "response" and r.id.startswith("resp_") and r.error is None
    (item,) = r.output
    assert (item.type, item.role) == ("message", "assistant")
    assert [p.type for p in item.content] == ["output_text"]
    assert r.usage.total_tokens == r.usage.input_tokens + r.usage.output_tokens
    assert r.metadata == {"a": "b"} and r.tools == [] and r.temperature == 0


def test_same_text_as_chat(client):
    r = client.responses.create(**FIELDS)
    chat = client.chat.completions.create(
        model="tiny", messages=[{"role": "user", "content": "hello"}], max_tokens=12, temperature=0
    )
    assert r.output_text == chat.choices[0].message.content
    assert r.usage.input_tokens == chat.usage.prompt_tokens


def test_cut_is_incomplete(client):
    r = client.responses.create(**{**FIELDS, "max_output_tokens": 1})
    assert r.status == "incomplete" and r.incomplete_details.reason == "max_output_tokens"
    events = list(client.responses.create(**{**FIELDS, "max_output_tokens": 1}, stream=True))
    assert events[-1].type == "response.incomplete"
    assert events[-1].response.output[0].status == "incomplete"


def test_stream_events(client):
    whole = client.responses.create(**FIELDS)
    events = list(client.responses.create(**FIELDS, stream=True))
    types = [e.type for e in events]
    assert types[:4] == [
        "response.created",
        "response.in_progress",
        "response.output_item.added",
        "response.content_part.added",
    ]
    assert types[-4:] == [
        "response.output_text.done",
        "response.content_part.done",
        "response.output_item.done",
        "response." + whole.status,
    ]
    assert set(types[4:-4]) == {"response.output_text.delta"}
    assert [e.sequence_number for e in events] == list(range(len(events)))
    assert all(e.output_index == 0 for e in events[2:-1])
    deltas = "".join(e.delta for e in events[4:-4])
    assert deltas == events[-4].text == events[-1].response.output_text == whole.output_text
    assert len({e.response.id for e in events if hasattr(e, "response")}) == 1
    assert events[-1].response.usage.output_tokens == whole.usage.output_tokens


def test_logprobs(client):
    """They come when include names them, the same as a chat's; top_logprobs alone is taken."""
    fields = {**FIELDS, "top_logprobs": 3, "include": ["message.output_text.logprobs"]}
    (part,) = client.responses.create(**fields).output[0].content
    said = b"".join(bytes(t.bytes) for t in part.logprobs).decode(errors="replace")
    assert said == part.text and all(len(t.top_logprobs) == 3 for t in part.logprobs)
    chat = client.chat.completions.create(
        model="tiny",
        messages=[{"role": "user", "content": "hello"}],
        max_tokens=12,
        temperature=0,
        logprobs=True,
        top_logprobs=3,
    )
    tokens = [t.model_dump() for t in chat.choices[0].logprobs.content]
    assert [t.model_dump() for t in part.logprobs] == tokens
    events = list(client.responses.create(**fields, stream=True))
    deltas = [t for e in events if e.type == "response.output_text.delta" for t in e.logprobs]
    assert [t.logprob for t in deltas] == [t.logprob for t in part.logprobs]
    assert events[-1].response.output[0].content[0].logprobs == part.logprobs
    (plain,) = client.responses.create(**FIELDS, top_logprobs=3).output[0].content
    assert plain.text == part.text and not plain.logprobs


def test_stream_helper(client):
    whole = client.responses.create(**FIELDS)
    with client.responses.stream(**{**FIELDS, "max_output_tokens": 12}) as stream:
        text = "".join(e.delta for e in stream if e.type == "response.output_text.delta")
    assert text == whole.output_text


def test_items(client):
    """What agents send back: parts, calls and their results, reasoning."""
    items = [
        {"role": "developer", "content": "be brief"},
        {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "so?"}]},
        {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "eHg="},
        {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "I"}]},
        {"type": "function_call", "call_id": "c1", "name": "weather", "arguments": '{"place": "x"}'},
        {"type": "function_call", "call_id": "c2", "name": "weather", "arguments": "not json"},
        {"type": "function_call_output", "call_id": "c1", "output": "rain"},
        {
            "type": "function_call_output",
            "call_id": "c2",
            "output": [{"type": "input_text", "text": "wind"}],
        },
    ]
    fields = {**FIELDS, "input": items, "instructions": "be kind", "tools": [TOOL]}
    r = client.responses.create(**fields, parallel_tool_calls=True, reasoning={"effort": "low"})
    assert r.output_text is not None and r.tools[0].name == "weather"
    fewer = client.responses.create(**{**fields, "tool_choice": "none"})
    assert fewer.usage.input_tokens < r.usage.input_tokens


@pytest.mark.parametrize(
    "change, param",
    [
        ({"previous_response_id": "resp_1"}, "previous_response_id"),
        ({"conversation": "conv_1"}, "conversation"),
        ({"background": True}, "background"),
        ({"input": []}, "input"),
        ({"input": 7}, "input"),
        ({"input": [{"role": "owner", "content": "x"}]}, "input[0].role"),
        ({"input": [{"type": "item_reference", "id": "x"}]}, "input[0]"),
        ({"input": [{"type": "function_call", "name": "x"}]}, "input[0].call_id"),
        ({"input": [{"role": "user", "content": [{"type": "input_image"}]}]}, "input[0]"),
        ({"tools": [{"type": "web_search"}]}, "tools[0]"),
        ({"tools": [TOOL], "tool_choice": "required"}, "tool_choice"),
        ({"tools": [TOOL], "tool_choice": {"type": "function", "name": "weather"}}, "tool_choice"),
        ({"text": {"format": {"type": "json_object"}}}, "text.format.type"),
        ({"max_output_tokens": 0}, "max_output_tokens"),
        ({"temperature": 3}, "temperature"),
    ],
)
def test_refusals(client, change, param):
    with pytest.raises(openai.BadRequestError) as caught:
        client.responses.create(**{**FIELDS, **change})
    assert caught.value.param == param and caught.value.type == "invalid_request_error"


def test_cancel(c, client):
    fields = {**FIELDS, "input": words(30, 77), "max_output_tokens": 1500}
    stream = c.begin(lambda: client.responses.create(**fields, stream=True))
    with c.without_room():
        for event in stream:
            if event.type == "response.output_text.delta":
                break
        assert c.pool().rows(ACTIVE)
        stream.close()
    eventually(lambda: not c.pool().rows(ACTIVE), "the lane is free")
