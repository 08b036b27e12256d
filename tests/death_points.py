#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Fails when a store of poold to shared memory has no death point (common/death.h), or a commit none
behind it.

A store is a line that calls shm_store_*() or __atomic_store_n(), or that assigns to, or copies into,
memory reached through a pointer to one of pool_shm.h's structs or through the segment's own pointers.
A result parameter, by convention named ret, is the caller's memory. The line before must be
DEATH_POINT("..."), its name used once. A commit is a store that makes earlier ones count: of a row's
version, a pipeline's life and number of stages, a process's incarnation, a file's magic, poold's own
incarnation; the line after it must be a point too.
"""
import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parents[1]
STRUCTS = "header|process|pipeline|row|chunk|tokens|page|arena"
DECLARED = re.compile(rf"(?<!const )\bstruct pool_(?:{STRUCTS}) \*(\w+)")
WORDS = re.compile(r"\buint64_t \*(\w+) = segment_table\(|, \*(\w+) = segment_table\(")
REACHED = (
    r"(?:->h->|(?<!\bret)->(?:rows|processes|pipelines|chunks|tables|body)\[|->page\[.*\]->"
    r"|segment_table\(|\*\w+->h\b)"
)
ASSIGNED = re.compile(r"^\s*(?:if \([^;]*\) )?([\w*>.\-\[\]() &+]*?[\w\])])\s*(?:[+\-|&^]?=)(?!=)")
COPIED = re.compile(r"\b(?:memcpy|memset|process_boot_id)\((?:\(char \*\))?&?([^,)]*)")
STEPPED = re.compile(r"(?:\+\+|--)\*?([\w>.\-\[\]]+)|([\w>.\-\[\]]+)(?:\+\+|--);")
STORED = re.compile(r"\b(?:shm_store_u\d+|__atomic_store_n|__atomic_fetch_\w+)\(&?(.*), ")
POINT = re.compile(r'^\s*DEATH_POINT\("([a-z-]+)"\);')
COMMIT = re.compile(r"(?:->|\.)(?:version|life|n_stages|incarnation|magic|poold_incarnation)\b")
# Memory of this process alone, shared between its threads.
PRIVATE = re.compile(r"^a->(?:next|filled|failed)\b")


def blank(text):
    """The same lines without comments."""
    return re.sub(r"/\*.*?\*/", lambda m: re.sub(r"[^\n]", " ", m.group()), text, flags=re.S)


def functions(lines):
    """(first, end) of the bodies at file level."""
    start = None
    for i, line in enumerate(lines):
        if line.startswith("{"):
            start = i
        elif line.startswith("}") and start is not None:
            yield start, i
            start = None


def shared_names(head, body):
    names = {n for n in DECLARED.findall(head + body) if n != "ret"}
    names |= {a or b for a, b in WORDS.findall(body)}
    return names


def target(line, names):
    """What a line stores to, when that is shared memory."""
    found = STORED.search(line)
    if found:
        return None if PRIVATE.match(found.group(1)) else found.group(1)
    candidates = [m for p in (ASSIGNED, COPIED) for m in p.findall(line)]
    candidates += [a or b for a, b in STEPPED.findall(line)]
    for left in candidates:
        root = re.match(r"\s*\(?(\*?)(\w+)(.*)", left)
        if not root or (len(left.split()) > 1 and "[" not in left and not left.startswith("*")):
            continue
        through = root.group(1) == "*" or root.group(3).startswith(("->", "["))
        if re.search(REACHED, left) or (root.group(2) in names and through):
            return left.strip()
    return None


def look_at(path, faults):
    lines = blank(path.read_text()).splitlines()
    n_stores = 0
    for start, end in functions(lines):
        head = lines[start - 1] if start < 2 else "\n".join(lines[max(0, start - 4) : start])
        names = shared_names(head.rpartition("}")[2], "\n".join(lines[start:end]))
        for i in range(start, end):
            to = target(lines[i], names)
            if not to:
                continue
            n_stores += 1
            where = f"{path.relative_to(ROOT)}:{i + 1}: {lines[i].strip()}"
            if not POINT.match(lines[i - 1]):
                faults.append(f"{where}\n    stores to shared memory; no DEATH_POINT in the line before")
            last = next(k for k in range(i, end) if ";" in lines[k] and depth(lines, i, k) == 0)
            if COMMIT.search(to) and not POINT.match(lines[last + 1]):
                faults.append(f"{where}\n    is a commit; no DEATH_POINT in the line behind it")
    return n_stores


def depth(lines, first, last):
    text = "".join(lines[first : last + 1])
    return sum(text.count(c) for c in "({[") - sum(text.count(c) for c in ")}]")


def main():
    faults, names, n_stores = [], [], 0
    for path in sorted((ROOT / "poold").glob("*.c")):
        if path.name.startswith("poolctl"):  # a tool: it is not poold that dies there
            continue
        n_stores += look_at(path, faults)
        names += [m.group(1) for m in map(POINT.match, path.read_text().splitlines()) if m]
    faults += [f"{n}: more than one point has this name" for n in set(names) if names.count(n) > 1]
    print(*faults, f"{n_stores} stores, {len(names)} death points", sep="\n")
    return 1 if faults or not n_stores else 0


if __name__ == "__main__":
    sys.exit(main())
