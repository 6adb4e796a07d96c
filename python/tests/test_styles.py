# SPDX-License-Identifier: BSD-3-Clause
"""Tests of the conversions that the hooks of tensor-parallel styles call, and of
methods that only DTensors have."""

import dtensor
import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    parallelize_module,
)

from dtensor import _C


def mesh_of_all():
    return init_device_mesh("cpu", (dist.get_world_size(),))


def linear(style):
    torch.manual_seed(0)
    plain = nn.Linear(6, 12)
    torch.manual_seed(0)
    return plain, parallelize_module(nn.Linear(6, 12), mesh_of_all(), style)


def shard_of(x, dim):
    return distribute_tensor(x, mesh_of_all(), [Shard(dim)])


X = torch.linspace(-1, 1, 36).view(6, 6)


def test_the_styles_call_the_engine():
    for style in (ColwiseParallel, RowwiseParallel):
        assert style._prepare_input_fn is _C.prepare_input
        assert style._prepare_output_fn is _C.prepare_output


@pytest.mark.parametrize("given", ["plain", "replicated", "rows", "columns"])
@pytest.mark.parametrize("output", [Replicate(), Shard(0), Shard(-1), Shard(1)])
@pytest.mark.parametrize("local", [True, False])
@pytest.mark.parametrize("style", [ColwiseParallel, RowwiseParallel])
def test_layouts_of_inputs_and_outputs(style, given, output, local):
    def check():
        mesh = mesh_of_all()
        inputs = {
            "plain": X,
            "replicated": distribute_tensor(X, mesh),
            "rows": shard_of(X, 0),
            "columns": shard_of(X, 1),
        }
        plain, model = linear(
            style(
                input_layouts=Replicate(),
                output_layouts=output,
                use_local_output=local,
            )
        )
        y, expected = model(inputs[given]), plain(X)
        placed = distribute_tensor(expected.detach(), mesh, [output])
        if not local:
            assert y.placements == placed.placements
        part = y if local else y.to_local()
        torch.testing.assert_close(part, placed.to_local())
        full = torch.ones_like(expected)
        ones = distribute_tensor(full, mesh, [output])
        y.backward(ones.to_local() if local else ones)
        expected.backward(full)
        torch.testing.assert_close(model.weight.grad.full_tensor(), plain.weight.grad)

    dtensor.run_world(2, check)


def test_a_style_of_the_program():
    class Doubled(ColwiseParallel):
        @staticmethod
        def _prepare_input_fn(layouts, desired, mod, inputs, device_mesh):
            x = ColwiseParallel._prepare_input_fn(
                layouts, desired, mod, inputs, device_mesh
            )
            return x * 2

    def check():
        plain, model = linear(Doubled(output_layouts=Replicate()))
        torch.testing.assert_close(model(X), plain(2 * X))

    dtensor.run_world(2, check)


def test_inputs_that_are_no_tensors_are_errors():
    def check():
        _, model = linear(ColwiseParallel())
        with pytest.raises(TypeError, match="expected an input that is a torch.Tensor"):
            model([1.0])
        with pytest.raises(TypeError, match="the tensor is plain"):
            arguments = (Shard(-1),), True, model, X, mesh_of_all()
            ColwiseParallel._prepare_output_fn(*arguments)

    dtensor.run_world(1, check)


STYLES = pytest.mark.parametrize("style", [ColwiseParallel, RowwiseParallel])


@STYLES
@pytest.mark.parametrize(
    "what, call",
    [
        ("an input", lambda m: torch.func.grad(lambda x: m(x).sum())(X)),
        ("an input", lambda m: torch.func.vmap(m)(X)),
        ("an input", lambda m: torch.func.jvp(m, (X,), (X,))),
        (
            "an output",
            lambda m: torch.func.grad(
                lambda p: torch.func.functional_call(m, p, (X,)).sum()
            )(dict(m.named_parameters())),
        ),
    ],
)
def test_transforms_of_torch_func_are_errors(style, what, call):
    def check():
        _, model = linear(style())
        with pytest.raises(NotImplementedError) as caught:
            call(model)
        return str(caught.value)

    assert dtensor.run_world(1, check) == [
        "[parallelize_module] transforms of torch.func, such as grad and vmap, are "
        f"not supported for styled modules: {what} belongs to a transform. Use "
        "torch.autograd.grad, or call the module outside of the transform."
    ]


@STYLES
def test_a_module_whose_tensors_a_transform_does_not_change(style):
    def check():
        plain, model = linear(style(output_layouts=Replicate()))
        factors = torch.arange(3.0)
        results = torch.func.vmap(lambda a: a * model(X).sum())(factors)
        torch.testing.assert_close(results, factors * plain(X).sum())

    dtensor.run_world(1, check)


@pytest.mark.parametrize("name", ["to_local", "full_tensor", "redistribute"])
def test_plain_tensors_do_not_have_the_methods(name):
    assert not hasattr(X, name)
    for access in (getattr, lambda x, name: getattr(torch.Tensor, name)(x)):
        with pytest.raises(AttributeError, match=name):
            access(X, name)
    with pytest.raises(AttributeError, match="'to_local'"):
        X.to_local()
    descriptor = vars(torch.Tensor)[name]
    assert descriptor.__name__ == name and descriptor.__doc__.startswith("Returns")
    with pytest.raises(TypeError):
        descriptor()


def test_the_methods_of_dtensors():
    def check():
        x = shard_of(X, 0)
        bound = x.to_local
        assert torch.equal(bound(), torch.Tensor.to_local(x))
        assert torch.equal(x.full_tensor(), X)
        with pytest.raises(TypeError):
            x.to_local([Shard(0)])
        assert torch.equal(x.to_local(grad_placements=[Shard(0)]), bound())

    dtensor.run_world(2, check)
