# SPDX-License-Identifier: MIT
"""The rows of tests/bench/gpu: what each asks of a server, and what it yields: (what, value, unit).

A row is a function of one side (front.Cards or front.Peer) and the row's numbers. What only Cistern can
do stands under `is_ours`; there the texts are compared as well, since an answer's tokens may depend on
nothing but its prompt.
"""
import random
import statistics
import sys
import time

from front import Answer, join, longest, median_ms, poolctl, post, rate, token_ids

ANSWER = 160  # tokens of an answer whose rate is measured
WARM = 16  # tokens before the clock
RATE_S = 6  # the longest time that a rate is measured
GOES_ON = 64  # tokens of an answer that is compared
FORK = 100  # tokens that a fork has of its own
draw = random.Random(1)


def prompt(n):
    return token_ids(n, draw)


def same(what, a, b):
    n = min(len(a), len(b))
    if n == 0 or a[:n] != b[:n]:
        sys.exit(f"{what}: another answer, {a[:80]!r} and {b[:80]!r}")


def lane(side, i):
    """Of a request that must run in this lane: the peer has to be told."""
    return {} if side.is_ours else {"id_slot": i}


def leave(answers):
    for a in answers:
        a.leave()
    return join(answers)


def slack(lanes, cells):
    """Tokens that the first of so many gets while the others' prompts are read, and more."""
    return WARM + 2 * ANSWER + (lanes - 1) * max(16, cells // 64)


def decode(side, lanes, cells):
    n = slack(lanes, cells)
    answers = [Answer(side, prompt(max(1, cells)), n, warm=WARM) for _ in range(lanes)]
    for a in answers:
        a.begun.wait()
    began, goal = time.monotonic(), [a.count + ANSWER for a in answers]
    while time.monotonic() - began < RATE_S:
        if all(a.count >= g or not a.is_alive() for a, g in zip(answers, goal)):
            break
        time.sleep(0.01)
    leave(answers)
    yield "decode", rate(answers, WARM - 1), "tokens/s"
    if side.is_ours:
        side.wait_idle()
        alone = Answer(side, answers[-1].body["prompt"], GOES_ON).join()
        same("alone", answers[-1].text, alone.text)


def prompts(side, tokens, n=1):
    answers = join([Answer(side, prompt(tokens), 1) for _ in range(n)])
    seconds = max(a.sent + a.first() for a in answers) - min(a.sent for a in answers)
    yield "prompt", tokens * n / seconds, "tokens/s"


def long(side, tokens):
    text = prompt(tokens)
    Answer(side, prompt(64), 4, **lane(side, 1)).join()
    first = Answer(side, text, GOES_ON, **lane(side, 0)).join()
    yield "read", tokens / first.first(), "tokens/s"
    side.wait_idle()
    yield from saved(side)
    again = Answer(side, text, 2, **lane(side, 0)).join()
    yield "restored: to its first token", again.first() * 1e3, "ms"
    for what in ("goes on in place", "goes on in another lane"):
        side.wait_idle()
        # Another conversation takes the lane that this one had.
        taken = Answer(side, prompt(64), 4000, warm=WARM, **lane(side, 0)) if "another" in what else None
        if taken:
            taken.begun.wait()
        again = Answer(side, text, GOES_ON, **lane(side, 1 if taken else 0)).join()
        yield what + ": to its first token", again.first() * 1e3, "ms"
        yield what + ": between tokens", median_ms(again.gaps()), "ms"
        if taken:
            leave([taken])
        if side.is_ours:
            same(what, first.text, again.text)
    side.wait_idle()
    yield from forked(side, text, first.text)


def forked(side, text, answer):
    """A prompt that shares all but FORK tokens with a conversation that is being answered."""
    living = Answer(side, text, 4000, warm=100)
    living.begun.wait()
    began = time.monotonic()
    fork = Answer(side, text[:-FORK] + prompt(FORK), 2).join()
    ended = time.monotonic()
    leave([living])
    yield "fork of a living one: to its first token", fork.first() * 1e3, "ms"
    yield "its source: median gap before", median_ms(living.gaps(living.at[1], began)), "ms"
    yield "its source: worst gap meanwhile", max(living.gaps(began - 0.5, ended)) * 1e3, "ms"
    if side.is_ours:
        same("the fork's source", answer, living.text)
    side.wait_idle()


def beside(side, tokens):
    """One is answered while another's prompt is read."""
    stream = Answer(side, prompt(64), 1 << 16, warm=WARM)
    stream.begun.wait()
    time.sleep(1)  # of undisturbed tokens
    began = time.monotonic()
    reader = Answer(side, prompt(tokens), 1).join()
    leave([stream])
    during = stream.gaps(began, reader.sent + reader.first())
    if not during:
        sys.exit("the stream ended before the prompt was read: this model is too fast for the row")
    yield "median gap before", median_ms(stream.gaps(stream.at[1], began)), "ms"
    yield "median gap meanwhile", median_ms(during), "ms"
    yield "worst gap meanwhile", max(during) * 1e3, "ms"
    yield "prompt", tokens / reader.first(), "tokens/s"
    side.wait_idle()


# ---- save and restore


def timed(act):
    began = time.monotonic()
    value = act()
    return began, time.monotonic(), value


def saved(side):
    """The conversation of the row, while another is answered; afterwards it is as it was."""
    stream = Answer(side, prompt(64), 1 << 16, warm=WARM, **lane(side, 1))
    stream.begun.wait()
    name = f"saved-{side.port}"
    path = side.saves / name
    try:
        if side.is_ours:
            row = longest(side)
            save = timed(lambda: poolctl(side, "save", row, path))
            poolctl(side, "drop", row)
            restore = timed(lambda: poolctl(side, "restore", path))
        else:
            save = timed(lambda: post(side.port, "/slots/0?action=save", {"filename": name}))
            post(side.port, "/slots/0?action=erase", {})
            restore = timed(lambda: post(side.port, "/slots/0?action=restore", {"filename": name}))
        size = path.stat().st_size
    finally:
        path.unlink(missing_ok=True)
    leave([stream])
    for what, (began, ended, _) in (("save", save), ("restore", restore)):
        yield what, size / (ended - began) / 1e9, "GB/s"
        yield what + ": worst gap of another", max(stream.gaps(began - 0.2, ended)) * 1e3, "ms"
    side.wait_idle()


# ---- what only Cistern has rows of


def start(side):
    """A worker's exec to its READY, the weights in the page cache and the pool made; of the peer its
    exec to its answer that it is ready."""
    if side.is_ours:
        stage = side.stages - 1
        side.workers[stage].stop()
        began = time.monotonic()
        side.start_worker(stage)
    else:
        side.__exit__()
        began = time.monotonic()
        side.__enter__()
    yield "exec to ready", time.monotonic() - began, "s"
    if side.is_ours:
        side.wait_healthy()


def move(side, tokens):
    """In the middle of its answer a conversation goes on in the other pipeline."""
    text = prompt(tokens)
    alone = Answer(side, text, 256).join()
    side.wait_idle()
    stream = Answer(side, text, 256, warm=WARM)
    stream.begun.wait()
    listed = poolctl(side, "conversations")["conversations"]
    row = max((r for r in listed if r["state"] == "active"), key=lambda r: r["tokens"])
    began = time.monotonic()
    poolctl(side, "move", f"{row['row']}:{row['generation']}", "--pipeline", 1 - row["pipeline"])
    stream.join()
    same("moved", alone.text, stream.text)
    if side.metric("cistern_moves_total") < 1:
        sys.exit("nothing moved: the answer was over")
    yield "median gap", median_ms(stream.gaps()), "ms"
    yield "worst gap: the move", max(stream.gaps(began - 0.1)) * 1e3, "ms"
    yield "tokens computed again", side.metric("cistern_reread_tokens"), "tokens"


def long_pool(side, tokens, n=1024):
    """Four prompts at once, in a pool that holds them barely, with a fifth conversation cached: that
    gives back, and so does the youngest when the answers grow. All answers as alone."""
    texts = [prompt(tokens) for _ in range(4)]
    alone = []
    for text in texts:
        alone.append(Answer(side, text, n).join())
        side.wait_idle()
        poolctl(side, "drop", "--all")
    yield "alone: prompt", tokens / statistics.median(a.first() for a in alone), "tokens/s"
    held = prompt(tokens)
    Answer(side, held, 1).join()
    side.wait_idle()
    began = time.monotonic()
    crowd = join([Answer(side, text, n) for text in texts])
    seconds = time.monotonic() - began
    for a, b in zip(alone, crowd):
        same("in the crowd", a.text, b.text)
        if len(a.at) != len(b.at):
            sys.exit(f"an answer has {len(b.at)} tokens in the crowd and {len(a.at)} alone")
    yield "together: all answered", seconds, "s"
    yield "cells of cached ones given back", evicted(side, "cached"), "cells"
    yield "cells of waiting ones given back", evicted(side, "waiting"), "cells"
    yield "running ones that made room", side.metric("cistern_given_back_total"), "conversations"


def evicted(side, rank):
    return side.metric("cistern_evicted_cells_total", rank=rank)


# ---- what a row needs


class Need:
    """context: of one conversation; lanes; host: K/V in host memory alone; cells: of the pool."""

    def __init__(self, lanes, context, cells=0, host=False, pipelines=1, ours_only=False, **settings):
        self.lanes, self.context, self.host = lanes, -(-context // 256) * 256, host
        self.cells = cells or self.context * (lanes + 1) + 512
        self.pipelines, self.ours_only, self.settings = pipelines, ours_only, settings

    def joined(self, other, most):
        """What serves both rows, or None."""
        one = Need(max(self.lanes, other.lanes), max(self.context, other.context), host=self.host)
        plain = all(n.pipelines == 1 and not n.ours_only for n in (self, other))
        return one if plain and self.host == other.host and one.cells <= most else None


def need_of_decode(lanes, cells, **more):
    return Need(lanes, cells + slack(lanes, cells), **more)


def need_of_pool(tokens, answer=1024):
    """Four prompts and three quarters of what their answers come to."""
    context = -(-(tokens + answer) // 256) * 256
    cells = 4 * tokens + 3 * answer
    return Need(4, context, cells=cells, ours_only=True, when_dry="wait")


ROWS = {
    "decode": (decode, need_of_decode),
    "host": (decode, lambda lanes, cells: need_of_decode(lanes, cells, host=True)),
    "prompt": (prompts, lambda tokens, n=1: Need(n, tokens + 256)),
    "long": (long, lambda tokens: Need(2, tokens + 4352, cells=3 * (tokens + 4352))),
    "beside": (beside, lambda tokens: Need(2, max(tokens, 1 << 16) + 512)),
    "start": (start, lambda: Need(4, 4096)),
    "move": (move, lambda tokens: Need(2, tokens + 512, pipelines=2, ours_only=True)),
    "long_pool": (long_pool, need_of_pool),
}


def parse(row):
    """(its function, its numbers, what it needs)"""
    name, *numbers = row.split(":")
    if name not in ROWS:
        sys.exit(f"{row}: no such row; there are {', '.join(ROWS)}")
    numbers = [int(n) for n in numbers]
    function, need = ROWS[name]
    return function, numbers, need(*numbers)
