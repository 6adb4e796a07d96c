# SPDX-License-Identifier: BSD-3-Clause
"""Imports the public modules of the package in several orders, each in a forked
process. The parent process has imported PyTorch only. Draws six of the orders;
with --all tries each order."""

import importlib
import os
import pkgutil
import random
import sys
import traceback
from pathlib import Path

import torch  # noqa: F401
import torch.distributed  # noqa: F401

#: Names that users import, and the modules that define the replacements.
REPLACED = {
    "torch.distributed.tensor": {"DTensor": "tensor", "zeros": "factories"},
    "torch.distributed.tensor._utils": {"ExplicitRedistributionContext": "scopes"},
    "torch.distributed.tensor.debug": {"CommDebugMode": "comm_debug_mode"},
    "torch.distributed.tensor.experimental": {
        "context_parallel": "context_parallel",
        "implicit_replication": "scopes",
        "register_sharding": "scopes",
    },
    "torch.distributed.tensor.parallel": {"loss_parallel": "scopes"},
}


def modules():
    for entry in sys.path:
        package = Path(entry) / "dtensor"
        if (package / "as_torch.py").exists():
            found = pkgutil.iter_modules([str(package)])
            return sorted(m.name for m in found if not m.name.startswith("_"))
    raise FileNotFoundError("no package dtensor")


def orders(names):
    """Each module directly after as_torch, each one first, each one last, and all
    in random orders."""
    for name in names:
        if name != "as_torch":
            yield ["as_torch", name]
    for i in range(len(names)):
        yield names[i:] + names[:i]
    for seed in range(3):
        shuffled = list(names)
        random.Random(seed).shuffle(shuffled)
        yield shuffled


def check(order):
    for name in order:
        importlib.import_module("dtensor." + name)
    for path, names in REPLACED.items():
        theirs = importlib.import_module(path)
        for name, source in names.items():
            ours = importlib.import_module("dtensor." + source)
            assert getattr(theirs, name) is getattr(ours, name), name


def passes(order):
    child = os.fork()
    if child == 0:
        code = 1
        try:
            check(order)
            code = 0
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stderr.flush()
            os._exit(code)
    return os.waitpid(child, 0)[1] == 0


if __name__ == "__main__":
    names = modules()
    assert "comm_debug_mode" in names and "as_torch" in names, names
    tried = list(orders(names))
    if "--all" not in sys.argv:
        tried = random.sample(tried, 6)
    failed = [order for order in tried if not passes(order)]
    for order in failed:
        print(" ".join(order))
    print(f"{len(failed)} orders failed")
    sys.exit(bool(failed))
