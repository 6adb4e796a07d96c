# SPDX-License-Identifier: BSD-3-Clause
"""Tests of ranks that torchrun starts as processes."""

import subprocess
import sys

import pytest
from conftest import PROGRAMS


@pytest.mark.parametrize(
    ("backend", "transport"),
    [("gloo", ""), ("gloo", "shm"), ("dtensor", "")],
)
def test_training(torchrun, backend, transport):
    output = torchrun("processes.py", backend, DTENSOR_BACKEND=transport)
    assert output.splitlines() == ["trained on 2"] * 2


@pytest.mark.parametrize("ranks", [2, 4])
def test_programs_like_those_of_the_documentation(torchrun, ranks):
    output = torchrun("documentation.py", ranks=ranks)
    assert output.splitlines() == ["correct"] * ranks


def test_same_layouts_and_values_as_pytorch(torchrun):
    ours = torchrun("parity.py")
    theirs = torchrun("parity.py", on_dtensor=False)
    assert len(ours.splitlines()) == 19
    assert ours == theirs


@pytest.mark.parametrize("backend", ["gloo", "dtensor"])
def test_a_failing_rank_ends_the_others(torchrun, backend):
    with pytest.raises(AssertionError, match="ValueError: rank 1 stops"):
        torchrun("failing.py", backend)


def test_command_line():
    module = [sys.executable, "-m", "dtensor"]
    done = subprocess.run(module, capture_output=True, text=True, timeout=60)
    assert done.returncode != 0 and "usage" in done.stderr
    done = subprocess.run(
        [*module, "-m", "this"], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0 and "Zen" in done.stdout
    assert (PROGRAMS / "parity.py").exists()
