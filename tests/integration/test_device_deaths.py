# SPDX-License-Identifier: MIT
"""Deaths of workers whose device is a card: what is given back, what goes on, and when the card has
written for the last time. Figures are printed (pytest -s); none is asserted. CISTERN_DEVICE_MODEL: a
model whose windows take long enough to be stopped in (make_random.py's 8B), which the fence needs; else
a tiny one."""
import os
import pathlib
import random
import select
import signal
import threading
import time

import pytest

from device import Card, Reader, watch
from harness import Cistern, eventually
from pool import ACTIVE, Arena
from test_poolctl import poolctl

pytestmark = pytest.mark.device
LARGE = os.environ.get("CISTERN_DEVICE_MODEL")
PIECE = 2048 if LARGE else 256
PROMPT = 12000 if LARGE else 1500
SETTINGS = {
    "model.context": 16384 if LARGE else 2048,
    "pool.cells": 40960 if LARGE else 8192,
    "worker.piece": PIECE,
    "worker.lanes": 4,
    "worker.stuck_ms": 60000,
}
QUIET_S = 1  # without a write after a confirmed death


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    if LARGE:
        return pathlib.Path(LARGE)
    from fixtures import make_tiny

    return make_tiny(tmp_path_factory.mktemp("tiny"))


def ids(n, seed):
    r = random.Random(seed)
    return [r.randrange(3, 250) for _ in range(n)]


def say(what, ms):
    print(f"{what}: {'never' if ms is None else f'{ms:.0f} ms'}", flush=True)


def since(began):
    return (time.monotonic() - began) * 1e3


@pytest.mark.parametrize("memory", ["shm", "cuda"])
def test_a_killed_worker(model, memory):
    """Killed while it answers two: the card's memory comes back, another worker starts, and the
    answers go on as if nothing had been."""
    card = Card()
    before = card.used_mib()
    with Cistern(model, 1, {**SETTINGS, "pool.memory": memory}).start() as c:
        prompts = [ids(600, 1), ids(300, 2)]
        alone = []
        for p in prompts:
            alone.append(Reader(c, p, 120))
            alone[-1].join()
        poolctl(c, "drop", "--all")
        readers = [Reader(c, p, 120) for p in prompts]
        eventually(lambda: all(r.n_events > 20 for r in readers), "both are being answered")
        taken = card.used_mib() - before
        assert taken > 100
        worker = c.workers[0]
        began = time.monotonic()
        worker.kill()
        say("kill -9 to its end", since(began))
        eventually(lambda: card.used_mib() - before < taken / 10, "its memory is given back")
        say(f"kill -9 to {taken:.0f} MiB of the card given back", since(began))
        began = time.monotonic()
        c.start_worker(0)
        say("start to READY", since(began))
        for r, a in zip(readers, alone):
            r.join()
            assert not r.error and r.text == a.text
        say("start to the last answer's end", since(began))
        c.pool().check_tables()


def test_an_orderly_end_ends_with_0(tiny_model):
    """2 GiB are pinned for the card: to let go of them takes longer than a worker may be silent, and who
    is killed for that has ended with 0 before."""
    settings = {**SETTINGS, "model.context": 2048, "pool.cells": 1 << 22, "worker.kv_resident": 0}
    with Cistern(tiny_model, 1, {**settings, "worker.stuck_ms": 300}).start() as c:
        for _ in range(3):
            began = time.monotonic()
            c.workers[0].stop()
            say("SIGTERM to its end", since(began))
            c.start_worker(0)


class Watched:
    """One word of each chunk of each layer of a row: what a card writes shows in them."""

    def __init__(self, c, row):
        pool = c.pool()
        arena = Arena(pool, "arena-0")
        chunks = [entry & 0xFFFFFFFF for entry in row["table"]]
        self.data = arena.data
        self.at = [arena.chunk_range(run, i)[0] for i in chunks for run in arena.runs]

    def look(self):
        return [self.data[at : at + 8] for at in self.at]


@pytest.mark.skipif(not LARGE, reason="a tiny model's windows are over before anybody can be stopped in one")
@pytest.mark.parametrize("stopped", [False, True])
def test_the_fence(model, stopped):
    """The card of a stopped process writes on until what was given to it is done; that of a killed one
    stops, and once its death is confirmed nothing is written any more."""
    with Cistern(model, 1, SETTINGS).start() as c:
        prompt = ids(PROMPT, 3)
        alone = Reader(c, prompt, 16)
        alone.join()
        poolctl(c, "drop", "--all")
        windows = c.page(0)["windows"]
        reader = Reader(c, prompt, 16)
        eventually(lambda: c.pool().rows(ACTIVE), "the prompt is being read")
        (row,) = c.pool().rows(ACTIVE)
        watched = Watched(c, row)
        eventually(lambda: c.page(0)["windows"] > windows, "its first piece is read")
        worker = c.workers[0]
        if stopped:
            worker.send(signal.SIGSTOP)
            last, looks = watch(watched.look, 1.0)
            say(f"SIGSTOP to the card's last write seen, {looks} looks", last)
        ended = {}

        def wait_for_end(began):
            select.select([worker.pidfd], [], [])
            ended["ms"] = since(began)

        began = time.monotonic()
        waiter = threading.Thread(target=wait_for_end, args=(began,))
        waiter.start()
        worker.send(signal.SIGKILL)
        last, looks = watch(watched.look, 0.5)
        say(f"kill -9 to the card's last write seen, {looks} looks", last)
        waiter.join()
        say("kill -9 to its pidfd readable", ended["ms"])
        assert worker.wait() == -signal.SIGKILL
        last, _ = watch(watched.look, QUIET_S)
        assert last is None
        eventually(lambda: f"worker 0.0 (pid {worker.pid}) is dead" in c.poold.text(), "poold knows it")
        (held,) = c.pool().rows()
        assert held["index"] == row["index"]
        c.start_worker(0)
        reader.join()
        assert not reader.error and reader.text == alone.text
        c.pool().check_tables()
