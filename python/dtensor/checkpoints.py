# SPDX-License-Identifier: BSD-3-Clause
"""DTensors in torch.distributed.checkpoint: the methods that it calls on a DTensor,
and the copies that async_save() makes before it writes in another thread."""

from __future__ import annotations

import functools
from typing import Any

import torch
import torch.distributed as dist

from dtensor import _C, imports, pickles, worlds


def _enter_world() -> None:
    """Makes this thread, which may be a thread of async_save(), a rank."""
    if dist.is_initialized():
        worlds.enter_world()


def _prepare(tensor: torch.Tensor) -> None:
    """Lets this thread read the tensor. Refuses a Partial."""
    _enter_world()
    if any(p.is_partial() for p in tensor.placements):
        raise ValueError(
            "[checkpoint] Any checkpointing related operations are not "
            "supported for DTensor with partial placements! Redistribute it first."
        )


def create_write_items(self: torch.Tensor, fqn: str, tensor: Any) -> list[Any]:
    from torch.distributed.checkpoint import planner_helpers

    _prepare(self)
    return [planner_helpers._create_write_items_for_dtensor(fqn, tensor)]


def create_chunk_list(self: torch.Tensor) -> list[Any]:
    from torch.distributed.checkpoint import planner_helpers

    _prepare(self)
    return [planner_helpers._create_chunk_from_dtensor(self)]


def get_tensor_shard(self: torch.Tensor, index: Any) -> torch.Tensor:
    _prepare(self)
    return self.to_local()


def _staged(stager: Any, x: torch.Tensor, memo: dict, non_blocking: bool) -> Any:
    """Returns a copy of a DTensor in the stager's memory, without a gradient."""

    def stage(value: Any) -> Any:
        return stager.deepcopy_with_tensor_offload(
            value, memo, non_blocking=non_blocking
        )

    _enter_world()
    result = _C.from_spec(
        stage(x._local_tensor),
        x.device_mesh,
        x.placements,
        list(x.shape),
        list(x.stride()),
        None,
        False,
    )
    if isinstance(x, torch.nn.Parameter):
        result = torch.nn.Parameter(result, requires_grad=False)
    memo[id(x)] = result  # before the attributes, which may refer to x
    for name, value in pickles.own_attributes(x).items():
        setattr(result, name, stage(value))
    return result


def _stage_local_tensors(module: Any) -> None:
    """Lets StateDictStager copy DTensors, which have no storage of their own."""
    plain = module.StateDictStager._offload_tensor

    @functools.wraps(plain)
    def _offload_tensor(self, x: Any, memo: dict, non_blocking: bool = False) -> Any:
        if _C.is_dtensor(x):
            return _staged(self, x, memo, non_blocking)
        return plain(self, x, memo, non_blocking)

    module.StateDictStager._offload_tensor = _offload_tensor


def install() -> None:
    """Connects async_save(), once the program imports distributed checkpoints."""
    stager = "torch.distributed.checkpoint._state_dict_stager"
    imports.after_import(stager, _stage_local_tensors)
