# SPDX-License-Identifier: MIT
"""Conversations in files: saved, also while they run, and restored, by poolctl. What comes back is
held equal by hashes of logits and by cached_tokens; the layout that files are broken by is
poold/poolctl_file.h's, its numbers written out here. Whatever fails or dies, at whichever system
call, leaves the pool and the file's name as they were."""
import ctypes
import os
import resource
import select
import signal
import struct
import subprocess

import pytest

from harness import BUILD, LIBC, Cistern, eventually
from pool import ACTIVE, CLOSING, IDLE
from test_equal import cached, solo_rows, words
from test_poolctl import (
    CHUNK,
    DAMAGED,
    FILE,
    FOREIGN,
    LATER,
    LONG,
    MISSING,
    SETTINGS,
    SLOW,
    TRUNCATED,
    UNKNOWN,
    held_up,
    idle,
    name,
    poolctl,
)

HEADER_BYTES, CHUNK_HEAD = 4096, 16
# A tool that is stepped through is looked after at each step: few rows are read faster.
FEW = {**SETTINGS, "pool.conversations": 16}
FEW_SLOW = {**SLOW, "pool.conversations": 16}
# struct saved_header: where each field begins, and how long it is.
HEADER_FIELDS = {
    "magic": (0, 8),
    "version": (8, 4),
    "header_bytes": (12, 4),
    "checksum": (16, 8),
    "bytes": (24, 8),
    "salt": (32, 8),
    "n_cells": (40, 4),
    "chunk_cells": (44, 4),
    "geometry.n_layers": (48, 4),
    "geometry.n_kv_heads": (52, 4),
    "geometry.head_dim": (56, 4),
    "geometry.kv": (60, 4),
    "geometry.block_cells": (64, 4),
    "geometry.context_tokens": (68, 4),
    "geometry.block_bytes": (72, 8),
    "geometry.fingerprint": (80, 128),
    "geometry.arithmetic": (208, 128),
    "padding": (336, HEADER_BYTES - 336),
}


def saved(c, content, **fields):
    """A cached conversation in a file, and its answer."""
    answer = c.chat(content, **fields)
    (row,) = idle(c)
    path = c.folder / "saved"
    out = poolctl(c, "save", name(row), path)
    assert out["tokens"] == row["base"] + row["copy_cells"]
    assert path.stat().st_size == out["bytes"]
    assert path.stat().st_mode & 0o7777 == 0o600
    assert not list(c.folder.glob("saved.*"))
    assert c.pool().rows() == [row]  # the save left nothing behind
    return path, row, answer


@pytest.mark.parametrize("kv", ["f16", "k8v4"])
def test_save_and_restore(tiny_model, kv):
    fields = {"max_tokens": 30, "temperature": 0.7, "seed": 4}
    content = words(60, 2)
    # A block of 4-bit values of this model has 64 cells.
    with Cistern(tiny_model, settings={**SETTINGS, "pool.chunk": 64, "pool.kv": kv}).start() as c:
        path, row, answer = saved(c, content, **fields)
        poolctl(c, "drop", name(row))
        other = c.chat("something else in between", max_tokens=3)
        assert cached(other) == 0
        out = poolctl(c, "restore", path)
        again = c.chat(content, **fields)
        assert again["choices"] == answer["choices"]
        prompt = again["usage"]["prompt_tokens"]
        assert cached(again) == min(out["tokens"], prompt - 1)
        first, _, last = c.trace().values()
        assert {p: v for p, v in last.items() if p in first} == {p: first[p] for p in last if p in first}
        idle(c)
        c.pool().check_tables()


@pytest.mark.parametrize("stages", [1, 4])
def test_restore_into_another_split(tiny_model, stages):
    """The file knows layers, not stages; everything else is restarted."""
    fields = {"max_tokens": 30, "temperature": 0.7, "seed": 4}
    content = words(60, 2)
    with Cistern(tiny_model, settings=SETTINGS).start() as c:
        path, _, answer = saved(c, content, **fields)
        data = path.read_bytes()
    with Cistern(tiny_model, stages=stages, settings=SETTINGS).start() as c:
        path = c.folder / "saved"
        path.write_bytes(data)
        poolctl(c, "restore", path)
        again = c.chat(content, **fields)
        assert again["choices"] == answer["choices"]
        assert cached(again) == again["usage"]["prompt_tokens"] - 1


def flip(data, at):
    return data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]


def header(data):
    """The numbers that say where the chunks are."""
    n_cells, chunk, layers = (struct.unpack_from("<I", data, HEADER_FIELDS[f][0])[0] for f in
                              ("n_cells", "chunk_cells", "geometry.n_layers"))
    (block,) = struct.unpack_from("<I", data, HEADER_FIELDS["geometry.block_cells"][0])
    (block_bytes,) = struct.unpack_from("<Q", data, HEADER_FIELDS["geometry.block_bytes"][0])
    return n_cells, chunk, layers, block, block_bytes


def chunk_parts(data):
    """(first byte, one past the tokens, one past the chunk) of each chunk."""
    n_cells, chunk, layers, block, block_bytes = header(data)
    at, parts = HEADER_BYTES, []
    for first in range(0, n_cells, chunk):
        n = min(chunk, n_cells - first)
        tokens = at + CHUNK_HEAD + (4 * n + 7) // 8 * 8
        end = tokens + layers * -(-n // block) * block_bytes
        parts.append((at, tokens, end))
        at = end
    assert at == len(data)
    return parts


def tokens_of(data):
    """Its token ids, from the file alone; the word's upper bit says who made it."""
    n_cells, chunk = header(data)[:2]
    ids = []
    for at, _, _ in chunk_parts(data):
        n = min(chunk, n_cells - len(ids))
        ids += [w & 0x7FFFFFFF for w in struct.unpack_from(f"<{n}I", data, at + CHUNK_HEAD)]
    return ids


def damages(data):
    """(name, exit code, what the file becomes): each field of the header cut through and changed, each
    chunk cut off and changed in each of its parts."""
    yield "missing", MISSING, None
    yield "empty", TRUNCATED, b""
    yield "another kind of file", DAMAGED, b"#!/bin/sh\n" * 1000
    yield "another kind of file, and short", DAMAGED, b"#!/bin/sh\n"
    yield "longer", DAMAGED, data + b"\0"
    yield "longer by itself", DAMAGED, data + data
    for field, (at, n) in HEADER_FIELDS.items():
        yield f"cut before {field}", TRUNCATED, data[:at]
        yield f"cut in {field}", TRUNCATED, data[: at + n - 1]
        code = FOREIGN if field == "version" else DAMAGED
        yield f"{field}'s first byte", code, flip(data, at)
        yield f"{field}'s last byte", code, flip(data, at + n - 1)
    for i, (at, tokens, end) in enumerate(chunk_parts(data)):
        for where in (at, at + 8, at + CHUNK_HEAD, tokens, end - 1):
            yield f"cut at chunk {i}, {where}", TRUNCATED, data[:where]
            yield f"chunk {i}, byte {where}", DAMAGED, flip(data, where)
    first, second, third = (data[a:b] for a, _, b in chunk_parts(data)[:3])
    yield "chunks in another order", DAMAGED, data.replace(second + third, third + second)
    yield "a chunk twice", DAMAGED, data.replace(first + second, first + first)


@pytest.mark.cpu("poolctl's own")
def test_bad_files_change_nothing(tiny_model):
    settings = {**SETTINGS, "pool.chunk": 64}
    with Cistern(tiny_model, settings=settings).start() as c:
        path, row, answer = saved(c, words(60, 2), max_tokens=10, temperature=0)
        data = path.read_bytes()
        assert len(chunk_parts(data)) > 3
        free = poolctl(c, "metrics")["cells"]["free"]
        for case, code, bad in damages(data):
            path.unlink(missing_ok=True)
            if bad is not None:
                path.write_bytes(bad)
            out = poolctl(c, "restore", path, code=code)
            assert (out["exit"], str(path) in out["error"]) == (code, True), case
            eventually(lambda: not c.pool().rows(CLOSING), f"{case}: the row is free again")
            assert c.pool().rows() == [row], case
            assert poolctl(c, "metrics")["cells"]["free"] == free, case
        again = c.chat(words(60, 2), max_tokens=10, temperature=0)
        assert again["choices"] == answer["choices"]


@pytest.mark.cpu("poolctl's own")
def test_files_that_are_none(tiny_model):
    """Folders, pipes, devices, what may not be read or written, folders that are not there."""
    with Cistern(tiny_model, settings=SETTINGS).start() as c:
        path, row, _ = saved(c, words(60, 2), max_tokens=10, temperature=0)
        data = path.read_bytes()
        os.mkfifo(c.folder / "pipe")
        poolctl(c, "restore", c.folder, code=FILE)
        poolctl(c, "restore", c.folder / "pipe", code=FILE)
        poolctl(c, "restore", "/dev/zero", code=FILE)
        poolctl(c, "restore", c.folder / "none/such", code=MISSING)
        poolctl(c, "restore", path / "below", code=MISSING)
        poolctl(c, "save", name(row), c.folder / "none/such", code=FILE)
        poolctl(c, "save", name(row), path / "below", code=FILE)
        poolctl(c, "save", name(row), c.folder, code=FILE)
        poolctl(c, "save", name(row), f"{c.folder}/", code=FILE)
        poolctl(c, "save", name(row), "/dev/full/x", code=FILE)
        poolctl(c, "save", name(row), "/proc/x", code=FILE)
        poolctl(c, "save", "4000:1", path, code=UNKNOWN)
        poolctl(c, "save", f"{row['index']}:{row['generation'] + 1}", path, code=UNKNOWN)
        assert path.read_bytes() == data
        assert c.pool().rows() == [row]
        # A name that is taken gets the new content, by a file of its own: who has the old one open
        # keeps it whole.
        path.chmod(0o644)
        with open(path, "rb") as old:
            poolctl(c, "save", name(row), path)
            assert old.read() == data == path.read_bytes()
        assert path.stat().st_mode & 0o7777 == 0o600


@pytest.mark.cpu("poolctl's own")
def test_a_disk_that_is_full(tiny_model):
    """A save that does not fit leaves the old file, and nothing beside it."""
    with Cistern(tiny_model, settings=SETTINGS).start() as c:
        path, row, _ = saved(c, words(60, 2), max_tokens=10, temperature=0)
        data = path.read_bytes()
        command = [BUILD / "poold/poolctl", "--config", c.write_config(), "save", name(row), path]

        def small_files():
            resource.setrlimit(resource.RLIMIT_FSIZE, (len(data) // 2, len(data) // 2))
            signal.signal(signal.SIGXFSZ, signal.SIG_IGN)

        done = subprocess.run(command, capture_output=True, text=True, preexec_fn=small_files)
        assert done.returncode == FILE, done
        assert path.read_bytes() == data
        assert not list(c.folder.glob("saved.*"))
        eventually(lambda: not c.pool().rows(CLOSING), "its row is free")


def test_a_foreign_file(tiny_model, other_tiny_model):
    with Cistern(tiny_model, settings=SETTINGS).start() as c:
        data = saved(c, words(60, 2), max_tokens=10, temperature=0)[0].read_bytes()
    changes = [{"pool.kv": "f32"}, {"pool.chunk": 32}, {"worker.precision": "float32"}]
    for model, change in [(other_tiny_model, {}), *((tiny_model, x) for x in changes)]:
        with Cistern(model, settings={**SETTINGS, **change}).start() as c:
            (c.folder / "saved").write_bytes(data)
            poolctl(c, "restore", c.folder / "saved", code=FOREIGN)
            assert not c.pool().rows()


def test_a_full_pool_is_told_before_anything_is_read(slow_model):
    """What runs holds too much of it: the refusal says that it may work later, and then it does."""
    settings = {**SLOW, "model.context": 512, "pool.cells": 512 + 2 * CHUNK}
    with Cistern(slow_model, settings=settings).start() as c:
        path, row, _ = saved(c, words(60, 2), max_tokens=60)
        poolctl(c, "drop", name(row))
        stream = c.begin(lambda: c.stream(words(70, 3), max_tokens=120))
        with held_up(c.workers[1]):
            (held,) = c.pool().rows(ACTIVE)
            poolctl(c, "restore", path, code=LATER)
            assert [r["index"] for r in c.pool().rows()] == [held["index"]]
        stream.read_all()
        assert stream.done and not stream.error
        idle(c)
        poolctl(c, "restore", path)


# ---- of what runs


def go_on(c, ids, **fields):
    """A completion of these tokens."""
    body = {"model": "m", "prompt": ids, "max_tokens": 1, "temperature": 0, **fields}
    status, answer = c.post("/v1/completions", body)
    assert status == 200, answer
    return answer


def test_save_of_what_runs(slow_model):
    """The file has what all stages had published; the answer does not suffer; what is restored goes on
    with the rows of what was saved, and all of it counts as cached."""
    alone, solo = solo_rows(slow_model, [LONG], **SLOW)
    with Cistern(slow_model, settings=SLOW).start() as c:
        path = c.folder / "saved"
        stream = c.half_way(LONG[0], 8, **LONG[1])
        with held_up(c.workers[1]):
            (row,) = c.pool().rows(ACTIVE)
            out = poolctl(c, "save", name(row), path)
            # Its head may have asked for more room meanwhile.
            assert [(r["index"], r["generation"]) for r in c.pool().rows()] == [
                (row["index"], row["generation"])
            ]
            (lane,) = poolctl(c, "lanes")["lanes"]
            assert out["tokens"] == lane["tokens"]
            poolctl(c, "drop", name(row), code=LATER)
        stream.read_all()
        assert stream.done and not stream.error
        assert stream.text == solo[0]["choices"][0]["message"]["content"]
        (found,) = c.trace().values()
        assert found == alone[0]
        (row,) = idle(c)
        assert row["base"] + row["copy_cells"] > out["tokens"]
        ids = tokens_of(path.read_bytes())
        assert len(ids) == out["tokens"]
        # The next token is the one that the stream had there.
        following = int(alone[0][len(ids) - 1][0])

        def next_row():
            """Of a prompt that finds all that was saved: its one row."""
            assert cached(go_on(c, [*ids, following])) == out["tokens"]
            *_, last = c.trace().values()
            return last

        unsaved = next_row()
        idle(c)
        poolctl(c, "drop", "--all")
        poolctl(c, "restore", path)
        assert next_row() == unsaved
        assert list(unsaved) == [len(ids)]
        if not c.kinds_differ():  # the stream's row there was of a generated token
            assert unsaved[len(ids)][1] == alone[0][len(ids)][1]


def test_saves_while_it_goes_on(slow_model):
    """None of them is torn: what is written meanwhile is not in them."""
    with Cistern(slow_model, settings=SLOW).start() as c:
        stream = c.half_way(LONG[0], 1, **LONG[1])
        (row,) = c.pool().rows(ACTIVE)
        lengths = [poolctl(c, "save", name(row), c.folder / "saved-0")["tokens"]]
        c.workers[1].thaw()
        while c.pool().rows(ACTIVE) and len(lengths) < 40:
            path = c.folder / f"saved-{len(lengths)}"
            lengths.append(poolctl(c, "save", name(row), path)["tokens"])
        stream.read_all()
        assert stream.done and not stream.error
        assert lengths == sorted(lengths)
        (row,) = idle(c)
        poolctl(c, "save", name(row), c.folder / "whole")
        whole = tokens_of((c.folder / "whole").read_bytes())
        assert lengths[0] < len(whole)
        poolctl(c, "drop", "--all")
        for i, n in enumerate(lengths):
            path = c.folder / f"saved-{i}"
            assert tokens_of(path.read_bytes()) == whole[:n]
            out = poolctl(c, "restore", path)
            poolctl(c, "drop", f"{out['row']}:{out['generation']}")


@pytest.mark.parametrize("fate", ["it is evicted", "its client leaves", "its worker is killed"])
def test_what_is_being_saved_comes_to_an_end(slow_model, fate):
    """The save stands still in the middle meanwhile, then has what was there when it began."""
    with Cistern(slow_model, settings=FEW_SLOW).start() as c:
        path = c.folder / "saved"
        stream = c.half_way(LONG[0], 8, **LONG[1])
        (row,) = c.pool().rows(ACTIVE)
        tool = Traced(c, "save", name(row), path)
        tool.run_until(lambda: c.pool().rows(CLOSING))
        (copy,) = c.pool().rows(CLOSING)
        c.workers[1].thaw()
        if fate == "it is evicted":
            poolctl(c, "evict", name(row))
        elif fate == "its client leaves":
            stream.leave()
        else:
            c.workers[0].kill()
            c.start_worker(0)
        if fate == "its client leaves":
            eventually(lambda: not c.pool().rows(ACTIVE), "the request is over")
            poolctl(c, "drop", "--all")
        else:
            next(stream)
        assert c.pool().row(copy["index"]) == copy
        assert tool.run() == 0
        n = copy["base"] + copy["copy_cells"]
        assert len(tokens_of(path.read_bytes())) == n
        if fate != "its client leaves":
            stream.leave()
        eventually(lambda: not c.pool().rows(ACTIVE, CLOSING), "the request is over")
        poolctl(c, "drop", "--all")
        assert poolctl(c, "restore", path)["tokens"] == n


# ---- the tool dies


PTRACE_TRACEME, PTRACE_SYSCALL = 0, 24  # <sys/ptrace.h>


class Traced:
    """poolctl, run from one system call to the next: it stands still wherever a story wants it to."""

    def __init__(self, c, *arguments):
        command = [BUILD / "poold/poolctl", "--config", c.write_config(), *map(str, arguments)]

        def trace_me():
            if LIBC.ptrace(PTRACE_TRACEME, 0, None, None) < 0:
                os._exit(99)

        with open(os.devnull, "wb") as out:
            self.popen = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=out, stderr=out, preexec_fn=trace_me
            )
        self.code = None
        self.steps = 0
        self.wait()

    def wait(self):
        _, status = os.waitpid(self.popen.pid, 0)
        if os.WIFSTOPPED(status):
            self.stopped_by = os.WSTOPSIG(status)
            return
        self.code = os.waitstatus_to_exitcode(status)
        self.popen.returncode = self.code

    def step(self):
        """To the next beginning or end of a system call of its main thread."""
        number = self.stopped_by if self.stopped_by != signal.SIGTRAP else 0
        LIBC.ptrace(PTRACE_SYSCALL, self.popen.pid, None, ctypes.c_void_p(number))
        self.wait()
        self.steps += 1

    def run_until(self, condition):
        while self.code is None and not condition():
            self.step()
        assert self.code is None, f"it ended with {self.code}"

    def run(self):
        while self.code is None:
            self.step()
        return self.code

    def kill(self):
        self.popen.send_signal(signal.SIGKILL)
        while self.code is None:
            self.wait()


def start_restore(c, path):
    """A restore that stands still in the middle: it has memory, and its row is closing."""
    tool = Traced(c, "restore", path)
    tool.run_until(lambda: c.pool().rows(CLOSING))
    (held,) = c.pool().rows(CLOSING)
    return tool, held


def steps_of(c, *arguments):
    """How many steps such a run has, and at which one poold first gives it a row."""
    tool = Traced(c, *arguments)
    tool.run_until(lambda: c.pool().rows(CLOSING))
    first = tool.steps
    assert tool.run() == 0
    return first, tool.steps


def killed_at(c, step, *arguments):
    tool = Traced(c, *arguments)
    while tool.code is None and tool.steps < step:
        tool.step()
    if tool.code is None:
        tool.kill()


def settled(c, step):
    """All rows, when none is closing. What the tool had sent poold may read only after its death."""

    def look():
        rows = c.pool().rows()
        return all(r["state"] != CLOSING for r in rows) and [rows]

    return eventually(look, f"step {step}: its row is free")[0]


def some(first, last):
    """The steps at which it is killed: from where poold knows of it, 40 of them, or all."""
    stride = 1 if os.environ.get("CHECK") == "full" else max(1, (last - first) // 40)
    return range(max(0, first - 4), last + 1, stride)


def test_a_save_killed_at_any_time(tiny_model):
    """The name has the old file or the new one, whole; the pool is as it was."""
    with Cistern(tiny_model, settings=FEW).start() as c:
        path, row, _ = saved(c, words(60, 2), max_tokens=10, temperature=0)
        new = path.read_bytes()
        first, last = steps_of(c, "save", name(row), path)
        for step in some(first, last):
            path.write_bytes(b"old")
            killed_at(c, step, "save", name(row), path)
            assert path.read_bytes() in (b"old", new), step
            eventually(lambda: c.pool().rows() == [row], f"step {step}: its row is free")
            for beside in c.folder.glob("saved.*"):  # it had its first name only
                assert beside.read_bytes() == new, step
                beside.unlink()
        path.unlink()
        poolctl(c, "save", name(row), path)
        assert path.read_bytes() == new
        c.pool().check_tables()


def test_a_restore_killed_at_any_time(tiny_model):
    """The conversation is there, whole, or not at all."""
    with Cistern(tiny_model, settings=FEW).start() as c:
        path, row, answer = saved(c, words(60, 2), max_tokens=10, temperature=0)
        ids = tokens_of(path.read_bytes())
        poolctl(c, "drop", "--all")
        free = poolctl(c, "metrics")["cells"]["free"]
        first, last = steps_of(c, "restore", path)
        poolctl(c, "drop", "--all")
        for step in some(first, last):
            killed_at(c, step, "restore", path)
            if rows := settled(c, step):
                assert [(r["state"], r["base"]) for r in rows] == [(IDLE, len(ids))], step
                poolctl(c, "drop", "--all")
            eventually(lambda: poolctl(c, "metrics")["cells"]["free"] == free, f"step {step}: all is free")
        poolctl(c, "restore", path)
        again = c.chat(words(60, 2), max_tokens=10, temperature=0)
        assert again["choices"] == answer["choices"]
        assert cached(again) == again["usage"]["prompt_tokens"] - 1


def test_the_tool_is_killed(tiny_model):
    """It can write its chunks until it is surely dead: until then they are nobody else's."""
    with Cistern(tiny_model, settings=FEW).start() as c:
        path, row, _ = saved(c, words(60, 2), max_tokens=2)
        tool, held = start_restore(c, path)
        free = poolctl(c, "metrics")["cells"]["free"]
        assert free == (c.pool().header["n_chunks"] - row["n_entries"] - held["n_entries"]) * CHUNK
        assert c.chat("meanwhile", max_tokens=2)["choices"]
        assert c.pool().row(held["index"]) == held
        tool.kill()
        eventually(lambda: not c.pool().rows(CLOSING), "its row is free")
        assert c.pool().row(row["index"]) == row


def test_poold_is_killed_in_a_restore(tiny_model):
    """The new poold ends the tool, which it finds by its record, before it gives its chunks on."""
    settings = {**FEW, "pool.attach_ms": 2000}
    with Cistern(tiny_model, settings=settings).start() as c:
        path, row, _ = saved(c, words(60, 2), max_tokens=2)
        tool, held = start_restore(c, path)
        c.poold.kill()
        c.start_poold()
        with os.fdopen(os.pidfd_open(tool.popen.pid)) as pidfd:

            def is_dead():
                """Its row is there until then."""
                state = c.pool().row(held["index"])["state"]
                dead = select.select([pidfd], [], [], 0)[0]
                assert dead or state == CLOSING
                return dead

            eventually(is_dead, "it is ended")
        tool.wait()
        assert tool.code == -signal.SIGKILL
        eventually(lambda: not c.pool().rows(CLOSING), "its row is free")
        assert c.pool().rows() == [row]
        c.wait_healthy()
        poolctl(c, "restore", path)


