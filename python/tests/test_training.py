# SPDX-License-Identifier: BSD-3-Clause
"""Tests of training with PyTorch's own styles and optimizers, against the same
model on plain tensors."""

import copy
import functools

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_model_state_dict,
)
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import (
    DTensor,
    Replicate,
    Shard,
    distribute_module,
    distribute_tensor,
    rand,
)
from torch.distributed.tensor.experimental import implicit_replication
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    PrepareModuleInput,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)
from torch.nn.parallel import DistributedDataParallel
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import (
    checkpoint,
    create_selective_checkpoint_contexts,
)

import dtensor

INPUT = torch.linspace(-1, 1, 32).view(4, 8)


def mesh_of_all():
    return init_device_mesh("cpu", (dist.get_world_size(),), mesh_dim_names=("tp",))


class MLP(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.net1 = nn.Linear(8, 18)  # 18 is even on 1, 2 and 3 ranks
        self.net2 = nn.Linear(18, 8)

    def forward(self, x):
        return self.net2(torch.relu(self.net1(x)))


def parallel_mlp():
    plan = {"net1": ColwiseParallel(), "net2": RowwiseParallel()}
    return parallelize_module(MLP(), mesh_of_all(), plan)


def assert_same_parameters(model, plain):
    for (name, p), q in zip(model.named_parameters(), plain.parameters()):
        full = p.full_tensor() if isinstance(p, DTensor) else p
        torch.testing.assert_close(full, q, msg=name)


OPTIMIZERS = [
    (name, options)
    for name in (
        *("SGD", "Adam", "AdamW", "Adagrad", "RMSprop", "Adadelta", "NAdam"),
        *("RAdam", "Adamax", "ASGD", "Rprop"),
    )
    for options in ({"foreach": False}, {"foreach": True})
] + [("Adam", {"fused": True}), ("AdamW", {"fused": True})]
OPTIMIZERS += [
    ("SGD", {"fused": True}),
    ("SGD", {"fused": True, "momentum": 0.9}),
    ("Adagrad", {"fused": True}),
]


@pytest.mark.parametrize(("name", "options"), OPTIMIZERS)
def test_optimizers(name, options):
    def check():
        model, plain = parallel_mlp(), MLP()
        for trained in (model, plain):
            optimizer = getattr(torch.optim, name)(
                trained.parameters(), lr=0.01, **options
            )
            for _ in range(3):
                optimizer.zero_grad()
                trained(INPUT).pow(2).sum().backward()
                optimizer.step()
        assert_same_parameters(model, plain)

    dtensor.run_world(2, check)


def test_training_on_any_number_of_ranks(run):
    def check():
        model, plain = parallel_mlp(), MLP()
        assert model.net1.weight.placements == (Shard(0),)
        for trained in (model, plain):
            optimizer = torch.optim.AdamW(trained.parameters(), lr=0.1)
            for _ in range(5):
                optimizer.zero_grad()
                trained(INPUT).pow(2).sum().backward()
                norm = nn.utils.clip_grad_norm_(trained.parameters(), 1.0)
                optimizer.step()
        full_norm = nn.utils.get_total_norm([p.grad for p in model.parameters()])
        assert full_norm.full_tensor() <= norm + 1
        assert_same_parameters(model, plain)

    run(check)


def test_sequence_parallel_block(run):
    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.norm = nn.LayerNorm(8)
            self.mlp = MLP()

        def forward(self, x):
            return self.mlp(self.norm(x))

    def check():
        mesh = mesh_of_all()
        plain = Block()
        model = parallelize_module(
            copy.deepcopy(plain),
            mesh,
            {
                "norm": SequenceParallel(),
                "mlp": PrepareModuleInput(
                    input_layouts=Shard(1), desired_input_layouts=Replicate()
                ),
                "mlp.net1": ColwiseParallel(),
                "mlp.net2": RowwiseParallel(
                    output_layouts=Shard(1), use_local_output=False
                ),
            },
        )
        x = torch.linspace(-1, 1, 96).view(2, 6, 8)
        y = model(distribute_tensor(x, mesh, [Shard(1)]))
        y.pow(2).sum().backward()
        expected = plain(x)
        expected.pow(2).sum().backward()
        torch.testing.assert_close(y.full_tensor(), expected)
        for p, q in zip(model.parameters(), plain.parameters()):
            torch.testing.assert_close(p.grad.full_tensor(), q.grad)

    run(check)


def test_hooks_that_communicate(run):
    def check():
        model, plain = parallel_mlp(), MLP()
        plain(INPUT).sum().backward()
        expected = plain.net1.weight.grad
        seen = []
        model.register_forward_pre_hook(lambda *_: seen.append("before"))
        model.register_forward_hook(lambda *_: seen.append("after"))
        model.register_full_backward_hook(lambda *_: seen.append("backward"))
        model.net1.weight.register_hook(
            lambda grad: seen.append(torch.allclose(grad.full_tensor(), expected))
        )
        model.net1.weight.register_post_accumulate_grad_hook(
            lambda p: seen.append(torch.allclose(p.grad.full_tensor(), expected))
        )
        model(INPUT.clone().requires_grad_()).sum().backward()
        assert seen == ["before", "after", True, True, "backward"]

    run(check)


class _SquareOfFull(torch.autograd.Function):
    """Communicates in both directions."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.redistribute(placements=[Replicate()]) ** 2

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        grad = grad.redistribute(placements=[Replicate()])
        return 2 * x * grad.redistribute(placements=x.placements)


def test_autograd_functions_and_second_derivatives(run):
    def check():
        full = torch.arange(15.0).view(5, 3)
        x = distribute_tensor(full, mesh_of_all(), [Shard(0)]).requires_grad_()
        _SquareOfFull.apply(x).sum().backward()
        assert torch.equal(x.grad.full_tensor(), 2 * full)
        (first,) = torch.autograd.grad((x**3).sum(), x, create_graph=True)
        (second,) = torch.autograd.grad(first.sum(), x)
        torch.testing.assert_close(second.full_tensor(), 6 * full)

    run(check)


@pytest.mark.parametrize("use_reentrant", [False, True])
def test_activation_checkpoints(use_reentrant):
    def check():
        model, plain = parallel_mlp(), MLP()
        x = INPUT.clone().requires_grad_()
        y = torch.utils.checkpoint.checkpoint(model, x, use_reentrant=use_reentrant)
        y.pow(2).sum().backward()
        plain(INPUT).pow(2).sum().backward()
        for p, q in zip(model.parameters(), plain.parameters()):
            torch.testing.assert_close(p.grad.full_tensor(), q.grad)

    dtensor.run_world(2, check)


@pytest.mark.parametrize("use_reentrant", [False, True])
def test_recomputed_dropout_drops_the_same_elements(run, use_reentrant):
    def check():
        for layout in (Shard(0), Replicate()):
            x = distribute_tensor(torch.ones(5, 4), mesh_of_all(), [layout])
            x.requires_grad_()
            for _ in range(2):
                x.grad = None
                y = torch.utils.checkpoint.checkpoint(
                    lambda a: nn.functional.dropout(a * 1, 0.5),
                    x,
                    use_reentrant=use_reentrant,
                )
                y.sum().backward()
                assert torch.equal(x.grad.full_tensor(), y.full_tensor())

    run(check)


def test_seeds_in_fork_rng_end_with_it(run):
    def check():
        mesh = mesh_of_all()
        torch.manual_seed(4)
        with torch.random.fork_rng():
            torch.manual_seed(dist.get_rank())
        forked = rand(3, device_mesh=mesh)
        torch.manual_seed(4)
        assert torch.equal(forked.to_local(), rand(3, device_mesh=mesh).to_local())
        return forked.to_local().tolist()

    results = run(check)
    assert all(result == results[0] for result in results)


def test_fully_shard_accumulates_gradients(run):
    def check():
        model, plain = MLP(), MLP()
        fully_shard(model.net1, mesh=mesh_of_all())
        fully_shard(model, mesh=mesh_of_all())
        for _ in range(3):
            model(INPUT).square().mean().backward()
            plain(INPUT).square().mean().backward()
        for p, q in zip(model.parameters(), plain.parameters()):
            torch.testing.assert_close(p.grad.full_tensor(), q.grad)
        options = StateDictOptions(cpu_offload=True)
        for name, value in get_model_state_dict(model, options=options).items():
            torch.testing.assert_close(
                value.full_tensor(), plain.state_dict()[name], msg=name
            )

    run(check)


def test_state_dicts_copies_and_dtypes():
    def check():
        model, plain = parallel_mlp(), MLP()
        other = parallel_mlp()
        with torch.no_grad():
            for p in other.parameters():
                p.zero_()
        other.load_state_dict(model.state_dict())
        assert_same_parameters(other, plain)
        assert_same_parameters(copy.deepcopy(model), plain)
        assert model.to(torch.bfloat16).net1.weight.placements == (Shard(0),)
        with torch.autocast("cpu", torch.bfloat16):
            assert other(INPUT).dtype == torch.bfloat16
        with torch.inference_mode():
            torch.testing.assert_close(other(INPUT), plain(INPUT))
        torch.testing.assert_close(
            torch.func.functional_call(other, dict(other.named_parameters()), INPUT),
            plain(INPUT),
        )

    dtensor.run_world(2, check)


@pytest.mark.parametrize("options", [{"foreach": True}, {"fused": True}])
def test_clipping_and_steps_of_plain_parameters_beside_dtensors(run, options):
    def function():
        plan = {"net1": ColwiseParallel(output_layouts=Replicate())}
        model = parallelize_module(MLP(), mesh_of_all(), plan)  # net2 is plain
        plain = MLP()
        for m in (model, plain):
            optimizer = torch.optim.AdamW(m.parameters(), lr=0.1, **options)
            for _ in range(2):
                optimizer.zero_grad()
                m(INPUT).square().sum().backward()
                with implicit_replication():
                    nn.utils.clip_grad_norm_(m.parameters(), 0.1)
                    optimizer.step()
        assert_same_parameters(model, plain)

    run(function)


@pytest.mark.parametrize("layout", [Replicate(), Shard(0)])
def test_selective_checkpoints(run, layout):
    """The recomputation calls the same operators as the forward, although the
    first call with each shape also infers the shape of its results."""

    def f(x, a, b):
        u = x @ a
        return torch.sin(x @ b) + u

    only_mm = functools.partial(
        create_selective_checkpoint_contexts, [torch.ops.aten.mm.default]
    )

    def check():
        mesh = mesh_of_all()
        generator = torch.Generator().manual_seed(0)
        plain = [torch.randn(6, 6, generator=generator) for _ in range(2)]
        for rows in (8, 8, 5, 5):
            x = torch.linspace(-1, 1, rows * 6).view(rows, 6)
            sharded = [
                distribute_tensor(t, mesh, [Replicate()]).requires_grad_()
                for t in plain
            ]
            leaves = [t.clone().requires_grad_() for t in plain]
            result = checkpoint(
                f,
                distribute_tensor(x, mesh, [layout]),
                *sharded,
                use_reentrant=False,
                context_fn=only_mm,
            )
            result.sum().backward()
            f(x, *leaves).sum().backward()
            for got, want in zip(sharded, leaves):
                torch.testing.assert_close(got.grad.full_tensor(), want.grad)

    run(check)


def test_selective_checkpoints_of_styled_modules(run):
    only_addmm = functools.partial(
        create_selective_checkpoint_contexts, [torch.ops.aten.addmm.default]
    )

    def check():
        for rows in (4, 3):
            model, plain = parallel_mlp(), MLP()
            checkpoint(
                model, INPUT[:rows], use_reentrant=False, context_fn=only_addmm
            ).sum().backward()
            plain(INPUT[:rows]).sum().backward()
            for p, q in zip(model.parameters(), plain.parameters()):
                torch.testing.assert_close(p.grad.full_tensor(), q.grad)

    run(check)


class CallsSeen(TorchDispatchMode):
    """Records the operators and the devices of their results."""

    def __init__(self):
        super().__init__()
        self.calls = []

    def __torch_dispatch__(self, function, types, arguments=(), keywords=None):
        result = function(*arguments, **(keywords or {}))
        device = result.device.type if isinstance(result, torch.Tensor) else ""
        self.calls.append((str(function), device))
        return result


def test_dispatch_modes_see_the_same_calls_each_time(run):
    def calls(model, x):
        with CallsSeen() as mode:
            y = model(x)
            z = torch.softmax(y @ y.t(), -1)
            z[:, z.sum(0) > 0].sum().backward()
        return mode.calls

    def check():
        mesh = mesh_of_all()
        x = distribute_tensor(INPUT, mesh, [Replicate()])
        model = nn.Linear(8, 6)
        distribute_module(model, mesh)
        first = calls(model, x)
        model.zero_grad()
        second = calls(model, x)
        assert first == second
        assert {device for _, device in first} <= {"cpu", ""}

    run(check)


def test_ddp_of_a_parallel_model_needs_a_mesh():
    def check():
        mesh = init_device_mesh("cpu", (1, 2), mesh_dim_names=("dp", "tp"))
        model = parallelize_module(MLP(), mesh["tp"], {"net1": ColwiseParallel()})
        with pytest.raises(TypeError) as error:
            DistributedDataParallel(model)
        assert str(error.value) == (
            '[DistributedDataParallel] "net1.weight" is a DTensor, and no device_mesh '
            "is given. Pass the mesh of the ranks that share the batch, such as "
            'device_mesh=mesh["dp"].'
        )
        DistributedDataParallel(model, device_mesh=mesh["dp"])
        other = parallelize_module(MLP(), mesh["tp"], {"net1": ColwiseParallel()})
        DistributedDataParallel._set_params_and_buffers_to_ignore_for_model(
            other, ["net1.weight", "net1.bias"]
        )
        DistributedDataParallel(other)

    dtensor.run_world(2, check)
