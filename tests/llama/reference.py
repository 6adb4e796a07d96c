#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""Runs Llama from a GGUF file in plain PyTorch, without modules or a cache, as
the reference for examples/llama.

reference.py FILE f32|f64 IDS TOKENS OUT writes the next tokens, chosen
greedily, and the logits that they were chosen from.
"""
import sys

import gguf
import numpy
import torch
from gguf.quants import dequantize

path, dtype_name, prompt, count, out = sys.argv[1:]
dtype = {"f32": torch.float32, "f64": torch.float64}[dtype_name]
reader = gguf.GGUFReader(path)
weights = {}
for tensor in reader.tensors:
    plain = tensor.data if tensor.tensor_type == 0 else dequantize(
        tensor.data, tensor.tensor_type)
    sizes = [int(size) for size in reversed(tensor.shape)]
    weights[tensor.name] = torch.from_numpy(
        numpy.array(plain, dtype=numpy.float32)).reshape(sizes).to(dtype)


def about(key):
    return reader.fields["llama." + key].contents()


layers, heads = about("block_count"), about("attention.head_count")
key_heads, size = about("attention.head_count_kv"), about("rope.dimension_count")
epsilon = about("attention.layer_norm_rms_epsilon")
base = about("rope.freq_base")


def norm(x, weight):
    return x * torch.rsqrt((x * x).mean(-1, keepdim=True) + epsilon) * weight


def rotated(x):
    """Rotates pairs of features, which are adjacent in the file."""
    places = torch.arange(x.size(1), dtype=torch.float64)
    speeds = base ** (-torch.arange(0, size, 2, dtype=torch.float64) / size)
    angles = places[:, None] * speeds
    cos, sin = angles.cos().to(dtype), angles.sin().to(dtype)
    a, b = x[..., 0::2], x[..., 1::2]
    return torch.stack([a * cos - b * sin, a * sin + b * cos], -1).flatten(-2)


def logits_after(ids):
    length = len(ids)
    x = weights["token_embd.weight"][torch.tensor(ids)]
    mask = torch.full((length, length), float("-inf"), dtype=dtype).triu(1)
    for i in range(layers):
        def apply(name, h):
            return h @ weights[f"blk.{i}.{name}.weight"].T

        def split(h, count):
            return h.view(length, count, size).transpose(0, 1)

        h = norm(x, weights[f"blk.{i}.attn_norm.weight"])
        groups = heads // key_heads
        q = rotated(split(apply("attn_q", h), heads))
        k = rotated(split(apply("attn_k", h), key_heads))
        v = split(apply("attn_v", h), key_heads)
        k, v = (t.repeat_interleave(groups, 0) for t in (k, v))
        y = ((q @ k.transpose(1, 2)) / size**0.5 + mask).softmax(-1) @ v
        x = x + apply("attn_output", y.transpose(0, 1).reshape(length, -1))
        h = norm(x, weights[f"blk.{i}.ffn_norm.weight"])
        gate = torch.nn.functional.silu(apply("ffn_gate", h))
        x = x + apply("ffn_down", gate * apply("ffn_up", h))
    last = norm(x[-1], weights["output_norm.weight"])
    return last @ weights.get("output.weight", weights["token_embd.weight"]).T


ids = [int(number) for number in prompt.split(",")]
tokens, logits = [], []
with torch.inference_mode():
    for _ in range(int(count)):
        logits.append(logits_after(ids + tokens))
        tokens.append(int(logits[-1].argmax()))
torch.save({"tokens": torch.tensor(tokens), "logits": torch.stack(logits)}, out)
