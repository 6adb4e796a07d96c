# SPDX-License-Identifier: BSD-3-Clause
"""Runs the examples in the docstrings of torch.distributed.tensor as the installed
PyTorch has them, on the CPU and on this world, and compares with one device."""

import ast
import copy
import inspect
import sys
import textwrap
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.tensor
import torch.distributed._functional_collectives as funcol
import torch.nn.functional as F
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import (
    Partial,
    Replicate,
    Shard,
    distribute_tensor,
    experimental,
    parallel,
)

NAMES = {
    name: value
    for name, value in globals().items()
    if name in ("F", "Partial", "Replicate", "Shard", "distribute_tensor", "funcol")
    or name in ("init_device_mesh", "torch")
}
for module in (experimental, parallel):
    NAMES |= {name: getattr(module, name) for name in module.__all__}
NAMES["aten"] = torch.ops.aten


class Attention(nn.Module):
    def forward(self, x, scale=None):
        return torch.softmax(x, -1) @ x.transpose(-1, -2)


class Model(nn.Module):
    """Has the submodules that the examples name."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.norm = nn.LayerNorm(8)
        self.w1 = nn.Linear(8, 16)
        self.w2 = nn.Linear(16, 8)
        self.attn = Attention()

    def forward(self, x):
        return self.w2(torch.relu(self.w1(x)))


def docstring_of(name, file):
    """Returns the docstring in PyTorch's file, for a name that may be replaced."""
    path = Path(torch.distributed.tensor.__path__[0], file)
    for node in ast.parse(path.read_text()).body:
        if getattr(node, "name", None) == name:
            return inspect.cleandoc(ast.get_docstring(node))
    raise LookupError(name)


def example_of(name, file):
    """Returns the code of a docstring, for the CPU and this number of ranks."""
    lines = []
    for line in docstring_of(name, file).splitlines():
        code = line.strip()
        if code.startswith((">>> ", "... ")):
            lines.append(code[4:])
        elif code in (">>>", "..."):
            lines.append("")
    code = textwrap.dedent("\n".join(lines))
    for printed, run in (
        ('"cuda"', '"cpu"'),
        ("(8,)", f"({dist.get_world_size()},)"),
        ("Model(...)", "Model()"),
        ("TransformerBlock(...)", "Model()"),
        (", None, None, ...)", ",)"),  # the inputs of Model.attn
        # PyTorch's local_map refuses its example: the mesh is an argument, too.
        ("in_placements=[col_wise", "in_placements=[None, col_wise"),
    ):
        code = code.replace(printed, run)
    assert code, name
    return code


def run_example(name, file="parallel/style.py", **names):
    names = {**NAMES, "Model": Model, **names}
    exec(example_of(name, file), names)
    return names


def shard_of(x, dim):
    """Returns this rank's shard of a plain tensor."""
    return x.chunk(dist.get_world_size(), dim)[dist.get_rank()]


def check(actual, expected):
    torch.testing.assert_close(actual, expected)


dist.init_process_group("gloo")
mesh = init_device_mesh("cpu", (dist.get_world_size(),))
plain = Model()
x = torch.linspace(-1, 1, 4 * 8).view(4, 8)
hidden = torch.linspace(-1, 1, 4 * 16).view(4, 16)

# Styles.
model = run_example("ColwiseParallel")["sharded_mod"]
check(model.w1(x), shard_of(plain.w1(x), -1))
(model,) = run_example("RowwiseParallel")["sharded_mod"]
check(model.w2(shard_of(hidden, -1)), plain.w2(hidden))
(model,) = run_example("SequenceParallel")["sharded_mod"]
tokens = x.view(1, 4, 8)  # the sequence is dimension 1
y = model.norm(shard_of(tokens, 1))
assert y.placements == (Shard(1),)
check(y.full_tensor(), plain.norm(tokens))
model = run_example("parallelize_module", "parallel/api.py")["m"]
check(model(x), plain(x))
model(x).pow(2).sum().backward()
expected = copy.deepcopy(plain)
expected(x).pow(2).sum().backward()
for p, q in zip(model.parameters(), expected.parameters()):
    if q.grad is not None:
        check(p.grad.full_tensor(), q.grad)
attended = plain.attn(x)
block = run_example("PrepareModuleInput")["block"]
y = block.attn(shard_of(x, 0))
assert y.placements == (Replicate(),)
check(y.to_local(), attended)
block = run_example("PrepareModuleOutput")["block"]
check(block(x), shard_of(plain(x), 0))
block = run_example("PrepareModuleInputOutput")["block"]
# The example states that the output of attn, which is replicated, becomes Shard(0).
check(block.attn(shard_of(x, 0)), shard_of(attended, 0))

# loss_parallel
names = run_example("loss_parallel", "parallel/loss.py")
given = names["dist_input"].full_tensor().detach().requires_grad_()
loss = F.cross_entropy(given, names["target"])
loss.backward()
check(names["loss"].full_tensor(), loss)

# local_map and register_sharding
names = run_example("local_map", "experimental/_func_map.py", device_mesh=mesh)
check(names["Y_dt"].full_tensor(), names["Y_dt"].to_local())
check(
    names["Y_dt"].full_tensor(),
    names["W_dt"].full_tensor() @ names["X_dt"].full_tensor(),
)
run_example("register_sharding", "experimental/_register_sharding.py")
for dim in (0, 1):
    y = torch.softmax(distribute_tensor(x, mesh, [Shard(dim)]), 1)
    assert y.placements != (Shard(1),)  # which the rule of the example does not allow
    check(y.full_tensor(), torch.softmax(x, 1))

dist.destroy_process_group()
sys.stdout.write("correct\n")  # one write, as ranks share the pipe
