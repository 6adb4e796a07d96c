# SPDX-License-Identifier: BSD-3-Clause
"""Loads data in processes that a rank forks, and trains on it. The forked
processes end without an effect on the ranks."""

import os
import sys

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard, distribute_tensor
from torch.utils.data import DataLoader, TensorDataset

dist.init_process_group(sys.argv[1])
mesh = init_device_mesh("cpu", (dist.get_world_size(),))
weight = distribute_tensor(torch.ones(4, 3), mesh, [Shard(0)]).requires_grad_()
rows = torch.arange(24.0).view(8, 3)
total = 0.0
loader = DataLoader(
    TensorDataset(rows), batch_size=2, num_workers=2, multiprocessing_context="fork"
)
for (batch,) in loader:
    loss = (distribute_tensor(batch, mesh) @ weight.t()).sum()
    loss.backward()
    total += loss.full_tensor().item()
assert total == 4 * rows.sum().item(), total
expected = rows.sum(0).expand(4, 3)
assert torch.equal(weight.grad.full_tensor(), expected)

child = os.fork()
if child == 0:
    assert torch.equal(rows + 1, rows.add(1))
    sys.exit(7)  # runs the exit handlers of the interpreter
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
assert torch.equal(weight.full_tensor(), torch.ones(4, 3))
dist.destroy_process_group()
sys.stdout.write("correct\n")  # one write, as ranks share the pipe
