# SPDX-License-Identifier: BSD-3-Clause
"""Tests of the Python objects of DTensors: formats, attributes, identities, and copies
in other processes and in checkpoints."""

import pickle
from multiprocessing.reduction import ForkingPickler

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.checkpoint._state_dict_stager import StateDictStager
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor

import dtensor

FULL = torch.arange(35.0).view(7, 5)  # uneven on 2 and on 3 ranks


def mesh_of_all():
    return init_device_mesh("cpu", (dist.get_world_size(),), mesh_dim_names=("tp",))


def test_formats_do_not_communicate():
    def check():
        number = distribute_tensor(FULL, mesh_of_all(), [Shard(0)]).sum()
        if dist.get_rank() == 0:
            assert f"{number}" == repr(number)
            assert f"{number}".startswith("DTensor(local_tensor=")
            assert "DTensor" in f"{nn.Parameter(number)}"
            for wrong in (number, nn.Parameter(number)):
                with pytest.raises(TypeError):
                    f"{wrong:.2f}"
        assert f"{number.full_tensor():.1f}" == f"{FULL.sum():.1f}"

    dtensor.run_world(2, check)


def test_a_dtensor_is_not_in_shared_memory():
    def check():
        x = distribute_tensor(FULL, mesh_of_all(), [Shard(0)])
        assert not x.is_shared() and not nn.Parameter(x).is_shared()

    dtensor.run_world(1, check)
    assert torch.ones(2).share_memory_().is_shared()
    assert not torch.ones(2).is_shared()


def test_the_local_tensor_of_a_parameter_is_a_parameter(run):
    def check():
        x = distribute_tensor(FULL, mesh_of_all(), [Shard(0)])
        parameter = nn.Parameter(x)
        local = parameter.to_local()
        assert isinstance(local, nn.Parameter) and local.requires_grad
        with torch.no_grad():
            assert isinstance(parameter.to_local(), nn.Parameter)
            assert not parameter.to_local().requires_grad
        for plain in (parameter._local_tensor, parameter.full_tensor(), x.to_local()):
            assert not isinstance(plain, nn.Parameter)
        local.sum().backward()
        assert torch.equal(parameter.grad.full_tensor(), torch.ones_like(FULL))

    run(check)


def test_redistribute_to_the_same_layout_returns_another_object(run):
    def check():
        mesh = mesh_of_all()
        x = distribute_tensor(FULL, mesh, [Shard(0)])
        for given in ((mesh, [Shard(0)]), (None, [Shard(0)])):
            y = x.redistribute(*given)
            assert y is not x and y.placements == x.placements
            y.requires_grad_()
            assert not x.requires_grad
            y.detach().add_(1)  # in memory that both share
        assert torch.equal(x.full_tensor(), FULL + 2)
        parameter = nn.Parameter(x)
        assert not isinstance(parameter.redistribute(mesh, [Shard(0)]), nn.Parameter)
        with torch.no_grad():
            same = parameter.redistribute(mesh, [Shard(0)])
            assert not isinstance(same, nn.Parameter) and not same.requires_grad

    run(check)


class Described(torch.Tensor):
    """A subclass of a program, with attributes of its own."""

    def __init__(self, _):
        self.placements = "left and right"
        self._spec = {"a": 1}


def test_other_tensors_may_have_attributes_of_these_names():
    described = Described(torch.ones(2))
    assert described.placements == "left and right" and described._spec == {"a": 1}
    for tensor in (torch.ones(2), nn.Parameter(torch.ones(2)), described):
        for name in ("placements", "device_mesh", "_spec", "_local_tensor"):
            setattr(tensor, name, 3)
            assert getattr(tensor, name) == 3 and tensor.__dict__[name] == 3
            delattr(tensor, name)
            assert not hasattr(tensor, name) and name not in tensor.__dict__
            with pytest.raises(AttributeError, match=name):
                delattr(tensor, name)


def test_layouts_of_dtensors_cannot_be_assigned():
    def check():
        x = distribute_tensor(FULL, mesh_of_all(), [Shard(0)])
        for name in ("placements", "device_mesh", "_spec"):
            with pytest.raises(AttributeError, match=rf"\[{name}\]"):
                setattr(x, name, None)
            with pytest.raises(AttributeError, match=rf"\[{name}\]"):
                delattr(x, name)

    dtensor.run_world(1, check)


def test_the_class_cannot_be_a_base_class():
    with pytest.raises(TypeError, match=r"\[DTensor\].*base class: Sub"):

        class Sub(DTensor):
            pass


def test_the_mesh_of_a_dtensor_is_the_latest_of_equal_meshes():
    def check():
        first = mesh_of_all()
        x = distribute_tensor(FULL, first, [Shard(0)])
        spec = x._spec
        assert x.device_mesh is first and spec.mesh is first and x._spec is spec
        root = init_device_mesh("cpu", (1, 2), mesh_dim_names=("dp", "tp"))
        inner = root["tp"]
        y = distribute_tensor(FULL, inner, [Shard(0)])
        assert y.device_mesh is inner and y._spec.mesh is inner
        assert torch.equal((x + y).full_tensor(), 2 * FULL)
        z = distribute_tensor(FULL, first, [Shard(1)])
        assert z.device_mesh is first and z._spec.mesh is first

    dtensor.run_world(2, check)


def test_fully_shard_of_a_mesh_whose_ranks_had_another_mesh():
    """fully_shard() joins the mesh of each DTensor with its own, which must have the
    same root."""

    def check():
        pairs = [DeviceMesh("cpu", p, mesh_dim_names=("tp",)) for p in ([0, 1], [2, 3])]
        distribute_tensor(FULL, pairs[dist.get_rank() // 2], [Shard(0)])
        root = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
        model = nn.Linear(4, 6)
        for name, parameter in list(model.named_parameters()):
            sharded = distribute_tensor(parameter, root["tp"], [Shard(0)])
            model.register_parameter(name, nn.Parameter(sharded))
        fully_shard(model, mesh=root["dp"])
        x = distribute_tensor(torch.ones(2, 4), root["tp"], [Replicate()])
        model(x).sum().backward()
        assert model.weight.grad.full_tensor().shape == (6, 4)

    dtensor.run_world(4, check)


def test_queues_and_pipes_pass_dtensors(run):
    def check():
        x = distribute_tensor(FULL, mesh_of_all(), [Shard(0)]).requires_grad_()
        x.note = ["x"]
        for given in (x, nn.Parameter(x.detach(), requires_grad=False)):
            passed = pickle.loads(ForkingPickler.dumps(given))
            assert isinstance(passed, DTensor) and type(passed) is type(given)
            assert passed.placements == (Shard(0),) and passed.shape == FULL.shape
            assert passed.requires_grad == given.requires_grad
            assert torch.equal(passed.full_tensor(), given.full_tensor())
            with torch.no_grad():
                passed.add_(1)  # in shared memory
            assert torch.equal(passed.full_tensor(), given.full_tensor())
        assert pickle.loads(ForkingPickler.dumps(x)).note == ["x"]
        plain = pickle.loads(ForkingPickler.dumps(torch.ones(2)))
        assert torch.equal(plain, torch.ones(2))

    run(check)


def test_staged_copies_for_checkpoints(run):
    def check():
        mesh = mesh_of_all()
        x = distribute_tensor(FULL, mesh, [Shard(0)])
        parameter = nn.Parameter(distribute_tensor(FULL, mesh, [Shard(1)]))
        x.note, x.itself = ["x"], x
        assert x._local_tensor is x._local_tensor  # leaves a private attribute
        state = {"x": x, "again": x, "parameter": parameter, "plain": FULL}
        stager = StateDictStager()
        staged = stager.stage(state)
        with torch.no_grad():
            for changed in (x, parameter):
                changed.zero_()
        assert staged["x"] is staged["again"] and staged["x"].itself is staged["x"]
        assert staged["x"].note == ["x"] and staged["x"].note is not x.note
        assert isinstance(staged["parameter"], nn.Parameter)
        assert not staged["parameter"].requires_grad
        for name in ("x", "parameter"):
            assert staged[name].placements == state[name].placements
            assert torch.equal(staged[name].full_tensor(), FULL)
        reused = stager.stage(state)["x"]
        assert torch.equal(reused.full_tensor(), torch.zeros_like(FULL))

    run(check)
