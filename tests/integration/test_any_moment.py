# SPDX-License-Identifier: MIT
"""kill -9 and SIGSTOP of each process at any moment, with 1, 2 and 4 stages: a crowd asks, somebody is
struck at a random moment of it, and everybody gets the tokens that he would have got alone. The seed is
printed when a story fails; CISTERN_SEED=N draws the same strikes again, as nearly as time allows.
CISTERN_STRIKES: how many a story has at most, in an order that is drawn."""
import http.client
import os
import pathlib
import random
import threading
import time

import pytest

from fixtures import has_sanitizers
from harness import ENDS, Cistern
from test_deaths import quiet
from test_equal import SMALL, solo_rows, words
from test_poolctl import poolctl

SETTINGS = {**SMALL, "pool.chunk": 16, "worker.variant": "plain", "worker.stuck_ms": 6000}
# The long prompt is read while the others' tokens are made; tokens cross a chunk's border or two.
CHATS = [
    (f"{marker} {words(n, i)}", {"max_tokens": 10 + 4 * i, **fields})
    for i, (marker, n, fields) in enumerate(
        [
            ("azure", 12, {"temperature": 0}),
            ("brass", 30, {"temperature": 0.9, "seed": 41}),
            ("cedar", 45, {"temperature": 0.7, "top_p": 0.9, "seed": 42}),
            ("dunes", 3, {"temperature": 0}),
        ]
    )
]
AT_ONCE = len(CHATS)
LAST = 0.9  # of a crowd's time: there somebody is still being answered
GOES_ON_S = 0.3  # well below worker.stuck_ms, after which a stopped worker is a dead one


@pytest.fixture(scope="module")
def alone(slow_model):
    rows, answers = solo_rows(slow_model, CHATS, **SETTINGS)
    return rows, [a["choices"][0]["message"]["content"] for a in answers]


class Asker(threading.Thread):
    """A client. One that asks again when its connection breaks, as clients do, may do so only when
    the gateway was struck."""

    def __init__(self, c, i, gateway_back):
        super().__init__()
        self.c, self.i, self.gateway_back = c, i, gateway_back
        self.wrong = None
        self.start()

    def ask(self):
        content, fields = CHATS[self.i]
        stream = self.c.stream(content, **fields).read_all()
        if not stream.done:
            raise ConnectionError("the stream has no end")
        return stream

    def run(self):
        try:
            try:
                stream = self.ask()
            except (OSError, http.client.HTTPException):
                if not self.gateway_back:
                    raise
                self.gateway_back.wait(600)
                stream = self.ask()
            self.text = stream.text
            self.wrong = stream.error
        except Exception as e:  # raised by result(), which this thread can't do by itself
            self.wrong = e

    def result(self):
        self.join()
        assert not self.wrong, f"chat {self.i}: {self.wrong!r}"
        return self.text


class Crowd:
    """Rounds of the same chats; after each round: what must hold."""

    def __init__(self, c, alone):
        self.c = c
        self.rows, self.texts = alone
        self.reread = 0

    def ask(self, strike=None, gateway_back=None):
        askers = [Asker(self.c, i, gateway_back) for i in range(AT_ONCE)]
        if strike:
            strike()
        texts = [a.result() for a in askers]
        assert texts == self.texts
        quiet(self.c)
        self.look_at_rows(all_once=not gateway_back)
        self.look_at_cells()

    def look_at_rows(self, all_once):
        """Each row that was computed is its chat's, bit for bit. If nobody asked twice, each is there,
        and no more are there twice than were in flight: two of each conversation."""
        trace = pathlib.Path(self.c.settings["worker.trace"])
        found = [[] for _ in CHATS]
        # A row may be posted before it is known that the token before it ends the answer.
        behind = {max(r) + 1 for r in self.rows if r[max(r)][0] in ENDS}
        for line in trace.read_text().splitlines():
            _request, _row, position, token, value, _kind = line.split()
            whose = [i for i, r in enumerate(self.rows) if r.get(int(position)) == (token, value)]
            if not whose and int(position) in behind:
                continue
            assert len(whose) == 1, f"{line}: a row of nobody, or of two"
            found[whose[0]].append(int(position))
        os.truncate(trace, 0)
        if all_once:
            assert [set(f) for f in found] == [set(r) for r in self.rows]
            twice = sum(len(f) - len(set(f)) for f in found)
            assert twice <= 2 * AT_ONCE and self.reread_now() <= 2 * AT_ONCE

    def reread_now(self):
        before, self.reread = self.reread, self.c.metric("cistern_reread_tokens")
        return self.reread - before

    def look_at_cells(self):
        kinds = "free", "cached", "shared"
        cells = {kind: self.c.metric("cistern_pool_cells", state=kind) for kind in kinds}
        assert sum(cells.values()) == SETTINGS["pool.cells"], cells


def back(c, who):
    if who == "poold":
        c.start_poold()
    elif who == "gateway":
        c.start_gateway()
    else:
        c.start_worker(int(who))
    c.wait_healthy()


def process(c, who):
    return {"poold": c.poold, "gateway": c.gateway}.get(who) or c.workers[int(who)]


def struck(c, who, how, moment):
    """At this moment, somebody: killed, or stopped and then continued, or stopped and then killed, by
    poold if it is a worker and by its supervisor's watchdog if it is not."""
    time.sleep(moment)  # the moment itself; nothing is waited for
    if who == "all":
        for p in (c.poold, *c.workers, c.gateway):
            p.kill()
        return c.start_programs()
    p = process(c, who)
    if how == "killed":
        p.kill()
        return back(c, who)
    p.freeze()
    if how == "continued":
        time.sleep(GOES_ON_S)
        return p.thaw()
    if who in ("poold", "gateway"):
        p.kill()
    else:
        assert p.wait() == -9
    back(c, who)


@pytest.mark.parametrize("stages", [1, 2, 4])
def test_each_is_struck_at_any_moment(slow_model, alone, stages):
    seed = int(os.environ.get("CISTERN_SEED") or random.randrange(1 << 32))
    print(f"CISTERN_SEED={seed}")
    draw = random.Random(seed)
    everybody = ["poold", "gateway", *map(str, range(stages))]
    strikes = [(who, "killed") for who in (*everybody, "all")]
    strikes += [(who, draw.choice(("continued", "stopped"))) for who in everybody]
    draw.shuffle(strikes)
    if has_sanitizers():  # where each takes several times as long
        strikes = strikes[: len(strikes) // 2]
    strikes = strikes[: int(os.environ.get("CISTERN_STRIKES") or len(strikes))]
    with Cistern(slow_model, stages, SETTINGS).start() as c:
        crowd = Crowd(c, alone)
        began = time.monotonic()
        crowd.ask()
        takes = time.monotonic() - began
        for who, how in strikes:
            forget, moment = draw.random() < 0.7, draw.random() * LAST * takes
            print(f"{who} is {how} after {moment:.3f} of {takes:.3f} s, cached: {not forget}")
            if forget:
                poolctl(c, "drop", "--all")
            broken = who in ("gateway", "all") and how != "continued"
            gateway_back = threading.Event() if broken else None

            def strike():
                struck(c, who, how, moment)
                if gateway_back:
                    gateway_back.set()

            crowd.ask(strike, gateway_back)
