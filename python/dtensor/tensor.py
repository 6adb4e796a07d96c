# SPDX-License-Identifier: BSD-3-Clause
"""DTensor and distribute_tensor().

A distributed tensor is a plain ``torch.Tensor`` object, whose implementation
is the engine's. The class ``DTensor`` is for ``isinstance`` and for its static
methods; no object has it as its type.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor.placement_types import Placement

from dtensor import _C
from dtensor.worlds import current_mesh


class _DTensorMeta(type(torch.Tensor)):
    """Makes ``isinstance(x, DTensor)`` ask the engine."""

    # A built-in function does not become a method, so the class is not passed.
    __instancecheck__ = _C.is_dtensor

    def __call__(
        cls, local_tensor: torch.Tensor, spec: Any, *, requires_grad: bool = False
    ) -> torch.Tensor:
        meta = spec.tensor_meta
        return _C.from_spec(
            local_tensor,
            spec.mesh,
            spec.placements,
            list(meta.shape),
            list(meta.stride),
            meta.dtype,
            requires_grad,
        )


class DTensor(torch.Tensor, metaclass=_DTensorMeta):
    """A tensor distributed over the ranks of a DeviceMesh.

    See :class:`torch.distributed.tensor.DTensor`. Make one by
    :func:`distribute_tensor`, :meth:`from_local` or a factory.
    """

    __slots__ = ()

    from_local = _C.from_local


def distribute_tensor(
    tensor: torch.Tensor,
    device_mesh: DeviceMesh | None = None,
    placements: Sequence[Placement] | None = None,
    *,
    src_data_rank: int | None = 0,
) -> torch.Tensor:
    """Distributes a full tensor, which each rank passes, over a mesh.

    See :func:`torch.distributed.tensor.distribute_tensor`.

    Args:
        tensor: leaf tensor of the full shape.
        device_mesh: mesh; by default that of ``with device_mesh:``.
        placements: one for each mesh dimension; by default Replicate.
        src_data_rank: rank in each mesh dimension whose data all ranks get.
            None: each rank shards its own data, without communication.
    """
    mesh = current_mesh(device_mesh)
    if placements is not None and len(placements) != mesh.ndim:
        raise ValueError(
            "[distribute_tensor] `placements` must have the same length as "
            f"`device_mesh.ndim`! Found placements length: {len(placements)}, and "
            f"device_mesh.ndim: {mesh.ndim}."
        )
    return _C.distribute_tensor(tensor, mesh, placements, src_data_rank)
