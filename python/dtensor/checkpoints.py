# SPDX-License-Identifier: BSD-3-Clause
"""Methods that torch.distributed.checkpoint calls on a DTensor."""

from __future__ import annotations

from typing import Any

import torch

from dtensor import _C


def _refuse_partial(tensor: torch.Tensor) -> None:
    if any(p.is_partial() for p in tensor.placements):
        raise ValueError(
            "[checkpoint] Any checkpointing related operations are not "
            "supported for DTensor with partial placements! Redistribute it first."
        )


def create_write_items(self: torch.Tensor, fqn: str, tensor: Any) -> list[Any]:
    from torch.distributed.checkpoint import planner_helpers

    _refuse_partial(self)
    return [planner_helpers._create_write_items_for_dtensor(fqn, tensor)]


def create_chunk_list(self: torch.Tensor) -> list[Any]:
    from torch.distributed.checkpoint import planner_helpers

    _refuse_partial(self)
    return [planner_helpers._create_chunk_from_dtensor(self)]


def get_tensor_shard(self: torch.Tensor, index: Any) -> torch.Tensor:
    _refuse_partial(self)
    return self.to_local()
