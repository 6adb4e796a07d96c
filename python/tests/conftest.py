# SPDX-License-Identifier: BSD-3-Clause
"""Helpers of the tests: ranks as threads, and programs under torchrun."""

import collections
import os
import random
import runpy
import signal
import socket
import subprocess
import sys
import traceback
from collections.abc import Sequence
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


KEPT_PORTS: collections.deque[socket.socket] = collections.deque(maxlen=16)


def free_port() -> int:
    """Returns a free port. A socket of this process keeps it until 16 later
    calls, so that neither another test nor a connection takes the port before
    the ranks listen, which they do with SO_REUSEADDR."""
    for port in random.sample(range(10000, 32768), 100):
        kept = socket.socket()
        try:
            kept.bind(("127.0.0.1", port))
        except OSError:
            kept.close()
            continue
        # Set after the bind, which must fail if another test keeps the port.
        kept.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        KEPT_PORTS.append(kept)
        return port
    raise RuntimeError("no port can be bound")


def run_rank(command: list[str], output: Path, settings: dict[str, str]) -> None:
    """Runs a program in this process, a forked one, and ends the process."""
    code = 1
    signal.alarm(60)
    try:
        with output.open("w") as file:
            os.dup2(file.fileno(), 1)
            os.dup2(file.fileno(), 2)
        os.environ.update(settings)
        sys.stdout = open(1, "w", closefd=False)
        sys.stderr = open(2, "w", closefd=False)
        sys.argv = command
        runpy.run_path(command[0], run_name="__main__")
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


@pytest.fixture
def forked(tmp_path):
    """Runs a program on processes that are forked from this process, which has
    imported all modules already. Returns the ranks' outputs. `codes` are the
    expected exit codes."""

    def run_program(
        program: str, ranks: int, *args: str, codes: Sequence[int] | None = None
    ) -> list[str]:
        settings = {
            "GLOO_SOCKET_IFNAME": "lo",
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(free_port()),
            "WORLD_SIZE": str(ranks),
        }
        command = [str(PROGRAMS / program), *args]
        children = []
        for rank in range(ranks):
            output = tmp_path / f"{rank}.txt"
            child = os.fork()
            if child == 0:
                run_rank(command, output, {**settings, "RANK": str(rank)})
            children.append((child, output))
        ended = [os.waitpid(child, 0)[1] for child, _ in children]
        texts = [output.read_text() for _, output in children]
        exits = [os.waitstatus_to_exitcode(status) for status in ended]
        assert exits == list(codes or [0] * ranks), "".join(texts)
        return texts

    return run_program
