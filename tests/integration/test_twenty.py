# SPDX-License-Identifier: MIT
"""Twenty streams at once through the whole chain, more than lanes, one of them to a client that reads
nothing until the others have all they asked for: everybody gets what he would have got alone."""
import threading

from harness import Cistern
from test_equal import SMALL, words

STREAMS = 20
SLOW = 7  # among the first that have a lane
SLOW_TOKENS = 1200  # some 200 KiB of events, which wait in the gateway
FIELDS = {"temperature": 0, "ignore_eos": True}


def chats():
    """(content, tokens); each differs from its first word on."""
    for i in range(STREAMS):
        yield f"{i} {words(5 + i * 3, i)}", SLOW_TOKENS if i == SLOW else 20 + 7 * i


def test_one_that_reads_late_holds_nobody(tiny_model):
    with Cistern(tiny_model, settings=SMALL).start() as c:
        streams = [c.stream(content, max_tokens=n, **FIELDS) for content, n in chats()]
        readers = [
            threading.Thread(target=s.read_all) for i, s in enumerate(streams) if i != SLOW
        ]
        for t in readers:
            t.start()
        for t in readers:
            t.join()
        assert all(s.done for i, s in enumerate(streams) if i != SLOW)
        assert streams[SLOW].response is None, "it has read nothing yet"
        streams[SLOW].read_all()
        for (content, n), s in zip(chats(), streams, strict=True):
            alone = c.chat(content, max_tokens=n, **FIELDS)
            assert s.done and s.error is None and s.finish_reason == "length"
            assert s.usage["completion_tokens"] == n
            assert s.text == alone["choices"][0]["message"]["content"]
