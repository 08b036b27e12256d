# SPDX-License-Identifier: MIT
"""Agents through openai-agents, on chat completions and on responses; its runner reads the streams'
events and sends its own history back."""
import asyncio

import openai
import pytest
from agents import (
    Agent,
    ModelBehaviorError,
    ModelSettings,
    OpenAIChatCompletionsModel,
    OpenAIResponsesModel,
    Runner,
    function_tool,
)
from busy import KEY, refused_then_answered
from harness import eventually
from pool import ACTIVE
from test_equal import words

MODELS = [
    pytest.param(OpenAIChatCompletionsModel, id="chat"),
    pytest.param(OpenAIResponsesModel, id="responses"),
]


@function_tool
def weather(place: str) -> str:
    """The weather of a place."""
    return f"sunny in {place}"


def make_agent(c, model, tools=(), key="none", retries=0, **settings):
    client = openai.AsyncOpenAI(
        base_url=f"http://127.0.0.1:{c.port}/v1", api_key=key, max_retries=retries
    )
    return Agent(
        name="a",
        instructions="Be brief.",
        model=model(model="demo", openai_client=client),
        tools=list(tools),
        model_settings=ModelSettings(**{"temperature": 0, "max_tokens": 200, **settings}),
    )


async def streamed(agent, what):
    run = Runner.run_streamed(agent, what)
    events = [event async for event in run.stream_events()]
    raw = [e.data for e in events if e.type == "raw_response_event"]
    text = "".join(e.delta for e in raw if e.type == "response.output_text.delta")
    return run, text


@pytest.mark.parametrize("model", MODELS)
def test_answer_and_stream(demo, model):
    async def story():
        agent = make_agent(demo, model, tools=[weather], extra_args={"parallel_tool_calls": None})
        whole = await Runner.run(agent, "Say hello.")
        assert whole.final_output and whole.raw_responses[0].usage.output_tokens > 0
        run, text = await streamed(agent, "Say hello.")
        assert text == run.final_output == whole.final_output

    asyncio.run(story())


@pytest.mark.parametrize("model", MODELS)
def test_history_is_taken_back(demo, model):
    """Its own record of a turn is the next one's input; the pool knows its beginning."""

    async def story():
        agent = make_agent(demo, model, include_usage=True)
        first = await Runner.run(agent, "Say hello.")
        again = first.to_input_list() + [{"role": "user", "content": "And again?"}]
        second = await Runner.run(agent, again)
        usage = second.raw_responses[0].usage
        assert usage.input_tokens > first.raw_responses[0].usage.input_tokens
        assert usage.input_tokens_details.cached_tokens > 0

    asyncio.run(story())


@pytest.mark.parametrize("model", MODELS)
def test_errors(demo, keyed, model):
    async def story():
        with pytest.raises(openai.BadRequestError) as caught:
            await Runner.run(make_agent(demo, model, temperature=9), "x")
        assert caught.value.param == "temperature"
        with pytest.raises(openai.BadRequestError) as caught:
            await streamed(make_agent(demo, model), "word " * 4000)
        assert caught.value.code == "context_length_exceeded"
        with pytest.raises(openai.AuthenticationError):
            await Runner.run(make_agent(keyed, model), "x")

    asyncio.run(story())


def test_retries(keyed):
    agent = make_agent(keyed, OpenAIResponsesModel, key=KEY, retries=10)

    def ask():
        try:
            return asyncio.run(Runner.run(agent, "x")).raw_responses
        except ModelBehaviorError as e:  # what a random model says may go on to its limit: no refusal
            return "max_output_tokens" in str(e)

    assert refused_then_answered(keyed, ask)


@pytest.mark.parametrize("model", MODELS)
def test_cancel(demo, model):
    async def story():
        agent = make_agent(demo, model, max_tokens=1500, extra_body={"ignore_eos": True})
        run = Runner.run_streamed(agent, words(20, 5))
        async for event in run.stream_events():
            data = getattr(event, "data", None)
            if data is not None and data.type == "response.output_text.delta":
                assert demo.pool().rows(ACTIVE)
                run.cancel()

    asyncio.run(story())
    eventually(lambda: not demo.pool().rows(ACTIVE), "the lane is free")
