# SPDX-License-Identifier: MIT
"""The man pages say what the programs do: options, keys and presets as the programs print them, routes
as the gateway's table has them."""
import re
import subprocess

import pytest

from harness import BUILD, ROOT

pytestmark = pytest.mark.cpu("pages")

MAN = ROOT / "deploy/man"
CONF = BUILD / "deploy/man/cistern.conf.5"
DAEMONS = ("poold", "workerd", "gateway")


def says(program, option):
    command = [BUILD / ("poold" if program == "poolctl" else program) / program, option]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def items(page):
    """The words that an entry of a list begins with, without mdoc's macros."""
    for line in page.splitlines():
        if line.startswith(".It "):
            yield re.sub(r"\b(Fl|Cm|Ar|Li|Ns|Op|Pa|No|Dv) ", "", line[4:])


def options_in(page):
    return {f"-{name}" for line in page.splitlines() if line.startswith(".It Fl")
            for name in re.findall(r"Fl (-[a-z-]+)", line)}


@pytest.mark.parametrize("program", DAEMONS)
def test_every_option_of_a_daemon(program):
    printed = set(re.findall(r"^ +(--[a-z-]+)|, (--version)$", says(program, "--help"), re.M))
    printed = {a or b for a, b in printed}
    assert len(printed) >= 5
    assert options_in((MAN / f"{program}.8").read_text()) == printed


def test_every_command_and_option_of_poolctl():
    page = (MAN / "poolctl.1").read_text()
    words = says("poolctl", "--words").split()
    assert len(words) > 15
    for word in words:
        name = word.removeprefix("-")
        assert re.search(rf"(Cm|Fl) {re.escape(name)}\b", page), word


@pytest.mark.parametrize("program", DAEMONS)
def test_every_key_and_preset(program):
    section, help_, keys = "", "", {}
    for line in says(program, "--print-config").splitlines():
        if m := re.fullmatch(r"\[(\w+)\]", line):
            section = m[1]
        elif m := re.fullmatch(r"; ([a-z_]+) = (.*)", line):
            keys[f"{section}.{m[1]}"] = (help_, m[2].strip())
        elif line:
            help_ = line.removeprefix("; ")
    assert len(keys) > 40
    entries = CONF.read_text().split(".It Cm ")[1:]
    page = {}
    for entry in entries:
        name, said, preset, value = entry.splitlines()[:4]
        assert preset == "Preset:"
        page[name] = (said, "" if value == "empty." else value[len(".Li ") : -len(" .")])
    assert page == keys


def test_every_route():
    table = re.findall(r'\{"(GET|POST)", +"(/[^"]*)"', (ROOT / "gateway/routes.c").read_text())
    assert len(table) > 15
    page = [i for i in items((MAN / "gateway.8").read_text()) if re.match("GET|POST", i)]
    assert sorted(page) == sorted(f"{method} {path}" for method, path in table)
