# SPDX-License-Identifier: BSD-3-Clause
"""Shard with a unit. All other placements are those of PyTorch."""

from __future__ import annotations

from numbers import Integral
from typing import Any

import torch
from torch.distributed.tensor import placement_types

from dtensor import _C


def _checked(name: str, value: int) -> int:
    value = int(value) if isinstance(value, Integral) else value
    if not isinstance(value, int) or not -(2**63) <= value < 2**63:
        raise _C.argument_error(
            "Shard", name, "an integer", value, "Pass an int of 64 bits."
        )
    return value


def _checked_unit(unit: int) -> int:
    unit = _checked("unit", unit)
    if unit < 1:
        raise ValueError(
            f"[Shard] the unit must be positive: {unit}. Leave it out to allow "
            "shard boundaries at any element."
        )
    return unit


def _chunks(tensor: torch.Tensor, parts: int, dim: int, unit: int) -> list:
    size = tensor.size(dim)
    bounds = [_C.chunk(size, parts, i, unit) for i in range(parts)]
    return [tensor.narrow(dim, begin, end - begin) for begin, end in bounds]


def _padded(
    shards: list[torch.Tensor], dim: int, with_padding: bool, contiguous: bool
) -> tuple[list[torch.Tensor], list[int]]:
    """Returns shards as PyTorch's placements do, and the padding of each shard."""
    pads: list[int] = []
    if with_padding:
        largest = max(shard.size(dim) for shard in shards)
        pads = [largest - shard.size(dim) for shard in shards]
        shards = [
            placement_types.pad_tensor(shard, dim, pad)
            for shard, pad in zip(shards, pads)
        ]
    if contiguous:
        shards = [shard.contiguous() for shard in shards]
    return shards, pads


class Shard(placement_types.Shard):
    """A placement that shards a dimension at multiples of a unit.

    Corresponds to :class:`torch.distributed.tensor.Shard`, which has no unit, and to
    ``Shard(dim, unit)`` in C++. Ranks get complete units, as many as ``torch.chunk``
    would give them; the last unit may be shorter. For example, 9 heads of 64
    features are never split between 2 ranks, which get 5 and 4 heads.

    Equal shardings have equal placements: a DTensor's placement has no unit if
    PyTorch's ``Shard(dim)`` makes its shards.

    Args:
        dim: dimension of the tensor; negative numbers count from the end.
        unit: elements that stay together. 1 makes PyTorch's ``Shard(dim)``.

    Raises:
        ValueError: if ``unit`` is below 1.

    Example::

        >>> x = distribute_tensor(torch.ones(2, 20), mesh, [dtensor.Shard(1, 4)])
        >>> x.placements
        (Shard(dim=1, unit=4),)
        >>> x.to_local().shape  # on rank 0 of 4: two units of four
        torch.Size([2, 8])
    """

    unit: int

    def __new__(cls, dim: int, unit: int = 1) -> Any:
        if _checked_unit(unit) == 1:
            return placement_types.Shard(_checked("dim", dim))
        return super().__new__(cls, _checked("dim", dim))

    def __init__(self, dim: int, unit: int = 1):
        super().__init__(dim)
        self.unit = _checked_unit(unit)

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, Shard)
            and self.dim == other.dim
            and self.unit == other.unit
        )

    def __hash__(self) -> int:
        return hash((self.dim, self.unit))

    def __repr__(self) -> str:
        return f"Shard(dim={self.dim}, unit={self.unit})"

    def __str__(self) -> str:
        return f"S({self.dim}, u={self.unit})"

    def __reduce__(self) -> tuple:
        return Shard, (self.dim, self.unit)

    # PyTorch's checkpoints and utilities call these.

    def _local_shard_size_and_offset(
        self, curr_local_size: int, num_chunks: int, rank: Any
    ) -> tuple[int, int]:
        begin, end = _C.chunk(curr_local_size, num_chunks, rank, self.unit)
        return end - begin, begin

    def _split_tensor(
        self,
        tensor: torch.Tensor,
        num_chunks: int,
        *,
        with_padding: bool = True,
        contiguous: bool = True,
    ) -> tuple[list[torch.Tensor], list[int]]:
        shards = _chunks(tensor, num_chunks, self.dim, self.unit)
        return _padded(shards, self.dim, with_padding, contiguous)


class _StridedShard(placement_types._StridedShard):
    """PyTorch's _StridedShard whose shards of each block have complete units."""

    unit: int

    def __init__(self, dim: int, *, split_factor: int, unit: int):
        super().__init__(dim, split_factor=split_factor)
        self.unit = _checked_unit(unit)

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, _StridedShard)
            and (self.dim, self.split_factor) == (other.dim, other.split_factor)
            and self.unit == other.unit
        )

    def __hash__(self) -> int:
        return hash((self.dim, self.split_factor, self.unit))

    def __repr__(self) -> str:
        sf = self.split_factor
        return f"_StridedShard(dim={self.dim}, sf={sf}, unit={self.unit})"

    def __str__(self) -> str:
        return f"_S({self.dim}, {self.split_factor}, u={self.unit})"

    def __reduce__(self) -> tuple:
        return _strided_shard, (self.dim, self.split_factor, self.unit)

    def _split_tensor(
        self,
        tensor: torch.Tensor,
        num_chunks: int,
        *,
        with_padding: bool = True,
        contiguous: bool = True,
    ) -> tuple[list[torch.Tensor], list[int]]:
        dim = self.dim
        blocks = [
            _chunks(block, num_chunks, dim, self.unit)
            for block in _chunks(tensor, self.split_factor, dim, 1)
        ]
        shards = [torch.cat(pieces, dim) for pieces in zip(*blocks)]
        return _padded(shards, dim, with_padding, contiguous)


def _strided_shard(dim: int, split_factor: int, unit: int) -> _StridedShard:
    return _StridedShard(dim, split_factor=split_factor, unit=unit)


#: Classes of the engine's placements, derived classes before their bases, and
#: functions that copy an object of a subclass.
_COPIES = {
    _StridedShard: lambda p: _strided_shard(p.dim, p.split_factor, p.unit),
    Shard: lambda p: Shard(p.dim, p.unit),
    placement_types._StridedShard: lambda p: placement_types._StridedShard(
        p.dim, split_factor=p.split_factor
    ),
    placement_types.Shard: lambda p: placement_types.Shard(p.dim),
    placement_types.Replicate: lambda p: placement_types.Replicate(),
    placement_types.Partial: lambda p: placement_types.Partial(p.reduce_op),
}


def _methods(cls: type) -> dict[str, Any]:
    """Returns the functions of a class, except special ones such as ``__repr__``."""
    named = {n: getattr(cls, n) for n in dir(cls) if not n.startswith("__")}
    return {n: getattr(v, "__func__", v) for n, v in named.items() if callable(v)}


def _replaced_methods(cls: type, base: type) -> list[str]:
    """Returns the names of the methods of ``base`` that the subclass replaces."""
    methods = _methods(cls)
    return [n for n, v in _methods(base).items() if methods.get(n) is not v]


def plain_placement(placement: Any) -> Any:
    """Returns the placement that an object of a subclass stands for. The engine
    calls no methods of placements, so the subclass may not replace them."""
    cls = type(placement)
    for base, copy in _COPIES.items():
        if not isinstance(placement, base):
            continue
        replaced = _replaced_methods(cls, base)
        if replaced:
            raise TypeError(
                f"[placements] the class {cls.__name__} replaces methods of "
                f"{base.__name__}, which are not called: {', '.join(replaced)}. "
                f"Pass a {base.__name__}, or run on PyTorch's own DTensor."
            )
        return copy(placement)
    raise TypeError(
        "[placements] expected Shard, Replicate or Partial, got "
        f"{placement!r}. Pass one placement for each mesh dimension."
    )


def install() -> None:
    """Lets PyTorch's DTensorSpec and files have placements with a unit."""
    from torch.distributed.tensor._dtensor_spec import DTensorSpec

    plain = DTensorSpec._verify_shard_order

    def _verify_shard_order(self, shard_order: Any) -> None:
        if not any(isinstance(p, Shard) for p in self.placements):
            plain(self, shard_order)

    DTensorSpec._verify_shard_order = _verify_shard_order
    torch.serialization.add_safe_globals([Shard, _strided_shard])
