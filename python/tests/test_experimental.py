# SPDX-License-Identifier: BSD-3-Clause
"""Tests of local_map, scopes, sharding rules, counts of collectives and
checkpoints."""

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import (
    Partial,
    Replicate,
    Shard,
    distribute_tensor,
)
from torch.distributed.tensor.debug import CommDebugMode
from torch.distributed.tensor.experimental import (
    implicit_replication,
    local_map,
    register_sharding,
)
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    loss_parallel,
    parallelize_module,
)

import dtensor


def mesh_of_all():
    return init_device_mesh("cpu", (dist.get_world_size(),), mesh_dim_names=("tp",))


def test_local_map(run):
    def check():
        mesh = mesh_of_all()
        a = torch.arange(12.0).view(3, 4).requires_grad_()
        b = torch.arange(20.0).view(4, 5)
        x = distribute_tensor(a.detach(), mesh, [Shard(1)]).requires_grad_()
        y = distribute_tensor(b, mesh, [Shard(0)])
        multiply = local_map(
            torch.mm,
            out_placements=[Partial()],
            in_placements=([Shard(1)], [Shard(0)]),
            device_mesh=mesh,
        )
        product = multiply(x, y)
        assert product.placements == (Partial(),)
        assert torch.equal(product.full_tensor(), a @ b)

    run(check)


def test_loss_parallel(run):
    def check():
        logits = torch.linspace(-2, 2, 60).view(5, 12).requires_grad_()
        target = torch.tensor([0, 3, 5, 8, 11])
        expected = F.cross_entropy(logits, target)
        expected.backward()
        sharded = distribute_tensor(logits.detach(), mesh_of_all(), [Shard(1)])
        sharded.requires_grad_()
        with loss_parallel(), CommDebugMode() as comm:
            loss = F.cross_entropy(sharded, target)
            loss.backward()
        if dist.get_world_size() > 1:
            assert torch.ops.c10d_functional.all_gather_into_tensor not in (
                comm.get_comm_counts()
            )
        torch.testing.assert_close(loss.full_tensor(), expected)
        assert sharded.grad.placements == (Shard(1),)
        torch.testing.assert_close(sharded.grad.full_tensor(), logits.grad)

    run(check)


def test_implicit_replication(run):
    def check():
        x = distribute_tensor(torch.ones(4, 3), mesh_of_all(), [Shard(0)])
        plain = torch.arange(3.0)
        with pytest.raises(RuntimeError, match="mixed"):
            x + plain
        with implicit_replication():
            assert torch.equal((x + plain).full_tensor(), 1 + plain.expand(4, 3))
        with pytest.raises(RuntimeError, match="mixed"):
            x + plain

    run(check)


def test_explicit_redistribution():
    from torch.distributed.tensor._utils import ExplicitRedistributionContext

    def check():
        mesh = mesh_of_all()
        x = distribute_tensor(torch.ones(4, 4), mesh, [Shard(0)])
        y = distribute_tensor(torch.ones(4, 4), mesh, [Shard(1)])
        with ExplicitRedistributionContext(), pytest.raises(RuntimeError):
            x + y
        with ExplicitRedistributionContext(enable=False):
            x + y
        with pytest.raises(RuntimeError):
            ExplicitRedistributionContext(mode="later")

    dtensor.run_world(2, check)


def test_on_missing_rule_computes_replicated():
    def check():
        full = torch.arange(12.0).view(4, 3)
        x = distribute_tensor(full, mesh_of_all(), [Shard(0)])
        with pytest.raises(NotImplementedError):
            torch.ops.aten._pdist_forward(x)
        with dtensor.on_missing_rule() as scope:
            values = torch.ops.aten._pdist_forward(x)
            costs = scope.costs()
        (op,) = costs
        assert op == "aten::_pdist_forward" and costs[op].calls == 1
        assert costs[op].collectives == 1 and costs[op].wire_bytes > 0
        assert "calls=1" in repr(scope.costs()[op])
        torch.testing.assert_close(values.full_tensor(), torch.nn.functional.pdist(full))

    dtensor.run_world(2, check)


calls = []


@register_sharding(torch.ops.aten.heaviside.default)
def heaviside_rule(x, values):
    calls.append((x.shape, values.shape))
    return [([Shard(1)], [Shard(1), Replicate()])]


@register_sharding(torch.ops.aten.digamma.default)
def failing_rule(x):
    raise KeyError("no rule today")


def test_register_sharding():
    def check():
        full = torch.tensor([[-1.0, 0.0], [2.0, 0.0]])
        mesh = mesh_of_all()
        x = distribute_tensor(full, mesh, [Shard(0)])
        half = distribute_tensor(torch.tensor(0.5), mesh)
        y = torch.heaviside(x, half)
        assert y.placements != (Shard(0),)  # the built-in rule's layout
        assert torch.equal(y.full_tensor(), torch.heaviside(full, torch.tensor(0.5)))
        with pytest.raises(KeyError, match="no rule today"):
            torch.digamma(x)

    dtensor.run_world(2, check)
    assert calls[0] == (torch.Size([2, 2]), torch.Size([]))


def test_comm_debug_mode():
    def check():
        mesh = mesh_of_all()
        x = distribute_tensor(torch.ones(4, 4), mesh, [Shard(0)])
        y = distribute_tensor(torch.ones(4, 4), mesh, [Shard(1)])
        comm = CommDebugMode()
        with comm:
            x.full_tensor()
            (y @ x).redistribute(placements=[Replicate()])
            y.redistribute(placements=[Shard(0)])
        counts = comm.get_comm_counts()
        assert counts[torch.ops.c10d_functional.all_gather_into_tensor] == 1
        assert counts[torch.ops.c10d_functional.all_reduce] == 1
        assert counts[torch.ops._dtensor.shard_dim_alltoall] == 1
        assert comm.get_total_counts() == 3

    dtensor.run_world(2, check)


def test_comm_debug_mode_knows_the_modules_of_its_rank():
    def check():
        rank = dist.get_rank()
        torch.manual_seed(0)
        model = nn.Sequential(*[nn.Linear(6, 6) for _ in range(rank + 2)])
        plan = {"0": ColwiseParallel(), "1": RowwiseParallel()}
        parallelize_module(model, mesh_of_all(), plan)
        for _ in range(20):
            comm = CommDebugMode()
            with comm:
                model(torch.ones(4, 6)).sum().backward()
            assert comm.get_comm_counts()[torch.ops.c10d_functional.all_reduce] == 1
            names = {f"Sequential.{i}" for i in range(rank + 2)}
            assert set(comm.advanced_module_tracker.parent_dict["Sequential"]) == names
            assert "all_reduce: 1" in comm.generate_comm_debug_tracing_table(0)
            for name in ("Global", "Sequential", "Sequential.1"):
                counts = comm.comm_module_counts[name]
                assert sum(counts["forward"].values()) == 1
            assert "Sequential.0" not in comm.comm_module_counts
        assert comm.get_sharding_info()["Sequential.1.weight"] == (Shard(1),)

    dtensor.run_world(3, check)


@pytest.mark.parametrize("is_causal", [False, True])
@pytest.mark.parametrize("length", [12, 7])  # 7 is uneven
def test_context_parallel(run, length, is_causal):
    from torch.distributed.tensor.experimental import context_parallel
    from torch.distributed.tensor.experimental._attention import (
        context_parallel_unshard,
        set_rotate_method,
    )

    attention = F.scaled_dot_product_attention
    full = torch.linspace(-1, 1, 2 * 3 * length * 4).view(2, 3, length, 4).sin()
    expected = full.clone().requires_grad_()
    attention(expected, expected, expected, is_causal=is_causal).pow(2).sum().backward()

    def check():
        mesh = mesh_of_all()
        for method in ("allgather", "alltoall"):
            set_rotate_method(method)
            x = full.clone()
            with context_parallel(mesh, buffers=[x], buffer_seq_dims=[2]):
                shard = x.clone().requires_grad_()
                y = attention(shard, shard, shard, is_causal=is_causal)
                y.pow(2).sum().backward()
                (grad,) = context_parallel_unshard(mesh, [shard.grad], [2])
            assert torch.equal(x, full)
            torch.testing.assert_close(grad, expected.grad)
        set_rotate_method("allgather")

    run(check)


def test_context_parallel_inside_another(run):
    from torch.distributed.tensor.experimental import context_parallel
    from torch.distributed.tensor.experimental._attention import (
        context_parallel_unshard,
    )

    def check():
        mesh = mesh_of_all()
        tokens = torch.arange(6.0)
        with context_parallel(mesh, buffers=[tokens], buffer_seq_dims=[0]):
            shard = tokens.clone()
            with context_parallel(mesh, buffers=[], buffer_seq_dims=[]):
                (inside,) = context_parallel_unshard(mesh, [shard], [0])
            (after,) = context_parallel_unshard(mesh, [shard], [0])
        assert torch.equal(inside, tokens) and torch.equal(after, tokens)

    run(check)


def test_context_parallel_refuses_the_fast_path_of_modules():
    from torch.distributed.tensor.experimental import context_parallel
    from torch.distributed.tensor.experimental._attention import (
        context_parallel_unshard,
    )

    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True).eval()
    module = nn.MultiheadAttention(8, 2, batch_first=True).eval()
    full = torch.linspace(-1, 1, 2 * 8 * 8).view(2, 8, 8).sin()

    def attention(x):
        return module(x, x, x, need_weights=False)[0]

    @torch.no_grad()
    def check(function):
        mesh = mesh_of_all()
        x = full.clone()
        with context_parallel(mesh, buffers=[x], buffer_seq_dims=[1]):
            return context_parallel_unshard(mesh, [function(x)], [1])[0]

    for function in (attention, layer):
        with pytest.raises(NotImplementedError, match=r"set_fastpath_enabled\(False\)"):
            dtensor.run_world(2, check, function)
        torch.backends.mha.set_fastpath_enabled(False)
        try:
            results = dtensor.run_world(2, check, function)
        finally:
            torch.backends.mha.set_fastpath_enabled(True)
        for result in results:
            torch.testing.assert_close(result, function(full))


def test_fully_shard_of_torch(run):
    from torch.distributed.fsdp import fully_shard

    def check():
        torch.manual_seed(0)
        plain = nn.Linear(6, 5)
        torch.manual_seed(0)
        model = nn.Linear(6, 5)
        fully_shard(model, mesh=mesh_of_all())
        x = torch.linspace(-1, 1, 12).view(2, 6)
        for trained in (plain, model):
            optimizer = torch.optim.SGD(trained.parameters(), lr=0.1)
            for _ in range(2):
                optimizer.zero_grad()
                trained(x).pow(2).sum().backward()
                optimizer.step()
        assert model.weight.placements == (Shard(0),)
        torch.testing.assert_close(model.weight.full_tensor(), plain.weight)

    run(check)
