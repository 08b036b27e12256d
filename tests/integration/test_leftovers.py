# SPDX-License-Identifier: MIT
"""What a killed run of tests left on tmpfs is removed by the next one, and nothing of a living one."""
import fcntl
import os
import pathlib
import shutil
import subprocess

import pytest

from harness import remove_leftovers

pytestmark = pytest.mark.cpu("the harness's own")


def folder(owner, name):
    path = pathlib.Path(f"/dev/shm/cistern-test-{owner}-{name}")
    path.mkdir()
    (path / "poold.lock").touch()
    return path


def test_leftovers_of_the_dead_alone_are_removed():
    ended = subprocess.Popen(["true"])
    ended.wait()
    left, held = folder(ended.pid, "left"), folder(ended.pid, "held")
    ours = folder(os.getpid(), "ours")
    try:
        with open(held / "poold.lock") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            remove_leftovers()
            assert not left.exists() and held.exists() and ours.exists()
        remove_leftovers()
        assert not held.exists() and ours.exists()
    finally:
        for path in (left, held, ours):
            shutil.rmtree(path, ignore_errors=True)
