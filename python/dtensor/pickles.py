# SPDX-License-Identifier: BSD-3-Clause
"""Pickled DTensors, in the form of torch.distributed.tensor.

A file of torch.save() holds a DTensor as the class, the global shape, the local
tensor and the DTensorSpec. Programs on PyTorch's own DTensor and programs on
this package load each other's files.
"""

from __future__ import annotations

import functools
import pickle
from multiprocessing.reduction import ForkingPickler
from typing import Any

import torch
import torch.distributed as dist
from torch.multiprocessing import reductions

from dtensor import _C

#: Attributes of a DTensor object that only this package has.
_INTERNAL = ("_dt_local",)


def own_attributes(tensor: torch.Tensor) -> dict[str, Any]:
    """Returns the attributes that the program gave to a DTensor."""
    return {k: v for k, v in tensor.__dict__.items() if k not in _INTERNAL}


def _attributes(tensor: torch.Tensor) -> dict[str, Any]:
    kept = own_attributes(tensor)
    if isinstance(tensor, torch.nn.Parameter):
        kept["_is_param"] = True  # marks a parameter of PyTorch's DTensor
    return kept


def reduce_ex(self: torch.Tensor, protocol: int) -> tuple:
    """Returns the value of Tensor.__reduce_ex__() for PyTorch's DTensor."""
    from torch.distributed.tensor import DTensor

    wrapper = (
        DTensor,
        self.dtype,
        tuple(self.shape),
        self.stride(),
        0,  # storage offset
        self.layout,
        self.device,
        self.requires_grad,
    )
    slots = {"_local_tensor": self._local_tensor, "_spec": self._spec}
    return (
        torch._tensor._rebuild_from_type_v2,
        (
            torch._utils._rebuild_wrapper_subclass,
            DTensor,
            wrapper,
            (_attributes(self) or None, slots),
        ),
    )


def _check_spec(spec: Any) -> None:
    if not dist.is_initialized():
        raise RuntimeError(
            "[load] the file has DTensors, and this process is no rank. Call "
            "torch.distributed.init_process_group() first, or load inside "
            "dtensor.run_world()."
        )
    if getattr(spec, "use_strided_shard_as_shard_order", True):
        return
    order = getattr(spec, "shard_order", None)
    if order and order != spec.compute_default_shard_order(spec.placements):
        raise NotImplementedError(
            f"[load] a DTensor of the file has the shard order {order}: mesh "
            "dimensions that shard one dimension must do so from the first to the "
            "last. Redistribute it before it is saved."
        )


def _rebuild(wrapper: tuple, state: tuple) -> torch.Tensor:
    """Makes a DTensor from the arguments of _rebuild_wrapper_subclass() and
    the state of the object."""
    attributes, slots = state
    attributes = dict(attributes or {})
    _, dtype, shape, stride, _, _, _, requires_grad = wrapper
    spec = slots["_spec"]
    _check_spec(spec)
    tensor = _C.from_spec(
        slots["_local_tensor"],
        spec.mesh,
        spec.placements,
        list(shape),
        list(stride),
        dtype,
        requires_grad,
    )
    if attributes.pop("_is_param", False):
        tensor = torch.nn.Parameter(tensor, requires_grad)
    for name, value in attributes.items():
        setattr(tensor, name, value)
    return tensor


def _pass_between_processes() -> None:
    """Lets queues and pipes of torch.multiprocessing pass DTensors. The local
    tensor passes in shared memory, as a plain tensor does."""

    def reduce_tensor(tensor: torch.Tensor) -> tuple:
        if _C.is_dtensor(tensor):
            return tensor.__reduce_ex__(pickle.HIGHEST_PROTOCOL)
        return reductions.reduce_tensor(tensor)

    for owner in (torch.Tensor, torch.nn.Parameter):
        ForkingPickler.register(owner, reduce_tensor)


def install(theirs: type, ours: type) -> None:
    """Makes files with DTensors load as this package's. ``theirs`` is PyTorch's
    class, which torch.load(weights_only=True) finds under the common name."""
    from torch import _weights_only_unpickler as unpickler

    plain = torch._tensor._rebuild_from_type_v2

    @functools.wraps(plain)
    def _rebuild_from_type_v2(func: Any, new_type: type, args: tuple, state: Any):
        if new_type is ours or new_type is theirs:
            return _rebuild(args, state)
        return plain(func, new_type, args, state)

    torch._tensor._rebuild_from_type_v2 = _rebuild_from_type_v2
    unpickler._get_allowed_globals.cache_clear()  # this module has the plain function
    _pass_between_processes()
