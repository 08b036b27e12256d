# SPDX-License-Identifier: MIT
"""Requests that cannot be served: the right status, an error in OpenAI's shape that names the field,
and a gateway that goes on. Every case asks the same running programs."""
import http.client
import json
import socket

import pytest

from harness import ANSWER_S, Cistern
from test_equal import SMALL

pytestmark = pytest.mark.cpu("what the gateway reads")

HELLO = [{"role": "user", "content": "hello"}]


@pytest.fixture(scope="module")
def c(tiny_model):
    settings = {**SMALL, "gateway.body_bytes": 65536, "gateway.slow_ms": 1000}
    with Cistern(tiny_model, settings=settings).start() as c:
        yield c


def check_error(status, answer, wanted_status, words):
    assert status == wanted_status, answer
    error = answer["error"]
    assert set(error) >= {"message", "type", "param", "code"}
    for word in words:
        assert word in json.dumps(error), error


BODIES = {
    "no JSON": (b"{", ["JSON"]),
    "empty": (b"", ["JSON"]),
    "not an object": (b"[1]", ["object"]),
    "bad UTF-8": (b'{"messages": "\xff"}', ["JSON"]),
    "deep": (b"[" * 30000, ["JSON"]),
    "no messages": ({}, ["messages"]),
    "messages of another type": ({"messages": "hello"}, ["messages", "array"]),
    "empty messages": ({"messages": []}, ["messages", "empty"]),
    "a message of another type": ({"messages": ["hello"]}, ["messages[0]"]),
    "a message without a role": ({"messages": [{"content": "x"}]}, ["messages[0]", "role"]),
    "a role of another type": ({"messages": [{"role": 3, "content": "x"}]}, ["role"]),
    "content of another type": ({"messages": [{"role": "user", "content": 3}]}, ["content"]),
    "an image": (
        {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}]},
        ["content", "image_url"],
    ),
    "stream of another type": ({"messages": HELLO, "stream": "yes"}, ["stream"]),
    "temperature of another type": ({"messages": HELLO, "temperature": "hot"}, ["temperature"]),
    "temperature too high": ({"messages": HELLO, "temperature": 3}, ["temperature", "2"]),
    "top_p too high": ({"messages": HELLO, "top_p": 1.5}, ["top_p", "1"]),
    "max_tokens zero": ({"messages": HELLO, "max_tokens": 0}, ["max_tokens"]),
    "max_tokens negative": ({"messages": HELLO, "max_completion_tokens": -5}, ["max_completion"]),
    "max_tokens fraction": ({"messages": HELLO, "max_tokens": 1.5}, ["max_tokens", "integer"]),
    "stop of another type": ({"messages": HELLO, "stop": 3}, ["stop"]),
    "too many stops": ({"messages": HELLO, "stop": ["x"] * 1000}, ["stop"]),
    "an empty stop": ({"messages": HELLO, "stop": ""}, ["stop", "empty"]),
    "no answer": ({"messages": HELLO, "n": 0}, ["n"]),
}


@pytest.mark.parametrize("case", BODIES)
def test_wrong_body(c, case):
    body, words = BODIES[case]
    status, answer = c.post("/v1/chat/completions", body)
    check_error(status, answer, 400, ["invalid_request_error", *words])
    assert c.chat("still serving", max_tokens=2)["choices"]


@pytest.mark.parametrize("stream", [False, True])
def test_prompt_longer_than_the_context(c, stream):
    """A 400 with both numbers, before any header of a stream."""
    content = "word " * 4000
    status, answer = c.post(
        "/v1/chat/completions",
        {"messages": [{"role": "user", "content": content}], "stream": stream},
    )
    check_error(status, answer, 400, ["context_length_exceeded", "2048"])


def test_body_over_the_limit(c):
    try:
        status, answer = c.post("/v1/chat/completions", b" " * 70000)
        check_error(status, answer, 413, ["65536"])
    except (BrokenPipeError, ConnectionResetError):
        pass  # the gateway may close while the client is still sending
    assert c.chat("still serving", max_tokens=2)["choices"]


def test_wrong_route_and_method(c):
    for path, wanted in (("/v1/nonsense", 404), ("/", 404), ("/v1/chat/completions", 405)):
        status, answer = c.get(path)
        check_error(status, json.loads(answer), wanted, [])
    status, answer = c.post("/v1/models", {})
    check_error(status, answer, 405, [])
    status, answer = c.get("/v1/models/none")
    check_error(status, json.loads(answer), 404, ["none"])


def test_unknown_fields_are_ignored(c):
    answer = c.chat("hello", max_tokens=2, user="me", store=False, metadata={"a": "b"}, foo=[1])
    assert answer["object"] == "chat.completion"


@pytest.mark.parametrize("data", [b"\0" * 512, b"GET\r\n\r\n", b"POST / HTTP/9.9\r\n\r\n", b"\r\n"])
def test_noise_instead_of_http(c, data):
    with socket.create_connection(("127.0.0.1", c.port), timeout=ANSWER_S) as s:
        s.sendall(data)
        s.shutdown(socket.SHUT_WR)
        while s.recv(4096):
            pass
    assert c.get("/health")[0] == 200


def test_http_1_0_gets_no_chunks(c):
    with socket.create_connection(("127.0.0.1", c.port), timeout=ANSWER_S) as s:
        body = json.dumps({"messages": HELLO, "stream": True, "max_tokens": 3}).encode()
        s.sendall(
            b"POST /v1/chat/completions HTTP/1.0\r\nContent-Type: application/json\r\n"
            b"Content-Length: %d\r\n\r\n" % len(body) + body
        )
        answer = b""
        while data := s.recv(4096):
            answer += data
    head, _, rest = answer.partition(b"\r\n\r\n")
    assert b"transfer-encoding" not in head.lower()
    assert rest.startswith(b"data: {") and rest.rstrip().endswith(b"data: [DONE]")


def test_two_requests_on_one_connection(c):
    connection = http.client.HTTPConnection("127.0.0.1", c.port, timeout=ANSWER_S)
    for _ in range(2):
        c.send(connection, "hello", max_tokens=2)
        response = connection.getresponse()
        assert response.status == 200 and json.loads(response.read())["choices"]
