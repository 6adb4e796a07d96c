# SPDX-License-Identifier: BSD-3-Clause
"""DTensor and distribute_tensor().

A distributed tensor is a plain ``torch.Tensor`` object with the engine's
implementation. The class ``DTensor`` is for ``isinstance`` and for its static
methods; no object has it as its type.
"""

from __future__ import annotations

from collections.abc import Sequence, Sized
from typing import TYPE_CHECKING, Any

import torch
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor.placement_types import Placement

from dtensor import _C
from dtensor.worlds import current_mesh


#: Attributes of PyTorch's class that this package's class lacks, and alternatives.
_ONLY_PYTORCH = {
    "__tensor_flatten__": "torch.compile and torch.export do not support the "
    "DTensors of this package",
    "__tensor_unflatten__": "Use DTensor.from_local",
    "_raise_if_contains_partial_placements": "Test x.placements",
}


class _DTensorMeta(type(torch.Tensor)):
    """Makes ``isinstance(x, DTensor)`` call the engine."""

    # A built-in function does not become a method, so the class is not passed.
    __instancecheck__ = _C.is_dtensor

    def __getattr__(cls, name: str) -> Any:
        use = _ONLY_PYTORCH.get(
            name, "docs/guides/python.md lists what differs from PyTorch's class"
        )
        raise AttributeError(
            f"[DTensor] the class of this package has no attribute {name!r}. {use}."
        )

    def __call__(
        cls, local_tensor: torch.Tensor, spec: Any, *, requires_grad: bool = False
    ) -> torch.Tensor:
        meta = getattr(spec, "tensor_meta", None)
        if meta is None:
            raise _C.argument_error(
                "DTensor",
                "spec",
                "a DTensorSpec with tensor_meta",
                spec,
                "Pass x._spec of another DTensor, or call from_local().",
            )
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

    Corresponds to :class:`torch.distributed.tensor.DTensor`. Make a DTensor by
    :func:`distribute_tensor`, :meth:`from_local` or a factory such as
    :func:`~dtensor.factories.zeros`; operators on DTensors give DTensors.
    ``isinstance(x, DTensor)`` is true for every DTensor.

    Args:
        local_tensor: this rank's shard, which shares its memory.
        spec: layout, such as ``x._spec`` of another DTensor.
        requires_grad: if true, operators record a gradient for the DTensor.

    Example::

        >>> mesh = init_device_mesh("cpu", (4,))
        >>> x = distribute_tensor(torch.ones(8, 3), mesh, [Shard(0)])
        >>> x.placements, x.to_local().shape
        ((Shard(dim=0),), torch.Size([2, 3]))
    """

    __slots__ = ()

    def __init_subclass__(cls, **options: Any) -> None:
        raise TypeError(
            f"[DTensor] the class cannot be a base class: {cls.__name__}. Objects of "
            "DTensors have the type torch.Tensor: keep a DTensor in an attribute."
        )

    if TYPE_CHECKING:

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
            """Returns the DTensor whose local shard on this rank is ``local_tensor``.

            Corresponds to :meth:`torch.distributed.tensor.DTensor.from_local`.
            Differentiable: the gradient of ``local_tensor`` is a plain tensor.

            Args:
                local_tensor: plain tensor of this rank.
                device_mesh: mesh; by default that of ``with device_mesh:``.
                placements: one for each mesh dimension; by default Replicate.
                run_check: compares shapes across ranks, and gives replicas the
                    data of the first rank. Communicates.
                shape: shape of the full tensor, if the shards are uneven.
                stride: stride of the full tensor; needed with ``shape``.
                grad_placements: layout that the gradient of ``local_tensor``
                    gets; by default ``placements``.

            Returns:
                A DTensor, which shares the memory of ``local_tensor``.

            Raises:
                RuntimeError: if ``local_tensor`` is a DTensor, or if only one of
                    ``shape`` and ``stride`` is given.
                ValueError: if the number of placements is not that of mesh
                    dimensions.
                IndexError: if a placement shards a dimension that
                    ``local_tensor`` does not have.

            Example::

                >>> DTensor.from_local(torch.ones(2, 3), mesh, [Shard(0)]).shape
                torch.Size([8, 3])
            """

    else:
        from_local = _C.from_local  # without the cost of another call

    # Functions for calls such as DTensor.to_local(x). Objects have the type
    # torch.Tensor, and their methods are the engine's.

    def to_local(
        self, *, grad_placements: Sequence[Placement] | None = None
    ) -> torch.Tensor:
        """Returns this rank's shard as a plain tensor.

        Corresponds to :meth:`torch.distributed.tensor.DTensor.to_local`. It is
        differentiable and does not communicate.

        Args:
            grad_placements: layout of the shard's gradient; by default that of
                the DTensor.

        Returns:
            A tensor that shares the DTensor's memory. After an asynchronous
            redistribution, its first use waits.

        Example::

            >>> x = distribute_tensor(torch.arange(8.0), mesh, [Shard(0)])
            >>> x.to_local()  # on rank 0 of 4
            tensor([0., 1.])
        """
        return self.to_local(grad_placements=grad_placements)

    def full_tensor(
        self, *, grad_placements: Sequence[Placement] | None = None
    ) -> torch.Tensor:
        """Returns the full tensor on every rank, as a plain tensor.

        Corresponds to :meth:`torch.distributed.tensor.DTensor.full_tensor`, and
        is ``redistribute`` to Replicate and then ``to_local``. All ranks of the
        mesh must call it.

        Args:
            grad_placements: layout of the full tensor's gradient; by default
                Replicate, which assumes that all ranks' gradients are equal.

        Example::

            >>> distribute_tensor(torch.arange(3.0), mesh, [Shard(0)]).full_tensor()
            tensor([0., 1., 2.])
        """
        return self.full_tensor(grad_placements=grad_placements)

    def redistribute(
        self,
        device_mesh: DeviceMesh | None = None,
        placements: Sequence[Placement] | None = None,
        *,
        async_op: bool = False,
        forward_dtype: torch.dtype | None = None,
        backward_dtype: torch.dtype | None = None,
    ) -> torch.Tensor:
        """Returns the same tensor in another layout.

        Corresponds to :meth:`torch.distributed.tensor.DTensor.redistribute`. It
        is differentiable. All ranks of the mesh must call it.

        Args:
            device_mesh: mesh of the result; by default the DTensor's own.
            placements: one for each mesh dimension of the result.
            async_op: returns before the collective ends. The first use of the
                result waits.
            forward_dtype: dtype to which the tensor is cast before it is sent.
            backward_dtype: dtype to which the gradient is cast before it is sent.

        Raises:
            RuntimeError: if ``placements`` is None, or has a Partial that the
                DTensor does not have.

        Example::

            >>> x = distribute_tensor(torch.ones(8, 4), mesh, [Shard(0)])
            >>> x.redistribute(placements=[Shard(1)]).to_local().shape
            torch.Size([8, 1])
        """
        return self.redistribute(
            device_mesh,
            placements,
            async_op=async_op,
            forward_dtype=forward_dtype,
            backward_dtype=backward_dtype,
        )


def distribute_tensor(
    tensor: torch.Tensor,
    device_mesh: DeviceMesh | None = None,
    placements: Sequence[Placement] | None = None,
    *,
    src_data_rank: int | None = 0,
) -> torch.Tensor:
    """Distributes a full tensor, which each rank passes, over a mesh.

    Corresponds to :func:`torch.distributed.tensor.distribute_tensor`.

    Args:
        tensor: leaf tensor of the full shape.
        device_mesh: mesh; by default that of ``with device_mesh:``.
        placements: one for each mesh dimension; by default Replicate.
        src_data_rank: rank in each mesh dimension whose data all ranks get.
            None: each rank shards its own data, without communication.

    Returns:
        A DTensor, a leaf that requires a gradient if ``tensor`` does.

    Raises:
        ValueError: if the number of placements is not that of mesh dimensions.
        RuntimeError: if ``tensor`` is not a leaf.

    Example::

        >>> mesh = init_device_mesh("cpu", (4,))
        >>> x = distribute_tensor(torch.arange(8.0), mesh, [Shard(0)])
        >>> x.to_local()  # on rank 0
        tensor([0., 1.])
    """
    mesh = current_mesh(device_mesh)
    if isinstance(placements, Sized) and len(placements) != mesh.ndim:
        raise ValueError(
            "[distribute_tensor] `placements` must have the same length as "
            f"`device_mesh.ndim`! Found placements length: {len(placements)}, and "
            f"device_mesh.ndim: {mesh.ndim}. Pass one placement per mesh dimension."
        )
    return _C.distribute_tensor(tensor, mesh, placements, src_data_rank)
