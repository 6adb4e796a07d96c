# SPDX-License-Identifier: BSD-3-Clause
"""Puts dtensor in place of torch.distributed.tensor's DTensor.

    import dtensor.as_torch

Import it before the modules that import names of torch.distributed.tensor, and
before process groups are made. PyTorch's own meshes, placements, styles, local_map,
fully_shard and distributed checkpoints stay in use.
"""

from __future__ import annotations

import importlib
import sys
from typing import Any

import torch

from dtensor import imports

#: Modules of PyTorch that define names to replace, under torch.distributed.tensor,
#: and the modules of this package that have these names.
_NAMES = {
    "_api": {
        "tensor": ("DTensor", "distribute_tensor"),
        "factories": ("zeros", "ones", "empty", "full", "rand", "randn"),
    },
    "_random": {"random_numbers": ("manual_seed",)},
    "_utils": {"scopes": ("ExplicitRedistributionContext",)},
    "debug._comm_mode": {"comm_debug_mode": ("CommDebugMode",)},
    "experimental._context_parallel._attention": {
        "context_parallel": (
            *("context_parallel", "context_parallel_unshard"),
            "set_rotate_method",
        )
    },
    "experimental": {"scopes": ("implicit_replication",)},
    "experimental._register_sharding": {"scopes": ("register_sharding",)},
    "parallel.loss": {"scopes": ("loss_parallel",)},
}


def _replacements(module: Any, names: dict) -> list[tuple[Any, Any]]:
    """Returns pairs of a module's objects and this package's."""
    pairs = []
    for source, exported in names.items():
        ours = importlib.import_module("dtensor." + source)
        for name in exported:
            original, replacement = getattr(module, name), getattr(ours, name)
            replacement.__module__ = original.__module__
            pairs.append((original, replacement))
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


def _replace_names() -> None:
    """Replaces the names of loaded modules now, and of other modules on import."""
    loaded = []
    for name, names in _NAMES.items():
        path = "torch.distributed.tensor." + name
        if path in sys.modules:
            loaded += _replacements(sys.modules[path], names)
        else:
            _replace_when_imported(path, names)
    _replace(loaded)


def _is_being_imported(source: str, exported: tuple[str, ...]) -> bool:
    ours = sys.modules.get("dtensor." + source)
    return ours is not None and not all(hasattr(ours, name) for name in exported)


def _replace_when_imported(path: str, names: dict) -> None:
    """Replaces the names of PyTorch's module once it is imported. If a module of
    this package imports it, the names are replaced once that module has its own."""

    def replace(_: Any) -> None:
        theirs = sys.modules.get(path)
        waits = any(_is_being_imported(*item) for item in names.items())
        if theirs is not None and not waits:
            _replace(_replacements(theirs, names))

    imports.after_import(path, replace)
    for source in names:
        imports.after_import("dtensor." + source, replace)


def _install() -> None:
    imports.defer_rules()
    import torch.distributed.tensor
    import torch.distributed.tensor._api as api

    from dtensor import (
        batched_gradients,
        checkpoints,
        dispatcher,
        indexing,
        limits,
        pickles,
        placements,
        process_groups,
        random_numbers,
        styles,
        tensor,
        tensor_methods,
        worlds,
    )

    theirs = api.DTensor
    tensor.DTensor._op_dispatcher = dispatcher.OpDispatcher(theirs._op_dispatcher)
    dispatcher.take_over_rules(theirs._op_dispatcher)
    pickles.install(theirs, tensor.DTensor)
    _replace(
        [
            (torch.default_generator, random_numbers.rank_generator()),
            (torch.autograd.grad, batched_gradients.grad),
        ]
    )
    worlds.install()
    process_groups.install()
    placements.install()
    tensor_methods.install()
    checkpoints.install()
    indexing.install()
    limits.install()
    styles.install()
    _replace_names()


if "_installed" not in globals():
    _installed = True
    _install()
