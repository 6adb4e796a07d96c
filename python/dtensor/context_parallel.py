# SPDX-License-Identifier: BSD-3-Clause
"""Attention over a sharded sequence, on any device."""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterator, Sequence
from typing import Any

import torch
from torch.distributed.device_mesh import DeviceMesh

from dtensor import _C


def _load_balance() -> bool | None:
    """Returns False if PyTorch's option turns the default off."""
    from torch.distributed.tensor.experimental._context_parallel import _attention

    return None if _attention._cp_options.enable_load_balance else False


@contextlib.contextmanager
def context_parallel(
    mesh: DeviceMesh,
    *,
    buffers: Sequence[torch.Tensor] | None = None,
    buffer_seq_dims: Sequence[int] | None = None,
    no_restore_buffers: Collection[torch.Tensor] | None = None,
) -> Iterator[None]:
    """Shards buffers along their sequence, and attention with them.

    See :func:`torch.distributed.tensor.experimental.context_parallel`. The
    sequence may have any length, and the backward pass may follow the context.
    """
    scope = _C.ContextParallel()
    scope.enter(
        mesh,
        list(buffers or ()),
        list(buffer_seq_dims or ()),
        list(no_restore_buffers or ()),
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

    The order is that of the rank's latest :func:`context_parallel`.
    """
    if load_balancer is not None:
        raise NotImplementedError(
            "[context_parallel_unshard] load balancers of flex_attention are not "
            f"supported: {load_balancer}. Pass None, for the order of "
            "context_parallel()."
        )
    return _C.context_parallel_unshard(mesh, list(buffers), list(seq_dims))


def set_rotate_method(rotate_method: str) -> None:
    """Sets how keys and values pass between ranks.

    "allgather" (the default), "alltoall", or "ulysses", which exchanges heads.
    """
    _C.set_rotate_method(rotate_method)
