# SPDX-License-Identifier: MIT
"""What the measurements share: both servers, a client of either, poolctl, the machine's name, the
interval of a median. Importing it makes the stories' harness importable.

A server has a port and pid, is ready inside `with`, and says when its lanes are free (wait_idle).
"""
import http.client
import json
import math
import os
import pathlib
import re
import signal
import socket
import statistics
import subprocess
import sys
import threading
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
os.environ.setdefault("CISTERN_BUILD", str(ROOT / "build"))
sys.path.insert(0, str(ROOT / "tests/integration"))

from harness import BUILD, LIBC, PR_SET_PDEATHSIG, Cistern, chat_body, eventually  # noqa: E402

CACHE = pathlib.Path(os.environ.get("XDG_CACHE_HOME", pathlib.Path.home() / ".cache")) / "cistern"
MODEL = os.environ.get("CISTERN_MODEL", CACHE / "SmolLM2-135M-Instruct.Q4_1.gguf")
PEER_BIN = CACHE / "peer-11434.0.0/build/bin"
PEER = PEER_BIN / "llama-server"
PEER_CUDA = CACHE / "peer-11434.0.0/build-cuda/bin/llama-server"
ANSWER_S = 300
START_S = 300


def processor():
    text = pathlib.Path("/proc/cpuinfo").read_text()
    return f"{os.cpu_count()} x {re.search(r'model name.*: (.*)', text).group(1)}"


def machine(device):
    """What computes: the processor, or the card."""
    if device == "cpu":
        return processor()
    query = ["nvidia-smi", "--query-gpu=name", "--format=csv,noheader", "--id=0"]
    return subprocess.run(query, capture_output=True, text=True).stdout.strip()


def interval(values):
    """The ranks that enclose the median with at least 95 %: P(rank <= k) of a binomial of 1/2."""
    n, below, k = len(values), 0.0, 0
    while below + math.comb(n, k) / 2**n <= 0.025:
        below += math.comb(n, k) / 2**n
        k += 1
    ordered = sorted(values)
    return ordered[max(k - 1, 0)], ordered[min(n - k, n - 1)]


# ---- ours


class Cards(Cistern):
    """Cistern with one stage a card, and any number of pipelines, all on the same cards."""

    def __init__(self, model, device="cpu", stages=1, pipelines=1, settings=None):
        super().__init__(model, stages=stages, settings=settings)
        self.device, self.pipelines = device, pipelines

    def place(self, stage):
        name = "cpu" if self.device == "cpu" else f"{self.device}:{stage}"
        return ("--stage", stage, "--set", f"worker.device={name}")

    def start_worker(self, stage, wait=True, **environment):
        p = self.launch("workerd", *self.place(stage), name=f"workerd-{stage}", **environment)
        self.workers[stage] = p
        if wait:
            self.wait_ready(p)

    def start_programs(self):
        super().start_programs()
        others = [(p, s) for p in range(1, self.pipelines) for s in range(self.stages)]
        for pipeline, stage in others:
            self.workers.append(self.launch("workerd", "--pipeline", pipeline, *self.place(stage)))
        self.wait_ready(*self.workers)
        eventually(lambda: self.metric("cistern_pipelines_ready") == self.pipelines, "all are ready")

    @property
    def pids(self):
        return [p.pid for p in self.processes]

    def wait_idle(self):
        eventually(lambda: self.metric("cistern_requests_in_flight") == 0, "the lanes are free")


def poolctl(c, *arguments):
    """What it printed, as JSON; ends the program when it fails."""
    command = [BUILD / "poold/poolctl", "--config", c.folder / "cistern.conf", "--json", *arguments]
    done = subprocess.run([str(a) for a in command], capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"{command}: {done.stderr}")
    return json.loads(done.stdout)


def longest(c):
    """The name of the cached conversation with the most tokens."""
    listed = eventually(
        lambda: [r for r in poolctl(c, "conversations")["conversations"] if r["state"] == "cached"],
        "something is cached",
    )
    row = max(listed, key=lambda r: r["tokens"])
    return f"{row['row']}:{row['generation']}"


# ---- the peer


def die_with_parent():
    LIBC.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


class Peer:
    """llama.cpp's server, as tests/bench/peer.sh builds it. more: of its own options."""

    def __init__(self, model, folder, threads, lanes, context, more=(), program=PEER, cards=""):
        with socket.socket() as s:
            s.bind(("127.0.0.1", 0))
            self.port = s.getsockname()[1]
        self.command = [program, "-m", model, "--port", str(self.port), "-t", str(threads)]
        self.command += ["-np", str(lanes), "-c", str(context), "-fa", "on", *map(str, more)]
        self.environment = {**os.environ, "CUDA_VISIBLE_DEVICES": cards}
        self.log = folder / "peer.log"

    def __enter__(self):
        with open(self.log, "ab") as log:
            self.process = subprocess.Popen(
                self.command, stdout=log, stderr=log, env=self.environment, preexec_fn=die_with_parent
            )
        self.pid = self.process.pid
        self.pids = [self.pid]

        def is_up():
            if self.process.poll() is not None:
                sys.exit(f"llama-server ended: {self.log.read_text(errors='replace')[-2000:]}")
            try:
                with socket.create_connection(("127.0.0.1", self.port)) as s:
                    s.sendall(b"GET /health HTTP/1.0\r\n\r\n")
                    return b" 200 " in s.recv(4096)
            except OSError:
                return False

        eventually(is_up, "llama-server is up", START_S)
        return self

    def __exit__(self, *_why):
        self.process.terminate()
        self.process.wait()

    def wait_idle(self):
        def is_idle():
            return not any(slot["is_processing"] for slot in get(self.port, "/slots"))

        eventually(is_idle, "its slots are free", ANSWER_S)


# ---- a client of either


def get(port, path):
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=ANSWER_S)
    connection.request("GET", path)
    return json.loads(connection.getresponse().read())


def post(port, path, body):
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=ANSWER_S)
    headers = {"Content-Type": "application/json"}
    connection.request("POST", path, json.dumps(body).encode(), headers)
    return json.loads(connection.getresponse().read())


def token_ids(n, draw):
    """A prompt that any model has tokens for, and that no template turns into another."""
    return [draw.randrange(300, 1000) for _ in range(n)]


class Answer(threading.Thread):
    """A streamed answer of n tokens, asked at once: of token ids (a list), or of a chat (a text).

    count says meanwhile how many events came; `begun` is set with the warm-th. After join(): at, when
    each token came, and text. Events are parsed at the end, so that reading them is quick.
    """

    def __init__(self, server, prompt, n, warm=1, **fields):
        super().__init__(daemon=True)
        self.port, self.warm, self.begun = server.port, warm, threading.Event()
        self.count, self.events, self.failed, self.is_over = 0, [], None, False
        self.at, self.came, self.text, self.usage = [], [], "", None
        self.body = {"max_tokens": n, "temperature": 0, "ignore_eos": True, "stream": True,
                     "stream_options": {"include_usage": True}, **fields}
        self.path = "/v1/chat/completions" if isinstance(prompt, str) else "/v1/completions"
        self.body |= chat_body(prompt, {}) if isinstance(prompt, str) else {"prompt": prompt}
        self.start()

    def run(self):
        try:
            self.read()
        except (OSError, http.client.HTTPException) as e:
            self.failed = None if self.is_over else str(e)
        self.begun.set()

    def read(self):
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=ANSWER_S)
        data = json.dumps(self.body).encode()
        self.sent = time.monotonic()
        connection.request("POST", self.path, data, {"Content-Type": "application/json"})
        # The response may close the connection's own handle, which leave() still needs.
        self.socket = connection.sock.dup()
        response = connection.getresponse()
        if response.status != 200:
            self.failed = response.read().decode()
            return
        while line := response.readline():
            if not line.startswith(b"data: {"):
                continue
            self.events.append((time.monotonic(), line))
            self.count += 1
            if self.count == self.warm:
                self.begun.set()

    def leave(self):
        """Closes the connection; what came until now is the answer."""
        self.is_over = True
        self.socket.shutdown(socket.SHUT_RDWR)

    def join(self, timeout=None):
        super().join(timeout)
        for when, line in self.events:
            if not line.endswith(b"\n"):
                continue  # cut by leave()
            event = json.loads(line[6:])
            self.failed = self.failed or event.get("error")
            self.usage = event.get("usage") or self.usage
            for choice in event.get("choices") or []:
                self.came.append(when)
                piece = choice["text"] if "text" in choice else choice["delta"].get("content")
                self.text += piece or ""
                self.at += [when] * bool(piece)
        self.events = []
        if self.failed:
            sys.exit(f"no answer: {self.failed}")
        return self

    def first(self):
        """Seconds to the first token, or to the answer's end when none of its tokens has a text."""
        return (self.at or self.came)[0] - self.sent

    def gaps(self, begin=0.0, end=math.inf):
        at = [t for t in self.at if begin <= t <= end]
        return [b - a for a, b in zip(at, at[1:])]


def join(answers):
    return [a.join() for a in answers]


def rate(answers, skip=1):
    """Tokens a second while all of them were being answered, each one's first `skip` left out."""
    begin = max(a.at[skip] for a in answers)
    end = min(a.at[-1] for a in answers)
    if end <= begin:
        sys.exit("the answers did not overlap: longer ones are needed")
    return sum(begin < t <= end for a in answers for t in a.at) / (end - begin)


def median_ms(seconds):
    return statistics.median(seconds) * 1e3
