# SPDX-License-Identifier: BSD-3-Clause
"""Checks of the public names. Each is documented, in the reference too, and the
examples in docstrings have the results that they show.
"""

import doctest
import importlib
import inspect
import re
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from dtensor import as_torch
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import RowwiseParallel, parallelize_module

import dtensor

PAGE = Path(__file__).parents[2] / "docs/reference/python_package.md"
MODULES = ("dtensor", "dtensor.as_torch", "dtensor.pytest_plugin", "dtensor.__main__")


def replaced_names() -> dict[str, Any]:
    """Returns the names that as_torch replaces, and PyTorch's objects."""
    return {
        f"dtensor.{source}.{name}": getattr(
            importlib.import_module(f"torch.distributed.tensor.{module}"), name
        )
        for module, names in as_torch._NAMES.items()
        for source, exported in names.items()
        for name in exported
    }


def public_names() -> dict[str, Any]:
    own = {f"dtensor.{name}": getattr(dtensor, name) for name in dtensor.__all__}
    return own | replaced_names()


def methods_of(owner: type) -> list[str]:
    return [
        name
        for name, value in vars(owner).items()
        if not name.startswith("_") and callable(getattr(value, "__func__", value))
    ]


def documented() -> dict[str, Any]:
    """Returns the public names and the methods of public classes."""
    found = public_names()
    for name, value in list(found.items()):
        if inspect.isclass(value):
            found |= {f"{name}.{m}": getattr(value, m) for m in methods_of(value)}
    return found


def parameters_of(value) -> list[str]:
    try:
        found = inspect.signature(value).parameters
    except ValueError:  # without a signature, as some built-in functions
        return []
    return [name for name in found if name != "self"]


@pytest.mark.parametrize("name, value", documented().items())
def test_public_names_are_documented(name, value):
    doc = inspect.cleandoc(value.__doc__ or "")
    assert re.match(r"[A-Z][^\n]*[.`]", doc), "no sentence"
    _, _, arguments = doc.partition("Args:\n")
    missing = [
        parameter
        for parameter in parameters_of(value)
        if not re.search(rf"^ +([\w, ]+, )?{parameter}(, [\w, ]+)?:", arguments, re.M)
    ]
    assert not missing, "parameters without a description"


@pytest.mark.parametrize("name", MODULES)
def test_modules_are_documented(name):
    assert (importlib.import_module(name).__doc__ or "").strip()


def test_the_reference_has_the_public_names():
    listed = re.findall(r"^- \[`([\w.]+)`\]", PAGE.read_text(), re.M)
    assert sorted(listed) == sorted(public_names())


OUTSIDE_RANKS = ("dtensor.run_world", "dtensor.scopes.register_sharding")


def names_of_examples() -> dict[str, Any]:
    """Returns the variables of the examples, on a rank."""
    names = {name.rpartition(".")[2]: v for name, v in replaced_names().items()}
    torch.manual_seed(0)
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    row = {"": RowwiseParallel(input_layouts=Replicate())}
    model = parallelize_module(nn.Linear(8, 8), mesh, row)
    with names["CommDebugMode"]() as comm:
        model(torch.ones(2, 8))
    q, k, v = torch.randn(3, 2, 4, 8, 16)  # equal on all ranks
    logits = distribute_tensor(torch.ones(2, 8, requires_grad=True), mesh, [Shard(1)])
    return {
        **names,
        **{"torch": torch, "dtensor": dtensor, "F": F, "Shard": Shard},
        **{"init_device_mesh": init_device_mesh, "mesh": mesh, "comm": comm},
        **{"x": distribute_tensor(torch.ones(8, 8), mesh, [Shard(0)])},
        **{"model": model, "logits": logits, "target": torch.tensor([1, 2])},
        **{"batch": torch.ones(2, 8), "q": q, "k": k, "v": v},
        "factors": distribute_tensor(torch.ones(8), mesh, [Shard(0)]),
    }


def differences(examples: list[doctest.Example], names: dict) -> list[str]:
    """Runs examples. Returns results that are not as shown, on rank 0."""
    found = []
    for example in examples:
        try:
            code = compile(example.source, "example", "eval")
        except SyntaxError:
            exec(example.source, names)
            continue
        result = eval(code, names)
        shown = "" if result is None else repr(result) + "\n"
        if shown != example.want and (not dist.is_initialized() or dist.get_rank() == 0):
            found.append(f"{example.source}{shown}")
    return found


@pytest.fixture(scope="module")
def mylib():
    """Defines the operator of the examples."""
    library = torch.library.Library("mylib", "FRAGMENT")
    if not hasattr(torch.ops.mylib, "scale"):
        library.define("scale(Tensor x, Tensor factors) -> Tensor")
        library.impl("scale", lambda x, f: x * f[:, None], "CPU")
    yield
    library._destroy()


@pytest.mark.parametrize("name, value", documented().items())
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_examples_have_the_results_that_they_show(name, value, mylib):
    examples = doctest.DocTestParser().get_examples(value.__doc__ or "")
    if name in OUTSIDE_RANKS:
        names = dtensor.run_world(1, names_of_examples)[0]
        assert not differences(examples, names)
    else:
        results = dtensor.run_world(
            4, lambda: differences(examples, names_of_examples())
        )
        assert results == [[]] * 4
