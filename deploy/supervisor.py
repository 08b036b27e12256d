#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Runs Cistern's processes for one person at one terminal; `demo` starts it, a server has systemd.

It owns the processes from their start to their end: one that dies before it was ever ready ends
everything, one that dies later is restarted, and when this process ends, however it ends, they end
too (the kernel sends them SIGKILL when their parent dies). It knows the programs' command lines,
the configuration file, READY=1 and the gateway's HTTP; nothing of what they do.
"""
import argparse
import collections
import ctypes
import fcntl
import json
import os
import re
import select
import shutil
import signal
import socket
import struct
import subprocess
import sys
import time

QUESTION = "What is the capital of Japan?"
ANOTHER_QUESTION = "Name the capital of France."
START_S = 600  # a large model on a cold disk; poold watches the workers on its own, too
STOP_S = 10  # what a process may take to end after SIGTERM before it is killed
RESTARTS = 5  # restarts that end the demo ...
RESTARTS_WITHIN_S = 60  # ... when they come within this time
PR_SET_PDEATHSIG = 1
UCRED = struct.Struct("3i")
LIBC = ctypes.CDLL(None, use_errno=True)


class Failure(Exception):
    """A sentence for people; ends the demo with 1."""


def say(text):
    print("demo: " + text, file=sys.stderr, flush=True)


def how_it_ended(status):
    if status < 0:
        return f"was killed by {signal.Signals(-status).name}"
    return f"ended with status {status}"


class Request:
    """One HTTP/1.0 request to the gateway, whose answer is read as it comes, so that the processes
    are looked after meanwhile: an answer may have to wait until one has been restarted."""

    def __init__(self, port, method, path, body=None):
        data = b"" if body is None else json.dumps(body).encode()
        head = [
            f"{method} {path} HTTP/1.0",
            f"Host: 127.0.0.1:{port}",
            "Content-Type: application/json",
            f"Content-Length: {len(data)}",
        ]
        self.socket = socket.create_connection(("127.0.0.1", port))
        self.socket.sendall("\r\n".join(head).encode() + b"\r\n\r\n" + data)
        self.socket.setblocking(False)
        self.status = None
        self.rest = b""  # of the body: what has come and is no whole line yet
        self.ended = False

    def fd(self):
        return self.socket.fileno()

    def read(self):
        """The whole lines of the body that have come since the last call."""
        try:
            data = self.socket.recv(65536)
        except BlockingIOError:
            return []
        if not data:
            self.ended = True
            self.socket.close()
            if self.status is None:
                raise Failure("the gateway closed a connection without an answer")
            return []
        self.rest += data
        if self.status is None and b"\r\n\r\n" in self.rest:
            head, self.rest = self.rest.split(b"\r\n\r\n", 1)
            self.status = int(head.split()[1])
        if self.status is None:
            return []
        *lines, self.rest = self.rest.split(b"\n")
        return lines


class Child:
    """One of the processes: its command, its log, and its present life."""

    def __init__(self, name, command, log):
        self.name, self.command, self.log = name, command, log
        self.process = self.pidfd = None
        self.ready = self.was_ready = False
        self.log_start = 0

    def start(self, notify_path):
        def die_with_parent():
            LIBC.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
            if os.getppid() != parent:
                os._exit(1)

        parent = os.getpid()
        self.ready = False
        with open(self.log, "ab") as log:
            self.log_start = log.tell()
            # A session of its own: Ctrl-C is for the supervisor, which ends the others in order.
            self.process = subprocess.Popen(
                self.command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                preexec_fn=die_with_parent,
                env=dict(os.environ, NOTIFY_SOCKET=notify_path),
            )
        self.pidfd = os.pidfd_open(self.process.pid)

    def last_words(self):
        """What this life wrote last, without the priorities that journald would read."""
        with open(self.log, "rb") as log:
            log.seek(self.log_start)
            lines = log.read()[-4096:].decode(errors="replace").splitlines()
        return "\n".join("  " + re.sub(r"^<\d>", "", line) for line in lines[-4:])

    def reap(self):
        status = self.process.wait()
        os.close(self.pidfd)
        self.pidfd = None
        return status

    def kill(self, number):
        if self.pidfd is not None:
            signal.pidfd_send_signal(self.pidfd, number)


class Supervisor:
    def __init__(self, options):
        self.options = options
        self.children = []
        self.restarts = collections.deque(maxlen=RESTARTS)
        self.port = options.port
        self.asked_to_stop = False

    # ---- places

    def take_folder(self):
        os.makedirs(self.path("logs"), exist_ok=True)
        self.lock = open(self.path("lock"), "w")
        try:
            fcntl.flock(self.lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise Failure(
                f"another demo runs in {self.options.dir}: --dir and --port give this one its own"
            ) from None
        # What a killed demo left: its processes died with it.
        self.remove_memory()
        os.makedirs(self.options.sockets, mode=0o700)

    def remove_memory(self):
        shutil.rmtree(self.options.memory, ignore_errors=True)
        shutil.rmtree(self.options.sockets, ignore_errors=True)

    def path(self, *parts):
        return os.path.join(self.options.dir, *parts)

    def check_port(self):
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("127.0.0.1", self.port))
            except OSError as e:
                raise Failure(
                    f"port {self.port} of 127.0.0.1 cannot be had ({e.strerror}):"
                    " --port N takes another, --port 0 any free one"
                ) from None

    def write_config(self):
        o = self.options
        # One longest conversation must fit, a growth unit and a chunk to copy into; a demo for many
        # keeps one more in the cache.
        cells = o.ctx + 512 if o.once else 2 * o.ctx + 512
        text = f"""# Written by ./demo at each start.
[run]
dir = {o.sockets}

[model]
path = {o.model}
context = {o.ctx}

[pool]
dir = {o.memory}
cells = {cells}

[worker]
stages = {o.stages}
threads = {o.threads}
lanes = {o.lanes}

[gateway]
port = {o.port}
"""
        with open(self.path("cistern.conf"), "w") as f:
            f.write(text)

    # ---- the processes

    def open_sockets(self):
        path = os.path.join(self.options.sockets, "notify")
        self.notify = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC)
        self.notify.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
        self.notify.setblocking(False)
        self.notify.bind(path)
        self.wake, wake_write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.set_wakeup_fd(wake_write)
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, self.on_signal)

    def on_signal(self, _number, _frame):
        self.asked_to_stop = True

    def add_children(self):
        o = self.options
        programs = [("poold", "poold", [])]
        programs += [(f"workerd {i}", "workerd", ["--stage", str(i)]) for i in range(o.stages)]
        programs += [("gateway", "gateway", [])]
        for name, program, more in programs:
            command = [
                os.path.abspath(os.path.join(o.build, program, program)),
                "--config",
                self.path("cistern.conf"),
                *more,
            ]
            log = self.path("logs", name.replace(" ", "-") + ".log")
            open(log, "w").close()
            self.children.append(Child(name, command, log))

    def start(self, child):
        child.start(self.notify.getsockname())

    def read_notify(self):
        data, control, _, _ = self.notify.recvmsg(4096, socket.CMSG_SPACE(UCRED.size))
        if b"READY=1" not in data.split(b"\n"):
            return
        sender = next((UCRED.unpack(c[2])[0] for c in control), 0)
        for child in self.children:
            if child.process and child.process.pid == sender:
                child.ready = child.was_ready = True

    def on_death(self, child):
        status = child.reap()
        words = f"{child.name} (pid {child.process.pid}) {how_it_ended(status)}"
        if not child.was_ready:
            last = child.last_words()
            if "pool.cells" in last:
                last += "\n  (./demo sizes the pool by --ctx: a smaller one needs less room)"
            raise Failure(f"{words} before it was ready ({child.log}):\n{last}")
        now = time.monotonic()
        self.restarts.append(now)
        if len(self.restarts) == RESTARTS and now - self.restarts[0] < RESTARTS_WITHIN_S:
            raise Failure(f"{words}: that is the fifth death within a minute, see {child.log}")
        self.start(child)
        say(f"{words}; restarted as pid {child.process.pid}")

    def step(self, timeout_s, more_fds=()):
        """Waits for the next event and handles it. Returns which of more_fds can be read."""
        living = {c.pidfd: c for c in self.children if c.pidfd is not None}
        fds = [self.notify.fileno(), self.wake, *living, *more_fds]
        readable, _, _ = select.select(fds, [], [], timeout_s)
        for fd in readable:
            if fd == self.notify.fileno():
                self.read_notify()
            elif fd == self.wake:
                os.read(self.wake, 64)
            elif fd in living:
                self.on_death(living[fd])
        if self.asked_to_stop:
            raise KeyboardInterrupt
        return [fd for fd in readable if fd in more_fds]

    def wait_until(self, condition, what, look_s=1.0):
        deadline = time.monotonic() + START_S
        while not condition():
            if time.monotonic() > deadline:
                raise Failure(f"{what} after {START_S} s: see {self.path('logs')}")
            self.step(look_s)

    def start_all(self):
        poold, *others = self.children
        self.start(poold)
        self.wait_until(lambda: poold.ready, "poold is not ready")
        for child in others:
            self.start(child)
        self.wait_until(lambda: all(c.ready for c in self.children), "not all processes are ready")
        self.find_port()
        self.wait_until(self.healthy, "the gateway cannot answer", look_s=0.01)

    def find_port(self):
        with open(self.children[-1].log, errors="replace") as log:
            found = re.findall(r"listening on http://127\.0\.0\.1:(\d+)", log.read())
        if not found:
            raise Failure(f"the gateway did not say its port: see {self.children[-1].log}")
        self.port = int(found[-1])
        # A restarted gateway must be where clients know it.
        self.children[-1].command += ["--set", f"gateway.port={self.port}"]

    def healthy(self):
        try:
            request = Request(self.port, "GET", "/health")
            while not request.ended:
                self.step(2.0, [request.fd()])
                request.read()
        except ConnectionError:
            return False  # it died; step() restarts it or ends the demo
        return request.status == 200

    def stop_all(self):
        """The gateway first, so that nobody is told of a stage that is missing; poold last."""
        for group in (self.children[-1:], self.children[1:-1], self.children[:1]):
            for child in group:
                child.kill(signal.SIGTERM)
            deadline = time.monotonic() + STOP_S
            for child in group:
                if child.pidfd is None:
                    continue
                if not select.select([child.pidfd], [], [], max(0, deadline - time.monotonic()))[0]:
                    child.kill(signal.SIGKILL)
                    say(f"{child.name} (pid {child.process.pid}) did not end in {STOP_S} s: killed")
                child.reap()

    # ---- the conversation

    def ask(self, question):
        """Streams the answer to stdout while the processes are looked after."""
        body = {
            "model": "demo",
            "messages": [{"role": "user", "content": question}],
            "temperature": 0,
            "stream": True,
        }
        request = Request(self.port, "POST", "/v1/chat/completions", body)
        while not request.ended:
            self.step(None, [request.fd()])
            for line in request.read():
                self.print_event(line)
        if request.status != 200:
            error = json.loads(request.rest)["error"]["message"]
            raise Failure(f"the gateway answered {request.status}: {error}")
        print(flush=True)

    @staticmethod
    def print_event(line):
        if not line.startswith(b"data: {"):
            return
        event = json.loads(line[len(b"data: ") :])
        if "error" in event:
            raise Failure("the answer broke off: " + event["error"]["message"])
        for choice in event["choices"]:
            sys.stdout.write(choice["delta"].get("content") or "")
        sys.stdout.flush()

    def explain(self):
        url = f"http://127.0.0.1:{self.port}/v1"
        body = {"stream": True, "messages": [{"role": "user", "content": ANOTHER_QUESTION}]}
        python = (
            f'import openai; c = openai.OpenAI(base_url="{url}", api_key="none"); '
            'print(c.chat.completions.create(model="demo", messages=[{"role": "user", '
            f'"content": "{ANOTHER_QUESTION}"}}]).choices[0].message.content)'
        )
        print(
            "",
            "Ask it yourself, with curl or with the openai package:",
            f"  curl -N {url}/chat/completions -d '{json.dumps(body)}'",
            f"  python3 -c '{python}'",
            f"Logs: {self.path('logs')}",
            "Ctrl-C ends everything.",
            sep="\n",
            flush=True,
        )

    def run(self):
        self.take_folder()
        try:
            self.check_port()
            self.write_config()
            self.open_sockets()
            self.add_children()
            self.start_all()
            if self.options.once:
                return self.ask(self.options.once)
            print(f"> {QUESTION}", flush=True)
            self.ask(QUESTION)
            self.explain()
            while True:
                self.step(None)
        finally:
            self.stop_all()
            self.remove_memory()


def parse(arguments):
    parser = argparse.ArgumentParser(allow_abbrev=False)
    for name in ("build", "model", "dir", "memory", "sockets"):
        parser.add_argument("--" + name, required=True)
    for name in ("ctx", "stages", "threads", "lanes", "port"):
        parser.add_argument("--" + name, type=int, required=True)
    parser.add_argument("--once")
    return parser.parse_args(arguments)


def main():
    options = parse(sys.argv[1:])
    try:
        Supervisor(options).run()
    except Failure as e:
        say(str(e))
        return 1
    except BrokenPipeError:
        say("nobody reads the answer any more")
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        return 1
    except KeyboardInterrupt:
        # Ending is what a demo that stays is asked for; a question without an answer is a failure.
        return 130 if options.once else 0
    except OSError as e:
        say(str(e))
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
