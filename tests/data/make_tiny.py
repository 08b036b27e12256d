#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Writes a tiny random llama model as GGUF, and what a float64 forward pass makes of it, with K and V
as they are and as each format of proto/kv_block.h keeps them.

  make_tiny.py OUT.gguf [--mix MIX] [--expect OUT.json] [--layers N] [--heads N] [--kv-heads N]
               [--head-dim N] [--ff N] [--rope-dims N] [--untied] [--context N] [--seed N]

MIX is the type of the matrices: f32, f16, q4_0, q4_1, q8_0, or mixed (one of each kind in a layer).
The vocabulary is byte-level BPE in GPT-2's alphabet with a few merges, three control tokens and a chat
template like SmolLM2's, so all programs can serve it. Only the standard library is used: it runs where
the sanitizers run. The same arguments give the same bytes.
"""
import argparse, json, math, random, struct

F32, F16, Q4_0, Q4_1, Q8_0 = 0, 1, 2, 3, 8
TYPES = {"f32": F32, "f16": F16, "q4_0": Q4_0, "q4_1": Q4_1, "q8_0": Q8_0}
MIXED = {"attn_q": Q4_1, "attn_k": Q8_0, "attn_v": F16, "attn_output": Q4_0, "ffn_gate": Q4_1,
         "ffn_up": F32, "ffn_down": Q8_0, "token_embd": Q8_0, "output": F16}
CONTROL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
TEXT = ("the capital of the country is a large city and the river runs through it; when the rain comes "
        "the people of the town go to the market to hear what the others say about the water ")
TEMPLATE = ("{% for message in messages %}{% if loop.first and messages[0]['role'] != 'system' %}"
            "{{ '<|im_start|>system\nYou are a helpful assistant<|im_end|>\n' }}{% endif %}"
            "{{'<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n'}}"
            "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}")
BASE, EPS, EXPECT_TOKENS = 10000.0, 1e-5, 20
KV_BITS = {"int8": (8, 8), "k8v4": (8, 4), "q4": (4, 4)}  # of K and V


def f16(v):
    return struct.unpack("<e", struct.pack("<e", v))[0]


def half(v):
    return struct.pack("<e", v)


# ------------------------------------------------- blocks: bytes, and the values they stand for
def quantise(typ, row):
    if typ == F32:
        row = [struct.unpack("<f", struct.pack("<f", v))[0] for v in row]
        return struct.pack("<%df" % len(row), *row), row
    if typ == F16:
        return struct.pack("<%de" % len(row), *row), [f16(v) for v in row]
    out, values = b"", []
    for i in range(0, len(row), 32):
        data, v = {Q4_0: q4_0, Q4_1: q4_1, Q8_0: q8_0}[typ](row[i:i + 32])
        out += data
        values += v
    return out, values


def nibbles(q):
    return bytes(q[i] | q[i + 16] << 4 for i in range(16))


def clip(v, low, high):
    return max(low, min(high, round(v)))


def q4_0(b):
    d = f16(max(b, key=abs) / -8) or f16(1e-4)
    q = [clip(v / d + 8, 0, 15) for v in b]
    return half(d) + nibbles(q), [d * (c - 8) for c in q]


def q4_1(b):
    m, d = f16(min(b)), f16((max(b) - min(b)) / 15) or f16(1e-4)
    q = [clip((v - m) / d, 0, 15) for v in b]
    return half(d) + half(m) + nibbles(q), [d * c + m for c in q]


def q8_0(b):
    d = f16(max(abs(v) for v in b) / 127) or f16(1e-4)
    q = [clip(v / d, -128, 127) for v in b]
    return half(d) + struct.pack("<32b", *q), [d * c for c in q]


# ------------------------------------------------- formats of K and V
def rounded(x, bits, head_dim):
    """x, heads one after the other, as it is read back when kept in so many bits."""
    out = []
    for h in range(0, len(x), head_dim):
        for g in range(h, h + head_dim, 64):
            b = x[g:min(g + 64, h + head_dim)]
            if bits == 8:
                d, low, high = f16(max(map(abs, b)) / 127), -127, 127
            else:
                d, low, high = f16(max(b, key=abs) / -8), -8, 7
            out += [d * clip(v / d, low, high) if d else 0.0 for v in b]
    return out


# ------------------------------------------------- vocabulary
def alphabet():
    """GPT-2's printable code point for each byte."""
    keep = list(range(33, 127)) + list(range(161, 173)) + list(range(174, 256))
    rest = [b for b in range(256) if b not in keep]
    return [chr(b) if b in keep else chr(256 + rest.index(b)) for b in range(256)]


def vocabulary(n_merges=46):
    chars = alphabet()
    words = [[chars[b] for b in w.encode()] for w in
             ((" " if i else "") + w for i, w in enumerate(TEXT.split()))]
    tokens, merges = CONTROL + chars, []
    while len(merges) < n_merges:
        pairs = {}
        for w in words:
            for p in zip(w, w[1:]):
                pairs[p] = pairs.get(p, 0) + 1
        left, right = max(pairs, key=lambda p: (pairs[p], p))
        merges.append(left + " " + right)
        tokens.append(left + right)
        for w in words:
            i = 0
            while i + 1 < len(w):
                if (w[i], w[i + 1]) == (left, right):
                    w[i:i + 2] = [left + right]
                i += 1
    return tokens, merges


# ------------------------------------------------- the container
def string(s):
    b = s.encode()
    return struct.pack("<Q", len(b)) + b


def entry(key, value):
    """A key and its value; the type follows from the Python type."""
    head = string(key)
    if isinstance(value, bool):
        return head + struct.pack("<IB", 7, value)
    if isinstance(value, int):
        return head + struct.pack("<II", 4, value)
    if isinstance(value, float):
        return head + struct.pack("<If", 6, value)
    if isinstance(value, str):
        return head + struct.pack("<I", 8) + string(value)
    if isinstance(value[0], str):
        return head + struct.pack("<IIQ", 9, 8, len(value)) + b"".join(map(string, value))
    return head + struct.pack("<IIQ", 9, 5, len(value)) + struct.pack("<%di" % len(value), *value)


def write(path, metadata, tensors):
    """tensors: name -> (type, shape, bytes), ggml's order of dimensions."""
    head = struct.pack("<4sIQQ", b"GGUF", 3, len(tensors), len(metadata))
    head += b"".join(entry(k, v) for k, v in metadata.items())
    data = b""
    for name, (typ, shape, raw) in tensors.items():
        head += string(name) + struct.pack("<I", len(shape)) + struct.pack("<%dQ" % len(shape), *shape)
        head += struct.pack("<IQ", typ, len(data))
        data += raw + b"\0" * (-len(raw) % 32)
    with open(path, "wb") as f:
        f.write(head + b"\0" * (-len(head) % 32) + data)


# ------------------------------------------------- the model
class Tiny:
    def __init__(self, a):
        self.a, self.rng = a, random.Random(a.seed)
        self.width, self.tensors, self.w = a.heads * a.head_dim, {}, {}
        self.tokens, self.merges = vocabulary()
        q, kv = a.heads * a.head_dim, a.kv_heads * a.head_dim
        self.matrix("token_embd", len(self.tokens), self.width, 1.0)
        for i in range(a.layers):
            b = "blk.%d." % i
            self.norm(b + "attn_norm")
            for name, out, into in (("attn_q", q, self.width), ("attn_k", kv, self.width),
                                    ("attn_v", kv, self.width), ("attn_output", self.width, q)):
                self.matrix(b + name, out, into, 1.5)
            self.norm(b + "ffn_norm")
            for name, out, into in (("ffn_gate", a.ff, self.width), ("ffn_up", a.ff, self.width),
                                    ("ffn_down", self.width, a.ff)):
                self.matrix(b + name, out, into, 1.5)
        self.norm("output_norm")
        if a.untied or a.mix == "mixed":
            self.matrix("output", len(self.tokens), self.width, 2.0)

    def matrix(self, name, out, into, gain):
        typ = MIXED[name.split(".")[-1]] if self.a.mix == "mixed" else TYPES[self.a.mix]
        raw, values = b"", []
        for _ in range(out):
            data, row = quantise(typ, [self.rng.gauss(0, gain / math.sqrt(into)) for _ in range(into)])
            raw += data
            values.append(row)
        self.tensors[name + ".weight"] = (typ, (into, out), raw)
        self.w[name] = values

    def norm(self, name):
        raw, values = quantise(F32, [1 + self.rng.gauss(0, 0.1) for _ in range(self.width)])
        self.tensors[name + ".weight"] = (F32, (self.width,), raw)
        self.w[name] = values

    def metadata(self):
        a, n = self.a, len(self.tokens)
        m = {"general.architecture": "llama", "general.name": "Tiny " + a.mix, "general.file_type": 0,
             "general.quantization_version": 2}
        for k, v in (("block_count", a.layers), ("context_length", a.context),
                     ("embedding_length", self.width), ("feed_forward_length", a.ff),
                     ("attention.head_count", a.heads), ("attention.head_count_kv", a.kv_heads),
                     ("attention.key_length", a.head_dim), ("attention.value_length", a.head_dim),
                     ("rope.dimension_count", a.rope_dims), ("rope.freq_base", BASE),
                     ("attention.layer_norm_rms_epsilon", EPS), ("vocab_size", n)):
            m["llama." + k] = v
        for k, v in (("model", "gpt2"), ("pre", "smollm"), ("tokens", self.tokens),
                     ("token_type", [3] * len(CONTROL) + [1] * (n - len(CONTROL))),
                     ("merges", self.merges), ("bos_token_id", 1), ("eos_token_id", 2),
                     ("unknown_token_id", 0), ("padding_token_id", 2), ("add_bos_token", False),
                     ("add_space_prefix", False)):
            m["tokenizer.ggml." + k] = v
        m["tokenizer.chat_template"] = TEMPLATE
        return m

    # ---- a forward pass in float64, for the expected values; written from the papers' equations
    def rms(self, x, w):
        s = 1 / math.sqrt(sum(v * v for v in x) / len(x) + EPS)
        return [v * s * g for v, g in zip(x, w)]

    def rope(self, x, pos):
        x, n = list(x), self.a.rope_dims
        for h in range(0, len(x), self.a.head_dim):
            for i in range(0, n, 2):
                t = pos * BASE ** (-i / n)
                u, v = x[h + i], x[h + i + 1]
                x[h + i] = u * math.cos(t) - v * math.sin(t)
                x[h + i + 1] = u * math.sin(t) + v * math.cos(t)
        return x

    def attend(self, q, keys, values):
        hd, group, out = self.a.head_dim, self.a.heads // self.a.kv_heads, []
        for h in range(self.a.heads):
            k0, qh = h // group * hd, q[h * hd:(h + 1) * hd]
            s = [dot(qh, k[k0:k0 + hd]) / math.sqrt(hd) for k in keys]
            e = [math.exp(v - max(s)) for v in s]
            out += [sum(p * v[k0 + d] for p, v in zip(e, values)) / sum(e) for d in range(hd)]
        return out

    def forward(self, ids, kv=None):
        """Logits after each token, with K and V in a format or as they are."""
        k_keep, v_keep = [lambda x, n=n: rounded(x, n, self.a.head_dim) if n else x
                          for n in KV_BITS.get(kv, (0, 0))]
        cache = [([], []) for _ in range(self.a.layers)]
        for pos, token in enumerate(ids):
            x = list(self.w["token_embd"][token])
            for i, (keys, values) in enumerate(cache):
                w = lambda name: self.w["blk.%d.%s" % (i, name)]
                h = self.rms(x, w("attn_norm"))
                keys.append(k_keep(self.rope(mul(w("attn_k"), h), pos)))
                values.append(v_keep(mul(w("attn_v"), h)))
                o = self.attend(self.rope(mul(w("attn_q"), h), pos), keys, values)
                x = [u + v for u, v in zip(x, mul(w("attn_output"), o))]
                h = self.rms(x, w("ffn_norm"))
                g = [u / (1 + math.exp(-u)) * v for u, v in zip(mul(w("ffn_gate"), h), mul(w("ffn_up"), h))]
                x = [u + v for u, v in zip(x, mul(w("ffn_down"), g))]
            yield mul(self.w.get("output", self.w["token_embd"]), self.rms(x, self.w["output_norm"]))


def dot(a, b):
    return sum(u * v for u, v in zip(a, b))


def mul(w, x):
    return [dot(row, x) for row in w]


def main():
    p = argparse.ArgumentParser()
    p.add_argument("out")
    p.add_argument("--mix", choices=[*TYPES, "mixed"], default="q4_1")
    p.add_argument("--expect")
    p.add_argument("--untied", action="store_true")
    for name, v in (("layers", 4), ("heads", 4), ("kv-heads", 2), ("head-dim", 16), ("ff", 160),
                    ("rope-dims", 0), ("context", 2048), ("seed", 1)):
        p.add_argument("--" + name, type=int, default=v)
    a = p.parse_args()
    a.rope_dims = a.rope_dims or a.head_dim
    m = Tiny(a)
    write(a.out, m.metadata(), m.tensors)
    if a.expect:
        ids = [m.rng.randrange(len(m.tokens)) for _ in range(EXPECT_TOKENS)]
        rows = lambda kv: [[round(v, 7) for v in row] for row in m.forward(ids, kv)]
        with open(a.expect, "w") as f:
            json.dump({"ids": ids, "logits": rows(None), "kv": {kv: rows(kv) for kv in KV_BITS}}, f)


if __name__ == "__main__":
    main()
