# SPDX-License-Identifier: MIT
"""Completions of raw prompts, and several choices of one prompt, through the real openai package."""
import math

import openai
import pytest
from test_equal import words
from test_openai_sdk import make_client

FIELDS = {"model": "tiny", "prompt": "hello", "max_tokens": 12, "temperature": 0}


@pytest.fixture
def client(c):
    with make_client(c.port, max_retries=0) as client:
        yield client


def text_of(answer):
    (choice,) = answer.choices
    return choice.text


def test_answer_and_stream(client):
    whole = client.completions.create(**FIELDS)
    assert whole.object == "text_completion" and whole.id.startswith("cmpl-")
    assert whole.choices[0].finish_reason in ("stop", "length")
    chunks = list(
        client.completions.create(**FIELDS, stream=True, stream_options={"include_usage": True})
    )
    assert chunks[-1].choices == []
    assert chunks[-1].usage.total_tokens == whole.usage.total_tokens
    assert "".join(k.choices[0].text for k in chunks[:-1]) == text_of(whole)
    assert chunks[-2].choices[0].finish_reason == whole.choices[0].finish_reason
    assert len({(k.id, k.created) for k in chunks}) == 1


def test_preset_is_sixteen_tokens(client):
    answer = client.completions.create(model="tiny", prompt="hello", seed=1)
    assert answer.usage.completion_tokens <= 16


def test_prompts_of_all_forms(c, client):
    ids = c.post("/tokenize", {"content": "hello", "add_special": True})[1]["tokens"]
    whole = text_of(client.completions.create(**FIELDS))
    for prompt in (["hello"], ids, [ids]):
        assert text_of(client.completions.create(**{**FIELDS, "prompt": prompt})) == whole


def test_echo(client):
    whole = text_of(client.completions.create(**FIELDS))
    assert text_of(client.completions.create(**FIELDS, echo=True)) == "hello" + whole
    chunks = client.completions.create(**FIELDS, echo=True, stream=True)
    assert "".join(k.choices[0].text for k in chunks) == "hello" + whole


@pytest.mark.parametrize(
    "change, param",
    [
        ({"suffix": "x"}, "suffix"),
        ({"prompt": ["a"] * 9}, "prompt"),
        ({"prompt": ["a", [1]] * 4, "n": 2}, "n"),
        ({"prompt": ["a", 1]}, "prompt"),
        ({"logprobs": 6}, "logprobs"),
        ({"logit_bias": {"1": 101}}, "logit_bias"),
        ({"presence_penalty": 2.1}, "presence_penalty"),
        ({"prompt": []}, "prompt"),
        ({"prompt": [1, "a"]}, "prompt"),
        ({"prompt": [10**9]}, "prompt"),
        ({"prompt": 7}, "prompt"),
        ({"n": 9}, "n"),
        ({"best_of": 2}, "best_of"),
        ({"prompt": [1] * 3000}, "prompt"),
    ],
)
def test_refusals(client, change, param):
    with pytest.raises(openai.BadRequestError) as caught:
        client.completions.create(**{**FIELDS, **change})
    assert caught.value.param == param


def test_logprobs(client):
    """As the package types them; of the alternatives the most likely is the greedy token."""
    whole = client.completions.create(**FIELDS, logprobs=2).choices[0]
    probs = whole.logprobs
    assert len(probs.tokens) == len(probs.token_logprobs) == len(probs.top_logprobs)
    for token, logprob, top in zip(probs.tokens, probs.token_logprobs, probs.top_logprobs):
        assert top[token] == logprob == max(top.values()) and logprob <= 0
        assert sum(math.exp(v) for v in top.values()) <= 1 + 1e-6
    chunks = list(client.completions.create(**FIELDS, logprobs=2, stream=True))
    parts = [k.choices[0].logprobs for k in chunks]
    assert [t for p in parts if p for t in p.tokens] == probs.tokens
    assert [o for p in parts if p for o in p.text_offset] == probs.text_offset
    assert client.completions.create(**FIELDS).choices[0].logprobs is None


def test_logit_bias(c, client):
    """-100 bans a token, 100 forces it."""
    body = {"prompt": FIELDS["prompt"], "n_predict": 1, "temperature": 0, "n_probs": 1}
    first = c.post("/completion", body)[1]["completion_probabilities"][0]
    whole = client.completions.create(**FIELDS, logprobs=0).choices[0]
    token = whole.logprobs.tokens[0]
    banned = client.completions.create(**FIELDS, logprobs=0, logit_bias={first["id"]: -100})
    assert token not in banned.choices[0].logprobs.tokens
    forced = client.completions.create(**FIELDS, logprobs=0, logit_bias={first["id"]: 100})
    assert set(forced.choices[0].logprobs.tokens) == {token}


def test_several_prompts(client):
    prompts = ["hello", "good morning"]
    answer = client.completions.create(**{**FIELDS, "prompt": prompts, "n": 2})
    assert [k.index for k in answer.choices] == [0, 1, 2, 3]
    for i, prompt in enumerate(prompts):
        one = client.completions.create(**{**FIELDS, "prompt": prompt})
        assert {k.text for k in answer.choices[2 * i : 2 * i + 2]} == {text_of(one)}


def test_several_choices(client):
    """Greedy choices are the same; drawn ones are those of seeds that follow each other."""
    messages = [{"role": "user", "content": words(30, 4)}]
    fields = {"model": "tiny", "messages": messages, "max_tokens": 10}
    same = client.chat.completions.create(**fields, n=3, temperature=0)
    assert [k.index for k in same.choices] == [0, 1, 2]
    assert len({k.message.content for k in same.choices}) == 1
    drawn = client.chat.completions.create(**fields, n=3, seed=7)
    alone = [client.chat.completions.create(**fields, seed=7 + i) for i in range(3)]
    assert [k.message.content for k in drawn.choices] == [
        a.choices[0].message.content for a in alone
    ]
    assert drawn.usage.completion_tokens == sum(a.usage.completion_tokens for a in alone)
    texts, reasons = ["", "", ""], [None] * 3
    for chunk in client.chat.completions.create(**fields, n=3, seed=7, stream=True):
        (k,) = chunk.choices
        texts[k.index] += k.delta.content or ""
        reasons[k.index] = k.finish_reason or reasons[k.index]
    assert texts == [k.message.content for k in drawn.choices] and all(reasons)


def test_ignore_eos(client):
    answer = client.completions.create(**{**FIELDS, "max_tokens": 300}, extra_body={"ignore_eos": True})
    assert answer.usage.completion_tokens == 300
    assert answer.choices[0].finish_reason == "length"
