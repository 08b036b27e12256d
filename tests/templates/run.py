#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Renders a folder of real chat templates with jinja2 and with ours; both must give equal bytes.

    python3 run.py RENDER FOLDER [NAME ...]

RENDER is the program made of render.c, FOLDER has *.jinja files (llama.cpp's models/templates).
Exit 1 when a text differs, or when one side fails and the other does not.
"""
import json
import pathlib
import subprocess
import sys

from environment import Refused, render
from messages import CONTEXTS

NOW = 1767225600


def ours(program, asks):
    lines = "".join(json.dumps(a) + "\n" for a in asks)
    out = subprocess.run([program], input=lines, capture_output=True, text=True, check=True)
    return [json.loads(line) for line in out.stdout.split("\n") if line]


def agree(theirs, mine):
    if isinstance(theirs, str):
        return mine.get("text") == theirs
    if "error" not in mine:
        return False
    return not isinstance(theirs, Refused) or mine["why"] == str(theirs)[:511]


def first_difference(a, b):
    at = next((i for i, (x, y) in enumerate(zip(a, b)) if x != y), min(len(a), len(b)))
    return f"at {at}: jinja2 {a[max(0, at - 40):at + 40]!r}, ours {b[max(0, at - 40):at + 40]!r}"


def trial(program, path):
    source = path.read_text()
    asks = [{"template": source, "now": NOW, "values": c["values"], "trusted": c["trusted"]}
            for c in CONTEXTS]
    bad, refused = [], 0
    for context, mine in zip(CONTEXTS, ours(program, asks)):
        theirs = render(source, context["values"] | context["trusted"], NOW)
        refused += not isinstance(theirs, str)
        if agree(theirs, mine):
            continue
        if isinstance(theirs, str) and "text" in mine:
            bad.append((context["name"], first_difference(theirs, mine["text"])))
        else:
            bad.append((context["name"], f"jinja2 {theirs!r:.300}, ours {mine!s:.300}"))
    return bad, refused


def main():
    program, folder, names = sys.argv[1], pathlib.Path(sys.argv[2]), sys.argv[3:]
    equal = total = refusals = 0
    for path in sorted(folder.glob("*.jinja")):
        if names and path.stem not in names:
            continue
        bad, refused = trial(program, path)
        total, equal, refusals = total + 1, equal + (not bad), refusals + refused
        for name, what in bad:
            print(f"{path.stem}: {name}: {what}")
    print(f"{equal} of {total} templates equal on all of {len(CONTEXTS)} contexts "
          f"({refusals} refused by both)")
    return equal != total


if __name__ == "__main__":
    sys.exit(main())
