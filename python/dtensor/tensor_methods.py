# SPDX-License-Identifier: BSD-3-Clause
"""Methods of distributed tensors, put on torch.Tensor and nn.Parameter.

Plain tensors keep their behaviour: a method or attribute that only DTensors
have raises AttributeError for them, so hasattr() is right. A program may still give
them attributes of these names.
"""

from __future__ import annotations

import copy
import types
from collections.abc import Callable
from typing import Any

import torch

from dtensor import _C, checkpoints, pickles


class _OnlyDistributed:
    """A method that plain tensors do not have."""

    def __init__(self, function: Callable, name: str):
        self.function, self.name = function, name

    def __get__(self, instance: Any, owner: Any = None) -> Any:
        if instance is None:
            return self.function
        if not _C.is_dtensor(instance):
            raise AttributeError(f"'Tensor' object has no attribute '{self.name}'")
        return types.MethodType(self.function, instance)


def _state(tensor: torch.Tensor) -> tuple:
    """Returns the arguments of rebuild()."""
    return (
        tensor._local_tensor,
        tensor.device_mesh,
        tensor.placements,
        tuple(tensor.shape),
        tensor.stride(),
        tensor.requires_grad,
        isinstance(tensor, torch.nn.Parameter),
    )


def rebuild(local, mesh, placements, shape, stride, requires_grad, is_parameter):
    """Makes a copy, or a DTensor from a file that an older version saved."""
    tensor = _C.from_spec(
        local, mesh, placements, list(shape), list(stride), None, requires_grad
    )
    return torch.nn.Parameter(tensor, requires_grad) if is_parameter else tensor


def _repr(self: torch.Tensor, *, tensor_contents: Any = None) -> str:
    text = (
        f"DTensor(local_tensor={self._local_tensor}, "
        f"device_mesh={self.device_mesh}, placements={self.placements})"
    )
    if isinstance(self, torch.nn.Parameter):
        return "Parameter containing:\n" + text
    return text


def _format(self: torch.Tensor, format_spec: str) -> str:
    """Returns the repr. PyTorch formats the number of a plain tensor without
    dimensions; the number of a DTensor would need communication."""
    if format_spec:
        raise TypeError(
            f"[format] a DTensor has no format: {format_spec!r}. Format "
            "x.full_tensor(), or leave out the format."
        )
    return repr(self)


def _deepcopy(self: torch.Tensor, memo: dict) -> torch.Tensor:
    if id(self) in memo:
        return memo[id(self)]
    if not self.is_leaf:
        raise RuntimeError(
            "[deepcopy] Only Tensors created explicitly by the user (graph "
            "leaves) support the deepcopy protocol at the moment. Use detach()."
        )
    local, *layout = _state(self)
    with torch.no_grad():
        # The memo keeps memory shared that the tensors of a list share.
        result = rebuild(copy.deepcopy(local, memo), *layout)
    memo[id(self)] = result
    if self.grad is not None:
        result.grad = copy.deepcopy(self.grad, memo)
    result.__dict__ = copy.deepcopy(self.__dict__, memo)
    return result


def _plain_of_same_type(method: str) -> Callable:
    """Returns a method that makes a plain tensor, by default with the DTensor's
    dtype and device. PyTorch's implementation derives both from a dispatch key
    that stands for a device."""

    def make(self: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
        like = torch.empty(0, dtype=self.dtype, device=self.device)
        return getattr(like, method)(*args, **kwargs)

    return make


def _replace_for_dtensors(owner: type, name: str, distributed: Callable) -> None:
    """Makes owner.name call `distributed` for DTensors."""
    plain = getattr(owner, name)

    def method(self, *args, **kwargs):
        if _C.is_dtensor(self):
            return distributed(self, *args, **kwargs)
        return plain(self, *args, **kwargs)

    method.__name__ = name
    method.__doc__ = plain.__doc__
    setattr(owner, name, method)


def install() -> None:
    """Installs in torch.Tensor the methods that only distributed tensors have."""
    only_distributed = {
        "__create_write_items__": checkpoints.create_write_items,
        "__create_chunk_list__": checkpoints.create_chunk_list,
        "__get_tensor_shard__": checkpoints.get_tensor_shard,
    }
    for name, function in only_distributed.items():
        setattr(torch.Tensor, name, _OnlyDistributed(function, name))
    _C.add_methods(torch.Tensor)
    _C.add_attributes(torch.Tensor)
    # Parameter first, because it may inherit a method that torch.Tensor gets.
    for owner in (torch.nn.Parameter, torch.Tensor):
        for name, function in {
            "__repr__": _repr,
            "__reduce_ex__": pickles.reduce_ex,
            "__deepcopy__": _deepcopy,
        }.items():
            _replace_for_dtensors(owner, name, function)
    for name in ("new", "new_tensor"):
        _replace_for_dtensors(torch.Tensor, name, _plain_of_same_type(name))
    _replace_for_dtensors(torch.Tensor, "__format__", _format)
    _replace_for_dtensors(torch.Tensor, "is_shared", lambda self: False)
    torch.serialization.add_safe_globals([rebuild])
