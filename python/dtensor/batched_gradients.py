# SPDX-License-Identifier: BSD-3-Clause
"""torch.autograd.grad(..., is_grads_batched=True) of DTensors.

PyTorch runs one backward pass on batched tensors of vmap, which the engine's
formulas do not accept. For DTensors, one pass for each gradient of the batch
gives the same result.
"""

from __future__ import annotations

import functools
from typing import Any

import torch

from dtensor import _C

_plain_grad = torch.autograd.grad


def _as_tuple(values: Any) -> tuple:
    is_one = isinstance(values, (torch.Tensor, torch.autograd.graph.GradientEdge))
    return (values,) if is_one or values is None else tuple(values)


def _nodes_of(outputs: tuple) -> list[Any]:
    edges = (torch.autograd.graph.GradientEdge, tuple)
    found = [o[0] if isinstance(o, edges) else o.grad_fn for o in outputs]
    return [node for node in found if node is not None]


def _leaves_dtensors(outputs: tuple) -> bool:
    """Returns true if plain tensors are local tensors of DTensors, or are
    computed from such a tensor."""
    nodes = _nodes_of(outputs)
    seen = set(nodes)
    while nodes:
        node = nodes.pop()
        if node.name() == "ToLocalBackward":
            return True
        for following, _ in node.next_functions:
            if following is not None and following not in seen:
                seen.add(following)
                nodes.append(following)
    return False


def _needs_passes(outputs: Any, inputs: Any, grad_outputs: Any) -> bool:
    tensors = [*_as_tuple(outputs), *_as_tuple(inputs), *_as_tuple(grad_outputs)]
    return any(map(_C.is_dtensor, tensors)) or _leaves_dtensors(_as_tuple(outputs))


def _batch_size(batches: tuple) -> int:
    sizes = {batch.shape[0] if batch.dim() else 0 for batch in batches}
    if len(sizes) != 1 or sizes == {0}:
        raise ValueError(
            "[grad] expected one batch of gradients for each output, got sizes "
            f"{[tuple(batch.shape) for batch in batches]}. Stack the same number "
            "of gradients in dimension 0 of each of grad_outputs."
        )
    return sizes.pop()


def _stacked(results: list[tuple]) -> tuple:
    return tuple(
        None if grads[0] is None else torch.stack(grads) for grads in zip(*results)
    )


@functools.wraps(_plain_grad)
def grad(
    outputs: Any,
    inputs: Any,
    grad_outputs: Any = None,
    retain_graph: bool | None = None,
    create_graph: bool = False,
    only_inputs: bool = True,
    allow_unused: bool | None = None,
    is_grads_batched: bool = False,
    materialize_grads: bool = False,
) -> Any:
    names = list(inputs) if isinstance(inputs, dict) else None
    variables = inputs if names is None else tuple(inputs.values())
    options = (create_graph, only_inputs, allow_unused)
    if not is_grads_batched or not _needs_passes(outputs, variables, grad_outputs):
        return _plain_grad(
            *(outputs, inputs, grad_outputs, retain_graph, *options),
            *(is_grads_batched, materialize_grads),
        )
    batches = _as_tuple(grad_outputs)
    size = _batch_size(tuple(batch for batch in batches if batch is not None))
    keep = create_graph if retain_graph is None else retain_graph
    results = [
        _plain_grad(
            *(outputs, variables, [b if b is None else b[i] for b in batches]),
            *(keep or i + 1 < size, *options, False, materialize_grads),
        )
        for i in range(size)
    ]
    stacked = _stacked(results)
    return stacked if names is None else dict(zip(names, stacked))
