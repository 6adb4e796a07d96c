# SPDX-License-Identifier: BSD-3-Clause
"""The backend "dtensor" of torch.distributed: process groups over the engine.

``init_process_group("dtensor")`` joins the ranks over the engine's fastest
transport, which is shared memory within one host. PyTorch's own collectives,
``DistributedDataParallel`` and this package's tensors then use this transport.
"""

from __future__ import annotations

import os

import torch.distributed as dist

from dtensor import _C, worlds


def _engine_backend() -> str:
    chosen = os.environ.get("DTENSOR_BACKEND", "")
    return "auto" if chosen in ("", "torch") else chosen


def _make_backend(options, _):
    ranks = list(options.global_ranks_in_group)
    if not ranks:  # the default group
        ranks = list(range(options.group_size))
        if not worlds.in_rank_thread() and not _C.in_own_world():
            _C.join_world(
                _engine_backend(),
                options.store,
                options.group_rank,
                options.group_size,
                options.timeout,
            )
    return _C.c10d_backend(ranks)


def install() -> None:
    """Registers the backend."""
    if not hasattr(dist.Backend, "DTENSOR"):
        dist.Backend.register_backend(
            "dtensor", _make_backend, extended_api=True, devices=["cpu"]
        )
