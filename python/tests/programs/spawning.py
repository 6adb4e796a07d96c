# SPDX-License-Identifier: BSD-3-Clause
"""Starts ranks with the method "spawn", which import this program again. A process
that a rank spawns uses the package, too."""

import sys

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Shard, distribute_tensor


def check_class(rank):
    from dtensor import tensor

    assert DTensor is tensor.DTensor, rank


def check_rank(rank, port):
    check_class(rank)
    dist.init_process_group(
        "gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=2
    )
    mesh = init_device_mesh("cpu", (2,))
    x = distribute_tensor(torch.arange(6.0), mesh, [Shard(0)])
    assert isinstance(x, DTensor) and type(x) is torch.Tensor
    assert x.to_local().tolist() == [[0.0, 1.0, 2.0], [3.0, 4.0, 5.0]][rank]
    dist.destroy_process_group()
    if rank == 0:
        mp.spawn(check_class)


if __name__ == "__main__":
    mp.spawn(check_rank, (int(sys.argv[1]),), nprocs=2)
    sys.stdout.write("correct\n")
