# SPDX-License-Identifier: MIT
"""A key with all it may have at a time under way, until what asked for more has been refused once:
the client's own retry then finds room."""
import contextlib
import json
import re
import threading

from harness import eventually

KEY = "k-one"
BODY = {"model": "tiny", "max_tokens": 1, "messages": [{"role": "user", "content": "hello"}]}


@contextlib.contextmanager
def held(c):
    """A request of KEY's that a worker standing still does not answer before the end of this."""
    connection = c.connect()
    headers = {"Content-Type": "application/json", "Authorization": f"Bearer {KEY}"}
    c.workers[0].freeze()
    try:
        connection.request("POST", "/v1/chat/completions", json.dumps(BODY), headers)
        eventually(lambda: metric(c, "cistern_requests_in_flight") == 1, "it is under way")
        yield
    finally:
        c.workers[0].thaw()
    assert connection.getresponse().status == 200
    connection.close()


def refused_then_answered(c, ask):
    """What ask() returns when its first try, and maybe more, met a 429."""
    answers = []
    asking = threading.Thread(target=lambda: answers.append(ask()))
    refusals = 'cistern_requests_total.*status="429"'
    before = metric(c, refusals)
    with held(c):
        asking.start()
        eventually(lambda: metric(c, refusals) > before, "it was refused")
    asking.join()
    assert answers, "it raised"
    return answers[0]


def metric(c, pattern):
    connection = c.connect()
    connection.request("GET", "/metrics", headers={"x-api-key": KEY})
    text = connection.getresponse().read().decode()
    return sum(float(v) for v in re.findall(rf"^{pattern}\S* (\S+)$", text, re.MULTILINE))
