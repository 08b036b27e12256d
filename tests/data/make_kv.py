#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Writes kv_codes.json: groups of values, and what proto/kv_block.h says is kept of them.

  make_kv.py OUT.json

Every step is made in exact fractions and rounded once, to nearest and to even, so nothing here shares
arithmetic with the kernels. Values are float32, written as their bits; a scale is a half's bits; codes
are as they are kept (those of 4 bits plus 8).
"""
import json, random, struct, sys
from fractions import Fraction

HALF_MAX = 65504


def nearest(x, digits, least):
    """x as a binary float of so many digits whose smallest step is 2^least."""
    if x == 0:
        return Fraction(0)
    e = abs(x.numerator).bit_length() - x.denominator.bit_length()
    if abs(x) < Fraction(2) ** e:
        e -= 1
    step = Fraction(2) ** max(e - digits + 1, least)
    return round(x / step) * step


def f32(x):
    return nearest(x, 24, -149)


def f16(x):
    return nearest(max(min(x, Fraction(HALF_MAX)), Fraction(-HALF_MAX)), 11, -24)


def kept(values, bits):
    """(scale, codes) of a group of fractions."""
    if bits == 8:
        d, low, high, add = f16(f32(max(abs(v) for v in values) / 127)), -127, 127, 0
    else:
        most, least = max(values), min(values)
        d, low, high, add = f16(f32((most if most >= -least else least) / -8)), -8, 7, 8
    r = f32(1 / d) if d else Fraction(0)
    return d, [max(low, min(high, round(v * r))) + add for v in values]


def bits_of(v):
    return struct.unpack("<I", struct.pack("<f", v))[0]


def single(v):
    return struct.unpack("<f", struct.pack("<f", v))[0]


def cases():
    rng = random.Random(7)
    spread = lambda n, size: [single(rng.gauss(0, size)) for _ in range(n)]
    for size in (1.0, 0.01, 30.0, 1e-4):
        yield "values about %g" % size, spread(64, size)
    for n in (16, 32, 48):
        yield "a short group of %d" % n, spread(n, 1.0)
    yield "one value far from the others", spread(63, 0.1) + [-25.0]
    yield "the middle of two codes, of 8 bits", [127.0 * 4] + [(i - 31) * 4 + 2.0 for i in range(63)]
    yield "the middle of two codes, of 4 bits", [-8.0 * 4] + [(i % 16 - 8) * 4 + 2.0 for i in range(63)]
    yield "two largest of either sign", [3.0, -3.0] + spread(62, 0.5)
    yield "two largest of either sign, turned", [-3.0, 3.0] + spread(62, 0.5)
    yield "positive alone", [abs(v) for v in spread(64, 1.0)]
    yield "negative alone", [-abs(v) for v in spread(64, 1.0)]
    yield "zeros", [0.0] * 64
    yield "zeros of either sign", [0.0, -0.0] * 8
    yield "a scale that is no normal half", spread(64, 1e-3 / 300)
    yield "a scale of one step or two", spread(64, 2e-6)
    yield "a scale under half a step", spread(64, 1e-8)
    yield "values that are no normal floats", [single(v * 1e-40) for v in range(64)]
    yield "a scale past the largest half", spread(64, 3e7)
    yield "the largest floats", [3.4e38, -3.4e38] + spread(62, 1e38)


def main():
    out = []
    for name, values in cases():
        values = [single(v) for v in values]
        case = {"name": name, "values": [bits_of(v) for v in values]}
        for bits in (8, 4):
            d, codes = kept([Fraction(v) for v in values], bits)
            half = struct.unpack("<H", struct.pack("<e", float(d)))[0]
            case["bits%d" % bits] = {"scale": half, "codes": codes}
        out.append(case)
    with open(sys.argv[1], "w") as f:
        f.write("[\n" + ",\n".join(map(json.dumps, out)) + "\n]\n")


if __name__ == "__main__":
    main()
