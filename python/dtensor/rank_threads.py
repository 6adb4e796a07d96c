# SPDX-License-Identifier: BSD-3-Clause
"""run_world(): runs a function on ranks that are threads of this process."""

from __future__ import annotations

import contextlib
import functools
import operator
import os
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

import torch.distributed as dist

from dtensor import _C


@contextlib.contextmanager
def _groups_per_thread() -> Iterator[None]:
    """Gives each thread process groups of its own, as PyTorch's tests do."""
    from torch._C._distributed_c10d import _set_thread_isolation_mode
    from torch.distributed import distributed_c10d as c10d
    from torch.testing._internal.distributed.multi_threaded_pg import (
        ThreadLocalWorld,
    )

    outer, excepthook = c10d._world, sys.excepthook
    c10d._world = ThreadLocalWorld()
    _set_thread_isolation_mode(True)
    try:
        yield
    finally:
        _set_thread_isolation_mode(False)
        c10d._world = outer
        sys.excepthook = excepthook  # init_process_group() replaces it


@contextlib.contextmanager
def _cached_properties_without_lock() -> Iterator[None]:
    """Lets ranks compute a ``functools.cached_property`` at the same time.

    Before Python 3.12 a property has one lock, which is held while the property is
    computed. A rank that communicates there would wait for ranks that wait for the
    lock.
    """
    if sys.version_info >= (3, 12):
        yield
        return
    locked = functools.cached_property.__get__

    def get(self: Any, instance: Any, owner: type | None = None) -> Any:
        if instance is None or self.attrname is None or not hasattr(instance, "__dict__"):
            return locked(self, instance, owner)
        if self.attrname not in instance.__dict__:
            instance.__dict__[self.attrname] = self.func(instance)
        return instance.__dict__[self.attrname]

    functools.cached_property.__get__ = get  # type: ignore[method-assign]
    try:
        yield
    finally:
        functools.cached_property.__get__ = locked  # type: ignore[method-assign]


class _Caller(threading.local):
    """The state of a thread."""

    # True while the thread runs the function of run_world().
    is_rank: bool = False


_caller = _Caller()


class _Results:
    """Results of the ranks, and the first exception."""

    def __init__(self, ranks: int):
        self.values: list[Any] = [None] * ranks
        self._failure: tuple[int, BaseException] | None = None
        self._lock = threading.Lock()

    def fail(self, rank: int, error: BaseException) -> None:
        with self._lock:
            if self._failure is None:
                self._failure = (rank, error)

    def raise_failure(self) -> None:
        if self._failure is not None:
            rank, error = self._failure
            if hasattr(error, "add_note"):  # Python 3.11
                error.add_note(f"[run_world] raised by rank {rank}")
            raise error


def _checked_ranks(ranks: int, function: Callable[..., Any]) -> int:
    """Returns the number of ranks. Refuses arguments of wrong types."""
    try:
        ranks = operator.index(ranks)
    except TypeError:
        raise _C.argument_error(
            "run_world", "ranks", "an integer", ranks, "Pass the number of ranks."
        ) from None
    if not 1 <= ranks < 2**31:
        raise ValueError(
            f"[run_world] the number of ranks must be positive: {ranks}. "
            "Pass at least 1, and less than 2**31."
        )
    if not callable(function):
        raise _C.argument_error(
            "run_world", "function", "a callable", function, "Pass what ranks call."
        )
    return ranks


def run_world(
    ranks: int, function: Callable[..., Any], *args: Any
) -> list[Any]:
    """Runs ``function(*args)`` on each rank of a world, and returns its results.

    Without a launcher the ranks are threads of this process, so that a model can
    be tested in a notebook. ``torch.distributed`` is initialized inside
    ``function``: each rank has process groups and a random generator of its own.
    ``torch.distributed.tensor`` has no counterpart; ``run_world`` takes the place
    of a launcher.

    Args:
        ranks: number of ranks. Ignored under ``torchrun``, where this process is
            one of the launcher's ranks.
        function: function that each rank calls.
        args: arguments of the function; ranks that are threads share them.

    Returns:
        The results of all ranks, in rank order. Under ``torchrun``, a list with
        the result of this rank.

    Raises:
        BaseException: the exception of the first rank that failed, with a note
            that names the rank. The other ranks end.
        TypeError: if ``ranks`` is not an integer, or ``function`` not a function.
        ValueError: if ``ranks`` is not positive.
        RuntimeError: if this process or thread is a rank already.

    Example::

        >>> def function():
        ...     mesh = init_device_mesh("cpu", (4,))
        ...     x = distribute_tensor(torch.arange(8.0), mesh, [Shard(0)])
        ...     return x.to_local().tolist()
        >>> dtensor.run_world(4, function)
        [[0.0, 1.0], [2.0, 3.0], [4.0, 5.0], [6.0, 7.0]]
    """
    import dtensor.as_torch  # noqa: F401

    ranks = _checked_ranks(ranks, function)
    if _caller.is_rank:
        raise RuntimeError(
            f"[run_world] rank {dist.get_rank()} of {dist.get_world_size()} calls "
            "run_world() inside run_world(). Call the function directly, or call "
            "run_world() after the outer one has returned."
        )
    if dist.is_initialized():
        raise RuntimeError(
            "[run_world] this process is a rank of torch.distributed already. "
            "Call run_world() instead of init_process_group()."
        )
    if "RANK" in os.environ and "WORLD_SIZE" in os.environ:
        return [_run_launched(function, args)]
    return _run_threads(ranks, function, args)


def _run_launched(function: Callable[..., Any], args: tuple) -> Any:
    dist.init_process_group("dtensor")
    _caller.is_rank = True
    try:
        return function(*args)
    finally:
        _caller.is_rank = False
        dist.destroy_process_group()


def _run_threads(ranks: int, function: Callable[..., Any], args: tuple) -> list:
    from dtensor import worlds

    results = _Results(ranks)
    store = dist.HashStore()

    def run_rank(rank: int) -> None:
        worlds.set_rank_thread(True)
        _caller.is_rank = True
        try:
            dist.init_process_group(
                "dtensor", store=store, rank=rank, world_size=ranks
            )
            results.values[rank] = function(*args)
            dist.destroy_process_group()
        except BaseException as error:
            results.fail(rank, error)
            raise
        finally:
            _C.forget_world()
            worlds.set_rank_thread(False)

    failure = None
    try:
        with _groups_per_thread(), _cached_properties_without_lock():
            _C.run_ranks(ranks, run_rank)
    except RuntimeError as error:
        failure = error
    # Outside of `except`, so that a rank's exception has no other as its context.
    results.raise_failure()
    if failure is not None:
        raise failure
    return results.values
