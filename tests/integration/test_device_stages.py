# SPDX-License-Identifier: MIT
"""Stages on cards: activations by peer copies and through host memory, a killed stage, a device that
fails for good. With CISTERN_CARDS=1 all stages are on one card. What must be equal is held equal by the
hash of each row's full logits. How long it took until a dead worker's memory was back is printed (pytest
-s), not asserted."""
import subprocess
import threading
import time

import pytest

from harness import CARDS, Cistern, device, eventually
from test_equal import SMALL, same_request, words
from test_split import LAYERS, layers
from test_ways import ways

SETTINGS = {**SMALL, "worker.stuck_ms": 600000}
CHATS = [
    (f"{i} {words(n, i)}", {"max_tokens": 40, "temperature": 0.8 if i % 2 else 0, "seed": i})
    for i, n in enumerate((3, 60, 20))
]
CONTROL = {0, 1, 2}  # of the tiny model
LONG = (words(40, 11), {"max_tokens": 400, "temperature": 0.8, "seed": 5, "ignore_eos": True})


pytestmark = pytest.mark.device


def memory_used(card):
    """MiB of a card."""
    query = ["nvidia-smi", "--query-gpu=memory.used", "--format=csv,noheader,nounits", f"--id={card}"]
    return int(subprocess.run(query, capture_output=True, text=True, check=True).stdout)


def rows_of(model, stages, peer, wanted):
    """The rows of each chat, and of all of them at once."""
    with Cistern(model, stages, {**SETTINGS, "worker.peer": peer}).start() as c:
        eventually(lambda: len(ways(c)) == stages - 1, "the ways are said")
        assert ways(c) == wanted(c)
        for content, fields in CHATS:
            c.chat(content, **fields)
        alone = list(c.trace().values())
        c.crowd(CHATS)
        together = list(c.trace().values())[len(alone) :]
    for rows in alone:
        assert same_request(rows, together) == rows
    return alone


def by_peer(c):
    last = c.stages - 1
    return {s: f"peer {device(s)} -> {device(s + 1)}" for s in range(last)}


def by_host(c):
    return {s: "through host memory: worker.peer = off" for s in range(c.stages - 1)}


def test_bits_do_not_depend_on_the_way(tiny_model):
    one = rows_of(tiny_model, 1, "auto", lambda c: {})
    for stages in (2, 3):
        assert rows_of(tiny_model, stages, "on", by_peer) == one
        assert rows_of(tiny_model, stages, "off", by_host) == one


def texts_of(model, stages, peer):
    """Without a trace, which would have the host look at each window: of each chat, and of all at once."""
    settings = {k: v for k, v in SETTINGS.items() if k != "worker.trace"} | {"worker.peer": peer}
    with Cistern(model, stages, settings).start() as c:
        alone = [c.chat(content, **fields)["choices"] for content, fields in CHATS]
        for _ in range(3):
            streams = c.crowd(CHATS)
            assert [s.text for s in streams] == [a[0]["message"]["content"] for a in alone]
    return alone


def test_windows_prepared_ahead_say_the_same(tiny_model):
    one = texts_of(tiny_model, 1, "auto")
    for stages in (2, 3):
        assert texts_of(tiny_model, stages, "on") == one
        assert texts_of(tiny_model, stages, "off") == one


def test_layers_by_free_memory(tiny_model):
    """Who comes back when the cards are full has the layers that it had."""
    settings = {**SETTINGS, "worker.layers": "free"}
    with Cistern(tiny_model, 2, settings).start() as c:
        eventually(lambda: ways(c) == by_peer(c), "a way is said")
        found = [layers(w) for w in c.workers]
        assert sum(found, []) == list(range(LAYERS))
        c.workers[1].kill()
        c.start_worker(1)
        assert layers(c.workers[1]) == found[1]


def solo(model):
    with Cistern(model, 2, SETTINGS).start() as c:
        answer = c.chat(LONG[0], **LONG[1])
        return list(c.trace().values())[0], answer["choices"][0]["message"]["content"]


@pytest.mark.parametrize("victim", [0, 1])
def test_a_killed_stage_gives_its_memory_back(tiny_model, victim):
    """The other one lives on and lets go of what it had open; both serve again, token-identical."""
    _, text = solo(tiny_model)
    with Cistern(tiny_model, 2, SETTINGS).start() as c:
        eventually(lambda: ways(c) == by_peer(c), "the activations go by peer")
        with_both = memory_used(victim % CARDS)
        stream = c.stream(*LONG[:1], **LONG[1])
        for _ in range(20):
            next(stream)
        c.workers[victim].kill()
        began = time.monotonic()
        reader = threading.Thread(target=stream.read_all)
        reader.start()
        left = lambda: memory_used(victim % CARDS) < with_both - 100  # noqa: E731
        eventually(left, "the dead one's memory is free")
        print(f"stage {victim}: memory back after {time.monotonic() - began:.2f} s")
        other = c.workers[1 - victim]
        assert other.alive()
        eventually(lambda: "life 1 is over" in other.text(), "the other one lets go")
        c.start_worker(victim)
        reader.join()
        assert stream.text == text and stream.done and not stream.error
        assert other.alive()
        eventually(lambda: ways(c) == by_peer(c), "the activations go by peer again")


def said(c, rows):
    """The text of the tokens that rows chose; control tokens have none in an answer."""
    ids = [int(token) for _, (token, _) in sorted(rows.items())]
    status, answer = c.post("/detokenize", {"tokens": [i for i in ids if i not in CONTROL]})
    assert status == 200, answer
    return answer["content"]


@pytest.mark.death_points
@pytest.mark.parametrize("victim", [0, 1])
def test_a_sticky_error_ends_the_worker_before_its_next_token(tiny_model, victim):
    """A kernel of window 24 traps. That window's rows are not in the trace and none of its tokens
    was sent: the stream stands still until the worker is back, and goes on token-identical."""
    rows, text = solo(tiny_model)
    with Cistern(tiny_model, 2, SETTINGS) as c:
        c.start_poold()
        for s in (0, 1):
            point = {"CISTERN_TRAP_AT": "window-begun:24"} if s == victim else {}
            c.start_worker(s, wait=False, **point)
        c.start_gateway()
        c.wait_ready(*c.workers)
        c.wait_healthy()
        stream = c.stream(*LONG[:1], **LONG[1])
        reader = threading.Thread(target=stream.read_all)
        reader.start()
        assert c.workers[victim].wait() == 1
        assert "failed on the device" in c.workers[victim].text()
        before = list(c.trace().values())[0]
        assert before.items() < rows.items()
        # What users have is what was computed before: never more than the rows say.
        assert said(c, before).startswith(stream.text) and text.startswith(stream.text)
        c.start_worker(victim)
        reader.join()
        assert stream.text == text and stream.done and not stream.error
