#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""Compares examples/embed with BERT in plain PyTorch, without modules.

minilm.py PROGRAM FOLDER runs the program on 1 to 6 ranks with the model that
`make models` downloads. Exits with 77 without the model.
"""
import json
import pathlib
import re
import subprocess
import sys
import tempfile

program, folder = sys.argv[1], pathlib.Path(sys.argv[2])
if not folder.exists():
    print(f"no {folder}; `make models` brings it")
    sys.exit(77)

import safetensors.torch
import torch
from torch.nn.functional import gelu, layer_norm, linear, normalize

SENTENCES = [
    "A cat sleeps on the sofa.", "A kitten naps.", "Stocks fell on Monday!",
    "Señor Müller trinkt Café; 東京 is far.", "x"]
TOLERANCE = 1e-6
config = json.loads((folder / "config.json").read_text())
weights = safetensors.torch.load_file(folder / "model.safetensors")


def norm(x, name):
    return layer_norm(
        x, (x.size(-1),), weights[f"{name}.weight"], weights[f"{name}.bias"],
        config["layer_norm_eps"])


def apply(x, name):
    return linear(x, weights[f"{name}.weight"], weights[f"{name}.bias"])


def attended(x, mask, name):
    heads = config["num_attention_heads"]
    q, k, v = (
        apply(x, f"{name}.{part}").unflatten(-1, (heads, -1)).transpose(1, 2)
        for part in ("query", "key", "value"))
    scores = q @ k.transpose(-2, -1) / q.size(-1) ** 0.5
    scores = scores.masked_fill(~mask[:, None, None], float("-inf"))
    return (scores.softmax(-1) @ v).transpose(1, 2).flatten(2)


def embed(ids, mask):
    tables = "embeddings.{}_embeddings.weight"
    x = norm(
        weights[tables.format("word")][ids]
        + weights[tables.format("token_type")][0]
        + weights[tables.format("position")][: ids.size(1)],
        "embeddings.LayerNorm")
    for i in range(config["num_hidden_layers"]):
        layer = f"encoder.layer.{i}"
        y = attended(x, mask, f"{layer}.attention.self")
        y = apply(y, f"{layer}.attention.output.dense")
        x = norm(y + x, f"{layer}.attention.output.LayerNorm")
        y = gelu(apply(x, f"{layer}.intermediate.dense"))
        y = apply(y, f"{layer}.output.dense")
        x = norm(y + x, f"{layer}.output.LayerNorm")
    return normalize((x * mask.unsqueeze(-1)).sum(1) / mask.sum(1, keepdim=True))


def run(options):
    """Returns the error of the embeddings, and the number of collectives."""
    with tempfile.TemporaryDirectory() as out:
        made = f"{out}/made.pt"
        printed = subprocess.run(
            [program, "--model", str(folder), "--out", made, *options, *SENTENCES],
            check=True, stdout=subprocess.PIPE, text=True).stdout
        embeddings, ids, mask = torch.jit.load(made).parameters()
    collectives = int(re.search(r"; (\d+) collectives\]", printed)[1])
    with torch.inference_mode():
        return float((embed(ids, mask) - embeddings).abs().max()), collectives


wrong = False
layers = config["num_hidden_layers"]
for ranks in range(1, 7):
    for parallel in ([], ["--sequence-parallel"]):
        off, collectives = run(["--ranks", str(ranks), *parallel])
        expected = 4 * layers + 2 if parallel else 2 * layers + 1
        print(f"{ranks} ranks {' '.join(parallel)}: embeddings within {off:.1e}, "
              f"{collectives} collectives")
        wrong |= off > TOLERANCE or collectives != (expected if ranks > 1 else 0)
sys.exit(1 if wrong else 0)
