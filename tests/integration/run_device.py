#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Runs device_stories.py as a test of the suite `device`: skipped (77) where there is no card.
CISTERN_CARDS: how many there are, instead of what nvidia-smi says; with one, all stages are on it.
More arguments go to pytest."""
import json
import os
import pathlib
import shutil
import subprocess
import sys


def cards():
    if os.environ.get("CISTERN_CARDS"):
        return int(os.environ["CISTERN_CARDS"])
    if not shutil.which("nvidia-smi"):
        return 0
    listed = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True).stdout
    return sum(line.startswith("GPU ") for line in listed.splitlines())


def has_points(build):
    options = json.loads((build / "meson-info/intro-buildoptions.json").read_text())
    return any(o["name"] == "death_points" and o["value"] for o in options)


def main():
    if not cards():
        return 77
    stories = pathlib.Path(__file__).with_name("device_stories.py")
    chosen = [] if has_points(pathlib.Path(os.environ["CISTERN_BUILD"])) else ["-m", "not death_points"]
    command = [sys.executable, "-m", "pytest", "-q", "-s", "-p", "no:cacheprovider", *chosen]
    return subprocess.run([*command, *sys.argv[1:], stories]).returncode


if __name__ == "__main__":
    sys.exit(main())
