# SPDX-License-Identifier: BSD-3-Clause
"""Tests of the DTensor object, against plain tensors."""

import copy
import io
import pickle
import threading
import time

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.autograd import forward_ad
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import (
    DTensor,
    Partial,
    Replicate,
    Shard,
    distribute_tensor,
    empty,
    full,
    ones,
    rand,
    randn,
    zeros,
)
from torch.distributed.tensor.experimental._attention import set_rotate_method
from torch.utils.flop_counter import FlopCounterMode

import dtensor

FULL = torch.arange(35.0).view(7, 5)  # uneven on 2 and on 3 ranks
LAYOUTS = [[Shard(0)], [Shard(1)], [Replicate()]]


def mesh_of_all():
    return init_device_mesh("cpu", (dist.get_world_size(),), mesh_dim_names=("tp",))


def test_distribute_and_gather(run):
    def check():
        mesh = mesh_of_all()
        for layout in LAYOUTS:
            x = distribute_tensor(FULL, mesh, layout)
            assert x.placements == tuple(layout) and x.device_mesh is mesh
            assert x.shape == FULL.shape
            assert torch.equal(x.full_tensor(), FULL)
            for other in LAYOUTS:
                y = x.redistribute(mesh, other)
                assert y.placements == tuple(other)
                assert torch.equal(y.full_tensor(), FULL)

    run(check)


def test_local_shards_are_those_of_chunk(run):
    def check():
        x = distribute_tensor(FULL, mesh_of_all(), [Shard(0)])
        chunks = FULL.chunk(dist.get_world_size(), 0)
        assert torch.equal(x.to_local(), chunks[dist.get_rank()])

    run(check)


def test_more_ranks_than_rows_leaves_empty_shards(run):
    def check():
        one_row = torch.arange(3.0).view(1, 3)
        x = distribute_tensor(one_row, mesh_of_all(), [Shard(0)])
        assert x.to_local().shape[0] == (1 if dist.get_rank() == 0 else 0)
        assert torch.equal((x * 2).full_tensor(), one_row * 2)

    run(check)


def test_partial_becomes_a_sum(run):
    def check():
        rank, size = dist.get_rank(), dist.get_world_size()
        local = torch.full((4, 3), float(rank + 1))
        x = DTensor.from_local(local, mesh_of_all(), [Partial()])
        total = torch.full((4, 3), size * (size + 1) / 2)
        assert torch.equal(x.full_tensor(), total)
        assert torch.equal(x.redistribute(placements=[Shard(0)]).full_tensor(), total)

    run(check)


def test_gradients_through_all_conversions(run):
    def check():
        mesh = mesh_of_all()
        weight = torch.linspace(-1, 1, 35).view(7, 5)
        plain = FULL.clone().requires_grad_()
        (plain * weight).pow(2).sum().backward()
        x = distribute_tensor(FULL, mesh, [Shard(0)]).requires_grad_()
        y = x.redistribute(placements=[Shard(1)])
        y = y * distribute_tensor(weight, mesh, [Shard(1)])
        y.full_tensor().pow(2).sum().backward()
        assert x.grad.placements == (Shard(0),)
        assert torch.equal(x.grad.full_tensor(), plain.grad)
        local = x.detach().to_local().requires_grad_()
        z = DTensor.from_local(
            local, mesh, [Shard(0)], shape=FULL.shape, stride=FULL.stride()
        )
        z.pow(2).sum().full_tensor().backward()
        assert torch.equal(local.grad, local.detach() * 2)

    run(check)


def test_objects_are_tensors_that_isinstance_recognizes():
    def check():
        x = distribute_tensor(FULL, mesh_of_all(), [Shard(0)])
        assert isinstance(x, DTensor) and type(x) is torch.Tensor
        parameter = nn.Parameter(x)
        assert isinstance(parameter, DTensor)
        assert type(parameter) is nn.Parameter
        assert "Shard(dim=0)" in repr(x)
        assert repr(parameter).startswith("Parameter containing:\nDTensor(")
        assert x._spec is x._spec and x._spec.shape == FULL.shape

    dtensor.run_world(2, check)
    plain = torch.ones(2)
    assert not isinstance(plain, DTensor)
    for name in ("placements", "device_mesh", "to_local", "full_tensor", "_spec"):
        assert not hasattr(plain, name)
    assert repr(plain) == "tensor([1., 1.])"
    assert torch.equal(pickle.loads(pickle.dumps(plain)), plain)
    assert torch.equal(copy.deepcopy(nn.Parameter(plain)), plain)


def test_arguments_by_position_and_name():
    def check():
        mesh = mesh_of_all()
        with mesh:
            x = DTensor.from_local(FULL, placements=(Shard(0),))
        assert x.device_mesh is mesh and x.placements == (Shard(0),)
        assert torch.equal(DTensor.to_local(x), x.to_local())
        y = x.redistribute(mesh, [Replicate()], forward_dtype=torch.float64)
        assert y.dtype == torch.float64 and y.placements == (Replicate(),)
        assert y.redistribute(**{"place" + "ments": [Shard(1)]}).placements == (
            Shard(1),
        )
        for call, words in (
            (lambda: x.redistribute(mesh, device_mesh=mesh), "two values"),
            (lambda: x.redistribute(layout=[Shard(0)]), "unexpected.*'layout'"),
            (lambda: x.redistribute(mesh, [Shard(0)], True), "too many positional"),
            (lambda: x.to_local([Shard(0)]), "too many positional"),
            (lambda: DTensor.from_local(mesh), "expected a torch.Tensor"),
        ):
            with pytest.raises(TypeError, match=words):
                call()

    dtensor.run_world(2, check)


def test_local_tensor_is_one_object_while_it_is_held(run):
    def check():
        x = distribute_tensor(FULL, mesh_of_all(), [Shard(0)]).requires_grad_()
        local = x._local_tensor
        assert x._local_tensor is local and not local.requires_grad
        with torch.no_grad():
            x.add_(1)
        assert x._local_tensor is local and torch.equal(local, x.detach().to_local())
        x.data = x.data * 2  # other memory
        assert x._local_tensor is not local
        assert torch.equal(x._local_tensor, 2 * local)

    run(check)


def test_local_tensors_can_be_replaced(run):
    def check():
        x = distribute_tensor(FULL, mesh_of_all(), [Shard(0)]).requires_grad_()
        before = x._local_tensor
        x._local_tensor += 1  # PyTorch's fully_shard accumulates like this
        assert x._local_tensor is before
        assert torch.equal(x.detach().full_tensor(), FULL + 1)
        other = torch.zeros_like(before)
        x._local_tensor = other
        other.fill_(2)
        assert x.requires_grad and x.is_leaf
        assert torch.equal(x.detach().full_tensor(), torch.full_like(FULL, 2))
        for wrong in (before[:, :1], before.double(), x.detach()):
            with pytest.raises(ValueError, match="_local_tensor"):
                x._local_tensor = wrong
        with pytest.raises(TypeError, match="expected a torch.Tensor"):
            x._local_tensor = 3

    run(check)


def test_plain_tensors_of_the_same_type(run):
    def check():
        x = distribute_tensor(FULL.double(), mesh_of_all(), [Shard(0)])
        assert torch.equal(x.new_tensor([1, 2]), FULL.double().new_tensor([1, 2]))
        assert x.new_tensor(2.5, dtype=torch.int64).item() == 2
        assert x.new(2, 3).shape == (2, 3) and x.new(2).dtype == torch.float64
        assert not x.is_pinned()
        torch.nn.init.trunc_normal_(x, std=3.0)
        assert x.full_tensor().abs().max() <= 2 and x.full_tensor().std() > 0.5

    run(check)


def test_local_tensors_wait_without_the_gil():
    """Rank 1 enters the collective after rank 0 has begun to wait."""
    waits = threading.Event()

    def check():
        x = DTensor.from_local(torch.ones(4096), mesh_of_all(), [Partial()])
        rank = dist.get_rank()
        if rank == 1:
            assert waits.wait(10)
            time.sleep(0.2)
        y = x.redistribute(placements=[Replicate()], async_op=True)
        waits.set()
        local = y._local_tensor if rank == 0 else y.to_local()
        assert torch.equal(local, torch.full((4096,), 2.0))

    dtensor.run_world(2, check)


@pytest.mark.parametrize("weights_only", [False, True])
def test_saved_and_copied(run, weights_only):
    def check():
        x = distribute_tensor(FULL, mesh_of_all(), [Shard(0)])
        parameter = nn.Parameter(x)
        x.note, parameter.note = ["x"], ["parameter"]
        file = io.BytesIO()
        torch.save({"x": x, "parameter": parameter}, file)
        file.seek(0)
        loaded = torch.load(file, weights_only=weights_only)
        copied = copy.deepcopy({"x": x, "parameter": parameter})
        for kept in (loaded, copied):
            assert kept["x"].placements == (Shard(0),)
            assert torch.equal(kept["x"].full_tensor(), FULL)
            assert type(kept["parameter"]) is nn.Parameter
            assert kept["parameter"].requires_grad
        for name, kept in copied.items():
            assert kept.note == [name] and kept.note is not x.note
        pickled = pickle.loads(pickle.dumps(x))
        assert torch.equal(pickled.to_local(), x.to_local())
        assert pickled.to_local().data_ptr() != x.to_local().data_ptr()

    run(check)


@pytest.mark.parametrize("layout", [[Shard(0)], [Shard(1)], [Replicate()]])
def test_copies_share_memory_as_their_originals(run, layout):
    def check():
        x = distribute_tensor(FULL, mesh_of_all(), layout)
        copied, rows, turned = copy.deepcopy([x, x[:], x.t()])
        copied.add_(1)
        assert torch.equal(rows.full_tensor(), FULL + 1)
        assert torch.equal(turned.full_tensor(), FULL.t() + 1)
        assert turned.stride() == x.t().stride()
        assert torch.equal(x.full_tensor(), FULL)

    run(check)


def test_files_need_a_rank_and_the_default_shard_order():
    file = io.BytesIO()

    def save():
        mesh = init_device_mesh("cpu", (1, 1))
        x = distribute_tensor(FULL, mesh, [Shard(0), Shard(0)])
        torch.save(x, file)
        other = copy.copy(x._spec)
        first, second = other.shard_order[0].mesh_dims
        entry = other.shard_order[0]._replace(mesh_dims=(second, first))
        other.shard_order = (entry,)
        function, (rebuild, cls, args, (_, slots)) = x.__reduce_ex__(2)
        with pytest.raises(NotImplementedError, match="shard order"):
            function(rebuild, cls, args, (None, {**slots, "_spec": other}))

    dtensor.run_world(1, save)
    file.seek(0)
    with pytest.raises(RuntimeError, match="init_process_group"):
        torch.load(file)


def test_factories(run):
    def check():
        mesh = mesh_of_all()
        for make, plain in ((zeros, torch.zeros), (ones, torch.ones)):
            x = make(7, 5, device_mesh=mesh, placements=[Shard(0)])
            assert torch.equal(x.full_tensor(), plain(7, 5))
        numbers = (2, 1.5, True, 1 + 2j, np.int64(3), np.int32(3), np.float32(2.5))
        for value in (*numbers, torch.tensor(3), torch.tensor(True)):
            x = full((7, 5), value, device_mesh=mesh, placements=[Shard(1)])
            expected = torch.full((7, 5), value)
            assert x.dtype == expected.dtype
            assert torch.equal(x.full_tensor(), expected)
        x = empty(7, 5, dtype=torch.int32, device_mesh=mesh)
        assert x.dtype == torch.int32 and x.placements == (Replicate(),)
        x = rand(7, 5, device_mesh=mesh, requires_grad=True)
        assert x.requires_grad
        with mesh:
            assert zeros(3).device_mesh is mesh

    run(check)


def test_random_numbers_follow_torch_manual_seed(run):
    def check():
        mesh = mesh_of_all()
        values = []
        for layout in (*LAYOUTS, LAYOUTS[0]):
            torch.manual_seed(3)
            x = randn(7, 5, device_mesh=mesh, placements=layout)
            values.append(x.full_tensor())
        return values, torch.rand(2)

    results = run(check)
    first = results[0][0][0]
    for values, plain in results:
        assert all(torch.equal(value, first) for value in values)
        assert torch.equal(plain, results[0][1])
    torch.manual_seed(3)
    assert torch.equal(torch.rand(2), results[0][1])


@pytest.mark.parametrize(
    ("error", "call"),
    [
        (IndexError, lambda x: x.redistribute(placements=[Shard(5)])),
        (ValueError, lambda x: x.redistribute(placements=[Shard(0), Shard(0)])),
        (TypeError, lambda x: x.redistribute(placements=["S(0)"])),
        (RuntimeError, lambda x: x.redistribute(placements=[Partial()])),
        (RuntimeError, lambda x: x.redistribute()),
        (RuntimeError, lambda x: x + torch.ones(7, 5)),
        (RuntimeError, lambda x: DTensor.from_local(x)),
        (RuntimeError, lambda x: x.data_ptr()),
        (NotImplementedError, lambda x: torch.ops.aten._pdist_forward(x)),
        (TypeError, lambda x: distribute_tensor(x, "mesh")),
        *(
            (
                AssertionError,
                lambda x, make=make: make(
                    7, device_mesh=x.device_mesh, placements=[Shard(0)] * 2
                ),
            )
            for make in (zeros, ones, empty, rand, randn)
        ),
        (
            AssertionError,
            lambda x: full(
                (7,), 1, device_mesh=x.device_mesh, placements=[Shard(0)] * 2
            ),
        ),
        (NotImplementedError, lambda x: set_rotate_method("x")),
    ],
)
def test_errors_have_the_types_of_python(error, call):
    def check():
        x = distribute_tensor(FULL, mesh_of_all(), [Shard(0)])
        with pytest.raises(error):
            call(x)

    dtensor.run_world(2, check)


def test_errors_that_have_the_words_of_python():
    mesh_and_words = (
        (lambda mesh: distribute_tensor(FULL, mesh, [Shard(0)] * 2), "the same length"),
        (lambda mesh: DTensor.from_local(FULL, mesh, shape=FULL.shape), "Found shape"),
        (lambda mesh: zeros(3, device_mesh=mesh).redistribute(), "is needed"),
    )

    def check():
        for call, words in mesh_and_words:
            with pytest.raises((ValueError, RuntimeError), match=words):
                call(mesh_of_all())

    dtensor.run_world(1, check)


def test_missing_attributes_name_a_way():
    for name, words in (
        ("__tensor_flatten__", "torch.compile"),
        ("_raise_if_contains_partial_placements", "placements"),
        ("no_such_name", "no attribute 'no_such_name'"),
    ):
        assert not hasattr(DTensor, name)
        with pytest.raises(AttributeError, match=words):
            getattr(DTensor, name)


def set_implicit_replication():
    DTensor._op_dispatcher._allow_implicit_replication = True


@pytest.mark.parametrize(
    ("touch", "words"),
    [
        (set_implicit_replication, r"implicit_replication\(\)"),
        (lambda: DTensor._op_dispatcher._custom_op_handlers, "register_sharding"),
        (
            lambda: DTensor._op_dispatcher.sharding_propagator.op_strategy_funcs,
            "register_sharding",
        ),
        (
            lambda: DTensor._op_dispatcher.sharding_propagator.propagate,
            "the placements of the operator's result",
        ),
        (lambda: DTensor._op_dispatcher.unwrap_to_op_info, "PyTorch's own DTensor"),
    ],
)
def test_the_dispatcher_of_pytorch_is_refused(touch, words):
    with pytest.raises(NotImplementedError, match=words):
        touch()
    assert not hasattr(DTensor._op_dispatcher, "no_such_name")


@pytest.mark.parametrize("compiled", [False, True])
def test_fake_tensors_are_refused_in_words(compiled):
    from torch._subclasses.fake_tensor import FakeTensorMode

    def check():
        x = distribute_tensor(FULL, mesh_of_all(), [Shard(0)])
        with pytest.raises(Exception, match="torch.compiler.disable"):
            if compiled:
                torch.compile(lambda t: t * 2, backend="eager")(x)
            else:
                FakeTensorMode().from_tensor(x)
        fake = FakeTensorMode().from_tensor(torch.ones(2))
        assert fake.shape == (2,)

    dtensor.run_world(1, check)


def test_no_memory_stays_behind():
    from dtensor import _C

    def check():
        mesh = mesh_of_all()
        x = distribute_tensor(FULL, mesh, [Shard(0)]).requires_grad_()
        counts = []
        for _ in range(3):
            for _ in range(50):
                (x * 2).sum().backward()
                x.grad.full_tensor()
                x._spec  # noqa: B018  (kept in a table)
            counts.append(_C.live_specs())
        assert counts[0] == counts[1] == counts[2]

    dtensor.run_world(1, check)


def test_modes_see_where_with_a_number(run):
    def check():
        x = distribute_tensor(FULL - 9, mesh_of_all(), [Shard(0)])
        with FlopCounterMode(display=False):
            for result, plain in [
                (torch.where(x > 0, x, 0.0), torch.where(FULL > 9, FULL - 9, 0.0)),
                (torch.where(x > 0, 1, x), torch.where(FULL > 9, 1, FULL - 9)),
            ]:
                assert result.dtype == plain.dtype
                assert torch.equal(result.full_tensor(), plain)

    run(check)


def test_forward_mode_is_refused():
    x = torch.eye(4)

    def check():
        full = distribute_tensor(x, mesh_of_all(), [Replicate()])
        with forward_ad.dual_level():
            for primal, tangent in [(full, full), (full, x), (x, full)]:
                with pytest.raises(NotImplementedError, match="forward-mode"):
                    forward_ad.make_dual(primal, tangent)

    dtensor.run_world(1, check)
