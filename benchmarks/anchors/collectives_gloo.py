# SPDX-License-Identifier: BSD-3-Clause
"""The collectives of benchmarks/collectives.cpp by torch.distributed with Gloo.

One process per rank, with one thread each. Prints the same lines under the same
names. Every call allocates its result, as in dtensor.

  python collectives_gloo.py [--ranks 2 4] [--only all_reduce/2]
"""

import argparse
import json
import os
import statistics
import tempfile
import time
import warnings

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

# Later versions rename these functions.
warnings.filterwarnings("ignore", category=FutureWarning)

SAMPLES = 7
BYTES = [4, 64, 1 << 10, 4 << 10, 16 << 10]
BYTES += [64 << 10, 256 << 10, 1 << 20, 4 << 20, 16 << 20]


def all_reduce(x, ranks):
    dist.all_reduce(x.clone())


def all_gather(x, ranks):
    dist.all_gather_into_tensor(x.new_empty(ranks * x.numel()), x)


def reduce_scatter(x, ranks):
    dist.reduce_scatter_tensor(x.new_empty(x.numel() // ranks), x)


def all_to_all(x, ranks):
    dist.all_to_all_single(torch.empty_like(x), x)


def broadcast(x, ranks):
    dist.broadcast(x.clone(), 0)


def barrier(x, ranks):
    dist.barrier()


KINDS = [all_reduce, all_gather, reduce_scatter, all_to_all, broadcast]
NEED_ELEMENT_PER_RANK = {reduce_scatter, all_to_all}


def sample(kind, x, ranks, calls):
    dist.barrier()
    begin = time.perf_counter()
    for _ in range(calls):
        kind(x, ranks)
    return (time.perf_counter() - begin) * 1e6 / calls


def calls_per_sample(kind, x, ranks, size):
    """Returns the number of calls per sample, equal on all ranks: about 20 MB,
    but at most a tenth of a second, which a few calls take if ranks outnumber
    cores. Warms up."""
    sample(kind, x, ranks, 2)
    us = torch.tensor([sample(kind, x, ranks, 2)], dtype=torch.float64)
    dist.all_reduce(us, op=dist.ReduceOp.MAX)
    most = max(2, min(200, (20 << 20) // (size + 1)))
    return max(1, min(most, int(1e5 / us.item())))


def measure(kind, rank, ranks, size, only):
    name = f"{kind.__name__}/{ranks}/{size}"
    if only and not any((name + "/").startswith(o + "/") for o in only):
        return
    x = torch.ones(size // 4)
    calls = calls_per_sample(kind, x, ranks, size)
    samples = [sample(kind, x, ranks, calls) for _ in range(SAMPLES)]
    if rank == 0:
        low, median, high = statistics.quantiles(
            samples, n=4, method="inclusive"
        )
        result = {
            "benchmark": name,
            "us": float(f"{median:.4g}"),
            "spread": float(f"{(high - low) / median:.3g}"),
        }
        print(json.dumps(result), flush=True)


def run(rank, ranks, store, only):
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo", init_method=f"file://{store}", rank=rank, world_size=ranks
    )
    measure(barrier, rank, ranks, 0, only)
    for size in BYTES:
        for kind in KINDS:
            if kind not in NEED_ELEMENT_PER_RANK or size >= 4 * ranks:
                measure(kind, rank, ranks, size, only)
    dist.destroy_process_group()


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--ranks", type=int, nargs="+", default=[2, 4])
    parser.add_argument(
        "--only", nargs="+", default=[], help="kind, kind/ranks, ..."
    )
    options = parser.parse_args()
    for ranks in options.ranks:
        with tempfile.TemporaryDirectory() as folder:
            store = os.path.join(folder, "store")
            mp.spawn(run, (ranks, store, options.only), nprocs=ranks)


if __name__ == "__main__":
    main()
