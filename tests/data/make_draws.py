#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Draws of workerd/sampler.c worked out anew, from what sampler.h and its head say: prints the table
of tests/unit/test_sampler.c. Sorts every candidate and sums with Python's own exp, so it shares
no step with the program that could be wrong in both.

    make_draws.py > TABLE
"""
import math

VOCAB = 1000
MASK = (1 << 64) - 1
WAYS = [  # temperature, top_p, min_p, top_k
    (1.0, 1.0, 0.0, 0),
    (0.5, 1.0, 0.0, 0),
    (1.75, 1.0, 0.0, 0),
    (1.0, 0.875, 0.0, 0),
    (0.75, 0.5, 0.0, 0),
    (1.0, 1.0, 0.03125, 0),
    (1.0, 0.9375, 0.0625, 0),
    (1.25, 1.0, 0.0, 20),
    (1.25, 0.75, 0.125, 100),
]
DRAWS = [(seed, pos) for seed in (0, 7, 2**63 + 11) for pos in (0, 1, 500, 70000)]


def row():
    return [(i * 619 % VOCAB) / 128 - 4 for i in range(VOCAB)]


def mixed(v):
    v = (v ^ v >> 30) * 0xBF58476D1CE4E5B9 & MASK
    v = (v ^ v >> 27) * 0x94D049BB133111EB & MASK
    return v ^ v >> 31


def uniform(seed, pos):
    return (mixed(mixed(seed) + (pos + 1) * 0x9E3779B97F4A7C15 & MASK) >> 11) * 2.0**-53


def kept(logits, top_p, min_p, top_k):
    """The ids that may be drawn: of a filtered row the likeliest first."""
    order = sorted(range(VOCAB), key=lambda i: (-logits[i], i))
    if not top_k and top_p == 1 and min_p == 0:
        return range(VOCAB)
    order = order[: top_k or VOCAB]
    weight = [math.exp(logits[i] - logits[order[0]]) for i in order]
    share, n = top_p * math.fsum(weight), len(order)
    if top_p < 1:
        n = next(k for k in range(1, n + 1) if math.fsum(weight[:k]) >= share)
    if min_p > 0:
        n = min(n, sum(w >= min_p for w in weight))
    return order[:n]


def draw(logits, temperature, u, ids):
    most = max(logits)
    weight = [math.exp((logits[i] - most) / temperature) for i in ids]
    want, total = u * math.fsum(weight), 0.0
    for i, w in zip(ids, weight):
        total += w
        assert abs(want - total) > 1e-9, "too near to a border: rounding would decide"
        if want < total:
            return i
    raise AssertionError


def main():
    logits = row()
    for temperature, top_p, min_p, top_k in WAYS:
        ids = kept(logits, top_p, min_p, top_k)
        drawn = [draw(logits, temperature, uniform(*d), ids) for d in DRAWS]
        print(f"    {{{{.temperature = {temperature}F, .top_p = {top_p}F, .min_p = {min_p}F, "
              f".top_k = {top_k}}}, {{{', '.join(map(str, drawn))}}}}},")


if __name__ == "__main__":
    main()
