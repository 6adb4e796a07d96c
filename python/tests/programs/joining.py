# SPDX-License-Identifier: BSD-3-Clause
"""Trains with DistributedDataParallel on batches of which rank 1 has more, in its
join() scope. Prints the weights, which are equal on all ranks."""

import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.used = nn.Parameter(torch.ones(3))
        self.unused = nn.Parameter(torch.ones(2, 2))

    def forward(self, x):
        return (x * self.used).sum()


def train(model, batches):
    """Trains on `batches` batches, whose gradients are 1 on rank 0, 3 on rank 1."""
    parallel = DistributedDataParallel(model, find_unused_parameters=True)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    with parallel.join():
        for _ in range(batches):
            optimizer.zero_grad()
            parallel(torch.full((3,), 1.0 + 2 * dist.get_rank())).backward()
            optimizer.step()
    return [p.tolist() for p in model.parameters()]


dist.init_process_group(sys.argv[1])
model = Model()
if sys.argv[2] == "one":
    del model.unused
weights = train(model, 1 + 2 * dist.get_rank())
dist.destroy_process_group()
sys.stdout.write(f"{weights}\n")  # one write, as ranks share the pipe
