# SPDX-License-Identifier: BSD-3-Clause
"""CommDebugMode that also counts the engine's collectives."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.tensor.debug import _comm_mode

from dtensor import _C, worlds

_FUNCTIONAL = {
    "all_reduce": "all_reduce",
    "all_gather": "all_gather_into_tensor",
    "reduce_scatter": "reduce_scatter_tensor",
}


def _operator(kind: str) -> Any:
    """Returns the operator that PyTorch calls for this kind of collective."""
    if kind == "all_to_all":
        return torch.ops._dtensor.shard_dim_alltoall
    if kind in _FUNCTIONAL:
        return getattr(torch.ops.c10d_functional, _FUNCTIONAL[kind])
    return getattr(torch.ops.c10d, kind + "_", kind)


class CommDebugMode(_comm_mode.CommDebugMode):
    """Counts collectives, by the operators that PyTorch would call for them.

    The engine's collectives are counted, and those that Python code calls
    itself, such as in local_map().
    """

    def __init__(self) -> None:
        super().__init__()
        self._recorder = _C.CollectiveRecorder()

    def __enter__(self) -> CommDebugMode:
        if dist.is_initialized():
            worlds.enter_world()
        self._recorder.take_kinds()
        self._recorder.enter()
        return super().__enter__()

    def __exit__(self, *error: object) -> None:
        self._recorder.leave()
        self._count()
        super().__exit__(*error)

    def _count(self) -> None:
        for kind in self._recorder.take_kinds():
            self.comm_counts[_operator(kind)] += 1

    def get_comm_counts(self) -> dict[Any, int]:
        self._count()
        return super().get_comm_counts()

    def get_total_counts(self) -> int:
        self._count()
        return super().get_total_counts()
