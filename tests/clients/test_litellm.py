# SPDX-License-Identifier: MIT
"""Chats through litellm, by both of its ways here: as a server of OpenAI's API and of Anthropic's."""
import asyncio

import litellm
import pytest
from busy import KEY, refused_then_answered
from harness import eventually
from pool import ACTIVE
from test_equal import words

HELLO = [{"role": "user", "content": "Say hello."}]
FIELDS = {"messages": HELLO, "max_tokens": 12, "temperature": 0}


def openai_way(c):
    base = f"http://127.0.0.1:{c.port}/v1"
    return {"model": "openai/demo", "api_base": base, "api_key": "none", "num_retries": 0}


def anthropic_way(c):
    base = f"http://127.0.0.1:{c.port}"
    return {"model": "anthropic/demo", "api_base": base, "api_key": "none", "num_retries": 0}


WAYS = [pytest.param(openai_way, id="openai"), pytest.param(anthropic_way, id="anthropic")]


@pytest.mark.parametrize("way", WAYS)
def test_answer_and_stream(demo, way):
    whole = litellm.completion(**way(demo), **FIELDS)
    (choice,) = whole.choices
    assert choice.message.content and choice.finish_reason in ("stop", "length")
    usage = whole.usage
    assert usage.total_tokens == usage.prompt_tokens + usage.completion_tokens
    chunks = list(
        litellm.completion(
            **way(demo), **FIELDS, stream=True, stream_options={"include_usage": True}
        )
    )
    built = litellm.stream_chunk_builder(chunks, messages=HELLO)
    assert built.choices[0].message.content == choice.message.content
    assert built.choices[0].finish_reason == choice.finish_reason
    assert built.usage.completion_tokens == usage.completion_tokens
    assert built.usage.prompt_tokens == usage.prompt_tokens


@pytest.mark.parametrize("way", WAYS)
def test_too_long_is_told_apart(demo, way):
    """Who compacts a conversation waits for this class."""
    long = {**FIELDS, "messages": [{"role": "user", "content": "word " * 4000}]}
    with pytest.raises(litellm.ContextWindowExceededError):
        litellm.completion(**way(demo), **long)


@pytest.mark.parametrize("way", WAYS)
def test_errors(demo, keyed, way):
    with pytest.raises(litellm.BadRequestError) as caught:
        litellm.completion(**way(demo), **{**FIELDS, "temperature": 9})
    assert "temperature" in str(caught.value)
    with pytest.raises(litellm.AuthenticationError):
        litellm.completion(**way(keyed), **FIELDS)


def test_text_completion(demo):
    answer = litellm.text_completion(
        **{**openai_way(demo), "model": "text-completion-openai/demo"},
        prompt="The capital of France is",
        max_tokens=6,
        temperature=0,
    )
    assert "Paris" in answer.choices[0].text


def test_retries(keyed):
    answer = refused_then_answered(
        keyed,
        lambda: litellm.completion(**{**openai_way(keyed), "api_key": KEY, "num_retries": 10},
                                   **FIELDS),
    )
    assert answer.choices[0].finish_reason in ("stop", "length")


def test_cancel(demo):
    async def leave():
        stream = await litellm.acompletion(
            **openai_way(demo),
            messages=[{"role": "user", "content": words(20, 3)}],
            max_tokens=1500,
            stream=True,
            extra_body={"ignore_eos": True},
        )
        async for _ in stream:
            assert demo.pool().rows(ACTIVE)
            break
        await stream.aclose()

    asyncio.run(leave())
    eventually(lambda: not demo.pool().rows(ACTIVE), "the lane is free")
