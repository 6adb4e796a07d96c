# SPDX-License-Identifier: BSD-3-Clause
"""CommDebugMode that also counts the engine's collectives."""

from __future__ import annotations

import functools
import threading
from collections import defaultdict
from collections.abc import Callable
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


def _of_this_thread(hook: Callable) -> Callable:
    """Ignores the modules of other ranks of this process."""

    @functools.wraps(hook)
    def checked(self, *args: Any) -> Any:
        if threading.get_ident() == self._thread:
            self._before_change()
            return hook(self, *args)
        return None

    return checked


class _Tracker(_comm_mode._CommModeModuleTracker):
    """Tracks the modules that the rank runs. Its hooks apply to all modules of
    the process, so they run on all ranks that are threads.

    Calls ``before_change`` before another module becomes the current one.
    """

    def __init__(self, before_change: Callable[[], None]):
        super().__init__()
        self._before_change = before_change

    def __enter__(self) -> None:
        self._thread = threading.get_ident()
        super().__enter__()

    _fw_pre_hook = _of_this_thread(_comm_mode._CommModeModuleTracker._fw_pre_hook)
    _fw_post_hook = _of_this_thread(_comm_mode._CommModeModuleTracker._fw_post_hook)
    _fw_set_module_hook = _of_this_thread(
        _comm_mode._CommModeModuleTracker._fw_set_module_hook
    )
    _bw_hook = _of_this_thread(_comm_mode._CommModeModuleTracker._bw_hook)


class CommDebugMode(_comm_mode.CommDebugMode):
    """Counts collectives, by the operators that PyTorch would call for them.

    Corresponds to :class:`torch.distributed.tensor.debug.CommDebugMode`, a context
    manager, and has its other methods too, such as
    ``generate_comm_debug_tracing_table``. Counts the engine's collectives and the
    collectives that Python code calls itself, for example in local_map().

    Example::

        >>> with CommDebugMode() as comm:
        ...     y = model(batch)
        >>> comm.get_total_counts()
        1
        >>> print(comm.generate_comm_debug_tracing_table(noise_level=0))
    """

    def __init__(self) -> None:
        super().__init__()
        self._recorder = _C.CollectiveRecorder()
        self.advanced_module_tracker = _Tracker(self._count)

    def __enter__(self) -> CommDebugMode:
        if dist.is_initialized():
            worlds.enter_world()
        self._recorder.take()
        self._recorder.enter()
        return super().__enter__()

    def __exit__(self, *error: object) -> None:
        self._recorder.leave()
        self._count()
        super().__exit__(*error)

    def _count(self) -> None:
        """Counts the engine's collectives since the last call. The current
        module entered them."""
        tracker = self.advanced_module_tracker
        parents = tracker.module_parents_dict.get(tracker.name, ())
        for kind, in_backward in self._recorder.take():
            self.comm_counts[_operator(kind)] += 1
            phase = "backward" if in_backward else "forward"
            for name in {tracker.name, *parents}:
                counts = self.comm_module_counts.setdefault(
                    name, {"forward": defaultdict(int), "backward": defaultdict(int)}
                )
                counts[phase][_operator(kind)] += 1

    def get_comm_counts(self) -> dict[Any, int]:
        """Returns the number of calls of each collective.

        Example::

            >>> comm.get_comm_counts()[torch.ops.c10d_functional.all_reduce]
            1
        """
        self._count()
        return super().get_comm_counts()

    def get_total_counts(self) -> int:
        """Returns the number of calls of all collectives.

        Example::

            >>> comm.get_total_counts()
            1
        """
        self._count()
        return super().get_total_counts()
