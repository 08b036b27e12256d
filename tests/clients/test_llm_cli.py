# SPDX-License-Identifier: MIT
"""Chats through the command `llm`: a person's own terminal."""
import os
import signal
import subprocess
import sys

import pytest
from harness import eventually
from pool import ACTIVE

PROGRAM = [sys.executable, "-m", "llm"]


@pytest.fixture
def folder(tmp_path, demo):
    """llm's own configuration: our model under the name demo."""
    (tmp_path / "extra-openai-models.yaml").write_text(
        "- model_id: demo\n  model_name: demo\n"
        f'  api_base: "http://127.0.0.1:{demo.port}/v1"\n'
        "- model_id: raw\n  model_name: demo\n  completion: true\n"
        f'  api_base: "http://127.0.0.1:{demo.port}/v1"\n'
    )
    return tmp_path


def llm(folder, *arguments):
    env = {**os.environ, "LLM_USER_PATH": str(folder), "OPENAI_API_KEY": "none"}
    return subprocess.run(
        [*PROGRAM, *arguments], env=env, capture_output=True, text=True, timeout=600, check=False
    )


SAY = ["-m", "demo", "-o", "temperature", "0", "-o", "max_tokens", "12", "Say hello."]


def test_answer_and_stream(folder):
    whole = llm(folder, *SAY, "--no-stream")
    assert whole.returncode == 0 and whole.stdout.strip(), whole.stderr
    assert llm(folder, *SAY).stdout == whole.stdout


def test_goes_on(folder):
    """The conversation that it keeps in its log is sent back."""
    assert llm(folder, *SAY).returncode == 0
    again = llm(folder, "-c", "-o", "max_tokens", "8", "-u", "And again?")
    assert again.returncode == 0, again.stderr
    assert "Token usage" in again.stderr


def test_raw_prompt(folder):
    answer = llm(
        folder, "-m", "raw", "-o", "temperature", "0", "-o", "max_tokens", "6",
        "The capital of France is",
    )
    assert "Paris" in answer.stdout, answer.stderr


def test_errors(folder):
    answer = llm(folder, "-m", "demo", "word " * 4000)
    assert answer.returncode == 1 and "2048" in answer.stderr


def test_interrupted(folder, demo):
    """^C in a terminal."""
    env = {**os.environ, "LLM_USER_PATH": str(folder), "OPENAI_API_KEY": "none"}
    command = [*PROGRAM, "-m", "demo", "-o", "temperature", "0",
               "-o", "max_tokens", "1500", "Write a very long story."]
    with subprocess.Popen(command, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as p:
        assert p.stdout.read(1)
        assert demo.pool().rows(ACTIVE)
        p.send_signal(signal.SIGINT)
        p.communicate(timeout=600)
    eventually(lambda: not demo.pool().rows(ACTIVE), "the lane is free")
