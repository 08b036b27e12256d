# SPDX-License-Identifier: MIT
import json
import os
import pathlib
import subprocess
import sys

import pytest

from harness import BUILD, CARDS, ROOT, remove_leftovers


def pytest_configure(config):
    config.addinivalue_line(
        "markers", "demo_model: needs the demo model, too slow for builds with sanitizers"
    )
    config.addinivalue_line(
        "markers", "release_build: of what sanitizers replace, as mlock"
    )
    config.addinivalue_line(
        "markers", "death_points: stops or hangs a worker at a named point (-Ddeath_points=true)"
    )
    config.addinivalue_line("markers", "device: needs a GPU (CISTERN_DEVICE=cuda)")
    config.addinivalue_line("markers", "cpu(why): not told where the workers compute on GPUs")


def pytest_collection_modifyitems(config, items):
    """Stories of cards are told where there are some, and those that say nothing of one elsewhere."""
    unwanted = "cpu" if CARDS else "device"
    out = [item for item in items if item.get_closest_marker(unwanted)]
    if out:
        config.hook.pytest_deselected(items=out)
        items[:] = [item for item in items if item not in out]


def pytest_generate_tests(metafunc):
    """CISTERN_REPEAT: how often each story is told; what depends on a moment finds others."""
    times = int(os.environ.get("CISTERN_REPEAT", "1"))
    if times > 1:
        metafunc.fixturenames.append("repetition")
        metafunc.parametrize("repetition", range(times))


@pytest.fixture(scope="session", autouse=True)
def nothing_left():
    remove_leftovers()


@pytest.fixture(scope="session")
def demo_model():
    path = pathlib.Path(
        os.environ.get("CISTERN_MODEL")
        or pathlib.Path(os.environ.get("XDG_CACHE_HOME", pathlib.Path.home() / ".cache"))
        / "cistern/SmolLM2-135M-Instruct.Q4_1.gguf"
    )
    assert path.exists(), f"{path} is missing: ./demo fetches it"
    return path


def make_tiny(folder, *shape):
    path = folder / "tiny.gguf"
    command = [sys.executable, ROOT / "tests/data/make_tiny.py", path, "--mix", "mixed", *shape]
    subprocess.run(command, check=True)
    return path


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory):
    """A random model of the demo model's kind: 4 layers, a context of 2048, a token a byte."""
    return make_tiny(tmp_path_factory.mktemp("tiny"))


@pytest.fixture(scope="session")
def other_tiny_model(tmp_path_factory):
    """The same shape, other weights."""
    return make_tiny(tmp_path_factory.mktemp("other"), "--seed", "2")


def has_sanitizers():
    options = json.loads((BUILD / "meson-info/intro-buildoptions.json").read_text())
    return any(o["name"] == "b_sanitize" and o["value"] not in ("none", []) for o in options)


@pytest.fixture(scope="session")
def slow_model(tmp_path_factory):
    """Wide enough that plain C takes some milliseconds a token: a story has the time to kill.
    Sanitizers make a narrower one as slow, and a card one of many layers: it is fast, but each of its
    kernels is to be begun."""
    if CARDS:
        return make_tiny(tmp_path_factory.mktemp("slow"), "--layers", "32")
    heads, kv_heads, ff = ("4", "2", "384") if has_sanitizers() else ("8", "4", "768")
    shape = ("--heads", heads, "--kv-heads", kv_heads, "--head-dim", "32", "--ff", ff)
    return make_tiny(tmp_path_factory.mktemp("slow"), *shape)
