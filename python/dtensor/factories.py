# SPDX-License-Identifier: BSD-3-Clause
"""zeros(), ones(), empty(), full(), rand() and randn() of DTensors."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor.placement_types import Placement

from dtensor import _C
from dtensor.worlds import current_mesh


def _check_layout(layout: torch.layout, where: str) -> None:
    if not isinstance(layout, torch.layout):
        raise _C.argument_error(
            where, "layout", "a torch.layout", layout, "Pass torch.strided."
        )
    if layout is not torch.strided:
        raise AssertionError(
            f"[{where}] layout value not supported: {layout}. Use torch.strided."
        )


def _checked_mesh(where: str, device_mesh: Any, placements: Any) -> DeviceMesh:
    """Returns the mesh. Refuses a wrong number of placements."""
    mesh = current_mesh(device_mesh)
    count = len(placements) if isinstance(placements, (list, tuple)) else 0
    if count not in (0, mesh.ndim):
        raise AssertionError(
            f"[{where}] mesh dimension does not match the length of placements: "
            f"{mesh.ndim} and {count}. Pass one placement for each mesh dimension."
        )
    return mesh


def _make(
    name: str,
    size: tuple,
    layout: torch.layout,
    device_mesh: Any,
    placements: Any,
    *others: Any,
) -> torch.Tensor:
    """Calls the engine's function. The sizes may be given as one list or tuple."""
    _check_layout(layout, name)
    if len(size) == 1 and isinstance(size[0], Sequence):
        size = size[0]
    mesh = _checked_mesh(name, device_mesh, placements)
    return getattr(_C, name)(size, mesh, placements, *others)


def zeros(
    *size: Any,
    dtype: torch.dtype | None = None,
    layout: torch.layout = torch.strided,
    requires_grad: bool = False,
    device_mesh: DeviceMesh | None = None,
    placements: Sequence[Placement] | None = None,
) -> torch.Tensor:
    """Returns a DTensor of zeros.

    Corresponds to :func:`torch.distributed.tensor.zeros`, and to
    :func:`torch.zeros` for plain tensors.

    Args:
        size: shape of the full tensor: integers, or one list or tuple.
        dtype: dtype; by default that of :func:`torch.get_default_dtype`.
        layout: only ``torch.strided`` is supported.
        requires_grad: if true, operators record a gradient for the DTensor.
        device_mesh: mesh; by default that of ``with device_mesh:``.
        placements: one for each mesh dimension; by default Replicate.

    Raises:
        AssertionError: if ``layout`` is not ``torch.strided``, or if the number of
            placements is not that of mesh dimensions.

    Example::

        >>> zeros(8, 3, device_mesh=mesh, placements=[Shard(0)]).to_local().shape
        torch.Size([2, 3])
    """
    return _make(
        "zeros", size, layout, device_mesh, placements, dtype, requires_grad
    )


def ones(
    *size: Any,
    dtype: torch.dtype | None = None,
    layout: torch.layout = torch.strided,
    requires_grad: bool = False,
    device_mesh: DeviceMesh | None = None,
    placements: Sequence[Placement] | None = None,
) -> torch.Tensor:
    """Returns a DTensor of ones.

    Corresponds to :func:`torch.distributed.tensor.ones`, and to
    :func:`torch.ones` for plain tensors.

    Args:
        size: shape of the full tensor: integers, or one list or tuple.
        dtype: dtype; by default that of :func:`torch.get_default_dtype`.
        layout: only ``torch.strided`` is supported.
        requires_grad: if true, operators record a gradient for the DTensor.
        device_mesh: mesh; by default that of ``with device_mesh:``.
        placements: one for each mesh dimension; by default Replicate.

    Raises:
        AssertionError: if ``layout`` is not ``torch.strided``, or if the number of
            placements is not that of mesh dimensions.

    Example::

        >>> ones(8, device_mesh=mesh, placements=[Shard(0)]).to_local()
        tensor([1., 1.])
    """
    return _make(
        "ones", size, layout, device_mesh, placements, dtype, requires_grad
    )


def empty(
    *size: Any,
    dtype: torch.dtype | None = None,
    layout: torch.layout = torch.strided,
    requires_grad: bool = False,
    device_mesh: DeviceMesh | None = None,
    placements: Sequence[Placement] | None = None,
) -> torch.Tensor:
    """Returns a DTensor with uninitialized elements.

    Corresponds to :func:`torch.distributed.tensor.empty`, and to
    :func:`torch.empty` for plain tensors.

    Args:
        size: shape of the full tensor: integers, or one list or tuple.
        dtype: dtype; by default that of :func:`torch.get_default_dtype`.
        layout: only ``torch.strided`` is supported.
        requires_grad: if true, operators record a gradient for the DTensor.
        device_mesh: mesh; by default that of ``with device_mesh:``.
        placements: one for each mesh dimension; by default Replicate.

    Raises:
        AssertionError: if ``layout`` is not ``torch.strided``, or if the number of
            placements is not that of mesh dimensions.

    Example::

        >>> empty(8, 3, device_mesh=mesh, placements=[Shard(1)]).to_local().shape
        torch.Size([8, 1])
    """
    return _make(
        "empty", size, layout, device_mesh, placements, dtype, requires_grad
    )


def rand(
    *size: Any,
    dtype: torch.dtype | None = None,
    layout: torch.layout = torch.strided,
    requires_grad: bool = False,
    device_mesh: DeviceMesh | None = None,
    placements: Sequence[Placement] | None = None,
) -> torch.Tensor:
    """Returns a DTensor of uniformly distributed numbers in [0, 1).

    Corresponds to :func:`torch.distributed.tensor.rand`, and to
    :func:`torch.rand` for plain tensors. The numbers do not
    depend on the layout: the full tensor is the same in each layout.

    Args:
        size: shape of the full tensor: integers, or one list or tuple.
        dtype: dtype; by default that of :func:`torch.get_default_dtype`.
        layout: only ``torch.strided`` is supported.
        requires_grad: if true, operators record a gradient for the DTensor.
        device_mesh: mesh; by default that of ``with device_mesh:``.
        placements: one for each mesh dimension; by default Replicate.

    Raises:
        AssertionError: if ``layout`` is not ``torch.strided``, or if the number of
            placements is not that of mesh dimensions.

    Example::

        >>> rand(8, 3, device_mesh=mesh, placements=[Shard(0)]).to_local().shape
        torch.Size([2, 3])
    """
    return _make(
        "rand", size, layout, device_mesh, placements, dtype, requires_grad
    )


def randn(
    *size: Any,
    dtype: torch.dtype | None = None,
    layout: torch.layout = torch.strided,
    requires_grad: bool = False,
    device_mesh: DeviceMesh | None = None,
    placements: Sequence[Placement] | None = None,
) -> torch.Tensor:
    """Returns a DTensor of normally distributed numbers.

    Corresponds to :func:`torch.distributed.tensor.randn`, and to
    :func:`torch.randn` for plain tensors. The numbers do not
    depend on the layout: the full tensor is the same in each layout.

    Args:
        size: shape of the full tensor: integers, or one list or tuple.
        dtype: dtype; by default that of :func:`torch.get_default_dtype`.
        layout: only ``torch.strided`` is supported.
        requires_grad: if true, operators record a gradient for the DTensor.
        device_mesh: mesh; by default that of ``with device_mesh:``.
        placements: one for each mesh dimension; by default Replicate.

    Raises:
        AssertionError: if ``layout`` is not ``torch.strided``, or if the number of
            placements is not that of mesh dimensions.

    Example::

        >>> randn(8, 3, device_mesh=mesh, placements=[Shard(0)]).to_local().shape
        torch.Size([2, 3])
    """
    return _make(
        "randn", size, layout, device_mesh, placements, dtype, requires_grad
    )


def full(
    size: Any,
    fill_value: complex,
    *,
    dtype: torch.dtype | None = None,
    layout: torch.layout = torch.strided,
    requires_grad: bool = False,
    device_mesh: DeviceMesh | None = None,
    placements: Sequence[Placement] | None = None,
) -> torch.Tensor:
    """Returns a DTensor whose elements are all ``fill_value``.

    Corresponds to :func:`torch.distributed.tensor.full`, and to
    :func:`torch.full` for plain tensors.

    Args:
        size: shape of the full tensor: a list or tuple of integers.
        fill_value: number of all elements.
        dtype: dtype; by default that of :func:`torch.full` for ``fill_value``.
        layout: only ``torch.strided`` is supported.
        requires_grad: if true, operators record a gradient for the DTensor.
        device_mesh: mesh; by default that of ``with device_mesh:``.
        placements: one for each mesh dimension; by default Replicate.

    Raises:
        AssertionError: if ``layout`` is not ``torch.strided``, or if the number of
            placements is not that of mesh dimensions.

    Example::

        >>> full((8,), 0.5, device_mesh=mesh, placements=[Shard(0)]).to_local()
        tensor([0.5000, 0.5000])
    """
    _check_layout(layout, "full")
    return _C.full(
        size if isinstance(size, Sequence) else (size,),
        fill_value,
        _checked_mesh("full", device_mesh, placements),
        placements,
        dtype,
        requires_grad,
    )

