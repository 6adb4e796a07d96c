# SPDX-License-Identifier: BSD-3-Clause
"""Registers sharding rules with PyTorch before this package is imported."""

import pytest
import torch
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.distributed.tensor._ops.utils import register_op_strategy
from torch.distributed.tensor.experimental import register_sharding

calls = []


def keep(register):
    """Holds PyTorch's function in a place where the package cannot replace it."""
    return lambda op: register(op)


held = keep(register_sharding)


@register_sharding(torch.ops.aten.heaviside.default)
def heaviside_rule(x, values):
    calls.append("heaviside")
    return [([Shard(1)], [Shard(1), Replicate()])]


@register_op_strategy(torch.ops.aten.digamma.default)
def digamma_strategy(schema):
    raise AssertionError("PyTorch's dispatcher ran")


import dtensor.as_torch  # noqa: E402, F401
from torch.distributed.tensor import distribute_tensor, init_device_mesh  # noqa: E402

import dtensor  # noqa: E402


@held(torch.ops.aten.erfinv.default)
def erfinv_rule(x):
    calls.append("erfinv")
    return [([Shard(1)], [Shard(1)])]


def check():
    mesh = init_device_mesh("cpu", (2,))
    full = torch.tensor([[-1.0, 0.0], [2.0, 0.0]])
    x = distribute_tensor(full, mesh, [Shard(1)])
    half = distribute_tensor(torch.tensor(0.5), mesh)
    y = torch.heaviside(x, half)
    assert torch.equal(y.full_tensor(), torch.heaviside(full, torch.tensor(0.5)))
    torch.erfinv(x / 4)
    assert {*calls} == {"heaviside", "erfinv"}
    with pytest.raises(NotImplementedError, match=r"digamma.*register_sharding"):
        torch.digamma(x)


calls_of_registration = [
    lambda: register_op_strategy(torch.ops.aten.sgn.default)(digamma_strategy),
    lambda: dtensor.tensor.DTensor._op_dispatcher.sharding_propagator
    .register_op_strategy(torch.ops.aten.sgn.default, digamma_strategy),
]
for register in calls_of_registration:
    with pytest.raises(NotImplementedError, match=r"aten::sgn.*register_sharding"):
        register()
dtensor.run_world(2, check)
print("correct")
