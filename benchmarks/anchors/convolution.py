# SPDX-License-Identifier: BSD-3-Clause
"""Counterpart of the call in convolution.cpp with Python's DTensor and its fake
process group."""

import harness
import torch
import torch.nn.functional as F
from torch.distributed.tensor import Replicate, Shard, init_device_mesh

CHANNELS, SAMPLES, SIDE = 2, 2, 8


def run_world(world_size, options):
    mesh = init_device_mesh("cpu", (world_size,))
    x, plain_x = harness.make(mesh, [Shard(0)], (SAMPLES, CHANNELS, SIDE, SIDE))
    weight, kernel = harness.make(mesh, [Replicate()], (CHANNELS, CHANNELS, 3, 3))
    with torch.no_grad():
        harness.run_pair(
            f"convolution/call/{world_size}",
            lambda: F.conv2d(x, weight, padding=1),
            lambda: F.conv2d(plain_x, kernel, padding=1),
            options,
        )


if __name__ == "__main__":
    options = harness.parse(__doc__)
    torch.set_num_threads(1)
    with harness.fake_world(2):
        run_world(2, options)
