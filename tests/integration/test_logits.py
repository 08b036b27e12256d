# SPDX-License-Identifier: MIT
"""Biases, penalties and log-probabilities: they count tokens, not what a device remembers. So they
are the same alone, in a crowd, over any number of stages, and after a worker's death."""
import json
import threading

import pytest

from harness import ROOT, Cistern, eventually
from pool import ACTIVE, CLOSING, WAITING
from test_deaths import DEATHS, quiet
from test_equal import SMALL, words

EOG = "<|im_end|>"
CHANGED = {
    "presence_penalty": 0.4,
    "frequency_penalty": 0.3,
    "repeat_penalty": 1.2,
    "repeat_last_n": 40,
    "logprobs": True,
    "top_logprobs": 4,
}


def events(c, path, body):
    """The events of a stream, parsed."""
    connection = c.connect()
    data = json.dumps({**body, "stream": True})
    connection.request("POST", path, data, {"Content-Type": "application/json"})
    response = connection.getresponse()
    assert response.status == 200, response.read()
    lines = [line[6:] for line in response.read().split(b"\n") if line.startswith(b"data: ")]
    return [json.loads(line) for line in lines if line != b"[DONE]"]


def post(c, path, body):
    status, answer = c.post(path, body)
    assert status == 200, answer
    return answer


def chats():
    """Of different lengths, half of them drawn, with biases of their own."""
    found = []
    for i in range(6):
        fields = {"max_tokens": 60, "temperature": 0.9 * (i % 2), "seed": 70 + i, **CHANGED}
        fields["logit_bias"] = {str(40 + k): (-1) ** k * 2.5 * i for k in range(10 * i)}
        found.append((f"{i} {words(5 + 30 * i, i)}", fields))
    return found


def told(answer):
    (choice,) = answer["choices"]
    return choice["message"]["content"], choice["logprobs"]["content"]


@pytest.fixture(scope="module")
def alone(tiny_model):
    with Cistern(tiny_model, stages=1, settings=SMALL).start() as c:
        return [told(c.chat(content, **fields)) for content, fields in chats()]


def test_fields_change_what_is_said(tiny_model):
    """Each of them alone: else the equalities below would hold of fields that do nothing."""
    content, fields = chats()[4]
    plain = {"max_tokens": 60, "temperature": 0}
    with Cistern(tiny_model, settings=SMALL).start() as c:
        without = c.chat(content, **plain)["choices"][0]["message"]["content"]
        for name in ("presence_penalty", "frequency_penalty", "repeat_penalty", "logit_bias"):
            value = fields[name] if name == "logit_bias" else 2
            changed = c.chat(content, **plain, **{name: value})
            assert changed["choices"][0]["message"]["content"] != without, name


@pytest.mark.parametrize("stages", [2, 4])
def test_stages_do_not_matter(tiny_model, alone, stages):
    with Cistern(tiny_model, stages=stages, settings=SMALL).start() as c:
        assert [told(c.chat(content, **fields)) for content, fields in chats()] == alone


def test_crowd_equals_solo(tiny_model, alone):
    with Cistern(tiny_model, settings={**SMALL, "worker.piece": 16}).start() as c:
        answers = [None] * len(alone)

        def ask(i):
            content, fields = chats()[i]
            answers[i] = told(c.chat(content, **fields))

        threads = [threading.Thread(target=ask, args=[i]) for i in range(len(alone))]
        for t in threads:
            t.start()
        for t in threads:
            t.join()
        assert answers == alone


@pytest.mark.parametrize("stage", [0, 1])
def test_worker_dies(slow_model, stage):
    """kill -9 in mid-stream: the text and each token's probabilities go on as they would have."""
    content, fields = chats()[3]
    fields = {**fields, "max_tokens": 60}
    with Cistern(slow_model, settings=DEATHS).start() as c:
        text, probs = told(c.chat(content, **fields))
        assert len(probs) == 60
    with Cistern(slow_model, settings=DEATHS).start() as c:
        stream = c.stream(content, **fields)
        got = []
        take = stream.take

        def keep(event):
            for choice in event.get("choices", []):
                got.extend((choice["logprobs"] or {"content": []})["content"])
            return take(event)

        stream.take = keep
        for _ in range(20):
            next(stream)
        c.workers[stage].kill()
        c.start_worker(stage)
        stream.read_all()
        assert stream.done and not stream.error, stream.error
        assert stream.text == text and got == probs
        c.wait_healthy()
        quiet(c)


# ---- what the penalties count


def test_penalties_count_what_was_generated(tiny_model):
    """Each greedy token is the likeliest after the penalties that its own predecessors make, by a
    count made here. Nothing outside the alternatives shown can pass one of them: penalties that are
    not negative only lower."""
    body = {"prompt": words(20, 3), "n_predict": 80, "temperature": 0, "n_probs": 20}
    body.update(presence_penalty=0.7, frequency_penalty=0.45, ignore_eos=True)
    with Cistern(tiny_model, settings=SMALL).start() as c:
        tokens = post(c, "/completion", body)["completion_probabilities"]
    assert len(tokens) == 80
    count, changed = {}, 0
    for at in tokens:
        top = at["top_logprobs"]

        def lowered(t):
            n = count.get(t["id"], 0)
            return t["logprob"] - (0.7 + 0.45 * n if n else 0)

        best = max(top, key=lowered)
        assert lowered(best) >= top[-1]["logprob"], "the alternatives do not decide"
        # Logarithms are rounded to float32: nearer than this the order is not known here.
        if sorted(map(lowered, top))[-1] - sorted(map(lowered, top))[-2] > 1e-5:
            assert at["id"] == best["id"]
        changed += at["id"] != top[0]["id"]
        count[at["id"]] = count.get(at["id"], 0) + 1
    assert changed > 5


def end_id(c):
    (token,) = post(c, "/tokenize", {"content": EOG, "parse_special": True})["tokens"]
    return token


def test_min_tokens(tiny_model):
    """With a bias that makes the end all but certain, the answer ends where it may at the first."""
    with Cistern(tiny_model, settings=SMALL).start() as c:
        fields = {"logit_bias": {str(end_id(c)): 100}, "temperature": 0, "max_tokens": 20}
        assert c.chat("hello", **fields)["usage"]["completion_tokens"] == 0
        answer = c.chat("hello", **fields, min_tokens=7)
        assert answer["usage"]["completion_tokens"] == 7
        assert answer["choices"][0]["finish_reason"] == "stop"


def test_ban_and_force(tiny_model):
    with Cistern(tiny_model, settings=SMALL).start() as c:
        body = {"prompt": "hello", "n_predict": 20, "temperature": 0, "n_probs": 1}
        first = post(c, "/completion", body)["completion_probabilities"][0]["id"]
        forms = ({str(first): -100}, [[first, -100]], [[first, False]])
        answers = [post(c, "/completion", {**body, "logit_bias": form}) for form in forms]
        ids = [[t["id"] for t in a["completion_probabilities"]] for a in answers]
        assert first not in ids[0] and ids[0] == ids[1] == ids[2]
        (force,) = post(c, "/tokenize", {"content": "q"})["tokens"]
        for form in ({str(force): 100}, [["q", 100]]):
            assert post(c, "/completion", {**body, "logit_bias": form})["content"] == "q" * 20


@pytest.mark.cpu("the gateway's own")
@pytest.mark.parametrize(
    "bias",
    [
        {"x": 1},
        {"-1": 1},
        {"": 1},
        {"1": "a"},
        {"1": 101},
        {"1": False},
        {"99999999999999999999": 1},
        {"1000000": 1},
        [1],
        [[1]],
        [[1, 2, 3]],
        [[1.5, 1]],
        [[-1, 1]],
        [[1, True]],
        {str(i): 1 for i in range(1025)},
        [["a" * 600, 1], ["b" * 600, 1]],
    ],
)
def test_wrong_biases(shared, bias):
    for path in ("/v1/completions", "/completion"):
        status, answer = shared.post(path, {"prompt": "a", "logit_bias": bias})
        assert status == 400 and answer["error"]["param"] == "logit_bias", answer


@pytest.fixture(scope="module")
def shared(tiny_model):
    with Cistern(tiny_model, settings=SMALL).start() as c:
        yield c


# ---- probabilities of a prompt


def columns(answer):
    return answer["choices"][0]["logprobs"]


# How far a token's log-probability may be from the other kind's, where kinds differ. Halves, a prompt's,
# lie next to float32. From that int8, as generating has it, is 0.32 away at most and 0.05 in the mean, over
# this model's 439 tokens of the story and their likeliest alternatives, on a CPU. Twice that.
FAR, FAR_IN_THE_MEAN = 0.6, 0.1


def assert_near(read, made):
    """Columns of the same tokens, as a prompt's and as generated."""
    apart = [abs(a - b) for a, b in zip(read["token_logprobs"], made["token_logprobs"], strict=True)]
    assert max(apart) <= FAR and sum(apart) / len(apart) <= FAR_IN_THE_MEAN, apart
    for a, b in zip(read["top_logprobs"], made["top_logprobs"], strict=True):
        # The i-th largest of values that are moved by so much is moved by no more.
        best = [sorted(top.values(), reverse=True)[:3] for top in (a, b)]
        assert max(abs(x - y) for x, y in zip(*best)) <= FAR, (a, b)
        assert all(abs(a[token] - b[token]) <= FAR for token in a.keys() & b.keys()), (a, b)


def test_prompt_equals_generated(shared):
    """A token's probability is the same whether it was generated or is part of a prompt, near it where
    these have an arithmetic each, and the same whether its prompt was in the pool or not."""
    ids = post(shared, "/tokenize", {"content": words(90, 8)})["tokens"]
    body = {"prompt": ids, "max_tokens": 40, "temperature": 0, "logprobs": 3}
    made = columns(post(shared, "/v1/completions", body))
    probs = post(shared, "/completion", {**body, "n_predict": 40, "n_probs": 1})
    ids = ids + [t["id"] for t in probs["completion_probabilities"]]
    again = {**body, "prompt": ids, "max_tokens": 1, "echo": True}
    answers = [post(shared, "/v1/completions", again) for _ in range(2)]
    assert answers[0]["choices"] == answers[1]["choices"]
    for answer in answers:
        read = columns(answer)
        assert len(read["tokens"]) == len(ids) + 1
        assert read["token_logprobs"][0] is None and read["top_logprobs"][0] is None
        assert None not in read["token_logprobs"][1:]
        end = {name: column[-len(made["tokens"]) - 1 : -1] for name, column in read.items()}
        assert end["tokens"] == made["tokens"]
        if shared.kinds_differ():
            assert_near(end, made)
        else:
            assert all(end[name] == made[name] for name in ("token_logprobs", "top_logprobs"))
        text = answer["choices"][0]["text"]
        for token, offset in zip(read["tokens"], read["text_offset"]):
            if not token.startswith("bytes:"):
                assert text[offset : offset + len(token)] == token
        assert answer["usage"]["prompt_tokens_details"]["cached_tokens"] == 0


def merged(stream, n):
    """Text and columns of each of n choices of a stream."""
    texts, found = [""] * n, [{} for _ in range(n)]
    for event in stream:
        for k in event["choices"]:
            texts[k["index"]] += k["text"]
            for name, values in (k["logprobs"] or {}).items():
                found[k["index"]].setdefault(name, []).extend(values)
    return list(zip(texts, found))


def test_streamed_columns_equal_whole(shared):
    body = {"prompt": words(60, 9), "max_tokens": 30, "temperature": 0.8, "seed": 3}
    body.update(logprobs=2, echo=True, n=2)
    whole = post(shared, "/v1/completions", body)
    assert merged(events(shared, "/v1/completions", body), 2) == [
        (k["text"], k["logprobs"]) for k in whole["choices"]
    ]


def test_prompt_of_one_token(shared):
    """Its one token follows nothing; there is nothing to wait for."""
    body = {"prompt": [70], "max_tokens": 2, "temperature": 0, "logprobs": 1, "echo": True}
    read = columns(post(shared, "/v1/completions", body))
    assert read["token_logprobs"][0] is None and None not in read["token_logprobs"][1:]
    assert len(read["tokens"]) == 3


def test_only_the_prompt(shared):
    """No token is generated: its prompt's probabilities, and its place in the pool, are all there is."""
    ids = post(shared, "/tokenize", {"content": words(50, 12)})["tokens"]
    body = {"prompt": ids, "max_tokens": 0, "n_predict": 0, "temperature": 0, "logprobs": 1}
    answer = post(shared, "/v1/completions", {**body, "echo": True})
    (choice,) = answer["choices"]
    assert len(choice["logprobs"]["tokens"]) == len(ids) and choice["finish_reason"] == "length"
    assert answer["usage"]["completion_tokens"] == 0
    more = post(shared, "/v1/completions", {**body, "echo": True, "max_tokens": 1})
    assert {k: v[:-1] for k, v in columns(more).items()} == choice["logprobs"]
    streamed = events(shared, "/v1/completions", {**body, "echo": True})
    parts = [k["logprobs"] for e in streamed for k in e["choices"] if k["logprobs"]]
    assert parts == [choice["logprobs"]]
    read = post(shared, "/completion", {**body, "prompt": ids[1:]})
    assert read["content"] == "" and read["tokens_predicted"] == 0
    assert read["stop_type"] == "limit" and "completion_probabilities" not in read
    again = post(shared, "/completion", {**body, "prompt": ids[1:], "n_predict": 1})
    assert again["tokens_cached"] == len(ids) - 2


def test_worker_dies_while_a_prompt_is_read(slow_model):
    """Its probabilities were told in part; the rest is computed again, and nothing twice."""
    body = {"prompt": words(100, 4), "max_tokens": 5, "temperature": 0, "logprobs": 2, "echo": True}
    settings = {**DEATHS, "worker.piece": 16}
    with Cistern(slow_model, settings=settings).start() as c:
        whole = columns(post(c, "/v1/completions", body))
    with Cistern(slow_model, settings=settings).start() as c:
        answers = []
        t = threading.Thread(target=lambda: answers.append(post(c, "/v1/completions", body)))
        t.start()
        eventually(lambda: c.pool().rows(ACTIVE), "the prompt is being read")
        eventually(lambda: c.page(1)["windows"] > 3, "some pieces are read")
        c.workers[1].kill()
        c.start_worker(1)
        t.join()
        assert columns(answers[0]) == whole
        c.wait_healthy()
        eventually(lambda: not c.pool().rows(ACTIVE, CLOSING), "it is closed")
        assert len(c.pool().rows(WAITING)) == 0


def test_stop_string_cuts_the_tokens(shared):
    """Tokens that a stop string cuts away have no probabilities shown, in a stream either."""
    body = {"messages": [{"role": "user", "content": "hello"}], "max_tokens": 60, "temperature": 0}
    body.update(logprobs=True, top_logprobs=1)
    whole = post(shared, "/v1/chat/completions", body)["choices"][0]["message"]["content"]
    stop = whole[len(whole) // 2 : len(whole) // 2 + 3]
    (choice,) = post(shared, "/v1/chat/completions", {**body, "stop": stop})["choices"]
    content = choice["message"]["content"]
    assert content == whole[: whole.index(stop)]
    tokens = choice["logprobs"]["content"]
    shown = b"".join(bytes(t["bytes"]) for t in tokens).decode(errors="replace")
    assert content.startswith(shown) and len(content) - len(shown) <= 1
    got = []
    for event in events(shared, "/v1/chat/completions", {**body, "stop": stop}):
        for k in event["choices"]:
            got += (k["logprobs"] or {"content": []})["content"]
    assert got == tokens


# ---- against the float32 reference (tests/data/smollm2, numpy), with the tolerances of its README

DATA = ROOT / "tests/data/smollm2"
DEMO = {"model.context": 4096, "pool.cells": 8192, "worker.threads": 2}


@pytest.mark.demo_model
@pytest.mark.parametrize("precision, tolerance", [("float32", 0.03), ("int8", 0.6)])
def test_alternatives_match_the_reference(demo_model, precision, tolerance):
    """The ten likeliest after each prompt; the largest is the reference's unless two are too near."""
    prompts = json.loads((DATA / "reference.json").read_text())["prompts"]
    with Cistern(demo_model, settings={**DEMO, "worker.precision": precision}).start() as c:
        for p in prompts:
            body = {"prompt": p["ids"], "n_predict": 1, "temperature": 0, "n_probs": 20}
            answer = post(c, "/completion", {**body, "ignore_eos": True})
            (token,) = answer["completion_probabilities"]
            got = {t["id"]: t["logprob"] for t in token["top_logprobs"]}
            top, norm = p["last"]["top"], p["last"]["logsumexp"]
            if precision == "float32" or top[0][1] - top[1][1] > 0.5:
                assert token["id"] == top[0][0], p["name"]
            for token_id, logit in top[:10]:
                if precision == "float32":
                    assert token_id in got, p["name"]
                if token_id in got:
                    assert abs(got[token_id] - (logit - norm)) <= tolerance, p["name"]


@pytest.mark.demo_model
def test_likelihood_of_a_text_matches_the_reference(demo_model):
    """The mean over 2,000 tokens, by echo and logprobs."""
    text = json.loads((DATA / "perplexity.json").read_text())["perplexity"]
    body = {"prompt": text["ids"], "max_tokens": 1, "temperature": 0, "logprobs": 0, "echo": True}
    with Cistern(demo_model, stages=1, settings=DEMO).start() as c:
        logprobs = columns(post(c, "/v1/completions", body))["token_logprobs"]
    read = logprobs[1 : len(text["ids"])]
    assert len(read) == text["float32"]["count"]
    assert abs(-sum(read) / len(read) - text["float32"]["mean_nll"]) <= 0.02


# ---- batches


def test_batch_is_prompt_major(shared):
    prompts = [words(10, 1), words(40, 2), words(3, 3)]
    fields = {"max_tokens": 12, "temperature": 0.7, "seed": 5, "logprobs": 1}
    whole = post(shared, "/v1/completions", {**fields, "prompt": prompts, "n": 2, "echo": True})
    assert [k["index"] for k in whole["choices"]] == list(range(6))
    used = 0
    for i, prompt in enumerate(prompts):
        one = post(shared, "/v1/completions", {**fields, "prompt": prompt, "n": 2, "echo": True})
        used += one["usage"]["prompt_tokens"]
        for k, choice in enumerate(one["choices"]):
            assert {**whole["choices"][2 * i + k], "index": k} == choice
    assert whole["usage"]["prompt_tokens"] == used
    streamed = events(shared, "/v1/completions", {**fields, "prompt": prompts, "n": 2, "echo": True})
    assert merged(streamed, 6) == [(k["text"], k["logprobs"]) for k in whole["choices"]]


@pytest.mark.cpu("the gateway's own")
def test_batch_is_bounded(shared):
    status, answer = shared.post("/v1/completions", {"prompt": ["a"] * 9})
    assert status == 400 and answer["error"]["param"] == "prompt"
    status, answer = shared.post("/v1/completions", {"prompt": ["a"] * 3, "n": 3})
    assert status == 400 and answer["error"]["param"] == "n"


# ---- progress


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/completion"])
def test_progress(tiny_model, path):
    """What was cached first, then each piece; the last says all, before the first token."""
    text = words(120, 6)
    body = {"messages": [{"role": "user", "content": text}], "prompt": text, "temperature": 0}
    body.update(max_tokens=3, n_predict=3, return_progress=True)
    with Cistern(tiny_model, settings={**SMALL, "worker.piece": 32}).start() as c:
        for again in (False, True):
            found = events(c, path, body)
            told = [e["prompt_progress"] for e in found if "prompt_progress" in e]
            total, cache = told[0]["total"], told[0]["cache"]
            assert all((t["total"], t["cache"]) == (total, cache) for t in told)
            assert (cache == total - 1) == again
            steps = [t["processed"] for t in told]
            assert steps[0] == cache and steps[-1] == total and steps == sorted(set(steps))
            assert again or len(steps) == (total + 31) // 32 + 1
            assert all(isinstance(t["time_ms"], int) and t["time_ms"] >= 0 for t in told)
            last = max(i for i, e in enumerate(found) if "prompt_progress" in e)
            says = [e.get("content") or e.get("choices", [{}])[0].get("delta", {}).get("content")
                    for e in found[:last]]
            assert not any(says)
        assert "prompt_progress" not in post(c, path, body)
