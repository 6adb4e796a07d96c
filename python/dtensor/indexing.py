# SPDX-License-Identifier: BSD-3-Clause
"""Indexing of DTensors on ranks that are threads of this process.

``x[i]`` and ``x[i] = value`` of torch.Tensor hold the GIL while they run
operators. A rank that waits in them for another rank would keep that rank from
running, so they are replaced by calls of operators that release the GIL.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from numbers import Integral
from typing import Any

import torch

from dtensor import _C

_slice = torch.ops.aten.slice.Tensor
_index = torch.ops.aten.index.Tensor
_index_put_ = torch.ops.aten.index_put_.default


def _is_integer(value: Any) -> bool:
    return isinstance(value, Integral) and not isinstance(value, bool)


def _is_slice(key: Any) -> bool:
    return isinstance(key, slice) and all(
        part is None or _is_integer(part)
        for part in (key.start, key.stop, key.step)
    )


def _is_index(key: Any) -> bool:
    return (
        isinstance(key, torch.Tensor)
        and key.dim() > 0
        and key.dtype in (torch.int64, torch.bool)
    )


def _dims_of(key: Any) -> int:
    """Returns the number of dimensions that a key takes."""
    if key is None or key is Ellipsis:
        return 0
    return key.dim() if _is_index(key) and key.dtype == torch.bool else 1


def _full_key(tensor: torch.Tensor, key: Any) -> list | None:
    """Returns a key per dimension; None for keys that are left to PyTorch."""
    keys = list(key) if isinstance(key, tuple) else [key]
    known = all(
        k is None or k is Ellipsis or _is_integer(k) or _is_slice(k) or _is_index(k)
        for k in keys
    )
    dots = [i for i, k in enumerate(keys) if k is Ellipsis]
    rest = tensor.dim() - sum(map(_dims_of, keys)) if known else -1
    if rest < 0 or len(dots) > 1:
        return None
    at = dots[0] if dots else len(keys)
    return keys[:at] + [slice(None)] * rest + keys[at + len(dots) :]


def _view(tensor: torch.Tensor, keys: list) -> tuple[torch.Tensor, list]:
    """Returns the view of ints, slices and None, and the index of each of its
    dimensions, empty without indices."""
    indices: list[torch.Tensor | None] = []
    dim = 0
    for key in keys:
        if _is_integer(key):
            tensor = torch.select(tensor, dim, int(key))
            continue
        if _is_index(key):
            indices.append(key)
            dim += _dims_of(key)
            continue
        if key is None:
            tensor = torch.unsqueeze(tensor, dim)
        elif key != slice(None):
            tensor = _slice(tensor, dim, key.start, key.stop, key.step or 1)
        indices.append(None)
        dim += 1
    return tensor, indices if any(i is not None for i in indices) else []


def _fits(value: torch.Tensor, view: torch.Tensor) -> torch.Tensor:
    """Removes leading dimensions of size one that the view does not have."""
    while value.dim() > view.dim() and value.shape[0] == 1:
        value = torch.squeeze(value, 0)
    return value


def _get(tensor: torch.Tensor, key: Any, original: Any) -> torch.Tensor:
    keys = _full_key(tensor, key) if _C.is_dtensor(tensor) else None
    if keys is None or any(isinstance(k, slice) and k.step == 0 for k in keys):
        return original(tensor, key)
    view, indices = _view(tensor, keys)
    if indices:
        return _index(view, indices)
    return torch.ops.aten.alias(view) if view is tensor else view


def _set(tensor: torch.Tensor, key: Any, value: Any, original: Any) -> None:
    keys = _full_key(tensor, key) if _C.is_dtensor(tensor) else None
    number = isinstance(value, (int, float, complex))
    if keys is None or not (number or isinstance(value, torch.Tensor)):
        original(tensor, key, value)
        return
    view, indices = _view(tensor, keys)
    if indices:
        source = torch.tensor(value, dtype=tensor.dtype) if number else value
        _index_put_(view, indices, source)
    elif number:
        view.fill_(value)
    else:
        view.copy_(_fits(value, view))


@contextlib.contextmanager
def indexing_without_gil() -> Iterator[None]:
    """Replaces the indexing of torch.Tensor. Plain tensors keep PyTorch's."""
    get, put = torch.Tensor.__getitem__, torch.Tensor.__setitem__

    def __getitem__(self, key):
        return _get(self, key, get)

    def __setitem__(self, key, value):
        _set(self, key, value, put)

    torch.Tensor.__getitem__ = __getitem__
    torch.Tensor.__setitem__ = __setitem__
    try:
        yield
    finally:
        torch.Tensor.__getitem__ = get
        torch.Tensor.__setitem__ = put
