# SPDX-License-Identifier: BSD-3-Clause
"""Tests of Shard with a unit: shards of complete units, such as attention heads."""

import copy
import io
import pickle

import dtensor
import pytest
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as checkpoint
import torch.nn.functional as F
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import (
    DTensor,
    Partial,
    Replicate,
    Shard,
    distribute_tensor,
    zeros,
)
from torch.distributed.tensor._utils import compute_local_shape_and_global_offset
from torch.distributed.tensor.placement_types import _MaskPartial, _StridedShard

HEADS, FEATURES = 5, 3


def mesh_of_all():
    return init_device_mesh("cpu", (dist.get_world_size(),))


def whole_units(size, unit):
    """Returns the bounds of this rank's shard, computed on the list of units."""
    units = torch.arange(0, size, unit).chunk(dist.get_world_size())
    if dist.get_rank() >= len(units):
        return size, size
    if size == 0:
        return 0, 0
    mine = units[dist.get_rank()]
    return int(mine[0]), min(size, int(mine[-1]) + unit)


@pytest.mark.parametrize("size", [15, 14, 3, 1, 0])
def test_shards_are_whole_units(run, size):
    def check():
        full = torch.arange(2.0 * size).view(2, size)
        x = distribute_tensor(full, mesh_of_all(), [dtensor.Shard(1, FEATURES)])
        begin, end = whole_units(size, FEATURES)
        assert torch.equal(x.to_local(), full[:, begin:end])
        assert torch.equal(x.full_tensor(), full)
        back = x.redistribute(placements=[Replicate()])
        again = back.redistribute(placements=[dtensor.Shard(-1, FEATURES)])
        assert torch.equal(again.to_local(), x.to_local())
        assert again.placements == x.placements
        shape, offset = compute_local_shape_and_global_offset(
            x.shape, x.device_mesh, x.placements
        )
        assert shape == tuple(x.to_local().shape)
        assert offset[1] == begin

    run(check)


def test_placements_compare_by_dimension_and_unit():
    unit = dtensor.Shard(1, 64)
    assert unit == dtensor.Shard(1, unit=64) and hash(unit) == hash(dtensor.Shard(1, 64))
    assert unit != dtensor.Shard(1, 32) and unit != dtensor.Shard(0, 64)
    assert unit != Shard(1) and Shard(1) != unit
    assert type(dtensor.Shard(1)) is Shard and dtensor.Shard(1, 1) == Shard(1)
    assert isinstance(unit, Shard) and unit.is_shard() and unit.is_shard(1)
    assert not unit.is_shard(0)
    assert repr(unit) == "Shard(dim=1, unit=64)" and str(unit) == "S(1, u=64)"
    for again in (copy.copy(unit), copy.deepcopy(unit), pickle.loads(pickle.dumps(unit))):
        assert again == unit and again.unit == 64
    with pytest.raises(ValueError, match="unit must be positive: 0"):
        dtensor.Shard(1, 0)
    with pytest.raises(TypeError):
        dtensor.Shard(1, 0.5)


def test_equal_shardings_have_equal_placements():
    def check():
        mesh = mesh_of_all()

        def layout(size, unit):
            placed = [dtensor.Shard(0, unit)]
            return zeros(size, device_mesh=mesh, placements=placed).placements

        assert layout(12, 3) == (Shard(0),)
        assert layout(10, 2) == (dtensor.Shard(0, 2),)
        assert layout(10, 6) == layout(10, 2)  # both shards are alike
        assert layout(10, 4) == layout(10, 8) == (dtensor.Shard(0, 8),)
        assert layout(10, 5) == layout(10, 1) == (Shard(0),)

    dtensor.run_world(2, check)


def attention(x, weights):
    q, k, v = (
        F.linear(x, w).unflatten(1, (HEADS, FEATURES)).transpose(0, 1) for w in weights
    )
    scores = torch.softmax(q @ k.transpose(1, 2), -1)
    return (scores @ v).transpose(0, 1).flatten(1)


def test_attention_over_uneven_heads(run):
    def check():
        torch.manual_seed(0)
        mesh = mesh_of_all()
        x = torch.randn(7, 4, dtype=torch.double)
        weights = torch.randn(3, HEADS * FEATURES, 4, dtype=torch.double)
        weights.requires_grad_()
        expected = attention(x, weights)
        expected.pow(2).sum().backward()
        placed = [dtensor.Shard(0, FEATURES)]
        sharded = [
            distribute_tensor(w.detach(), mesh, placed).requires_grad_() for w in weights
        ]
        y = attention(distribute_tensor(x, mesh), sharded)
        y.pow(2).sum().backward()
        begin, end = whole_units(HEADS * FEATURES, FEATURES)
        torch.testing.assert_close(y.to_local(), expected[:, begin:end])
        for w, grad in zip(sharded, weights.grad):
            assert w.grad.placements == w.placements
            torch.testing.assert_close(w.grad.full_tensor(), grad)

    run(check)


def test_local_tensors_and_copies(run):
    def check():
        mesh = mesh_of_all()
        begin, end = whole_units(14, 4)
        full = torch.arange(28.0).view(14, 2)
        x = DTensor.from_local(
            full[begin:end],
            mesh,
            [dtensor.Shard(0, 4)],
            shape=full.shape,
            stride=full.stride(),
        )
        assert torch.equal(x.full_tensor(), full)
        file = io.BytesIO()
        torch.save(x, file)
        file.seek(0)
        for again in (copy.deepcopy(x), torch.load(file, weights_only=False)):
            assert again.placements == x.placements
            assert torch.equal(again.full_tensor(), full)
        assert x._spec.placements == x.placements
        assert x._spec is x._spec

    run(check)


@pytest.mark.parametrize("ranks", [2, 3])
def test_checkpoints(tmp_path, ranks):
    def check():
        mesh = mesh_of_all()
        full = torch.arange(20.0).view(10, 2)
        saved = {"x": distribute_tensor(full, mesh, [dtensor.Shard(0, 4)])}
        checkpoint.save(saved, checkpoint_id=str(tmp_path))
        for placement in (dtensor.Shard(0, 3), Shard(1), Replicate()):
            loaded = {"x": zeros(10, 2, device_mesh=mesh, placements=[placement])}
            checkpoint.load(loaded, checkpoint_id=str(tmp_path))
            assert torch.equal(loaded["x"].full_tensor(), full)

    dtensor.run_world(ranks, check)


def test_strided_shards_of_units():
    def check():
        mesh = mesh_of_all()
        full = torch.arange(20.0).view(2, 10)
        x = distribute_tensor(full, mesh, [dtensor.Shard(1, 4)]).view(20)
        (placement,) = x.placements
        assert isinstance(placement, _StridedShard) and placement.unit > 1
        assert "unit=" in repr(placement)
        for again in (copy.deepcopy(placement), pickle.loads(pickle.dumps(placement))):
            assert again == placement and hash(again) == hash(placement)
        assert placement != _StridedShard(0, split_factor=2)
        assert _StridedShard(0, split_factor=2) != placement
        shards, _ = placement._split_tensor(full.view(20), 2, with_padding=False)
        assert torch.equal(shards[dist.get_rank()], x.to_local())
        padded, pads = placement._split_tensor(full.view(20), 2)
        assert len({len(p) for p in padded}) == 1 and sum(pads) > 0
        y = distribute_tensor(full.view(20), mesh, [placement])
        assert torch.equal(y.to_local(), x.to_local())

    dtensor.run_world(2, check)


class Named(Shard):
    """A subclass that shards as its base does."""

    def __repr__(self):
        return "Named"


class Heads(dtensor.Shard):
    pass


class Blocks(_StridedShard):
    pass


class Whole(Replicate):
    pass


class Sum(Partial):
    pass


class Interleaved(Shard):
    def _split_tensor(self, tensor, num_chunks, **options):
        raise NotImplementedError


class Weighted(Partial):
    def _reduce_value(self, tensor, mesh, mesh_dim):
        raise NotImplementedError


def test_subclasses_stand_for_their_base():
    def check():
        mesh = mesh_of_all()
        full = torch.arange(20.0).view(10, 2)
        for derived, base in (
            (Named(0), Shard(0)),
            (Heads(0, 4), dtensor.Shard(0, 4)),
            (Blocks(0, split_factor=2), _StridedShard(0, split_factor=2)),
            (Whole(), Replicate()),
        ):
            x = distribute_tensor(full, mesh, [derived])
            y = distribute_tensor(full, mesh, [base])
            assert x.placements == y.placements
            assert type(x.placements[0]) is type(y.placements[0])
            assert torch.equal(x.to_local(), y.to_local())
        x = DTensor.from_local(full, mesh, [Sum("avg")])
        assert x.placements == (Partial("avg"),)

    dtensor.run_world(2, check)


@pytest.mark.parametrize(
    ("placement", "words"),
    [
        (Interleaved(0), "Interleaved replaces methods of Shard.*: _split_tensor"),
        (Weighted(), "Weighted replaces methods of Partial.*: _reduce_value"),
        (_MaskPartial(offset_shape=(4,), offset_dim=0), "_MaskPartial replaces"),
    ],
)
def test_subclasses_with_methods_of_their_own_are_refused(placement, words):
    def check():
        with pytest.raises(TypeError, match=words):
            DTensor.from_local(torch.ones(4), mesh_of_all(), [placement])

    dtensor.run_world(1, check)
