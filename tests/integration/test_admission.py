# SPDX-License-Identifier: MIT
"""Who is taken, who is told to come back, and what has been done by then. That a refusal comes before
the work is seen by what has not been counted, and by workers that stand still; not by time."""
import json
import math

import pytest

from harness import Cistern, chat_body, eventually
from pool import ACTIVE, CLOSING, WAITING
from test_equal import SMALL, words
from test_poolctl import held_up

CHUNK = 16
FULL = {
    **SMALL,
    "model.context": 512,
    "pool.chunk": CHUNK,
    "pool.cells": 512 + 2 * CHUNK,
    "pool.admission": "full",
    "worker.variant": "plain",
}
HELLO = [{"role": "user", "content": "hello"}]
APIS = {
    "/v1/chat/completions": {"messages": HELLO},
    "/v1/completions": {"prompt": "hello"},
    "/v1/responses": {"input": "hello"},
    "/v1/messages": {"messages": HELLO, "max_tokens": 5},
    "/completion": {"prompt": "hello"},
}


def ask(c, path, body):
    connection = c.connect()
    connection.request("POST", path, json.dumps({"model": "m", **body}))
    response = connection.getresponse()
    return response.status, response.headers, json.loads(response.read())


def occupied(c):
    """A completion that has most of the pool, and stands still. No chat begins as it does: none waits for
    what it has to read."""
    connection = c.connect()
    body = {"model": "m", "prompt": "hello", "max_tokens": 450, "temperature": 0, "ignore_eos": True}
    c.begin(lambda: connection.request("POST", "/v1/completions", json.dumps(body)))
    return connection


def is_whole(connection):
    (choice,) = json.loads(connection.getresponse().read())["choices"]
    return choice["finish_reason"] == "length" and not choice.get("truncated")


def tokenised(c):
    return c.metric("cistern_prompts_tokenised_total")


def test_a_full_queue_is_told_before_a_prompt_is_read(slow_model):
    """On every API; a prompt that is read counts, one that is refused for the queue does not."""
    settings = {**SMALL, "worker.lanes": 1, "gateway.queue": 0, "worker.variant": "plain"}
    with Cistern(slow_model, settings=settings).start() as c:
        before = tokenised(c)
        stream = c.half_way(words(20, 1), 1, max_tokens=1500, temperature=0, ignore_eos=True)
        assert tokenised(c) == before + 1
        with held_up(c.workers[1]):
            for path, body in APIS.items():
                status, headers, answer = ask(c, path, body)
                assert status == (529 if path == "/v1/messages" else 503), path
                assert int(headers["Retry-After"]) > 0
                assert answer["error"].get("code", "queue_full") == "queue_full"
            # Also what could never be served: who has no place is not looked at.
            status, _, answer = ask(c, "/v1/chat/completions", chat_body("x " * 3000, {}))
            assert (status, answer["error"]["code"]) == (503, "queue_full")
        assert tokenised(c) == before + 1
        stream.leave()
        eventually(lambda: c.metric("cistern_requests_in_flight") == 0, "there is a place again")
        for path, body in APIS.items():
            limit = "n_predict" if path == "/completion" else "max_tokens"
            assert ask(c, path, {**body, limit: 2})[0] == 200
        assert tokenised(c) == before + 1 + len(APIS)


def test_a_full_pool_is_told_before_anything_is_computed(slow_model):
    """The prompt is tokenised, once; no window of it can have run, since a stage stands still."""
    with Cistern(slow_model, settings=FULL).start() as c:
        first = occupied(c)
        with held_up(c.workers[1]):
            (row,) = c.pool().rows(ACTIVE)
            before, prompts = tokenised(c), c.metric("cistern_tokens_total", kind="prompt")
            content = words(30, 2)
            body = chat_body(content, {"max_tokens": 100})
            status, headers, answer = ask(c, "/v1/chat/completions", body)
            assert (status, headers["Retry-After"]) == (503, "10")
            error = answer["error"]
            expected = ("server_error", "kv_pool_full", 10)
            assert (error["type"], error["code"], error["retry_after"]) == expected
            assert tokenised(c) == before + 1
            assert c.metric("cistern_tokens_total", kind="prompt") > prompts
            assert [r["index"] for r in c.pool().rows()] == [row["index"]]
            # What can never fit is no matter of now.
            status, headers, answer = ask(c, "/v1/chat/completions", chat_body("x " * 600, {}))
            assert (status, answer["error"]["code"]) == (400, "context_length_exceeded")
            assert "Retry-After" not in headers
        first.close()
        eventually(lambda: not c.pool().rows(ACTIVE, CLOSING), "it has given back its room")
        assert c.chat(content, max_tokens=100)["choices"]


@pytest.mark.parametrize("max_tokens", [100, None])
def test_full_admission_reserves_the_whole_answer(slow_model, max_tokens):
    """Prompt and max_tokens, or pool.default_tokens, in whole chunks; with grow, the prompt and one
    growth unit."""
    for admission in ("full", "grow"):
        settings = {**FULL, "pool.admission": admission, "pool.default_tokens": 200}
        with Cistern(slow_model, settings=settings).start() as c:
            fields = {"ignore_eos": True, **({"max_tokens": max_tokens} if max_tokens else {})}
            stream = c.begin(lambda: c.stream("hello", **fields))
            with held_up(c.workers[1]):
                (row,) = c.pool().rows(ACTIVE)
                slots = json.loads(c.get("/slots")[1])
                (prompt,) = [s["n_prompt_tokens"] for s in slots if s["is_processing"]]
            if admission == "full":
                assert row["n_entries"] == math.ceil((prompt + (max_tokens or 200)) / CHUNK)
            else:
                assert row["n_entries"] < math.ceil((prompt + 100) / CHUNK)
            stream.leave()


def test_who_waits_for_room_is_served_in_order(slow_model):
    """when_dry = wait: both wait while the first one holds the pool, then begin in the order they came."""
    settings = {**FULL, "pool.when_dry": "wait"}
    with Cistern(slow_model, settings=settings).start() as c:
        first = occupied(c)
        later = []
        for i in range(2):
            fields = {"max_tokens": 300, "temperature": 0, "ignore_eos": True}
            later.append(c.stream(f"{i} {words(20, i)}", **fields))
            eventually(lambda n=i + 1: c.metric("cistern_requests_waiting") == n, "it waits")
        c.workers[1].thaw()
        assert is_whole(first)
        for stream in later:
            assert stream.read_all().done and stream.finish_reason == "length" and not stream.error
        # They appear in the trace when their prompt is read; the gateway numbers them as they come.
        numbers = [int(request, 16) for request in c.trace()]
        assert len(numbers) == 3 and numbers == sorted(numbers)
        assert not c.pool().rows(WAITING)


def test_who_waits_for_room_too_long_is_told(slow_model):
    """gateway.queue_wait_ms: then it is a 503 like any, though the first one still runs; nothing of it is
    left in poold's queue."""
    settings = {**FULL, "pool.when_dry": "wait", "gateway.queue_wait_ms": 100}
    with Cistern(slow_model, settings=settings).start() as c:
        first = occupied(c)
        with held_up(c.workers[1]):
            body = chat_body(words(20, 1), {"max_tokens": 300})
            status, headers, answer = ask(c, "/v1/chat/completions", body)
            assert (status, answer["error"]["code"]) == (503, "kv_pool_full")
            assert headers["Retry-After"] == "10"
            assert c.metric("cistern_requests_waiting") == 0
            assert len(c.pool().rows()) == 1
        assert is_whole(first)
        assert c.chat(words(20, 1), max_tokens=300)["choices"]
