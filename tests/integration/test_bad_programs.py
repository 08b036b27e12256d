# SPDX-License-Identifier: MIT
"""What programs do with wrong configurations, files, peers and messages: a sentence on stderr that
names the thing and the remedy, and status 1. None of it ends a daemon that serves."""
import os
import pathlib
import re
import struct
import subprocess

import pytest
import zmq

from harness import BUILD, Cistern, Process, device, eventually
from test_equal import SMALL

pytestmark = pytest.mark.cpu("configurations, files and messages")

PROGRAMS = ("poold", "workerd", "gateway")


def refuse(program, *arguments, config=None, folder=None, words=()):
    """Runs a program to its end, which must be 1 with one sentence that holds these words."""
    if config is not None:
        path = folder / "cistern.conf"
        path.write_text(config)
        arguments = ("--config", path, *arguments)
    done = subprocess.run(
        [BUILD / program / program, *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=120,
        env={k: v for k, v in os.environ.items() if k != "NOTIFY_SOCKET"},
    )
    errors = [line for line in done.stderr.splitlines() if re.match(r"<[34]>", line)]
    assert done.returncode == 1, (done.returncode, done.stderr)
    assert len(errors) == 1, done.stderr
    for word in words:
        assert word in errors[0], f"{word!r} is not in {errors[0]!r}"
    return errors[0]


CONFIGS = {
    "unknown key": ("[pool]\ncelsl = 5\n", ["pool.celsl", "pool.cells"]),
    "unknown section": ("[pools]\ncells = 5\n", ["pools.cells", "pool.cells"]),
    "not a number": ("[pool]\ncells = many\n", ["pool.cells", "many", "number"]),
    "negative": ("[pool]\ncells = -1\n", ["pool.cells", "-1"]),
    "too large": ("[worker]\nlanes = 65\n", ["worker.lanes", "65", "64"]),
    "not a choice": ("[pool]\nkv = f12\n", ["pool.kv", "f12", "f16"]),
    "not a yes or no": ("[worker]\ntrace_all = maybe\n", ["worker.trace_all", "maybe", "yes"]),
    "no power of two": ("[pool]\nchunk = 48\n", ["pool.chunk", "48", "power of two"]),
    "neither section nor key": ("[pool]\nwhat\n", ["cistern.conf", "2"]),
}


@pytest.mark.parametrize("program", PROGRAMS)
@pytest.mark.parametrize("case", CONFIGS)
def test_wrong_configuration(tmp_path, program, case):
    config, words = CONFIGS[case]
    stage = ["--stage", 0] if program == "workerd" else []
    refuse(program, *stage, config=config, folder=tmp_path, words=words)


@pytest.mark.parametrize("program", PROGRAMS)
def test_wrong_command_line(tmp_path, program):
    refuse(program, "--config", tmp_path / "none.conf", words=["none.conf", "No such file"])
    refuse(program, "--set", "pool.cels=5", words=["pool.cels", "pool.cells"])
    refuse(program, "--set", "nonsense", words=["nonsense", "section.key=value"])
    refuse(program, "--frobnicate", words=["--frobnicate", "--help"])


@pytest.mark.parametrize("program", PROGRAMS)
def test_help_and_version(program):
    for option in ("--help", "--version"):
        done = subprocess.run([BUILD / program / program, option], capture_output=True, text=True)
        assert done.returncode == 0 and program in done.stdout and not done.stderr


FILES = {
    "missing": (None, ["No such file"]),
    "empty": (b"", ["empty"]),
    "another kind of file": (b"#!/bin/sh\n" * 100, ["GGUF"]),
    "another version": (struct.pack("<4sIQQ", b"GGUF", 77, 0, 0) + bytes(4096), ["version 77"]),
    "counts past the end": (struct.pack("<4sIQQ", b"GGUF", 3, 1 << 60, 1 << 60), ["bad.gguf"]),
}


@pytest.mark.parametrize("program", ["workerd", "gateway"])
@pytest.mark.parametrize("case", FILES)
def test_wrong_model_file(tmp_path, program, case):
    data, words = FILES[case]
    path = tmp_path / "bad.gguf"
    if data is not None:
        path.write_bytes(data)
    config = f"[run]\ndir = {tmp_path}/run\n[model]\npath = {path}\n"
    stage = ["--stage", 0] if program == "workerd" else []
    refuse(program, *stage, config=config, folder=tmp_path, words=["bad.gguf", *words])


def test_truncated_model(tmp_path, tiny_model):
    path = tmp_path / "bad.gguf"
    path.write_bytes(pathlib.Path(tiny_model).read_bytes()[:-4096])
    config = f"[run]\ndir = {tmp_path}/run\n[model]\npath = {path}\n"
    refuse("workerd", "--stage", 0, config=config, folder=tmp_path, words=["bad.gguf"])


def test_second_poold(tiny_model):
    with Cistern(tiny_model, settings=SMALL).start() as c:
        words = ["another poold", str(c.memory)]
        config = c.write_config()
        refuse("poold", "--config", config, "--set", f"run.dir={c.folder}/run2", words=words)
        refuse(
            "poold",
            "--config",
            config,
            "--set",
            f"pool.dir={c.memory}-2",
            words=["another poold", str(c.settings["run.dir"])],
        )
        c.wait_healthy()


# What a worker may not state once the pool is made; each answer names both values.
WORKERS = {
    "context": (["model.context=1024"], ["1024", "2048"]),
    "K/V format": (["pool.kv=f32"], ["f32", "f16"]),
    "number of stages": (["worker.stages=1", f"worker.device={device(0)}"], ["1", "2"]),
    "layers": (["worker.layers=0-0,1-3"], ["layer"]),
    "precision": (["worker.precision=float32"], ["float32", "int8"]),
}


@pytest.mark.parametrize("case", WORKERS)
def test_worker_of_another_layout(tiny_model, case):
    sets, words = WORKERS[case]
    with Cistern(tiny_model, settings=SMALL).start() as c:
        c.chat("a conversation exists", max_tokens=2)
        c.workers[1].stop()
        more = [a for s in sets for a in ("--set", s)]
        stage = "0" if case == "number of stages" else "1"
        if stage == "0":
            c.workers[0].stop()
        refuse("workerd", "--config", c.write_config(), "--stage", stage, *more, words=words)
        for i in range(2):
            if not c.workers[i].alive():
                c.start_worker(i)
        c.wait_healthy()
        c.chat("still serving", max_tokens=2)


def test_worker_of_another_model(tiny_model, other_tiny_model):
    with Cistern(tiny_model, settings=SMALL).start() as c:
        c.chat("a conversation exists", max_tokens=2)
        c.workers[1].stop()
        more = ["--set", f"model.path={other_tiny_model}"]
        refuse(
            "workerd", "--config", c.write_config(), "--stage", "1", *more, words=["model: ", "the pool has", "the worker"]
        )
        c.start_worker(1)
        c.wait_healthy()


def test_place_is_taken(tiny_model):
    with Cistern(tiny_model, settings=SMALL).start() as c:
        refuse("workerd", "--config", c.write_config(), "--stage", "1", words=["stage 1"])
        refuse("workerd", "--config", c.write_config(), "--stage", "2", words=["stage 2"])
        c.wait_healthy()
        c.chat("still serving", max_tokens=2)


def test_pool_too_small_for_one_context(tiny_model):
    """Refused at the first attach, with both numbers; poold and the worker end with 1."""
    settings = {**SMALL, "pool.cells": 1024}
    with Cistern(tiny_model, stages=1, settings=settings) as c:
        c.start_poold()
        worker = c.launch("workerd", "--stage", "0")
        assert c.poold.wait() == 1
        assert "1024" in c.poold.text() and "pool.cells" in c.poold.text()
        assert worker.wait() == 1


def test_no_room_on_tmpfs(tiny_model):
    """More K/V than the tmpfs has room for: size, place and knob are named, nothing is left there."""
    room = os.statvfs("/dev/shm")
    bytes_a_cell = 4 * 2 * 2 * 16 * 2  # layers, K and V, heads, their dimension, of f16
    cells = room.f_bavail * room.f_frsize // bytes_a_cell + (1 << 20)
    settings = {**SMALL, "pool.cells": cells}
    with Cistern(tiny_model, stages=1, settings=settings) as c:
        c.start_poold()
        worker = c.launch("workerd", "--stage", "0")
        assert c.poold.wait() == 1
        text = c.poold.text()
        assert "pool.cells" in text and str(c.memory) in text and "room" in text
        assert not list(c.memory.glob("arena*")) and not list(c.memory.glob("tokens"))
        assert worker.wait() == 1


@pytest.mark.release_build
def test_memory_that_cannot_be_locked(tiny_model):
    """pool.lock = yes never falls back to memory that may be paged out: both numbers, the knob, 1."""
    c = Cistern(tiny_model, settings={**SMALL, "pool.lock": "yes"})
    limited = ["prlimit", "--memlock=65536"]
    if os.geteuid() == 0:  # who may lock without limit
        limited = ["setpriv", "--bounding-set=-ipc_lock", *limited]
    with c:
        command = [*limited, BUILD / "poold/poold", "--config", c.write_config()]
        poold = Process("poold", command, c.folder, {"NOTIFY_SOCKET": c.notify.path})
        c.processes.append(poold)
        c.wait_ready(poold)
        worker = c.launch("workerd", "--stage", 0)
        assert poold.wait() == 1
        assert worker.wait() == 1
        (line,) = [x for x in poold.text().splitlines() if "cannot lock" in x]
        assert "65536" in line and "pool.lock" in line and "memlock" in line


def test_only_workers_know_of_cuda():
    """poold makes no context on a GPU, nor do the gateway and the tool: they link nothing of CUDA."""
    for program in ("poold/poold", "poold/poolctl", "gateway/gateway"):
        libraries = subprocess.run(["ldd", BUILD / program], capture_output=True, text=True, check=True)
        assert "libc.so" in libraries.stdout and "cuda" not in libraries.stdout


def test_busy_port(tiny_model):
    with Cistern(tiny_model, settings=SMALL).start() as c:
        more = ["--set", f"gateway.port={c.port}"]
        refuse("gateway", "--config", c.write_config(), *more, words=[str(c.port), "gateway.port"])
        c.wait_healthy()


# ---- messages

MESSAGES = {
    "nothing": b"",
    "noise": bytes(range(256)) * 16,
    "another version": b"\x08\x63\x11" + b"\x07" * 8,  # field 1: 99; field 2: from
    "nobody's incarnation": b"\x08\x01\x11" + b"\x07" * 8 + b"\x19" + b"\x09" * 8 + b"\x20\x01",
    "over the limit": bytes(17 << 20),
}


@pytest.mark.parametrize("case", MESSAGES)
@pytest.mark.parametrize("endpoint", ["poold", "head"])
def test_wrong_message(tiny_model, case, endpoint):
    with Cistern(tiny_model, settings=SMALL).start() as c:
        run = pathlib.Path(c.settings["run.dir"])
        sockets = [p for p in run.iterdir() if p.is_socket() and p.name.startswith(endpoint)]
        assert sockets, list(run.iterdir())
        for path in sockets:
            with zmq.Context() as context, context.socket(zmq.DEALER) as s:
                s.linger = 0
                s.setsockopt(zmq.ROUTING_ID, b"i" + b"\x07" * 8)
                s.connect(f"ipc://{path}")
                s.send(MESSAGES[case])
                if case == "another version":
                    assert s.poll(60000), "an envelope of another version gets no answer"
                    assert b"version" in s.recv()
        for p in (c.poold, *c.workers, c.gateway):
            assert p.alive()
        c.wait_healthy()
        c.chat("still serving", max_tokens=2)
