# SPDX-License-Identifier: MIT
"""The demo model on cards, through all programs: an answer alone = in a crowd = with its K/V where the
cards' own memory has no place for it = moved to another pipeline = after a stage's death, by the hash of
each row's full logits. CISTERN_CARDS=2: the second stage is on the second card. That what stands in the
cards' memory is what is said is seen by changing a key in the pool behind their backs."""

import pytest

from harness import Cistern, eventually
from pool import ACTIVE, Arena
from test_equal import SMALL, arena_name, cached, same_request, solo_rows, words
from test_poolctl import idle, name, poolctl

pytestmark = pytest.mark.device
CHUNK = 64
SETTINGS = {
    "model.context": 4096,
    "pool.cells": 12288,
    "pool.chunk": CHUNK,
    "worker.piece": 256,
    "worker.stuck_ms": 60000,
    "worker.trace": True,
}
PARIS = ("Name the capital of France.", {"max_tokens": 40, "temperature": 0})
LONG = (words(60, 11), {"max_tokens": 300, "temperature": 0.8, "seed": 5, "ignore_eos": True})
CHATS = [
    PARIS,
    LONG,
    (f"a {words(700, 1)}", {"max_tokens": 60, "temperature": 0}),
    (f"b {words(250, 2)}", {"max_tokens": 200, "temperature": 0.7, "seed": 6, "ignore_eos": True}),
    (f"c {words(9, 3)}", {"max_tokens": 300, "temperature": 1.1, "top_p": 0.9, "seed": 7}),
]


def text(answer):
    return answer["choices"][0]["message"]["content"]


@pytest.fixture(scope="module", params=["f16", "int8"])
def alone(request, demo_model):
    """(settings, rows, answers), each chat by itself in one stage."""
    settings = {**SETTINGS, "pool.kv": request.param}
    rows, answers = solo_rows(demo_model, CHATS, stages=1, **settings)
    assert text(answers[0]) == "The capital of France is Paris."  # as llama.cpp has it
    return settings, rows, [text(a) for a in answers]


@pytest.mark.demo_model
@pytest.mark.parametrize("stages", [1, 2])
@pytest.mark.parametrize("resident", [None, 12 * CHUNK, 0])
def test_a_crowd(demo_model, alone, stages, resident):
    """The prompts alone have some 50 chunks; then all are asked again, which finds them in the pool."""
    settings, rows, texts = alone
    if resident is not None:
        settings = {**settings, "worker.kv_resident": resident}
    with Cistern(demo_model, stages, settings).start() as c:
        for again in (False, True):
            before = len(c.trace()) if again else 0
            streams = c.crowd(CHATS)
            idle(c)
            together = list(c.trace().values())[before:]
            for i, s in enumerate(streams):
                assert s.done and not s.error and s.text == texts[i]
                if not again:
                    assert same_request(rows[i], together) == rows[i]
            assert all(any(t.items() <= r.items() for r in rows) for t in together)
        c.pool().check_tables()


def struck(c, strike, alone):
    """Somebody is struck while LONG is answered: it goes on as if nothing had been."""
    _, rows, texts = alone
    stream = c.stream(LONG[0], **LONG[1])
    for _ in range(8):
        next(stream)
    strike()
    stream.read_all()
    assert stream.done and not stream.error and stream.text == texts[1]
    idle(c)
    found = list(c.trace().values())
    assert all(f.items() <= rows[1].items() for f in found)
    assert {p for f in found for p in f} == set(rows[1])
    c.pool().check_tables()


@pytest.mark.demo_model
@pytest.mark.parametrize("stages", [1, 2])
def test_moved(demo_model, alone, stages):
    """What the first pipeline's cards had in their memory the other's read from the pool."""
    with Cistern(demo_model, stages, {**alone[0], "worker.lanes": 2}).start() as c:
        others = [c.launch("workerd", "--pipeline", 1, "--stage", s) for s in range(stages)]
        c.wait_ready(*others)
        eventually(lambda: c.metric("cistern_pipelines_ready") == 2, "both pipelines are ready")

        def move():
            (row,) = c.pool().rows(ACTIVE)
            other = 1 - row["pipeline"]
            assert poolctl(c, "move", name(row), "--pipeline", other)["n"] == 1

        struck(c, move, alone)
        assert c.metric("cistern_moves_total") == 1
        for p in others:
            p.stop()


@pytest.mark.demo_model
@pytest.mark.parametrize("stages, victim", [(1, 0), (2, 0), (2, 1)])
def test_killed_and_resumed(demo_model, alone, stages, victim):
    with Cistern(demo_model, stages, alone[0]).start() as c:

        def kill():
            assert c.pool().rows(ACTIVE)
            c.workers[victim].kill()
            c.start_worker(victim)

        struck(c, kill, alone)
        assert c.metric("cistern_resubmissions_total", cause="lost") == 1


# ---- what is read from where


FIRST = (words(40, 1), {"max_tokens": 4, "temperature": 0})
# So many windows that what FIRST read is not of late any more (LATE_WINDOWS in cuda/resident.c).
OTHER = (words(90, 2), {"max_tokens": 40, "temperature": 0, "ignore_eos": True})
PLACES = 4


@pytest.mark.parametrize("resident", [None, PLACES * CHUNK])
def test_what_was_evicted_is_read_from_the_pool(tiny_model, resident):
    """A key of a cached conversation is changed in the pool after another one was answered, for which a
    card with a few places must have given up the first one's. Whoever has it still does not notice."""
    settings = {**SMALL, "pool.chunk": CHUNK}
    if resident is not None:
        settings["worker.kv_resident"] = resident
    with Cistern(tiny_model, settings=settings).start() as c:
        first = c.chat(FIRST[0], **FIRST[1])
        (row,) = idle(c)
        assert row["base"] > CHUNK
        c.chat(OTHER[0], **OTHER[1])
        assert max(r["n_entries"] for r in idle(c)) > PLACES
        for stage in range(2):
            Arena(c.pool(), arena_name(stage)).flip_key(row["table"][0] & 0xFFFFFFFF, 3)
        again = c.chat(FIRST[0], **FIRST[1])
        assert cached(again) == first["usage"]["prompt_tokens"] - 1
        rows = list(c.trace().values())
    noticed = [p for p in rows[0].keys() & rows[2].keys() if rows[0][p] != rows[2][p]]
    assert bool(noticed) == (resident is not None)
