#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Writes a llama GGUF with random weights, for measuring speed; the shape of an 8B model unless told
otherwise. Codes are random under one constant scale, norms are 1. The vocabulary is the 256 bytes of
GPT-2's alphabet and names that no text holds: requests bring token ids.

  make_random.py OUT.gguf [--type q8_0|q4_0|f16] [--layers N] [--embd N] [--heads N] [--kv-heads N]
                 [--ff N] [--vocab N]
"""
import argparse
import struct

import numpy

TYPES = {"q8_0": (8, 34, 32, 0.02 / 73.9), "q4_0": (2, 18, 32, 0.02 / 4.61), "f16": (1, 2, 1, 0)}
UNIT = 1 << 20  # blocks of random bytes that are repeated


def text(value):
    data = value.encode()
    return struct.pack("<Q", len(data)) + data


def alphabet():
    """GPT-2's printable characters for the 256 bytes."""
    kept = [*range(33, 127), *range(161, 173), *range(174, 256)]
    moved = iter(range(256, 512))
    return [chr(b if b in kept else next(moved)) for b in range(256)]


def vocabulary(n):
    control, ordinary = 3, 1  # llama.cpp's kinds of tokens
    tokens = ["<|end|>", *alphabet()]
    tokens += [f"<{i}>" for i in range(len(tokens), n)]
    return {"tokenizer.ggml.model": "gpt2", "tokenizer.ggml.pre": "gpt-2",
            "tokenizer.ggml.tokens": tokens[:n], "tokenizer.ggml.merges": ["a b"],
            "tokenizer.ggml.token_type": [control] + [ordinary] * (n - 1),
            "tokenizer.ggml.eos_token_id": 0}


def entry(key, value):
    name = text(key)
    if isinstance(value, str):
        return name + struct.pack("<I", 8) + text(value)
    if isinstance(value, list):
        kind = 5 if isinstance(value[0], int) else 8
        items = (struct.pack("<i", v) if kind == 5 else text(v) for v in value)
        return name + struct.pack("<IIQ", 9, kind, len(value)) + b"".join(items)
    if isinstance(value, float):
        return name + struct.pack("<If", 6, value)
    return name + struct.pack("<II", 4, value)


def random_blocks(kind):
    _, size, values, scale = TYPES[kind]
    draw = numpy.random.default_rng(1)
    if values == 1:
        return (draw.standard_normal(UNIT) * 0.02).astype("<f2").tobytes()
    blocks = draw.integers(0, 256, (UNIT, size), dtype=numpy.uint8)
    blocks[:, :2] = numpy.frombuffer(numpy.float16(scale).tobytes(), dtype=numpy.uint8)
    return blocks.tobytes()


def main():
    p = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    p.add_argument("out")
    p.add_argument("--type", default="q8_0", choices=TYPES)
    for name, preset in (("layers", 32), ("embd", 4096), ("heads", 32), ("kv-heads", 8),
                         ("ff", 14336), ("vocab", 128256), ("ctx", 262144)):
        p.add_argument("--" + name, type=int, default=preset)
    a = p.parse_args()
    head_dim = a.embd // a.heads
    meta = {"general.architecture": "llama", "general.name": "random-" + a.type,
            "llama.context_length": a.ctx, "llama.embedding_length": a.embd,
            "llama.block_count": a.layers, "llama.feed_forward_length": a.ff,
            "llama.attention.head_count": a.heads, "llama.attention.head_count_kv": a.kv_heads,
            "llama.rope.dimension_count": head_dim, "llama.rope.freq_base": 500000.0,
            "llama.attention.layer_norm_rms_epsilon": 1e-5, "llama.vocab_size": a.vocab, **vocabulary(a.vocab)}
    kv = a.kv_heads * head_dim
    tensors = [("token_embd.weight", a.vocab, a.embd)]
    for i in range(a.layers):
        tensors += [("blk.%d.%s.weight" % (i, n), r, c) for n, r, c in (
            ("attn_norm", 0, a.embd), ("attn_q", a.embd, a.embd), ("attn_k", kv, a.embd),
            ("attn_v", kv, a.embd), ("attn_output", a.embd, a.embd), ("ffn_norm", 0, a.embd),
            ("ffn_gate", a.ff, a.embd), ("ffn_up", a.ff, a.embd), ("ffn_down", a.embd, a.ff))]
    tensors += [("output_norm.weight", 0, a.embd), ("output.weight", a.vocab, a.embd)]
    kind, size, values, _ = TYPES[a.type]
    head = struct.pack("<4sIQQ", b"GGUF", 3, len(tensors), len(meta))
    head += b"".join(entry(k, v) for k, v in meta.items())
    off, sizes = 0, []
    for name, rows, width in tensors:
        sizes.append(rows * width // values * size if rows else 4 * width)
        shape = (width, rows) if rows else (width,)
        head += struct.pack("<Q", len(name)) + name.encode() + struct.pack("<I", len(shape))
        head += struct.pack("<%dQ" % len(shape), *shape)
        head += struct.pack("<IQ", kind if rows else 0, off)
        off += (sizes[-1] + 31) // 32 * 32
    unit = memoryview(random_blocks(a.type))
    with open(a.out, "wb") as f:
        f.write(head + b"\0" * (-len(head) % 32))
        for (_, rows, width), n in zip(tensors, sizes):
            if rows == 0:
                f.write(numpy.ones(width, "<f4").tobytes())
            for at in range(0, n if rows else 0, len(unit)):
                f.write(unit[:min(len(unit), n - at)])
            f.write(b"\0" * (-n % 32))


if __name__ == "__main__":
    main()
