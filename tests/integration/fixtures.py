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


def make_tiny(folder, seed):
    path = folder / f"tiny-{seed}.gguf"
    command = [sys.executable, ROOT / "tests/data/make_tiny.py", path, "--mix", "mixed"]
    command += ["--layers", "4", "--context", "2048", "--seed", str(seed)]
    subprocess.run(command, check=True)
    return path


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory):
    """A random model of the demo model's kind, small enough for every story."""
    return make_tiny(tmp_path_factory.mktemp("model"), 1)


@pytest.fixture(scope="session")
def other_tiny_model(tmp_path_factory):
    """The same shape, other weights."""
    return make_tiny(tmp_path_factory.mktemp("model"), 2)
