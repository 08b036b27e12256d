# SPDX-License-Identifier: MIT
"""worker.layers = free: all workers come to one split, by a file that the first of them writes; also
one that comes back, and those that find the file cut short by a death."""
import contextlib
import fcntl
import os
import pathlib
import re

import pytest

from harness import Cistern, Died, eventually
from test_equal import SMALL, solo_rows, words
from test_poolctl import poolctl

CHAT = (words(30, 4), {"max_tokens": 20, "temperature": 0})
LAYERS = 4  # of the tiny model


def layers(worker):
    first, last = re.search(r"layers (\d+)-(\d+), as .*split-0 says", worker.text()).groups()
    return list(range(int(first), int(last) + 1))


def test_workers_agree_on_a_split(tiny_model):
    settings = {**SMALL, "worker.layers": "free"}
    with Cistern(tiny_model, 3, settings).start() as c:
        c.chat(CHAT[0], **CHAT[1])
        found = [layers(w) for w in c.workers]
        assert sum(found, []) == list(range(LAYERS))
        rows = list(c.trace().values())
        c.workers[1].kill()
        c.start_worker(1)
        assert layers(c.workers[1]) == found[1]
        eventually(lambda: c.get("/health")[0] == 200, "all are back")
        for p in (c.gateway, *c.workers):
            p.stop()
        path = c.folder / "run/split-0"
        whole = path.read_bytes()
        path.write_bytes(whole[:-3])
        for stage in range(3):
            c.start_worker(stage, wait=False)
        c.wait_ready(*c.workers)
        assert path.read_bytes() == whole
    assert rows == solo_rows(tiny_model, [CHAT], 1)[0]


def test_a_split_measured_under_another_limit_was_kept(tiny_model):
    with Cistern(tiny_model, 2, {**SMALL, "worker.layers": "free"}) as c:
        path = c.folder / "run/split-0"

        def first(limit):
            """Layers of stage 0, which says them before it looks for poold."""
            c.settings["worker.memory_limit"] = limit
            c.start_worker(0, wait=False)
            eventually(lambda: "split-0 says" in c.workers[0].text(), "the worker knows its layers")
            c.workers[0].stop()
            return len(layers(c.workers[0]))

        measured = first("1G")
        key, _, _ = path.read_text().rpartition(":")
        other = measured % (LAYERS - 1) + 1
        path.write_text(f"{key}: {other} {LAYERS - other}\n")
        assert first("1G") == other != measured
        assert first("2G") == measured


def is_open(p, path):
    for fd in pathlib.Path(f"/proc/{p.pid}/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):  # closed meanwhile
            if os.readlink(fd) == str(path):
                return True
    return False


def test_sigterm_while_another_measures_was_read_a_minute_later(tiny_model):
    with Cistern(tiny_model, 1, {**SMALL, "worker.layers": "free"}) as c:
        path = c.folder / "run/split-0"
        path.parent.mkdir(mode=0o700)
        with open(path, "w") as measures:
            fcntl.flock(measures, fcntl.LOCK_EX)
            c.start_worker(0, wait=False)
            eventually(lambda: is_open(c.workers[0], path), "the worker waits for the split")
            c.workers[0].stop()


def test_another_split_was_refused_for_good_while_poold_ran(tiny_model):
    """What the sentence asks for must help: the pool is emptied, then it takes the other split."""
    with Cistern(tiny_model, 2, SMALL).start() as c:
        c.chat(CHAT[0], **CHAT[1])
        c.workers[0].stop()
        c.settings["worker.layers"] = "0-0,1-3"
        for sentence in ("other workers", "poolctl drop --all"):
            with pytest.raises(Died, match=f"has layers 0 to 1, the worker 0 to 0; .*{sentence}"):
                c.start_worker(0)
            if c.workers[1].alive():
                c.workers[1].stop()
        poolctl(c, "drop", "--all")
        for stage in range(2):
            c.start_worker(stage)
        c.wait_healthy()
        c.chat(CHAT[0], **CHAT[1])
        rows = list(c.trace().values())
    assert rows[0] == rows[1]
