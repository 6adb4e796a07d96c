# SPDX-License-Identifier: BSD-3-Clause
"""Context managers and decorators that change how operators shard."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import torch.distributed as dist

from dtensor import _C, worlds


@contextlib.contextmanager
def _entered(scope: Any) -> Iterator[None]:
    scope.enter()
    try:
        yield
    finally:
        scope.leave()


def loss_parallel() -> contextlib.AbstractContextManager[None]:
    """Computes cross_entropy of logits sharded over classes without a gather.

    See :func:`torch.distributed.tensor.parallel.loss_parallel`.
    """
    return _entered(_C.LossParallel())


def implicit_replication() -> contextlib.AbstractContextManager[None]:
    """Treats plain tensors among the operands as replicated DTensors.

    See :func:`torch.distributed.tensor.experimental.implicit_replication`.
    """
    return _entered(_C.ImplicitReplication())


def on_missing_rule() -> contextlib.AbstractContextManager[None]:
    """Runs operators without a sharding rule on replicated operands.

    The first call of each operator warns.
    """
    return _entered(_C.OnMissingRule())


class ExplicitRedistributionContext:
    """Reports redistributions that the program did not ask for.

    Args:
        enable: False allows them again inside an outer context.
        strict: True also reports those that send nothing.
        mode: "raise" or "warn".
    """

    def __init__(
        self, enable: bool = True, strict: bool = False, mode: str = "raise"
    ):
        if mode not in ("raise", "warn"):
            raise RuntimeError(
                f"[ExplicitRedistributionContext] Invalid mode {mode}. "
                'Use "raise" or "warn".'
            )
        self._options = (enable, strict, mode == "raise")
        self._scope = _C.ExplicitRedistribution()

    def __enter__(self) -> ExplicitRedistributionContext:
        if dist.is_initialized():
            worlds.enter_world()
        self._scope.enter(*self._options)
        return self

    def __exit__(self, *error: object) -> None:
        self._scope.leave()


def register_sharding(op: Any) -> Callable[[Callable], Callable]:
    """Sets the sharding rule of an operator, or of each in a list.

    See :func:`torch.distributed.tensor.experimental.register_sharding`. The
    decorated function gets a DTensorSpec in place of each tensor. Call it
    before ranks run.
    """

    def register(function: Callable) -> Callable:
        for overload in op if isinstance(op, list) else [op]:
            _C.register_sharding(overload.name(), function)
        return function

    return register
