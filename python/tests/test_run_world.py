# SPDX-License-Identifier: BSD-3-Clause
"""Tests of ranks that are threads of this process."""

import functools
import re
import sys
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from conftest import free_port
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard, distribute_tensor

import dtensor


class OwnError(Exception):
    pass


def gather():
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    x = distribute_tensor(torch.arange(6.0), mesh, [Shard(0)])
    return x.full_tensor().sum().item()


def test_results_are_in_rank_order():
    def ranks(offset):
        return dist.get_rank() + offset, dist.get_world_size()

    assert dtensor.run_world(3, ranks, 10) == [(10, 3), (11, 3), (12, 3)]
    assert dtensor.run_world(1, ranks, 0) == [(0, 1)]


def test_collectives_of_torch_distributed():
    def check():
        rank = dist.get_rank()
        x = torch.full((3,), float(rank))
        dist.all_reduce(x)
        gathered = [torch.empty(1) for _ in range(3)]
        dist.all_gather(gathered, torch.tensor([float(rank)]))
        pair = dist.new_group([0, 2])
        y = torch.tensor([float(rank)])
        if rank != 1:
            dist.broadcast(y, 2, group=pair)
        dist.barrier()
        return x.tolist(), [g.item() for g in gathered], y.item()

    results = dtensor.run_world(3, check)
    assert all(r[:2] == ([3.0] * 3, [0.0, 1.0, 2.0]) for r in results)
    assert [r[2] for r in results] == [2.0, 1.0, 2.0]


class Gathered:
    @functools.cached_property
    def total(self):
        return gather()


def test_cached_properties_may_communicate():
    def check():
        gathered = Gathered()
        assert gathered.total is gathered.total
        return gathered.total

    attribute = functools.cached_property.__get__
    assert dtensor.run_world(3, check) == [15.0] * 3
    assert functools.cached_property.__get__ is attribute


class OwnValueError(ValueError):
    pass


class KeywordError(Exception):
    """An exception that cannot be made again from its `args`."""

    def __init__(self, text: str, *, code: int = 7):
        super().__init__(text)
        self.code = code


ERRORS = [OwnError, OwnValueError, KeywordError, KeyError, KeyboardInterrupt]
ERRORS += [IndexError, TypeError, ValueError, NotImplementedError, MemoryError]
ERRORS += [AttributeError, AssertionError, RuntimeError, StopIteration, SystemExit]
ERRORS += [GeneratorExit, OSError, torch.OutOfMemoryError, torch.linalg.LinAlgError]


@pytest.mark.parametrize("error", ERRORS)
def test_a_failing_rank_raises_its_own_type(error):
    def fail():
        if dist.get_rank() == 1:
            raise error("rank 1 stops")
        gather()  # rank 0 waits for rank 1

    with pytest.raises(error, match="rank 1 stops") as caught:
        dtensor.run_world(2, fail)
    assert type(caught.value) is error
    assert caught.value.__notes__ == ["[run_world] raised by rank 1"]
    assert caught.value.__context__ is None
    assert dtensor.run_world(2, gather) == [15.0, 15.0]


def test_errors_inside_collectives_and_hooks():
    def fail():
        mesh = init_device_mesh("cpu", (2,))
        x = distribute_tensor(torch.ones(4), mesh, [Shard(0)]).requires_grad_()

        def hook(grad):
            if dist.get_rank() == 0:
                raise OwnError("in a hook")
            grad.full_tensor()

        x.register_hook(hook)
        x.pow(2).sum().backward()

    with pytest.raises(OwnError, match="in a hook"):
        dtensor.run_world(2, fail)


def test_the_process_is_as_before():
    hook, generator = sys.excepthook, torch.random.default_generator
    dtensor.run_world(2, gather)
    assert sys.excepthook is hook
    assert torch.random.default_generator is generator
    assert not dist.is_initialized()


def test_inside_a_rank_is_an_error():
    with pytest.raises(RuntimeError) as caught:
        dtensor.run_world(1, lambda: dtensor.run_world(2, gather))
    assert str(caught.value) == (
        "[run_world] rank 0 of 1 calls run_world() inside run_world(). Call the "
        "function directly, or call run_world() after the outer one has returned."
    )


def test_inside_a_rank_of_a_launcher_is_an_error(monkeypatch):
    for name, value in {"RANK": 0, "WORLD_SIZE": 1, "MASTER_PORT": free_port()}.items():
        monkeypatch.setenv(name, str(value))
    monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
    with pytest.raises(RuntimeError, match="rank 0 of 1 calls run_world"):
        dtensor.run_world(1, lambda: dtensor.run_world(1, gather))
    assert dtensor.run_world(1, dist.get_world_size) == [1]


def test_inside_a_process_group_is_an_error():
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    with pytest.raises(RuntimeError) as caught:
        dtensor.run_world(2, gather)
    dist.destroy_process_group()
    assert str(caught.value) == (
        "[run_world] this process is a rank of torch.distributed already. Call "
        "run_world() instead of init_process_group()."
    )


def test_the_program_of_the_guide(capsys):
    page = Path(__file__).parents[2] / "docs/guides/python.md"
    blocks = re.findall(r"^```python\n(.*?)^```", page.read_text(), re.M | re.S)
    (program,) = [block for block in blocks if "run_world(4" in block]
    exec(program, {})
    printed = capsys.readouterr().out.strip()
    assert printed and program.rstrip().endswith("# " + printed)


def test_many_worlds():
    for ranks in (1, 2, 3, 4) * 10:
        assert dtensor.run_world(ranks, gather) == [15.0] * ranks
