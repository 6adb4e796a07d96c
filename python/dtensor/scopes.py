# SPDX-License-Identifier: BSD-3-Clause
"""Context managers and decorators that change how operators shard."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import torch
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

    Corresponds to :func:`torch.distributed.tensor.parallel.loss_parallel`.

    Returns:
        A context manager.

    Example::

        >>> with loss_parallel():
        ...     loss = F.cross_entropy(logits, target)  # logits: Shard(1)
        ...     loss.backward()
    """
    return _entered(_C.LossParallel())


def implicit_replication() -> contextlib.AbstractContextManager[None]:
    """Treats plain tensors among the operands as replicated DTensors.

    Corresponds to
    :func:`torch.distributed.tensor.experimental.implicit_replication`. Outside of
    the scope, operators with DTensors and plain tensors raise an error.

    Returns:
        A context manager. Scopes may be nested, and the backward pass may run
        outside.

    Example::

        >>> with implicit_replication():
        ...     y = x + torch.ones(8, 8)  # x is a DTensor
    """
    return _entered(_C.ImplicitReplication())


@contextlib.contextmanager
def on_missing_rule() -> Iterator[_C.OnMissingRule]:
    """Runs operators without a sharding rule on replicated operands.

    Outside of the scope, such an operator raises NotImplementedError. Inside,
    each rank runs it on the full tensors, which costs memory and time; the first
    call of each operator warns. Operators that draw random numbers or return views
    raise the error inside, too. ``torch.distributed.tensor`` has no counterpart.

    Returns:
        A context manager. Its value counts the costs of the operators. Its method
        ``costs()`` returns ``calls``, ``collectives`` and ``wire_bytes`` of each
        operator.

    Example::

        >>> with dtensor.on_missing_rule() as scope:
        ...     y = torch.ops.mylib.scale(x, factors)
        >>> scope.costs()["mylib::scale"].calls
        1
    """
    scope = _C.OnMissingRule()
    with _entered(scope):
        yield scope


class ExplicitRedistributionContext:
    """Reports implicit redistributions of operands.

    Corresponds to ``ExplicitRedistributionContext`` in
    ``torch.distributed.tensor._utils``, a context manager. An operator that would
    redistribute an operand raises an error or warns, so that all communication is
    by calls of ``redistribute``.

    Args:
        enable: False allows implicit redistributions again inside an outer context.
        strict: True also reports redistributions that send nothing.
        mode: "raise" or "warn".

    Raises:
        RuntimeError: if ``mode`` is another text; inside the context, for an
            implicit redistribution.

    Example::

        >>> with ExplicitRedistributionContext():
        ...     y = model(batch)
    """

    def __init__(
        self, enable: bool = True, strict: bool = False, mode: str = "raise"
    ):
        if not isinstance(mode, str):
            raise _C.argument_error(
                *("ExplicitRedistributionContext", "mode", "a str", mode),
                'Pass "raise" or "warn".',
            )
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
    """Sets the sharding rule of an operator, or of each operator in a list.

    Corresponds to
    :func:`torch.distributed.tensor.experimental.register_sharding`. Call it
    before ranks run.

    Args:
        op: operator, such as ``torch.ops.mylib.scale.default``, or a list.

    Returns:
        A decorator. The decorated function gets the arguments of the operator,
        with a DTensorSpec in place of each tensor. Positional arguments at the end
        and keyword arguments are left out if they equal the defaults. The function
        returns a list of pairs: the placements of the results, and those of the
        arguments (None for arguments that are not tensors). The list is cached for
        each combination of layouts and shapes.

    Example::

        >>> @register_sharding(torch.ops.mylib.scale.default)
        ... def scale_rule(x, factors):
        ...     return [([Shard(0)], [Shard(0), Shard(0)])]
    """

    overloads = op if isinstance(op, list) else [op]
    for overload in overloads:
        if not isinstance(overload, torch._ops.OpOverload):
            raise _C.argument_error(
                "register_sharding",
                "op",
                "an operator's overload",
                overload,
                "Pass one such as torch.ops.mylib.scale.default.",
            )

    def register(function: Callable) -> Callable:
        if not callable(function):
            raise _C.argument_error(
                "register_sharding", "the rule", "a function", function, "Decorate one."
            )
        for overload in overloads:
            _C.register_sharding(overload.name(), function)
        return function

    return register
