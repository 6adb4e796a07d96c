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

    @staticmethod
    def from_local(
        local_tensor: torch.Tensor,
        device_mesh: DeviceMesh | None = None,
        placements: Sequence[Placement] | None = None,
        *,
        run_check: bool = False,
        shape: Sequence[int] | None = None,
        stride: Sequence[int] | None = None,
        grad_placements: Sequence[Placement] | None = None,
    ) -> torch.Tensor:
        """Returns the DTensor of which ``local_tensor`` is this rank's shard.

        Args:
            local_tensor: plain tensor of this rank.
            device_mesh: mesh; by default that of ``with device_mesh:``.
            placements: one for each mesh dimension; by default Replicate.
            run_check: compares shapes, and broadcasts replicas.
            shape, stride: of the full tensor, if the shards are uneven.
            grad_placements: layout of the local tensor's gradient.
        """
        if _C.is_dtensor(local_tensor):
            raise RuntimeError(
                "[from_local] the local_tensor argument only accepts "
                "torch.Tensor but got DTensor value."
            )
        if (shape is None) != (stride is None):
            raise RuntimeError(
                f"[from_local] Found shape:{shape}, stride:{stride}. Please "
                "pass both shape and stride at the same time."
            )
        return _C.from_local(
            local_tensor,
            current_mesh(device_mesh),
            placements,
            run_check,
            shape,
            stride,
            grad_placements,
        )


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
    return _C.distribute_tensor(
        tensor, current_mesh(device_mesh), placements, src_data_rank
    )
