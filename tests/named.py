#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Fails when a document names a test that isn't there. Looks at what stands in backticks in the last
column of tests/REPORTS.md and of ARCHITECTURE.md's table of deaths."""
import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parents[1]


def tests_there():
    names = {"pool_random", "pool_deaths"}  # programs that are one test each (tests/pool)
    for path in ROOT.glob("tests/**/*.py"):
        names.add(path.name)
        names.update(re.findall(r"^(?:async )?def (test_\w+)", path.read_text(), re.M))
    for path in ROOT.glob("tests/**/*.c"):
        names.add(path.stem)
        names.add(path.name)
        names.update(re.findall(r"START_(?:LOOP_)?TEST\((\w+)\)", path.read_text()))
    return names


def tests_named():
    for document in ("tests/REPORTS.md", "ARCHITECTURE.md"):
        for line in (ROOT / document).read_text().splitlines():
            last = line.rstrip("|").rpartition("|")[2] if line.startswith("|") else ""
            for name in re.findall(r"`([\w./]+)`", last):
                if document == "tests/REPORTS.md" or "test_" in name:
                    yield document, name


def main():
    there = tests_there()
    named = list(tests_named())
    lost = [
        f"{document}: no test {name}"
        for document, name in named
        if pathlib.PurePath(name).name not in there and not (ROOT / name).exists()
    ]
    print("\n".join(lost) or f"{len(named)} tests are named and there")
    return 1 if lost or not named else 0


if __name__ == "__main__":
    sys.exit(main())
