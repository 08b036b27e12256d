#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Writes unicode_tables.h: what Python's str methods know of code points, as ranges.

    python3 make_unicode.py > unicode_tables.h
"""
import sys
import unicodedata

POINTS = [c for c in range(0x110000) if not 0xD800 <= c < 0xE000]


def ranges(test):
    out = []
    for c in POINTS:
        if not test(chr(c)):
            continue
        if out and out[-1][1] == c - 1:
            out[-1][1] = c
        else:
            out.append([c, c])
    return out


def case_ranges(change):
    """[first, last, step, delta] for the code points that become one other."""
    out = []
    for c in POINTS:
        to = change(chr(c))
        if len(to) != 1 or to == chr(c):
            continue
        delta = ord(to) - c
        if out and out[-1][3] == delta:
            first, last, step, _ = out[-1]
            if first == last and c - last <= 2:
                out[-1][1:3] = [c, c - last]
                continue
            if first != last and c - last == step:
                out[-1][1] = c
                continue
        out.append([c, c, 1, delta])
    return out


def table(kind, name, rows, width):
    print(f"static const struct {kind} {name}[] = {{")
    line = "   "
    for row in rows:
        cells = [hex(v) if i < width else str(v) for i, v in enumerate(row)]
        cell = " {" + ",".join(nested(row) if kind == "full" else cells) + "},"
        if len(line) + len(cell) > 98:
            print(line)
            line = "   "
        line += cell
    print(line)
    print("};")


def special(change):
    return [[c] + [ord(t) for t in change(chr(c))] + [0] * (3 - len(change(chr(c))))
            for c in POINTS if len(change(chr(c))) > 1]


def nested(row):
    return [hex(row[0]), "{" + ",".join(map(hex, row[1:])) + "}"]


def main():
    print("/* SPDX-License-Identifier: MIT */")
    print(f"/* Made by make_unicode.py from Unicode {unicodedata.unidata_version}. */")
    print("/* clang-format off */")
    table("span", "printable", ranges(str.isprintable), 2)
    table("span", "alpha", ranges(str.isalpha), 2)
    table("span", "decimal", ranges(str.isdecimal), 2)
    table("span", "cased", ranges(lambda c: c.lower() != c or c.upper() != c or c.title() != c
                                  or unicodedata.category(c) in ("Lu", "Ll", "Lt")), 2)
    for name in ("lower", "upper", "title"):
        table("change", f"to_{name}", case_ranges(getattr(str, name)), 2)
        table("full", f"full_{name}", special(getattr(str, name)), 4)


if __name__ == "__main__":
    sys.exit(main())
