# SPDX-License-Identifier: MIT
"""A stream that can't go on ends in the words of its API, and its chunked coding ends too."""
import json
import signal

import pytest
from harness import Cistern, eventually
from pool import ACTIVE
from test_equal import SMALL

pytestmark = pytest.mark.cpu("how the gateway ends")

CHAT = {"messages": [{"role": "user", "content": "a"}], "max_tokens": 1900, "ignore_eos": True}


@pytest.fixture(scope="module")
def ends(tiny_model):
    """What each API's stream says after the gateway was told to end: its events' data, in order."""
    asked = {
        "/v1/chat/completions": {**CHAT, "n": 2},
        "/v1/completions": {"prompt": "a", "max_tokens": 1900, "ignore_eos": True},
        "/v1/messages": CHAT,
        "/v1/responses": {"input": "a", "ignore_eos": True},
    }
    # No prompt is as long as a chunk: none waits for another one to be read.
    with Cistern(tiny_model, settings={**SMALL, "pool.chunk": 256}).start() as c:
        connections = {}
        c.workers[1].freeze()
        for path, body in asked.items():
            connections[path] = c.connect()
            connections[path].request("POST", path, json.dumps({**body, "stream": True}))
        eventually(lambda: len(c.pool().rows(ACTIVE)) >= 4, "all are open")
        c.poold.freeze()  # so that none gets room for the rest
        c.workers[1].thaw()
        responses = {path: connection.getresponse() for path, connection in connections.items()}
        assert all(r.readline() for r in responses.values())
        c.gateway.send(signal.SIGTERM)
        texts = {path: r.read().decode() for path, r in responses.items()}
        assert c.gateway.wait() == 0
        c.poold.thaw()
    return {
        path: [line.removeprefix("data: ") for line in text.split("\n") if line.startswith("data: ")]
        for path, text in texts.items()
    }


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions"])
def test_openai(ends, path):
    *_, error, done = ends[path]
    assert done == "[DONE]"
    error = json.loads(error)["error"]
    assert error["code"] == "draining" and error["retry_after"] > 0


def test_anthropic(ends):
    last = json.loads(ends["/v1/messages"][-1])
    assert last["type"] == "error" and last["error"]["type"] == "overloaded_error"
    assert last["request_id"].startswith("req_")


def test_responses(ends):
    last = json.loads(ends["/v1/responses"][-1])
    assert last["type"] == "response.failed" and last["response"]["status"] == "failed"
    assert last["response"]["error"]["code"] == "server_error"
    assert last["response"]["error"]["reason"] == "draining"
