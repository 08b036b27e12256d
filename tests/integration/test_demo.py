# SPDX-License-Identifier: MIT
"""deploy/supervisor.py, which ./demo hands over to, with the programs of this build."""
import os
import pathlib
import re
import select
import shutil
import signal
import socket
import subprocess
import sys

import pytest

from harness import BUILD, LIBC, PR_SET_PDEATHSIG, ROOT, STOP_S, eventually

pytestmark = pytest.mark.cpu("the supervisor of CPU workers")

SAID = re.compile(r"curl -N (http://127\.0\.0\.1:(\d+)/v1)/chat/completions")


class Demo:
    def __init__(self, model, folder, *options, port=0, ctx=2048):
        self.folder = folder
        self.memory = pathlib.Path("/dev/shm") / f"cistern-test-demo-{os.getpid()}-{folder.name}"
        command = [sys.executable, "-I", ROOT / "deploy/supervisor.py", "--build", BUILD]
        command += ["--model", model, "--dir", folder, "--memory", self.memory]
        command += ["--sockets", folder / "run", "--ctx", ctx, "--stages", 2, "--threads", 1]
        command += ["--lanes", 2, "--port", port, *options]
        self.popen = subprocess.Popen(
            [str(a) for a in command],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            preexec_fn=lambda: LIBC.prctl(PR_SET_PDEATHSIG, signal.SIGTERM),
        )
        self.said = ""

    def __enter__(self):
        return self

    def __exit__(self, *_):
        if self.popen.poll() is None:
            self.popen.terminate()
            self.popen.wait(STOP_S)
        shutil.rmtree(self.memory, ignore_errors=True)

    def wait_for(self, pattern, stream=None):
        """Reads what it says until this."""
        stream = stream or self.popen.stdout
        while line := stream.readline():
            self.said += line
            if found := re.search(pattern, line):
                return found
        raise AssertionError(f"it ended without saying {pattern}: {self.said}{self.popen.stderr.read()}")

    def end(self):
        out, err = self.popen.communicate(timeout=300)
        return self.popen.returncode, self.said + out, err

    def children(self):
        """{name: pid} of what runs for it."""
        tasks = f"/proc/{self.popen.pid}/task/{self.popen.pid}/children"
        found = {}
        for pid in pathlib.Path(tasks).read_text().split():
            try:
                argv = pathlib.Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
            except OSError:
                continue  # it ended just now
            if b"/" not in argv[0]:
                continue  # a zombie has none
            name = argv[0].rsplit(b"/", 1)[1].decode()
            if b"--stage" in argv:
                name += argv[argv.index(b"--stage") + 1].decode()
            found[name] = int(pid)
        return found

    def nothing_is_left(self):
        return not self.memory.exists() and not (self.folder / "run").exists()


@pytest.mark.demo_model
@pytest.mark.parametrize(
    "prompt, word",
    [("Name the capital of France.", "The capital of France is Paris."), ("What is the capital of Japan?", "Tokyo")],
)
def test_once(demo_model, tmp_path, prompt, word):
    with Demo(demo_model, tmp_path, "--once", prompt) as demo:
        status, out, err = demo.end()
    assert (status, err) == (0, "")
    assert word in out and out.endswith("\n")
    if word.startswith("The"):
        assert out == word + "\n"
    assert demo.nothing_is_left()


def test_stays_until_ctrl_c(tiny_model, tmp_path):
    with Demo(tiny_model, tmp_path) as demo:
        demo.wait_for(SAID)
        demo.wait_for("openai")
        logs = pathlib.Path(demo.wait_for(r"Logs: (.*)").group(1))
        demo.wait_for("Ctrl-C")
        assert {p.name for p in logs.iterdir()} == {
            "poold.log", "workerd-0.log", "workerd-1.log", "gateway.log"
        }
        pidfds = [os.pidfd_open(p) for p in demo.children().values()]
        assert len(pidfds) == 4
        demo.popen.send_signal(signal.SIGINT)
        status, _, err = demo.end()
        assert (status, err) == (0, "")
        assert len(select.select(pidfds, [], [], 0)[0]) == 4, "a process is left"
        assert demo.nothing_is_left()
    for fd in pidfds:
        os.close(fd)


def test_nothing_outlives_a_killed_demo(tiny_model, tmp_path):
    with Demo(tiny_model, tmp_path) as demo:
        demo.wait_for("Ctrl-C")
        pidfds = [os.pidfd_open(p) for p in demo.children().values()]
        demo.popen.kill()
        demo.popen.wait()
        for fd in pidfds:
            assert select.select([fd], [], [], STOP_S)[0], "a process outlived the demo"
            os.close(fd)
        # The next start in the same folder is not disturbed by what the killed one left.
        with Demo(tiny_model, tmp_path, "--once", "hello") as again:
            status, _, err = again.end()
            assert (status, err) == (0, "")


@pytest.mark.parametrize("name", ["poold", "workerd0", "workerd1", "gateway"])
def test_a_dead_process_is_restarted(tiny_model, tmp_path, name):
    with Demo(tiny_model, tmp_path) as demo:
        port = int(demo.wait_for(SAID).group(2))
        demo.wait_for("Ctrl-C")
        before = demo.children()
        os.kill(before[name], signal.SIGKILL)
        line = demo.wait_for("restarted", demo.popen.stderr).string
        assert str(before[name]) in line and "SIGKILL" in line
        after = demo.children()
        assert after[name] != before[name]
        assert {k: v for k, v in after.items() if k != name} == {
            k: v for k, v in before.items() if k != name
        }

        def healthy():
            try:
                with socket.create_connection(("127.0.0.1", port), timeout=10) as s:
                    s.sendall(b"GET /health HTTP/1.0\r\n\r\n")
                    return b" 200 " in s.recv(64)
            except OSError:
                return False

        eventually(healthy, "it serves again at the same port")


def test_five_deaths_within_a_minute_end_it(tiny_model, tmp_path):
    with Demo(tiny_model, tmp_path) as demo:
        demo.wait_for("Ctrl-C")
        for _ in range(4):
            os.kill(demo.children()["gateway"], signal.SIGKILL)
            demo.wait_for("restarted", demo.popen.stderr)
        os.kill(demo.children()["gateway"], signal.SIGKILL)
        status, _, err = demo.end()
        assert status == 1 and "fifth death within a minute" in err
        assert demo.nothing_is_left()


def test_death_before_ready_ends_it(tmp_path):
    bad = tmp_path / "bad.gguf"
    bad.write_bytes(b"nothing")
    folder = tmp_path / "demo"
    with Demo(bad, folder, "--once", "hello") as demo:
        status, out, err = demo.end()
    assert (status, out) == (1, "")
    assert "before it was ready" in err and "bad.gguf" in err
    assert demo.nothing_is_left()


def test_busy_port(tiny_model, tmp_path):
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        s.listen()
        port = s.getsockname()[1]
        with Demo(tiny_model, tmp_path, port=port) as demo:
            status, out, err = demo.end()
    assert (status, out) == (1, "")
    assert str(port) in err and "--port" in err
    assert demo.nothing_is_left()


@pytest.mark.demo_model
def test_no_room(demo_model, tmp_path):
    """A context whose K/V has no room on the tmpfs: size, place and knob are named."""
    with Demo(demo_model, tmp_path, "--once", "hello", ctx=8 << 20) as demo:
        status, out, err = demo.end()
    assert (status, out) == (1, "")
    assert "pool.cells" in err and "--ctx" in err and str(demo.memory) in err
    assert demo.nothing_is_left()


def test_two_at_once(tiny_model, tmp_path):
    with Demo(tiny_model, tmp_path / "one") as one, Demo(tiny_model, tmp_path / "two") as two:
        ports = {d.wait_for(SAID).group(2) for d in (one, two)}
        assert len(ports) == 2
        with Demo(tiny_model, tmp_path / "one") as third:
            status, _, err = third.end()
            assert status == 1 and "another demo" in err
        for d in (one, two):
            d.popen.send_signal(signal.SIGTERM)
            assert d.end()[0] == 0
