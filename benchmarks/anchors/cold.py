# SPDX-License-Identifier: BSD-3-Clause
"""Counterpart of cold.cpp with Python's DTensor. Its caches are cleared before
each sample."""

import math
import statistics
import time

import harness
import torch
import torch.nn.functional as F
from torch.distributed.tensor import Replicate, Shard, init_device_mesh
from torch.distributed.tensor.debug import _clear_sharding_prop_cache

SIDE = 64
SAMPLES = 9


def cases(mesh):
    others = [Replicate()] * (mesh.ndim - 1)
    cut = lambda whole, dim: harness.make(mesh, [*others, Shard(dim)], whole)[0]
    whole = lambda sizes: harness.make(mesh, [*others, Replicate()], sizes)[0]
    a, b = cut((SIDE, SIDE), 0), cut((SIDE, SIDE), 0)
    columns = cut((SIDE, SIDE), 1)
    x, w, bias = whole((SIDE, SIDE)), cut((SIDE, SIDE), 1), cut((SIDE,), 0)
    norm = whole((SIDE,)), whole((SIDE,))
    q = cut((2, 8, 16, 8), 1)
    return {
        "add": lambda: a + b,
        "add_moved": lambda: a + columns,
        "mm": lambda: torch.mm(x, w),
        "mm_moved": lambda: torch.mm(a, b),
        "addmm": lambda: torch.addmm(bias, x, w),
        "view": lambda: a.view(SIDE, 8, 8),
        "sum": lambda: a.sum(),
        "softmax": lambda: torch.softmax(a, -1),
        "layer_norm": lambda: F.layer_norm(a, (SIDE,), *norm),
        "attention": lambda: F.scaled_dot_product_attention(q, q, q),
    }


def us_of(call):
    begin = time.perf_counter()
    call()
    return (time.perf_counter() - begin) * 1e6


def measure(name, call, samples):
    """Returns the time of the first call minus that of the next."""
    firsts, warms = [], []
    for _ in range(samples):
        _clear_sharding_prop_cache()
        firsts.append(us_of(call))
        warms.append(us_of(call))
        if firsts[-1] > 1e6:  # takes seconds per sample; one is enough
            break
    extras = [first - warm for first, warm in zip(firsts, warms)]
    us = statistics.median(extras)
    harness.report(
        name,
        us=us,
        warm_us=statistics.median(warms),
        spread=harness.spread(extras, us),
    )


def run_mesh(shape, options):
    mesh = init_device_mesh("cpu", shape)
    for name, call in cases(mesh).items():
        if name == "attention" and mesh.ndim > 1:
            continue  # takes 12 seconds on every mesh
        benchmark = f"cold/{name}/" + "x".join(map(str, shape))
        if benchmark.startswith(options.only):
            measure(benchmark, call, 1 if options.smoke else SAMPLES)


if __name__ == "__main__":
    options = harness.parse(__doc__)
    torch.set_num_threads(1)
    for shape in [(8,), (2, 4), (2, 2, 2), (4, 4, 4)]:
        with harness.fake_world(math.prod(shape)), torch.no_grad():
            run_mesh(shape, options)
