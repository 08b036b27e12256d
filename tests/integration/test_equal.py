# SPDX-License-Identifier: MIT
"""Answers are a function of the prompt and the seed alone: not of the crowd, of the stages, of what
was cached, of where chunks lie. Held equal by the hash of each row's full logits."""
import random
import threading

import pytest

from harness import Cistern, eventually
from pool import ACTIVE, IDLE, Arena

SMALL = {
    "model.context": 2048,
    "pool.cells": 16384,
    "pool.chunk": 64,
    "worker.piece": 64,
    "worker.trace": True,
}
CROWD_WORDS = (1, 30, 60, 11, 64, 150, 7, 330)  # the last is read while the others decode


def words(n, seed):
    r = random.Random(seed)
    letters = "etaoinshrdlu"
    return " ".join("".join(r.choices(letters, k=r.randint(1, 6))) for _ in range(n))


def crowd_chats():
    """(content, fields) of eight chats that differ from their first word on. Every other one ends where
    its model ends it, the others go on until the last one's prompt is read."""
    chats = []
    for i, n in enumerate(CROWD_WORDS):
        fields = {"max_tokens": 300, "temperature": 0}
        if i % 2:
            fields.update(temperature=0.9, top_p=0.95, top_k=50, seed=1000 + i, ignore_eos=True)
        chats.append((f"{i} {words(n, i)}", fields))
    return chats


def solo_rows(model, chats, stages=2, **settings):
    """The rows of each chat, computed alone; and the answers."""
    with Cistern(model, stages, {**SMALL, **settings}).start() as c:
        answers = [c.chat(content, **fields) for content, fields in chats]
        rows = list(c.trace().values())
    assert len(rows) == len(chats)
    return rows, answers


def same_request(rows, requests):
    """The one request among these that began as these rows do."""
    first = min(rows)
    found = [r for r in requests if min(r) == first and r[first][1] == rows[first][1]]
    assert len(found) == 1, f"{len(found)} requests begin with the row {first} {rows[first]}"
    return found[0]


class Crowd:
    """Starts chats one after the other, each when the one before has its first token; or all at once, in
    their order, when the gateway has them all."""

    def __init__(self, cistern, chats, leaves):
        self.cistern, self.chats, self.leaves = cistern, chats, leaves
        self.first = [threading.Event() for _ in chats]
        self.streams = [None] * len(chats)
        self.errors = []

    def run(self, at_once=False):
        threads = [threading.Thread(target=self.chat, args=[i]) for i in range(len(self.chats))]
        head = self.cistern.workers[0]
        if at_once:
            head.freeze()
        for i, t in enumerate(threads):
            t.start()
            if at_once:
                in_flight = "cistern_requests_in_flight"
                eventually(lambda n=i + 1: self.cistern.metric(in_flight) == n, "it has come")
            else:
                self.first[i].wait(600)
        if at_once:
            head.thaw()
        for t in threads:
            t.join()
        assert not self.errors, self.errors

    def chat(self, i):
        try:
            content, fields = self.chats[i]
            self.streams[i] = stream = self.cistern.stream(content, **fields)
            for n, _ in enumerate(stream):
                self.first[i].set()
                if i == self.leaves and n == 5:
                    return stream.leave()
        except Exception as e:  # shown by run(), which this thread can't fail by itself
            self.errors.append((i, e))
        finally:
            self.first[i].set()


@pytest.mark.parametrize(
    "reading", [{"worker.piece": 16}, {"worker.piece": 256, "worker.prompt_share": 30}], ids=["piece", "share"]
)
def test_crowd_equals_solo(tiny_model, reading):
    chats = crowd_chats()
    alone, answers = solo_rows(tiny_model, chats)
    leaves = 4
    with Cistern(tiny_model, settings={**SMALL, **reading, "worker.trace_all": "yes"}).start() as c:
        crowd = Crowd(c, chats, leaves)
        crowd.run(at_once=True)
        eventually(lambda: not c.pool().rows(ACTIVE), "all lanes are free")
        traced, together = c.traced(), {}
        for name, kinds in c.kinds().items():
            end = max(at for at, kind in kinds.items() if "p" in kind)  # of the prompt
            together[name] = {at: row for at, row in c.trace()[name].items() if at >= end}
        c.pool().check_tables()
    for i, rows in enumerate(alone):
        found = same_request(rows, together.values())
        if i == leaves:
            assert len(found) <= len(rows) and found.items() <= rows.items()
        else:
            assert found == rows
            assert crowd.streams[i].text == answers[i]["choices"][0]["message"]["content"]
    lengths = [a["usage"]["prompt_tokens"] for a in answers]
    # The shortest is what the template makes of one short word.
    assert min(lengths) < 60 and max(lengths) >= 1400, lengths
    # While the last prompt was read in pieces, the others went on.
    (last,) = (name for name, rows in together.items() if rows == alone[-1])
    at = [i for i, line in enumerate(traced) if line[0] == last and int(line[2]) <= min(alone[-1])]
    meanwhile = {line[0] for line in traced[at[0] : at[-1]] if line[5] == "g"}
    assert len(meanwhile - {last}) >= 2, meanwhile


@pytest.mark.parametrize("stages", [2, 4])
def test_stages_do_not_matter(tiny_model, stages):
    chats = crowd_chats()[:6]
    one, _ = solo_rows(tiny_model, chats, stages=1)
    with Cistern(tiny_model, stages=stages, settings=SMALL).start() as c:
        for content, fields in chats:
            c.chat(content, **fields)
        assert list(c.trace().values()) == one


def test_pieces_and_chunks_do_not_matter(tiny_model):
    chats = crowd_chats()[3:6]
    small, _ = solo_rows(tiny_model, chats, **{"worker.piece": 16, "pool.chunk": 16})
    large, _ = solo_rows(tiny_model, chats, **{"worker.piece": 512, "pool.chunk": 256})
    assert small == large


@pytest.mark.parametrize("kv", ["f16", "int8", "q4"])
def test_cached_prefix_equals_uncached(tiny_model, kv):
    """The same prompt again, and one that shares its beginning, against a pool that has neither; part
    of a chunk is copied, with the scales of formats that have them."""
    shared = words(150, 1)
    chats = [(shared + " and more", {"max_tokens": 32, "temperature": 0})]
    settings = {**SMALL, "pool.kv": kv}
    alone, answers = solo_rows(tiny_model, chats, **settings)
    with Cistern(tiny_model, settings=settings).start() as c:
        c.chat(shared + " then", max_tokens=8, temperature=0)
        first = c.chat(*chats[0][:1], **chats[0][1])
        again = c.chat(*chats[0][:1], **chats[0][1])
        traced = list(c.trace().values())
    assert traced[1] == alone[0] and traced[2] == alone[0]
    prompt = answers[0]["usage"]["prompt_tokens"]
    assert cached(answers[0]) == 0
    assert 0 < cached(first) < prompt
    assert cached(again) == prompt - 1  # the last token is always computed


def cached(answer):
    return answer["usage"]["prompt_tokens_details"]["cached_tokens"]


TURN_FIELDS = {"max_tokens": 40, "temperature": 0}


def two_turns(model, settings):
    """The second turn's messages, both answers, the second one's rows; whether kinds differ."""
    question = [{"role": "user", "content": "Name the capital of France."}]
    with Cistern(model, settings=settings).start() as c:
        first = c.chat(question, **TURN_FIELDS)
        said = first["choices"][0]["message"]
        turn = [*question, said, {"role": "user", "content": "And the capital of Japan?"}]
        second = c.chat(turn, **TURN_FIELDS)
        return turn, first, second, list(c.trace().values())[1], c.kinds_differ()


@pytest.mark.demo_model
@pytest.mark.parametrize("kv", ["f16", "int8"])
@pytest.mark.parametrize("exact", ["no", "yes"], ids=["any", "exact"])
def test_second_turn_finds_the_first(demo_model, exact, kv):
    """And has the rows of one that finds nothing: with exact_prefix on every device, which reads the
    answer again; without, where the answer's cells are what a prompt's are. Elsewhere its rows are those
    of any pool that was asked the same before, and its tokens those of one that was not."""
    settings = {"model.context": 2048, "pool.cells": 4096, "worker.trace": True, "worker.threads": 2}
    settings |= {"pool.kv": kv, "worker.exact_prefix": exact}
    turn, first, second, rows, differ = two_turns(demo_model, settings)
    assert turn[1]["content"] == "The capital of France is Paris."
    used = first["usage"]
    if exact == "yes":
        assert cached(second) == used["prompt_tokens"]
    else:
        assert cached(second) >= used["prompt_tokens"] + used["completion_tokens"] - 2
    with Cistern(demo_model, settings=settings).start() as c:
        uncached = c.chat(turn, **TURN_FIELDS)
        (cold,) = c.trace().values()
    assert cached(uncached) == 0
    assert uncached["choices"] == second["choices"]
    if exact == "yes" or not differ:
        assert cold == rows
    else:
        assert [(at, cold[at][0]) for at in cold] == [(at, rows[at][0]) for at in rows]
        assert two_turns(demo_model, settings)[3] == rows


# ---- where K/V is


@pytest.mark.parametrize("stage", [0, 1])
def test_attention_reads_the_arena(tiny_model, stage):
    """One cell's key changed in the file, between two steps: from then on the logits differ, also those
    of a card that keeps nothing of it in its own memory."""
    chats = [(words(60, 2), {"max_tokens": 200, "temperature": 0})]
    alone, _ = solo_rows(tiny_model, chats)
    with Cistern(tiny_model, settings={**SMALL, "worker.kv_resident": 0}).start() as c:
        stream = c.half_way(chats[0][0], 5, **chats[0][1])
        c.workers[0].freeze()
        (row,) = c.pool().rows(ACTIVE)
        before = set(list(c.trace().values())[0])
        Arena(c.pool(), arena_name(stage)).flip_key(row["table"][0] & 0xFFFFFFFF, 3)
        for worker in c.workers:
            worker.thaw()
        stream.read_all()
        rows = list(c.trace().values())[0]
    assert all(rows[pos] == alone[0][pos] for pos in before)
    after = [pos for pos in rows if pos in alone[0] and pos > max(before) + 4]
    assert after and all(rows[pos][1] != alone[0][pos][1] for pos in after)


def stopped_with_room(c, content, fields):
    """A stream that stands still, with room for all of it. It may have ended before it was stopped: then
    it is asked for once more."""
    for _ in range(50):
        stream = c.begin(lambda: c.stream(content, **fields))
        c.workers[1].thaw()
        next(stream)
        for worker in c.workers:
            worker.freeze()
        if rows := c.pool().rows(ACTIVE):
            return stream, rows[0]
        for worker in c.workers:
            worker.thaw()
        stream.read_all()
    raise AssertionError("each answer ended before it was stopped")


def test_a_chunk_can_lie_anywhere(tiny_model):
    """A chunk's bytes and its table entry moved, between two steps: the logits stay."""
    chats = [(words(60, 3), {"max_tokens": 500, "temperature": 0, "ignore_eos": True})]
    alone, answers = solo_rows(tiny_model, chats)
    # Room for the whole answer from the start: poold stands still while its table is edited.
    with Cistern(tiny_model, settings={**SMALL, "pool.grow": 16}).start() as c:
        stream, row = stopped_with_room(c, *chats[0])
        c.poold.freeze()
        pool = c.pool()
        old, new = row["table"][0] & 0xFFFFFFFF, pool.free_chunk()
        for stage in range(2):
            Arena(pool, arena_name(stage)).copy_chunk(old, new)
        entry = row["table"][0] >> 32 << 32 | new
        at = pool.table_off(row["index"])
        pool.control[at : at + 8] = entry.to_bytes(8, "little")
        rows = lambda: list(c.trace().values())[-1]  # noqa: E731
        # Windows that are posted may have been prepared with the table as it was. What the stream has to
        # read may be older than that.
        gone_on = min(len(rows()) + 8, len(alone[0]))
        for worker in c.workers:
            worker.thaw()
        eventually(lambda: len(rows()) >= gone_on, "those windows are done")
        for worker in c.workers:
            worker.freeze()
        for stage in range(2):
            arena = Arena(pool, arena_name(stage))
            for cell in range(arena.chunk_cells):
                arena.flip_key(old, cell)  # whoever still reads the old place is found out
        for worker in c.workers:
            worker.thaw()
        stream.read_all()
        assert stream.text == answers[0]["choices"][0]["message"]["content"]
        assert rows() == alone[0]
        for p in (c.gateway, *c.workers, c.poold):
            p.kill()  # poold's memory of its table is not what the table says


def arena_name(stage):
    return f"arena-{stage}"


def test_idle_rows_outlive_everything(tiny_model):
    """All programs end and start again; the conversation is found, and equal."""
    chats = [(words(100, 5), {"max_tokens": 16, "temperature": 0})]
    alone, answers = solo_rows(tiny_model, chats)
    with Cistern(tiny_model, settings=SMALL).start() as c:
        c.chat(chats[0][0], **chats[0][1])
        eventually(lambda: c.pool().rows(IDLE), "the conversation is cached")
        c.stop_all()
        c.start()
        again = c.chat(chats[0][0], **chats[0][1])
        rows = list(c.trace().values())
    assert cached(again) == answers[0]["usage"]["prompt_tokens"] - 1
    assert rows[-1] == alone[0]
