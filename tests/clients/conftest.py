# SPDX-License-Identifier: MIT
import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "integration"))

import pytest  # noqa: E402
from fixtures import *  # noqa: E402,F401,F403
from harness import Cistern  # noqa: E402
from test_equal import SMALL  # noqa: E402


@pytest.fixture(scope="module")
def c(tiny_model):
    settings = {**SMALL, "model.name": "tiny", "gateway.queue": 64}
    with Cistern(tiny_model, settings=settings).start() as c:
        yield c
