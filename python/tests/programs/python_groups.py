# SPDX-License-Identifier: BSD-3-Clause
"""Trains over process groups that are written in Python."""

import sys
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import nn
from torch._C._distributed_c10d import _create_work_from_future
from torch.distributed import distributed_c10d as c10d
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Partial, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    parallelize_module,
)
from torch.futures import Future

import dtensor


class Named(dist.ProcessGroup):
    """A process group without backends of C++, which would keep its name."""

    @property
    def group_name(self):
        return c10d._world.pg_names[self]


class Blocking(Named):
    """Methods that return completed work."""

    def __init__(self, store, rank, size, timeout):
        super().__init__(rank, size)
        self.gloo = dist.ProcessGroupGloo(store, rank, size, timeout)

    def carry(self, name, *args):
        getattr(self.gloo, name)(*args).wait()

    def done(self, name, *args):
        self.carry(name, *args)
        result = Future()
        result.set_result(None)
        return _create_work_from_future(result)

    def allreduce(self, tensors, opts):
        return self.done("allreduce", tensors, opts)

    def _allgather_base(self, output, input, opts):
        return self.done("_allgather_base", output, input, opts)

    def alltoall_base(self, output, input, output_sizes, input_sizes, opts):
        return self.done(
            "alltoall_base", output, input, output_sizes, input_sizes, opts
        )

    def broadcast(self, tensors, opts):
        return self.done("broadcast", tensors, opts)

    def barrier(self, opts):
        return self.done("barrier", opts)


class InThread(Blocking):
    """Methods whose work a Python thread completes."""

    def __init__(self, *args):
        super().__init__(*args)
        self.thread = ThreadPoolExecutor(1)

    def done(self, name, *args):
        result = Future()

        def carry():
            self.carry(name, *args)
            result.set_result(None)

        self.thread.submit(carry)
        return _create_work_from_future(result)


class PythonWork(dist.Work):
    """Work whose wait is Python."""

    def __init__(self, begun):
        super().__init__()
        self.begun = begun

    def wait(self, timeout=timedelta(0)):
        self.begun.wait()
        return True


class Lazy(Blocking):
    """Methods whose work is a Python class."""

    def done(self, name, *args):
        return PythonWork(getattr(self.gloo, name)(*args))


class Coalesced(Named):
    """Only the methods that PyTorch's functional collectives need."""

    def __init__(self, *args):
        super().__init__(args[1], args[2])
        self.group = Blocking(*args)

    def allreduce_coalesced(self, tensors, opts):
        one = dist.AllreduceOptions()
        one.reduceOp = opts.reduceOp
        for tensor in tensors:
            work = self.group.allreduce([tensor], one)
        return work

    def allgather_into_tensor_coalesced(self, outputs, inputs, opts):
        for output, input in zip(outputs, inputs):
            work = self.group._allgather_base(output, input, opts)
        return work

    def broadcast(self, tensors, opts):
        return self.group.broadcast(tensors, opts)


GROUPS = {
    "blocking": Blocking,
    "in_thread": InThread,
    "lazy": Lazy,
    "coalesced": Coalesced,
}
for name, group in GROUPS.items():
    dist.Backend.register_backend(name, group, devices=["cpu"])


def check_redistributions(mesh):
    full = torch.arange(15.0).view(5, 3)
    x = distribute_tensor(full, mesh, [Shard(0)])
    assert torch.equal(x.full_tensor(), full)
    y = x.redistribute(placements=[Shard(1)], async_op=True)
    assert torch.equal(y.full_tensor(), full)
    assert torch.equal(x[4].full_tensor(), full[4])  # holds the GIL
    terms = dtensor.tensor.DTensor.from_local(full, mesh, [Partial()])
    summed = terms.redistribute(placements=[Shard(0)])
    assert torch.equal(summed.full_tensor(), full * mesh.size())
    assert terms.sum().full_tensor() == full.sum() * mesh.size()


def check_training(mesh):
    def mlp():
        # Threads of these groups share one random generator.
        model = nn.Sequential(nn.Linear(8, 12), nn.ReLU(), nn.Linear(12, 8))
        for p in model.parameters():
            p.data = torch.linspace(-0.5, 0.5, p.numel()).sin().view(p.shape)
        return model

    data = torch.linspace(-1, 1, 32).view(4, 8)
    plain, model = mlp(), mlp()
    parallelize_module(model, mesh, {"0": ColwiseParallel(), "2": RowwiseParallel()})
    for trained in (plain, model):
        optimizer = torch.optim.AdamW(trained.parameters(), lr=0.1)
        for _ in range(3):
            optimizer.zero_grad()
            trained(data).pow(2).sum().backward()
            optimizer.step()
    for p, q in zip(model.parameters(), plain.parameters()):
        torch.testing.assert_close(p.full_tensor(), q)


def check_sub_groups(size):
    """The engine makes a group of the ranks of both mesh dimensions."""
    mesh = init_device_mesh("cpu", (1, size), mesh_dim_names=("dp", "tp"))
    full = torch.arange(6.0)
    x = distribute_tensor(full, mesh, [Shard(0), Shard(0)])
    y = x.redistribute(placements=[Replicate(), Replicate()])
    assert torch.equal(y.to_local(), full)


def main(backend, **where):
    dist.init_process_group(backend, **where)
    size = dist.get_world_size()
    mesh = init_device_mesh("cpu", (size,), mesh_dim_names=("tp",))
    check_redistributions(mesh)
    check_training(mesh)
    check_sub_groups(size)
    dist.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1])
    sys.stdout.write("correct\n")  # one write, as ranks share the pipe
