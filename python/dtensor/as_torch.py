# SPDX-License-Identifier: BSD-3-Clause
"""Puts dtensor in place of torch.distributed.tensor's DTensor.

    import dtensor.as_torch

Import it before the modules that import names of torch.distributed.tensor, and
before process groups are made. What surrounds DTensor stays PyTorch's: meshes,
placements, styles, local_map, fully_shard and distributed checkpoints.
"""

from __future__ import annotations

import importlib
import sys
from typing import Any

import torch

# Modules that hold names to replace, besides those that programs have loaded.
_MODULES = (
    "torch.distributed._functional_collectives",
    "torch.distributed.checkpoint",
    "torch.distributed.checkpoint.state_dict",
    "torch.distributed.fsdp",
    "torch.distributed.tensor.debug",
    "torch.distributed.tensor.experimental",
    "torch.distributed.tensor.experimental._func_map",
    "torch.distributed.tensor.experimental._register_sharding",
    "torch.distributed.tensor.parallel",
)


def _replacements() -> list[tuple[Any, Any]]:
    """Returns pairs of PyTorch's objects and this package's."""
    import torch.distributed.tensor._api as api
    import torch.distributed.tensor._random as random
    import torch.distributed.tensor._utils as utils
    import torch.distributed.tensor.experimental as experimental
    import torch.distributed.tensor.parallel.loss as loss
    from torch.distributed.tensor.debug import _comm_mode

    from dtensor import (
        comm_debug_mode,
        factories,
        random_numbers,
        scopes,
        tensor,
    )

    pairs = [
        (api.DTensor, tensor.DTensor),
        (api.distribute_tensor, tensor.distribute_tensor),
        (loss.loss_parallel, scopes.loss_parallel),
        (experimental.implicit_replication, scopes.implicit_replication),
        (experimental.register_sharding, scopes.register_sharding),
        (
            utils.ExplicitRedistributionContext,
            scopes.ExplicitRedistributionContext,
        ),
        (_comm_mode.CommDebugMode, comm_debug_mode.CommDebugMode),
        (random.manual_seed, random_numbers.manual_seed),
    ]
    for name in ("zeros", "ones", "empty", "full", "rand", "randn"):
        pairs.append((getattr(api, name), getattr(factories, name)))
    return pairs


def _replace_in(module: Any, table: dict[int, tuple[Any, Any]]) -> None:
    for name, value in list(module.__dict__.items()):
        found = table.get(id(value))
        if found is not None and found[0] is value:
            setattr(module, name, found[1])
        elif type(value) is list:  # such as the types that foreach supports
            value[:] = [table.get(id(v), (v, v))[1] for v in value]


def _replace(pairs: list[tuple[Any, Any]]) -> None:
    """Rebinds PyTorch's objects to this package's in all loaded modules."""
    table = {id(theirs): (theirs, ours) for theirs, ours in pairs}
    for name, module in list(sys.modules.items()):
        if name.partition(".")[0] != "dtensor" and hasattr(module, "__dict__"):
            _replace_in(module, table)


def _install() -> None:
    from dtensor import (
        limits,
        process_groups,
        random_numbers,
        tensor,
        tensor_methods,
        worlds,
    )

    for name in _MODULES:
        importlib.import_module(name)
    pairs = _replacements()
    theirs = pairs[0][0]
    # PyTorch's modules look up their own dispatcher here.
    tensor.DTensor._op_dispatcher = theirs._op_dispatcher
    for original, ours in pairs:
        ours.__module__ = original.__module__
    pairs.append((torch.default_generator, random_numbers.rank_generator()))
    worlds.install()
    process_groups.install()
    tensor_methods.install()
    limits.install()
    _replace(pairs)


if "_installed" not in globals():
    _installed = True
    _install()
