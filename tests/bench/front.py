# SPDX-License-Identifier: MIT
"""What the measurements of the front share: the peer's server, and a request to either."""
import http.client
import json
import os
import pathlib
import socket
import subprocess

from harness import eventually

CACHE = pathlib.Path(os.environ.get("XDG_CACHE_HOME", pathlib.Path.home() / ".cache")) / "cistern"
MODEL = os.environ.get("CISTERN_MODEL", CACHE / "SmolLM2-135M-Instruct.Q4_1.gguf")
PEER = CACHE / "peer-11434.0.0/build/bin/llama-server"
ANSWER_S = 300


def post(port, path, body):
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=ANSWER_S)
    headers = {"Content-Type": "application/json"}
    connection.request("POST", path, json.dumps(body).encode(), headers)
    return json.loads(connection.getresponse().read())


class Peer:
    """llama.cpp's server, as tests/bench/peer.sh builds it."""

    def __init__(self, model, folder, threads, lanes, context):
        with socket.socket() as s:
            s.bind(("127.0.0.1", 0))
            self.port = s.getsockname()[1]
        self.command = [PEER, "-m", model, "--port", str(self.port), "-t", str(threads)]
        self.command += ["-np", str(lanes), "-c", str(context), "-fa", "on"]
        self.log = folder / "peer.log"

    def __enter__(self):
        with open(self.log, "wb") as log:
            self.process = subprocess.Popen(self.command, stdout=log, stderr=log)
        self.pid = self.process.pid

        def is_up():
            try:
                with socket.create_connection(("127.0.0.1", self.port)) as s:
                    s.sendall(b"GET /health HTTP/1.0\r\n\r\n")
                    return b" 200 " in s.recv(4096)
            except OSError:
                return False

        eventually(is_up, "llama-server is up")
        return self

    def __exit__(self, *_why):
        self.process.terminate()
        self.process.wait()
