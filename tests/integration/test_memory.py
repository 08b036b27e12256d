# SPDX-License-Identifier: MIT
"""pool.memory = cuda: arenas without a name, which end with the last program that has them. Told by
CPU workers over a libcuda.so.1 of memfds (tests/doubles/fake_cuda.c); on a machine with a GPU the
same stories run over the driver's with CISTERN_DEVICE=cuda."""
import json
import os
import signal
import subprocess

import pytest

from harness import BUILD, CARDS, Cistern, Died, eventually
from test_equal import cached, words

# What the programs have more in their environment.
DRIVER = {} if CARDS else {"LD_LIBRARY_PATH": str(BUILD / "tests/doubles")}
SETTINGS = {"pool.memory": "cuda", "pool.cells": 4096, "pool.chunk": 32, "worker.lanes": 2,
            "pool.attach_ms": 20000}
TEXT = words(60, 5)
FIELDS = {"max_tokens": 12, "temperature": 0, "seed": 1}


class Cuda(Cistern):
    def __init__(self, model, stages=1, settings=None):
        super().__init__(model, stages, {**SETTINGS, **(settings or {})})

    def launch(self, program, *arguments, name=None, **environment):
        return super().launch(program, *arguments, name=name, **{**DRIVER, **environment})

    def arenas(self):
        return sorted(p.name for p in self.memory.iterdir() if p.name.startswith("arena"))

    def wait_back(self, times):
        """The gateway has heard of so many restarts of the pipeline: before that it may send to who is
        gone."""
        said = "pipeline 0: all stages are there"
        eventually(lambda: self.gateway.text().count(said) > times, "the gateway knows the new worker")
        self.wait_healthy()

    def ask(self):
        answer = self.chat(TEXT, **FIELDS)
        return answer["choices"][0]["message"]["content"], cached(answer)

    def poolctl(self, *arguments):
        command = [BUILD / "poold/poolctl", "--config", self.write_config(), *map(str, arguments)]
        done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, **DRIVER})
        assert done.returncode == 0, done.stderr
        return done.stdout


@pytest.mark.parametrize("stages", [1, 2])
def test_poold_finds_the_memory_with_its_workers(tiny_model, stages):
    with Cuda(tiny_model, stages).start() as c:
        assert c.arenas() == []
        text, _ = c.ask()
        assert json.loads(c.poolctl("status", "--json"))["pool"]["memory"] == "cuda"
        for _ in range(3):
            c.poold.kill()
            c.start_poold()
            again, found = c.ask()
            assert again == text and found >= 60
        # The last answer may have come before the last stage did.
        eventually(lambda: c.poold.text().count("handed back") == stages, "all stages are back")
        assert "lost" not in c.poold.text()


@pytest.mark.parametrize("stages", [1, 2])
def test_a_worker_finds_the_memory_with_poold(tiny_model, stages):
    with Cuda(tiny_model, stages).start() as c:
        text, _ = c.ask()
        for stage in range(stages):
            c.workers[stage].kill()
            c.start_worker(stage)
            c.wait_back(stage + 1)
            again, found = c.ask()
            assert again == text and found >= 60


def loaded(c):
    """Whether a worker that poold has given no place yet has its weights."""
    processes = json.loads(c.poolctl("status", "--json"))["processes"]
    return any(p.get("loaded_percent") == 100 and "stage" not in p for p in processes)


@pytest.mark.parametrize("comes_back", [True, False])
def test_who_comes_first_waits_for_who_has_the_memory(tiny_model, comes_back):
    """poold and one pipeline's worker die; the other pipeline's, which alone has the arena, is late, or
    never comes. Until that is sure the arena must not be taken for lost."""
    with Cuda(tiny_model, settings={"pool.attach_ms": 60000 if comes_back else 2000}).start() as c:
        text, _ = c.ask()
        holder = c.launch("workerd", "--pipeline", 1, "--stage", 0)
        c.wait_ready(holder)
        holder.freeze()
        c.workers[0].kill()
        c.poold.kill()
        c.start_poold()
        c.start_worker(0, wait=False)
        if comes_back:
            eventually(lambda: loaded(c), "the new worker waits")
            holder.thaw()
        c.wait_ready(c.workers[0])
        c.wait_back(1)
        again, found = c.ask()
        assert again == text and bool(found) == comes_back
        assert ("lost" in c.poold.text()) != comes_back
        if comes_back:
            holder.stop()
        else:
            assert holder.wait() == -signal.SIGKILL


def test_with_everybody_dead_the_pool_says_that_it_is_empty(tiny_model):
    with Cuda(tiny_model).start() as c:
        text, _ = c.ask()
        c.poold.kill()
        c.workers[0].kill()
        c.start_poold()
        c.start_worker(0)
        c.wait_back(1)
        again, found = c.ask()
        assert again == text and found == 0
        assert "1 conversations are lost: pool.memory = cuda" in c.poold.text()


def test_save_and_restore(tiny_model):
    with Cuda(tiny_model).start() as c:
        text, _ = c.ask()
        row, = json.loads(c.poolctl("conversations", "--json"))["conversations"]
        name = f"{row['row']}:{row['generation']}"
        path = c.folder / "saved"
        c.poolctl("save", name, path)
        c.poolctl("drop", name)
        c.poolctl("restore", path)
        again, found = c.ask()
        assert again == text and found >= 60


def test_another_memory_begins_anew(tiny_model):
    with Cuda(tiny_model, settings={"pool.memory": "shm"}).start() as c:
        text, _ = c.ask()
        assert c.arenas() == ["arena-0"]
        for memory, files in (("cuda", []), ("shm", ["arena-0"])):
            c.poold.kill()
            c.settings["pool.memory"] = memory
            c.start_poold()
            said = "pool.memory is not what it was"
            assert said in c.poold.text()
            c.wait_healthy()
            again, found = c.ask()
            assert (again, found) == (text, 0) and c.arenas() == files


@pytest.mark.cpu("a real driver does not fail when asked to")
def test_without_a_driver_poold_says_so(tiny_model):
    with Cuda(tiny_model) as c:
        p = c.launch("poold", CISTERN_FAKE_CUDA="none")
        assert p.wait() == 1
        assert "pool.memory = cuda: the NVIDIA driver says: no CUDA-capable device" in p.text()
        assert "set pool.memory = shm" in p.text()
        p = c.launch("poold", LD_LIBRARY_PATH="/nowhere")
        if p.wait() == 1:  # this machine has no driver of its own
            assert "there is no NVIDIA driver here" in p.text()


@pytest.mark.cpu("a real driver does not fail when asked to")
def test_without_enough_memory_all_are_told(tiny_model):
    with Cuda(tiny_model) as c:
        c.poold = c.launch("poold", CISTERN_FAKE_CUDA="small")
        c.wait_ready(c.poold)
        worker = c.launch("workerd", "--stage", 0)
        with pytest.raises(Died, match="out of memory; lower pool.cells, or set pool.memory = shm"):
            c.wait_ready(worker)
        assert c.poold.wait() == 1
