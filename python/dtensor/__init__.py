# SPDX-License-Identifier: BSD-3-Clause
"""Programs for torch.distributed.tensor on the C++ library dtensor.

``import dtensor.as_torch`` as the first line of a program, or
``python -m dtensor program.py``, replaces the DTensor of this process. Names
of ``torch.distributed.tensor`` keep their meaning. This module has only names that
``torch.distributed.tensor`` lacks, and ``Shard`` with a unit.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch  # noqa: F401  (loads the libraries that _C needs)

from dtensor._C import is_dtensor
from dtensor.rank_threads import run_world
from dtensor.scopes import on_missing_rule

if TYPE_CHECKING:
    from dtensor.placements import Shard

__all__ = ["Shard", "is_dtensor", "on_missing_rule", "run_world"]


def __getattr__(name: str) -> Any:
    # Its base imports torch.distributed.tensor, which as_torch does first.
    if name == "Shard":
        from dtensor import placements

        return placements.Shard
    raise AttributeError(f"module 'dtensor' has no attribute '{name}'")
