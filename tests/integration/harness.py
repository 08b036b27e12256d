# SPDX-License-Identifier: MIT
"""Starts the real programs in a folder of their own and ends them; what all stories stand on.

A Cistern owns a temporary folder (configuration, sockets, logs), a folder of memory files on tmpfs,
and a NOTIFY_SOCKET by which it hears READY=1: nothing here sleeps until something may have happened.
Where only looking tells (a death's consequences in another process), eventually() looks, bounded.
A process that ends by SIGTERM must end with 0, and no log may hold a sanitizer's report. With
CISTERN_DEVICE=cuda all stages compute on the first card, or stage i on card i of CISTERN_CARDS.
"""
import contextlib
import ctypes
import fcntl
import http.client
import itertools
import json
import os
import pathlib
import re
import select
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time

import pool

ROOT = pathlib.Path(__file__).resolve().parents[2]
BUILD = pathlib.Path(os.environ.get("CISTERN_BUILD", ROOT / "build"))
READY_S = 300  # bounds only, as all limits of waiting: a loaded machine under sanitizers needs seconds
STOP_S = 180
ANSWER_S = 600
KINDS_DIFFER = {"cuda-5"}  # where prompts' rows have an arithmetic of their own (cuda.c)
CARDS = int(os.environ.get("CISTERN_CARDS", "1")) if os.environ.get("CISTERN_DEVICE") == "cuda" else 0
PR_SET_PDEATHSIG = 1
POOLD_LOCKS = "poold.lock", "pool/poold.lock", "run/poold.lock"
ENDS = {"0", "2"}  # tokens that end an answer, of the tiny models and of the demo model
UCRED = struct.Struct("3i")
LIBC = ctypes.CDLL(None, use_errno=True)
SANITIZER = re.compile(r"AddressSanitizer|LeakSanitizer|UndefinedBehaviorSanitizer|runtime error:")
numbers = itertools.count()


def is_held(path):
    """Whether somebody who lives has locked it: a folder's owner may not be seen from here."""
    fd = -1
    try:
        fd = os.open(path, os.O_RDONLY)
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return False
    except FileNotFoundError:
        return False
    except OSError:
        return True
    finally:
        if fd >= 0:
            os.close(fd)


def remove_leftovers(*bases):
    """Folders of tests that were killed: the process whose number is in the name is not there, nor is one
    that is not seen from here (is_held)."""
    for base in map(pathlib.Path, bases or ("/dev/shm", tempfile.gettempdir())):
        for folder in (*base.glob("cistern-test-*"), *base.glob("cistern-pool-*")):
            owner = re.search(r"-(\d+)-", folder.name)
            if not owner or not folder.is_dir() or os.path.exists(f"/proc/{owner[1]}"):
                continue
            if not any(map(is_held, (folder, *(folder / f for f in POOLD_LOCKS)))):
                shutil.rmtree(folder, ignore_errors=True)


def device(stage):
    """What a stage computes on."""
    return f"cuda:{stage % CARDS}" if CARDS else "cpu"


def stands_still(pid):
    """Whether each thread of it is stopped, or dead."""
    try:
        stats = [(t / "stat").read_text() for t in pathlib.Path(f"/proc/{pid}/task").iterdir()]
    except OSError:
        return False  # a thread ended just now
    return all(s.rpartition(")")[2].split()[0] in "TtZX" for s in stats)


class Died(Exception):
    """A process ended where it should have become ready."""


def eventually(condition, what, seconds=120):
    """The value of condition() as soon as it is true; looks every 5 ms, for what sends no event."""
    deadline = time.monotonic() + seconds
    while not (value := condition()):
        if time.monotonic() > deadline:
            raise AssertionError(f"{what}: not within {seconds} s")
        time.sleep(0.005)
    return value


class Process:
    def __init__(self, name, command, folder, environment):
        def die_with_parent():
            LIBC.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)

        self.name = name
        self.log = folder / f"{name}.{next(numbers)}.log"
        with open(self.log, "wb") as log:
            self.popen = subprocess.Popen(
                [str(c) for c in command],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env={**os.environ, **environment},
                preexec_fn=die_with_parent,
            )
        self.pid = self.popen.pid
        self.pidfd = os.pidfd_open(self.pid)

    def alive(self):
        return self.pidfd >= 0 and not select.select([self.pidfd], [], [], 0)[0]

    def send(self, number):
        signal.pidfd_send_signal(self.pidfd, number)

    def wait(self, seconds=STOP_S):
        """Its exit status; negative: the signal that killed it."""
        if self.pidfd >= 0:
            if not select.select([self.pidfd], [], [], seconds)[0]:
                raise AssertionError(f"{self.name} did not end within {seconds} s\n{self.text()}")
            os.close(self.pidfd)
            self.pidfd = -1
        return self.popen.wait()

    def kill(self):
        self.send(signal.SIGKILL)
        assert self.wait() == -signal.SIGKILL

    def stop(self):
        self.send(signal.SIGCONT)
        self.send(signal.SIGTERM)
        status = self.wait()
        assert status == 0, f"{self.name} ended with {status} after SIGTERM\n{self.text()}"

    def is_ended_by_its_loop(self):
        """SIGTERM is blocked in all of its threads, a driver's too: it can only be read."""
        for task in pathlib.Path(f"/proc/{self.pid}/task").iterdir():
            try:
                blocked = re.search(r"^SigBlk:\s*(\w+)", (task / "status").read_text(), re.MULTILINE)
            except OSError:
                continue  # the thread ended
            if not int(blocked[1], 16) & 1 << (signal.SIGTERM - 1):
                return False
        return True

    def freeze(self):
        """Returns when every thread of it stands still."""
        self.send(signal.SIGSTOP)
        self.wait_frozen()

    def wait_frozen(self):
        """Also by having been killed meanwhile, as who stands still for too long is."""
        eventually(lambda: stands_still(self.pid), f"{self.name} stops")

    def thaw(self):
        self.send(signal.SIGCONT)

    def text(self):
        return self.log.read_text(errors="replace")


class Notify:
    """The socket that programs tell their supervisor by. Read all the time by a thread of its own: a
    program that tells more than the socket holds would stand still."""

    def __init__(self, path):
        self.path = path
        self.ready = set()  # pids that said READY=1
        self.said, self.say = os.pipe()  # a byte for each READY=1
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
        self.socket.bind(path)
        self.thread = threading.Thread(target=self.read, daemon=True)
        self.thread.start()

    def read(self):
        while True:
            data, control, _, _ = self.socket.recvmsg(4096, socket.CMSG_SPACE(UCRED.size))
            if data == b"END":
                return
            if b"READY=1" in data.split(b"\n"):
                self.ready.add(next((UCRED.unpack(c[2])[0] for c in control), 0))
                os.write(self.say, b"!")

    def close(self):
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as s:
            s.sendto(b"END", self.path)
        self.thread.join()
        self.socket.close()
        os.close(self.said)
        os.close(self.say)


class Cistern:
    """The programs of one pool. settings: {"section.key": value}, over a small preset."""

    def __init__(self, model, stages=2, settings=None):
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix=f"cistern-test-{os.getpid()}-"))
        self.held = os.open(self.folder, os.O_RDONLY)
        fcntl.flock(self.held, fcntl.LOCK_EX)
        self.memory = pathlib.Path(f"/dev/shm/cistern-test-{os.getpid()}-{next(numbers)}")
        self.stages = stages
        self.settings = {
            "run.dir": self.folder / "run",
            "run.log_level": "debug",
            "model.path": model,
            "pool.dir": self.memory,
            "worker.stages": stages,
            "worker.threads": 1,
            "worker.device": ",".join(map(device, range(stages))),
            "worker.stuck_ms": 600000,  # stories stop workers, for as long as a slow machine takes
            "gateway.port": 0,
        }
        self.settings.update(settings or {})
        if self.settings.get("worker.trace") is True:
            self.settings["worker.trace"] = self.folder / "trace"
        self.processes = []
        self.workers = [None] * stages
        self.poold = self.gateway = None
        self.port = None
        self.notify = Notify(str(self.folder / "notify"))

    def __enter__(self):
        return self

    def __exit__(self, kind, _value, _traceback):
        went_wrong = True
        try:
            if kind is None:
                self.stop_all()
            self.look_for_reports()
            went_wrong = kind is not None
        finally:
            for p in self.processes:
                if p.alive():
                    p.kill()
                if went_wrong:
                    print(f"---- {p.log.name}\n{p.text()[-3000:]}")
            self.notify.close()
            os.close(self.held)
            shutil.rmtree(self.folder, ignore_errors=True)
            shutil.rmtree(self.memory, ignore_errors=True)

    def look_for_reports(self):
        for p in self.processes:
            found = SANITIZER.search(p.text())
            assert not found, f"{p.name}: {p.text()[found.start() :][:4000]}"

    def stop_all(self):
        for p in [self.gateway, *self.workers, self.poold]:
            if p and p.alive():
                p.stop()

    # ---- processes

    def write_config(self):
        sections = {}
        for key, value in self.settings.items():
            section, name = key.split(".", 1)
            sections.setdefault(section, []).append(f"{name} = {value}")
        text = "".join(f"[{s}]\n" + "\n".join(lines) + "\n\n" for s, lines in sections.items())
        # Renamed into place: a program started just before may be reading it.
        path = self.folder / "cistern.conf"
        new = path.with_suffix(".new")
        new.write_text(text)
        return new.rename(path)

    def launch(self, program, *arguments, name=None, **environment):
        """Starts a program; does not wait for it."""
        command = [BUILD / program / program, "--config", self.write_config(), *arguments]
        environment["NOTIFY_SOCKET"] = self.notify.path
        p = Process(name or program, command, self.folder, environment)
        self.processes.append(p)
        return p

    def wait_ready(self, *processes):
        deadline = time.monotonic() + READY_S
        while waiting := [p for p in processes if p.pid not in self.notify.ready]:
            fds = [self.notify.said, *(p.pidfd for p in waiting)]
            readable = select.select(fds, [], [], max(0, deadline - time.monotonic()))[0]
            if not readable:
                raise AssertionError(f"{waiting[0].name} is not ready\n{waiting[0].text()}")
            if self.notify.said in readable:
                os.read(self.notify.said, 1)
                continue
            dead = next(p for p in waiting if p.pidfd in readable)
            raise Died(f"{dead.name} ended with {dead.wait()}\n{dead.text()}")
        for p in processes:
            assert p.is_ended_by_its_loop(), f"{p.name}: a thread takes SIGTERM by itself"

    def start_poold(self):
        self.poold = self.launch("poold")
        self.wait_ready(self.poold)

    def start_worker(self, stage, wait=True, **environment):
        p = self.launch("workerd", "--stage", stage, name=f"workerd-{stage}", **environment)
        self.workers[stage] = p
        if wait:
            self.wait_ready(p)

    def start_gateway(self):
        self.gateway = self.launch("gateway")
        self.wait_ready(self.gateway)
        found = re.search(r"listening on http://127\.0\.0\.1:(\d+)", self.gateway.text())
        self.port = int(found.group(1))

    def start(self):
        try:
            self.start_programs()
        except BaseException:
            self.__exit__(*sys.exc_info())
            raise
        return self

    def start_programs(self):
        self.start_poold()
        for stage in range(self.stages):
            self.start_worker(stage, wait=False)
        self.start_gateway()
        self.wait_ready(*self.workers)
        self.wait_healthy()

    def wait_healthy(self):
        eventually(lambda: self.get("/health")[0] == 200, "the gateway can answer")

    # ---- HTTP

    def connect(self):
        return http.client.HTTPConnection("127.0.0.1", self.port, timeout=ANSWER_S)

    def get(self, path):
        connection = self.connect()
        connection.request("GET", path)
        response = connection.getresponse()
        return response.status, response.read()

    def post(self, path, body):
        """Status and parsed answer; body: an object, or bytes to be sent as they are."""
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        connection = self.connect()
        connection.request("POST", path, data, {"Content-Type": "application/json"})
        response = connection.getresponse()
        return response.status, json.loads(response.read())

    def chat(self, content, **fields):
        """An answer in one piece; content: a user's message, or a list of messages."""
        status, answer = self.post("/v1/chat/completions", chat_body(content, fields))
        assert status == 200, answer
        return answer

    def stream(self, content, **fields):
        return Stream(self.connect(), chat_body(content, fields))

    def begin(self, ask, *last):
        """What ask() returns, when the conversation that it opens is open and goes no further: these
        last stages, else this pipeline's, are stopped before."""

        def ages():
            """One that was answered may still be closing, so their number says nothing."""
            return {row["arrival"] for row in self.pool().rows(pool.ACTIVE)}

        before = ages()
        for p in last or self.workers[-1:]:
            p.freeze()
        asked = ask()
        eventually(lambda: ages() - before, "the conversation is open")
        return asked

    @contextlib.contextmanager
    def without_room(self, *last):
        """What begin() returned goes on meanwhile. However fast it is, it does not end: poold was stopped
        after it had given room for the prompt and pool.grow chunks, and what is asked for is longer."""
        self.poold.freeze()
        for p in last or self.workers[-1:]:
            p.thaw()
        try:
            yield
        finally:
            self.poold.thaw()

    def half_way(self, content, n, *last, **fields):
        """A stream of which so many pieces came, and which goes no further: the last stages are stopped."""
        last = last or self.workers[-1:]
        stream = self.begin(lambda: self.stream(content, **fields), *last)
        with self.without_room(*last):
            for _ in range(n):
                next(stream)
            for p in last:
                p.freeze()
        return stream

    def crowd(self, chats):
        """The streams of all (content, fields), answered at once, to their ends."""
        streams = [self.stream(content, **fields) for content, fields in chats]
        readers = [threading.Thread(target=s.read_all) for s in streams]
        for r in readers:
            r.start()
        for r in readers:
            r.join()
        return streams

    def send(self, connection, content, **fields):
        """Asks for an answer in one piece and does not wait for it."""
        data = json.dumps(chat_body(content, fields)).encode()
        headers = {"Content-Type": "application/json"}
        connection.request("POST", "/v1/chat/completions", data, headers)

    def metric(self, name, **labels):
        """The sum of a metric's samples that bear these labels."""
        text = self.get("/metrics")[1].decode()
        total, found = 0.0, False
        for line in text.splitlines():
            m = re.match(r"(\w+)(?:\{(.*)\})? (\S+)$", line)
            if not m or m.group(1) != name:
                continue
            has = dict(re.findall(r'(\w+)="((?:[^"\\]|\\.)*)"', m.group(2) or ""))
            if labels.items() <= has.items():
                total, found = total + float(m.group(3)), True
        assert found, f"no metric {name} {labels} in\n{text}"
        return total

    # ---- traces and memory

    def traced(self, path=None):
        """The words of each line of a trace that is whole: the last one may be half written."""
        text = pathlib.Path(path or self.settings["worker.trace"]).read_text()
        return [line.split() for line in text[: text.rfind("\n") + 1].splitlines()]

    def trace(self, path=None):
        """What worker.trace wrote: {request: {position: (token, hash of the row's logits)}}, in the
        order in which requests first appear. Rows behind the end of an answer are left out."""
        rows = {}
        for request, _row, position, token, value, _kind in self.traced(path):
            rows.setdefault(request, {})[int(position)] = (token, value)
        for r in rows.values():
            last = max(r)
            if r.get(last - 1, (None,))[0] in ENDS:
                del r[last]  # it was posted before that token was known, and taken back
        return rows

    def kinds(self, path=None):
        """What each row was computed as: {request: {position: "p" or "g", "pg" when it was both}}."""
        rows = {}
        for request, _row, position, _token, _value, kind in self.traced(path):
            found = rows.setdefault(request, {})
            found[int(position)] = "".join(sorted({*found.get(int(position), ""), kind}))
        return rows

    def pool(self):
        return pool.Pool(self.memory)

    def kinds_differ(self):
        """Whether a generated token's row has other bits than the same token's in a prompt."""
        return self.pool().arithmetic.split()[0] in KINDS_DIFFER

    def page(self, stage):
        """What a worker has published of itself."""
        return pool.read_page(self.memory, stage)


def chat_body(content, fields):
    """With a seed: else a model of random weights ends its answer early in one run of some hundred."""
    messages = [{"role": "user", "content": content}] if isinstance(content, str) else content
    return {"model": "any", "messages": messages, "seed": 1, **fields}


class Stream:
    """A streamed answer. Iterating gives the text of each event that has one."""

    def __init__(self, connection, body):
        self.connection = connection
        data = json.dumps({**body, "stream": True, "stream_options": {"include_usage": True}})
        connection.request(
            "POST", "/v1/chat/completions", data.encode(), {"Content-Type": "application/json"}
        )
        # The response may close the connection's own handle, which close() still needs.
        self.socket = connection.sock.dup()
        self.response = None
        self.text = ""
        self.finish_reason = self.usage = self.error = None
        self.done = False

    def fileno(self):
        return self.socket.fileno()

    def __iter__(self):
        return self

    def __next__(self):
        if self.response is None:
            self.response = self.connection.getresponse()
            assert self.response.status == 200, self.response.read()
        while line := self.response.readline():
            if line.strip() == b"data: [DONE]":
                self.done = True
            elif line.startswith(b"data: ") and (piece := self.take(json.loads(line[6:]))):
                return piece
        raise StopIteration

    def take(self, event):
        if "error" in event:
            self.error = event["error"]
            return None
        self.usage = event.get("usage") or self.usage
        piece = ""
        for choice in event["choices"]:
            piece += choice["delta"].get("content") or ""
            self.finish_reason = choice["finish_reason"] or self.finish_reason
        self.text += piece
        return piece

    def read_all(self):
        for _ in self:
            pass
        return self

    def leave(self):
        """Closes the connection as a client does that ends in the middle."""
        self.socket.shutdown(socket.SHUT_RDWR)
        self.socket.close()
        self.connection.close()
