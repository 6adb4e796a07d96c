#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""Tokenizes some hundred texts with the Python package tokenizers, as the
reference for the tokenizers of examples/llama (byte pairs) and examples/embed
(WordPiece).

    other_tokenizers.py OUT gguf FILE
    other_tokenizers.py OUT words FOLDER

Exits with 77 if Python has no tokenizers or no gguf.
"""

import json
import random
import sys
import unicodedata

try:
    import gguf
    import tokenizers
except ImportError as error:
    print(error)
    sys.exit(77)

from tokenizers.models import BPE
from tokenizers.pre_tokenizers import ByteLevel, Digits, Sequence

TEXTS = 400
CONTROL = 3  # a kind of token in GGUF
WORDS = """the a of Token tokens HELLO World don't I'll we've they're it's
    antidisestablishmentarianism x 0 7 42 1234567 3.14 1e-9 foo_bar fooBar
    café naïve Señor Müller straße ÅNGSTRÖM İstanbul ﬁne ① ² Ⅷ
    日本語 東京 漢字かな 한국어 Привет мир Ελλάδα שלום مرحبا नमस्ते ไทย
    😀 👩‍👩‍👧 🇩🇪 e\u0301 a\u0308\u0323 \u0301 \u200b \u200d \ufeff \u00ad
    != == -> :: ... -- (a) [b] {c} <d> "q" 'q' `q` «q» “q” $5 50% #1 @x &c a/b
    \\n ~ ^ | § ° € ¥ ¿qué?""".split()
SPACES = [" ", " ", " ", " ", "", "", "  ", "   ", "\n", "\n\n", "\t", "\r\n",
          " \n ", "\u00a0", "\u3000", "\u2003", "\u2028", "\x0b", "\x0c", "\x85",
          "\x01", "\x7f"]
# Letters of an old Unicode version, which all libraries support.
LETTERS = [chr(c) for c in range(0x20, 0x30000)
           if unicodedata.ucd_3_2_0.category(chr(c)) not in ("Cn", "Cs", "Co")]


def text_of(draw, controls):
    parts = []
    for _ in range(draw.randrange(12)):
        kind = draw.random()
        if kind < 0.7:
            parts.append(draw.choice(WORDS))
        elif kind < 0.85:
            parts.append("".join(
                draw.choice(LETTERS) for _ in range(draw.randrange(1, 6))))
        elif kind < 0.9:
            parts.append(draw.choice("ab1 .") * draw.randrange(1, 130))
        elif controls:
            parts.append(draw.choice(controls))
        parts.append(draw.choice(SPACES))
    return "".join(parts)


def bytes_in_pairs(path):
    """Returns a tokenizer like SmolLM2's from the vocabulary in the file, and
    its control tokens."""
    fields = gguf.GGUFReader(path).fields
    about = {key: fields[f"tokenizer.ggml.{key}"].contents()
             for key in ("tokens", "merges", "token_type", "pre")}
    assert about["pre"] == "smollm", about["pre"]
    tokenizer = tokenizers.Tokenizer(BPE(
        vocab={token: i for i, token in enumerate(about["tokens"])},
        merges=[tuple(merge.split(" ")) for merge in about["merges"]]))
    tokenizer.pre_tokenizer = Sequence([
        Digits(individual_digits=True), ByteLevel(add_prefix_space=False)])
    controls = [token for token, kind in zip(about["tokens"], about["token_type"])
                if kind == CONTROL]
    tokenizer.add_special_tokens(controls)
    return tokenizer, controls


def main():
    out, kind, path = sys.argv[1:]
    if kind == "gguf":
        tokenizer, controls = bytes_in_pairs(path)
    else:
        tokenizer = tokenizers.Tokenizer.from_file(f"{path}/tokenizer.json")
        tokenizer.no_truncation()
        tokenizer.no_padding()
        controls = []  # examples/embed does not support them in texts
    draw = random.Random(13)
    texts = ["", " ", "\n", *WORDS, *(" " + word for word in WORDS), *controls]
    texts += [text_of(draw, controls) for _ in range(TEXTS)]
    truth = [{"text": text, "tokens": tokenizer.encode(text).ids,
              "is_plain": not any(token in text for token in controls)}
             for text in texts]
    with open(out, "w") as file:
        json.dump(truth, file)
    print(len(truth), "texts")


if __name__ == "__main__":
    main()
