# SPDX-License-Identifier: BSD-3-Clause
"""Seeds of random numbers: PyTorch's generator and the stream of DTensors."""

from __future__ import annotations

from numbers import Integral

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh

from dtensor import _C

_SEED_BYTES = 8


def manual_seed(seed: int, device_mesh: DeviceMesh) -> None:
    """Seeds the random numbers of DTensors on this rank.

    Corresponds to ``manual_seed`` in ``torch.distributed.tensor._random``. All
    ranks of a mesh must pass the same seed. :func:`torch.manual_seed` also seeds
    these numbers.

    Args:
        seed: integer.
        device_mesh: mesh that this rank belongs to.

    Raises:
        RuntimeError: if this rank is not in the mesh.

    Example::

        >>> manual_seed(0, mesh)
    """
    from dtensor.worlds import current_mesh

    if not isinstance(seed, Integral) or not -(2**63) <= seed < 2**64:
        raise _C.argument_error(
            "manual_seed", "seed", "an integer", seed, "Pass an int of 64 bits."
        )
    if current_mesh(device_mesh).get_coordinate() is None:
        raise RuntimeError(
            "[manual_seed] manual_seed requires the current rank to be a part "
            "of the device mesh. Call it on ranks of the mesh only."
        )
    _C.manual_seed(int(seed) % 2**64)


def rank_generator() -> torch.Generator:
    """Returns the default generator that seeds this rank's random numbers.

    The engine replaces the default generator of the process. PyTorch's Python
    object would still refer to the original generator.
    """
    _C.get_random_state()  # replaces it
    return _C.default_generator()


def share_seed(store: dist.Store) -> None:
    """Gives the DTensors of all ranks the seed of rank 0.

    Plain tensors keep the generator of their rank. torch.manual_seed() on all
    ranks seeds both.
    """
    state = _C.get_random_state()
    if dist.get_rank() == 0:
        store.set("dtensor_seed", bytes(state[:_SEED_BYTES].tolist()))
    seed = store.get("dtensor_seed")
    state[:_SEED_BYTES] = torch.tensor(list(seed), dtype=torch.uint8)
    _C.set_random_state(state)
