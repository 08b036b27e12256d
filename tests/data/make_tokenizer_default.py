#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Writes tokenizer_default.json: ids of the pre-tokeniser "default" by Hugging Face's tokenizers.

llama.cpp ships no .inp/.out for a vocabulary with that pre-tokeniser, so the reference is another
library over the vocabulary of ggml-vocab-gpt-neox.gguf, which names no pre-tokeniser. Needs numpy,
gguf and tokenizers. Usage: make_tokenizer_default.py VOCABS_FOLDER > tokenizer_default.json
"""
import json
import sys

import tokenizers
from gguf import GGUFReader
from tokenizers import AddedToken, Regex, Tokenizer, models, pre_tokenizers

PASSES = [
    r"[\p{P}\$\+<=>\^~\|]+",
    r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)",
    r"\p{N}+",
    r"[0-9][0-9][0-9]",
]
MORE = [
    "1234567", "12 345 6789", "x=12345;y+=6", "٣٤٥٦ १२३४", "a$b<=c^d~e|f`g", "don't DON'T we'll...",
    "(((x)))  +  [[y]]", "foo_bar-baz/qux\\n", "100% of $5,000.00", "½²³ⅷ", "«quoted» “text”—dash",
    " leading", "trailing ", "a\t\tb\n\n\nc  d", "e\u0301te\u0301", "日本語123。テスト", "🙂🙂 ok",
]


def texts(folder):
    with open(f"{folder}/ggml-vocab-gpt-2.gguf.inp", encoding="utf-8") as f:
        return f.read().split("\n__ggml_vocab_test__\n") + MORE


def load(folder):
    fields = GGUFReader(f"{folder}/ggml-vocab-gpt-neox.gguf").fields
    tokens = fields["tokenizer.ggml.tokens"].contents()
    types = fields["tokenizer.ggml.token_type"].contents()
    merges = [tuple(m.split(" ")) for m in fields["tokenizer.ggml.merges"].contents()]
    vocab = {t: i for i, t in enumerate(tokens)}
    tok = Tokenizer(models.BPE(vocab=vocab, merges=merges))
    passes = [pre_tokenizers.Split(Regex(p), "isolated") for p in PASSES]
    level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tok.pre_tokenizer = pre_tokenizers.Sequence(passes + [level])
    added = [t for t, kind in zip(tokens, types) if kind == 4]
    tok.add_tokens([AddedToken(t, normalized=False) for t in added])
    return tok


def main():
    folder = sys.argv[1]
    tok = load(folder)
    cases = [{"text": t, "ids": tok.encode(t).ids} for t in texts(folder)]
    print('{"vocab": "ggml-vocab-gpt-neox.gguf", "tokenizers": "%s", "cases": [' % tokenizers.__version__)
    print(",\n".join(json.dumps(case, ensure_ascii=False) for case in cases))
    print("]}")


main()
