# SPDX-License-Identifier: MIT
"""Structured answers through instructor, which asks again, with the error, until its model of pydantic
takes what the model wrote."""
import instructor
import openai
import pydantic
import pytest
from busy import KEY, refused_then_answered
from instructor.core import InstructorRetryException


class Anything(pydantic.BaseModel, extra="allow"):
    """Any object: the demo model writes JSON when asked, but not of one's own shape."""


class Never(pydantic.BaseModel):
    word: str

    @pydantic.field_validator("word")
    @classmethod
    def refuse(cls, value):
        raise ValueError(f"not {value}")


def make_client(c, mode, **options):
    base = f"http://127.0.0.1:{c.port}/v1"
    client = openai.OpenAI(**{"base_url": base, "api_key": "none", "max_retries": 0, **options})
    return instructor.from_openai(client, mode=mode)


FIELDS = {"model": "demo", "temperature": 0, "max_tokens": 200}
SAY = [{"role": "user", "content": 'Answer with {"word": "hello"} and nothing else.'}]


def test_answer(demo):
    client = make_client(demo, instructor.Mode.MD_JSON)
    got = client.create(response_model=Anything, messages=SAY, max_retries=3, **FIELDS)
    assert got.model_extra


def test_stream(demo):
    client = make_client(demo, instructor.Mode.MD_JSON)
    pieces = list(client.create_partial(response_model=Anything, messages=SAY, **FIELDS))
    assert len(pieces) > 1 and pieces[-1].model_extra


def test_asks_again_with_the_error(demo):
    client = make_client(demo, instructor.Mode.MD_JSON)
    before = demo.metric("cistern_requests_total", status="200")
    with pytest.raises(InstructorRetryException) as caught:
        client.create(response_model=Never, messages=SAY, max_retries=2, **FIELDS)
    assert caught.value.n_attempts >= 2
    assert demo.metric("cistern_requests_total", status="200") >= before + 2


def test_errors(demo, keyed):
    client = make_client(demo, instructor.Mode.MD_JSON)
    with pytest.raises(InstructorRetryException) as caught:
        client.create(
            response_model=Anything, messages=SAY, max_retries=1, **{**FIELDS, "temperature": 9}
        )
    assert "temperature" in str(caught.value)
    with pytest.raises(InstructorRetryException) as caught:
        make_client(keyed, instructor.Mode.MD_JSON).create(
            response_model=Anything, messages=SAY, max_retries=1, **FIELDS
        )
    assert "401" in str(caught.value)


def test_retries(keyed):
    client = make_client(keyed, instructor.Mode.MD_JSON, api_key=KEY, max_retries=10)
    answer = refused_then_answered(
        keyed, lambda: client.create(response_model=None, messages=SAY, **FIELDS)
    )
    assert answer.choices[0].finish_reason in ("stop", "length")
