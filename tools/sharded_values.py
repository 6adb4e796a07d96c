# SPDX-License-Identifier: BSD-3-Clause
"""Local tensors of all ranks of a mesh, for choice_table.py.

Splits full tensors by placements of torch.distributed.tensor, and joins them again.
"""


class LocalTensors:
    """Local tensors of one argument, by rank."""

    def __init__(self, by_rank):
        self.by_rank = by_rank


class ShardedValues:
    """Values of tensors, and their local tensors on a mesh.

    The values are random, or zeros. Terms of partial zeros are not zeros, which shows
    operators like any() that are not linear.
    """

    def __init__(self, torch, shape, are_zeros=False):
        self.torch = torch
        self.shape = shape
        self.are_zeros = are_zeros

    def draw(self, tensor):
        if self.are_zeros:
            return self.torch.zeros(tensor.shape, dtype=tensor.dtype)
        return self._random(tensor)

    def _random(self, tensor):
        """Returns random values in [0, 1), sorted as boundaries must be."""
        torch = self.torch
        if not tensor.dtype.is_floating_point and not tensor.dtype.is_complex:
            return torch.randint(0, 2, tensor.shape).to(tensor.dtype)
        values = torch.rand(tensor.shape, dtype=torch.float64)
        return (values.sort().values if values.dim() > 0 else values).to(tensor.dtype)

    def split(self, value, placements):
        """Returns local tensors whose join() is `value`. Partial terms are random."""
        return LocalTensors(self._split(value, placements, self.shape))

    def _split(self, value, placements, shape):
        if not shape:
            return [value.contiguous()]
        kind, ranks = str(placements[0]), shape[0]
        if kind == "R":
            parts = [value] * ranks
        elif kind.startswith("S("):
            dim = placements[0].dim
            size = -(-value.size(dim) // ranks)
            parts = [
                value.narrow(dim, begin, min(size, value.size(dim) - begin))
                for begin in (min(rank * size, value.size(dim))
                              for rank in range(ranks))]
        elif kind == "P(sum)" and value.dtype != self.torch.bool:
            parts = [self._random(value) for _ in range(ranks - 1)]
            parts.append(value - sum(parts))
        else:
            raise NotImplementedError(kind)
        return [local for part in parts
                for local in self._split(part, placements[1:], shape[1:])]

    def join(self, parts, placements):
        """Returns the full tensor. Raises RuntimeError if replicas differ."""
        return self._join(parts, placements, self.shape)

    def _join(self, parts, placements, shape):
        if not shape:
            return parts[0]
        step = len(parts) // shape[0]
        parts = [self._join(parts[i:i + step], placements[1:], shape[1:])
                 for i in range(0, len(parts), step)]
        kind = str(placements[0])
        if kind.startswith("S("):
            return self.torch.cat(parts, placements[0].dim)
        if kind == "R":
            if not all(self.is_close(parts[0], part) for part in parts):
                raise RuntimeError("ranks have different values")
            return parts[0]
        reduce = {"P(sum)": "sum", "P(avg)": "mean", "P(max)": "amax",
                  "P(min)": "amin"}.get(kind)
        if reduce is None:
            raise NotImplementedError(kind)
        return getattr(self.torch.stack(parts), reduce)(0)

    def is_close(self, one, other):
        if one.shape != other.shape:
            return False
        return self.torch.allclose(
            one.to(other.dtype), other, rtol=1e-3, atol=1e-3, equal_nan=True)


def results_of(results):
    if not isinstance(results, (tuple, list)):
        return [results]
    return results


def map_specs(values, fn):
    """Returns `values` with fn() of each DTensor or spec."""
    if hasattr(values, "placements"):
        return fn(values)
    if isinstance(values, (tuple, list)):
        return [map_specs(value, fn) for value in values]
    return values


def tensors_in(values):
    if isinstance(values, (tuple, list)):
        for value in values:
            yield from tensors_in(value)
    elif hasattr(values, "dtype") and hasattr(values, "shape"):
        yield values


def flat_list(values):
    if isinstance(values, (tuple, list)):
        return [item for value in values for item in flat_list(value)]
    return [values]


def pick_rank(values, rank):
    if isinstance(values, LocalTensors):
        return values.by_rank[rank]
    if isinstance(values, list):
        return [pick_rank(value, rank) for value in values]
    return values
