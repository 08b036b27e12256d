# SPDX-License-Identifier: MIT
"""POST /slots/N?action=save|restore|erase, as front ends of llama.cpp's server use it. The shapes are
those of its server's README; what a file holds is read by test_save.py, and what is in the pool by
pool.py. poolctl, which does the copying, is also played by scripts that stand still, die or talk
nonsense."""
import json
import os
import select
import signal

import pytest

from harness import BUILD, STOP_S, Cistern, Died, chat_body, eventually, stands_still
from pool import ACTIVE, CLOSING
from test_equal import cached, solo_rows, words
from test_poolctl import CHUNK, LONG, SETTINGS, SLOW, held_up, idle, poolctl, two_pipelines
from test_save import flip, go_on, tokens_of

FIELDS = {"max_tokens": 12, "temperature": 0}


def slots_in(folder, **more):
    return {"gateway.slot_dir": folder, "gateway.poolctl": BUILD / "poold/poolctl", **more}


@pytest.fixture()
def c(tiny_model, tmp_path):
    with Cistern(tiny_model, settings={**SETTINGS, **slots_in(tmp_path)}).start() as c:
        yield c


def ask(c, slot, action, body=None, headers=None):
    """Status, headers and answer."""
    connection = c.connect()
    data = None if body is None else json.dumps(body)
    connection.request("POST", f"/slots/{slot}?action={action}", data, headers or {})
    response = connection.getresponse()
    return response.status, response.headers, json.loads(response.read())


def act(c, slot, action, filename=None):
    status, _, answer = ask(c, slot, action, filename and {"filename": filename})
    assert status == 200, answer
    return answer


def refused(c, slot, action, body, status, code):
    got, headers, answer = ask(c, slot, action, body)
    assert (got, answer["error"]["code"]) == (status, code), answer
    assert ("Retry-After" in headers) == (status == 503)
    return answer["error"]


def slot_of(row):
    assert row["pipeline"] == 0
    return row["lane"]


# ---- what llama.cpp's server does


def test_save_erase_restore(c, tmp_path):
    """All that was restored counts as cached in the next turn."""
    answer = c.chat(words(60, 2), **FIELDS)
    (row,) = idle(c)
    slot, n = slot_of(row), row["base"] + row["copy_cells"]
    saved = act(c, slot, "save", "a.bin")
    path = tmp_path / "a.bin"
    assert saved.pop("timings").keys() == {"save_ms"}
    assert saved == {"id_slot": slot, "filename": "a.bin", "n_saved": n, "n_written": path.stat().st_size}
    assert path.stat().st_mode & 0o7777 == 0o600
    assert [p.name for p in tmp_path.iterdir()] == ["a.bin"]
    assert act(c, slot, "erase") == {"id_slot": slot, "n_erased": n}
    assert not c.pool().rows()
    assert act(c, slot, "erase") == {"id_slot": slot, "n_erased": 0}
    restored = act(c, slot, "restore", "a.bin")
    assert restored.pop("timings").keys() == {"restore_ms"}
    assert restored == {
        "id_slot": slot,
        "filename": "a.bin",
        "n_restored": n,
        "n_read": path.stat().st_size,
    }
    ids = tokens_of(path.read_bytes())
    again = go_on(c, [*ids, ids[0]])
    assert cached(again) == n == len(ids)
    assert c.chat(words(60, 2), **FIELDS)["choices"] == answer["choices"]


def test_a_restored_slot_is_that_slots(c):
    """Also one that never ran anything: saved again it gives the same file."""
    c.chat(words(60, 2), **FIELDS)
    (row,) = idle(c)
    act(c, slot_of(row), "save", "a")
    poolctl(c, "drop", "--all")
    act(c, 5, "restore", "a")
    assert act(c, 5, "save", "b")["n_saved"] == row["base"] + row["copy_cells"]
    a, b = (open(f"{c.settings['gateway.slot_dir']}/{n}", "rb").read() for n in "ab")
    assert a == b
    refused(c, slot_of(row), "save", {"filename": "c"}, 404, "slot_empty")
    # One that a tool restores was in no lane.
    poolctl(c, "restore", f"{c.settings['gateway.slot_dir']}/a")
    refused(c, slot_of(row), "save", {"filename": "c"}, 404, "slot_empty")


def test_a_slot_is_saved_while_it_runs(slow_model, tmp_path):
    """Its answer does not suffer, and it is not shown as two."""
    _, solo = solo_rows(slow_model, [LONG], **SLOW)
    with Cistern(slow_model, settings={**SLOW, **slots_in(tmp_path)}).start() as c:
        stream = c.half_way(LONG[0], 8, **LONG[1])
        with held_up(c.workers[1]):
            (row,) = c.pool().rows(ACTIVE)
            n = act(c, slot_of(row), "save", "a")["n_saved"]
            (busy,) = [s for s in json.loads(c.get("/slots")[1]) if s["is_processing"]]
            assert (busy["id"], busy["row"]) == (slot_of(row), row["index"])
            refused(c, slot_of(row), "erase", None, 503, "slot_busy")
        stream.read_all()
        assert stream.text == solo[0]["choices"][0]["message"]["content"]
        ids = tokens_of((tmp_path / "a").read_bytes())
        assert len(ids) == n
        idle(c)
        # The slot's conversation is what it ran last, with all of its answer.
        assert act(c, slot_of(row), "save", "b")["n_saved"] > n
        whole = tokens_of((tmp_path / "b").read_bytes())
        assert whole[:n] == ids


def test_slots_of_two_pipelines(slow_model, tmp_path):
    """They are numbered pipeline by pipeline, and keep their numbers when one is away."""
    with two_pipelines(slow_model, **slots_in(tmp_path)) as c:
        slots = json.loads(c.get("/slots")[1])
        assert [(s["id"], s["pipeline"], s["lane"]) for s in sorted(slots, key=lambda s: s["id"])] == [
            (0, 0, 0),
            (1, 0, 1),
            (2, 1, 0),
            (3, 1, 1),
        ]
        poolctl(c, "drain", 0)
        eventually(lambda: c.metric("cistern_pipelines_ready") == 1, "it takes nothing new")
        c.chat(words(20, 2), **FIELDS)
        (row,) = idle(c)
        assert row["pipeline"] == 1
        slot = 2 + row["lane"]
        n = row["base"] + row["copy_cells"]
        assert act(c, slot, "save", "a")["n_saved"] == n
        refused(c, row["lane"], "save", {"filename": "b"}, 404, "slot_empty")
        c.workers[0].kill()
        eventually(lambda: not any(s["pipeline"] == 0 for s in json.loads(c.get("/slots")[1])), "it is away")
        assert {s["id"] for s in json.loads(c.get("/slots")[1])} == {2, 3}
        assert act(c, slot, "erase")["n_erased"] == n
        refused(c, 4, "save", {"filename": "b"}, 400, "invalid_request")
        c.start_worker(0)


# ---- refusals


@pytest.mark.cpu("the gateway's own")
def test_without_a_folder_there_are_none(tiny_model):
    with Cistern(tiny_model, settings=SETTINGS).start() as c:
        for action in ("save", "restore", "erase"):
            refused(c, 0, action, {"filename": "a"}, 501, "not_implemented")


NAMES = ["", ".", "..", "../a", "a/b", "/etc/passwd", "a\\b", ".hidden", "a\nb", "a\0b", "\x7f", "x" * 201]


@pytest.mark.cpu("the gateway's own")
def test_what_is_no_request(c, tmp_path):
    c.chat("x", **FIELDS)
    (row,) = idle(c)
    slot = slot_of(row)
    good = {"filename": "a"}
    for action in ("save", "restore"):
        for name in NAMES:
            error = refused(c, slot, action, {"filename": name}, 400, "invalid_request")
            assert error["param"] == "filename", name
        for body in ({}, {"filename": 7}, {"filename": None}, []):
            refused(c, slot, action, body, 400, "invalid_request")
    for number in ("8", "x", "-1", "0x0", "99999999999999999999", "0/1"):
        assert refused(c, number, "save", good, 400, "invalid_request")["param"] == "id_slot"
    for action in ("", "SAVE", "delete"):
        assert refused(c, slot, action, good, 400, "invalid_request")["param"] == "action"
    status, answer = c.post(f"/slots/{slot}", good)
    assert (status, answer["error"]["param"]) == (400, "action")
    assert c.get(f"/slots/{slot}")[0] == 405
    assert not list(tmp_path.iterdir())
    # The longest name that is one, and one with what a shell would mind.
    for name in ("x" * 200, "--json; $(a) 'b' \u6f22"):
        assert act(c, slot, "save", name)["filename"] == name
        assert act(c, slot, "restore", name)["n_restored"] > 0
    assert len(list(tmp_path.iterdir())) == 2


@pytest.mark.cpu("the gateway's own")
def test_each_kind_of_file_has_its_code(c, tmp_path, other_tiny_model):
    c.chat(words(60, 2), **FIELDS)
    (row,) = idle(c)
    slot = slot_of(row)
    act(c, slot, "save", "a")
    data = (tmp_path / "a").read_bytes()
    cases = [
        ("missing", None, 404, "slot_file_missing"),
        ("truncated", data[:-1], 400, "slot_file_truncated"),
        ("empty", b"", 400, "slot_file_truncated"),
        ("damaged", flip(data, len(data) - 1), 400, "slot_file_damaged"),
        ("none", b"{}", 400, "slot_file_damaged"),
        ("version", flip(data, 8), 400, "slot_file_foreign"),
    ]
    (tmp_path / "folder").mkdir()
    for name, bad, status, code in cases:
        if bad is not None:
            (tmp_path / name).write_bytes(bad)
        error = refused(c, slot, "restore", {"filename": name}, status, code)
        assert str(tmp_path) not in error["message"]
        eventually(lambda: not c.pool().rows(CLOSING), "its row is free again")
        assert c.pool().rows() == [row]
    refused(c, slot, "restore", {"filename": "folder"}, 500, "internal_error")
    refused(c, slot, "save", {"filename": "folder"}, 500, "internal_error")
    with Cistern(other_tiny_model, settings={**SETTINGS, **slots_in(tmp_path)}).start() as other:
        refused(other, 0, "restore", {"filename": "a"}, 400, "slot_file_foreign")
        assert not other.pool().rows()


def test_a_full_pool_is_retried_later(slow_model, tmp_path):
    settings = {**SLOW, "model.context": 512, "pool.cells": 512 + 2 * CHUNK, **slots_in(tmp_path)}
    with Cistern(slow_model, settings=settings).start() as c:
        c.chat(words(60, 2), max_tokens=60)
        (row,) = idle(c)
        act(c, slot_of(row), "save", "a")
        act(c, slot_of(row), "erase")
        stream = c.begin(lambda: c.stream(words(70, 3), max_tokens=120))
        with held_up(c.workers[1]):
            status, headers, answer = ask(c, 0, "restore", {"filename": "a"})
            assert (status, answer["error"]["code"]) == (503, "kv_pool_full")
            assert (headers["Retry-After"], answer["error"]["retry_after"]) == ("10", 10)
        stream.read_all()
        assert stream.done and not stream.error
        idle(c)
        act(c, 0, "restore", "a")


@pytest.mark.cpu("the gateway's own")
def test_keys(tiny_model, tmp_path):
    """A key is asked for as elsewhere; where keys share no prefixes, none sees another's slot."""
    settings = {**SETTINGS, **slots_in(tmp_path), "gateway.keys": "one, two", "gateway.share_prefixes": "key"}
    one, two = ({"Authorization": f"Bearer {k}"} for k in ("one", "two"))
    with Cistern(tiny_model, settings=settings) as c:
        c.start_poold()
        for stage in (0, 1):
            c.start_worker(stage, wait=False)
        c.start_gateway()
        c.wait_healthy()
        connection = c.connect()
        connection.request("POST", "/v1/chat/completions", json.dumps(chat_body("hello", FIELDS)), one)
        assert connection.getresponse().status == 200
        (row,) = idle(c)
        slot, body = slot_of(row), {"filename": "a"}
        for action in ("save", "erase", "restore"):
            assert ask(c, slot, action, body)[0] == 401
        assert ask(c, slot, "save", body, two)[0] == 404
        assert ask(c, slot, "erase", body, two)[2]["n_erased"] == 0
        assert ask(c, slot, "save", body, one)[0] == 200
        assert ask(c, slot, "erase", body, one)[2]["n_erased"] > 0
        assert ask(c, slot, "restore", body, one)[0] == 200


@pytest.mark.cpu("the gateway's own")
@pytest.mark.parametrize(
    "settings",
    [
        {"gateway.slot_dir": "slots"},
        {"gateway.slot_dir": "/none/such"},
        {"gateway.slot_dir": "/dev/null"},
        {"gateway.poolctl": "/dev/null"},
        {"gateway.poolctl": "poolctl"},
    ],
)
def test_a_gateway_that_could_not_save_does_not_start(tiny_model, tmp_path, settings):
    with Cistern(tiny_model, settings={**SETTINGS, **slots_in(tmp_path), **settings}) as c:
        c.start_poold()
        with pytest.raises(Died, match=next(iter(settings.values()))):
            c.start_gateway()


# ---- the tool


def script(path, text):
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return path


def children(p):
    """Processes that this one has started and not waited for."""
    return [int(t) for t in open(f"/proc/{p.pid}/task/{p.pid}/children").read().split()]


def standing(p, n):
    """Its processes, when they are so many and stand still: who continues one before would do nothing."""
    found = children(p)
    return len(found) == n and all(map(stands_still, found)) and found


def begin(c, slot, action, filename):
    connection = c.connect()
    connection.request("POST", f"/slots/{slot}?action={action}", json.dumps({"filename": filename}))
    return connection


@pytest.fixture()
def still(tiny_model, tmp_path):
    """Its tools stand still as soon as they are started."""
    program = script(tmp_path / "poolctl", f'kill -STOP $$\nexec {BUILD}/poold/poolctl "$@"')
    slots = tmp_path / "slots"
    slots.mkdir()
    settings = {**SETTINGS, **slots_in(slots, **{"gateway.poolctl": program})}
    with Cistern(tiny_model, settings=settings).start() as c:
        c.chat("hello", **FIELDS)
        idle(c)
        yield c


@pytest.mark.cpu("the gateway's own")
def test_a_tool_holds_up_nobody(still):
    c = still
    waiting = begin(c, 0, "save", "a")
    (pid,) = eventually(lambda: standing(c.gateway, 1), "the tool runs")
    c.chat("meanwhile", **FIELDS)
    assert c.get("/health")[0] == 200
    os.kill(pid, signal.SIGCONT)
    response = waiting.getresponse()
    assert response.status == 200 and json.loads(response.read())["n_saved"] > 0
    assert not children(c.gateway)


@pytest.mark.cpu("the gateway's own")
def test_a_client_that_leaves_ends_its_tool(still):
    c = still
    rows = c.pool().rows()
    waiting = begin(c, 0, "save", "a")
    eventually(lambda: children(c.gateway), "the tool runs")
    waiting.close()
    eventually(lambda: not children(c.gateway), "it is ended and waited for")
    assert c.pool().rows() == rows
    assert not os.listdir(c.settings["gateway.slot_dir"])


@pytest.mark.cpu("the gateway's own")
def test_so_many_at_a_time(still):
    """The next one is told to come back; a place is free when one has ended."""
    c = still
    waiting = [begin(c, 0, "save", f"a{i}") for i in range(4)]
    eventually(lambda: standing(c.gateway, 4), "four run")
    refused(c, 0, "save", {"filename": "b"}, 503, "slot_busy")
    for pid in children(c.gateway):
        os.kill(pid, signal.SIGCONT)
    for connection in waiting:
        response = connection.getresponse()
        assert response.status == 200, response.read()
    last = begin(c, 0, "save", "b")
    (pid,) = eventually(lambda: children(c.gateway), "there is a place")
    os.kill(pid, signal.SIGKILL)
    response = last.getresponse()
    assert (response.status, json.loads(response.read())["error"]["code"]) == (500, "internal_error")


@pytest.mark.cpu("the gateway's own")
def test_a_gateway_that_ends_takes_its_tools_along(still):
    c = still
    waiting = begin(c, 0, "save", "a")
    (pid,) = eventually(lambda: standing(c.gateway, 1), "the tool runs")
    pidfd = os.pidfd_open(pid)
    c.gateway.stop()
    assert select.select([pidfd], [], [], STOP_S)[0], "it is over"
    os.close(pidfd)
    response = waiting.getresponse()
    assert (response.status, json.loads(response.read())["error"]["code"]) == (503, "draining")
    assert not os.listdir(c.settings["gateway.slot_dir"])


NONSENSE = [
    "exit 0",
    "exit 1",
    "echo '{'; exit 0",
    "echo '[]'; exit 7",
    "kill -9 $$",
    "yes | head -c 200000; exit 0",
    "echo '{\"error\": 7}'; exit 200",
]


@pytest.mark.cpu("the gateway's own")
@pytest.mark.parametrize("text", NONSENSE)
def test_tools_that_talk_nonsense(tiny_model, tmp_path, text):
    program = script(tmp_path / "poolctl", text)
    settings = {**SETTINGS, **slots_in(tmp_path, **{"gateway.poolctl": program})}
    with Cistern(tiny_model, settings=settings).start() as c:
        c.chat("hello", **FIELDS)
        idle(c)
        status, _, answer = ask(c, 0, "save", {"filename": "a"})
        assert (status, "error" in answer) in ((500, True), (400, True)), answer
        c.chat("hello", **FIELDS)
