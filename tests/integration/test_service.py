# SPDX-License-Identifier: MIT
"""What the running programs tell of themselves: health, models, usage, metrics, memory maps."""
import json
import pathlib
import re

import pytest

from harness import Cistern, eventually
from pool import ACTIVE, CLOSING
from test_equal import SMALL, words


def test_health_tells_of_every_stage(tiny_model):
    with Cistern(tiny_model, settings=SMALL) as c:
        c.start_poold()
        c.start_gateway()
        status, body = c.get("/health")
        assert status == 503 and "error" in json.loads(body)
        assert c.post("/v1/chat/completions", {"messages": [{"role": "user", "content": "x"}]})[
            0
        ] == 503
        c.start_worker(0, wait=False)
        assert c.get("/health")[0] == 503
        c.start_worker(1)
        c.wait_ready(*c.workers)
        c.wait_healthy()
        c.workers[1].stop()
        eventually(lambda: c.get("/health")[0] == 503, "health tells of the missing stage")


def test_order_of_start_does_not_matter(tiny_model):
    with Cistern(tiny_model, settings=SMALL) as c:
        gateway = c.launch("gateway")
        c.start_worker(1, wait=False)
        c.start_worker(0, wait=False)
        for w in c.workers:
            eventually(lambda w=w: "waiting for poold at" in w.text(), "it says what it waits for")
        c.start_poold()
        c.wait_ready(gateway, *c.workers)
        gateway.stop()
        c.start_gateway()
        c.wait_healthy()
        assert c.chat("hello", max_tokens=2)["choices"]


@pytest.mark.cpu("the gateway's own")
def test_models(tiny_model):
    with Cistern(tiny_model, settings={**SMALL, "model.name": "one"}).start() as c:
        models = json.loads(c.get("/v1/models")[1])
        (model,) = models["data"]
        assert models["object"] == "list" and model["object"] == "model" and model["id"] == "one"
        assert isinstance(model["created"], int) and model["owned_by"]
        assert model["meta"]["n_ctx"] == model["max_model_len"] == 2048
        assert json.loads(c.get("/v1/models/one")[1])["id"] == "one"


def test_usage_and_metrics_agree(tiny_model):
    with Cistern(tiny_model, settings=SMALL).start() as c:
        total = c.metric("cistern_pool_cells")
        assert c.metric("cistern_pool_cells", state="free") == 16384
        answers = [c.chat(words(20, i), max_tokens=10, temperature=0) for i in range(3)]
        used = [a["usage"] for a in answers]
        for u in used:
            assert u["total_tokens"] == u["prompt_tokens"] + u["completion_tokens"]
        assert c.metric("cistern_requests_total", route="/v1/chat/completions", status="200") == 3
        generated = sum(u["completion_tokens"] for u in used)
        assert c.metric("cistern_tokens_total", kind="generated") == generated
        prompts = sum(u["prompt_tokens"] for u in used)
        assert c.metric("cistern_tokens_total", kind="prompt") == prompts
        assert c.metric("cistern_time_to_first_token_seconds_count") == 3
        assert c.metric("cistern_time_between_tokens_seconds_count") == generated - 3
        eventually(lambda: c.metric("cistern_pool_cells", state="cached") > 0, "cells are cached")
        assert c.metric("cistern_pool_cells") == total


def test_stream_is_the_answer(tiny_model):
    """Same text, usage and reason in pieces as in one; the events have OpenAI's order."""
    fields = {"max_tokens": 40, "temperature": 1.0, "seed": 3}
    with Cistern(tiny_model, settings=SMALL).start() as c:
        whole = c.chat("hello", **fields)
        stream = c.stream("hello", **fields).read_all()
        choice = whole["choices"][0]
        assert stream.done and stream.text == choice["message"]["content"]
        assert stream.finish_reason == choice["finish_reason"]
        for key in ("prompt_tokens", "completion_tokens", "total_tokens"):
            assert stream.usage[key] == whole["usage"][key]


def test_the_queue_is_bounded(tiny_model):
    """One lane, one place in the queue: the third request is told to come back."""
    settings = {**SMALL, "worker.lanes": 1, "gateway.queue": 1}
    with Cistern(tiny_model, settings=settings).start() as c:
        first = c.begin(lambda: c.stream(words(20, 1), max_tokens=1500, temperature=0))
        second = c.stream("two", max_tokens=2)
        eventually(lambda: c.metric("cistern_requests_waiting") == 1, "the second one waits")
        connection = c.connect()
        c.send(connection, "three", max_tokens=2)
        response = connection.getresponse()
        assert response.status == 503 and int(response.headers["Retry-After"]) > 0
        assert json.loads(response.read())["error"]["code"] == "queue_full"
        c.workers[1].thaw()
        first.leave()
        assert second.read_all().done


def test_a_full_pool_refuses_or_ends_one(tiny_model):
    """Two long answers in a pool that holds one: both end properly, neither text is the other's."""
    settings = {**SMALL, "pool.cells": 2048 + 3 * 64, "worker.lanes": 2}
    fields = {"max_tokens": 1900, "temperature": 0}
    with Cistern(tiny_model, settings=settings).start() as c:
        alone = [c.chat(words(20, i), **fields)["choices"][0]["message"]["content"] for i in (1, 2)]
        streams = c.crowd([(words(20, i), fields) for i in (1, 2)])
        for s, text in zip(streams, alone):
            assert s.done and not s.error
            assert text.startswith(s.text)
        eventually(lambda: not c.pool().rows(ACTIVE), "all lanes are free")
        c.pool().check_tables()


STOPS = 6


def test_windows_of_two_groups_fill_a_stage(slow_model):
    """With one conversation each stage waits while its window is at the other one, at every step;
    with eight, in two groups, the first stage goes on with the other group's window, and the second
    one finds that there. The second one is stopped for this: how fast either is does not count."""
    settings = {**SMALL, "worker.variant": "plain"}
    with Cistern(slow_model, settings=settings).start() as c:

        def filled():
            """Windows of the second stage at whose end the next one was there."""
            page = c.page(1)
            return page["windows"] - page["bubbles"]

        def first_is_ahead(by):
            windows = [c.page(i)["windows"] for i in range(2)]
            assert windows[0] - windows[1] <= by, windows
            return windows[0] - windows[1] == by

        def stop_the_second(in_flight):
            """The first one runs all that may be in flight, and no more. Again, if the second one stood
            between counting a window and telling of it: that group's next one was not posted then."""
            for _ in range(3):
                c.workers[1].freeze()
                try:
                    return eventually(lambda: first_is_ahead(in_flight), "stage 0 is ahead", 10)
                except AssertionError as e:
                    error = e
                finally:
                    windows = c.page(1)["windows"]
                    c.workers[1].thaw()
                    eventually(lambda: c.page(1)["windows"] > windows + 1, "stage 1 goes on")
            raise error

        for n, in_flight in (1, 1), (8, 2):
            before = filled()
            fields = {"max_tokens": 1500, "temperature": 0, "ignore_eos": True}
            streams = [c.stream(words(4, i), **fields) for i in range(n)]
            for s in streams:
                next(s)
            for _ in range(STOPS):
                stop_the_second(in_flight)
            for s in streams:
                s.leave()
            eventually(lambda: not c.pool().rows(ACTIVE, CLOSING), "all have ended")
            if n == 1:
                assert filled() - before <= 1, "only the prompt's windows follow each other"
            else:
                assert filled() - before >= STOPS


@pytest.mark.cpu("a worker on a card keeps its weights there")
@pytest.mark.demo_model
def test_a_stage_maps_only_its_layers(demo_model):
    """Resident pages of the model file: each stage has its layers and the embedding, not more."""
    settings = {"model.context": 2048, "pool.cells": 4096, "worker.threads": 2}
    with Cistern(demo_model, settings=settings).start() as c:
        c.chat("Name the capital of France.", max_tokens=5, temperature=0)
        resident = [resident_bytes(w.pid, demo_model) for w in c.workers]
    # 30,081,024 bytes of token_embd (49,152 x 576 in Q8_0) and half of the other 68 MB, and slack
    # for the pages at both ends and what readahead maps around them.
    whole, embedding = 98_362_432, 30_081_024
    for n in resident:
        assert n <= embedding + (whole - embedding) // 2 + (4 << 20), resident


def resident_bytes(pid, path):
    total, ours = 0, False
    for line in pathlib.Path(f"/proc/{pid}/smaps").read_text().splitlines():
        if re.match(r"[0-9a-f]+-[0-9a-f]+ ", line):
            ours = line.endswith(str(path))
        elif ours and line.startswith("Rss:"):
            total += int(line.split()[1]) * 1024
    return total


@pytest.mark.demo_model
def test_bytes_of_a_character_come_together(demo_model):
    """Greedy answers full of multi-byte characters: each event is valid by itself."""
    settings = {"model.context": 2048, "pool.cells": 4096, "worker.threads": 2}
    with Cistern(demo_model, settings=settings).start() as c:
        content = "Repeat exactly: 🙂 naïve 東京 Ünïcödé 🚀🚀"
        stream = c.stream(content, max_tokens=60, temperature=0)
        pieces = list(stream)
        whole = c.chat(content, max_tokens=60, temperature=0)["choices"][0]["message"]["content"]
    assert "".join(pieces) == whole
    assert any(ord(ch) > 0x7F for ch in whole), whole
    assert "\ufffd" not in whole
