# SPDX-License-Identifier: BSD-3-Clause
"""Tests that each public function refuses arguments of wrong types with an error
of this library, not with signatures of C++."""

import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist
from test_reference import documented, parameters_of
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import (
    DTensor,
    Replicate,
    Shard,
    distribute_tensor,
    empty,
    full,
    ones,
    rand,
    randn,
    zeros,
)
from torch.distributed.tensor._random import manual_seed
from torch.distributed.tensor._utils import ExplicitRedistributionContext
from torch.distributed.tensor.experimental import context_parallel, register_sharding
from torch.distributed.tensor.experimental._attention import (
    context_parallel_unshard,
    set_rotate_method,
)

import dtensor


class Strange:
    """No function expects this type."""


STRANGE = Strange()
WRONG = [STRANGE, "wrong", 1.5, 10**30, [STRANGE], ["wrong"], {"a": 1}, torch.ones(2, 2)]


def entered(context: Any) -> None:
    with context:
        pass


def factory(function: Callable) -> tuple[Callable, dict[str, Any]]:
    options = {"dtype": None, "layout": torch.strided, "requires_grad": False}
    size = {"size": (4, 2)} if function is full else {"size": 4}

    def call(size: Any, **arguments: Any) -> Any:
        return function(size, **arguments)

    return call, {**size, **options, "device_mesh": None, "placements": [Shard(0)]}


def calls() -> dict[str, tuple[Callable, dict[str, Any]]]:
    """Returns a function, and valid arguments for it, for each public name that
    has parameters."""
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    x = distribute_tensor(torch.ones(4, 2), mesh, [Shard(0)])
    where = {"device_mesh": mesh, "placements": [Shard(0)]}
    grads = {"grad_placements": [Shard(0)]}
    factories = {f.__name__: factory(f) for f in (zeros, ones, empty, rand, randn)}
    call, arguments = factory(full)
    factories["full"] = call, {**arguments, "fill_value": 1.0}
    buffers = {"mesh": mesh, "buffers": [torch.ones(4, 2)]}
    shape = {"shape": (4, 2), "stride": (2, 1)}
    return {
        "dtensor.Shard": (
            lambda **given: zeros(
                4, device_mesh=mesh, placements=[dtensor.Shard(**given)]
            ),
            {"dim": 0, "unit": 2},
        ),
        "dtensor.tensor.DTensor": (
            DTensor,
            {"local_tensor": torch.ones(4, 2), "spec": x._spec, "requires_grad": False},
        ),
        "dtensor.tensor.DTensor.from_local": (
            DTensor.from_local,
            {"local_tensor": torch.ones(4, 2), "run_check": False}
            | {**where, **shape, **grads},
        ),
        "dtensor.tensor.DTensor.to_local": (x.to_local, grads),
        "dtensor.tensor.DTensor.full_tensor": (x.full_tensor, grads),
        "dtensor.tensor.DTensor.redistribute": (
            x.redistribute,
            {**where, "async_op": False, "forward_dtype": None, "backward_dtype": None},
        ),
        "dtensor.tensor.distribute_tensor": (
            distribute_tensor,
            {"tensor": torch.ones(4, 2), **where, "src_data_rank": 0},
        ),
        **{
            f"dtensor.factories.{name}": (call, {**arguments, "device_mesh": mesh})
            for name, (call, arguments) in factories.items()
        },
        "dtensor.random_numbers.manual_seed": (
            manual_seed,
            {"seed": 0, "device_mesh": mesh},
        ),
        "dtensor.scopes.ExplicitRedistributionContext": (
            lambda **given: entered(ExplicitRedistributionContext(**given)),
            {"enable": True, "strict": False, "mode": "raise"},
        ),
        "dtensor.scopes.register_sharding": (
            lambda op: register_sharding(op)(lambda *args: []),
            {"op": []},
        ),
        "dtensor.context_parallel.context_parallel": (
            lambda **given: entered(context_parallel(**given)),
            {**buffers, "buffer_seq_dims": [0], "no_restore_buffers": None},
        ),
        "dtensor.context_parallel.context_parallel_unshard": (
            context_parallel_unshard,
            {**buffers, "seq_dims": [0], "load_balancer": None},
        ),
        "dtensor.context_parallel.set_rotate_method": (
            set_rotate_method,
            {"rotate_method": "allgather"},
        ),
    }


#: Names that take every object, or have no parameters.
UNCHECKED = {"dtensor.is_dtensor", "dtensor.run_world"}
NAMES = sorted(
    name
    for name, value in documented().items()
    if name not in UNCHECKED and parameters_of(value)
)


#: Arguments for which every other value is a NotImplementedError.
UNSUPPORTED = ("load_balancer",)
IN_WORDS = re.compile(r"\[[\w:. ]+\] [^\n]*\w[^\n]*\.")
FROM_CPP = re.compile(r"incompatible|at::|std::|_C\b|C\+\+ type|Python instance")


def is_refused_in_words(error: Exception | None, parameter: str, wrong: Any) -> bool:
    if error is None:
        return wrong is not STRANGE
    if not isinstance(error, TypeError) and wrong is STRANGE:
        return parameter in UNSUPPORTED
    return bool(IN_WORDS.fullmatch(str(error))) and not FROM_CPP.search(str(error))


def error_of(function: Callable, arguments: dict[str, Any]) -> Exception | None:
    try:
        function(**arguments)
    except Exception as error:
        return error
    return None


def complaints(name: str) -> list[str]:
    """Returns the errors that are not errors of this library."""
    function, arguments = calls()[name]
    function(**arguments)
    found = []
    for parameter in arguments:
        for wrong in WRONG:
            error = error_of(function, {**arguments, parameter: wrong})
            if not is_refused_in_words(error, parameter, wrong):
                found.append(f"{parameter}={wrong!r:.30}: {error!r}")
    return found


def test_all_public_functions_are_checked():
    assert dtensor.run_world(1, lambda: sorted(calls()))[0] == NAMES


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.filterwarnings("ignore")
def test_arguments_of_wrong_types_are_refused_in_words(name):
    assert dtensor.run_world(1, lambda: complaints(name)) == [[]]


@pytest.mark.parametrize(
    ("error", "text", "arguments"),
    [
        (TypeError, "expected an integer as ranks, got str 'a'", ("a", print)),
        (TypeError, "expected an integer as ranks, got float 2.0", (2.0, print)),
        (TypeError, "expected an integer as ranks, got None", (None, print)),
        (TypeError, "expected a callable as function, got int 3", (2, 3)),
        (ValueError, "the number of ranks must be positive: 0", (0, print)),
        (ValueError, "the number of ranks must be positive: -1", (-1, print)),
        (ValueError, "the number of ranks must be positive: 1000", (10**30, print)),
    ],
)
def test_run_world_refuses_arguments_in_words(error, text, arguments):
    with pytest.raises(error, match=re.escape(f"[run_world] {text}")):
        dtensor.run_world(*arguments)


def test_the_error_of_full():
    def check():
        mesh = init_device_mesh("cpu", (1,))
        with pytest.raises(TypeError) as caught:
            full((3,), "a", device_mesh=mesh)
        return str(caught.value)

    assert dtensor.run_world(1, check) == [
        "[full] expected a number as fill_value, got str 'a'. Pass an int, a float, "
        "a bool or a complex."
    ]


def test_seeds_are_those_of_pytorch():
    def check():
        mesh = init_device_mesh("cpu", (1,))
        drawn = []
        for seed in (-1, 2**64 - 1, 0):
            manual_seed(seed, mesh)
            drawn.append(rand(4, device_mesh=mesh).full_tensor())
        assert torch.equal(drawn[0], drawn[1])
        assert not torch.equal(drawn[0], drawn[2])

    dtensor.run_world(1, check)
