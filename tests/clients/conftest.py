# SPDX-License-Identifier: MIT
import os
import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "integration"))

# What these packages would do over the network when they are imported or used: none of it.
os.environ.update(
    LITELLM_LOCAL_MODEL_COST_MAP="True",
    OPENAI_AGENTS_DISABLE_TRACING="1",
    LANGSMITH_TRACING="false",
    HF_HUB_OFFLINE="1",
)

import pytest  # noqa: E402
from busy import KEY  # noqa: E402
from fixtures import *  # noqa: E402,F401,F403
from harness import Cistern  # noqa: E402
from test_equal import SMALL  # noqa: E402


@pytest.fixture(scope="module")
def c(tiny_model):
    settings = {**SMALL, "model.name": "tiny", "gateway.queue": 64}
    with Cistern(tiny_model, settings=settings).start() as c:
        yield c


@pytest.fixture(scope="session")
def demo(demo_model):
    """The demo model, for what frameworks make of a real one's answers."""
    settings = {"model.name": "demo", "model.context": 2048, "worker.threads": 0}
    with Cistern(demo_model, stages=1, settings=settings).start() as c:
        yield c


@pytest.fixture(scope="session")
def keyed(tiny_model):
    """A gateway that wants a key and lets it have one generation at a time."""
    settings = {**SMALL, "model.name": "tiny", "gateway.keys": KEY, "gateway.key_requests": 1}
    settings["worker.stuck_ms"] = 60000  # tests make one stand still
    with Cistern(tiny_model, settings=settings).start() as c:
        yield c
