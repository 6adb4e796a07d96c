# SPDX-License-Identifier: BSD-3-Clause
"""Trains for a number of steps, some of which raise, and checks that neither
memory nor objects grow. Then rank 1 is interrupted while the others wait."""

import gc
import os
import signal
import sys
import threading

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    parallelize_module,
)

from dtensor import _C

STEPS = int(sys.argv[1])
ROUNDS = 5
#: Bytes of growth per round that the allocator may cause.
SLACK = 1 << 20


class Unlucky(Exception):
    pass


def resident_bytes():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def counts():
    """Returns the numbers of tensors, of objects and of layouts that are alive."""
    gc.collect()
    objects = gc.get_objects()
    tensors = sum(1 for o in objects if type(o) in (torch.Tensor, nn.Parameter))
    return tensors, len(objects), _C.live_specs()


def fail(*_):
    raise Unlucky


def train(model, optimizer, steps):
    x = torch.linspace(-1, 1, 32).view(4, 8)
    for step in range(steps):
        optimizer.zero_grad()
        loss = model(x).pow(2).sum()
        if step % 10 == 3:  # fails on all ranks, in the backward pass
            handle = model[0].weight.register_hook(fail)
            try:
                loss.backward()
            except Unlucky:
                pass
            handle.remove()
            continue
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        assert isinstance(model[0].weight.grad, DTensor)
    return loss.item()


def check_growth(model, optimizer):
    train(model, optimizer, max(50, STEPS // ROUNDS))  # caches fill up
    before, memory = counts(), resident_bytes()
    for _ in range(ROUNDS):
        train(model, optimizer, STEPS // ROUNDS)
    after = counts()
    assert all(now <= then for now, then in zip(after, before)), (before, after)
    growth = resident_bytes() - memory
    assert growth < ROUNDS * SLACK, growth
    return growth


dist.init_process_group(sys.argv[2])
mesh = init_device_mesh("cpu", (dist.get_world_size(),))
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 8))
parallelize_module(model, mesh, {"0": ColwiseParallel(), "2": RowwiseParallel()})
growth = check_growth(model, torch.optim.AdamW(model.parameters(), lr=0.01))
sys.stdout.write(f"grew by {growth} bytes\n")
sys.stdout.flush()
try:
    if dist.get_rank() == 1:
        interrupt = os.kill, (os.getpid(), signal.SIGINT)
        threading.Timer(0.2, *interrupt).start()
    train(model, torch.optim.SGD(model.parameters(), lr=0.01), 1_000_000)
except KeyboardInterrupt:
    sys.stdout.write("interrupted\n")
    raise
except RuntimeError as error:
    sys.stdout.write(f"told: {error}\n")
