# SPDX-License-Identifier: BSD-3-Clause
"""Lists, ranges and arrays among the keys of x[key] and x[key] = value.

torch.Tensor makes an index of each of these. For a DTensor, the index becomes a
DTensor, too, replicated on the DTensor's mesh: all ranks pass the same list.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.distributed.tensor.placement_types import Replicate

from dtensor import _C


def _is_sequence(key: Any) -> bool:
    return (
        hasattr(key, "__len__")
        and hasattr(key, "__getitem__")
        and not isinstance(key, (torch.Tensor, dict))
        and getattr(key, "ndim", 1) > 0
    )


def _stands_for_tuple(key: Any) -> bool:
    """Returns true if PyTorch treats a sequence as a tuple of keys: [[0], [1]]."""
    return isinstance(key, tuple) or (
        len(key) < 32
        and not hasattr(key, "ndim")
        and any(
            k is None
            or k is Ellipsis
            or isinstance(k, (slice, torch.Tensor))
            or _is_sequence(k)
            for k in key
        )
    )


def _index(tensor: torch.Tensor, sequence: Any) -> torch.Tensor:
    """Returns the index that PyTorch makes of a sequence, as a DTensor."""
    index = torch.tensor(sequence, device=tensor.device)
    if index.dtype not in (torch.bool, torch.uint8):
        index = index.to(torch.int64)
    mesh = tensor.device_mesh
    return _C.from_local(index, mesh, [Replicate()] * mesh.ndim)


def _dtensor_in(tensor: torch.Tensor) -> torch.Tensor:
    """Returns the DTensor that torch.func has wrapped, or a plain tensor."""
    functorch = torch._C._functorch
    while functorch.is_functorch_wrapped_tensor(tensor):
        tensor = functorch.get_unwrapped(tensor)
    return tensor


def distributed_key(tensor: torch.Tensor, key: Any) -> Any:
    """Returns the key with DTensors in place of its sequences."""
    like = _dtensor_in(tensor)
    if not _C.is_dtensor(like) or not _is_sequence(key):
        return key
    if not _stands_for_tuple(key):
        return _index(like, key)
    keys = [_index(like, k) if _is_sequence(k) else k for k in key]
    return tuple(keys) if isinstance(key, tuple) else keys


def install() -> None:
    """Replaces the indexing of torch.Tensor, except for plain tensors."""
    _C.add_indexing(torch.Tensor, distributed_key)
