#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""Compares plans of redistribute with those of torch.distributed.tensor.

    tools/plan_table.py [--plans build/dev/tests/dtensor_plan_list] [--measure]

Prints the table of docs/concepts/redistribute.md: for several meshes and sizes,
the sums over all pairs of layouts of R, S(0), S(1) and P(sum) between which
Python can redistribute. A cell has three numbers: this library's plans, Python's
plans by default, and Python's with a flattened mesh for each set of mesh dimensions.
Exits with 1 if a pair takes both more bytes and more collectives than Python's,
more collectives for 8x8, or more bytes for 4096x4096, and with 77 if Python's
planner is another one. With --measure, executes plans instead, on threads and on
processes that share memory, and prints the rank correlation of modelled and
measured time of 50 plans, and the mean times of 24 plans of each row. The model
assumes a core for each rank.
"""

import argparse
import itertools
import math
import os
import pathlib
import subprocess
import sys
from dataclasses import dataclass

ROOT = pathlib.Path(__file__).resolve().parent.parent
LATENCY_US = 2.0  # LinkCost of threads
BYTES_PER_US = 10e3
ITEM_SIZE = 4
MESHES = [(4,), (2, 2), (2, 3), (2, 4), (2, 2, 2)]
ROUNDS = {"all_reduce": 2, "all_gather": 1, "reduce_scatter": 1, "all_to_all": 1}


@dataclass
class Cost:
    collectives: int = 0
    bytes: float = 0
    us: float = 0

    def add(self, other):
        self.collectives += other.collectives
        self.bytes += other.bytes
        self.us += other.us


def numbers(text):
    return tuple(int(n) for n in text.split("x"))


def list_plans(program):
    """Yields (mesh shape, sizes, from, to, cost) for each line of dtensor_plan_list."""
    lines = subprocess.run(
        [program], check=True, capture_output=True, text=True).stdout
    for line in lines.splitlines():
        shape, sizes, before, after, count, size, us = line.split(";")
        yield (numbers(shape), numbers(sizes), before, after,
               Cost(int(count), float(size), float(us)))


class Python:
    """Plans of torch.distributed.tensor on meshes of a fake process group."""

    def __init__(self):
        import torch
        import torch.distributed as dist
        from torch.distributed.tensor import _redistribute
        if not hasattr(_redistribute, "_optimize_transform_infos"):
            print("plan_table: this PyTorch does not flatten meshes")
            sys.exit(77)
        from torch.testing._internal.distributed.fake_pg import FakeStore
        self.torch = torch
        self.planner = _redistribute
        self.meshes = {}
        dist.init_process_group("fake", rank=0, world_size=8, store=FakeStore())

    def mesh(self, shape, is_flattened):
        key = shape, is_flattened
        if key not in self.meshes:
            from torch.distributed.device_mesh import DeviceMesh
            names = tuple(f"d{i}" for i in range(len(shape)))
            ranks = self.torch.arange(self.torch.Size(shape).numel())
            mesh = DeviceMesh("cpu", ranks.view(shape), mesh_dim_names=names)
            for count in range(2, len(shape) + 1) if is_flattened else []:
                for some in itertools.combinations(names, count):
                    mesh[some]._flatten("_".join(some))
            self.meshes[key] = mesh
        return self.meshes[key]

    def spec(self, mesh, sizes, text):
        from torch.distributed.tensor import Partial, Replicate, Shard
        from torch.distributed.tensor._dtensor_spec import DTensorSpec, TensorMeta
        kinds = {"R": Replicate(), "S(0)": Shard(0), "S(1)": Shard(1),
                 "P(sum)": Partial()}
        meta = TensorMeta(self.torch.Size(sizes), (sizes[1], 1), self.torch.float)
        return DTensorSpec(
            mesh, tuple(kinds[word] for word in text.split()), tensor_meta=meta)

    def cost(self, shape, sizes, before, after, is_flattened):
        mesh = self.mesh(shape, is_flattened)
        start = self.spec(mesh, sizes, before)
        goal = self.spec(mesh, sizes, after)
        steps = self.planner._gen_transform_infos_non_cached(start, goal)
        if is_flattened:
            steps = self.planner._optimize_transform_infos(
                steps, mesh, start.placements, goal.placements)
        total = Cost()
        for step in steps:
            total.add(self.step_cost(getattr(step, "mesh", mesh), step))
        return total

    @staticmethod
    def step_cost(mesh, step):
        kind = step._comm_type_key()
        ranks = mesh.size(step.mesh_dim)
        if kind is None or ranks == 1:
            return Cost()
        sizes = list(step.logical_shape)
        if kind == "all_to_all":  # counts the rank's shard
            dim = step.src_dst_placements[0].dim
            sizes[dim] = -(-sizes[dim] // ranks)
        sent = ROUNDS[kind] * (ranks - 1) / ranks * ITEM_SIZE
        for size in sizes:
            sent *= size
        return Cost(1, sent, LATENCY_US + sent / BYTES_PER_US)


def is_worse(ours, theirs, sizes):
    more_collectives = ours.collectives > theirs.collectives
    more_bytes = ours.bytes > theirs.bytes * (1 + 1e-9)
    return (more_collectives and more_bytes
            or sizes == (8, 8) and more_collectives
            or sizes == (4096, 4096) and more_bytes)


def compare(program):
    python = Python()
    sums = {}
    worse = []
    for shape, sizes, before, after, ours in list_plans(program):
        if "P(sum)" in after.split() and any(
                a != b and b == "P(sum)"
                for a, b in zip(before.split(), after.split())):
            continue  # Python does not redistribute to Partial
        greedy = python.cost(shape, sizes, before, after, False)
        flattened = python.cost(shape, sizes, before, after, True)
        row = sums.setdefault((shape, sizes), [0, Cost(), Cost(), Cost()])
        row[0] += 1
        for total, cost in zip(row[1:], (ours, greedy, flattened)):
            total.add(cost)
        for name, theirs in ("greedy", greedy), ("flattened", flattened):
            if is_worse(ours, theirs, sizes):
                worse.append((shape, sizes, before, after, name, ours, theirs))
    return sums, worse


def short(number):
    return f"{number:,.0f}" if number >= 1000 else f"{number:.3g}"


def print_table(sums):
    print("| mesh | tensor | pairs | collectives | MB per rank | modelled ms |")
    print("|---" * 6 + "|")
    for (shape, sizes), (pairs, *costs) in sums.items():
        print(f"| ({', '.join(map(str, shape))}) | {sizes[0]}x{sizes[1]} | {pairs:,}",
              " / ".join(f"{cost.collectives:,}" for cost in costs),
              " / ".join(short(cost.bytes / 1e6) for cost in costs),
              " / ".join(short(cost.us / 1e3) for cost in costs) + " |",
              sep=" | ")


def ranks_of(values):
    order = sorted(range(len(values)), key=lambda i: values[i])
    ranks = [0.0] * len(values)
    for place, i in enumerate(order):
        ranks[i] = place
    return ranks


def rank_correlation(a, b):
    """Returns Spearman's coefficient."""
    n = len(a)
    differences = sum((x - y) ** 2 for x, y in zip(ranks_of(a), ranks_of(b)))
    return 1 - 6 * differences / (n * (n * n - 1))


def measured_rows(command):
    """Yields (mesh shape, sizes, modelled us, measured us) of executed plans."""
    lines = subprocess.run(
        command, check=True, capture_output=True, text=True).stdout
    for line in lines.splitlines():
        shape, sizes, *_, modelled, measured = line.split(";")
        yield numbers(shape), numbers(sizes), float(modelled), float(measured)


def measure(program, launcher):
    def on_ranks(kind, count):
        return ([] if kind == "threads" else [launcher, "--no-prefix", "-n", str(count)]) + [program]

    kinds = ("threads", "processes")
    for shape, kind in itertools.product([(2,), (2, 2)], kinds):
        ranks = math.prod(shape)
        rows = list(measured_rows(
            [*on_ranks(kind, ranks), "measure", "x".join(map(str, shape))]))
        correlation = rank_correlation(*zip(*(row[2:] for row in rows)))
        print(f"{len(rows)} plans on {kind}, mesh {shape}, {os.cpu_count()} cores: "
              f"rank correlation of modelled and measured time {correlation:.3f}",
              flush=True)
    print("| mesh | tensor | plans | modelled / measured us on threads | "
          "on processes |")
    print("|---" * 5 + "|")
    for shape in MESHES:
        sums = {}
        for kind in kinds:
            ranks = math.prod(shape)
            name = "x".join(map(str, shape))
            for row in measured_rows([*on_ranks(kind, ranks), "sample", name]):
                cell = sums.setdefault(row[1], {}).setdefault(kind, [0, 0, 0])
                for i, number in enumerate((1, *row[2:])):
                    cell[i] += number
        for sizes, cells in sums.items():
            means = [f"{us / count:.1f} / {real / count:.1f}"
                     for count, us, real in cells.values()]
            print(f"| ({', '.join(map(str, shape))}) | {sizes[0]}x{sizes[1]}",
                  cells["threads"][0], *means, sep=" | ", end=" |\n", flush=True)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument(
        "--plans", default=str(ROOT / "build/dev/tests/dtensor_plan_list"))
    parser.add_argument("--measure", action="store_true")
    parser.add_argument("--launcher", default=str(ROOT / "build/dev/launcher/dtensor-run"))
    args = parser.parse_args()
    if args.measure:
        measure(args.plans, args.launcher)
        return
    sums, worse = compare(args.plans)
    print_table(sums)
    for row in worse:
        print("worse:", *row)
    sys.exit(bool(worse))


if __name__ == "__main__":
    main()
