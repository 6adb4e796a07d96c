# SPDX-License-Identifier: BSD-3-Clause
"""Prints the results of coalesced and functional collectives."""

import sys

import torch
import torch.distributed as dist
from torch.distributed import _functional_collectives as functional
from torch.distributed.distributed_c10d import _coalescing_manager

SHAPES = [(3,), (2, 5), (1, 1, 4)]


def inputs(rows=1):
    rank = dist.get_rank()
    return [
        torch.arange(rows * torch.Size(s).numel(), dtype=torch.float64)
        .view(rows * s[0], *s[1:])
        .add_(10 * rank)
        for s in SHAPES
    ]


def gathered(size):
    outputs = [torch.empty(size * s[0], *s[1:], dtype=torch.float64) for s in SHAPES]
    with _coalescing_manager(async_ops=True) as works:
        for output, given in zip(outputs, inputs()):
            dist.all_gather_into_tensor(output, given)
    works.wait()
    return outputs


def reduced(size, op):
    outputs = [torch.empty(s, dtype=torch.float64) for s in SHAPES]
    with _coalescing_manager():
        for output, given in zip(outputs, inputs(size)):
            dist.reduce_scatter_tensor(output, given, op=op)
    return outputs


def functional_results(size):
    group = dist.group.WORLD
    return [
        functional.all_gather_tensor(inputs()[1], 0, group),
        *functional.all_gather_into_tensor_coalesced(inputs(), group),
        functional.reduce_scatter_tensor(inputs(size)[1], "sum", 0, group),
        *functional.reduce_scatter_tensor_coalesced(
            inputs(size), "sum", [0] * len(SHAPES), group
        ),
    ]


dist.init_process_group(sys.argv[1])
size = dist.get_world_size()
results = [
    *gathered(size),
    *reduced(size, dist.ReduceOp.SUM),
    *reduced(size, dist.ReduceOp.MAX),
    *functional_results(size),
]
text = "".join(f"{tuple(r.shape)} {r.flatten().tolist()}\n" for r in results)
dist.destroy_process_group()
sys.stdout.write(text)
