# SPDX-License-Identifier: BSD-3-Clause
"""Counterpart of mlp.cpp with Python's DTensor and its fake process group."""

import harness
import torch
import torch.nn as nn
from torch.distributed.tensor import init_device_mesh
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    parallelize_module,
)

SIDE = 8


class MLP(nn.Module):
    def __init__(self):
        super().__init__()
        self.w1, self.w2 = nn.Linear(SIDE, 2 * SIDE), nn.Linear(2 * SIDE, SIDE)

    def forward(self, x):
        return self.w2(torch.relu(self.w1(x)))


def train(mlp, x):
    mlp.zero_grad(set_to_none=True)
    mlp(x).sum().backward()


def make_models(mesh):
    """Returns a plain and a tensor-parallel MLP."""
    parallel = parallelize_module(
        MLP(),
        mesh,
        {"w1": ColwiseParallel(), "w2": RowwiseParallel()},
        src_data_rank=None,
    )
    return MLP(), parallel


def run_world(world_size, options):
    plain, parallel = make_models(init_device_mesh("cpu", (world_size,)))
    x = torch.randn(SIDE, SIDE)
    with torch.no_grad():
        harness.run_pair(
            f"mlp/no_grad/{world_size}",
            lambda: parallel(x),
            lambda: plain(x),
            options,
        )
    harness.run_pair(
        f"mlp/grad/{world_size}",
        lambda: train(parallel, x),
        lambda: train(plain, x),
        options,
    )


if __name__ == "__main__":
    options = harness.parse(__doc__)
    torch.set_num_threads(1)
    for world_size in (2, 8):
        with harness.fake_world(world_size):
            run_world(world_size, options)
