# SPDX-License-Identifier: BSD-3-Clause
"""Tests of ranks that are processes. Imports take most of the time of a new
process, so most programs run on forked ones."""

import subprocess
import sys

import pytest
from conftest import PROGRAMS, free_port
from dtensor.__main__ import main


def test_training_under_torchrun(torchrun):
    output = torchrun("processes.py", "gloo", "")
    assert output.splitlines() == ["trained on 2"] * 2


@pytest.mark.parametrize(
    "backend, transport", [("gloo", "torch"), ("gloo", "shm"), ("dtensor", "")]
)
def test_training(forked, backend, transport):
    assert forked("processes.py", 2, backend, transport) == ["trained on 2\n"] * 2


@pytest.mark.parametrize("backend", ["blocking", "in_thread", "lazy", "coalesced"])
def test_process_groups_written_in_python(forked, backend):
    assert forked("python_groups.py", 2, backend) == ["correct\n"] * 2


@pytest.mark.parametrize("transport", ["torch", "shm"])
def test_other_threads_run_while_an_operator_waits(forked, monkeypatch, transport):
    monkeypatch.setenv("DTENSOR_BACKEND", transport)
    assert forked("helper_thread.py", 2) == ["correct\n"] * 2


@pytest.mark.parametrize("backend", ["", "auto"])
def test_threaded_process_groups(forked, backend):
    assert forked("threaded_group.py", 1, backend) == ["correct\n"]


@pytest.mark.parametrize("rank", ["0", "17", "63"])
def test_fake_process_groups(forked, rank):
    assert forked("fake_group.py", 1, rank) == ["correct\n"]


def test_coalesced_collectives_as_with_gloo(forked):
    ours = forked("coalesced.py", 2, "dtensor")
    assert ours == forked("coalesced.py", 2, "gloo")
    assert all(len(text.splitlines()) == 17 for text in ours)


@pytest.mark.parametrize("ranks", [2, 4])
@pytest.mark.parametrize("program", ["documentation.py", "docstrings.py"])
def test_examples_of_the_documentation(forked, ranks, program):
    assert forked(program, ranks) == ["correct\n"] * ranks


def test_same_layouts_and_values_as_pytorch(forked, torchrun):
    ours, _ = forked("parity.py", 2)
    theirs = torchrun("parity.py", on_dtensor=False)
    assert len(ours.splitlines()) == 19
    assert ours == theirs


def test_files_of_pytorch_and_for_pytorch(forked, torchrun, tmp_path):
    folders = [tmp_path / name for name in ("ours", "theirs")]
    for folder in folders:
        folder.mkdir()
    ours, theirs = map(str, folders)
    correct = ["correct\n"] * 2
    assert forked("interchange.py", 2, "save", ours) == correct
    output = torchrun("interchange.py", "save", theirs, on_dtensor=False)
    assert output == "correct\n" * 2
    for folder in (ours, theirs):
        for options in ([], ["without_meshes"]):
            assert forked("interchange.py", 2, "load", folder, *options) == correct
    output = torchrun("interchange.py", "load", ours, on_dtensor=False)
    assert output == "correct\n" * 2


# Rank 0 has one batch, with gradients 1, and rank 1 has three, with gradients 3.
# Each gradient is half of the sum: 1 - 4 / 2 - 3 / 2 - 3 / 2 = -4.
@pytest.mark.parametrize(
    "parameters, weights",
    [("one", [[-4.0] * 3]), ("two", [[-4.0] * 3, [[1.0] * 2] * 2])],
)
def test_ranks_with_different_numbers_of_batches(forked, parameters, weights):
    texts = forked("joining.py", 2, "dtensor", parameters)
    # LibTorch warns about parameters before.
    assert [text.splitlines()[-1] for text in texts] == [str(weights)] * 2


@pytest.mark.parametrize("backend", ["gloo", "dtensor"])
def test_a_failing_rank_ends_the_others(forked, backend):
    texts = forked("failing.py", 2, backend, codes=[1, 1])
    assert "ValueError: rank 1 stops" in texts[1]
    assert "RuntimeError" in texts[0] and "rank 1" in texts[0]


@pytest.mark.parametrize("backend", ["gloo", "dtensor"])
def test_long_training_keeps_its_memory_and_can_be_interrupted(forked, backend):
    texts = forked("long_training.py", 2, "200", backend, codes=[0, 1])
    assert all("grew by" in text for text in texts)
    assert "KeyboardInterrupt" in texts[1]
    assert "told: " in texts[0] and "rank 1" in texts[0]


@pytest.mark.parametrize("backend", ["gloo", "dtensor"])
def test_processes_that_a_rank_forks(torchrun, backend):
    assert torchrun("forking.py", backend).splitlines() == ["correct"] * 2


def test_ranks_that_a_program_spawns():
    program = [str(PROGRAMS / "spawning.py"), str(free_port())]
    command = [sys.executable, "-m", "dtensor", *program]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.stdout == "correct\n", done.stderr


def test_command_line(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["dtensor"])
    with pytest.raises(SystemExit, match="usage"):
        main()
    monkeypatch.setattr(sys, "argv", ["dtensor", "--cmake-prefix-path"])
    with pytest.raises(SystemExit, match="not an installed wheel"):
        main()
    monkeypatch.setattr(sys, "argv", ["dtensor", "-m", "this"])
    monkeypatch.setattr(sys, "path", list(sys.path))
    main()
    assert "Zen" in capsys.readouterr().out


DEFERRED = """
import sys
import torch
import dtensor.as_torch

assert "torch.distributed.tensor._ops._pointwise_ops" not in sys.modules
assert "torch._dynamo" not in sys.modules
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.debug import CommDebugMode
from torch.distributed.tensor.experimental import register_sharding
from torch.distributed.tensor.parallel import loss_parallel
from dtensor import comm_debug_mode, scopes, tensor

assert DTensor is tensor.DTensor
assert CommDebugMode is comm_debug_mode.CommDebugMode
assert register_sharding is scopes.register_sharding
assert loss_parallel is scopes.loss_parallel
import torch.distributed.tensor._ops as rules

assert not hasattr(rules, "no_such_rule")  # runs all of it
assert "torch.distributed.tensor._ops._pointwise_ops" in sys.modules
assert rules.auto_register_op_variants
"""


def test_rules_of_pytorch_are_imported_when_they_are_used(tmp_path):
    program = tmp_path / "program.py"
    program.write_text(DEFERRED)
    command = [sys.executable, str(program)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr


def test_rules_that_were_registered_with_pytorch():
    command = [sys.executable, str(PROGRAMS / "foreign_rules.py")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.stdout == "correct\n", done.stderr


def test_modules_can_be_imported_in_any_order():
    command = [sys.executable, str(PROGRAMS / "import_orders.py")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr


FOUND_BEFORE = """
import importlib.util
import dtensor.as_torch

assert importlib.util.find_spec("torch.distributed.tensor.experimental")
from torch.distributed.tensor.experimental import implicit_replication
from dtensor import scopes

assert implicit_replication is scopes.implicit_replication
"""


def test_a_module_that_is_looked_up_before_its_import(tmp_path):
    program = tmp_path / "program.py"
    program.write_text(FOUND_BEFORE)
    command = [sys.executable, str(program)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
