# SPDX-License-Identifier: MIT
"""A worker that stands still between taking a window and its stores is made a dead one before
anything of its is given on: what it would still have stored never reaches the pool. Needs a build
with -Ddeath_points=true, whose workers stop or hang at a point that the environment names."""
import contextlib
import hashlib
import signal

import pytest

from harness import Cistern, eventually
from pool import ACTIVE, Arena
from test_deaths import DEATHS, alone, answered_to, quiet, replace_poold  # noqa: F401
from test_equal import words

pytestmark = pytest.mark.death_points
WINDOW = "window-taken:24"  # past the prompt's pieces, so that tokens are being made


def checksum(c):
    """Of all that a worker may write."""
    files = sorted(p for p in c.memory.iterdir() if p.name.startswith(("arena", "page", "tokens")))
    assert len(files) >= 4
    return {p.name: hashlib.sha256(p.read_bytes()).hexdigest() for p in files}


def whole_chunks(c, row, cells):
    """K/V of a row's chunks that lie below so many cells, of both stages."""
    pool = c.pool()
    n = cells // pool.header["chunk_cells"]
    arenas = [Arena(pool, f"arena-{s}") for s in (0, 1)]
    chunks = [entry & 0xFFFFFFFF for entry in row["table"][:n]]
    ranges = [(a, *a.chunk_range(run, i)) for a in arenas for run in a.runs for i in chunks]
    return [bytes(a.data[at : at + n_bytes]) for a, at, n_bytes in ranges]


@contextlib.contextmanager
def second_pipeline(c):
    trace = c.folder / "trace-1"
    others = [
        c.launch("workerd", "--pipeline", 1, "--stage", s, "--set", f"worker.trace={trace}")
        for s in (0, 1)
    ]
    c.wait_ready(*others)
    said = "pipeline 1: all stages are there", "pipeline 1: 8 lanes"
    eventually(lambda: all(s in c.gateway.text() for s in said), "the second pipeline is ready")
    yield trace
    for p in others:
        p.stop()


def stands_still(c, stage):
    """A stream of which this stage's worker has taken a window and not stored any of it."""
    stream, reader = answered_to(c, stage, CISTERN_STOP_AT=WINDOW)
    c.workers[stage].wait_frozen()
    return stream, reader


def continued_changes_nothing(c, worker):
    quiet(c)
    before = checksum(c)
    with contextlib.suppress(ProcessLookupError):
        worker.thaw()
    assert worker.wait() == -signal.SIGKILL
    assert checksum(c) == before


def is_the_whole_answer(c, stream, alone, trace):  # noqa: F811
    rows, text, _ = alone
    assert stream.done and not stream.error and stream.text == text
    (first,), rest = c.trace().values(), list(c.trace(trace).values())[-1]
    assert first | rest == rows and first.items() <= rows.items()


@pytest.mark.parametrize("stage", [0, 1])
def test_a_stopped_worker_is_dead_before_another_goes_on(slow_model, alone, stage):  # noqa: F811
    with Cistern(slow_model, settings={**DEATHS, "worker.stuck_ms": 3000}) as c:
        stream, reader = stands_still(c, stage)
        with second_pipeline(c) as trace:
            reader.join()
            is_the_whole_answer(c, stream, alone, trace)
            continued_changes_nothing(c, c.workers[stage])


@pytest.mark.parametrize("stage", [0, 1])
def test_what_a_stopped_worker_holds_is_given_to_nobody(slow_model, alone, stage):  # noqa: F811
    """Until its death is confirmed, here because it does not come back after poold's restart."""
    with Cistern(slow_model, settings=DEATHS) as c:
        stream, reader = stands_still(c, stage)
        (row,) = c.pool().rows(ACTIVE)
        done = max(max(r) for r in c.trace().values())
        kv = whole_chunks(c, row, done)
        assert len(kv) > 16 and all(any(k) for k in kv)
        with second_pipeline(c) as trace:
            other = c.chat(words(100, 3), max_tokens=8, ignore_eos=True)
            assert other["usage"]["completion_tokens"] == 8
            (held,) = [r for r in c.pool().rows(ACTIVE) if r["index"] == row["index"]]
            # Its head may have asked for one more chunk meanwhile.
            same = "generation", "lease", "base", "state", "pipeline", "lane"
            assert all(held[k] == row[k] for k in same)
            assert held["table"][: len(row["table"])] == row["table"]
            assert whole_chunks(c, row, done) == kv
            assert c.workers[stage].alive()
            c.settings["pool.attach_ms"] = 3000
            replace_poold(c)
            reader.join()
            others = c.trace(trace)
            assert len(others) == 2
            is_the_whole_answer(c, stream, alone, trace)
            continued_changes_nothing(c, c.workers[stage])


@pytest.mark.parametrize("stage", [0, 1])
def test_a_device_that_hangs_while_its_process_beats(slow_model, alone, stage):  # noqa: F811
    """Nothing is in flight at the other stage: however long it waits, it is not stuck."""
    with Cistern(slow_model, settings={**DEATHS, "worker.stuck_ms": 3000}) as c:
        stream, reader = answered_to(c, stage, CISTERN_HANG_AT=WINDOW)
        assert c.workers[stage].wait() == -signal.SIGKILL
        assert "its device has not gone on" in c.poold.text()
        assert c.workers[1 - stage].alive()
        c.start_worker(stage)
        reader.join()
        assert stream.text == alone[1] and not stream.error
        quiet(c)
