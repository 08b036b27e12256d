# SPDX-License-Identifier: MIT
"""A client that leaves is cancelled where its request stands, what it computed stays cached, and the
next answer on its lane holds nothing of it."""
import pytest

from harness import Cistern, eventually
from pool import ACTIVE, CLOSING, IDLE
from test_equal import SMALL, cached, solo_rows, words

SLOW = {"worker.piece": 32, "worker.variant": "plain"}
ONE_LANE = {**SMALL, **SLOW, "worker.lanes": 1}
LONG = (words(200, 21), {"max_tokens": 4, "temperature": 0})
SHORT = (words(20, 22), {"max_tokens": 30, "temperature": 0})


@pytest.fixture(scope="module")
def alone(slow_model):
    rows, answers = solo_rows(slow_model, [LONG, SHORT], **SLOW)
    return rows, [a["choices"][0]["message"]["content"] for a in answers]


def idle(c):
    return eventually(
        lambda: not c.pool().rows(ACTIVE) and c.pool().rows(IDLE), "the lane is free again"
    )


def test_in_the_queue(slow_model, alone):
    with Cistern(slow_model, settings=ONE_LANE).start() as c:
        first = c.begin(lambda: c.stream(SHORT[0], **SHORT[1]))
        waiting = c.stream(LONG[0], **LONG[1])
        eventually(lambda: c.metric("cistern_requests_waiting") == 1, "the second one waits")
        waiting.leave()
        eventually(lambda: c.metric("cistern_requests_waiting") == 0, "it waits no more")
        c.workers[1].thaw()
        first.read_all()
        assert first.text == alone[1][1]
        assert len(c.trace()) == 1, "the one that left was computed"


def test_while_its_prompt_is_read(slow_model, alone):
    with Cistern(slow_model, settings=ONE_LANE).start() as c:
        stream = c.stream(LONG[0], **LONG[1])
        before = c.page(1)["windows"]
        eventually(lambda: c.page(1)["windows"] > before + 1, "its prompt is being read")
        c.workers[1].freeze()
        stream.leave()
        eventually(lambda: c.pool().rows(CLOSING), "it is noticed")
        c.workers[1].thaw()
        idle(c)
        assert not c.trace(), "its prompt was read to the end"
        (row,) = c.pool().rows(IDLE)
        kept = row["base"]
        assert kept > 0
        again = c.chat(LONG[0], **LONG[1])
        assert cached(again) == kept
        assert again["choices"][0]["message"]["content"] == alone[1][0]


@pytest.mark.parametrize("pieces", [1, 7])
def test_while_it_is_answered(slow_model, alone, pieces):
    rows, texts = alone
    with Cistern(slow_model, settings=ONE_LANE).start() as c:
        stream = c.stream(SHORT[0], max_tokens=1500, temperature=0)
        for _ in range(pieces):
            next(stream)
        stream.leave()
        idle(c)
        after = c.chat(LONG[0], **LONG[1])
        assert after["choices"][0]["message"]["content"] == texts[0]
        again = c.chat(SHORT[0], **SHORT[1])
        assert again["choices"][0]["message"]["content"] == texts[1]
        assert cached(again) == again["usage"]["prompt_tokens"] - 1
        assert list(c.trace().values())[1:] == rows


def test_without_a_stream(slow_model, alone):
    """A client that waits for its answer in one piece and leaves is noticed as well."""
    with Cistern(slow_model, settings=ONE_LANE).start() as c:
        connection = c.connect()
        c.send(connection, SHORT[0], max_tokens=1500, temperature=0)
        eventually(lambda: c.trace(), "it is being answered")
        connection.close()
        idle(c)
        again = c.chat(SHORT[0], **SHORT[1])
        assert again["choices"][0]["message"]["content"] == alone[1][1]


def test_a_slow_reader_holds_nobody(slow_model, alone):
    """One that reads nothing is cut off when gateway.out_bytes are unsent; the others go on."""
    settings = {**ONE_LANE, "worker.lanes": 2, "gateway.out_bytes": 4096}
    with Cistern(slow_model, settings=settings).start() as c:
        slow = c.stream(SHORT[0], max_tokens=1900, temperature=0)
        fast = c.chat(LONG[0], **LONG[1])
        assert fast["choices"][0]["message"]["content"] == alone[1][0]
        slow.leave()
        idle(c)
