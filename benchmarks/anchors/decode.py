# SPDX-License-Identifier: BSD-3-Clause
"""Counterpart of decode.cpp in Python: one process with two threads, and two
processes with gloo and one thread each."""

import os
import statistics
import time

import harness
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
import torch.nn as nn
import torch.nn.functional as F

C, H, HIDDEN, BLOCKS = 576, 8, 1536, 8
CALLS, WARM_UP = 40, 8
COLUMNS, ROWS = ("q", "k", "v", "w1", "w3"), ("o", "w2")
MODES = {"single": 1, "tp": 2, "hand": 2, "no_comm": 2}
TOKENS = {"decode": 1, "prompt": 128}


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        linear = lambda i, o: nn.Linear(i, o, bias=False)
        self.n1, self.n2 = nn.RMSNorm(C), nn.RMSNorm(C)
        self.q, self.k, self.v, self.o = (linear(C, C) for _ in range(4))
        self.w1, self.w3 = linear(C, HIDDEN), linear(C, HIDDEN)
        self.w2 = linear(HIDDEN, C)
        self.reduce = lambda t: t

    def forward(self, x):
        y = self.n1(x)
        b, t, _ = y.shape
        heads = lambda w: w(y).view(b, t, -1, C // H).transpose(1, 2)
        q, k, v = heads(self.q), heads(self.k), heads(self.v)
        a = F.scaled_dot_product_attention(q, k, v, is_causal=t > 1)
        x = x + self.reduce(self.o(a.transpose(1, 2).reshape(b, t, -1)))
        y = self.n2(x)
        return x + self.reduce(self.w2(F.silu(self.w1(y)) * self.w3(y)))


def shard_by_hand(block, rank):
    for names, dim in ((COLUMNS, 0), (ROWS, 1)):
        for name in names:
            linear = getattr(block, name)
            part = linear.weight.chunk(2, dim)[rank].clone()
            linear.weight = nn.Parameter(part, requires_grad=False)


def all_reduce(t):
    dist.all_reduce(t)
    return t


def tensor_parallel(block):
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor.parallel import (
        ColwiseParallel,
        RowwiseParallel,
        parallelize_module,
    )

    plan = {name: ColwiseParallel() for name in COLUMNS}
    plan |= {name: RowwiseParallel() for name in ROWS}
    parallelize_module(block, init_device_mesh("cpu", (2,)), plan)


def spread_over(blocks, mode, rank):
    for block in blocks:
        if mode == "tp":
            tensor_parallel(block)
            continue
        shard_by_hand(block, rank)
        if mode == "hand":
            block.reduce = all_reduce


def decode(blocks, x, calls):
    us = []
    for _ in range(calls):
        begin, y = time.perf_counter(), x
        for block in blocks:
            y = block(y)
        us.append((time.perf_counter() - begin) * 1e6)
    return us


def run_rank(rank, name, port, calls, results):
    length, mode = name.split("/")
    world_size = MODES[mode]
    torch.set_num_threads(2 // world_size)
    torch.manual_seed(0)
    blocks = nn.ModuleList(Block() for _ in range(BLOCKS)).requires_grad_(False)
    x = torch.randn(1, TOKENS[length], C)
    if world_size > 1:
        os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
        dist.init_process_group("gloo", rank=rank, world_size=world_size)
        spread_over(blocks, mode, rank)
        dist.barrier()
    with torch.no_grad():
        us = decode(blocks, x, calls)
    if rank == 0:
        results.put(us)
    if world_size > 1:
        dist.barrier()
        dist.destroy_process_group()


def measure(name, options):
    results = mp.get_context("spawn").SimpleQueue()
    calls = 1 if options.smoke else CALLS + WARM_UP
    mp.spawn(
        run_rank, (name, harness.free_port(), calls, results),
        nprocs=MODES[name.split("/")[1]])
    us = results.get()
    us = us[WARM_UP:] or us
    figure = statistics.median(us)
    harness.report(name, us=figure, spread=harness.spread(us, figure))


if __name__ == "__main__":
    options = harness.parse(__doc__)
    for name in (f"{length}/{mode}" for length in TOKENS for mode in MODES):
        if name.startswith(options.only):
            measure(name, options)
