# SPDX-License-Identifier: MIT
"""A stream without anything to say says so, in the words of its API: while it waits for a lane, and
between tokens. What stands still here is a worker; what comes after it goes on is what would have come."""
import json

import pytest

from harness import Cistern, eventually
from pool import ACTIVE
from test_equal import SMALL, words

pytestmark = pytest.mark.cpu("what the gateway says meanwhile")

HELLO = [{"role": "user", "content": words(20, 8)}]
FIELDS = {"model": "tiny", "temperature": 0, "stream": True}
PINGS = 3


class Api:
    def __init__(self, path, fields, ping, first, last):
        self.path, self.fields = path, {**FIELDS, **fields}
        self.ping, self.first, self.last = ping, first, last

    def ask(self, c, n_tokens):
        limit = "max_output_tokens" if "input" in self.fields else "max_tokens"
        connection = c.connect()
        body = {**self.fields, limit: n_tokens, "ignore_eos": True}
        headers = {"Content-Type": "application/json"}
        connection.request("POST", self.path, json.dumps(body), headers)
        return connection


def events(response):
    """Each event's lines, joined."""
    lines = []
    while line := response.readline().decode():
        if line.strip():
            lines.append(line.strip())
        elif lines:
            yield "\n".join(lines)
            lines = []


APIS = {
    "chat": Api("/v1/chat/completions", {"messages": HELLO}, ": wait", '"role"', "[DONE]"),
    "responses": Api(
        "/v1/responses", {"input": HELLO}, "event: response.in_progress",
        "event: response.created", "event: response.incomplete",
    ),
    "anthropic": Api(
        "/v1/messages", {"messages": HELLO}, "event: ping", "event: message_start",
        "event: message_stop",
    ),
}
each_api = pytest.mark.parametrize("api", APIS.values(), ids=APIS)


@pytest.fixture(scope="module")
def c(tiny_model):
    more = {"gateway.ping_ms": 100, "worker.lanes": 1}
    with Cistern(tiny_model, settings={**SMALL, **more}).start() as c:
        yield c


def count_pings(api, stream, n):
    """Reads until there were n; returns what else there was."""
    others = []
    while n > 0:
        event = next(stream)
        if api.ping in event:
            n -= 1
        else:
            others.append(event)
    return others


@each_api
def test_before_there_is_a_lane(c, api):
    """The only lane's head stands still."""
    eventually(lambda: not c.pool().rows(ACTIVE), "earlier ones are over")
    c.workers[0].freeze()
    try:
        response = api.ask(c, 3).getresponse()
        assert response.status == 200
        stream = events(response)
        others = count_pings(api, stream, PINGS)
        assert not c.pool().rows(ACTIVE)
        assert all("delta" not in e for e in others if api is not APIS["responses"])
    finally:
        c.workers[0].thaw()
    rest = others + list(stream)
    assert len([e for e in rest if api.first in e]) == 1 and api.last in rest[-1]


@each_api
def test_between_tokens(c, api):
    whole = list(events(api.ask(c, 1500).getresponse()))
    eventually(lambda: not c.pool().rows(ACTIVE), "that is over")
    connection = c.begin(lambda: api.ask(c, 1500))
    with c.without_room():
        stream = events(connection.getresponse())
        first = [next(stream) for _ in range(8)]
        others = count_pings(api, stream, PINGS + 1)  # responses begins with one of its own
    rest = [e for e in first + others + list(stream) if api.ping not in e]
    assert text_of(rest) == text_of(whole)


def text_of(all_events):
    text = ""
    for event in all_events:
        data = event.rpartition("data: ")[2]
        if not data.startswith("{"):
            continue
        j = json.loads(data)
        if j.get("type") == "response.output_text.delta":
            text += j["delta"]
        elif j.get("type") == "content_block_delta":
            text += j["delta"]["text"]
        elif j.get("choices"):
            text += j["choices"][0]["delta"].get("content") or ""
    assert text
    return text
