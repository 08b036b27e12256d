# SPDX-License-Identifier: MIT
"""Agents through pydantic-ai, on chat completions and on responses."""
import asyncio

import openai
import pytest
from busy import KEY, refused_then_answered
from harness import eventually
from pool import ACTIVE
from pydantic_ai import Agent, ModelHTTPError
from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
from pydantic_ai.providers.openai import OpenAIProvider
from test_equal import words

MODELS = [
    pytest.param(OpenAIChatModel, id="chat"),
    pytest.param(OpenAIResponsesModel, id="responses"),
]


def make_agent(c, model, key="none", **settings):
    url = f"http://127.0.0.1:{c.port}/v1"
    client = openai.AsyncOpenAI(base_url=url, api_key=key, max_retries=10)
    provider = OpenAIProvider(openai_client=client)
    return Agent(
        model("demo", provider=provider),
        instructions="Be brief.",
        model_settings={"temperature": 0, "max_tokens": 16, **settings},
    )


@pytest.mark.parametrize("model", MODELS)
def test_answer_and_stream(demo, model):
    async def story():
        agent = make_agent(demo, model)

        @agent.tool_plain
        def weather(place: str) -> str:
            """The weather of a place."""
            return f"sunny in {place}"

        whole = await agent.run("Say hello.")
        async with agent.run_stream("Say hello.") as run:
            text = "".join([piece async for piece in run.stream_text(delta=True)])
        assert text == whole.output
        again = await agent.run("And again?", message_history=whole.all_messages())
        assert again.usage.cache_read_tokens > 0

    asyncio.run(story())


@pytest.mark.parametrize("model", MODELS)
def test_errors(demo, keyed, model):
    async def story():
        for c, fields, what, status in (
            (demo, {"temperature": 9}, "x", 400),
            (demo, {}, "word " * 4000, 400),
            (keyed, {}, "x", 401),
        ):
            with pytest.raises(ModelHTTPError) as caught:
                await make_agent(c, model, **fields).run(what)
            assert caught.value.status_code == status

    asyncio.run(story())


def test_retries(keyed):
    agent = make_agent(keyed, OpenAIChatModel, key=KEY)
    answer = refused_then_answered(keyed, lambda: asyncio.run(agent.run("x")))
    assert answer.output is not None


def test_cancel(demo):
    async def story():
        fields = {"max_tokens": 1500, "extra_body": {"ignore_eos": True}}
        async with make_agent(demo, OpenAIChatModel, **fields).run_stream(words(20, 6)) as run:
            async for _ in run.stream_text(delta=True):
                assert demo.pool().rows(ACTIVE)
                break

    asyncio.run(story())
    eventually(lambda: not demo.pool().rows(ACTIVE), "the lane is free")
