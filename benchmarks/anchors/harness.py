# SPDX-License-Identifier: BSD-3-Clause
"""Shared code of the Python counterparts, like benchmarks/harness.h."""

import argparse
import contextlib
import gc
import json
import os
import socket
import statistics
import time
import warnings

os.environ.setdefault("OMP_NUM_THREADS", "1")
warnings.filterwarnings("ignore")

import torch
import torch.distributed as dist
from torch.distributed.tensor import distribute_tensor

BATCH_SECONDS = 1e-3
LEAST_BATCHES = 11


def parse(description):
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--only", default="", help="benchmarks that begin so")
    parser.add_argument("--seconds", type=float, default=0.1)
    parser.add_argument("--smoke", action="store_true", help="run each once")
    return parser.parse_args()


def spread(values, figure):
    """Returns the range of the middle half, relative to the figure."""
    if len(values) < 2 or not figure:
        return 0.0
    low, _, high = statistics.quantiles(values, n=4)
    return (high - low) / abs(figure)


def report(benchmark, **fields):
    fields = {key: round(value, 4) for key, value in fields.items()}
    print(json.dumps({"benchmark": benchmark, **fields}), flush=True)


def us_per_call(call, calls):
    begin = time.perf_counter()
    for _ in range(calls):
        call()
    return (time.perf_counter() - begin) / calls * 1e6


def calls_per_batch(call):
    us_per_call(call, 10)
    us = us_per_call(call, 20)
    return max(1, min(1000, round(BATCH_SECONDS * 1e6 / us)))


def run_pair(benchmark, dtensor, plain, options):
    """Times `dtensor` and `plain` in alternate batches and reports both."""
    if not benchmark.startswith(options.only):
        return
    if options.smoke:
        dtensor()
        report(benchmark, us=0)
        return
    calls = calls_per_batch(dtensor)
    plain_calls = calls_per_batch(plain) if plain else 0
    ours, plains, extras = [], [], []
    gc.collect()
    gc.disable()
    end = time.perf_counter() + options.seconds
    while len(ours) < LEAST_BATCHES or time.perf_counter() < end:
        plains.append(us_per_call(plain, plain_calls) if plain else 0)
        ours.append(us_per_call(dtensor, calls))
        extras.append(ours[-1] - plains[-1])
    gc.enable()
    fields = {"us": statistics.median(ours)}
    figure = statistics.median(extras)
    if plain:
        fields |= {"plain_us": statistics.median(plains), "extra_us": figure}
    report(benchmark, **fields, spread=spread(extras, figure))


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


@contextlib.contextmanager
def fake_world(world_size):
    """Makes this process rank 0 of a world without peers."""
    from torch.testing._internal.distributed.fake_pg import FakeStore

    dist.init_process_group(
        "fake", store=FakeStore(), rank=0, world_size=world_size
    )
    yield
    dist.destroy_process_group()


def make(mesh, placements, whole, grad=False):
    """Returns a DTensor, and a plain tensor of the local shape."""
    whole = torch.randn(*whole) if isinstance(whole, tuple) else whole
    d = distribute_tensor(whole, mesh, placements, src_data_rank=None).detach()
    plain = d.to_local().clone()
    return d.requires_grad_(grad), plain.requires_grad_(grad)
