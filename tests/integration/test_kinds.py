# SPDX-License-Identifier: MIT
"""Each cell is computed as what it is, a prompt's or generated, also when it is computed again: what a
prompt reused of an earlier answer stays of that kind. worker.exact_prefix reuses a prompt's cells alone.
What a row was computed as worker.trace says; what a cell is, the tokens file."""
import threading

import pytest

from harness import Cistern, eventually
from pool import ACTIVE, CLOSING, IDLE, WAITING
from test_equal import SMALL, words
from test_poolctl import name, poolctl

SETTINGS = {
    **SMALL,
    "worker.trace_all": "yes",  # a row of a prompt has a line, too
    "worker.variant": "plain",
    "pool.chunk": 16,
}
FIRST, ANSWER = 70, 45  # tokens; the last of an answer has no cell
MORE = 20
CACHED = FIRST + ANSWER - 1
FORK = FIRST + 20  # in the answer and in a chunk; what follows is too long to be cut off
EXACT = [{"worker.exact_prefix": e} for e in ("yes", "no")]


def complete(c, prompt, n, **fields):
    body = {"model": "any", "prompt": prompt, "max_tokens": n, "temperature": 0, "ignore_eos": True}
    status, answer = c.post("/v1/completions", body | fields)
    assert status == 200, answer
    return answer["choices"][0]["text"], answer["usage"]["prompt_tokens_details"]["cached_tokens"]


def quiet(c):
    eventually(lambda: not c.pool().rows(ACTIVE, CLOSING, WAITING), "all conversations are closed")
    c.pool().check_tables()


def first_turn(c):
    """Its ids; those of its answer are read in the pool, since text need not give them again."""
    prompt = list(words(FIRST, 3).encode()[:FIRST])
    complete(c, prompt, ANSWER)
    quiet(c)
    (row,) = c.pool().rows(IDLE)
    ids, kinds = c.pool().tokens(row)
    assert ids[:FIRST] == prompt and kinds == "p" * FIRST + "g" * (ANSWER - 1)
    return ids


def second_prompt(ids):
    return ids + list(words(MORE, 4).encode()[:MORE])


def computed(c, request=-1):
    """A request's rows, one letter a position that was computed: as what; None elsewhere."""
    rows = list(c.kinds().values())[request]
    return [rows.get(i) for i in range(max(rows) + 1)]


@pytest.mark.parametrize("cells", [16384, 0], ids=["pool", "identity"])
@pytest.mark.parametrize("exact", EXACT, ids=["exact", "any"])
def test_the_next_turn_reads_its_last_answer_again_or_not(tiny_model, exact, cells):
    settings = {**SETTINGS, **exact, "pool.cells": cells, "worker.lanes": 1}
    wanted = FIRST if exact["worker.exact_prefix"] == "yes" else CACHED
    with Cistern(tiny_model, settings=settings).start() as c:
        prompt = second_prompt(first_turn(c))
        text, n = complete(c, prompt, 8)
        assert n == wanted
        assert computed(c) == [None] * wanted + ["p"] * (len(prompt) - wanted) + ["g"] * 7
        again, n = complete(c, prompt, 8)  # now all of it was a prompt's, or is reused as it is
        assert n == len(prompt) - 1 and again == text
        assert computed(c) == [None] * (len(prompt) - 1) + ["p"] + ["g"] * 7
        quiet(c)


def gives_back(c, row):
    """Its room: it goes on at once, from what others have."""
    poolctl(c, "evict", name(row))
    c.workers[1].thaw()


def gives_back_beside_another_kind(c, row):
    """All of its prompt's tokens are there, as a prompt's: of a stream that has begun they are no part."""
    c.workers[1].thaw()
    ids, _ = c.pool().tokens(row)
    other = ids[:CACHED] + second_prompt([])
    complete(c, other, 1, echo=True, logprobs=0)  # computed from its beginning
    eventually(lambda: c.pool().rows(IDLE), "it is cached")
    (idle,) = c.pool().rows(IDLE)
    assert c.pool().tokens(idle) == (other, "p" * len(other))
    gives_back(c, row)


def dies(stage, kept):
    def strike(c, _row):
        c.workers[stage].kill()
        if stage == 0:
            c.workers[1].thaw()
        (row,) = eventually(lambda: c.pool().rows(WAITING), "it waits")
        if not kept:
            poolctl(c, "drop", name(row))
        c.start_worker(stage)

    return strike


# What strikes, how much of the first turn the second one has, and what it finds when it comes again.
STRIKES = {
    "gives_back": (gives_back, CACHED, 0),
    "gives_back_beside_another_kind": (gives_back_beside_another_kind, CACHED, FIRST),
    "gives_back_a_fork": (gives_back, FORK, FORK),
    "head_dies": (dies(0, True), CACHED, CACHED),
    "last_dies": (dies(1, True), CACHED, CACHED),
    "head_dies_and_all_is_lost": (dies(0, False), CACHED, 0),
    "last_dies_and_all_is_lost": (dies(1, False), CACHED, 0),
    "head_dies_and_a_fork_is_lost": (dies(0, False), FORK, FORK),
}


@pytest.mark.parametrize("strike", STRIKES)
def test_what_is_computed_again_is_what_it_was(slow_model, strike):
    """A prompt whose middle was reused from an answer, and is computed in mid-answer once more."""
    strike, reused, found = STRIKES[strike]
    n_answer = 300 if strike is gives_back_beside_another_kind else 60  # that one must be answered meanwhile
    with Cistern(slow_model, settings=SETTINGS).start() as c:
        prompt = second_prompt(first_turn(c)[:reused])
        expected = "p" * FIRST + "g" * (reused - FIRST) + "p" * MORE + "g" * (n_answer - 1)
        said = []
        asking = threading.Thread(target=lambda: said.append(complete(c, prompt, n_answer)))
        c.begin(asking.start)
        with c.without_room():
            eventually(lambda: len(c.kinds()) == 2 and len(computed(c)) > len(prompt) + 5, "it answers")
            c.workers[1].freeze()
        (row,) = c.pool().rows(ACTIVE)
        strike(c, row)
        asking.join()
        quiet(c)
        rows = [c.pool().tokens(r) for r in c.pool().rows(IDLE)]
        n = len(prompt)
        (kinds,) = [kinds for ids, kinds in rows if ids[:n] == prompt and len(ids) > n]
        assert said[0][1] == reused and kinds == expected
        # Once or twice, each as one kind: that of its cell.
        assert computed(c, 1) == [None] * found + list(expected[found:])
        for r in c.pool().rows(IDLE):  # else the next one may go on from cells of other kinds
            if c.pool().tokens(r)[1] != expected:
                poolctl(c, "drop", name(r))
        alone, _ = complete(c, prompt, n_answer)
        assert said[0][0] == alone


def test_a_restored_conversation_has_its_kinds(tiny_model, tmp_path):
    with Cistern(tiny_model, settings={**SETTINGS, **EXACT[0]}).start() as c:
        prompt = second_prompt(first_turn(c))
        (row,) = c.pool().rows(IDLE)
        before = c.pool().tokens(row)
        poolctl(c, "save", name(row), tmp_path / "saved")
        poolctl(c, "drop", "--all")
        poolctl(c, "restore", tmp_path / "saved")
        (row,) = c.pool().rows(IDLE)
        assert c.pool().tokens(row) == before
        assert complete(c, prompt, 4)[1] == FIRST
