# SPDX-License-Identifier: BSD-3-Clause
"""zeros(), ones(), empty(), full(), rand() and randn() of DTensors."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor._utils import normalize_to_torch_size
from torch.distributed.tensor.placement_types import Placement

from dtensor import _C
from dtensor.worlds import current_mesh


def _check_layout(layout: torch.layout, where: str) -> None:
    if layout != torch.strided:
        raise AssertionError(
            f"[{where}] layout value not supported: {layout}. Use torch.strided."
        )


def _factory(name: str) -> Callable[..., torch.Tensor]:
    make = getattr(_C, name)

    def factory(
        *size: Any,
        dtype: torch.dtype | None = None,
        layout: torch.layout = torch.strided,
        requires_grad: bool = False,
        device_mesh: DeviceMesh | None = None,
        placements: Sequence[Placement] | None = None,
    ) -> torch.Tensor:
        _check_layout(layout, name)
        return make(
            list(normalize_to_torch_size(size)),
            current_mesh(device_mesh),
            placements,
            dtype,
            requires_grad,
        )

    factory.__name__ = factory.__qualname__ = name
    factory.__doc__ = (
        f"Like :func:`torch.{name}`, as a DTensor.\n\n"
        f"See :func:`torch.distributed.tensor.{name}`."
    )
    return factory


zeros = _factory("zeros")
ones = _factory("ones")
empty = _factory("empty")
rand = _factory("rand")
randn = _factory("randn")


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
    """Like :func:`torch.full`, as a DTensor.

    See :func:`torch.distributed.tensor.full`.
    """
    _check_layout(layout, "full")
    return _C.full(
        list(normalize_to_torch_size((size,))),
        fill_value,
        current_mesh(device_mesh),
        placements,
        dtype,
        requires_grad,
    )

