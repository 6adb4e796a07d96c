# SPDX-License-Identifier: BSD-3-Clause
"""Counterpart of gpt_step.cpp in Python: one process with two threads, and two
processes with gloo and one thread each. As usual in Python programs, tensors
between the modules are plain, and head counts follow from the local width."""

import contextlib
import os
import statistics
import time

import harness
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
import torch.nn as nn
import torch.nn.functional as F

V, C, L, H, T, B = 4096, 256, 4, 8, 128, 4
SMALL = {"V": 128, "C": 128, "H": 4, "T": 64}
STEPS, WARM_UP = 20, 3
RANKS = {"single": 1, "tp": 2, "sp": 2, "dp": 2, "fsdp": 2}
MODES = {f"{model}/{mode}": ranks
         for model in ("gpt", "gpt_small") for mode, ranks in RANKS.items()}


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.wq, self.wk, self.wv, self.wo = (nn.Linear(C, C) for _ in range(4))

    def forward(self, x):
        b, t, _ = x.shape
        heads = lambda y: y.view(b, t, -1, C // H).transpose(1, 2)
        q, k, v = (heads(w(x)) for w in (self.wq, self.wk, self.wv))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.wo(y.transpose(1, 2).reshape(b, t, -1))


class MLP(nn.Module):
    def __init__(self):
        super().__init__()
        self.w1, self.w2 = nn.Linear(C, 4 * C), nn.Linear(4 * C, C)

    def forward(self, x):
        return self.w2(F.gelu(self.w1(x)))


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.ln1, self.ln2 = nn.LayerNorm(C), nn.LayerNorm(C)
        self.attn, self.mlp = Attention(), MLP()

    def forward(self, x):
        x = x + self.attn(self.ln1(x))
        return x + self.mlp(self.ln2(x))


class GPT(nn.Module):
    def __init__(self):
        super().__init__()
        self.wte, self.wpe = nn.Embedding(V, C), nn.Embedding(T, C)
        self.blocks = nn.ModuleList(Block() for _ in range(L))
        self.lnf, self.head = nn.LayerNorm(C), nn.Linear(C, V, bias=False)

    def forward(self, ids):
        positions = torch.arange(T).unsqueeze(0).expand(ids.shape[0], -1)
        x = self.wte(ids) + self.wpe(positions)
        for block in self.blocks:
            x = block(x)
        return self.head(self.lnf(x))


def plan(sequence):
    from torch.distributed.tensor import Replicate, Shard
    from torch.distributed.tensor.parallel import (
        ColwiseParallel,
        PrepareModuleInput,
        RowwiseParallel,
        SequenceParallel,
    )

    columns = ("attn.wq", "attn.wk", "attn.wv", "mlp.w1")
    between = {"output_layouts": Shard(1)} if sequence else {}
    result = {}
    for i in range(L):
        block = f"blocks.{i}."
        result |= {block + name: ColwiseParallel() for name in columns}
        for name in ("attn.wo", "mlp.w2"):
            result[block + name] = RowwiseParallel(**between)
    if not sequence:
        return result | {"head": ColwiseParallel(output_layouts=Replicate())}
    for name in ("wte", "wpe"):
        result[name] = RowwiseParallel(input_layouts=Replicate(), **between)
    for i in range(L):
        for name in ("ln1", "ln2"):
            result[f"blocks.{i}.{name}"] = SequenceParallel()
        for name in ("attn", "mlp"):
            result[f"blocks.{i}.{name}"] = PrepareModuleInput(
                input_layouts=(Shard(1),), desired_input_layouts=(Replicate(),)
            )
    result["lnf"] = SequenceParallel()
    result["head"] = ColwiseParallel(
        input_layouts=Shard(1), use_local_output=False
    )
    return result


def spread_over(model, world_size, sequence):
    """Parallelizes the model and returns the context of a step."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor.parallel import (
        loss_parallel,
        parallelize_module,
    )

    parallelize_module(
        model, init_device_mesh("cpu", (world_size,)), plan(sequence)
    )
    return loss_parallel if sequence else contextlib.nullcontext


def share_data(model, name, world_size):
    """Returns the model to call."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    if name.endswith("/dp"):
        return nn.parallel.DistributedDataParallel(model)
    mesh = init_device_mesh("cpu", (world_size,))
    for block in model.blocks:
        fully_shard(block, mesh=mesh)
    return fully_shard(model, mesh=mesh)


def train(model, context, steps, share=0, shares=1):
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    generator = torch.Generator().manual_seed(1)
    us = []
    for _ in range(steps):
        ids = torch.randint(V, (B, T + 1), generator=generator)
        ids = ids.chunk(shares)[share]
        begin = time.perf_counter()
        with context():
            logits = model(ids[:, :-1])
            loss = F.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten())
            loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        us.append((time.perf_counter() - begin) * 1e6)
    if hasattr(loss, "full_tensor"):
        loss = loss.full_tensor()
    return us, loss.item()


def run_rank(rank, name, port, steps, results):
    if name.startswith("gpt_small/"):
        globals().update(SMALL)
    torch.manual_seed(0)
    shares_data = name.endswith(("/dp", "/fsdp"))  # each rank has its slice of the batch
    world_size = MODES[name]
    torch.set_num_threads(2 // world_size)
    model, context = GPT(), contextlib.nullcontext
    if world_size > 1:
        os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
        dist.init_process_group("gloo", rank=rank, world_size=world_size)
        if not shares_data:
            context = spread_over(model, world_size, name.endswith("/sp"))
    if shares_data:
        model = share_data(model, name, world_size)
        us, loss = train(model, context, steps, rank, world_size)
        mean = torch.tensor(loss)
        dist.all_reduce(mean)
        loss = mean.item() / world_size
    else:
        us, loss = train(model, context, steps)
    if rank == 0:
        results.put((us, loss))
    if world_size > 1:
        dist.barrier()
        dist.destroy_process_group()


def measure(name, options):
    results = mp.get_context("spawn").SimpleQueue()
    steps = 1 if options.smoke else STEPS
    arguments = (name, harness.free_port(), steps, results)
    mp.spawn(run_rank, arguments, nprocs=MODES[name])
    us, loss = results.get()
    warm = us[WARM_UP:] or us
    figure = statistics.median(warm)
    spread = harness.spread(warm, figure)
    harness.report(name, us=figure, first_us=us[0], loss=loss, spread=spread)


if __name__ == "__main__":
    options = harness.parse(__doc__)
    for name in MODES:
        if name.startswith(options.only):
            measure(name, options)
