# SPDX-License-Identifier: BSD-3-Clause
"""Trains over processes, whose hooks communicate, and saves a checkpoint."""

import os
import sys
import tempfile

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as checkpoint
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Replicate, rand
from torch.distributed.tensor.debug import CommDebugMode
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    parallelize_module,
)

from dtensor import _C

DATA = torch.linspace(-1, 1, 32).view(4, 8)


def check_random_numbers(mesh):
    """Checks that draws agree between ranks without a seed, and follow
    torch.manual_seed()."""
    x = rand(3, device_mesh=mesh, placements=[Replicate()]).to_local()
    drawn = [torch.empty(3) for _ in range(mesh.size())]
    dist.all_gather(drawn, x)
    assert all(torch.equal(d, x) for d in drawn)
    torch.manual_seed(0)
    expected = torch.rand(2)
    torch.manual_seed(0)
    assert torch.equal(torch.rand(2), expected)


def mlp():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 12), nn.ReLU(), nn.Linear(12, 8))


def train(mesh):
    """Returns a plain model and a parallel model, trained in the same way."""
    plain, model = mlp(), mlp()
    parallelize_module(model, mesh, {"0": ColwiseParallel(), "2": RowwiseParallel()})
    assert isinstance(model[0].weight, DTensor)
    sums = []
    model[0].weight.register_hook(lambda grad: sums.append(grad.full_tensor().sum()))
    for trained in (plain, model):
        optimizer = torch.optim.AdamW(trained.parameters(), lr=0.1)
        for _ in range(3):
            optimizer.zero_grad()
            trained(DATA).pow(2).sum().backward()
            optimizer.step()
    assert len(sums) == 3
    comm = CommDebugMode()
    with comm:
        model(DATA)
    counts = comm.get_comm_counts()
    assert counts[torch.ops.c10d_functional.all_reduce] == 1, counts
    return plain, model


def assert_same(plain, model):
    for p, q in zip(model.parameters(), plain.parameters()):
        torch.testing.assert_close(p.full_tensor(), q)


def check_checkpoint(plain, model):
    """Saves and loads in folders of rank 0. The asynchronous save writes the values
    of its call."""
    for save in (checkpoint.save, checkpoint.async_save):
        folder = [tempfile.mkdtemp() if dist.get_rank() == 0 else None]
        dist.broadcast_object_list(folder, src=0)
        state = {"model": model.state_dict()}
        saved = save(state, checkpoint_id=folder[0])
        with torch.no_grad():
            for p in model.parameters():
                p.zero_()
        if save is checkpoint.async_save:
            saved.result()
        checkpoint.load(state, checkpoint_id=folder[0])
        assert_same(plain, model)


# One world per process: PyTorch's groups leave addresses in the launcher's store,
# and a second world could read those of the first.
backend, transport = sys.argv[1:]
os.environ["DTENSOR_BACKEND"] = transport
dist.init_process_group(backend)
assert _C.in_own_world() == (transport != "torch")
size = dist.get_world_size()
mesh = init_device_mesh("cpu", (size,), mesh_dim_names=("tp",))
check_random_numbers(mesh)
plain, model = train(mesh)
assert_same(plain, model)
check_checkpoint(plain, model)
del plain, model
dist.destroy_process_group()
sys.stdout.write(f"trained on {size}\n")  # one write, as ranks share the pipe
