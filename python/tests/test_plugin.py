# SPDX-License-Identifier: BSD-3-Clause
"""Tests of the plugin for pytest."""

pytest_plugins = "pytester"

TESTS = """
import pytest
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Shard, distribute_tensor

import dtensor


@pytest.fixture
def size():
    return 6


@pytest.mark.ranks(1, 3)
@pytest.mark.parametrize("step", [1, 2])
def test_sum(size, step):
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    x = distribute_tensor(torch.arange(0.0, size, step), mesh, [Shard(0)])
    assert dtensor.is_dtensor(x) and isinstance(x, DTensor)
    assert x.sum().full_tensor() == sum(range(0, size, step))


@pytest.mark.ranks(2)
def test_that_fails():
    assert dist.get_rank() == 0


def test_without_ranks():
    assert not dist.is_initialized()
"""


def test_tests_run_on_ranks(pytester):
    pytester.makepyfile(TESTS)
    result = pytester.runpytest_inprocess("-p", "dtensor.pytest_plugin")
    result.assert_outcomes(passed=3, failed=1)
    result.stdout.fnmatch_lines(["*assert 1 == 0*"])
