# SPDX-License-Identifier: MIT
"""Chats through langchain-openai: its chat model on both of OpenAI's APIs, its chain and its tools."""
import asyncio

import openai
import pytest
from busy import KEY, refused_then_answered
from harness import eventually
from langchain_core.messages import AIMessage, HumanMessage, SystemMessage, ToolMessage
from langchain_core.output_parsers import StrOutputParser
from langchain_core.prompts import ChatPromptTemplate
from langchain_openai import ChatOpenAI
from pool import ACTIVE
from test_equal import words


def make_chat(c, **more):
    fields = {"model": "demo", "api_key": "none", "temperature": 0, "max_retries": 0} | more
    return ChatOpenAI(base_url=f"http://127.0.0.1:{c.port}/v1", **fields)


@pytest.mark.parametrize("responses", [False, True], ids=["chat", "responses"])
def test_answer_and_stream(demo, responses):
    chat = make_chat(demo, max_tokens=12, use_responses_api=responses, stream_usage=True)
    messages = [SystemMessage("Be brief."), HumanMessage("Say hello.")]
    whole = chat.invoke(messages)
    assert whole.text and whole.usage_metadata["output_tokens"] > 0
    total = None
    for piece in chat.stream(messages):
        total = piece if total is None else total + piece
    assert total.text == whole.text
    assert total.usage_metadata["output_tokens"] == whole.usage_metadata["output_tokens"]
    assert total.usage_metadata["input_tokens"] == whole.usage_metadata["input_tokens"]


def test_chain_in_a_batch(demo):
    prompt = ChatPromptTemplate.from_messages([("system", "Be brief."), ("user", "{what}?")])
    chain = prompt | make_chat(demo, max_tokens=8) | StrOutputParser()
    asks = [{"what": w} for w in ("Who are you", "What is two and two", "Is it cold")]
    assert chain.batch(asks) == [chain.invoke(a) for a in asks]


def test_tools_and_their_results(demo):
    """Definitions go in, results go in; what the model writes comes back as text."""
    tool = {
        "name": "weather",
        "description": "The weather of a place.",
        "parameters": {"type": "object", "properties": {"place": {"type": "string"}}},
    }
    chat = make_chat(demo, max_tokens=8).bind_tools([tool])
    call = {"name": "weather", "args": {"place": "Rome"}, "id": "call_1"}
    messages = [
        HumanMessage("How is the weather in Rome?"),
        AIMessage("", tool_calls=[call]),
        ToolMessage("sunny", tool_call_id="call_1"),
    ]
    assert chat.invoke(messages).text
    with pytest.raises(openai.BadRequestError) as caught:
        make_chat(demo).bind_tools([tool], tool_choice="required").invoke("x")
    assert caught.value.param == "tool_choice"


def test_errors(demo, keyed):
    with pytest.raises(openai.BadRequestError) as caught:
        make_chat(demo, temperature=9).invoke("x")
    assert caught.value.param == "temperature"
    with pytest.raises(openai.BadRequestError) as caught:
        list(make_chat(demo).stream("word " * 4000))
    assert caught.value.code == "context_length_exceeded"
    with pytest.raises(openai.AuthenticationError):
        make_chat(keyed).invoke("x")


def test_retries(keyed):
    chat = make_chat(keyed, api_key=KEY, max_retries=10, max_tokens=3)
    assert refused_then_answered(keyed, lambda: chat.invoke("x")).usage_metadata


def test_cancel(demo):
    async def leave():
        chat = make_chat(demo, max_tokens=1500, extra_body={"ignore_eos": True})

        async def read():
            async for _ in chat.astream(words(20, 4)):
                begun.set()

        begun = asyncio.Event()
        reading = asyncio.create_task(read())
        await begun.wait()
        assert demo.pool().rows(ACTIVE)
        reading.cancel()
        with pytest.raises(asyncio.CancelledError):
            await reading

    asyncio.run(leave())
    eventually(lambda: not demo.pool().rows(ACTIVE), "the lane is free")
