# SPDX-License-Identifier: BSD-3-Clause
"""Helpers of the tests: ranks as threads, and programs under torchrun."""

import os
import subprocess
import sys
from pathlib import Path

import dtensor.as_torch  # noqa: F401
import pytest
import torch

import dtensor

PROGRAMS = Path(__file__).parent / "programs"


@pytest.fixture(autouse=True)
def one_thread():
    torch.set_num_threads(1)


@pytest.fixture(params=[1, 2, 3])
def run(request):
    """Runs a function on 1, 2 and 3 ranks; returns the ranks' results."""
    return lambda function, *args: dtensor.run_world(
        request.param, function, *args
    )


@pytest.fixture
def torchrun():
    """Runs a program of tests/programs under torchrun; returns its output."""

    def run_program(
        program: str, *args: str, ranks: int = 2, on_dtensor: bool = True, **env: str
    ) -> str:
        command = [
            *(sys.executable, "-m", "torch.distributed.run", "--standalone"),
            *("--nproc-per-node", str(ranks)),
            *(("-m", "dtensor") if on_dtensor else ()),
            *(str(PROGRAMS / program), *args),
        ]
        settings = {
            **os.environ,
            "GLOO_SOCKET_IFNAME": "lo",
            "OMP_NUM_THREADS": "1",
            **env,
        }
        done = subprocess.run(
            command, env=settings, capture_output=True, text=True, timeout=120
        )
        # PyTorch's own process groups sometimes abort at exit, after all output.
        assert done.returncode == 0 or not on_dtensor, done.stdout + done.stderr
        return done.stdout

    return run_program
