# SPDX-License-Identifier: BSD-3-Clause
"""Fails on one rank while the other waits for it."""

import sys

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard, distribute_tensor

dist.init_process_group(sys.argv[1])
mesh = init_device_mesh("cpu", (dist.get_world_size(),))
x = distribute_tensor(torch.ones(4), mesh, [Shard(0)])
if dist.get_rank() == 1:
    raise ValueError("rank 1 stops")
x.full_tensor()
