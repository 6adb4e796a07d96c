# SPDX-License-Identifier: BSD-3-Clause
"""Process groups whose collectives are Python methods.

Such a group is a subclass of ``torch.distributed.ProcessGroup``, has no backend
in C++, and defines some of the methods that PyTorch calls. The engine calls these
methods from this module, because LibTorch forwards only few of them from C++ to
Python.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import (
    AllgatherOptions,
    AllreduceCoalescedOptions,
    AllreduceOptions,
)

_Sizes = Sequence[int]

#: Methods of a group, in the order in which they are tried.
_ALL_REDUCE = ("allreduce", "allreduce_coalesced")
_ALL_GATHER = (
    *("all_gather_single", "_allgather_base"),
    *("all_gather_single_coalesced", "allgather_into_tensor_coalesced"),
    "allgather",
)
_ALL_TO_ALL = ("all_to_all_single", "alltoall_base", "alltoall")
_COLLECTIVES = (
    *(*_ALL_REDUCE, *_ALL_GATHER, *_ALL_TO_ALL),
    *("broadcast", "barrier", "send", "recv"),
)


def _defines(group: dist.ProcessGroup, name: str) -> bool:
    """Returns true if the group's class has a method of its own."""
    method = getattr(type(group), name, None)
    return method is not None and method is not getattr(
        dist.ProcessGroup, name, None
    )


def _coalesced(opts: AllreduceOptions) -> AllreduceCoalescedOptions:
    result = AllreduceCoalescedOptions()
    result.reduceOp, result.timeout = opts.reduceOp, opts.timeout
    return result


class PythonGroup:
    """The collectives that the engine needs, built on a group's methods.

    Each collective returns work to wait for, or None.
    """

    def __init__(self, group: dist.ProcessGroup):
        self._group = group

    def _find(self, *names: str) -> tuple[str, Callable]:
        """Returns the first method that the group's class defines, or that a
        backend in C++ carries."""
        group = self._group
        for name in names:
            if _defines(group, name):
                return name, getattr(group, name)
        if group._device_types:
            inherited = next(name for name in names if hasattr(group, name))
            return inherited, getattr(group, inherited)
        raise NotImplementedError(
            f"[process_group] {type(group).__name__} has no method {names[0]}. "
            f"Define {' or '.join(names)}."
        )

    def allreduce(self, tensors: list[torch.Tensor], opts: Any) -> Any:
        name, method = self._find(*_ALL_REDUCE)
        return method(tensors, opts if name == "allreduce" else _coalesced(opts))

    def allgather(self, output: torch.Tensor, input: torch.Tensor, opts: Any) -> Any:
        name, method = self._find(*_ALL_GATHER)
        if name == "allgather":
            parts = list(output.view(-1, input.numel()).unbind())
            return method([parts], [input], opts)
        if name.endswith("coalesced"):
            return method([output], [input], opts)
        return method(output, input, opts)

    def alltoall(
        self,
        output: torch.Tensor,
        input: torch.Tensor,
        output_sizes: _Sizes,
        input_sizes: _Sizes,
        opts: Any,
    ) -> Any:
        if not any(_defines(self._group, name) for name in _ALL_TO_ALL):
            if not self._group._device_types:
                self._exchange_all(output, input, output_sizes, input_sizes)
                return None
        name, method = self._find(*_ALL_TO_ALL)
        if name == "alltoall":
            outputs = list(output.split_with_sizes(output_sizes))
            inputs = list(input.split_with_sizes(input_sizes))
            return method(outputs, inputs, opts)
        return method(output, input, output_sizes, input_sizes, opts)

    def _gather(self, row: torch.Tensor) -> torch.Tensor:
        """Returns the rows of all ranks."""
        rows = row.new_empty(self._group.size() * row.numel())
        work = self.allgather(rows, row, AllgatherOptions())
        if work is not None:
            work.wait()
        return rows.view(-1, row.numel())

    def _exchange_all(
        self,
        output: torch.Tensor,
        input: torch.Tensor,
        output_sizes: _Sizes,
        input_sizes: _Sizes,
    ) -> None:
        """Exchanges by gathering the inputs of all ranks."""
        sizes = self._gather(torch.tensor(input_sizes, dtype=torch.int64))
        longest = int(sizes.sum(1).max())
        if longest == 0:
            return
        padded = input.new_zeros(longest)
        padded[: input.numel()] = input
        sent = self._gather(padded)
        mine = self._group.rank()
        for part, size, row, to in zip(
            output.split_with_sizes(output_sizes), output_sizes, sent, sizes
        ):
            begin = int(to[:mine].sum())
            part.copy_(row[begin : begin + size])

    def broadcast(self, tensors: list[torch.Tensor], opts: Any) -> Any:
        return self._find("broadcast")[1](tensors, opts)

    def send(self, tensors: list[torch.Tensor], to: int, tag: int) -> Any:
        return self._find("send")[1](tensors, to, tag)

    def recv(self, tensors: list[torch.Tensor], source: int, tag: int) -> Any:
        return self._find("recv")[1](tensors, source, tag)

    def barrier(self, opts: Any) -> Any:
        if _defines(self._group, "barrier") or self._group._device_types:
            return self._find("barrier")[1](opts)
        return self.allreduce([torch.ones(1)], AllreduceOptions())


def python_group(group: dist.ProcessGroup) -> PythonGroup | None:
    """Returns the collectives of a group that is written in Python, else None."""
    if any(_defines(group, name) for name in _COLLECTIVES):
        return PythonGroup(group)
    return None
