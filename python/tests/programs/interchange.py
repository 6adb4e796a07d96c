# SPDX-License-Identifier: BSD-3-Clause
"""Saves DTensors by torch.save(), or loads DTensors that this package or PyTorch's
own DTensor saved.

    interchange.py save FOLDER
    interchange.py load FOLDER [without_meshes]
"""

import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import (
    DTensor,
    Partial,
    Replicate,
    Shard,
    distribute_tensor,
)
from torch.distributed.tensor.parallel import ColwiseParallel, parallelize_module

FULL = torch.arange(35.0).view(5, 7)


def meshes():
    size = dist.get_world_size()
    flat = init_device_mesh("cpu", (size,), mesh_dim_names=("tp",))
    square = init_device_mesh("cpu", (1, size), mesh_dim_names=("dp", "tp"))
    return flat, square


def trained(mesh):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(7, 4), nn.Linear(4, 2))
    parallelize_module(model[0], mesh, ColwiseParallel())
    optimizer = torch.optim.SGD(model[0].parameters(), lr=1.0, momentum=0.5)
    model[0](FULL).sum().backward()
    optimizer.step()
    return {"model": model.state_dict(), "optimizer": optimizer.state_dict()}


def make():
    flat, square = meshes()
    sharded = distribute_tensor(FULL, flat, [Shard(0)])
    leaf = distribute_tensor(FULL.double(), flat, [Shard(1)]).requires_grad_()
    frozen = nn.Parameter(sharded, requires_grad=False)
    frozen.note = "kept"
    return {
        "sharded": sharded,
        "leaf": leaf,
        "partial": DTensor.from_local(FULL, flat, [Partial()]),
        "two": distribute_tensor(FULL, square, [Replicate(), Shard(1)]),
        "parameter": nn.Parameter(leaf),
        "frozen": frozen,
        **trained(flat),
    }


def check(loaded):
    size = dist.get_world_size()
    for name, value, placements in (
        ("sharded", FULL, (Shard(0),)),
        ("leaf", FULL.double(), (Shard(1),)),
        ("partial", FULL * size, (Partial(),)),
        ("two", FULL, (Replicate(), Shard(1))),
        ("parameter", FULL.double(), (Shard(1),)),
        ("frozen", FULL, (Shard(0),)),
    ):
        tensor = loaded[name]
        assert isinstance(tensor, DTensor), name
        assert tensor.placements == placements, name
        assert torch.equal(tensor.full_tensor(), value), name
        assert tensor.requires_grad == (name in ("leaf", "parameter")), name
        is_parameter = name in ("parameter", "frozen")
        assert isinstance(tensor, nn.Parameter) == is_parameter, name
    assert loaded["frozen"].note == "kept"
    expected = trained(loaded["sharded"].device_mesh)
    weight = loaded["model"]["0.weight"]
    assert weight.placements == (Shard(0),)
    assert torch.equal(
        weight.full_tensor(), expected["model"]["0.weight"].full_tensor()
    )
    assert torch.equal(loaded["model"]["1.bias"], expected["model"]["1.bias"])
    momentum = loaded["optimizer"]["state"][0]["momentum_buffer"]
    assert momentum.placements == (Shard(0),)
    (loaded["leaf"] * 2).sum().backward()
    assert torch.equal(
        loaded["leaf"].grad.full_tensor(), torch.full_like(FULL, 2).double()
    )


what, folder, *options = sys.argv[1:]
dist.init_process_group("gloo")
path = f"{folder}/{dist.get_rank()}.pt"
if what == "save":
    torch.save(make(), path)
else:
    kept = None if options else meshes()
    for weights_only in (True, False):
        check(torch.load(path, weights_only=weights_only))
dist.barrier()
dist.destroy_process_group()
sys.stdout.write("correct\n")
