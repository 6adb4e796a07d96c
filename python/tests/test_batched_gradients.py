# SPDX-License-Identifier: BSD-3-Clause
"""Tests of torch.autograd.grad(..., is_grads_batched=True), against plain tensors."""

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor

FULL = torch.linspace(-1, 1, 35).view(7, 5)  # uneven on 2 and on 3 ranks
LAYOUTS = [[Shard(0)], [Shard(1)], [Replicate()]]
FUNCTIONS = {
    "select": lambda x: x[0],
    "slice": lambda x: x[1:3, ::2],
    "list": lambda x: x[[0, 3, 3]],
    "diagonal": lambda x: x.diagonal(),
    "view": lambda x: x.pow(2).reshape(35),
    "mm": lambda x: x @ x.t(),
    "sum": lambda x: x.sum(0),
    "layer_norm": lambda x: F.layer_norm(x, (5,)),
    "cat": lambda x: torch.cat([x, 2 * x]).T[2],
}


def mesh_of_all():
    return init_device_mesh("cpu", (dist.get_world_size(),))


def full_of(x):
    return x.full_tensor() if isinstance(x, DTensor) else x


@pytest.mark.parametrize("name", FUNCTIONS)
def test_batched_gradients_of_dtensors(run, name):
    function = FUNCTIONS[name]
    plain = FULL.clone().requires_grad_()
    result = function(plain)
    torch.manual_seed(0)
    batch = torch.randn(3, *result.shape)
    (expected,) = torch.autograd.grad(result, plain, batch, is_grads_batched=True)

    def check():
        mesh = mesh_of_all()
        for layout in LAYOUTS:
            x = distribute_tensor(FULL, mesh, layout).requires_grad_()
            y = function(x)
            for batch_layout in (Replicate(), Shard(0)):
                gradients = distribute_tensor(batch, mesh, [batch_layout])
                (found,) = torch.autograd.grad(
                    y, x, gradients, is_grads_batched=True, retain_graph=True
                )
                torch.testing.assert_close(found.full_tensor(), expected)

    run(check)


def test_several_outputs_and_inputs(run):
    rows = torch.eye(5)

    def gradients(x, y, unused, batch):
        found = torch.autograd.grad(
            [x[0] * y, x[1]],
            {"x": x, "unused": unused, "y": y},
            [batch, 2 * batch],
            is_grads_batched=True,
            allow_unused=True,
            create_graph=True,
        )
        (second,) = torch.autograd.grad(found["x"].sum(), y)
        return {**found, "second": second}

    def check():
        mesh = mesh_of_all()

        def distributed(x):
            return distribute_tensor(x.detach(), mesh, [Shard(0)]).requires_grad_()

        x, y, unused = (t.clone().requires_grad_() for t in (FULL, FULL[2], FULL))
        expected = gradients(x, y, unused, rows)
        found = gradients(
            *map(distributed, (x, y, unused)), distribute_tensor(rows, mesh)
        )
        assert list(found) == list(expected) and found["unused"] is None
        for name in ("x", "y", "second"):
            torch.testing.assert_close(full_of(found[name]), expected[name])

    run(check)


def test_vectorized_jacobians(run):
    expected = torch.autograd.functional.jacobian(lambda x: x.sin()[0], FULL)

    def check():
        x = distribute_tensor(FULL, mesh_of_all(), [Shard(0)])
        plain = FULL.clone().requires_grad_()

        def local_rows(weight):  # a plain result of plain inputs
            return DTensor.from_local(weight, x.device_mesh).sin()[0].to_local()

        found = torch.autograd.functional.jacobian(local_rows, plain, vectorize=True)
        torch.testing.assert_close(found, expected)

    run(check)


def test_wrong_batches_are_refused():
    import dtensor

    def check():
        mesh = mesh_of_all()
        x = distribute_tensor(FULL, mesh, [Shard(0)]).requires_grad_()
        batches = [distribute_tensor(torch.ones(n, 5), mesh) for n in (2, 3)]
        for wrong in (batches, [batches[0][:0]] * 2):
            with pytest.raises(ValueError, match=r"\[grad\] expected one batch"):
                torch.autograd.grad([x[0], x[1]], x, wrong, is_grads_batched=True)

    dtensor.run_world(2, check)
