# SPDX-License-Identifier: BSD-3-Clause
"""Programs like the examples of PyTorch's pages torch.distributed.tensor and
torch.distributed.tensor.parallel, on the CPU, with checks of the results."""

import os
import sys

import torch
import torch.nn as nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import (
    DTensor,
    Partial,
    Replicate,
    Shard,
    distribute_module,
    distribute_tensor,
)
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    PrepareModuleInput,
    PrepareModuleOutput,
    RowwiseParallel,
    SequenceParallel,
    loss_parallel,
    parallelize_module,
)

world_size = int(os.environ["WORLD_SIZE"])

# torch.distributed.tensor: the opening example.
mesh = init_device_mesh("cpu", (int(os.environ["WORLD_SIZE"]),))
big_tensor = torch.randn(100000, 88)
my_dtensor = distribute_tensor(big_tensor, mesh, [Shard(dim=0)])
assert my_dtensor.to_local().shape == (100000 // world_size, 88)
assert my_dtensor.full_tensor().shape == (100000, 88)

# DeviceMesh of two dimensions, and distribute_module().
if world_size == 4:
    mesh_2d = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
    x = distribute_tensor(torch.arange(24.0).view(4, 6), mesh_2d, [Shard(0), Shard(1)])
    assert x.to_local().shape == (2, 3)
    assert torch.equal(x.full_tensor(), torch.arange(24.0).view(4, 6))


class MyModule(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc1 = nn.Linear(8, 8)
        self.fc2 = nn.Linear(8, 8)
        self.relu = nn.ReLU()

    def forward(self, input):
        return self.relu(self.fc1(input) + self.fc2(input))


def shard_params(mod_name, mod, mesh):
    col_linear_placement = [Shard(0)]
    # shard fc1 and fc2
    if isinstance(mod, nn.Linear):
        for name, param in mod.named_parameters():
            dist_param = nn.Parameter(
                distribute_tensor(param, mesh, col_linear_placement)
            )
            mod.register_parameter(name, dist_param)


sharded_module = distribute_module(MyModule(), mesh, partition_fn=shard_params)
assert sharded_module.fc1.weight.placements == (Shard(0),)
replicated = DTensor.from_local(torch.ones(2, 8), mesh, [Replicate()])
sharded_module(replicated).sum().backward()
assert sharded_module.fc2.weight.grad.placements == (Shard(0),)


# torch.distributed.tensor.parallel: the examples of each style.
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.norm = nn.LayerNorm(8)
        self.w1 = nn.Linear(8, 16)
        self.w2 = nn.Linear(16, 8)

    def forward(self, x):
        return self.w2(torch.relu(self.w1(self.norm(x))))


tp_mesh = init_device_mesh("cpu", (world_size,))
m, plain = Model(), Model()
sharded_mod = parallelize_module(
    m, tp_mesh, {"w1": ColwiseParallel(), "w2": RowwiseParallel()}
)
x = torch.randn(2, 4, 8)
torch.testing.assert_close(sharded_mod(x), plain(x))

m = Model()
sharded_mod = parallelize_module(
    m,
    tp_mesh,
    {
        "norm": SequenceParallel(),
        "w1": PrepareModuleInput(
            input_layouts=(Shard(1),), desired_input_layouts=(Replicate(),)
        ),
        "w2": PrepareModuleOutput(
            output_layouts=Replicate(), desired_output_layouts=Shard(1)
        ),
    },
)
sequence = distribute_tensor(x, tp_mesh, [Shard(1)])
y = sharded_mod.norm(sequence)
assert y.placements == (Shard(1),)
torch.testing.assert_close(y.full_tensor(), plain.norm(x))

# loss_parallel
dist_input = distribute_tensor(
    torch.randn(4, 16, requires_grad=True), tp_mesh, placements=[Shard(1)]
)
target = torch.randint(16, (4,))
with loss_parallel():
    loss = nn.functional.cross_entropy(dist_input, target, reduction="mean")
    loss.backward()
torch.testing.assert_close(
    loss.full_tensor(),
    nn.functional.cross_entropy(dist_input.full_tensor(), target),
)
assert Partial().reduce_op == "sum"
torch.distributed.destroy_process_group()
sys.stdout.write("correct\n")  # one write, as ranks share the pipe
