# SPDX-License-Identifier: BSD-3-Clause
"""Counterpart of smollm2.cpp in Python: the LlamaForCausalLM of the package
transformers, in one process with two threads, and in two processes with gloo,
one thread each, by torch.distributed.tensor.parallel.

Nine heads cannot be split evenly over two ranks, so in Python attention is
replicated, and the MLPs, the embedding and the output are sharded."""

import os
import statistics
import sys
import time
from pathlib import Path

import harness
import torch
import torch.distributed as dist
import torch.multiprocessing as mp

FILE = Path(__file__).resolve().parents[2] / "build/models/smollm2.gguf"
PROMPT, TOKENS, ROUNDS = 128, 64, 5
MODES = {"single": 1, "tp": 2}
SKIPPED = 77


def skip(why):
    print(why)
    sys.exit(SKIPPED)


if not FILE.exists():
    skip(f"no file {FILE}, run `make models`")
try:
    import gguf
    from transformers import LlamaConfig, LlamaForCausalLM
except ImportError as error:
    skip(f"{error}; .venv/bin/pip install transformers gguf")

NAMES = {
    "attn_q": "self_attn.q_proj", "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj", "attn_output": "self_attn.o_proj",
    "ffn_gate": "mlp.gate_proj", "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj", "attn_norm": "input_layernorm",
    "ffn_norm": "post_attention_layernorm"}
OTHERS = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight", "output.weight": "lm_head.weight"}


def name_of(name):
    if name in OTHERS:
        return OTHERS[name]
    _, layer, kind, end = name.split(".")
    return f"model.layers.{layer}.{NAMES[kind]}.{end}"


def in_halves(weight, heads):
    """Undoes the file's interleaving of the two halves of a head's rows."""
    return weight.view(heads, -1, 2, weight.size(1)).transpose(1, 2).reshape(
        weight.shape)


def load():
    reader = gguf.GGUFReader(FILE)
    about = lambda key: reader.fields["llama." + key].contents()
    heads = {"attn_q": about("attention.head_count"),
             "attn_k": about("attention.head_count_kv")}
    weights = {}
    for tensor in reader.tensors:
        plain = gguf.quants.dequantize(tensor.data, tensor.tensor_type)
        weight = torch.from_numpy(plain.copy()).float()
        for kind, count in heads.items():
            if f".{kind}." in tensor.name:
                weight = in_halves(weight, count)
        weights[name_of(tensor.name)] = weight
    vocabulary, width = weights["model.embed_tokens.weight"].shape
    config = LlamaConfig(
        vocab_size=vocabulary, hidden_size=width,
        intermediate_size=about("feed_forward_length"),
        num_hidden_layers=about("block_count"),
        num_attention_heads=heads["attn_q"], num_key_value_heads=heads["attn_k"],
        rms_norm_eps=about("attention.layer_norm_rms_epsilon"),
        rope_theta=about("rope.freq_base"), tie_word_embeddings=False)
    weights.setdefault("lm_head.weight", weights["model.embed_tokens.weight"].clone())
    model = LlamaForCausalLM(config).eval().requires_grad_(False)
    model.load_state_dict(weights)
    return model


def tensor_parallel(model):
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Replicate
    from torch.distributed.tensor.parallel import (
        ColwiseParallel,
        RowwiseParallel,
        parallelize_module,
    )

    parallelize_module(model, init_device_mesh("cpu", (2,)), {
        "model.embed_tokens": RowwiseParallel(input_layouts=Replicate()),
        "model.layers.*.mlp.gate_proj": ColwiseParallel(),
        "model.layers.*.mlp.up_proj": ColwiseParallel(),
        "model.layers.*.mlp.down_proj": RowwiseParallel(),
        "lm_head": ColwiseParallel(output_layouts=Replicate())})


def measure_round(model, tokens):
    ids = (torch.arange(PROMPT) * 7919 % model.config.vocab_size).unsqueeze(0)
    cache, chosen, times = None, [], [time.perf_counter()]
    for _ in range(tokens):
        out = model(ids, past_key_values=cache, use_cache=True, logits_to_keep=1)
        cache = out.past_key_values
        ids = out.logits[:, -1].argmax(-1, keepdim=True)
        chosen.append(int(ids))
        times.append(time.perf_counter())
    return {"prompt": (times[1] - times[0]) * 1e6,
            "decode": (times[-1] - times[1]) * 1e6 / (tokens - 1),
            "sum": sum(chosen)}


def run_rank(rank, mode, port, smoke, results):
    world_size = MODES[mode]
    torch.set_num_threads(2 // world_size)
    model = load()
    if world_size > 1:
        os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
        dist.init_process_group("gloo", rank=rank, world_size=world_size)
        tensor_parallel(model)
        dist.barrier()
    with torch.inference_mode():
        rounds = [measure_round(model, 3 if smoke else TOKENS)
                  for _ in range(2 if smoke else ROUNDS)]
    if rank == 0:
        results.put(rounds[1:])
    if world_size > 1:
        dist.barrier()
        dist.destroy_process_group()


def measure(mode, options):
    results = mp.get_context("spawn").SimpleQueue()
    mp.spawn(run_rank, (mode, harness.free_port(), options.smoke, results),
             nprocs=MODES[mode])
    rounds = results.get()
    for what, tokens in (("decode", 1), ("prompt", PROMPT)):
        us = [entry[what] for entry in rounds]
        figure = statistics.median(us)
        harness.report(
            f"smollm2/{what}/{mode}", us=figure,
            tokens_per_second=1e6 * tokens / figure, sum=rounds[0]["sum"],
            spread=harness.spread(us, figure))


if __name__ == "__main__":
    options = harness.parse(__doc__)
    for mode in MODES:
        names = (f"smollm2/{what}/{mode}" for what in ("decode", "prompt"))
        if any(name.startswith(options.only) for name in names):
            measure(mode, options)
