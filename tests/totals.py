#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Adds up what a run of `check` did and prints its last line, "N passed, N failed, N skipped".

FOLDER holds steps.tsv (name, 0 or 1, one line a step that is a test by itself), meson's
*.testlog.json and pytest's *.junit.xml. A unit test program counts with the checks that libcheck
reports, any other program as one. Fails when something failed or was skipped; only tests of the suite
"device" may skip, for want of a device.
"""
import json
import pathlib
import re
import sys
import xml.etree.ElementTree

CHECKS = re.compile(r"^\d+%: Checks: (\d+), Failures: (\d+), Errors: (\d+)", re.M)


class Totals:
    def __init__(self):
        self.passed = self.failed = self.skipped = self.skipped_wrongly = 0

    def add_step(self, line):
        if line.split("\t")[1] == "0":
            self.passed += 1
        else:
            self.failed += 1

    def add_meson(self, test):
        if test["result"] == "SKIP":
            self.skipped += 1
            self.skipped_wrongly += not any(s.endswith("device") for s in test["suite"])
            return
        good = test["result"] == "OK"
        counts = CHECKS.findall(test.get("stdout", ""))
        checks = sum(int(c[0]) for c in counts)
        wrong = sum(int(c[1]) + int(c[2]) for c in counts)
        if not good:
            wrong = max(wrong, 1)  # it ended some other way than by a failed check
        self.failed += wrong
        self.passed += max(checks - wrong, 1 if good else 0)

    def add_pytest(self, suite):
        count = {k: int(suite.get(k, 0)) for k in ("tests", "failures", "errors", "skipped")}
        wrong = count["failures"] + count["errors"]
        self.failed += wrong
        self.skipped += count["skipped"]
        self.skipped_wrongly += count["skipped"]
        self.passed += count["tests"] - wrong - count["skipped"]


def main(folder):
    totals = Totals()
    for line in (folder / "steps.tsv").read_text().splitlines():
        totals.add_step(line)
    for path in folder.glob("*.testlog.json"):
        for line in path.read_text().splitlines():
            totals.add_meson(json.loads(line))
    for path in folder.glob("*.junit.xml"):
        for suite in xml.etree.ElementTree.parse(path).getroot().iter("testsuite"):
            totals.add_pytest(suite)
    if totals.skipped_wrongly:
        print(f"{totals.skipped_wrongly} tests were skipped that need no device: a failure")
    print(f"{totals.passed} passed, {totals.failed} failed, {totals.skipped} skipped")
    return 1 if totals.failed or totals.skipped_wrongly or not totals.passed else 0


if __name__ == "__main__":
    sys.exit(main(pathlib.Path(sys.argv[1])))
