# SPDX-License-Identifier: BSD-3-Clause
"""Tests that operators refuse on all ranks, with the error of the plain operator's
type, what the plain operator refuses. PyTorch infers shapes in Python, with fewer
checks than its operators."""

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Replicate, Shard, distribute_tensor

WHOLE = Replicate()
CALLS = {
    "addmm": lambda d: torch.addmm(d(2, 3), d(1, 2), d(2, 3)),
    "addmm_": lambda d: d(2, 3).addmm_(d(1, 2), d(2, 3)),
    "baddbmm": lambda d: torch.baddbmm(d(3, 2, 2), d(2, 2, 2), d(2, 2, 2)),
    "select_scatter": lambda d: d(5, 4, layout=Shard(1)).select_scatter(d(5), 0, 1),
    "slice_scatter": lambda d: d(4, 3, layout=Shard(1)).slice_scatter(
        d(2, 5, layout=Shard(1)), 0, 0, 2
    ),
    "index_add": lambda d: d(5, 4, layout=Shard(1)).index_add(
        0, d(2, dtype=torch.int64, layout=WHOLE), d(2, 3, layout=Shard(1))
    ),
    "index_add, a vector": lambda d: d(3, 2, layout=Shard(1)).index_add(
        0, d(2, dtype=torch.int64, layout=WHOLE), d(2, layout=WHOLE)
    ),
    "index_reduce": lambda d: d(5, 4).index_reduce(
        1, d(2, dtype=torch.int64, layout=WHOLE), d(6, 2), "amax"
    ),
    "index_fill": lambda d: d(4, 3, layout=Shard(1)).index_fill(
        1, d(3, dtype=torch.bool, layout=WHOLE), 7.0
    ),
    "a floating-point index": lambda d: d(4)[d(2, layout=WHOLE)],
    "embedding": lambda d: F.embedding(d(2, layout=WHOLE), d(4, 3)),
    "layer_norm": lambda d: F.layer_norm(d(4, 3), (4,)),
    "native_layer_norm": lambda d: torch.native_layer_norm(
        d(layout=WHOLE), (1, 2), None, None, 0.5
    ),
    "conv2d": lambda d: F.conv2d(
        d(1, 2, 3, 3), d(2, 2, 1, 1, dtype=torch.float64, layout=WHOLE)
    ),
    "pad": lambda d: torch.constant_pad_nd(d(1, 3, layout=Shard(1)), (0, 1), 1j),
    "as_strided": lambda d: d(3, 3).as_strided((2, 2), ()),
    "new_empty_strided": lambda d: d(4).new_empty_strided((2, 3), (-100, 8)),
    "out of all": lambda d: torch.all(d(4, 2), 1, out=d(4)),
    "out of any": lambda d: torch.any(d(4, 2), 1, out=d(4)),
    "out of isin": lambda d: torch.isin(d(4), d(2, layout=WHOLE), out=d(4)),
    "out of bucketize": lambda d: torch.bucketize(d(4), d(2, layout=WHOLE), out=d(4)),
    "out of complex": lambda d: torch.complex(
        d(4), d(4), out=d(4, dtype=torch.complex128)
    ),
    "out of aminmax": lambda d: torch.aminmax(
        d(4, 2), dim=1, out=(d(4, dtype=torch.float64), d(4, dtype=torch.float64))
    ),
    "out of multinomial": lambda d: torch.multinomial(
        d(4, layout=WHOLE), 2, out=d(2, layout=WHOLE)
    ),
    "out of bitwise_not": lambda d: torch.bitwise_not(
        d(4, dtype=torch.int32), out=d(4, dtype=torch.bool)
    ),
}


def plain(*sizes, layout=None, dtype=None):
    return torch.ones(sizes, dtype=dtype)


@pytest.mark.parametrize("name", CALLS)
def test_operands_that_do_not_fit(run, name):
    with pytest.raises(Exception) as expected:
        CALLS[name](plain)

    def check():
        mesh = init_device_mesh("cpu", (dist.get_world_size(),))

        def placed(*sizes, layout=Shard(0), dtype=None):
            return distribute_tensor(plain(*sizes, dtype=dtype), mesh, [layout])

        with pytest.raises(expected.type) as error:
            CALLS[name](placed)
        return str(error.value)

    texts = run(check)
    assert texts == [texts[0]] * len(texts)


@pytest.mark.parametrize("layout", [Shard(0), Shard(1), WHOLE])
def test_masks_of_bytes(run, layout):
    x = torch.arange(12.0).view(4, 3)

    def check():
        mesh = init_device_mesh("cpu", (dist.get_world_size(),))
        for mask in (torch.tensor([1, 0, 2, 1]), x.long() % 3):
            plain_mask = mask.byte()
            d = distribute_tensor(x, mesh, [layout])
            rows = distribute_tensor(plain_mask, mesh, [WHOLE])
            assert torch.equal(d[rows].full_tensor(), x[plain_mask])

    run(check)
