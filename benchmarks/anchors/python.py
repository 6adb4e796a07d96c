# SPDX-License-Identifier: BSD-3-Clause
"""Operators and a tensor-parallel MLP called from Python, on rank 0 of a fake
world. tools/bench.py runs this program on the package dtensor ("ours") and on
Python's DTensor ("python"); both report the time of the same calls on plain
tensors of the local shape."""

import harness
import mlp
import torch
import warm_ops
from torch.distributed.tensor import init_device_mesh

WORLD_SIZE = 8
ROWS = 8
OPERATORS = ("add", "layer_norm", "mm", "relu", "softmax", "sum", "view")


def run_operators(mesh, options):
    for name, call, *operands in warm_ops.operator_cases(mesh, ROWS, False):
        if name in OPERATORS:
            d, p = zip(*operands)
            harness.run_pair(
                f"python/{name}", lambda: call(*d), lambda: call(*p), options
            )
    for name, call in warm_ops.conversion_cases(mesh, ROWS).items():
        harness.run_pair(f"python/{name}", call, None, options)


def run_attributes(mesh, options):
    x, _ = harness.make(mesh, [warm_ops.Shard(0)], (ROWS, ROWS))
    for name in ("placements", "device_mesh", "_spec", "_local_tensor"):
        harness.run_pair(
            f"python/{name}", lambda: getattr(x, name), None, options
        )


if __name__ == "__main__":
    options = harness.parse(__doc__)
    torch.set_num_threads(1)
    with harness.fake_world(WORLD_SIZE):
        mesh = init_device_mesh("cpu", (WORLD_SIZE,))
        with torch.no_grad():
            run_operators(mesh, options)
            run_attributes(mesh, options)
        plain, parallel = mlp.make_models(mesh)
        x = torch.randn(mlp.SIDE, mlp.SIDE)
        harness.run_pair(
            "python/mlp_step",
            lambda: mlp.train(parallel, x),
            lambda: mlp.train(plain, x),
            options,
        )
