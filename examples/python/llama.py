# SPDX-License-Identifier: BSD-3-Clause
"""A Llama of Hugging Face's transformers, sharded by the tp_plan of its class.

    torchrun --nproc-per-node 2 -m dtensor examples/python/llama.py
    torchrun --nproc-per-node 3 -m dtensor examples/python/llama.py PATH

Checks tokens, logits and gradients against the same model in one process. PATH
is a folder that save_pretrained() wrote, or a GGUF file. Without PATH the
program makes two layers of SmolLM2's shape with random weights. transformers
gives each rank complete heads, so SmolLM2-135M, which has three key heads, runs on
one or three ranks.

Needs the packages transformers (tried: 5.23.0 and 5.24.0) and accelerate, and
gguf for GGUF files. Without `-m dtensor` the program runs on PyTorch's own DTensor.
"""

import shutil
import sys
import tempfile
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch.distributed.tensor import DTensor
from transformers import (
    AutoModelForCausalLM,
    DistributedConfig,
    LlamaConfig,
    LlamaForCausalLM,
)

TOKENS = 16


def save_random_llama() -> Path:
    """Returns the folder to which rank 0 has written a model."""
    folder = [tempfile.mkdtemp() if dist.get_rank() == 0 else None]
    dist.broadcast_object_list(folder)
    torch.manual_seed(0)
    ranks = dist.get_world_size()
    keys = -(-3 // ranks) * ranks  # SmolLM2's 3, or the next number for these ranks
    LlamaForCausalLM(LlamaConfig(
        hidden_size=192 * keys, intermediate_size=512 * keys, num_hidden_layers=2,
        num_attention_heads=3 * keys, num_key_value_heads=keys, vocab_size=1500,
        rope_theta=100000.0, tie_word_embeddings=True,
    )).save_pretrained(folder[0])  # writes on rank 0
    dist.barrier()
    return Path(folder[0])


def load(path: Path, **options):
    if path.suffix == ".gguf":
        options["gguf_file"], path = path.name, path.parent
    return AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32, **options)


def generate(model, ids, tokens: int = TOKENS):
    """Returns the most probable tokens and their logits."""
    out = model.generate(
        ids, max_new_tokens=tokens, min_new_tokens=tokens, do_sample=False,
        output_logits=True, return_dict_in_generate=True)
    return out.sequences, torch.stack(out.logits)


def gradients(model, ids):
    model(ids, labels=ids).loss.backward()
    return {name: p.grad.full_tensor() if isinstance(p.grad, DTensor) else p.grad
            for name, p in model.named_parameters()}


def milliseconds_per_token(model, ids) -> float:
    times = []
    for tokens in (1, TOKENS + 1):
        start = time.perf_counter()
        generate(model, ids, tokens)
        times.append(time.perf_counter() - start)
    return (times[1] - times[0]) / TOKENS * 1e3


def check(path: Path) -> None:
    ids = torch.arange(1, 17).unsqueeze(0) * 7
    plain = load(path)
    sharded = load(path, distributed_config=DistributedConfig(tp_plan="auto"))
    names = [n for n, p in sharded.named_parameters() if isinstance(p, DTensor)]
    assert len(names) > 7 * sharded.config.num_hidden_layers, names
    outputs = [generate(model, ids) for model in (sharded, plain)]
    torch.testing.assert_close(*outputs, rtol=1e-3, atol=1e-3)
    times = [milliseconds_per_token(model, ids) for model in (sharded, plain)]
    torch.testing.assert_close(
        gradients(sharded, ids), gradients(plain, ids), rtol=1e-3, atol=1e-5)
    if dist.get_rank() == 0:
        print(f"{len(names)} sharded parameters; {TOKENS} tokens, their logits and "
              "the gradients are those of one process")
        print(f"one token: {times[0]:.1f} ms, in one process {times[1]:.1f} ms")


def main() -> None:
    dist.init_process_group("gloo")
    if len(sys.argv) > 1:
        check(Path(sys.argv[1]))
    else:
        folder = save_random_llama()
        try:
            check(folder)
        finally:
            if dist.get_rank() == 0:
                shutil.rmtree(folder)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
