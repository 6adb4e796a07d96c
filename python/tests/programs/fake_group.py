# SPDX-License-Identifier: BSD-3-Clause
"""Trains as one rank of PyTorch's fake process group, which communicates
nothing: shapes, placements and collectives are those of a rank of 64."""

import sys

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard
from torch.distributed.tensor import distribute_tensor
from torch.distributed.tensor.debug import CommDebugMode
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel
from torch.distributed.tensor.parallel import loss_parallel, parallelize_module
from torch.testing._internal.distributed.fake_pg import FakeStore

rank = int(sys.argv[1])
dist.init_process_group("fake", rank=rank, world_size=64, store=FakeStore())
mesh = init_device_mesh("cpu", (4, 16), mesh_dim_names=("dp", "tp"))


def expect(tensor, placements, local_shape):
    assert tensor.placements == tuple(placements), tensor.placements
    assert tuple(tensor.to_local().shape) == local_shape, tensor.to_local().shape


rows = [Shard(0), Shard(1)]
x = distribute_tensor(torch.ones(64, 32), mesh, rows)
expect(x, rows, (16, 2))
expect(x @ x.t(), [Shard(0), Partial()], (16, 64))
expect(x.redistribute(placements=[Shard(0), Shard(0)]), [Shard(0), Shard(0)], (1, 32))
expect(DTensor.from_local(torch.ones(4, 4), mesh, rows, run_check=True), rows, (4, 4))
assert x.full_tensor().shape == (64, 32)
assert isinstance(x.sum().item(), float)
# Ranks without elements receive elements here.
last = 35 - 3 * 9
own = (9 if rank // 16 < 3 else last, 1 if rank % 16 < 7 else 0)
expect(distribute_tensor(torch.ones(35, 7), mesh, rows), rows, own)

model = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 32))
rowwise = RowwiseParallel(output_layouts=Shard(-1), use_local_output=False)
parallelize_module(model, mesh["tp"], {"0": ColwiseParallel(), "2": rowwise})
for module in model[0], model:
    fully_shard(module, mesh=mesh["dp"])
optimizer = torch.optim.AdamW(model.parameters())
with CommDebugMode() as counts, loss_parallel():
    logits = model(torch.ones(8, 32, requires_grad=True))
    F.cross_entropy(logits, torch.arange(8)).backward()
assert counts.get_total_counts() > 0
assert nn.utils.clip_grad_norm_(model.parameters(), 1.0).shape == ()
optimizer.step()
assert model[2].weight.placements == (Shard(0), Shard(1))
assert model[2].bias.placements == (Shard(0), Replicate())
dist.destroy_process_group()
sys.stdout.write("correct\n")
