# SPDX-License-Identifier: MIT
"""poolctl against the real programs: what it shows is what the pool's own files say (read here by
pool.py, from the layout alone), what it changes is seen there, and its exit codes are the documented
ones. A conversation that moved, was drained away, or was saved and restored goes on with the same
rows of logits as alone."""
import contextlib
import json
import os
import subprocess

import pytest

from harness import BUILD, Cistern, eventually
from pool import ACTIVE, CLOSING, IDLE, WAITING
from test_equal import SMALL, cached, solo_rows, words

DONE, REFUSED, UNREACHED, UNKNOWN, LATER, DENIED, FILE, DAMAGED, FOREIGN = range(9)
CHUNK = 16
SETTINGS = {**SMALL, "pool.chunk": CHUNK}
SLOW = {**SETTINGS, "worker.variant": "plain"}
CHAT = (words(40, 6), {"max_tokens": 80, "temperature": 0.8, "seed": 3})
STATES = "free cached closing waiting active held shared trash".split()


def poolctl(c, *arguments, code=DONE):
    """What it printed as JSON; its code must be this one, and a failure comes with a sentence."""
    command = [BUILD / "poold/poolctl", "--config", c.write_config(), "--json", *map(str, arguments)]
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60)
    assert done.returncode == code, (arguments, done.returncode, done.stdout, done.stderr)
    assert (code == DONE) == (done.stderr == ""), done.stderr
    return json.loads(done.stdout) if done.stdout else None


def plain(c, *arguments):
    command = [BUILD / "poold/poolctl", "--config", c.write_config(), *map(str, arguments)]
    return subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=True).stdout


def name(row):
    return f"{row['index']}:{row['generation']}"


def idle(c):
    eventually(lambda: not c.pool().rows(ACTIVE, CLOSING, WAITING), "all conversations are closed")
    return c.pool().rows(IDLE)


@contextlib.contextmanager
def held_up(*workers):
    """What runs in these last stages neither ends nor goes on meanwhile."""
    for p in workers:
        p.freeze()
    yield
    for p in workers:
        p.thaw()


@contextlib.contextmanager
def two_pipelines(model):
    with Cistern(model, settings={**SLOW, "worker.lanes": 2}).start() as c:
        others = [c.launch("workerd", "--pipeline", 1, "--stage", s, name=f"other-{s}") for s in (0, 1)]
        c.wait_ready(*others)
        eventually(lambda: c.metric("cistern_pipelines_ready") == 2, "both pipelines are ready")
        c.last = [c.workers[1], others[1]]
        yield c
        for p in others:
            p.stop()


# ---- looking


def test_it_shows_what_the_files_say(tiny_model):
    with Cistern(tiny_model, settings=SETTINGS).start() as c:
        for i in range(3):
            c.chat(words(20 + 10 * i, i), max_tokens=8, temperature=0)
        rows = idle(c)
        pool = c.pool()
        found = poolctl(c, "conversations")["conversations"]
        assert [(o["row"], o["generation"], o["chunks"]) for o in found] == [
            (r["index"], r["generation"], r["n_entries"]) for r in rows
        ]
        assert [o["tokens"] for o in found] == [r["base"] + r["copy_cells"] for r in rows]
        assert {o["state"] for o in found} == {"cached"}
        chunks = poolctl(c, "chunks")
        held = {e & 0xFFFFFFFF for r in rows for e in r["table"]}
        expected = ["c" if i in held else "." for i in range(pool.header["n_chunks"] + 1)]
        expected[0] = "t"
        assert chunks["map"].replace("#", "c") == "".join(expected)
        cells = poolctl(c, "metrics")["cells"]
        assert sum(cells[s] for s in STATES) == cells["total"]
        assert cells["total"] == (pool.header["n_chunks"] + 1) * CHUNK
        assert cells["cached"] + cells["shared"] == len(held) * CHUNK
        assert poolctl(c, "lanes") == {"lanes": []}
        assert poolctl(c, "status")["pool"]["chunk_cells"] == CHUNK
        (top,) = plain(c, "--json", "top", "--once").splitlines()
        assert json.loads(top)["cells"] == cells
        for command in (["status"], ["lanes"], ["conversations"], ["chunks"], ["metrics"], ["top", "--once"]):
            assert plain(c, *command).strip()


def test_a_lane_is_shown_while_it_runs(slow_model):
    with Cistern(slow_model, settings=SLOW).start() as c:
        stream = c.stream(CHAT[0], **CHAT[1])
        next(stream)
        with held_up(c.workers[1]):
            (lane,) = poolctl(c, "lanes")["lanes"]
            (row,) = c.pool().rows(ACTIVE)
            assert (lane["row"], lane["lane"], lane["generation"]) == (
                row["index"],
                row["lane"],
                row["generation"],
            )
            assert lane["tokens"] <= lane["reserved"] == row["n_entries"] * CHUNK
            poolctl(c, "drop", name(row), code=LATER)
            poolctl(c, "save", name(row), c.folder / "no", code=LATER)
            assert not (c.folder / "no").exists()
        stream.read_all()
        assert stream.done


def test_top_works_while_poold_stands(tiny_model):
    """It reads memory only: a poold that does nothing at all is not asked."""
    with Cistern(tiny_model, settings=SETTINGS).start() as c:
        command = [BUILD / "poold/poolctl", "--config", c.write_config(), "--json", "top"]
        top = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True)
        first = json.loads(top.stdout.readline())
        c.poold.freeze()
        later = [json.loads(top.stdout.readline()) for _ in range(2)]
        c.poold.thaw()
        assert [x["cells"] for x in later] == [first["cells"]] * 2
        top.terminate()
        assert top.wait(30) == 0


# ---- codes


WRONG = {
    "no command": ["--json"],
    "no such command": ["frobnicate"],
    "no row": ["drop"],
    "not a row": ["drop", "7"],
    "row and all": ["drop", "1:2", "--all"],
    "no number": ["evict", "--cells", "many"],
    "negative": ["evict", "--cells", "-1"],
    "no pipeline": ["move", "1:2"],
    "pipeline over the limit": ["drain", "8"],
    "no file": ["save", "1:2"],
    "too much": ["status", "now"],
    "unknown option": ["status", "--frobnicate"],
}


@pytest.mark.parametrize("case", WRONG)
def test_wrong_use(tmp_path, case):
    config = tmp_path / "cistern.conf"
    config.write_text(f"[run]\ndir = {tmp_path}/run\n")
    done = subprocess.run(
        [BUILD / "poold/poolctl", "--config", config, *WRONG[case]], capture_output=True, text=True
    )
    assert done.returncode == REFUSED
    assert done.stderr.startswith("poolctl: ")


def test_nobody_there(tmp_path):
    config = tmp_path / "cistern.conf"
    config.write_text(f"[run]\ndir = {tmp_path}/run\n")
    done = subprocess.run(
        [BUILD / "poold/poolctl", "--config", config, "status"], capture_output=True, text=True
    )
    assert done.returncode == UNREACHED
    assert str(tmp_path) in done.stderr


def test_help_words_and_completion():
    out = subprocess.run([BUILD / "poold/poolctl", "--help"], capture_output=True, text=True, check=True)
    words_ = subprocess.run([BUILD / "poold/poolctl", "--words"], capture_output=True, text=True, check=True)
    for word in words_.stdout.split():
        assert word in out.stdout
    assert "exit codes" in out.stdout


def test_a_pool_that_is_not_there_yet(tiny_model):
    with Cistern(tiny_model, settings=SETTINGS) as c:
        c.start_poold()
        assert "pool" not in poolctl(c, "status")
        poolctl(c, "conversations", code=LATER)
        poolctl(c, "restore", c.folder / "none", code=LATER)
        assert poolctl(c, "drop", "--all")["n"] == 0
        poolctl(c, "evict", "--cells", 16, code=LATER)


# ---- changing


def test_evict_and_drop(tiny_model):
    settings = {**SETTINGS, "pool.cells": 2048 + 32 * CHUNK}
    with Cistern(tiny_model, settings=settings).start() as c:
        for i in range(3):
            c.chat(f"{i} {words(40, i)}", max_tokens=8, temperature=0)
        rows = idle(c)
        free = poolctl(c, "metrics")["cells"]["free"]
        assert poolctl(c, "evict", "--cells", free)["n"] == 0
        assert poolctl(c, "evict", "--cells", free + 2 * CHUNK)["n"] == 2
        assert poolctl(c, "metrics")["cells"]["free"] == free + 2 * CHUNK
        # It gives back from its end, the one used longest ago first.
        assert c.pool().row(rows[0]["index"])["n_entries"] == rows[0]["n_entries"] - 2
        assert c.metric("cistern_evicted_cells_total", rank="cached") == 2 * CHUNK
        poolctl(c, "evict", "--cells", 1 << 40, code=LATER)
        poolctl(c, "evict", name(rows[1]))
        assert rows[1]["index"] not in [r["index"] for r in c.pool().rows()]
        poolctl(c, "drop", name(rows[1]), code=UNKNOWN)
        poolctl(c, "drop", f"{rows[2]['index']}:{rows[2]['generation'] + 1}", code=UNKNOWN)
        assert poolctl(c, "drop", "--all")["n"] == 2
        assert not c.pool().rows()
        c.pool().check_tables()


def test_evict_what_runs(slow_model):
    """Its head gives it back: its room goes, its answer does not suffer."""
    alone, solo = solo_rows(slow_model, [CHAT], **SLOW)
    with Cistern(slow_model, settings=SLOW).start() as c:
        stream = c.stream(CHAT[0], **CHAT[1])
        for _ in range(8):
            next(stream)
        with held_up(c.workers[1]):
            (row,) = c.pool().rows(ACTIVE)
            poolctl(c, "evict", name(row))
        stream.read_all()
        assert stream.text == solo[0]["choices"][0]["message"]["content"]
        assert list(c.trace().values())[0] == alone[0]
        assert c.metric("cistern_given_back_total") == 1


def test_move_in_mid_stream(slow_model):
    alone, solo = solo_rows(slow_model, [CHAT], **SLOW)
    with two_pipelines(slow_model) as c:
        stream = c.stream(CHAT[0], **CHAT[1])
        for _ in range(8):
            next(stream)
        with held_up(*c.last):
            (row,) = c.pool().rows(ACTIVE)
            other = 1 - row["pipeline"]
            assert poolctl(c, "move", name(row), "--pipeline", row["pipeline"])["n"] == 0
            assert poolctl(c, "move", name(row), "--pipeline", other)["n"] == 1
        stream.read_all()
        assert stream.done and not stream.error
        assert stream.text == solo[0]["choices"][0]["message"]["content"]
        (found,) = c.trace().values()
        assert found == alone[0]
        (row,) = idle(c)
        assert row["pipeline"] == other
        assert c.metric("cistern_moves_total") == 1
        assert c.metric("cistern_resubmissions_total", cause="moved") == 1
        assert c.metric("cistern_resubmissions_total", cause="lost") == 0
        # What the windows in flight held, and no more: the K/V went along without a copy.
        assert c.metric("cistern_reread_tokens") <= 2
        poolctl(c, "move", name(row), "--pipeline", 0, code=LATER)  # nothing runs
        poolctl(c, "move", name(row), "--pipeline", 5, code=LATER)  # there is none
        poolctl(c, "move", "0:99", "--pipeline", 0, code=UNKNOWN)


def test_drain_moves_what_runs(slow_model):
    alone, solo = solo_rows(slow_model, [CHAT], **SLOW)
    with two_pipelines(slow_model) as c:
        stream = c.stream(CHAT[0], **CHAT[1])
        for _ in range(8):
            next(stream)
        with held_up(*c.last):
            (row,) = c.pool().rows(ACTIVE)
            assert poolctl(c, "drain", row["pipeline"])["n"] == 1
        stream.read_all()
        assert stream.text == solo[0]["choices"][0]["message"]["content"]
        (found,) = c.trace().values()
        assert found == alone[0]
        for i in range(3):
            c.chat(f"{i}", max_tokens=2)
        assert {r["pipeline"] for r in idle(c)} == {1 - row["pipeline"]}
        # It holds over poold's restart.
        c.poold.kill()
        c.start_poold()
        eventually(lambda: all(p["ready"] for p in poolctl(c, "status")["pipelines"]), "all are back")
        assert [p["draining"] for p in poolctl(c, "status")["pipelines"]] == [
            row["pipeline"] == 0,
            row["pipeline"] == 1,
        ]
        assert poolctl(c, "undrain", row["pipeline"])["n"] == 1
        eventually(lambda: c.metric("cistern_pipelines_ready") == 2, "both take requests")


def test_drain_without_another(slow_model):
    """What runs finishes, what comes is refused, and undrain lets it in again."""
    _, solo = solo_rows(slow_model, [CHAT], **SLOW)
    with Cistern(slow_model, settings=SLOW).start() as c:
        stream = c.stream(CHAT[0], **CHAT[1])
        next(stream)
        with held_up(c.workers[1]):
            poolctl(c, "drain", 0)
            eventually(lambda: c.get("/health")[0] == 503, "nothing new is taken")
            status, answer = c.post(
                "/v1/chat/completions", {"model": "m", "messages": [{"role": "user", "content": "?"}]}
            )
            assert (status, answer["error"]["code"]) == (503, "draining")
        stream.read_all()
        assert stream.done and not stream.error
        assert stream.text == solo[0]["choices"][0]["message"]["content"]
        poolctl(c, "undrain", 0)
        c.wait_healthy()
        c.chat("again", max_tokens=2)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can be another user")
def test_another_user_is_refused(tiny_model):
    with Cistern(tiny_model, settings=SETTINGS).start() as c:
        command = [BUILD / "poold/poolctl", "--config", c.write_config(), "drop", "--all"]
        os.chmod(c.folder, 0o755)
        for path in [c.settings["run.dir"], *c.settings["run.dir"].iterdir()]:
            os.chmod(path, 0o777)
        done = subprocess.run(
            command, capture_output=True, text=True, preexec_fn=lambda: (os.setgid(65534), os.setuid(65534))
        )
        assert done.returncode in (DENIED, REFUSED) and "refused" in done.stderr, done


# ---- save and restore


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


def test_save_and_restore(tiny_model):
    fields = {"max_tokens": 30, "temperature": 0.7, "seed": 4}
    content = words(60, 2)
    with Cistern(tiny_model, settings=SETTINGS).start() as c:
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


DAMAGES = {
    "missing": (FILE, lambda data: None),
    "empty": (DAMAGED, lambda data: b""),
    "another kind of file": (DAMAGED, lambda data: b"#!/bin/sh\n" * 1000),
    "truncated": (DAMAGED, lambda data: data[:-1]),
    "longer": (DAMAGED, lambda data: data + b"\0"),
    "a header's byte": (DAMAGED, lambda data: flip(data, 40)),
    "another version": (FOREIGN, lambda data: flip(data, 8)),
    "a token": (DAMAGED, lambda data: flip(data, 4096 + 16)),
    "a chunk's number": (DAMAGED, lambda data: flip(data, 4096 + 8)),
    "the first K/V byte": (DAMAGED, lambda data: flip(data, 4096 + 16 + 4 * CHUNK)),
    "the last byte": (DAMAGED, lambda data: flip(data, len(data) - 1)),
}


def flip(data, at):
    return data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]


def test_bad_files_change_nothing(tiny_model):
    with Cistern(tiny_model, settings=SETTINGS).start() as c:
        path, row, _ = saved(c, words(60, 2), max_tokens=10)
        data = path.read_bytes()
        free = poolctl(c, "metrics")["cells"]["free"]
        for case, (code, damage) in DAMAGES.items():
            path.unlink(missing_ok=True)
            if (bad := damage(data)) is not None:
                path.write_bytes(bad)
            poolctl(c, "restore", path, code=code)
            eventually(lambda: not c.pool().rows(CLOSING), f"{case}: the row is free again")
            assert c.pool().rows() == [row], case
            assert poolctl(c, "metrics")["cells"]["free"] == free, case
        poolctl(c, "restore", c.folder, code=FILE)
        poolctl(c, "save", name(row), c.folder / "none/such", code=FILE)
        poolctl(c, "save", "4000:1", path, code=UNKNOWN)


def test_a_foreign_file(tiny_model, other_tiny_model):
    with Cistern(tiny_model, settings=SETTINGS).start() as c:
        data = saved(c, words(60, 2), max_tokens=10)[0].read_bytes()
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
        stream = c.stream(words(70, 3), max_tokens=120)
        next(stream)
        with held_up(c.workers[1]):
            (held,) = c.pool().rows(ACTIVE)
            poolctl(c, "restore", path, code=LATER)
            assert [r["index"] for r in c.pool().rows()] == [held["index"]]
        stream.read_all()
        assert stream.done and not stream.error
        idle(c)
        poolctl(c, "restore", path)


def start_restore(c, path):
    """A restore that stands still in the middle: it has memory, and its row is closing."""
    for _ in range(50):
        p = subprocess.Popen(
            [BUILD / "poold/poolctl", "--config", c.write_config(), "restore", path],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        pool = c.pool()
        while p.poll() is None and not pool.rows(CLOSING):
            pass
        p.send_signal(19)
        if p.poll() is None and (rows := pool.rows(CLOSING)):
            return p, rows[0]
        p.send_signal(18)
        p.communicate()
        for row in c.pool().rows(IDLE)[1:]:
            poolctl(c, "drop", name(row))
    raise AssertionError("the restore was always over too soon")


@pytest.fixture(scope="module")
def large_settings():
    return {**SETTINGS, "pool.chunk": CHUNK, "pool.conversations": 16, "pool.cells": 8192}


@pytest.mark.demo_model
def test_the_tool_is_killed(demo_model, large_settings):
    """It can write its chunks until it is surely dead: until then they are nobody else's."""
    with Cistern(demo_model, settings=large_settings).start() as c:
        path, row, _ = saved(c, words(700, 2), max_tokens=2)
        p, held = start_restore(c, path)
        free = poolctl(c, "metrics")["cells"]["free"]
        assert free == (c.pool().header["n_chunks"] - row["n_entries"] - held["n_entries"]) * CHUNK
        assert c.chat("meanwhile", max_tokens=2)["choices"]
        assert c.pool().row(held["index"]) == held
        p.kill()
        p.communicate()
        eventually(lambda: not c.pool().rows(CLOSING), "its row is free")
        assert c.pool().row(row["index"]) == row


@pytest.mark.demo_model
def test_poold_is_killed_in_a_restore(demo_model, large_settings):
    """The new poold ends the tool, which it finds by its record, before it gives its chunks on."""
    settings = {**large_settings, "pool.attach_ms": 500}
    with Cistern(demo_model, settings=settings).start() as c:
        path, row, _ = saved(c, words(700, 2), max_tokens=2)
        p, held = start_restore(c, path)
        c.poold.kill()
        c.start_poold()
        assert c.pool().row(held["index"])["state"] == CLOSING
        assert p.wait(30) == -9
        p.communicate()
        eventually(lambda: not c.pool().rows(CLOSING), "its row is free")
        assert c.pool().rows() == [row]
        c.wait_healthy()
        poolctl(c, "restore", path)


# ---- doctor


def test_doctor(tiny_model):
    with Cistern(tiny_model, stages=2, settings=SETTINGS) as c:
        out = poolctl(c, "doctor")
        assert out["fits"]
        c.start()
        # Its arenas are the ones that are made, but for the rounding to pages.
        for stage in range(2):
            (check,) = [x for x in out["checks"] if x["what"] == f"arena of stage {stage}"]
            planned = int(check["text"].split()[0])
            made = (c.memory / f"arena-{stage}").stat().st_size
            assert planned <= made < planned + 4096 * 16
        assert poolctl(c, "doctor")["fits"]


MISFITS = {
    "pool": {"pool.cells": 1024},
    "pool.dir": {"pool.cells": (1 << 32) - (1 << 20), "pool.dir": "/dev/shm/cistern-none"},
    "model": {"model.path": "/none.gguf"},
    "run.dir": {"run.dir": "/tmp/" + "long" * 30},
}


@pytest.mark.parametrize("what", MISFITS)
def test_doctor_finds_what_does_not_fit(tiny_model, what):
    with Cistern(tiny_model, settings={**SETTINGS, **MISFITS[what]}) as c:
        command = [BUILD / "poold/poolctl", "--config", c.write_config(), "--json", "doctor"]
        done = subprocess.run(command, capture_output=True, text=True)
        assert done.returncode == REFUSED
        checks = {x["what"]: x for x in json.loads(done.stdout)["checks"]}
        assert not checks[what]["ok"] and checks[what]["knob"]


# ---- metrics


def test_cells_sum_at_every_scrape(tiny_model):
    """While conversations begin, grow, fork and end."""
    with Cistern(tiny_model, settings={**SETTINGS, "pool.cells": 4096}).start() as c:
        total = (c.pool().header["n_chunks"] + 1) * CHUNK
        streams = [c.stream(words(30, i % 3) + str(i), max_tokens=60) for i in range(8)]
        for stream in streams:
            assert c.metric("cistern_pool_cells") == total
            for _ in stream:
                assert c.metric("cistern_pool_cells") == total
        idle(c)
        connection = c.connect()
        connection.request("GET", "/metrics", headers={"Accept": "application/json"})
        live = json.loads(connection.getresponse().read())["live"]["kv_pool"]
        assert live["cells"] == total - CHUNK
        assert live["free"] == c.metric("cistern_pool_cells", state="free")
        assert live["main"] == 0 and live["slots"] == [0] * 7
