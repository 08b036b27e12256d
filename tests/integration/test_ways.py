# SPDX-License-Identifier: MIT
"""The way of activations between stages, where no stage has a GPU: through host memory, and poolctl
status says why. Between GPUs: test_device_stages.py."""
import pytest

from harness import Cistern, eventually
from test_equal import SMALL, solo_rows, words
from test_poolctl import plain, poolctl

pytestmark = pytest.mark.cpu("between CPUs; between cards: test_device_stages.py")

CHAT = (words(30, 4), {"max_tokens": 20, "temperature": 0})


def ways(c):
    """What each stage's worker says of its activations; the last stage sends none."""
    workers = [p for p in poolctl(c, "status")["processes"] if p["role"] == "worker"]
    return {p["stage"]: p["activations"] for p in workers if "activations" in p}


@pytest.mark.parametrize("peer", ["auto", "off"])
def test_cpu_stages_say_why_they_use_host_memory(tiny_model, peer):
    if peer == "auto":
        said = {s: f"through host memory: stage {s + 1}: it is on a CPU" for s in (0, 1)}
    else:
        said = {s: "through host memory: worker.peer = off" for s in (0, 1)}
    with Cistern(tiny_model, 3, {**SMALL, "worker.peer": peer}).start() as c:
        eventually(lambda: ways(c) == said, "the ways are said")
        assert f"activations: {said[1]}" in plain(c, "status")
        c.chat(CHAT[0], **CHAT[1])
        rows = list(c.trace().values())
        # A life later it is said again, by who stayed and by who is new.
        c.workers[1].kill()
        eventually(lambda: 0 not in ways(c), "nothing goes anywhere between lives")
        c.start_worker(1)
        eventually(lambda: ways(c) == said, "the ways are said again")
    assert rows == solo_rows(tiny_model, [CHAT], 1)[0]


def test_a_worker_that_must_reach_its_neighbour_and_cannot_ends(tiny_model):
    with Cistern(tiny_model, settings={**SMALL, "worker.peer": "on"}) as c:
        c.start_poold()
        for stage in (0, 1):
            c.start_worker(stage, wait=False)
        assert c.workers[0].wait() == 1
        assert "worker.peer = on, but stage 1 can't be reached: stage 1: it is on a CPU" in (
            c.workers[0].text()
        )
