# SPDX-License-Identifier: MIT
"""What a killed run of tests left on tmpfs is removed by the next one, and nothing of a living one."""
import fcntl
import os

import pytest

from harness import POOLD_LOCKS, remove_leftovers

pytestmark = pytest.mark.cpu("the harness's own")

NOBODY = 1 << 30  # no process has this number


def folder(base, owner, name):
    path = base / f"cistern-test-{owner}-{name}"
    for lock in POOLD_LOCKS:
        (path / lock).parent.mkdir(parents=True, exist_ok=True)
        (path / lock).touch()
    return path


@pytest.mark.parametrize("lock", [".", *POOLD_LOCKS])
def test_leftovers_of_the_dead_alone_are_removed(tmp_path, lock):
    """Whoever lives and can't be seen from here has a lock there."""
    left, held = folder(tmp_path, NOBODY, "left"), folder(tmp_path, NOBODY, "held")
    ours = folder(tmp_path, os.getpid(), "ours")
    fd = os.open(held / lock, os.O_RDONLY)
    fcntl.flock(fd, fcntl.LOCK_EX)
    remove_leftovers(tmp_path)
    assert not left.exists() and held.exists() and ours.exists()
    os.close(fd)
    remove_leftovers(tmp_path)
    assert not held.exists() and ours.exists()
