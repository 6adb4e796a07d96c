# SPDX-License-Identifier: BSD-3-Clause
"""Tests of the arguments that rules of register_sharding() get. They are those of
PyTorch, where defaults are left out."""

import pytest
import torch
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor
from torch.distributed.tensor._dtensor_spec import DTensorSpec
from torch.distributed.tensor.experimental import register_sharding

import dtensor

LIBRARY = torch.library.Library("dtensor_rules", "DEF")
LIBRARY.define(
    "options(Tensor x, int[] dims, int count=1, float scale=1.0, *, "
    "ScalarType? dtype=None, Layout? layout=None, MemoryFormat? memory_format=None, "
    "str mode='plain') -> Tensor"
)
LIBRARY.define("pick(Tensor x, Tensor?[] indices, Tensor y) -> Tensor")
LIBRARY.define("total(Tensor[] parts, Tensor? weight=None) -> Tensor")


def add_one(x, *args, **options):
    return x + 1


def pick(x, indices, y):
    return x + y + sum(i for i in indices if i is not None)


def total(parts, weight=None):
    return sum(parts) * (1 if weight is None else weight)


for name, function in (("options", add_one), ("pick", pick), ("total", total)):
    LIBRARY.impl(name, function, "CompositeExplicitAutograd")

#: Arguments of the latest call of a rule.
latest: dict = {}


def layouts(value):
    """Replaces DTensorSpecs by their placements."""
    if isinstance(value, DTensorSpec):
        return value.placements[0]
    if isinstance(value, (list, tuple)):
        return type(value)(layouts(v) for v in value)
    assert not isinstance(value, DTensor)
    return value


def record(count):
    """Returns the strategy of `count` sharded tensors and one result."""

    def rule(*args, **options):
        latest["args"] = layouts(args)
        latest["options"] = options
        return [([Shard(0)], [Shard(0)] * count)]

    return rule


#: Results of rules that are errors, by the name of the operator.
REFUSED = {
    "none": None,
    "number": 1,
    "one": [([Shard(0)],)],
    "three": [([Shard(0)],) * 3],
    "flat": [(Shard(0), Shard(0))],
    "mixed": [([Shard(0)], [Shard(0)]), [Shard(0)]],
}
for name, result in REFUSED.items():
    LIBRARY.define(f"{name}(Tensor x) -> Tensor")
    LIBRARY.impl(name, add_one, "CompositeExplicitAutograd")
    register_sharding(getattr(torch.ops.dtensor_rules, name).default)(
        lambda x, result=result: result
    )

register_sharding(torch.ops.dtensor_rules.options.default)(record(1))
register_sharding(torch.ops.dtensor_rules.pick.default)(record(3))
register_sharding(torch.ops.dtensor_rules.total.default)(record(2))

S, R = Shard(0), Replicate()
OPTIONS = torch.ops.dtensor_rules.options
PICK = torch.ops.dtensor_rules.pick
TOTAL = torch.ops.dtensor_rules.total


@pytest.mark.parametrize(
    ("call", "args", "options"),
    [
        (lambda x, y: OPTIONS(x, [0, 1]), (S, [0, 1]), {}),
        (lambda x, y: OPTIONS(x, [0], 1, 1.0), (S, [0]), {}),
        (lambda x, y: OPTIONS(x, [0], 1, 2.5), (S, [0], 1, 2.5), {}),
        (lambda x, y: OPTIONS(x, [], 3), (S, [], 3), {}),
        (lambda x, y: OPTIONS(x, [], mode="plain"), (S, []), {}),
        (lambda x, y: OPTIONS(x, [], mode="other"), (S, []), {"mode": "other"}),
        (
            lambda x, y: OPTIONS(
                x,
                [],
                dtype=torch.float64,
                layout=torch.strided,
                memory_format=torch.contiguous_format,
            ),
            (S, []),
            {
                "dtype": torch.float64,
                "layout": torch.strided,
                "memory_format": torch.contiguous_format,
            },
        ),
        (lambda x, y: PICK(x, [y], x), (S, (R,), S), {}),
        (lambda x, y: PICK(x, [None, y], x), (S, [None, R], S), {}),
        (lambda x, y: PICK(x, [y, None], x), (S, [R, None], S), {}),
        (lambda x, y: TOTAL([x, y]), ((S, R),), {}),
        (lambda x, y: TOTAL([x], y), ((S,), R), {}),
    ],
)
def test_rules_get_the_arguments_of_pytorch(call, args, options):
    def check():
        mesh = init_device_mesh("cpu", (1,))
        x = distribute_tensor(torch.ones(4, 2), mesh, [S])
        y = distribute_tensor(torch.ones(4, 2), mesh, [R])
        latest.clear()
        call(x, y)

    dtensor.run_world(1, check)
    assert latest == {"args": args, "options": options}


@pytest.mark.parametrize("name", REFUSED)
def test_rules_that_return_no_pairs_are_errors(name):
    def check():
        mesh = init_device_mesh("cpu", (1,))
        x = distribute_tensor(torch.ones(4), mesh, [S])
        with pytest.raises(TypeError) as caught:
            getattr(torch.ops.dtensor_rules, name)(x)
        return str(caught.value)

    assert dtensor.run_world(1, check) == [
        f"[dtensor_rules::{name}] the rule returned {REFUSED[name]!r}. Return a list "
        "of pairs: the placements of the results, and those of the arguments."
    ]
