# SPDX-License-Identifier: MIT
"""Chats through the real openai package: what it parses, types, raises and retries is its own code."""
import math
import threading

import openai
import pytest
from harness import Cistern, eventually
from pool import ACTIVE, IDLE
from test_equal import SMALL, words

HELLO = [{"role": "user", "content": "hello"}]


@pytest.fixture
def client(c):
    with make_client(c.port, max_retries=0) as client:
        yield client


def make_client(port, **options):
    return openai.OpenAI(base_url=f"http://127.0.0.1:{port}/v1", api_key="none", **options)


def test_answer(client):
    answer = client.chat.completions.create(
        model="tiny", messages=HELLO, max_completion_tokens=8, temperature=0, seed=1
    )
    assert answer.object == "chat.completion" and answer.model == "tiny" and answer.id
    (choice,) = answer.choices
    assert choice.message.role == "assistant" and isinstance(choice.message.content, str)
    assert choice.finish_reason in ("stop", "length")
    usage = answer.usage
    assert usage.total_tokens == usage.prompt_tokens + usage.completion_tokens
    assert usage.prompt_tokens_details.cached_tokens < usage.prompt_tokens


def test_stream(client):
    fields = {"model": "tiny", "messages": HELLO, "max_tokens": 12, "temperature": 0}
    whole = client.chat.completions.create(**fields)
    chunks = list(
        client.chat.completions.create(
            **fields, stream=True, stream_options={"include_usage": True}
        )
    )
    assert len({(k.id, k.created, k.model) for k in chunks}) == 1
    assert all(k.object == "chat.completion.chunk" for k in chunks)
    assert chunks[0].choices[0].delta.role == "assistant"
    *pieces, last = chunks
    assert last.choices == [] and last.usage.completion_tokens == whole.usage.completion_tokens
    text = "".join(k.choices[0].delta.content or "" for k in pieces)
    assert text == whole.choices[0].message.content
    reasons = [k.choices[0].finish_reason for k in pieces]
    assert reasons[-1] == whole.choices[0].finish_reason and not any(reasons[:-1])


def test_no_usage_unless_asked(client):
    chunks = list(
        client.chat.completions.create(model="tiny", messages=HELLO, max_tokens=3, stream=True)
    )
    assert all(k.usage is None and len(k.choices) == 1 for k in chunks)


def test_stream_helper(client):
    """The package's own accumulator of a stream, which raises when max_tokens ends an answer."""
    fields = {"model": "tiny", "messages": HELLO, "max_completion_tokens": 3, "temperature": 0}
    whole = client.chat.completions.create(**fields).choices[0]
    assert whole.finish_reason == "length"
    with client.chat.completions.stream(**fields) as stream:
        kinds = [event.type for event in stream]
        with pytest.raises(openai.LengthFinishReasonError) as caught:
            stream.get_final_completion()
    assert "chunk" in kinds
    assert caught.value.completion.choices[0].message.content == whole.message.content


def test_content_in_parts(client):
    parts = [{"type": "text", "text": "hel"}, {"type": "text", "text": "lo"}]
    fields = {"model": "tiny", "max_tokens": 6, "temperature": 0}
    one = client.chat.completions.create(messages=HELLO, **fields)
    two = client.chat.completions.create(messages=[{"role": "user", "content": parts}], **fields)
    assert one.choices[0].message.content == two.choices[0].message.content


def test_stop(client):
    fields = {"model": "tiny", "messages": HELLO, "max_tokens": 40, "temperature": 0}
    whole = client.chat.completions.create(**fields).choices[0].message.content
    stop = whole[len(whole) // 2 : len(whole) // 2 + 3]
    cut = client.chat.completions.create(**fields, stop=[stop]).choices[0]
    assert cut.finish_reason == "stop"
    assert cut.message.content == whole[: whole.index(stop)]
    pieces = client.chat.completions.create(**fields, stop=stop, stream=True)
    text = "".join(k.choices[0].delta.content or "" for k in pieces if k.choices)
    assert text == cut.message.content


def test_logprobs(client):
    """Alternatives in order, at most the whole probability; of a greedy answer the first is it."""
    fields = {"model": "tiny", "messages": HELLO, "max_tokens": 12, "temperature": 0}
    fields.update(logprobs=True, top_logprobs=20)
    choice = client.chat.completions.create(**fields).choices[0]
    tokens = choice.logprobs.content
    said = b"".join(bytes(t.bytes) for t in tokens).decode(errors="replace")
    assert said == choice.message.content
    for t in tokens:
        values = [k.logprob for k in t.top_logprobs]
        assert len(values) == 20 and values == sorted(values, reverse=True)
        assert t.logprob == values[0] and t.token == t.top_logprobs[0].token
        assert 0 < sum(math.exp(v) for v in values) <= 1 + 1e-6
    chunks = list(client.chat.completions.create(**fields, stream=True))
    parts = [k.choices[0].logprobs for k in chunks]
    assert [t.model_dump() for p in parts if p for t in p.content] == [
        t.model_dump() for t in tokens
    ]
    del fields["top_logprobs"]
    plain = client.chat.completions.create(**{**fields, "logprobs": False})
    assert plain.choices[0].logprobs is None
    with pytest.raises(openai.BadRequestError) as caught:
        client.chat.completions.create(**{**fields, "logprobs": False}, top_logprobs=2)
    assert caught.value.param == "top_logprobs"


def test_models(client):
    models = list(client.models.list())
    assert [m.id for m in models] == ["tiny"]
    assert client.models.retrieve("tiny").id == "tiny"
    with pytest.raises(openai.NotFoundError):
        client.models.retrieve("none")


def test_errors(client):
    with pytest.raises(openai.BadRequestError) as caught:
        client.chat.completions.create(model="tiny", messages=[])
    assert caught.value.type == "invalid_request_error" and caught.value.param == "messages"
    with pytest.raises(openai.BadRequestError) as caught:
        client.chat.completions.create(model="tiny", messages=HELLO, temperature=9)
    assert caught.value.param == "temperature"
    with pytest.raises(openai.BadRequestError) as caught:
        long = [{"role": "user", "content": "word " * 4000}]
        client.chat.completions.create(model="tiny", messages=long, stream=True)
    assert caught.value.code == "context_length_exceeded" and "2048" in caught.value.message
    with pytest.raises(openai.APIStatusError) as caught:
        client.embeddings.create(model="tiny", input="x")
    assert caught.value.status_code == 501


def test_cancel(c, client):
    """Closing a stream frees its lane; what was computed stays."""
    fields = {"model": "tiny", "max_tokens": 1500, "stream": True, "temperature": 0}
    messages = [{"role": "user", "content": words(30, 77)}]
    stream = c.begin(lambda: client.chat.completions.create(messages=messages, **fields))
    with c.without_room():
        next(iter(stream))
        assert c.pool().rows(ACTIVE)
        stream.close()
    eventually(lambda: not c.pool().rows(ACTIVE), "the lane is free")
    assert c.pool().rows(IDLE)


def test_many_at_once(client):
    """More chats than lanes, by threads of one client."""
    fields = {"model": "tiny", "max_tokens": 10, "temperature": 0}
    contents = [f"{i} {words(5, i)}" for i in range(12)]

    def ask(content):
        messages = [{"role": "user", "content": content}]
        return client.chat.completions.create(messages=messages, **fields).choices[0].message.content

    answers = [None] * len(contents)

    def run(i):
        answers[i] = ask(contents[i])

    threads = [threading.Thread(target=run, args=[i]) for i in range(len(contents))]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert answers == [ask(content) for content in contents]


def test_retries_until_it_is_there(tiny_model):
    """The package retries a 503 by itself; it gets its answer when the missing stage is there."""
    with Cistern(tiny_model, settings=SMALL) as c:
        c.start_poold()
        c.start_worker(0, wait=False)
        c.start_gateway()
        with make_client(c.port, max_retries=0) as client:
            with pytest.raises(openai.InternalServerError) as caught:
                client.chat.completions.create(model="tiny", messages=HELLO, max_tokens=2)
            assert caught.value.status_code == 503
            assert int(caught.value.response.headers["Retry-After"]) > 0
        answers = []

        def ask():
            with make_client(c.port, max_retries=10) as client:
                answers.append(
                    client.chat.completions.create(model="tiny", messages=HELLO, max_tokens=2)
                )

        asking = threading.Thread(target=ask)
        asking.start()
        before = c.metric("cistern_requests_total", status="503")
        eventually(
            lambda: c.metric("cistern_requests_total", status="503") > before, "it was refused"
        )
        c.start_worker(1, wait=False)
        c.wait_ready(*c.workers)
        asking.join()
        assert answers[0].choices[0].message.content is not None
