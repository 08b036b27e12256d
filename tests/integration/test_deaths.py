# SPDX-License-Identifier: MIT
"""kill -9 is an ordinary step: who dies where, what a user sees, and what must hold after it."""
import json
import select
import threading
import time

import pytest

from harness import Cistern, chat_body, eventually
from pool import ACTIVE, CLOSING, IDLE, WAITING
from test_equal import SMALL, cached, solo_rows, words
from test_poolctl import poolctl

CHUNK = 16  # small, so that a conversation crosses many chunk borders
SLOW = {"pool.chunk": CHUNK, "worker.variant": "plain"}
DEATHS = {**SMALL, **SLOW}
CHAT = (words(40, 11), {"max_tokens": 60, "temperature": 0.8, "seed": 5})


@pytest.fixture(scope="module")
def alone(slow_model):
    rows, answers = solo_rows(slow_model, [CHAT], **SLOW)
    return rows[0], answers[0]["choices"][0]["message"]["content"], answers[0]["usage"]


def replace_poold(c):
    c.poold.kill()
    c.start_poold()


def quiet(c):
    """No conversation is open any more, and the tables are whole."""
    eventually(lambda: not c.pool().rows(ACTIVE, CLOSING, WAITING), "all conversations are closed")
    c.pool().check_tables()


def test_poold_dies_around_a_chunk_border(slow_model, alone):
    """In mid-stream, at every distance from a border: the growth asks a poold that is not there."""
    rows, text, usage = alone
    to_border = CHUNK - usage["prompt_tokens"] % CHUNK
    with Cistern(slow_model, settings=DEATHS).start() as c:
        for i in range(4):
            stream = c.stream(CHAT[0], **CHAT[1])
            for _ in range(to_border + CHUNK - 2 + i):
                next(stream)
            replace_poold(c)
            stream.read_all()
            assert stream.text == text and stream.done and not stream.error
            assert list(c.trace().values())[i] == rows
            quiet(c)


def test_poold_dies_one_cell_before_a_border(slow_model, alone):
    """The pipeline stands still with exactly one cell left in the chunk when poold dies."""
    rows, text, usage = alone
    with Cistern(slow_model, settings=DEATHS).start() as c:
        for _ in range(200):  # a step may pass the border; then the same chat is asked once more
            stream = c.stream(CHAT[0], **CHAT[1])
            next(stream)
            if stands_at_border(c, usage["prompt_tokens"] + usage["completion_tokens"] - 2):
                break
            c.workers[1].thaw()
            stream.read_all()
        else:
            raise AssertionError("no step ended one cell before a border")
        replace_poold(c)
        c.workers[1].thaw()
        stream.read_all()
        assert stream.text == text
        assert list(c.trace().values())[-1] == rows
        quiet(c)


def stands_at_border(c, last):
    """Lets the last stage run from stop to stop until one cell is left in a chunk, or until last."""
    filled = 0
    while filled < last:
        c.workers[1].freeze()
        filled = max(list(c.trace().values())[-1]) + 1
        if filled % CHUNK == CHUNK - 1:
            return True
        c.workers[1].thaw()
    return False


def test_poold_dies_between_open_and_first_window(slow_model, alone):
    rows, text, _ = alone
    with Cistern(slow_model, settings=DEATHS).start() as c:
        c.workers[1].freeze()  # no window ends before the story wants it
        stream = c.stream(CHAT[0], **CHAT[1])
        eventually(lambda: c.pool().rows(ACTIVE), "the conversation is open")
        assert not c.trace()
        replace_poold(c)
        (row,) = c.pool().rows(ACTIVE)
        c.workers[1].thaw()
        stream.read_all()
        assert stream.text == text
        assert list(c.trace().values())[0] == rows
        quiet(c)


def test_poold_dies_with_an_open_unanswered(slow_model, alone):
    """It dies with the open in its socket: asked again, under the same number, it opens once."""
    _, text, _ = alone
    with Cistern(slow_model, settings=DEATHS).start() as c:
        c.poold.freeze()
        stream = c.stream(CHAT[0], **CHAT[1])
        eventually(lambda: c.metric("cistern_requests_waiting") == 1, "the request has arrived")
        replace_poold(c)
        stream.read_all()
        assert stream.text == text
        quiet(c)
        assert len(c.pool().rows(IDLE)) == 1


def test_idle_conversations_outlive_poold(slow_model, alone):
    _, _, usage = alone
    with Cistern(slow_model, settings=DEATHS).start() as c:
        c.chat(CHAT[0], **CHAT[1])
        quiet(c)
        replace_poold(c)
        c.wait_healthy()
        again = c.chat(CHAT[0], **CHAT[1])
        assert cached(again) == usage["prompt_tokens"] - 1


def answered_to(c, stage, **point):
    """A stream that is being read, of programs of which this stage's worker has a point."""
    c.start_poold()
    for s in range(len(c.workers)):
        c.start_worker(s, wait=False, **(point if s == stage else {}))
    c.start_gateway()
    c.wait_ready(*c.workers)
    c.wait_healthy()
    stream = c.stream(CHAT[0], **CHAT[1])
    reader = threading.Thread(target=stream.read_all)
    reader.start()
    return stream, reader


@pytest.mark.parametrize("stage", [0, 1])
def test_worker_dies_in_mid_stream(slow_model, alone, stage):
    """The answer goes on with the same tokens once the worker is back, or ends with an error event;
    it never goes on with other tokens. Health tells meanwhile."""
    _, text, _ = alone
    with Cistern(slow_model, settings=DEATHS).start() as c:
        stream = c.stream(CHAT[0], **CHAT[1])
        for _ in range(5):
            next(stream)
        c.workers[stage].kill()
        eventually(lambda: c.get("/health")[0] == 503, "health tells of the missing stage")
        c.start_worker(stage)
        stream.read_all()
        assert stream.done, "the stream ended without [DONE]"
        if stream.error:
            assert stream.error["code"] == "stage_lost"
            assert text.startswith(stream.text)
        else:
            assert stream.text == text
        c.wait_healthy()
        assert c.chat(CHAT[0], **CHAT[1])["choices"][0]["message"]["content"] == text
        quiet(c)


def test_worker_dies_under_a_crowd(slow_model):
    """Eight streams at once lose a stage; each ends properly and its text is its own."""
    chats = [(f"{i} {words(30, i)}", {"max_tokens": 60, "temperature": 0}) for i in range(8)]
    _, answers = solo_rows(slow_model, chats, **SLOW)
    with Cistern(slow_model, settings=DEATHS).start() as c:
        streams = [c.stream(content, **fields) for content, fields in chats]
        for s in streams:
            next(s)
        readers = [threading.Thread(target=s.read_all) for s in streams]
        for r in readers:
            r.start()
        c.workers[1].kill()
        c.start_worker(1)
        for r in readers:
            r.join()
        for s, answer in zip(streams, answers):
            text = answer["choices"][0]["message"]["content"]
            assert s.done and not s.error and s.text == text
        c.wait_healthy()
        quiet(c)


def test_health_was_well_and_the_next_request_was_refused(slow_model, alone):
    """Of a head that dies with poold the gateway hears when its successor attaches: health was 200 up
    to then. A request that comes before that one serves waits for it."""
    settings = {**DEATHS, "pool.attach_ms": 60000}  # until then a new poold's word is not complete
    with Cistern(slow_model, settings=settings).start() as c:
        for p in (c.poold, *c.workers):
            p.kill()
        c.start_poold()
        c.start_worker(0, wait=False)
        eventually(lambda: "its head is gone" in c.gateway.text(), "the gateway hears of the head")
        assert c.get("/health")[0] == 503
        asks = c.connect()
        c.send(asks, CHAT[0], **CHAT[1])
        eventually(lambda: c.metric("cistern_requests_waiting") == 1, "the request waits")
        c.start_worker(1)
        response = asks.getresponse()
        answer = json.loads(response.read())
        assert response.status == 200, answer
        assert answer["choices"][0]["message"]["content"] == alone[1]


def test_poold_comes_back_and_a_stage_was_missing_before(slow_model):
    """Nobody said that it could be served: such a request is refused at once, as before."""
    with Cistern(slow_model, settings={**DEATHS, "pool.attach_ms": 60000}).start() as c:
        c.workers[0].kill()
        eventually(lambda: c.get("/health")[0] == 503, "health tells of the missing stage")
        replace_poold(c)
        status, answer = c.post("/v1/chat/completions", chat_body(CHAT[0], CHAT[1]))
        assert (status, answer["error"]["code"]) == (503, "stage_lost")


def test_gateway_dies(slow_model, alone):
    """Its requests are cancelled, their K/V stays: the retry through a new gateway is cheap."""
    _, text, usage = alone
    with Cistern(slow_model, settings=DEATHS).start() as c:
        stream = c.stream(CHAT[0], **CHAT[1])
        for _ in range(5):
            next(stream)
        c.gateway.kill()
        quiet(c)
        c.start_gateway()
        c.wait_healthy()
        again = c.chat(CHAT[0], **CHAT[1])
        assert cached(again) == usage["prompt_tokens"] - 1
        assert again["choices"][0]["message"]["content"] == text


def test_a_stopped_stage_stops_the_tokens(slow_model, alone):
    """SIGSTOP of stage 1: what is in flight comes, then nothing; SIGCONT: the same answer."""
    rows, text, _ = alone
    with Cistern(slow_model, settings=DEATHS).start() as c:
        stream = c.half_way(CHAT[0], 3, **CHAT[1])
        (before,) = c.trace().values()
        page = c.page(1)
        # Another chat shows that the rest lives: its window is composed, and not computed either.
        other = c.stream("other", max_tokens=1)
        eventually(lambda: len(c.pool().rows(ACTIVE)) == 2, "a second conversation opens")
        assert list(c.trace().values())[0] == before and c.page(1) == page
        c.workers[1].thaw()
        stream.read_all()
        other.read_all()
        assert stream.text == text and list(c.trace().values())[0] == rows


def test_a_stuck_worker_is_made_a_dead_one(slow_model, alone):
    """A worker that stands still past worker.stuck_ms is killed by poold, and missed by health."""
    with Cistern(slow_model, settings={**DEATHS, "worker.stuck_ms": 3000}).start() as c:
        stuck = c.workers[1]
        stuck.freeze()
        assert stuck.wait() == -9
        eventually(lambda: c.get("/health")[0] == 503, "health tells of the missing stage")
        c.start_worker(1)
        c.wait_healthy()
        assert c.chat(CHAT[0], **CHAT[1])["choices"][0]["message"]["content"] == alone[1]


def test_an_idle_worker_is_left_alone(slow_model, alone):
    """Who beats is not reaped for having nothing to do."""
    with Cistern(slow_model, settings={**DEATHS, "worker.stuck_ms": 2000}).start() as c:
        pidfds = [w.pidfd for w in c.workers]
        assert not select.select(pidfds, [], [], 5)[0], "a worker died for being idle"
        assert c.chat(CHAT[0], **CHAT[1])["choices"][0]["message"]["content"] == alone[1]


def comes_back_late(c, attach_ms):
    """poold dies, and the next one is stopped from its start until pool.attach_ms is over. False: it had
    not been stopped by then."""
    for w in c.workers:
        w.freeze()
    replace_poold(c)
    c.poold.freeze()
    if not all(w.alive() for w in c.workers):
        return False
    for w in c.workers:
        w.thaw()  # they connect, and are not heard
    time.sleep(attach_ms / 1000)
    c.poold.thaw()
    return True


def test_workers_of_a_poold_that_was_late_were_killed(slow_model, alone):
    """It reads what has come before it ends who has not come back."""
    for attach_ms in (1000, 10000):
        with Cistern(slow_model, settings={**DEATHS, "pool.attach_ms": attach_ms}).start() as c:
            if not comes_back_late(c, attach_ms):
                continue
            eventually(lambda: all(p["ready"] for p in poolctl(c, "status")["pipelines"]), "all are back")
            assert all(w.alive() for w in c.workers)
            assert c.chat(CHAT[0], **CHAT[1])["choices"][0]["message"]["content"] == alone[1]
            return
    raise AssertionError("poold was never stopped in time")


def test_everything_dies_at_once(slow_model, alone):
    """The row waits for its gateway until that has not come back within pool.attach_ms; then it is
    an ordinary cached conversation."""
    _, text, usage = alone
    with Cistern(slow_model, settings={**DEATHS, "pool.attach_ms": 500}).start() as c:
        stream = c.stream(CHAT[0], **CHAT[1])
        for _ in range(20):
            next(stream)
        for p in (c.poold, *c.workers, c.gateway):
            p.kill()
        c.start()
        eventually(lambda: c.pool().rows(IDLE), "the conversation is cached")
        again = c.chat(CHAT[0], **CHAT[1])
        assert again["choices"][0]["message"]["content"] == text
        assert cached(again) >= usage["prompt_tokens"] - 1
        quiet(c)


@pytest.mark.parametrize("resume_s", [1, 90])
def test_what_waited_for_a_slow_restart_was_anybodys_after_a_minute(slow_model, resume_s):
    """It is kept as long as its gateway submits again (gateway.resume_ms), and a minute at least."""
    settings = {**DEATHS, "gateway.resume_ms": resume_s * 1000}
    with Cistern(slow_model, settings=settings).start() as c:
        streams = [c.stream(f"{i} {CHAT[0]}", **CHAT[1], ignore_eos=True) for i in range(2)]
        for s in streams:
            next(s)
        c.workers[1].kill()
        both = lambda: len(rows := c.pool().rows(WAITING)) == 2 and rows  # noqa: E731
        early, late = eventually(both, "both wait")
        kept = max(resume_s, 60)
        c.pool().age(early, kept - 20)
        c.pool().age(late, kept)
        eventually(lambda: c.pool().row(late["index"])["state"] == IDLE, "it is given up")
        assert c.pool().row(early["index"])["state"] == WAITING
        for s in streams:
            s.leave()
