# SPDX-License-Identifier: BSD-3-Clause
"""Prints layouts and values of many operations, for comparison between
PyTorch's DTensor and this package: both must print the same."""

import copy

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import (
    DTensor,
    Partial,
    Replicate,
    Shard,
    distribute_tensor,
    full,
)
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    parallelize_module,
)


def show(name, x):
    local = x.to_local()
    values = [round(v, 4) + 0.0 for v in x.full_tensor().flatten().tolist()]
    if dist.get_rank() == 0:
        print(name, x.placements, tuple(x.shape), tuple(local.shape), values)


def operators(mesh):
    a = torch.linspace(-1, 1, 35).view(7, 5)
    x = distribute_tensor(a, mesh, [Shard(0)])
    w = distribute_tensor(a.t().contiguous(), mesh, [Replicate()])
    show("relu", torch.relu(x))
    show("times", x * 2.5 - 1)
    show("mm", x @ w)
    show("softmax", torch.softmax(x, 1))
    show("sum", x.sum(1))
    show("view", x.view(7, 5, 1))
    show("transpose", x.t())
    show("max", x.amax(1))
    show("full", full((3, 4), 2.5, device_mesh=mesh, placements=[Shard(0)]))
    show("partial", DTensor.from_local(a, mesh, [Partial()]))
    show("layer_norm", F.layer_norm(x, (5,)))
    show("deepcopy", copy.deepcopy(x))


def training(mesh):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 6))
    parallelize_module(model, mesh, {"0": ColwiseParallel(), "2": RowwiseParallel()})
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    x = torch.linspace(-1, 1, 24).view(4, 6)
    for _ in range(3):
        optimizer.zero_grad()
        model(x).pow(2).mean().backward()
        show("grad", model[0].weight.grad)
        optimizer.step()
    for name, p in model.named_parameters():
        show(name, p)


dist.init_process_group("gloo")
mesh = init_device_mesh("cpu", (dist.get_world_size(),))
operators(mesh)
training(mesh)
dist.destroy_process_group()
