# SPDX-License-Identifier: MIT
import os
import pathlib
import subprocess
import sys

import pytest

from harness import ROOT


def pytest_configure(config):
    config.addinivalue_line(
        "markers", "demo_model: needs the demo model, too slow for builds with sanitizers"
    )


@pytest.fixture(scope="session")
def demo_model():
    path = pathlib.Path(
        os.environ.get("CISTERN_MODEL")
        or pathlib.Path(os.environ.get("XDG_CACHE_HOME", pathlib.Path.home() / ".cache"))
        / "cistern/SmolLM2-135M-Instruct.Q4_1.gguf"
    )
    assert path.exists(), f"{path} is missing: ./demo fetches it"
    return path


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory):
    """A random model of the demo model's kind, small enough for every story."""
    path = tmp_path_factory.mktemp("model") / "tiny.gguf"
    subprocess.run([sys.executable, ROOT / "tests/data/make_tiny.py", path], check=True)
    return path
