# SPDX-License-Identifier: BSD-3-Clause
"""Counterpart of warm_ops.cpp with Python's DTensor and its fake process group."""

import harness
import torch
import torch.nn.functional as F
from torch.distributed.tensor import (
    DTensor,
    Partial,
    Replicate,
    Shard,
    init_device_mesh,
)

SIDE = 8


def undifferentiable_cases(mesh, rows):
    make = lambda whole: harness.make(mesh, [Shard(0)], whole)
    zero = make(torch.zeros(rows, SIDE))
    return [
        ("add_", lambda x, y: x.add_(y), make((rows, SIDE)), zero),
        ("detach", torch.detach, make((rows, SIDE))),
    ]


def operator_cases(mesh, rows, leaves):
    """Returns name, function, operands. Operands are pairs of a DTensor and a
    plain tensor, optionally leaves of a graph."""
    make = lambda whole, layout: harness.make(
        mesh, [layout], whole, leaves and isinstance(whole, tuple)
    )
    a, b = make((rows, SIDE), Shard(0)), make((rows, SIDE), Shard(0))
    whole = make((SIDE, SIDE), Replicate())
    norm = [make((SIDE,), Replicate()) for _ in range(2)]
    heads = make((2, rows, 16, SIDE), Shard(1))
    image = make((rows, 2, SIDE, SIDE), Shard(0))
    kernel = make((2, 2, 3, 3), Replicate())
    channels = make((2,), Replicate())
    return [
        ("add", lambda x, y: x + y, a, b),
        ("mul_scalar", lambda x: x * 2.0, a),
        ("relu", torch.relu, a),
        ("clone", torch.clone, a),
        ("cat", lambda x, y: torch.cat([x, y], 1), a, b),
        ("view", lambda x: x.view(x.size(0), 2, 4), a),
        ("transpose", lambda x: x.transpose(0, 1), a),
        ("slice", lambda x: x[:, 0:4], a),
        ("sum", torch.sum, a),
        ("softmax", lambda x: torch.softmax(x, -1), a),
        ("layer_norm", lambda x, w, c: F.layer_norm(x, (SIDE,), w, c), a, *norm),
        ("mm", torch.mm, whole, make((SIDE, rows), Shard(1))),
        (
            "linear",
            F.linear,
            whole,
            make((rows, SIDE), Shard(0)),
            make((rows,), Shard(0)),
        ),
        (
            "embedding",
            lambda w, ids: F.embedding(ids, w),
            make((SIDE, rows), Shard(1)),
            make(torch.arange(4), Replicate()),
        ),
        (
            "attention",
            lambda q: F.scaled_dot_product_attention(q, q, q),
            heads,
        ),
        (
            "conv2d",
            lambda x, w, c: F.conv2d(x, w, c, padding=1),
            image,
            kernel,
            channels,
        ),
        ("max_pool2d", lambda x: F.max_pool2d(x, 2), image),
        (
            "group_norm",
            lambda x, w, c: F.group_norm(x, 2, w, c),
            image,
            channels,
            channels,
        ),
        ("upsample", lambda x: F.interpolate(x, size=2 * SIDE), image),
        ("cumsum", lambda x: x.cumsum(1), a),
        ("topk", lambda x: x.topk(2, 1)[0], a),
        ("fft", lambda x: torch.fft.rfft(x, dim=1), a),
    ]


def conversion_cases(mesh, rows):
    shard, local = harness.make(mesh, [Shard(0)], (rows, SIDE))
    square, _ = harness.make(mesh, [Shard(0)], (rows, rows))
    whole, _ = harness.make(mesh, [Replicate()], (rows, SIDE))
    partial = from_local(torch.randn(rows, SIDE), mesh, Partial())
    to = lambda t, layout: lambda: t.redistribute(placements=[layout])
    return {
        "from_local": lambda: from_local(local, mesh, Shard(0)),
        "to_local": lambda: shard.to_local(),
        "from_local_to_local": lambda: from_local(
            local, mesh, Shard(0)
        ).to_local(),
        "redistribute_noop": to(shard, Shard(0)),
        "redistribute_slice": to(whole, Shard(0)),
        "redistribute_all_gather": to(shard, Replicate()),
        "redistribute_all_reduce": to(partial, Replicate()),
        "redistribute_reduce_scatter": to(partial, Shard(0)),
        "redistribute_all_to_all": to(square, Shard(1)),
    }


def from_local(local, mesh, layout):
    return DTensor.from_local(local, mesh, [layout], run_check=False)


def backward_of(call, tensors):
    leaves = [t for t in tensors if t.requires_grad]
    grad = torch.ones_like(call(*tensors)).detach()
    return lambda: torch.autograd.grad(call(*tensors), leaves, grad)


def run_world(world_size, options):
    mesh = init_device_mesh("cpu", (world_size,))
    rows = max(SIDE, world_size)
    with torch.no_grad():
        cases = undifferentiable_cases(mesh, rows)
        for name, call, *operands in cases + operator_cases(mesh, rows, False):
            d, p = zip(*operands)
            harness.run_pair(
                f"warm/{name}/no_grad/{world_size}",
                lambda: call(*d),
                lambda: call(*p),
                options,
            )
        for name, call in conversion_cases(mesh, rows).items():
            harness.run_pair(
                f"warm/{name}/no_grad/{world_size}", call, None, options
            )
    for name, call, *operands in operator_cases(mesh, rows, True):
        d, p = zip(*operands)
        if name in ("attention", "group_norm"):  # not on CPU, or an error
            continue
        harness.run_pair(
            f"warm/{name}/grad/{world_size}",
            backward_of(call, d),
            backward_of(call, p),
            options,
        )


if __name__ == "__main__":
    options = harness.parse(__doc__)
    torch.set_num_threads(1)
    for world_size in (2, 8, 256):
        with harness.fake_world(world_size):
            run_world(world_size, options)
