# SPDX-License-Identifier: MIT
"""The identity layout (pool.cells = 0): each lane has one full context of its own. Answers are those
of the pool, by the hash of each row's full logits; where chunks lie is read from the pool's files."""
from harness import Cistern, eventually
from pool import ACTIVE, CLOSING, IDLE
from test_equal import SMALL, Crowd, cached, crowd_chats, same_request, solo_rows, words
from test_poolctl import idle, poolctl

IDENTITY = {**SMALL, "pool.cells": 0, "worker.lanes": 4}
LANE_CHUNKS = 2048 // 64
CHAT = (words(60, 5), {"max_tokens": 30, "temperature": 0})


def lies_in_its_lane(pool):
    for row in pool.rows():
        first = 1 + row["lane"] * LANE_CHUNKS
        chunks = [e & 0xFFFFFFFF for e in row["table"]]
        assert chunks == list(range(first, first + len(chunks))), row


def quiet(c):
    eventually(lambda: not c.pool().rows(ACTIVE, CLOSING), "all lanes are free")
    lies_in_its_lane(c.pool())


def test_a_crowd_is_as_with_the_pool(tiny_model):
    """Eight chats over four lanes; the solo runs are the pool's."""
    chats = crowd_chats()
    alone, answers = solo_rows(tiny_model, chats)
    with Cistern(tiny_model, settings=IDENTITY).start() as c:
        crowd = Crowd(c, chats, None)
        crowd.run()
        quiet(c)
        together = list(c.trace().values())
        assert 1 <= len(c.pool().rows(IDLE)) <= 4
    for i, rows in enumerate(alone):
        assert same_request(rows, together) == rows
        assert crowd.streams[i].text == answers[i]["choices"][0]["message"]["content"]


def test_what_it_shows_and_what_outlives_poold(tiny_model):
    with Cistern(tiny_model, settings=IDENTITY).start() as c:
        first = c.chat(CHAT[0], **CHAT[1])
        quiet(c)
        status = poolctl(c, "status")["pool"]
        assert status["lane_cells"] == 2048
        assert status["cells"]["total"] == c.metric("cistern_pool_cells") - 64 == 4 * 2048
        assert status["cells"]["cached"] == 64 * len(c.pool().rows(IDLE)[0]["table"])
        c.poold.kill()
        c.start_poold()
        c.wait_healthy()
        # The same lane is the first that is free: what was computed there is still there.
        again = c.chat(CHAT[0], **CHAT[1])
        assert cached(again) == first["usage"]["prompt_tokens"] - 1
        rows = list(c.trace().values())
        assert rows[1].items() <= rows[0].items()
        # Another prompt on that lane takes its place.
        assert cached(c.chat(words(50, 6), max_tokens=4)) < 64
        quiet(c)
        assert len(c.pool().rows(IDLE)) == 1


def test_a_pipeline_without_ranges_is_refused(tiny_model):
    with Cistern(tiny_model, stages=1, settings=IDENTITY).start() as c:
        other = c.launch("workerd", "--pipeline", 1, name="other")
        assert other.wait() == 1 and "raise pool.pipelines" in other.text()
        assert c.chat(CHAT[0], **CHAT[1])


def test_two_pipelines_have_their_own_lanes(tiny_model):
    """A drained pipeline's conversation is read again on the other one, with the same tokens."""
    settings = {**IDENTITY, "pool.pipelines": 2, "worker.lanes": 2}
    with Cistern(tiny_model, stages=1, settings=settings).start() as c:
        trace = c.folder / "trace-1"
        other = c.launch("workerd", "--pipeline", 1, "--set", f"worker.trace={trace}", name="other")
        c.wait_ready(other)
        eventually(lambda: c.metric("cistern_pipelines_ready") == 2, "both are ready")
        first = c.chat(CHAT[0], **CHAT[1])
        (row,) = idle(c)
        poolctl(c, "drain", row["pipeline"])
        eventually(lambda: c.metric("cistern_pipelines_ready") == 1, "it takes nothing new")
        again = c.chat(CHAT[0], **CHAT[1])
        assert cached(again) == 0 and again["choices"] == first["choices"]
        there, here = idle(c)
        assert {there["pipeline"], here["pipeline"]} == {0, 1}
        for r in (there, here):
            at = 1 + (r["pipeline"] * 2 + r["lane"]) * LANE_CHUNKS
            assert [e & 0xFFFFFFFF for e in r["table"]] == list(range(at, at + len(r["table"])))
        (rows,), (others,) = c.trace().values(), c.trace(trace).values()
        assert rows == others
        other.stop()
