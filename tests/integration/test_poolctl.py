# SPDX-License-Identifier: MIT
"""poolctl against the real programs: what it shows is what the pool's own files say (read here by
pool.py, from the layout alone), what it changes is seen there, and its exit codes are the documented
ones. A conversation that moved or was drained away goes on with the same rows of logits as alone.
Saving and restoring are test_save.py's."""
import contextlib
import json
import os
import subprocess

import pytest

from harness import BUILD, STOP_S, Cistern, eventually
from pool import ACTIVE, CLOSING, IDLE, WAITING
from test_equal import SMALL, cached, solo_rows, words

# As the man page has them.
DONE, REFUSED, UNREACHED, UNKNOWN, LATER, DENIED, FILE, DAMAGED, FOREIGN, MISSING, TRUNCATED = range(11)
CHUNK = 16
SETTINGS = {**SMALL, "pool.chunk": CHUNK}
SLOW = {**SETTINGS, "worker.variant": "plain"}
CHAT = (words(40, 6), {"max_tokens": 80, "temperature": 0.8, "seed": 3})
# One that still runs when a busy machine gets to it.
LONG = (words(40, 6), {"max_tokens": 400, "temperature": 0.8, "seed": 3, "ignore_eos": True})
STATES = "free cached closing waiting active held shared trash".split()


def poolctl(c, *arguments, code=DONE):
    """What it printed as JSON; its code must be this one, and a failure comes with a sentence."""
    command = [BUILD / "poold/poolctl", "--config", c.write_config(), "--json", *map(str, arguments)]
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=STOP_S)
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
def two_pipelines(model, **settings):
    with Cistern(model, settings={**SLOW, "worker.lanes": 2, **settings}).start() as c:
        others = [c.launch("workerd", "--pipeline", 1, "--stage", s, name=f"other-{s}") for s in (0, 1)]
        c.wait_ready(*others)
        eventually(lambda: c.metric("cistern_pipelines_ready") == 2, "both pipelines are ready")
        c.last = [c.workers[1], others[1]]
        yield c
        for p in others:
            if p.alive():
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
        stream = c.half_way(CHAT[0], 1, **CHAT[1])
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
        assert top.wait(STOP_S) == 0


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
    "stage over the limit": ["drain", "0.16"],
    "no stage": ["drain", "0."],
    "no pipeline of a stage": ["drain", ".0"],
    "more than a stage": ["undrain", "0.0.0"],
    "no file": ["save", "1:2"],
    "too much": ["status", "now"],
    "unknown option": ["status", "--frobnicate"],
}


@pytest.mark.cpu("poolctl's own")
@pytest.mark.parametrize("case", WRONG)
def test_wrong_use(tmp_path, case):
    config = tmp_path / "cistern.conf"
    config.write_text(f"[run]\ndir = {tmp_path}/run\n")
    done = subprocess.run(
        [BUILD / "poold/poolctl", "--config", config, *WRONG[case]], capture_output=True, text=True
    )
    assert done.returncode == REFUSED
    assert done.stderr.startswith("poolctl: ")


@pytest.mark.cpu("poolctl's own")
def test_nobody_there(tmp_path):
    config = tmp_path / "cistern.conf"
    config.write_text(f"[run]\ndir = {tmp_path}/run\n")
    done = subprocess.run(
        [BUILD / "poold/poolctl", "--config", config, "status"], capture_output=True, text=True
    )
    assert done.returncode == UNREACHED
    assert str(tmp_path) in done.stderr


@pytest.mark.cpu("poolctl's own")
def test_help_words_and_completion():
    out = subprocess.run([BUILD / "poold/poolctl", "--help"], capture_output=True, text=True, check=True)
    words_ = subprocess.run([BUILD / "poold/poolctl", "--words"], capture_output=True, text=True, check=True)
    for word in words_.stdout.split():
        assert word in out.stdout
    assert "exit codes" in out.stdout


@pytest.mark.cpu("poolctl's own")
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
        stream = c.half_way(CHAT[0], 8, **CHAT[1])
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
        stream = c.half_way(CHAT[0], 8, *c.last, **CHAT[1])
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
        stream = c.half_way(CHAT[0], 8, *c.last, **CHAT[1])
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
        stream = c.half_way(CHAT[0], 1, **CHAT[1])
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


def drained(c):
    """(pipelines, workers) that are, as status says."""
    status = poolctl(c, "status")
    pipelines = [p["pipeline"] for p in status["pipelines"] if p["draining"]]
    workers = [(p["pipeline"], p["stage"]) for p in status["processes"] if p.get("draining")]
    return pipelines, sorted(workers)


def test_drain_a_worker_and_replace_it(slow_model):
    """Its pipeline takes nothing new, what runs goes on in the other one, and its successor serves at
    once: nobody needs to say undrain."""
    alone, solo = solo_rows(slow_model, [LONG], **SLOW)
    with two_pipelines(slow_model) as c:
        stream = c.half_way(LONG[0], 8, *c.last, **LONG[1])
        with held_up(*c.last):
            (row,) = c.pool().rows(ACTIVE)
            here, there = row["pipeline"], 1 - row["pipeline"]
            assert poolctl(c, "drain", f"{here}.1")["n"] == 1
            assert poolctl(c, "drain", f"{here}.1")["n"] == 0
            assert drained(c) == ([here], [(here, 1)])
        stream.read_all()
        assert stream.text == solo[0]["choices"][0]["message"]["content"]
        (found,) = c.trace().values()
        assert found == alone[0]
        assert {r["pipeline"] for r in idle(c)} == {there}
        eventually(lambda: c.metric("cistern_pipelines_ready") == 1, "one takes none")
        # It holds while it lives, whoever else of its pipeline dies, and over poold's restart.
        c.poold.kill()
        c.start_poold()
        eventually(lambda: all(p["ready"] for p in poolctl(c, "status")["pipelines"]), "all are back")
        assert drained(c) == ([here], [(here, 1)])
        c.last[here].kill()
        eventually(lambda: drained(c) == ([], []), "that ended with it")
        c.last[here] = c.launch("workerd", "--pipeline", here, "--stage", 1, name="successor")
        c.wait_ready(c.last[here])
        eventually(lambda: c.metric("cistern_pipelines_ready") == 2, "both take requests")
        c.chat("again", max_tokens=2)
        c.last[here].stop()


def test_drained_twice_is_undrained_twice(tiny_model):
    """A pipeline and its workers are drained each for itself; undrain of the pipeline ends all."""
    with Cistern(tiny_model, settings=SETTINGS).start() as c:
        poolctl(c, "drain", 0)
        poolctl(c, "drain", "0.0")
        poolctl(c, "drain", "0.1")
        assert drained(c) == ([0], [(0, 0), (0, 1)])
        assert poolctl(c, "undrain", "0.1")["n"] == 1
        assert drained(c) == ([0], [(0, 0)])
        eventually(lambda: c.get("/health")[0] == 503, "nothing new is taken")
        assert poolctl(c, "undrain", 0)["n"] == 1
        assert poolctl(c, "undrain", 0)["n"] == 0
        assert drained(c) == ([], [])
        c.wait_healthy()
        poolctl(c, "drain", "0.0")
        eventually(lambda: c.get("/health")[0] == 503, "nothing new is taken")
        assert "drained" in plain(c, "status") and "(drained)" in plain(c, "top", "--once")
        assert poolctl(c, "undrain", "0.0")["n"] == 1
        c.wait_healthy()
        for place in ("0.2", "1", "1.0", "7.15"):
            poolctl(c, "drain", place, code=UNKNOWN)
            poolctl(c, "undrain", place, code=UNKNOWN)


@pytest.mark.cpu("poolctl's own")
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


# ---- doctor


@pytest.mark.parametrize("kv", ["f16", "k8v4"])
def test_doctor(tiny_model, kv):
    settings = {**SETTINGS, "pool.chunk": 64, "pool.kv": kv}
    with Cistern(tiny_model, stages=2, settings=settings) as c:
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
    "chunk": {"pool.chunk": 32, "pool.kv": "q4"},  # 2 heads of 16: 40 bytes a cell, 2 KiB in 64
    "pool": {"pool.cells": 1024},
    "pool.dir": {"pool.cells": (1 << 32) - (1 << 20), "pool.dir": "/dev/shm/cistern-none"},
    "model": {"model.path": "/none.gguf"},
    "run.dir": {"run.dir": "/tmp/" + "long" * 30},
    "GPU of stage 0": {"worker.device": "cuda:0", "worker.memory_limit": 1024},
    "GPU of stage 1": {"worker.stages": 2, "worker.device": "cpu,cuda:0", "worker.memory_limit": 1024},
    "pinned arenas": {"worker.device": "cuda:0", "pool.dir": "/proc/none"},
    "device of stage 0": {"worker.device": "gpu"},
}


@pytest.mark.cpu("poolctl's own")
@pytest.mark.parametrize("what", MISFITS)
def test_doctor_finds_what_does_not_fit(tiny_model, what):
    with Cistern(tiny_model, settings={**SETTINGS, **MISFITS[what]}) as c:
        command = [BUILD / "poold/poolctl", "--config", c.write_config(), "--json", "doctor"]
        done = subprocess.run(command, capture_output=True, text=True)
        assert done.returncode == REFUSED
        checks = {x["what"]: x for x in json.loads(done.stdout)["checks"]}
        assert not checks[what]["ok"] and checks[what]["knob"]
        if not checks.get("GPU driver", {"ok": True})["ok"]:
            assert not any(x["ok"] for w, x in checks.items() if w.startswith("GPU of stage"))


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
