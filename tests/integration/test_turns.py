# SPDX-License-Identifier: MIT
"""More conversations than the pool or the lanes hold: who waits, who gives way, who shares. Each answer
equals its solo run by the hash of each row's full logits, whatever it went through."""
import json
import threading

import pytest

from harness import Cistern, chat_body, eventually
from pool import ACTIVE, CLOSING, IDLE, WAITING
from test_equal import SMALL, cached, same_request, solo_rows, words

CHUNK = 16
TIGHT = {**SMALL, "pool.chunk": CHUNK, "model.context": 512, "pool.grow": 1}


def quiet(c):
    eventually(lambda: not c.pool().rows(ACTIVE, CLOSING, WAITING), "all conversations are closed")
    c.pool().check_tables()


def together(c, chats):
    """Status and answer of each. All at once: the head stands still until the gateway has them all."""
    answers = [None] * len(chats)

    def chat(i):
        content, fields = chats[i]
        answers[i] = c.post("/v1/chat/completions", chat_body(content, fields))

    threads = [threading.Thread(target=chat, args=[i]) for i in range(len(chats))]
    c.workers[0].freeze()
    for t in threads:
        t.start()
    eventually(lambda: c.metric("cistern_requests_in_flight") == len(chats), "all have come")
    c.workers[0].thaw()
    for t in threads:
        t.join()
    return answers


def answered(c, chats):
    """The same of chats that are all answered: the answers alone."""
    results = together(c, chats)
    assert all(status == 200 for status, _ in results), results
    return [answer for _, answer in results]


def a_short_one_comes(c, long, short):
    """While the long prompt is being read. Both answers."""
    connections = [c.connect(), c.connect()]
    c.begin(lambda: c.send(connections[0], long[0], **long[1]))
    c.send(connections[1], short[0], **short[1])
    eventually(lambda: c.metric("cistern_requests_in_flight") == 2, "the short one has come")
    c.workers[1].thaw()
    return [json.loads(x.getresponse().read()) for x in connections]


def text(answer):
    return answer["choices"][0]["message"]["content"]


def assert_equal_to_solo(c, chats, alone, answers, solo_answers):
    requests = list(c.trace().values())
    for i in range(len(chats)):
        assert text(answers[i]) == text(solo_answers[i]), i
        assert same_request(alone[i], requests) == alone[i], i


def test_wait_when_dry_completes_all(tiny_model):
    """A pool that holds a third of what is asked: the younger give back and come again, all end whole."""
    fields = {"max_tokens": 200, "temperature": 0}
    chats = [(f"{i} {words(8, i)}", dict(fields)) for i in range(8)]
    chats[3][1].update(temperature=0.9, seed=7)
    alone, solo = solo_rows(tiny_model, chats, **{"model.context": 512, "pool.chunk": CHUNK})
    used = sum(a["usage"]["total_tokens"] for a in solo)
    cells = max(512 + 2 * CHUNK, used // 3)
    settings = {**TIGHT, "pool.cells": cells, "pool.when_dry": "wait"}
    with Cistern(tiny_model, settings=settings).start() as c:
        answers = answered(c, chats)
        reasons = [[a["choices"][0]["finish_reason"] for a in some] for some in (answers, solo)]
        assert reasons[0] == reasons[1]
        assert not any("truncated" in a["choices"][0] for a in answers)
        assert_equal_to_solo(c, chats, alone, answers, solo)
        assert "gives back its room" in c.workers[0].text()
        quiet(c)


def test_full_admission_never_cuts(tiny_model):
    """admission = full reserves all that an answer may use: who does not fit is refused, nobody is cut."""
    settings = {**TIGHT, "pool.cells": 512 + 2 * CHUNK, "pool.admission": "full"}
    fields = {"max_tokens": 300, "temperature": 0, "ignore_eos": True}
    chats = [(f"{i} {words(8, i)}", fields) for i in range(4)]
    with Cistern(tiny_model, settings=settings).start() as c:
        results = together(c, chats)
        whole = [a for status, a in results if status == 200]
        refused = [a for status, a in results if status == 503]
        assert whole and refused and len(whole) + len(refused) == len(chats)
        assert all(not a["choices"][0].get("truncated") for a in whole)
        assert all(a["error"]["code"] == "kv_pool_full" for a in refused)
        quiet(c)


def test_a_long_prompt_lets_a_short_one_pass(tiny_model):
    """One lane: a short prompt comes while a long one is read, and is answered first."""
    settings = {**SMALL, "worker.lanes": 1, "worker.piece": 16, "worker.variant": "plain"}
    fields = {"max_tokens": 8, "temperature": 0}
    chats = [(words(330, 1), fields), (words(3, 2), fields)]
    alone, solo = solo_rows(tiny_model, chats)
    with Cistern(tiny_model, settings=settings).start() as c:
        answers = a_short_one_comes(c, *chats)
        # The trace has a request from its prompt's end on.
        requests = list(c.trace().values())
        assert [same_request(a, requests) for a in alone] == requests[::-1]
        assert_equal_to_solo(c, chats, alone, answers, solo)
        # Nothing of the long prompt was read twice: it kept its chunks while it stood aside.
        assert "gives way" in c.workers[0].text()
        quiet(c)


def test_who_let_one_pass_and_who_passed_waited_for_each_other(tiny_model):
    """One lane: the long prompt that stood aside holds chunks and wants the lane, the short one's answer
    holds the lane and wants chunks. The younger gives back."""
    settings = {
        **SMALL,
        "model.context": 1024,
        "pool.cells": 1024 + 2 * CHUNK,
        "pool.chunk": CHUNK,
        "pool.when_dry": "wait",
        "worker.lanes": 1,
        "worker.piece": 100,
        "worker.variant": "plain",
        "gateway.resume_ms": 600000,
    }
    long = (words(200, 1)[:850], {"max_tokens": 8, "temperature": 0})
    short = ("a", {"max_tokens": 930, "temperature": 0, "ignore_eos": True})
    chats = [long, short]
    alone, solo = solo_rows(tiny_model, chats, **{"model.context": 1024})
    with Cistern(tiny_model, settings=settings).start() as c:
        answers = a_short_one_comes(c, *chats)
        assert "gives way" in c.workers[0].text()
        assert [a["choices"][0]["finish_reason"] for a in answers] == ["length", "length"]
        assert [text(a) for a in answers] == [text(a) for a in solo]
        quiet(c)


def test_many_prompts_with_one_beginning_hold_it_once(tiny_model):
    """They wait for the first to be read, then share its whole chunks and copy the rest."""
    shared = words(120, 9)
    fields = {"max_tokens": 8, "temperature": 0}
    chats = [(f"{shared} {i} {words(4, i)}", fields) for i in range(16)]
    alone, solo = solo_rows(tiny_model, chats[:3])
    with Cistern(tiny_model, settings={**SMALL, "pool.chunk": 64}).start() as c:
        answers = answered(c, chats)
        prompt = solo[0]["usage"]["prompt_tokens"]
        common = prompt - 60
        assert sum(cached(a) >= common // 64 * 64 for a in answers) >= len(chats) - 1
        assert_equal_to_solo(c, chats[:3], alone, answers[:3], solo)
        quiet(c)
        rows = c.pool().rows(IDLE)
        whole = {tuple(r["table"][: common // 64]) for r in rows if r["base"] > common}
        assert len(whole) == 1, "the whole chunks are the same ones in every table"


def test_the_same_prompts_again_are_all_cached(tiny_model):
    """Two identical waves, and a pool that holds them: the second reads the last token of each only."""
    chats = [(f"{i} {words(20, i)}", {"max_tokens": 4, "temperature": 0}) for i in range(8)]
    with Cistern(tiny_model, settings={**SMALL, "worker.lanes": 4}).start() as c:
        first = answered(c, chats)
        quiet(c)
        second = answered(c, chats)
        for i in range(len(chats)):
            assert text(second[i]) == text(first[i])
            assert cached(second[i]) == second[i]["usage"]["prompt_tokens"] - 1
        quiet(c)


def test_a_fork_of_a_living_conversation(slow_model):
    """The second one begins while the first is still answered, and reads only what differs."""
    shared = words(60, 4)
    chats = [
        (f"{shared} a", {"max_tokens": 120, "temperature": 0, "ignore_eos": True}),
        (f"{shared} b", {"max_tokens": 30, "temperature": 0, "ignore_eos": True}),
    ]
    slow = {"worker.variant": "plain"}
    alone, solo = solo_rows(slow_model, chats, **slow)
    with Cistern(slow_model, settings={**SMALL, **slow}).start() as c:
        first = c.stream(chats[0][0], **chats[0][1])
        for _ in range(10):
            next(first)
        second = c.chat(chats[1][0], **chats[1][1])
        assert not first.done
        first.read_all()
        assert cached(second) > solo[1]["usage"]["prompt_tokens"] - 40
        assert text(second) == text(solo[1])
        assert first.text == text(solo[0])
        assert [same_request(a, c.trace().values()) for a in alone] == alone
        quiet(c)


def test_an_edited_early_message(tiny_model):
    """The conversation goes on from an edited turn: what comes after the edit is read anew."""
    begin = words(40, 1)
    chats = [(f"{begin} one {words(60, 2)}", {"max_tokens": 8, "temperature": 0}),
             (f"{begin} two {words(60, 3)}", {"max_tokens": 8, "temperature": 0})]
    alone, solo = solo_rows(tiny_model, chats)
    with Cistern(tiny_model, settings=SMALL).start() as c:
        answers = [c.chat(content, **fields) for content, fields in (*chats, *chats)]
        for i, answer in enumerate(answers):
            assert text(answer) == text(solo[i % 2])
        assert [list(c.trace().values())[i] for i in range(4)] == alone + alone
        quiet(c)


@pytest.mark.parametrize("stage", [0, 1])
def test_the_other_pipeline_goes_on(slow_model, stage):
    """Two pipelines on one pool: a worker of the one that answers is killed and does not come back."""
    chats = [(words(40, 6), {"max_tokens": 80, "temperature": 0.8, "seed": 3})]
    slow = {"worker.variant": "plain"}
    alone, solo = solo_rows(slow_model, chats, **slow)
    with Cistern(slow_model, settings={**SMALL, **slow, "worker.lanes": 2}).start() as c:
        others = [c.launch("workerd", "--pipeline", 1, "--stage", s, name=f"other-{s}") for s in (0, 1)]
        c.wait_ready(*others)
        eventually(lambda: c.metric("cistern_pipelines_ready") == 2, "both pipelines are ready")
        last = c.workers[1], others[1]
        stream = c.half_way(chats[0][0], 8, *last, **chats[0][1])
        (row,) = c.pool().rows(ACTIVE)
        pipelines = [c.workers, others]
        pipelines[row["pipeline"]][stage].kill()
        for p in last:
            if p.alive():
                p.thaw()
        stream.read_all()
        assert stream.done and not stream.error
        assert stream.text == text(solo[0])
        (found,) = c.trace().values()
        assert found == alone[0]
        left = pipelines[1 - row["pipeline"]]
        (row,) = eventually(lambda: c.pool().rows(IDLE), "it is cached")
        assert row["pipeline"] == pipelines.index(left)
        for p in others:
            if p.alive():
                p.stop()
