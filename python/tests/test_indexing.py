# SPDX-License-Identifier: BSD-3-Clause
"""Tests of x[key] and x[key] = value, against plain tensors."""

import operator
import warnings

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import (
    DTensor,
    Partial,
    Replicate,
    Shard,
    distribute_tensor,
)

import dtensor

FULL = torch.arange(35.0).view(7, 5)  # uneven on 2 and on 3 ranks
LAYOUTS = [[Shard(0)], [Shard(1)], [Replicate()]]

# A tensor among the keys becomes a replicated DTensor.
KEYS = [3, -1, (2, 3), (slice(1, 6, 2), 1), (..., 2), (None, 4), slice(None), ()]
KEYS += [(slice(2, 5), None, slice(0, -1)), (3, ...), (..., slice(1, 4), 0), True]
INDICES = [torch.tensor([0, 6, 3]), FULL % 3 == 0, FULL[:, 0] > 9]
#: PyTorch makes an index of each sequence.
SEQUENCES = [
    *([0, 2], [-1], [], [True, False] * 3 + [True], [3.5, 1]),
    *((slice(None), [4, 0]), ([6, 1], 2), (None, [0]), (..., [1, 1, 3])),
    *(([0, 1], [1, 2]), ([[0], [6]], [1, 2]), ((0, 5), (1, 2)), (3, [0, 4])),
    *(range(2), (range(3), range(3)), range(6, 0, -2), [0] * 40, [[0, 1]] * 40),
    *([[0, 1], [1, 2]], [[0, 1], [1]], [0, slice(1, 3)], [None, 0], [[]]),
    *(np.array([0, 6]), np.array([[0, 1], [2, 3]]), (FULL > 9).numpy()),
    *((np.array([0, 2]), [1, 3]), np.int64(3), np.array(2), (np.array([2]), 1)),
    *([np.int64(2), 1], [torch.tensor(1), 2]),
]
#: Keys that torch.Tensor refuses.
WRONG = [
    *(7, (0, 0, 0), slice(None, None, -1), slice(None, None, 0), slice(0.5, 1)),
    *([7], [True] * 3, "a", ["a"], {}, 1.5, [[0], "a"], object(), [0, object()]),
    *(([0], [0], [0]), [[0, [1]], [0, 1]] * 20),
    *(np.array([7]), np.array([1, 2])[::-1], (slice(0, 2, -1), [0])),
]


def mesh_of_all():
    return init_device_mesh("cpu", (dist.get_world_size(),))


def distributed_key(key, mesh):
    if isinstance(key, torch.Tensor):
        return distribute_tensor(key, mesh, [Replicate()])
    return key


def check_key(key, layout):
    mesh = mesh_of_all()
    mine = distributed_key(key, mesh)
    x = distribute_tensor(FULL, mesh, layout)
    assert torch.equal(x[mine].full_tensor(), FULL[key]), key
    x[mine] = 7
    truth = FULL.clone()
    truth[key] = 7
    assert torch.equal(x.full_tensor(), truth), key
    source = torch.ones_like(truth[key])
    x[mine] = distribute_tensor(source, mesh, [Replicate()])
    truth[key] = 1
    assert torch.equal(x.full_tensor(), truth), key


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.filterwarnings("ignore:Using a non-tuple sequence")
def test_indexing_is_that_of_plain_tensors(run, layout):
    def check():
        for key in (*KEYS, *INDICES, *SEQUENCES):
            check_key(key, layout)

    run(check)


@pytest.mark.parametrize("key", [(3, slice(1, None)), [3, 3, 0], (slice(None), [1])])
def test_gradients_of_indexing(run, key):
    def check():
        x = distribute_tensor(FULL, mesh_of_all(), [Shard(0)]).requires_grad_()
        x[key].pow(2).sum().backward()
        plain = FULL.clone().requires_grad_()
        plain[key].pow(2).sum().backward()
        assert torch.equal(x.grad.full_tensor(), plain.grad)

    run(check)


def error_of(function, *args):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            function(*args)
        except Exception as error:
            return error
    return None


@pytest.mark.parametrize("key", WRONG, ids=repr)
def test_wrong_keys_have_the_errors_of_plain_tensors(key):
    def check():
        x = distribute_tensor(FULL, mesh_of_all(), [Shard(0)])
        for function, *value in ((operator.getitem,), (operator.setitem, 9)):
            theirs = error_of(function, FULL.clone(), key, *value)
            assert theirs is not None
            assert type(error_of(function, x, key, *value)) is type(theirs)

    dtensor.run_world(2, check)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("bound", [0, 1000])
def test_a_mask_of_one_element(run, layout, bound):
    def check():
        x = distribute_tensor(FULL, init_device_mesh("cpu", (dist.get_world_size(),)), layout)
        total = x.sum()
        plain = FULL.sum()
        selected = total[total > bound].full_tensor()
        assert torch.equal(selected, plain[plain > bound])
        y, expected = x.clone(), FULL.clone()
        y[total > bound] = 3
        expected[plain > bound] = 3
        assert torch.equal(y.full_tensor(), expected)

    run(check)


def test_a_nested_list_warns_as_for_plain_tensors():
    def check():
        x = distribute_tensor(FULL, mesh_of_all(), [Shard(0)])
        with pytest.warns(UserWarning, match="non-tuple sequence"):
            return x[[[0, 1], [1, 2]]].full_tensor()

    assert dtensor.run_world(1, check)[0].tolist() == [1.0, 7.0]


def test_plain_tensors_are_no_replicas_because_of_a_list():
    def check():
        mesh = mesh_of_all()
        x = distribute_tensor(FULL, mesh, [Shard(0)])
        with pytest.raises(RuntimeError, match='"values" is a plain'):
            x[[0, 2]] = torch.ones(2, 5)
        with pytest.raises(RuntimeError, match='"indices" is a plain'):
            x[[0, 2], torch.tensor([0, 1])]
        rows = distribute_tensor(torch.tensor([0, 1]), mesh, [Replicate()])
        assert x[rows, [1, 2]].full_tensor().tolist() == [1.0, 7.0]

    dtensor.run_world(2, check)


def test_a_list_selects_rows_of_a_sum_over_ranks(run):
    def check():
        rank, size = dist.get_rank(), dist.get_world_size()
        local = FULL + rank
        x = DTensor.from_local(local, mesh_of_all(), [Partial()])
        total = FULL * size + size * (size - 1) / 2
        assert torch.equal(x[[4, 0]].full_tensor(), total[[4, 0]])

    run(check)


def test_lists_under_torch_func(run):
    def loss(x):
        return x[[0, 3, 3]].pow(2).sum()

    def check():
        x = distribute_tensor(FULL, mesh_of_all(), [Shard(0)])
        got = torch.func.grad(loss)(x)
        assert torch.equal(got.full_tensor(), torch.func.grad(loss)(FULL))

    run(check)


def test_plain_tensors_keep_the_indexing_of_pytorch():
    x = FULL.clone()
    assert x[[0, 2]].tolist() == FULL.tolist()[0::2][:2]
    x[[0, 2]] = 9
    assert x[2].eq(9).all() and torch.equal(x[1], FULL[1])
    parameter = torch.nn.Parameter(FULL)
    assert torch.equal(parameter[1:, [2]], FULL[1:, [2]])
    assert torch.Tensor.__getitem__(x, 0) is not None
    assert x.__getitem__(1).tolist() == FULL[1].tolist()
    assert len({torch.Tensor.__getitem__, torch.Tensor.__setitem__}) == 2
    with pytest.raises(TypeError, match="deleting"):
        del x[0]
    with pytest.raises(TypeError):
        torch.Tensor.__getitem__(x)
    with pytest.raises(TypeError):
        torch.Tensor.__setitem__(x, 0)


def test_plain_tensors_are_numbers_in_lists():
    x = torch.arange(3.0)
    assert torch.equal(torch.tensor([x[0], x[1]]), x[:2])
    assert torch.equal(torch.tensor([[x[1]], [x[2]]]), x[1:].view(2, 1))
    parameter = torch.nn.Parameter(x[2], requires_grad=False)
    assert torch.equal(torch.tensor([parameter]), x[2:])


@pytest.mark.parametrize("layout", [[Shard(0)], [Replicate()]])
def test_dtensors_without_dimensions_are_numbers_in_lists(run, layout):
    def check():
        x = distribute_tensor(torch.arange(4.0), mesh_of_all(), layout)
        assert torch.equal(torch.tensor([x[0], x[3]]), torch.tensor([0.0, 3.0]))
        assert torch.equal(torch.tensor([[x[1]], [2]]), torch.tensor([[1.0], [2.0]]))
        with pytest.raises(ValueError, match="only one element"):
            torch.tensor([x])

    run(check)
