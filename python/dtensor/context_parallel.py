# SPDX-License-Identifier: BSD-3-Clause
"""Attention over a sharded sequence, on any device."""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterator, Sequence
from typing import Any

import torch
from torch.distributed.device_mesh import DeviceMesh

from dtensor import _C

_ROTATE_METHODS = ("allgather", "alltoall", "ulysses")


def _load_balance() -> bool | None:
    """Returns False if PyTorch's option turns the default off."""
    from torch.distributed.tensor.experimental._context_parallel import _attention

    return None if _attention._cp_options.enable_load_balance else False


def _listed(values: Any) -> Any:
    """Converts a collection to a list. The engine handles other types."""
    if values is None:
        return []
    refused = isinstance(values, (str, dict, torch.Tensor))
    return list(values) if isinstance(values, Collection) and not refused else values


@contextlib.contextmanager
def context_parallel(
    mesh: DeviceMesh,
    *,
    buffers: Sequence[torch.Tensor] | None = None,
    buffer_seq_dims: Sequence[int] | None = None,
    no_restore_buffers: Collection[torch.Tensor] | None = None,
) -> Iterator[None]:
    """Shards buffers along their sequence, and attention with them.

    Corresponds to
    :func:`torch.distributed.tensor.experimental.context_parallel`. Inside the
    context, each buffer is this rank's shard, and
    ``scaled_dot_product_attention`` attends to the sequence of all ranks. The
    sequence may have any length, and the backward pass may follow the context.

    Args:
        mesh: mesh of one dimension whose ranks share the sequence.
        buffers: tensors to shard in place, such as inputs and labels. They are
            full again after the context.
        buffer_seq_dims: sequence dimension of each buffer.
        no_restore_buffers: buffers that may stay sharded after the context.

    Example::

        >>> q.shape, k.shape, v.shape  # batch, heads, sequence, channels
        (torch.Size([2, 4, 8, 16]), torch.Size([2, 4, 8, 16]), torch.Size([2, 4, 8, 16]))
        >>> with context_parallel(mesh, buffers=[q, k, v], buffer_seq_dims=[2, 2, 2]):
        ...     y = F.scaled_dot_product_attention(q, k, v)
        >>> y.shape
        torch.Size([2, 4, 2, 16])
    """
    scope = _C.ContextParallel()
    scope.enter(
        mesh,
        _listed(buffers),
        _listed(buffer_seq_dims),
        _listed(no_restore_buffers),
        _load_balance(),
    )
    try:
        yield
    finally:
        scope.leave()


def context_parallel_unshard(
    mesh: DeviceMesh,
    buffers: Sequence[torch.Tensor],
    seq_dims: Sequence[int],
    load_balancer: Any = None,
) -> list[torch.Tensor]:
    """Returns the full tensors of local shards, in sequence order.

    Corresponds to ``context_parallel_unshard`` in
    ``torch.distributed.tensor.experimental._attention``. The order is that of the
    rank's innermost open :func:`context_parallel` on the ranks of ``mesh``, or of the
    latest one if all have ended.

    Args:
        mesh: mesh of the context.
        buffers: plain tensors, each the shard of this rank.
        seq_dims: sequence dimension of each buffer.
        load_balancer: only None is supported.

    Returns:
        The full tensors, one for each buffer.

    Raises:
        NotImplementedError: if there is a ``load_balancer``.

    Example::

        >>> with context_parallel(mesh, buffers=[q, k, v], buffer_seq_dims=[2, 2, 2]):
        ...     y = F.scaled_dot_product_attention(q, k, v)
        >>> (full,) = context_parallel_unshard(mesh, [y], [2])
        >>> torch.allclose(full, F.scaled_dot_product_attention(q, k, v), atol=1e-6)
        True
    """
    if load_balancer is not None:
        raise NotImplementedError(
            "[context_parallel_unshard] load balancers of flex_attention are not "
            f"supported: {type(load_balancer).__name__}. Pass None, for the "
            "order of context_parallel()."
        )
    return _C.context_parallel_unshard(mesh, _listed(buffers), _listed(seq_dims))


def set_rotate_method(rotate_method: str) -> None:
    """Sets how :func:`context_parallel` passes keys and values between ranks.

    Corresponds to ``set_rotate_method`` in
    ``torch.distributed.tensor.experimental._attention``.

    Args:
        rotate_method: "allgather" (the default), "alltoall", or "ulysses", which
            exchanges heads and exists only here.

    Raises:
        NotImplementedError: for another text.

    Example::

        >>> set_rotate_method("alltoall")
    """
    if isinstance(rotate_method, str) and rotate_method not in _ROTATE_METHODS:
        raise NotImplementedError(
            f"[set_rotate_method] no rotate_method {rotate_method!r}. Pass one of "
            f"{', '.join(_ROTATE_METHODS)}."
        )
    _C.set_rotate_method(rotate_method)
